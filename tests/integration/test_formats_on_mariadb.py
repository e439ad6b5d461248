"""Tables and rows that real loads leave on a real target, against docs/formats.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from pumphouse.executor.executor import Executor
from pumphouse.loader.keys import Predicate
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import MysqlType
from pumphouse.registry.open import open_cluster
from pumphouse.restore.parts import Chosen
from pumphouse.runs import load, restore_parts
from pumphouse.schema.history import MysqlTableSource
from pumphouse.schema_import.write import HistoryTable
from pumphouse.settings import Settings, TargetSettings
from tests.support import formats, mariadb
from tests.support.dumpedsource import DumpedSource
from tests.support.killed import Killed
from tests.support.madearchive import Churn, column


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetSettings]:
    """A server after loads with DDL, a forced repeat, a transaction left out, a table parked and brought back."""
    folder = tmp_path_factory.mktemp("formats")
    with mariadb.in_memory() as settings:
        cluster = open_cluster(f"file://{folder}/cluster", create=True)
        source = DumpedSource(folder / "archive", cluster.cluster_id())
        cluster.close()
        churn = Churn(source)
        churn.fill()
        begin = source.genesis()
        churn.work(5)
        source.add_column("t", column(4, "extra", MysqlType.VARCHAR))
        source.truncate("k")
        source.drop_table("u")
        source.cut()
        told = {
            "cluster": {"url": f"file://{folder}/cluster"},
            "archive": source.settings,
            "target": settings,
            "load": {"engine": "local", "buckets": 3},
        }
        load.run(Settings.model_validate(told))
        load.run(Settings.model_validate(told), repeat=begin)
        with source.txn() as t:
            t.insert("t", id=1 << 20)
        at = source.events[-1].commit_ts
        source.create_table("v", [column(1, "id", flag=3)])
        which = {"txn": at}, {"ddl": source.jobs[-1].job.id}
        source.cut()
        left_out = told["load"] | {"rules": [{"do": "skip", **each, "why": "a look at the plan"} for each in which]}
        load.run(Settings.model_validate(told | {"load": left_out}))
        parked = told["load"] | {"rules": [{"do": "park", "table": "d.t", "why": "a look at the row"}]}
        load.run(Settings.model_validate(told | {"load": parked}))
        low = source.cut()
        source.publish(low, [source.read(name, low, low) for name in source.tables])
        load.run(Settings.model_validate(told))
        load.run(Settings.model_validate(told), resync="d.t")
        for own, where in (("keys", Predicate(keys=("1",))), ("range", Predicate(low="1", below="9"))):
            some = Chosen(tables=("d.t",), called="c.t", where=where)
            there = Settings.model_validate(told | {"target": settings.model_copy(update={"schema_name": own})})
            with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
                patch.setattr(Executor, "_apply_units", _die)
                restore_parts.run(there, chosen=some, into="target", dry_run=False)
        yield settings


def _die(*_: object) -> None:
    raise Killed


@pytest.fixture
def target(server: TargetSettings) -> Iterator[TargetConnection]:
    with TargetConnection.open(server) as connection:
        yield connection


def _definition(connection: TargetConnection, schema: str, table: str) -> str:
    ((_, text),) = connection.query(f"SHOW CREATE TABLE `{schema}`.`{table}`")
    return re.sub(r" AUTO_INCREMENT=\d+", "", text)


@pytest.mark.row("L6", "O7")
def test_tables_of_ours_are_those_of_the_page_and_no_others(target: TargetConnection) -> None:
    wanted = set(formats.blocks("table")) - {"ddl_history"}
    found = target.query("SELECT table_name FROM information_schema.tables WHERE table_schema = 'pumphouse'")
    assert {name for (name,) in found} == wanted
    target.execute("DROP DATABASE IF EXISTS documented")
    target.execute("CREATE DATABASE documented DEFAULT CHARACTER SET utf8mb4")
    for name in sorted(wanted):
        target.execute(formats.blocks("table")[name].replace("`pumphouse`.", "`documented`.").rstrip().rstrip(";"))
        assert _definition(target, "pumphouse", name) == _definition(target, "documented", name)
    target.execute("DROP DATABASE documented")


def test_the_history_table_of_a_mysql_source_is_that_of_the_page(
    server: TargetSettings, target: TargetConnection
) -> None:
    with HistoryTable.open(MysqlTableSource(server, "history", "jobs")) as table:
        table.create()
    target.execute("DROP DATABASE IF EXISTS documented")
    target.execute("CREATE DATABASE documented")
    text = formats.blocks("table")["ddl_history"].replace("`history`.`jobs`", "`documented`.`jobs`")
    target.execute(text.rstrip().rstrip(";"))
    assert _definition(target, "history", "jobs") == _definition(target, "documented", "jobs")
    target.execute("DROP DATABASE documented")


@pytest.mark.row("L6", "O7")
def test_plan_rows_are_as_the_page_says(target: TargetConnection) -> None:
    shown = formats.Shown()
    rows = target.query("SELECT mode, state, spec FROM pumphouse.plan")
    assert {mode for mode, _, _ in rows} == {"base", "merge", "repeat"}
    assert {state for _, state, _ in rows} == {"closed"}
    parts = [
        row for own in ("keys", "range") for row in target.query(f"SELECT mode, state, spec FROM {own}_parts.plan")
    ]
    assert {(mode, state) for mode, state, _ in parts} == {("base", "open")}
    for _, _, spec in (*rows, *parts):
        shown.check("plan-spec", json.loads(spec))
    assert shown.missing("plan-spec") == []


@pytest.mark.row("L6", "O7")
def test_ddl_rows_are_as_the_page_says(target: TargetConnection) -> None:
    shown = formats.Shown()
    rows = target.query("SELECT statement, state, looks FROM pumphouse.ddl")
    assert {state for _, state, _ in rows} == {"done"}
    for statement, _, looks in rows:
        shown.check("ddl-statement", json.loads(statement))
        shown.check("ddl-looks", json.loads(looks))
    # `db` and `needs` are of text for TiDB targets and of recovered tables, `time_zone` of rewritten TIMESTAMPs, `doubts` of types.
    assert set(shown.missing("ddl-statement")) <= {"/db", "/needs", "/time_zone", "/doubts/*", "/doubts"}
    assert shown.missing("ddl-looks") == []
