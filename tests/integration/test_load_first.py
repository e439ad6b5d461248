"""The first load of a target: what is looked at before anything is made there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from pumphouse.errors import LoadError, RestoreError
from pumphouse.loader.target import TargetConnection
from pumphouse.model.tso import Tso
from pumphouse.runs import load
from pumphouse.settings import LoadRule, LoadSettings, Settings, TargetSettings
from tests.support import mariadb
from tests.support.loading import drop_all, restored
from tests.support.madearchive import MadeSource, column, table_info, target_rows

LOAD = {"engine": "local"}
pytestmark = pytest.mark.row("L2")


@pytest.fixture
def begun(source: MadeSource) -> Tso:
    """An archive with rows in the dump and above it."""
    source.create_table("t", [column(1, "id", flag=3), column(2, "n")])
    with source.txn() as t:
        t.insert("t", id=1, n=1)
    ts = source.genesis()
    with source.txn() as t:
        t.insert("t", id=2, n=2)
    source.cut()
    return ts


def called(settings: Settings, name: str) -> Settings:
    """The same server, with our tables in another schema."""
    target = settings.target.model_copy(update={"schema_name": name})
    return settings.model_copy(update={"target": target})


def everything(target: TargetConnection) -> list[tuple[Any, ...]]:
    """Every table of the server's users."""
    return target.query(
        "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema NOT IN"
        " ('mysql', 'sys', 'information_schema', 'performance_schema') ORDER BY 1, 2"
    )


@pytest.mark.parametrize("how", ["equal", "plain"])
def test_a_target_that_is_the_source_is_refused(
    source: MadeSource, settings: Settings, server: TargetSettings, target: TargetConnection, begun: Tso, how: str
) -> None:
    target.execute("CREATE DATABASE d")
    target.execute("CREATE TABLE d.t (id INT PRIMARY KEY, n INT)")
    target.execute("INSERT INTO d.t VALUES (1, 99)")
    mine = settings.model_copy(update={"source": mariadb.as_source(server)})
    with pytest.raises(LoadError, match=r"is the source, \[source\].*Nothing was changed"):
        load.run(mine, equal_at=begun if how == "equal" else None)
    assert (everything(target), target_rows(target)) == ([("d", "t")], {"t": {(1, 99): 1}})


def test_where_a_plan_runs_is_said_with_the_master_that_was_not_used(
    source: MadeSource, settings: Settings, target: TargetConnection, begun: Tso
) -> None:
    spark = settings.spark.model_copy(update={"master": "spark://nowhere:7077"})
    with capture_logs() as logs:
        report = load.run(settings.model_copy(update={"spark": spark, "load": LoadSettings(engine="auto")}))
    assert "in this process (" in report.engine
    assert "load.local_bytes = 2,147,483,648; Spark at spark://nowhere:7077 not used" in report.engine
    assert [each["where"] for each in logs if each["event"] == "engine_chosen"][-1] == report.engine
    assert report.to_dict()["engine"] == report.engine
    assert target_rows(target) == source.snapshot()


def test_the_source_is_no_target_by_other_names_either(
    source: MadeSource, settings: Settings, server: TargetSettings, target: TargetConnection, begun: Tso
) -> None:
    rule = LoadRule(do="route", database="d", to="copy", why="beside it")
    mine = settings.model_copy(
        update={"source": mariadb.as_source(server), "load": LoadSettings(engine="local", rules=(rule,))}
    )
    with pytest.raises(LoadError, match=r"is the source, \[source\].*Nothing was changed"):
        load.run(mine)
    assert everything(target) == []


def test_databases_of_a_wrong_import_that_were_dropped_again_are_passed_by_loads_and_restores(
    source: MadeSource, settings: Settings, target: TargetConnection, begun: Tso
) -> None:
    load.run(settings)
    source.create_database("PumpHouse")
    source.rewrite_job(lambda raw: raw.update(schema_id=9, schema_name="PumpHouse"))
    info = table_info(900, "checkpoint", [column(1, "id", flag=3)])
    source.ddl(3, 900, "CREATE TABLE `checkpoint`", TableInfo=info)
    source.rewrite_job(lambda raw: raw.update(schema_id=9, schema_name="PumpHouse"))
    with source.txn() as t:
        t.insert("t", id=3, n=3)
    wrong = source.cut()
    with pytest.raises(LoadError, match=r"database 'PumpHouse'") as refused:
        load.run(settings)
    assert "schema import --drop PumpHouse" in refused.value.hint
    info = {"id": 9, "db_name": {"O": "PumpHouse", "L": "pumphouse"}, "charset": "utf8mb4", "collate": "utf8mb4_bin",
            "state": 0}  # fmt: skip
    source.ddl(2, 0, "DROP DATABASE `PumpHouse`", DBInfo=info)
    source.rewrite_job(lambda raw: raw.update(schema_id=9, schema_name="PumpHouse"))
    with source.txn() as t:
        t.insert("t", id=4, n=4)
    end = source.cut()
    report = load.run(settings)
    assert sum("was skipped" in each for each in report.notes) == 3, report.notes
    assert (report.to_ts, target_rows(target)) == (end, source.snapshot())
    assert load.run(settings).notes == []
    with pytest.raises((LoadError, RestoreError), match="database 'PumpHouse'"):
        restored(settings, to=wrong, dry_run=False)
    restored(settings, dry_run=False)
    assert target_rows(target) == source.snapshot()
    drop_all(target)
    load.run(settings)
    assert target_rows(target) == source.snapshot()
    # With rows in it, it is the source's.
    source.create_database("PumpHouse")
    source.rewrite_job(lambda raw: raw.update(schema_id=9, schema_name="PumpHouse"))
    source.create_table("own", [column(1, "id", flag=3)])
    source.rewrite_job(lambda raw: raw.update(schema_id=9, schema_name="PumpHouse"))
    with source.txn() as t:
        t.insert("own", id=1)
    source.ddl(2, 0, "DROP DATABASE `PumpHouse`", DBInfo=info)
    source.rewrite_job(lambda raw: raw.update(schema_id=9, schema_name="PumpHouse"))
    source.cut()
    with pytest.raises(LoadError, match=r"database 'PumpHouse'"):
        load.run(settings)


@pytest.mark.row("R3")
def test_a_database_called_like_that_of_restores_of_tables_is_refused_until_it_is_dropped_or_routed(
    source: MadeSource, settings: Settings, target: TargetConnection, begun: Tso
) -> None:
    load.run(settings)
    own = "PumpHouse_Parts"
    source.create_database(own)
    source.rewrite_job(lambda raw: raw.update(schema_id=9, schema_name=own))
    wrong = source.cut()
    said = f"database '{own}', .* 'pumphouse_parts' is that of restores of tables"
    with pytest.raises(LoadError, match=said) as refused:
        load.run(settings)
    assert f"schema import --drop {own}" in refused.value.hint
    with pytest.raises(LoadError, match=said):
        restored(settings, to=wrong, dry_run=False)
    rule = LoadRule(do="route", database=own, to="other", why="it is the source's")
    routed = settings.model_copy(update={"load": settings.load.model_copy(update={"rules": (rule,)})})
    restored(routed, to=wrong, dry_run=False)
    assert target.query("SHOW DATABASES LIKE 'other'")
    drop_all(target)
    info = {"id": 9, "db_name": {"O": own, "L": own.lower()}, "charset": "utf8mb4", "collate": "utf8mb4_bin",
            "state": 0}  # fmt: skip
    source.ddl(2, 0, f"DROP DATABASE `{own}`", DBInfo=info)
    source.rewrite_job(lambda raw: raw.update(schema_id=9, schema_name=own))
    source.cut()
    load.run(settings)
    assert target_rows(target) == source.snapshot()


def test_another_first_load_that_is_faster_is_in_nobodys_way(
    source: MadeSource, settings: Settings, target: TargetConnection, begun: Tso, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = load.require_new

    def after_the_other_one(*args: Any) -> Any:
        monkeypatch.setattr(load, "require_new", look)
        with source.txn() as t:
            t.insert("t", id=3, n=3)
        source.cut()
        load.run(settings)  # it has seen more
        return look(*args)

    monkeypatch.setattr(load, "require_new", after_the_other_one)
    load.run(settings)
    assert target_rows(target) == source.snapshot()


def test_a_schema_that_the_source_has_too_is_refused_and_another_name_is_enough(
    source: MadeSource, settings: Settings, target: TargetConnection, begun: Tso
) -> None:
    with pytest.raises(LoadError, match="the source has a database 'd'"):
        load.run(called(settings, "d"))
    assert everything(target) == []
    load.run(settings)
    assert target_rows(target) == source.snapshot()
    # The same mistake on a target that is loaded leaves nothing there either.
    before = everything(target)
    for name in ("d", "other"):
        with pytest.raises(LoadError):
            load.run(called(settings, name))
    assert everything(target) == before


@pytest.mark.parametrize("name", ["orders", "checkpoint", "fence"])
def test_a_schema_with_tables_of_others_is_not_for_our_state(
    source: MadeSource, settings: Settings, target: TargetConnection, begun: Tso, name: str
) -> None:
    target.execute("CREATE DATABASE ops")
    target.execute(f"CREATE TABLE ops.{name} (id INT PRIMARY KEY)")
    with pytest.raises(LoadError, match=rf"'ops' .* has tables of its own \({name}\)\. Nothing was changed"):
        load.run(called(settings, "ops"))
    assert everything(target) == [("ops", name)]


def test_a_user_who_may_not_read_our_state_is_told_so(
    source: MadeSource, settings: Settings, target: TargetConnection, begun: Tso
) -> None:
    load.run(settings)
    mariadb.new_user(target.execute, "less@'%'")
    target.execute("GRANT ALL ON d.* TO less@'%'")
    less = settings.target.model_copy(update={"user": "less", "password": SecretStr("pw")})
    with pytest.raises(LoadError, match="denied"):
        load.run(settings.model_copy(update={"target": less}))


@pytest.fixture
def no_local(target: TargetConnection) -> Iterator[None]:
    target.execute("SET GLOBAL local_infile = OFF")
    yield
    target.execute("SET GLOBAL local_infile = ON")


@pytest.mark.parametrize("mode", ["merge", "replay"])
def test_a_target_that_takes_no_files_is_named_and_no_table_is_blamed(
    source: MadeSource, settings: Settings, target: TargetConnection, begun: Tso, no_local: None, mode: str
) -> None:
    mine = settings.model_copy(update={"load": settings.load.model_copy(update={"mode": mode})})
    with pytest.raises(LoadError, match="local_infile is off there") as refused:
        load.run(mine)
    assert "SET GLOBAL local_infile = ON" in refused.value.hint
    assert "park" not in refused.value.hint
    target.execute("SET GLOBAL local_infile = ON")
    load.run(mine)
    target.execute("SET GLOBAL local_infile = OFF")
    with source.txn() as t:
        t.insert("t", id=3, n=3)
    source.cut()
    with pytest.raises(LoadError, match="local_infile is off there"):
        load.run(mine)
    target.execute("SET GLOBAL local_infile = ON")
    load.run(mine)
    assert target_rows(target) == source.snapshot()
