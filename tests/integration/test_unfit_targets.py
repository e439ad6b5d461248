"""Tables of a target that no row is put into: not transactional, or with triggers that rows of a load would fire."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from pumphouse.errors import LoadError, RestoreError
from pumphouse.loader.target import TargetConnection
from pumphouse.replay import Dml, Replay, Txn
from pumphouse.runs import load
from pumphouse.settings import Settings, TargetSettings
from tests.integration.test_load_rules import ruled
from tests.support import mariadb
from tests.support.kind import is_mysql
from tests.support.loading import restored
from tests.support.madearchive import MadeSource, column, target_rows

ID, TEXT = column(1, "id", flag=3), column(2, "v", 15)
AUDIT = "CREATE TRIGGER d.ai AFTER INSERT ON d.t FOR EACH ROW INSERT INTO d.audit VALUES (NEW.id + 100, 'again')"
# An engine without transactions, beside MyISAM where there is one.
NO_TRANSACTIONS = "MyISAM" if is_mysql() else "Aria"
LOAD = {"engine": "local", "buckets": 1}


@pytest.fixture
def loaded(source: MadeSource, settings: Settings, target: TargetConnection) -> MadeSource:
    """A target that was loaded, and a window that it has not."""
    for name in ("t", "audit", "other"):
        source.create_table(name, [ID, TEXT])
        with source.txn() as t:
            t.insert(name, id=1, v=b"a")
    source.genesis()
    source.cut()
    load.run(settings)
    with source.txn() as t:
        t.insert("t", id=2, v=b"b")
        t.insert("audit", id=2, v=b"b was put")
    source.cut()
    return source


def in_mode(settings: Settings, **more: Any) -> Settings:
    return settings.model_copy(update={"load": settings.load.model_copy(update=more)})


@pytest.mark.row("L6")
@pytest.mark.parametrize("mode", ["merge", "replay"])
def test_triggers_on_a_table_of_the_plan_stop_it_by_name_before_the_first_row(
    loaded: MadeSource, settings: Settings, target: TargetConnection, mode: str
) -> None:
    before = target_rows(target)
    target.execute("CREATE TRIGGER d.on_other AFTER INSERT ON d.other FOR EACH ROW SET @x = 1")
    target.execute(AUDIT)
    with pytest.raises(LoadError, match=r"d\.t of target .* has triggers .*\(d\.ai\)") as caught:
        load.run(in_mode(settings, mode=mode))
    assert "DROP TRIGGER `d`.`ai`" in caught.value.hint
    assert 'load.triggers = ["d.ai"]' in caught.value.hint
    assert 'do = "park"' in caught.value.hint
    assert target_rows(target) == before
    # A table that the plan does not touch has what triggers it likes.
    target.execute("DROP TRIGGER d.ai")
    load.run(in_mode(settings, mode=mode))
    assert target_rows(target) == loaded.snapshot()


@pytest.mark.row("L6")
def test_a_trigger_that_the_settings_name_fires(
    loaded: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    target.execute(AUDIT)
    load.run(in_mode(settings, triggers=("D.AI",)))
    assert target.value("SELECT v FROM d.audit WHERE id = 102") == "again"


@pytest.mark.row("L6")
@pytest.mark.parametrize("again", [False, True])
def test_an_open_plan_does_not_go_on_over_a_trigger(
    loaded: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Nor does a replay take its last round back over one."""
    told = in_mode(settings, mode="replay" if again else "merge")
    target.execute("CREATE TRIGGER d.no BEFORE INSERT ON d.t FOR EACH ROW SIGNAL SQLSTATE '45000'")
    with pytest.raises(LoadError):
        load.run(in_mode(told, triggers=("d.no",)))
    before = target_rows(target)
    with pytest.raises(LoadError, match=r"has triggers .*\(d\.no\)"):
        load.run(told)
    assert target_rows(target) == before
    target.execute("DROP TRIGGER d.no")
    load.run(told)
    assert target_rows(target) == loaded.snapshot()


@pytest.mark.row("L6")
def test_a_resync_and_a_restore_make_tables_without_the_triggers(
    loaded: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    target.execute(AUDIT)
    with pytest.raises(LoadError, match="has triggers"):
        load.run(settings)
    load.run(settings, resync="d.t")
    load.run(settings)
    assert target_rows(target) == loaded.snapshot()
    target.execute(AUDIT)
    restored(settings, to=loaded.archive.end(), dry_run=False)
    assert target_rows(target) == loaded.snapshot()


@pytest.mark.row("L6")
@pytest.mark.parametrize("mode", ["merge", "replay"])
def test_a_table_without_transactions_stops_the_plan_by_name_before_the_first_row(
    loaded: MadeSource, settings: Settings, target: TargetConnection, mode: str
) -> None:
    before = target_rows(target)
    target.execute("ALTER TABLE d.t ENGINE=MyISAM")
    with pytest.raises(LoadError, match=r"d\.t of target .* is of the engine MyISAM") as caught:
        load.run(in_mode(settings, mode=mode))
    assert "ALTER TABLE `d`.`t` ENGINE=InnoDB" in caught.value.hint
    assert 'do = "park"' in caught.value.hint
    assert target_rows(target) == before
    target.execute("ALTER TABLE d.t ENGINE=InnoDB")
    load.run(in_mode(settings, mode=mode))
    assert target_rows(target) == loaded.snapshot()


@pytest.mark.row("L6")
@pytest.mark.parametrize("mode", ["merge", "replay"])
def test_a_table_that_a_rule_makes_without_transactions_gets_no_row(
    loaded: MadeSource, settings: Settings, target: TargetConnection, mode: str
) -> None:
    loaded.create_table("new", [ID, TEXT])
    made = f"CREATE TABLE d.new (id INT PRIMARY KEY, v VARCHAR(64)) ENGINE={NO_TRANSACTIONS}"
    rule = {"do": "replace", "ddl": loaded.jobs[-1].job.id, "sql": [made], "why": "smaller"}
    with loaded.txn() as t:
        t.insert("new", id=1, v=b"a")
    loaded.cut()
    told = ruled(in_mode(settings, mode=mode), rule)
    with pytest.raises(LoadError, match=rf"d\.new of target .* is of the engine {NO_TRANSACTIONS}"):
        load.run(told)
    assert target.query("SELECT * FROM d.new") == []
    target.execute("ALTER TABLE d.new ENGINE=InnoDB")
    load.run(told)
    assert target_rows(target) == loaded.snapshot()


@pytest.mark.row("L6")
def test_a_target_that_is_said_to_be_equal_is_looked_at_too(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [ID, TEXT])
    at = source.genesis()
    with source.txn() as t:
        t.insert("t", id=1, v=b"a")
    source.cut()
    target.execute("CREATE DATABASE d")
    target.execute(f"CREATE TABLE d.t (id INT PRIMARY KEY, v VARCHAR(64)) ENGINE={NO_TRANSACTIONS}")
    with pytest.raises(LoadError, match=rf"d\.t of target .* is of the engine {NO_TRANSACTIONS}"):
        load.run(settings, equal_at=at)


@pytest.mark.row("L6")
def test_state_that_lies_in_a_table_without_transactions_stops_load_and_restore(
    loaded: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    before = target_rows(target)
    target.execute("ALTER TABLE pumphouse.applied ENGINE=MyISAM")
    with pytest.raises(LoadError, match=r"pumphouse\.applied .* is of the engine MyISAM"):
        load.run(settings)
    with pytest.raises((LoadError, RestoreError), match=r"pumphouse\.applied .* is of the engine MyISAM"):
        restored(settings, to=loaded.archive.end(), dry_run=False)
    assert target_rows(target) == before
    target.execute("ALTER TABLE pumphouse.applied ENGINE=InnoDB")
    load.run(settings)


@pytest.fixture
def forced(target: TargetConnection) -> Iterator[None]:
    target.execute("SET GLOBAL enforce_storage_engine = 'Aria'")
    yield
    target.execute("SET GLOBAL enforce_storage_engine = NULL")


@pytest.mark.row("L6")
@pytest.mark.mariadb("a MySQL forces no engine on a table")
@pytest.mark.usefixtures("forced")
def test_a_server_that_makes_tables_of_another_engine_gets_none(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [ID, TEXT])
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=1, v=b"a")
    end = source.cut()
    with pytest.raises(LoadError, match="enforce_storage_engine"):
        load.run(settings)
    with pytest.raises(RestoreError, match="enforce_storage_engine"):
        restored(settings, to=end, dry_run=False)
    with pytest.raises(LoadError, match="enforce_storage_engine"):
        Replay(settings.target)
    made = "SELECT table_name FROM information_schema.tables WHERE table_schema IN ('d', 'pumphouse')"
    assert target.query(f"{made} AND engine <> 'InnoDB'") == []
    # And a statement that runs while somebody switches it on is refused, not bent.
    with TargetConnection.open(settings.target) as session, pytest.raises(LoadError, match="NO_ENGINE_SUBSTITUTION"):
        session.execute("CREATE DATABASE IF NOT EXISTS d")
        session.execute("CREATE TABLE d.t (id INT) ENGINE=InnoDB")


@pytest.mark.row("L3")
def test_a_stream_is_not_replayed_into_such_tables_either(target: TargetConnection, server: TargetSettings) -> None:
    target.execute("CREATE DATABASE d")
    target.execute("CREATE TABLE d.t (id INT PRIMARY KEY)")
    target.execute("CREATE TRIGGER d.ai AFTER INSERT ON d.t FOR EACH ROW SET @x = 1")
    target.execute("CREATE TABLE d.m (id INT PRIMARY KEY) ENGINE=MyISAM")

    def put(table: str, **how: Any) -> None:
        with Replay(server, **how) as replay:
            replay.input.put(Txn(dmls=[Dml(kind="insert", db="d", table=table, values={"id": 1})], commit_ts=1))
            replay.close()
            replay.run()

    with pytest.raises(LoadError, match=r"d\.t .* has triggers"):
        put("t")
    with pytest.raises(LoadError, match=r"d\.m .* MyISAM"):
        put("m")
    assert target.query("SELECT * FROM d.t UNION ALL SELECT * FROM d.m") == []
    put("t", triggers=["d.ai"])
    assert target.query("SELECT * FROM d.t") == [(1,)]


@pytest.mark.row("L6")
def test_a_user_that_may_not_see_triggers_is_told_so(
    loaded: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    mariadb.new_user(target.execute, "loader@'127.0.0.1'")
    wanted = "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, INDEX, ALTER, CREATE TEMPORARY TABLES"
    target.execute(f"GRANT {wanted} ON d.* TO loader@'127.0.0.1'")
    target.execute("GRANT ALL ON pumphouse.* TO loader@'127.0.0.1'")
    as_loader = settings.target.model_copy(update={"user": "loader", "password": SecretStr("pw")})
    report = load.run(settings.model_copy(update={"target": as_loader}))
    assert [note for note in report.notes if "may not see triggers of d" in note]
    assert target_rows(target) == loaded.snapshot()
    target.execute("DROP USER loader@'127.0.0.1'")
