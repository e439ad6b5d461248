"""A run sees one archive: windows that are published at any of its steps belong to the next one, on a real MariaDB.

A run learns of a window from the archive's store alone. So a window that appears before each call of the store, in
turn, stands for every moment at which one can appear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pumphouse.archive.archive import Archive
from pumphouse.archive.verify import VerifyReport, verify
from pumphouse.errors import RestoreError
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import MysqlType
from pumphouse.model.tso import Tso
from pumphouse.objectstore.file import FileStore
from pumphouse.runs import load, schema
from pumphouse.settings import LoadRule, Settings
from tests.support.loading import read_checkpoint, restored
from tests.support.madearchive import MadeSource, column, target_rows

READS = ("get", "list", "size", "open")


class Steps:
    """Calls of the archive's store; before the one that is chosen, something happens once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.at = -1
        self.then: Callable[[], None] = lambda: None
        for name in READS:
            if hasattr(FileStore, name):
                monkeypatch.setattr(FileStore, name, self._counted(getattr(FileStore, name)))

    def _counted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(store: FileStore, *args: Any, **more: Any) -> Any:
            self.step()
            return original(store, *args, **more)

        return call

    def step(self) -> None:
        """One call."""
        self.count += 1
        if self.count - 1 == self.at:
            self.at = -1  # what happens reads the store too
            then, self.then = self.then, lambda: None
            then()

    def run(self, at: int, then: Callable[[], None], run: Callable[[], object]) -> bool:
        """Run with something happening before step `at`; False when there are fewer steps."""
        self.count, self.at, self.then = 0, at, then
        run()
        reached = self.at == -1
        self.at = -1
        return reached


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


def begin(source: MadeSource) -> None:
    """Three tables with rows at genesis, a window with DDL behind it."""
    source.create_table("t", [column(1, "id", flag=3), column(2, "name", MysqlType.VARCHAR)])
    source.create_table("old", [column(1, "id", flag=3)])
    source.create_table("named", [column(1, "a")], pk_is_handle=False)
    with source.txn() as t:
        for i in range(4):
            t.insert("t", id=i, name=b"x%d" % i)
            t.insert("old", id=i)
            t.insert("named", a=i % 2)
    source.genesis()
    with source.txn() as t:
        t.update("t", 1, name=b"upd")
    source.add_column("t", column(3, "early", default="7", origin_default="7"))
    source.cut()


def publish(source: MadeSource, number: int) -> None:
    """A window with every kind of DDL that a load with the schema of before would lose something by."""
    with source.txn() as t:
        t.delete("t", min(source.tables["t"].rows))
    source.add_column("t", column(10 + number, f"c{number}", default="3", origin_default="3"))
    source.create_table(f"new{number}", [column(1, "id", flag=3)])
    with source.txn() as t:
        t.insert("t", id=100 + number, name=b"late", **{f"c{number}": number})
        t.insert("t", id=200 + number, name=b"late", **{f"c{number}": number})
        t.insert(f"new{number}", id=number)
    last = next(name for name in source.tables if name.startswith("old"))
    source.drop_table(last)
    source.create_table(f"old{number}", [column(1, "id", flag=3)])
    renamed = next(name for name in source.tables if name.startswith("named"))
    source.rename_table(renamed, f"named{number}")
    with source.txn() as t:
        t.insert(f"named{number}", a=number)
        t.insert(f"old{number}", id=number)
    source.cut()


def equal_after_the_next_load(source: MadeSource, settings: Settings, target: TargetConnection) -> None:
    end = source.archive.end()
    assert load.run(settings).to_ts == end == read_checkpoint(settings.target, "main")
    assert target_rows(target) == source.snapshot()


def every_step(
    steps: Steps,
    source: MadeSource,
    target: TargetConnection,
    ready: Callable[[], object],
    run: Callable[[], object],
    then: Callable[[], None] | None = None,
) -> Iterator[None]:
    """From the same beginning each time: run with a window published at the next step; yields after each run."""
    for at in range(1000):
        forget(target)
        source.begin_anew()
        begin(source)
        ready()
        if not steps.run(at, then or (lambda: publish(source, 1)), run):
            assert at >= 6, "the run has been watched"
            return
        yield


def forget(target: TargetConnection) -> None:
    for name in ("d", "pumphouse"):
        target.execute(f"DROP DATABASE IF EXISTS {name}")


@pytest.mark.row("A1", "L6", "S1", "S3")
@pytest.mark.parametrize("first", [True, False])
def test_a_window_with_ddl_may_be_published_at_every_step_of_a_load(
    source: MadeSource, settings: Settings, target: TargetConnection, steps: Steps, first: bool
) -> None:
    def ready() -> None:
        if not first:
            load.run(settings)
            publish(source, 2)

    for _ in every_step(steps, source, target, ready, lambda: load.run(settings)):
        equal_after_the_next_load(source, settings, target)


@pytest.mark.row("A1", "R1", "S1", "S3")
def test_a_window_with_ddl_may_be_published_at_every_step_of_a_restore(
    source: MadeSource, settings: Settings, target: TargetConnection, steps: Steps
) -> None:
    seen: list[tuple[Tso, object]] = []

    def run() -> None:
        seen.append((source.archive.end(), source.snapshot()))
        done = restored(settings, dry_run=False)
        # Either archive, whole: the one of before, or the one with the window.
        seen.append((source.archive.end(), source.snapshot()))
        assert (done.plan.to, target_rows(target)) in seen[-2:]

    for _ in every_step(steps, source, target, lambda: None, run):
        equal_after_the_next_load(source, settings, target)


@pytest.mark.row("A1", "L6", "S1", "S3")
def test_a_window_and_its_schema_may_be_published_at_every_step_of_a_load_that_begins_at_a_stored_schema(
    source: MadeSource, settings: Settings, target: TargetConnection, steps: Steps
) -> None:
    def ready() -> None:
        schema.run(settings)
        load.run(settings)
        publish(source, 2)
        schema.run(settings)
        publish(source, 3)

    def then() -> None:
        publish(source, 1)
        schema.run(settings)

    for _ in every_step(steps, source, target, ready, lambda: load.run(settings), then):
        equal_after_the_next_load(source, settings, target)


@pytest.mark.row("A4")
def test_a_window_and_its_schema_may_be_published_at_every_step_of_a_verification(
    source: MadeSource, settings: Settings, target: TargetConnection, steps: Steps
) -> None:
    found: list[VerifyReport] = []

    def then() -> None:
        publish(source, 1)
        schema.run(settings)

    def run() -> None:
        found.append(verify(Archive.open(source.settings, source.cluster_id)))

    for _ in every_step(steps, source, target, lambda: schema.run(settings), run, then):
        assert found[-1].problems == []


@pytest.mark.row("R1", "R2")
def test_a_plan_that_was_shown_is_refused_when_the_target_went_on_since(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    begin(source)
    load.run(settings)
    shown = restored(settings, to=None, dry_run=True)
    source.create_database("later")
    publish(source, 1)
    load.run(settings)
    with pytest.raises(RestoreError, match=r"went on to .* since the plan was shown"):
        restored(settings, shown=shown.shown, dry_run=False)
    assert target_rows(target) == source.snapshot()
    again = restored(settings, to=shown.plan.to, dry_run=True)
    restored(settings, shown=again.shown, dry_run=False)
    assert ("later",) not in target.query("SHOW DATABASES")
    equal_after_the_next_load(source, settings, target)


@pytest.mark.row("R1", "R2")
def test_a_restore_carries_out_the_plan_that_was_shown_whatever_was_published_since(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    begin(source)
    shown = restored(settings, to=None, dry_run=True)
    rows = source.snapshot()
    source.create_database("later")
    publish(source, 1)
    done = restored(settings, shown=shown.shown, dry_run=False)
    assert done.plan == shown.plan
    assert target_rows(target) == rows
    equal_after_the_next_load(source, settings, target)


@pytest.mark.row("R2")
def test_a_plan_that_settings_have_changed_since_it_was_shown_is_refused(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    begin(source)
    shown = restored(settings, to=None, dry_run=True)
    rule = LoadRule(do="skip", table="d.later", why="nobody needs it")
    changed = settings.model_copy(update={"load": settings.load.model_copy(update={"rules": (rule,)})})
    with pytest.raises(RestoreError, match="another one than was shown"):
        restored(changed, shown=shown.shown, dry_run=False)
    assert target.query("SHOW DATABASES LIKE 'd'") == []
