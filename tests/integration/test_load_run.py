"""Whole loads on a real MariaDB: an archive of a source with every awkward kind of change, loaded, killed, refused, repeated."""

import dataclasses
import json
import random
from typing import Any

import pytest

from pumphouse.archive.view import read_view
from pumphouse.errors import (
    ConfigError,
    FenceLost,
    LoadError,
    RestoreError,
    RowRejected,
    TargetAhead,
    TargetBusy,
    TargetIncomplete,
    TargetUnavailable,
    UnknownTable,
    UsageError,
)
from pumphouse.executor.executor import Executor
from pumphouse.loader import fence, stages, state, unit
from pumphouse.loader.report import LoadReport
from pumphouse.loader.target import TargetConnection
from pumphouse.loader.work import works_between
from pumphouse.model.table import MysqlType
from pumphouse.model.tso import Tso
from pumphouse.runs import load
from pumphouse.schema.render import Statement
from pumphouse.settings import LoadSettings, Settings
from tests.support.killed import Killed, calls_until_killed
from tests.support.kind import is_mysql
from tests.support.loading import read_checkpoint, restored
from tests.support.madearchive import Churn, MadeSource, column, index, target_rows

LOAD = {"engine": "local", "buckets": 3}


def equal(source: MadeSource, target: TargetConnection) -> bool:
    return target_rows(target) == source.snapshot()


@pytest.mark.mysql
@pytest.mark.row("L2", "L4", "L6", "S3")
def test_a_target_begins_from_the_dump_and_follows_through_windows_and_ddl(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    churn = Churn(source)
    churn.fill()
    source.genesis()
    churn.work(20)
    source.cut()
    churn.work(20)
    source.add_column("t", column(4, "extra", default="7", origin_default="7"))
    churn.work(20)
    source.truncate("k")
    churn.work(20)
    source.drop_column("t", "name")
    source.create_table("new", [column(1, "id", flag=3)])
    source.drop_table("new")
    source.rename_table("u", "v")
    end = source.cut()
    report = load.run(settings)
    assert equal(source, target)
    assert report.to_ts == end == read_checkpoint(settings.target, "main")
    assert report.ddls == 6
    again = load.run(settings)
    assert (again.plans, again.from_ts, again.to_ts) == (0, end, end)
    assert equal(source, target)
    assert target.value("SELECT COUNT(*) FROM pumphouse.applied") == 0


@pytest.mark.row("L2")
def test_a_row_that_somebody_put_where_the_source_inserts_one_gives_way(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [column(1, "id", flag=3), column(2, "n")])
    source.genesis()
    source.cut()
    load.run(settings)
    target.execute("INSERT INTO d.t VALUES (1, 99), (7, 99), (8, 99)")
    with source.txn() as t:
        for id_ in range(1, 8):
            t.insert("t", id=id_, n=id_)
    with source.txn() as t:
        t.delete("t", t.insert("t", id=9, n=9))
    source.cut()
    load.run(settings)
    assert target.query("SELECT * FROM d.t ORDER BY id") == [*((id_, id_) for id_ in range(1, 8)), (8, 99)]


@pytest.mark.row("L6", "R1")
def test_a_load_may_end_in_the_middle_of_a_window(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    churn = Churn(source)
    churn.fill()
    source.genesis()
    churn.work(10)
    middle, then = Tso(source.tick()), source.snapshot()
    churn.work(10)
    end = source.cut()
    assert load.run(settings, to=middle).to_ts == middle
    assert target_rows(target) == then
    assert load.run(settings).to_ts == end
    assert equal(source, target)


@pytest.mark.row("S3")
def test_a_row_written_before_a_ddl_and_committed_after_it_gets_the_new_shape(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [column(1, "id", flag=3), column(2, "a")])
    source.genesis()
    before = source.schema_version
    with source.txn() as t:
        t.insert("t", id=1, a=1)
    old = source.tables["t"].info
    source.add_column("t", column(3, "b", default="9", origin_default="9"))
    new, source.tables["t"].info = source.tables["t"].info, old
    with source.txn(schema_version=before) as t:
        t.insert("t", id=2, a=2)
    source.tables["t"].info = new
    source.tables["t"].rows[2][3] = 9
    source.cut()
    load.run(settings)
    assert equal(source, target)


@pytest.mark.row("L6")
def test_a_load_killed_at_random_statements_and_run_again_ends_equal(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    churn = Churn(source)
    churn.fill()
    source.genesis()
    churn.work(15)
    source.add_column("t", column(4, "extra", default="7", origin_default="7"))
    churn.work(15)
    source.cut()
    source.truncate("k")
    churn.work(5)
    source.rename_table("u", "v")
    source.cut()
    rng = random.Random(0)
    left = calls_until_killed(monkeypatch)
    kills = 0
    for attempt in range(100):
        left[0] = rng.randrange(1, 60 + 25 * attempt)
        try:
            load.run(settings, run_id="same")
            break
        except (Killed, TargetUnavailable):  # what tidies up behind a kill finds the connection gone
            assert left[0] <= 0
            kills += 1
    left[0] = 0
    assert kills >= 3
    assert equal(source, target)
    assert target.value("SELECT COUNT(*) FROM pumphouse.plan WHERE state = 'open'") == 0


@pytest.mark.row("L6")
def test_a_unit_that_wakes_up_after_its_plan_was_closed_changes_nothing(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.create_table("t", [column(1, "id", flag=3), column(2, "n")])
    source.create_table("k", [column(1, "a")], pk_is_handle=False)
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=1, n=1)
        t.insert("k", a=5)
    source.cut()
    held: list[tuple[Any, ...]] = []
    apply = unit.apply_units

    def watched(connection: TargetConnection, *args: Any) -> list[bool]:
        held.append(args)
        return apply(connection, *args)

    monkeypatch.setattr(stages, "apply_units", watched)
    load.run(settings)
    assert len(held) == 2
    for each in held:
        with TargetConnection.open(settings.target) as late, pytest.raises(FenceLost):
            apply(late, *each)
    assert equal(source, target)
    assert target.value("SELECT COUNT(*) FROM pumphouse.applied") == 0


@pytest.mark.row("L6")
def test_a_second_load_at_once_is_refused_and_names_the_holder(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.genesis()
    target.create_tables()
    fence.acquire(target, run="the first run")
    with pytest.raises(TargetBusy, match=r"the first run.*pid"):
        load.run(settings)
    assert load.run(settings, take_over=True).plans == 1


@pytest.mark.row("L6")
def test_a_target_ahead_of_the_archive_is_refused(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.genesis()
    load.run(settings)
    target.execute("UPDATE pumphouse.checkpoint SET ts = ts + 1000000000")
    with pytest.raises(TargetAhead) as ahead:
        load.run(settings)
    assert ahead.value.checkpoint > ahead.value.archive_end


def test_a_moment_beyond_the_archive_is_refused_and_not_clamped(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    del target
    at = source.genesis()
    with pytest.raises(UsageError, match="the archive ends at"):
        load.run(settings, to=Tso(at + (1 << 40)))


@pytest.mark.row("L6")
def test_a_load_to_a_moment_before_the_checkpoint_is_refused_and_one_to_the_checkpoint_has_nothing_to_do(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=1)
    end = source.cut()
    with pytest.raises(UsageError, match="begins at"):
        load.run(settings, to=Tso(1))
    load.run(settings)
    with pytest.raises(TargetAhead, match="stands at") as ahead:
        load.run(settings, to=Tso(end - 1))
    assert (ahead.value.checkpoint, ahead.value.to) == (end, end - 1)
    assert load.run(settings, to=end).plans == 0
    assert equal(source, target)


@pytest.mark.row("L6")
def test_a_load_to_a_moment_inside_a_plan_that_was_begun_is_refused_and_the_plan_stays_as_it_is(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis()
    load.run(settings)
    with source.txn() as t:
        t.insert("t", id=1)
    middle = Tso(source.tick())
    with source.txn() as t:
        t.insert("t", id=2)
    end = source.cut()

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Executor, "_prepare", die)
        with pytest.raises(KeyboardInterrupt):
            load.run(settings)
    plan = state.open_plan(target, "main")
    assert plan is not None
    target.execute("INSERT INTO pumphouse.applied VALUES ('main', %s, 0, 0, 4711, 0, 1)", (plan.number,))
    with pytest.raises(TargetAhead, match="open plan") as ahead:
        load.run(settings, to=middle)
    assert (ahead.value.checkpoint, ahead.value.to) == (end, middle)
    assert target.query("SELECT * FROM d.t") == []
    assert load.run(settings, to=end).resumed
    assert equal(source, target)


@pytest.mark.row("L4")
@pytest.mark.parametrize(
    ("collate", "other"), [("utf8mb4_bin", b"a "), ("utf8mb4_general_ci", b"A"), ("utf8mb4_general_ci", b"\xc3\xa4")]
)
def test_a_key_that_only_the_targets_collation_takes_for_another_is_named_in_a_later_plan_too(
    source: MadeSource, settings: Settings, target: TargetConnection, collate: str, other: bytes
) -> None:
    source.create_table(
        "t",
        [column(1, "c", MysqlType.VARCHAR, flag=1, collate=collate), column(2, "n")],
        pk_is_handle=False,
        index_info=[index(1, "PRIMARY", ("c", 0), unique=True, primary=True)],
    )
    source.genesis()
    with source.txn() as t:
        t.insert("t", c=b"a", n=1)
    source.cut()
    load.run(settings)
    with source.txn() as t:
        t.insert("t", c=other, n=2)
    source.cut()
    with pytest.raises(RowRejected, match=r"d\.t") as rejected:
        load.run(settings)
    assert rejected.value.rows == [{"c": other.decode()}]
    assert target.query("SELECT c, n FROM d.t") == [("a", 1)]


@pytest.mark.row("L4")
def test_a_key_that_changes_to_one_that_the_targets_collation_takes_for_equal_moves(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table(
        "t",
        [column(1, "c", MysqlType.VARCHAR, flag=1, collate="utf8mb4_general_ci"), column(2, "n")],
        pk_is_handle=False,
        index_info=[index(1, "PRIMARY", ("c", 0), unique=True, primary=True)],
    )
    source.genesis()
    with source.txn() as t:
        handle = t.insert("t", c=b"a", n=1)
    source.cut()
    load.run(settings)
    with source.txn() as t:
        t.update("t", handle, c=b"A", n=3)
    source.cut()
    load.run(settings)
    assert equal(source, target)


@pytest.mark.row("L2")
def test_a_forced_repeat_changes_nothing_and_names_what_it_leaves_out(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    churn = Churn(source)
    churn.fill()
    at = source.genesis()
    churn.work(10)
    source.add_column("u", column(3, "extra", default="7", origin_default="7"))
    churn.work(10)
    source.cut()
    load.run(settings)
    report = load.run(settings, repeat=at)
    assert equal(source, target)
    assert set(report.skipped) == {"d.k", "d.u"}
    assert report.skipped["d.k"] == "it has no key"
    assert report.inserted > 0


@pytest.mark.row("L2")
def test_safe_mode_forgives_rows_that_are_there_already(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [column(1, "id", flag=3), column(2, "a")])
    at = source.genesis(base=False)
    with source.txn() as t:
        t.insert("t", id=1, a=1)
        t.insert("t", id=2, a=2)
        t.delete("t", 2)
    source.cut()
    target.execute("CREATE DATABASE d")
    target.execute("CREATE TABLE d.t (id INT PRIMARY KEY, a INT)")
    target.execute("INSERT INTO d.t VALUES (1, 99)")
    load.run(settings, equal_at=at)
    assert equal(source, target)


def test_a_target_with_tables_and_no_checkpoint_is_not_overwritten(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis()
    target.execute("CREATE DATABASE d")
    target.execute("CREATE TABLE d.mine (id INT PRIMARY KEY)")
    with pytest.raises(LoadError, match=r"d\.mine"):
        load.run(settings)
    assert target.value("SELECT COUNT(*) FROM d.mine") == 0


def test_an_archive_without_a_dump_says_how_a_target_can_begin(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    del target
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis(base=False)
    with pytest.raises(LoadError, match="--equal-at"):
        load.run(settings)


@pytest.mark.row("L6")
def test_an_abandoned_plan_leaves_the_target_inconsistent_until_a_restore(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [column(1, "id", flag=3), column(2, "c", MysqlType.VARCHAR)])
    source.genesis()
    load.run(settings)
    target.execute("ALTER TABLE d.t MODIFY c VARCHAR(3)")
    with source.txn() as t:
        t.insert("t", id=1, c=b"too long")
    source.cut()
    with pytest.raises(RowRejected, match=r"d\.t.*'1'"):
        load.run(settings)
    load.run(settings, abandon="the table was changed by hand")
    with pytest.raises(TargetIncomplete, match="changed by hand"):
        load.run(settings)


@pytest.mark.parametrize("when", ["genesis", "window"])
def test_a_source_database_called_like_the_schema_of_our_tables_is_refused_before_anything_changes(
    source: MadeSource, settings: Settings, target: TargetConnection, when: str
) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    if when == "window":
        at = source.genesis()
        load.run(settings)
    source.create_database("PumpHouse")
    if when == "genesis":
        at = source.genesis()
    end = source.cut()
    for run in (
        lambda: load.run(settings),
        lambda: restored(settings, to=end, dry_run=False),
    ):
        with pytest.raises((LoadError, RestoreError), match=r"(?s)'PumpHouse'.*schema_name"):
            run()
    assert read_checkpoint(settings.target, "main") == (at if when == "window" else None)
    assert (("d",) in target.query("SHOW DATABASES")) is (when == "window")
    own = settings.target.model_copy(update={"schema_name": "load_state"})
    assert restored(settings.model_copy(update={"target": own}), to=end, dry_run=False).load is not None
    assert read_checkpoint(own, "main") == end


@pytest.mark.row("L1")
def test_two_ddls_at_one_commit_ts_are_refused_before_a_plan_is_made(source: MadeSource) -> None:
    at = source.genesis()
    source.create_table("t", [column(1, "id", flag=3)])
    source.cut()
    view = read_view(source.archive)
    # The timeline refuses such a history too; the loader does not rely on it.
    twice = dataclasses.replace(view.timeline, events=(*view.timeline.events, view.timeline.events[-1]))
    with pytest.raises(LoadError, match="two DDLs at"):
        list(works_between(dataclasses.replace(view, timeline=twice), at, view.end, "main", LoadSettings()))


@pytest.mark.row("L6")
@pytest.mark.parametrize("applied", ["", "unit"])
@pytest.mark.parametrize("change", ["fewer", "more"])
def test_an_open_plan_of_other_ddls_is_made_anew_or_goes_on_by_those_that_there_are(
    source: MadeSource,
    settings: Settings,
    target: TargetConnection,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    applied: str,
) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis()
    load.run(settings)
    source.add_column("t", column(2, "a"))
    source.add_column("t", column(3, "b"))
    source.cut()

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Executor, "_tell", die)
        with pytest.raises(KeyboardInterrupt):
            load.run(settings)
    plan = state.open_plan(target, "main")
    assert plan is not None
    one, two = plan.boundaries
    ends = (one,) if change == "fewer" else (one, two, two + 1)
    assert plan.touched is not None
    other = dataclasses.replace(plan, boundaries=ends, touched=tuple(plan.touched[0] for _ in ends))
    target.execute(
        "UPDATE pumphouse.plan SET spec = %s, digest = %s WHERE state = 'open'", (other.spec(), other.digest())
    )
    # What an attempt had rendered and not begun is rendered anew.
    wrong = json.dumps(Statement(sql="SELECT no_such_column", objects=()).to_dict())
    target.execute(
        "INSERT INTO pumphouse.ddl (task, commit_ts, job_id, step, statement, state, fence)"
        " VALUES ('main', %s, %s, 0, %s, %s, 1)",
        (one, source.jobs[0].job.id, wrong, "planned"),
    )
    if applied == "unit":
        target.execute("INSERT INTO pumphouse.applied VALUES ('main', %s, 0, 1, 4711, 0, 1)", (plan.number,))
    load.run(settings)
    assert equal(source, target)
    assert target.value("SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = 'd'") == 3
    ended = "closed" if applied else "discarded"
    assert target.value("SELECT state FROM pumphouse.plan WHERE number = %s", (plan.number,)) == ended


def test_another_task_on_the_same_target_is_refused(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    del target
    source.genesis()
    load.run(settings)
    with pytest.raises(LoadError, match="belongs to the load 'main'"):
        load.run(settings, task="other")


@pytest.mark.row("S1")
def test_a_row_of_an_unknown_table_stops_the_load_and_names_the_table_id(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    del target
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=1)
        t.builder.insert(4711, b"\x08\x02\x00")
    source.cut()
    with pytest.raises(UnknownTable) as unknown:
        load.run(settings)
    assert unknown.value.table_id == 4711


def test_a_missing_archive_is_a_clear_error(settings: Settings) -> None:
    with pytest.raises(ConfigError, match="there is no archive"):
        load.run(settings)


@pytest.mark.mariadb("a MySQL does not tell which rows of a table were read or changed")
@pytest.mark.row("L2")
def test_a_window_that_is_loaded_again_touches_no_row(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    churn = Churn(source)
    churn.fill()
    source.genesis()
    churn.work(5)
    source.cut()
    seen = (
        "SELECT table_name, rows_read, rows_changed FROM information_schema.table_statistics WHERE table_schema = 'd'"
    )
    target.execute("SET GLOBAL userstat = 1")
    try:
        load.run(settings)
        assert target.query(seen), "the server counts them"
        target.execute("FLUSH TABLE_STATISTICS")
        assert load.run(settings).plans == 0
        assert target.query(seen) == []
    finally:
        target.execute("SET GLOBAL userstat = 0")
    assert equal(source, target)


@pytest.mark.row("L5", "L6")
def test_ddls_of_another_table_cut_no_epoch(source: MadeSource, settings: Settings, target: TargetConnection) -> None:
    for table in ("t", "u"):
        source.create_table(table, [column(1, "id", flag=3), column(2, "a")])
    source.genesis()
    load.run(settings)
    with source.txn() as t:
        t.insert("t", id=1, a=0)
        t.insert("u", id=1, a=0)
    for at in range(30):
        with source.txn() as t:
            t.update("t", 1, a=at)
        source.add_column("u", column(3 + at, f"c{at}"))
        with source.txn() as t:
            t.update("t", 1, a=1000 + at)
    with source.txn() as t:
        t.update("u", 1, a=7)
    source.cut()
    report = load.run(settings)
    assert equal(source, target)
    assert (report.ddls, report.epochs, report.units) == (30, 3, 4)


@pytest.mark.row("L5")
def test_a_long_range_is_loaded_in_several_plans(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    churn = Churn(source)
    churn.fill()
    source.genesis()
    for _ in range(3):
        churn.work(5)
        source.cut()
    small = settings.model_copy(update={"load": settings.load.model_copy(update={"max_plan_bytes": 1})})
    report: LoadReport = load.run(small)
    assert report.plans == 4
    assert equal(source, target)


@pytest.mark.row("L4", "L6")
def test_a_window_reads_a_table_without_a_key_once_whatever_its_buckets(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("k", [column(1, "a"), column(2, "b", MysqlType.VARCHAR)], pk_is_handle=False)
    with source.txn() as t:
        for n in range(5000):
            t.insert("k", a=n % 500, b=b"row %d" % (n % 1000))
    source.genesis()
    load.run(settings)
    with source.txn() as t:
        for handle in range(1, 5000, 100):
            t.delete("k", handle)
            t.update("k", handle + 1, b=b"changed")
    source.cut()

    def rows_read() -> int:
        return int(target.query("SHOW GLOBAL STATUS LIKE 'Handler_read_rnd_next'")[0][1])

    before = rows_read()
    report = load.run(settings)
    assert report.units == 6
    # A MySQL counts the rows before it deletes them.
    assert rows_read() - before < (2.5 if is_mysql() else 1.5) * 5000
    assert target_rows(target) == source.snapshot()
