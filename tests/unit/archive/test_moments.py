"""The moment before a DDL or a transaction of an archive."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from pumphouse.archive.moments import before_ddl, before_txn
from pumphouse.cli import cli
from pumphouse.errors import UsageError
from tests.support.madearchive import MadeSource, column

pytestmark = pytest.mark.row("R1")


@pytest.fixture
def made(tmp_path: Path) -> MadeSource:
    source = MadeSource(tmp_path)
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis()
    return source


def test_before_a_ddl_is_just_before_the_commit_that_changes_the_schema(made: MadeSource) -> None:
    old = made.jobs[0].job.id if made.jobs else 101
    made.add_column("t", column(2, "a"))
    first = made.jobs[-1]
    made.cut()
    made.drop_table("t")
    second = made.jobs[-1]
    made.setval("s", 5)
    made.cut()
    assert before_ddl(made.archive, first.job.id) == first.commit_ts - 1
    assert before_ddl(made.archive, second.job.id) == second.commit_ts - 1
    assert before_ddl(made.archive, second.commit_ts) == second.commit_ts - 1
    for unknown in (old, 1, 4711):  # one of genesis, a sequence's, none
        with pytest.raises(UsageError, match="schema show --history"):
            before_ddl(made.archive, unknown)


def test_before_a_transaction_is_just_before_its_commit_by_either_timestamp(made: MadeSource) -> None:
    with made.txn() as t:
        t.insert("t", id=1)
    made.cut()
    late = made.tick()  # it commits in the window after the next
    made.cut()
    with made.txn() as other:
        other.insert("t", id=2)
    open_ = made.txn()
    with open_ as t:
        t.insert("t", id=3)
    made.events[-1].start_ts = late
    made.cut()
    commit_ts = open_.commit_ts
    assert before_txn(made.archive, commit_ts) == before_txn(made.archive, late) == commit_ts - 1
    with pytest.raises(UsageError, match="has no transaction whose start or commit ts"):
        before_txn(made.archive, commit_ts - 1)
    for outside in (made.archive.genesis().ts - 1, made.archive.end() + 1):
        with pytest.raises(UsageError, match="is not in it"):
            before_txn(made.archive, outside)


def test_a_command_takes_them_and_tells_the_moment_back_first(made: MadeSource, tmp_path: Path) -> None:
    made.drop_table("t")
    job = made.jobs[-1]
    made.cut()
    args = ["schema", "show", "--archive", f"file://{tmp_path}", "--at", f"before ddl {job.job.id}"]
    done = CliRunner().invoke(cli, args)
    assert done.exit_code == 0, done.output
    assert "d.t " in done.stdout
    assert f"TSO {job.commit_ts - 1}" in done.stderr
