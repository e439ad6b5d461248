"""Steps on a real MariaDB: a first load, a restore and a resync that are killed go on; a dry run shows all and does nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pumphouse.errors import TargetIncomplete
from pumphouse.executor import build
from pumphouse.executor.executor import Executor
from pumphouse.loader import state
from pumphouse.loader.report import LoadReport
from pumphouse.loader.target import IDLE, TargetConnection
from pumphouse.model.table import MysqlType
from pumphouse.model.tso import Tso
from pumphouse.runs import load
from pumphouse.settings import Settings
from tests.support.killed import Killed
from tests.support.loading import restored
from tests.support.madearchive import Churn, MadeSource, column, target_rows

SEED = int(os.environ.get("PUMPHOUSE_SEED", "31"))


def small_plans(settings: Settings, **more: Any) -> Settings:
    """Every window is a plan of its own."""
    return settings.model_copy(update={"load": settings.load.model_copy(update={"max_plan_bytes": 1, **more})})


def history(source: MadeSource) -> Tso:
    """Tables with and without a key, a dump, three windows, DDL in the second; where the last one ends."""
    churn = Churn(source)
    churn.fill()
    source.genesis()
    churn.work(10)
    source.cut()
    churn.work(10)
    source.add_column("t", column(4, "extra", default="7", origin_default="7"))
    source.truncate("k")
    churn.work(10)
    source.cut()
    churn.work(10)
    return source.cut()


@contextmanager
def killing(where: Any, what: str, at: int = 1) -> Iterator[None]:
    """Killed as something is called for the n-th time."""
    left, real = at, getattr(where, what)

    def call(*args: Any, **how: Any) -> Any:
        nonlocal left
        left -= 1
        if not left:
            raise Killed
        return real(*args, **how)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(where, what, call)
        yield


def states(report: LoadReport) -> list[tuple[str, str]]:
    """What a report says of its steps."""
    return [(step["step"], step["state"]) for step in report.steps]


def twice(target: TargetConnection) -> list[Any]:
    """Units that were applied more than once."""
    return target.query("SELECT unit, COUNT(*) FROM pumphouse.unit_seen GROUP BY unit HAVING COUNT(*) > 1")


# -- going on


@pytest.mark.row("R1", "L6")
def test_a_killed_restore_goes_on_and_applies_no_unit_twice(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    settings, end = small_plans(settings), history(source)
    with killing(state, "close_plan", at=2):  # the dump is loaded, and the rows of the first window
        restored(settings, to=end, dry_run=False)
    assert target.value("SELECT COUNT(*) FROM pumphouse.step WHERE state = 'done'") == 4
    with pytest.raises(TargetIncomplete):
        load.run(settings)
    shown = restored(settings, to=end, dry_run=True).load
    assert shown.dry_run
    before = [
        ("reset", "done before"),
        ("build", "done before"),
        ("apply", "done before"),
        ("foreign_keys", "done before"),
    ]
    assert states(shown) == [*before, *[("apply", "to do")] * 3, ("ready", "to do")]
    # A window more, and other databases: nothing that this restore would make.
    source.create_database("later")
    source.cut()
    done = restored(small_plans(settings, buckets=3), to=end, dry_run=False).load  # its open plan goes on with its own
    assert states(done) == [*before, *[("apply", "done")] * 3, ("ready", "done")]
    assert done.resumed
    assert target.query("SELECT * FROM pumphouse.step") == []
    assert target.query("SELECT number, mode, state FROM pumphouse.plan ORDER BY number") == [
        (1, "base", "closed"), *((number, "merge", "closed") for number in (2, 3, 4)),
    ]  # fmt: skip
    load.run(settings, to=end)
    assert target_rows(target) == source.snapshot()


@pytest.mark.row("R1", "L6")
def test_a_restore_to_another_moment_begins_anew(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    churn = Churn(source)
    churn.fill()
    source.genesis()
    churn.work(5)
    first, then = source.cut(), source.snapshot()
    churn.work(5)
    end = source.cut()
    with killing(build, "create_foreign_keys"):
        restored(settings, to=end, dry_run=False)
    done = restored(settings, to=first, dry_run=False).load
    assert "done before" not in dict.fromkeys(state for _, state in states(done))
    assert target_rows(target) == then


@pytest.mark.row("R1", "L6")
def test_a_restore_that_did_not_end_begins_anew_where_it_is_told_to_or_its_plan_is_given_up_or_damaged(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    settings, end = small_plans(settings), history(source)
    for way in ("told", "given up", "damaged"):
        with killing(state, "close_plan", at=2):
            restored(settings, to=end, dry_run=False)
        if way == "given up":
            load.run(settings, abandon="a test")
        elif way == "damaged":
            assert target.execute("UPDATE pumphouse.plan SET digest = 'x' WHERE state = 'open'") == 1
        if way == "told":
            target.execute("DROP TABLE d.t")
        done = restored(settings, to=end, dry_run=False, anew=way == "told").load
        assert "done before" not in [state for _, state in states(done)], way
        assert target_rows(target) == source.snapshot()


@pytest.mark.row("L6")
def test_a_killed_first_load_goes_on_and_a_newer_dump_is_begun_with(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    settings = small_plans(settings)
    history(source)
    with killing(build, "create_foreign_keys"):
        load.run(settings)
    assert target.value("SELECT reason FROM pumphouse.checkpoint") == state.BEGINNING
    shown = load.run(settings, dry_run=True)
    assert states(shown)[:4] == [("reset", "done before"), ("build", "done before"), ("apply", "done before"),
                                 ("foreign_keys", "to do")]  # fmt: skip
    assert load.run(settings).resumed
    assert target.value("SELECT COUNT(*) FROM pumphouse.plan WHERE mode = 'base'") == 1
    assert target_rows(target) == source.snapshot()


@pytest.mark.row("L7", "L6")
@pytest.mark.parametrize("then", ["again", "a load", "another window"])
def test_a_killed_resync_goes_on_unless_a_load_came_between(
    source: MadeSource, settings: Settings, target: TargetConnection, then: str
) -> None:
    settings = small_plans(settings)
    history(source)
    load.run(settings)
    target.execute("DELETE FROM d.t")
    with killing(Executor, "_merge", at=2):  # the dump is loaded, a plan behind it was begun
        load.run(settings, resync="d.t")
    if then != "again":
        if then == "another window":
            with source.txn() as t:
                t.insert("t", id=4711)
            source.cut()
        assert [why for why in load.run(settings).parked.values() if "resync" in why]
        assert target.query("SELECT * FROM pumphouse.step") == []
    done = load.run(settings, resync="d.t")
    assert ("done before" in [state for _, state in states(done)]) == (then == "again")
    assert not done.parked
    assert target_rows(target) == source.snapshot()
    assert not load.run(settings).parked


# -- dry runs


@pytest.mark.row("L6", "R2")
def test_a_dry_run_of_each_kind_shows_its_steps_and_changes_nothing(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    def seen(**how: Any) -> list[str]:
        """The kinds of the steps; nothing on the server is another then."""
        before = everything(target)
        report = load.run(settings, dry_run=True, **how)
        assert everything(target) == before
        assert report.dry_run
        assert {step["state"] for step in report.steps} <= {"to do"}
        return [step["step"] for step in report.steps]

    settings = small_plans(settings)
    end = history(source)
    assert seen() == ["reset", "build", "apply", "foreign_keys", "ready", "apply", "apply", "apply"]
    assert seen(equal_at=end) == ["equal"]
    load.run(settings)
    assert seen() == []
    with source.txn() as t:
        t.insert("t", id=4711)
    source.cut()
    assert seen() == ["apply"]
    assert seen(repeat=source.archive.genesis().ts) == ["apply"]
    assert seen(resync="d.t") == ["park", "build", "apply", "foreign_keys", "apply", "apply", "apply", "bring_back"]
    with killing(Executor, "_merge"):
        load.run(settings)
    assert seen() == ["discard", "apply"]
    assert seen(abandon="a test") == ["abandon"]
    replays = small_plans(settings, mode="replay")
    with killing(state, "move_checkpoint"):
        load.run(replays)
    assert seen() == ["take_back", "apply"]
    load.run(replays)
    assert target_rows(target) == source.snapshot()


def everything(target: TargetConnection) -> dict[str, Any]:
    """Databases, and the rows of all tables of ours and of the source's."""
    databases = [name for (name,) in target.query("SHOW DATABASES")]
    names = target.query(
        "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema IN ('d', 'pumphouse')"
    )
    rows = {f"{db}.{name}": target.query(f"SELECT * FROM `{db}`.`{name}`") for db, name in names}
    return {"databases": databases, **rows}


def rows_to_load(source: MadeSource, settings: Settings, count: int) -> None:
    """A target that is loaded, and so many rows behind that."""
    source.create_table("t", [column(1, "id", flag=3), column(2, "s", MysqlType.VARCHAR)])
    source.genesis()
    load.run(settings)
    with source.txn() as txn:
        for id_ in range(count):
            txn.insert("t", id=id_, s=b"x" * 60)
    source.cut()


@pytest.mark.row("L1")
@pytest.mark.parametrize("mode", ["merge", "replay"])
def test_a_load_sends_no_more_bytes_a_second_than_it_may(
    source: MadeSource, settings: Settings, target: TargetConnection, mode: str
) -> None:
    rows_to_load(source, settings, 2500)
    limited = settings.load.model_copy(update={"mode": mode, "bytes_per_s": 100_000, "buckets": 4})
    began = time.monotonic()
    load.run(settings.model_copy(update={"load": limited}))
    assert time.monotonic() - began > 1.2
    assert target_rows(target) == source.snapshot()


@pytest.mark.row("L1")
@pytest.mark.parametrize("mode", ["merge", "replay"])
def test_a_load_that_waits_for_its_turn_keeps_its_sessions(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setitem(IDLE, "wait_timeout", "1")
    monkeypatch.setattr("pumphouse.clock._NAP_S", 0.3)
    rows_to_load(source, settings, 300)
    slow = settings.load.model_copy(update={"mode": mode, "bytes_per_s": 5_000, "buckets": 3, "connections": 1})
    load.run(settings.model_copy(update={"load": slow}))
    assert target_rows(target) == source.snapshot()
