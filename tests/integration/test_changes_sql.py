"""`archive changes --sql` on a real server: a script that does the changes again leaves the rows of the source."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from pumphouse.cli import cli
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import ColumnFlag, MysqlType
from pumphouse.settings import Settings
from tests.support.madearchive import MadeSource, column

pytestmark = pytest.mark.row("A6")


def test_a_time_that_the_source_left_alone_is_not_that_of_the_run(
    settings: Settings, source: MadeSource, target: TargetConnection
) -> None:
    stamped = column(3, "at", MysqlType.TIMESTAMP, flag=int(ColumnFlag.ON_UPDATE_NOW), flen=19)
    source.create_table("t", [column(1, "id", flag=3), column(2, "n"), stamped])
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=1, n=1, at="2026-01-02 03:04:05")
    with source.txn() as t:
        t.update("t", 1, n=2)
    source.cut()
    target.execute("CREATE DATABASE d")
    target.execute("CREATE TABLE d.t (id INT PRIMARY KEY, n INT, at TIMESTAMP NULL ON UPDATE CURRENT_TIMESTAMP)")
    arguments = ["archive", "changes", "d.t", "--sql", "--archive", settings.archive.root]
    script = CliRunner(catch_exceptions=False).invoke(cli, arguments).stdout
    for line in script.splitlines():
        if not line.startswith("--"):
            target.execute(line)
    assert target.query("SELECT id, n, CAST(at AS CHAR) FROM d.t") == [(1, 2, "2026-01-02 03:04:05")]
