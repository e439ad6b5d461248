"""Rules of `do = "route"` on a real MariaDB: other names there, by loads, DDL, restores, resyncs and the comparer."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pumphouse.cli import cli
from pumphouse.errors import BinlogError, ConfigError, LoadError, RestoreError, RowRejected
from pumphouse.loader import fence
from pumphouse.loader.ddl import DdlExecutor
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import MysqlType, TableInfo
from pumphouse.runs import load
from pumphouse.schema.route import Routes
from pumphouse.settings import Settings, TargetSettings
from pumphouse.status.look import look
from tests.integration.test_load_ddl_kinds import foreign, partitions
from tests.integration.test_load_rules import put, ruled
from tests.integration.test_load_schema_edges import create_view
from tests.support.loading import restored
from tests.support.madearchive import Churn, MadeSource, column, index, target_rows
from tests.support.randomhistory import RandomHistory

LOAD = {"engine": "local", "buckets": 3}
ID = column(1, "id", flag=3)
TEXT = column(2, "a", MysqlType.VARCHAR)
TO_E = {"do": "route", "database": "d", "to": "e"}
LOGS = {"do": "route", "table": "d.log_*", "to": "Archive.old_*_log"}


def there(target: TargetConnection) -> dict[str, Any]:
    """Every table of the target under the source's name, and nothing under any other."""
    databases = {name for (name,) in target.query("SHOW DATABASES")}
    assert "d" not in databases
    found = target_rows(target, "e") if "e" in databases else {}
    for name, rows in target_rows(target, "Archive").items():
        assert name.startswith("old_")
        assert name.endswith("_log")
        found[f"log_{name[4:-4]}"] = rows
    return found


def create(source: MadeSource, *tables: str) -> None:
    for table in tables:
        source.create_table(table, [ID, TEXT])


def exchange(source: MadeSource, partitioned: str, plain: str) -> None:
    """EXCHANGE PARTITION p0: the ids change places, as TiDB does it; the rows of the model too."""
    a, b = source.tables[partitioned], source.tables[plain]
    whole, single = copy.deepcopy(a.info.raw), copy.deepcopy(b.info.raw)
    old = single["id"]
    definition = whole["partition"]["definitions"][0]
    definition["id"], single["id"] = single["id"], definition["id"]
    source.ddl(42, old, f"ALTER TABLE {partitioned} EXCHANGE PARTITION p0 WITH TABLE {plain}", TableInfo=whole)
    a.info, b.info = TableInfo.from_dict(whole), TableInfo.from_dict(single)
    out = {handle: row for handle, row in a.rows.items() if handle < 10}
    a.rows = {handle: row for handle, row in a.rows.items() if handle >= 10} | b.rows
    b.rows = out


@pytest.mark.row("L7", "L6", "R1")
@pytest.mark.parametrize("mode", ["merge", "replay"])
def test_rows_and_ddl_reach_the_names_that_rules_give(
    source: MadeSource, settings: Settings, target: TargetConnection, mode: str
) -> None:
    churn = Churn(source)
    churn.fill()
    create(source, "log_a", "parent")
    source.create_table(
        "log_child", [ID, column(2, "p")], index_info=[index(1, "to_p", ("p", 1))],
        fk_info=[foreign(1, "fk_1", "p", "parent")],
    )  # fmt: skip
    create_view(
        source,
        "v",
        "SELECT `d`.`t`.`id` FROM `d`.`t` JOIN `d`.`log_a` USING (`id`) WHERE '`d`.`t`' = CONCAT('`d`', '.`t`')",
    )
    put(source, "log_a", 1, 2)
    put(source, "parent", 7)
    with source.txn() as t:
        t.insert("log_child", id=1, p=7)
    source.genesis()
    told = ruled(settings, TO_E, LOGS)
    told = told.model_copy(update={"load": told.load.model_copy(update={"mode": mode})})
    churn.work(20)
    source.add_column("log_a", column(3, "b", default="4", origin_default="4"))
    put(source, "log_a", 3)
    load_and_check = _checker(source, told, target)
    load_and_check()
    assert target.value("SELECT COUNT(*) FROM e.v") == 2
    keys = (
        "SELECT unique_constraint_schema, referenced_table_name FROM information_schema.referential_constraints"
        " WHERE constraint_schema = 'Archive'"
    )
    assert target.query(keys) == [("e", "parent")]

    # Into a rule, out of it, and within it; a new table; partitions that change places across databases.
    source.rename_table("log_a", "plain")
    put(source, "plain", 5)
    source.rename_table("u", "log_u")
    source.rename_table("log_child", "log_kid")
    create(source, "log_new")
    put(source, "log_new", 1)
    source.truncate("log_new")
    put(source, "log_new", 2)
    bounds = partitions(source, ("p0", "10"), ("p1", "MAXVALUE"), type_=1)
    source.create_table("log_parts", [ID, TEXT], partition=bounds)
    create(source, "single")
    put(source, "log_parts", 11)
    put(source, "single", 3)
    exchange(source, "log_parts", "single")
    put(source, "single", 5)
    source.drop_table("parent")
    load_and_check()
    end = source.cut()
    restored(told, to=end, dry_run=False)
    assert there(target) == source.snapshot()
    assert set(target.query("SELECT subject, ended_at IS NULL FROM pumphouse.rule")) == {
        ("route d to e", 1), ("route d.log_* to Archive.old_*_log", 1)
    }  # fmt: skip

    # With its database goes what lies elsewhere.
    source.drop_database()
    source.cut()
    load.run(told)
    assert there(target) == {}


def _checker(source: MadeSource, settings: Settings, target: TargetConnection) -> Callable[[], None]:
    def check() -> None:
        source.cut()
        load.run(settings)
        assert there(target) == source.snapshot()

    return check


@pytest.mark.mariadb("MySQL has no sequences")
@pytest.mark.row("L7")
def test_sequences_and_defaults_of_them_are_routed(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    sequence = {
        "sequence_start": 1, "sequence_cache": False, "sequence_cycle": False, "sequence_min_value": 1,
        "sequence_max_value": 1000, "sequence_increment": 1, "sequence_cache_value": 0, "sequence_comment": "",
    }  # fmt: skip
    source.create_table("s", [], sequence=sequence, pk_is_handle=False)
    del source.tables["s"]
    source.genesis()
    told = ruled(settings, TO_E)
    source.create_table("t", [ID, column(2, "n", default="nextval(`d`.`s`)", default_is_expr=True)])
    source.setval("s", 40)
    source.cut()
    load.run(told)
    target.execute("INSERT INTO e.t (id) VALUES (1)")
    assert target.query("SELECT * FROM e.t") == [(1, 41)]


@pytest.mark.row("L7")
def test_what_a_rule_executes_runs_in_the_database_as_it_is_called_there(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    create(source, "t")
    source.genesis()
    source.add_column("t", column(3, "b"))
    with source.txn() as t:
        t.insert("t", id=1, a=b"x", b=2)
    source.cut()
    instead = {"do": "replace", "ddl": source.jobs[-1].job.id, "sql": ["ALTER TABLE t ADD COLUMN b BIGINT"]}
    load.run(ruled(settings, TO_E, instead))
    assert target.query("SELECT * FROM e.t") == [(1, "x", 2)]


@pytest.mark.row("L7")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_any_history_of_ddl_makes_the_same_objects_under_other_names(
    server: TargetSettings, target: TargetConnection, seed: int
) -> None:
    source = RandomHistory(seed)
    source.run(60, without=("recover", "exchange"))
    first = min(source.dbs)
    routes = Routes.of({name: f"r_{name}" for name in source.dbs}, {f"{first}.t*": "beside.x*"})
    events = source.timeline().ddls(0, 1 << 62)
    # One after the other: tables that wait for their recovery lie under their ids.
    for keep, names in (("plain", None), ("routed", routes)):
        with TargetConnection.open(server.model_copy(update={"schema_name": keep}), owner=True) as own:
            own.create_tables()
            owner = fence.acquire(own, run="r")
            own.execute("CREATE DATABASE IF NOT EXISTS beside")
            executor = DdlExecutor(own, owner, "main", routes=names or Routes())
            for event in events:
                executor.execute(event)
    tables = target.query(
        "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema REGEXP '^(d|r_d|beside)'"
    )
    plain = [name for name in tables if name[0].startswith("d")]
    assert len(plain) > 3
    assert sorted(set(tables) - set(plain)) == sorted(routes.table(*name) for name in plain)
    for name in plain:
        one, other = (
            target.query(f"SHOW CREATE TABLE `{db}`.`{table}`")[0][1].split("\n")[1:]
            for db, table in (name, routes.table(*name))
        )
        assert one == other


@pytest.mark.row("L7", "O3")
def test_parking_resync_status_and_diff_speak_the_sources_names(
    source: MadeSource, settings: Settings, target: TargetConnection, tmp_path: Path
) -> None:
    create(source, "t", "log_a")
    put(source, "t", 1)
    put(source, "log_a", 1)
    source.genesis()
    told = ruled(settings, TO_E, LOGS)
    load.run(told)
    target.execute("ALTER TABLE Archive.old_a_log MODIFY a VARCHAR(1)")
    put(source, "log_a", 2, text=b"long")
    put(source, "t", 2)
    source.cut()
    with pytest.raises(RowRejected) as caught:
        load.run(told)
    assert str(caught.value).startswith("d.log_a: Archive.old_a_log did not take its rows")
    assert 'do = "park"\ntable = "d.log_a"' in caught.value.hint
    assert "diff --schema d`" in caught.value.hint
    parked = ruled(settings, TO_E, LOGS, {"do": "park", "table": "d.log_a"})
    assert list(load.run(parked).parked) == ["d.log_a"]
    (seen,) = [each for each in look(told, within_s=20).findings if "parked" in each.what and "[target]" in each.who]
    assert "--resync d.log_a" in seen.next
    assert target_rows(target, "e") == {"t": source.snapshot()["t"]}
    load.run(told, resync="d.log_a")
    assert there(target) == source.snapshot()

    # The source's side, made by hand on the same server; the comparer finds each table where the rules have it.
    target.execute("CREATE DATABASE d COLLATE utf8mb4_bin")
    target.execute("CREATE TABLE d.t LIKE e.t")
    target.execute("CREATE TABLE d.log_a LIKE Archive.old_a_log")
    target.execute("INSERT INTO d.t SELECT * FROM e.t")
    target.execute("INSERT INTO d.log_a SELECT * FROM Archive.old_a_log")
    rules = [rule.model_dump(exclude_defaults=True) for rule in told.load.rules]
    password = server_password(settings)
    (tmp_path / "p.toml").write_text(
        f'[source]\nhost = "127.0.0.1"\nport = {settings.target.port}\npassword = "{password}"\n'
        f'[target]\nhost = "127.0.0.1"\nport = {settings.target.port}\npassword = "{password}"\n'
    )

    def diff() -> Any:
        options = ["--config", str(tmp_path / "p.toml"), "--set", f"load.rules={json.dumps(rules)}"]
        return CliRunner().invoke(cli, [*options, "diff", "--schema", "d"])

    ran = diff()
    assert (ran.exit_code, "equal; compared 2 tables, 4 rows" in ran.output) == (0, True), ran.output
    target.execute("UPDATE Archive.old_a_log SET a = 'z' WHERE id = 1")
    target.execute("CREATE TABLE e.more (id INT)")
    ran = diff()
    assert ran.exit_code == 1
    assert "d.log_a (Archive.old_a_log in the target): row" in ran.output
    assert "e.more: table: only in the target" in ran.output


def server_password(settings: Settings) -> str:
    return settings.target.password.get_secret_value()


# -- what is refused


@pytest.mark.row("L7")
def test_two_of_the_source_are_never_made_one_on_the_target(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    create(source, "t", "u", "log_u")
    source.create_database("other")
    source.genesis()
    end = source.cut()
    for rules, why in (
        ([{"do": "route", "database": "d", "to": "Other"}], "one of 2 databases of the source: d, other"),
        ([{"do": "route", "table": "d.t", "to": "d.U"}], r"one of 2 tables of the source: d\.t, d\.u"),
        ([{"do": "route", "table": "d.log_*", "to": "d.*"}], r"one of 2 tables of the source: d\.log_u, d\.u"),
        ([{"do": "route", "table": "d.t", "to": "other.t"}], "which is what the source's database other is there"),
        ([{"do": "route", "table": "d.t", "to": "mysql.t"}], "the server's own"),
        ([{"do": "route", "database": "d", "to": "pumphouse"}], "keeps the state of the load"),
        ([{"do": "route", "table": "d.t", "to": "pumphouse.t"}], "keeps the state of the load"),
    ):
        told = ruled(settings, *rules)
        with pytest.raises((ConfigError, LoadError), match=why):
            load.run(told)
        with pytest.raises((ConfigError, LoadError, RestoreError)):
            restored(told, to=end, dry_run=False)
        assert ("d",) not in target.query("SHOW DATABASES")
    # A table that is left out is in nobody's way.
    load.run(ruled(settings, {"do": "route", "table": "d.t", "to": "d.u"}, {"do": "skip", "table": "d.u"}))
    assert set(target_rows(target)) == {"u", "log_u"}


@pytest.mark.row("L7")
def test_a_change_of_routes_is_refused_where_rows_are_and_a_restore_builds_the_target_by_the_new_ones(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    create(source, "t", "log_a")
    put(source, "t", 1)
    source.genesis()
    told = ruled(settings, TO_E)
    load.run(told)
    put(source, "t", 2)
    end = source.cut()
    for other in (settings, ruled(settings, TO_E | {"to": "f"}), ruled(settings, TO_E, LOGS)):
        with pytest.raises(LoadError, match=r"its rows are in e\.(t|log_a): they would be in two places") as caught:
            load.run(other)
        assert "restore --into target --to latest" in caught.value.hint
    moved = ruled(settings, LOGS)
    done = restored(moved, to=end, dry_run=False)
    assert done.check is not None
    assert done.check.beside == ("e",)
    assert ("e", 2) in [(each.database, each.tables) for each in done.check.holds]
    assert ("e",) not in target.query("SHOW DATABASES")
    assert target_rows(target) == {"t": source.snapshot()["t"]}
    # What no table of the target has a name by may change, and what comes is routed.
    source.create_database("pumphouse")
    put(source, "t", 3)
    source.cut()
    with pytest.raises(LoadError) as met:
        load.run(moved)
    assert 'do = "route"\ndatabase = "pumphouse"' in met.value.hint
    load.run(ruled(settings, LOGS, {"do": "route", "database": "pumphouse", "to": "theirs"}))
    assert ("theirs",) in target.query("SHOW DATABASES")
    assert target_rows(target) == {"t": source.snapshot()["t"]}


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"do": "route", "database": "a"}, "a route is of a database or a table"),
        ({"do": "route", "database": "a", "table": "a.b", "to": "c"}, "a route is of a database or a table"),
        ({"do": "route", "table": "a.b", "to": "c"}, "no route of tables"),
        ({"do": "route", "table": "a.b_*", "to": "c.b"}, "no route of tables"),
        ({"do": "route", "table": "*.b", "to": "*.c"}, "no route of tables"),
        ({"do": "route", "database": "a*", "to": "c*"}, r"a route of a database has no \*"),
        ({"do": "skip", "table": "a.b", "to": "c.b"}, "database and to are of a route"),
    ],
)
def test_a_route_that_says_nothing_clear_is_refused(rule: dict[str, Any], why: str, tmp_path: Path) -> None:
    (tmp_path / "none.toml").touch()
    with pytest.raises(BinlogError, match=why):
        Settings.read(tmp_path / "none.toml", {"load.rules": json.dumps([{"why": "w", **rule}])})
