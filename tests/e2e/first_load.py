"""What befalls the first load: windows with DDL are published while it is under way, and it is killed (`kill -9`).

Both at points that come from a seed (`tests.e2e.points`). So that the first is sure on any machine, the load's
processes are stopped (SIGSTOP) for as long as the window takes; then the load goes on as after a long pause.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psutil
import pymysql
from pymysql.connections import Connection

from pumphouse.mysql.dsn import Dsn
from pumphouse.schema.actions import is_system
from tests.e2e import airflow_watch as watch
from tests.e2e.points import Point, Seen, Stage
from tests.stack.airflow_api import AirflowApi
from tests.stack.supervisor import StackError, Supervisor

# The target is not there yet, or a table of ours is not.
_MISSING = {1049, 1146}
_ENDED = {"success", "failed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLoad:
    """The first load, held. ``windows``: ends of those with DDL that were published meanwhile; times of the clock."""

    run: str
    where: str
    began: float
    ended: float
    windows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """A load, killed. ``where``: what its target showed."""

    run: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """A load under way: Airflow's run and task, and the process that is the task."""

    run: str
    first: bool
    task: dict[str, Any]
    process: psutil.Process


class LoadWatch(threading.Thread):
    """Watches the loads of a target until the first was held and one was killed.

    Args:
        publish: called while the first load stands still; publishes windows with DDL and returns their ends. Gets what
            is set when the demo gives up.
        told: is told what happens.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        api: AirflowApi,
        target: Dsn,
        points: tuple[Point, Point],
        *,
        publish: Callable[[threading.Event], tuple[int, ...]],
        told: Callable[[str], None],
    ) -> None:
        super().__init__(name="load-watch", daemon=True)
        self._supervisor = supervisor
        self._api = api
        self._target = target
        self._hold_at, self._kill_at = points
        self._publish = publish
        self._told = told
        self._over = threading.Event()
        self.held: HeldLoad | None = None
        self.killed: Killed | None = None
        self.error: BaseException | None = None

    def stop(self) -> None:
        """Give up."""
        self._over.set()
        self.join()

    @property
    def done(self) -> bool:
        """Whether both have happened."""
        return self.held is not None and self.killed is not None

    def check(self) -> None:
        """StackError when it cannot go on."""
        if self.error is not None:
            raise StackError(f"the watch over the loads has ended: {self.error}") from self.error

    def run(self) -> None:
        """Watch load after load."""
        try:
            while not self.done and not self._over.wait(0.5):
                # Airflow may be slow to answer, and a process may end under our hands.
                with suppress(pymysql.MySQLError, StackError, psutil.Error, OSError):
                    load = self._find()
                    if load is not None:
                        self._follow(load)
        except BaseException as error:
            self.error = error

    def _find(self) -> _Load | None:
        """The load under way, from the moment on at which its process has a title."""
        runs = self._api.runs(watch.LOAD)
        if runs and runs[0]["state"] in _ENDED and self.held is None:
            raise RuntimeError(f"the first load has ended ({runs[0]['state']}) and was not held at: {self._hold_at}")
        for run in runs:
            if run["state"] in _ENDED:
                continue
            for task in self._api.tasks(watch.LOAD, run["dag_run_id"]):
                process = watch.task_process(self._supervisor, task["id"])
                if process is not None:
                    return _Load(run=run["dag_run_id"], first=run is runs[0], task=task, process=process)
        return None

    def _follow(self, load: _Load) -> None:
        """Look at the target for as long as the load's process lives."""
        with closing(self._target.connect(autocommit=True)) as connection:
            stage, since = Stage.STARTED, time.monotonic()
            while load.process.is_running() and load.process.status() != psutil.STATUS_ZOMBIE:
                if self.done or self._over.wait(0.005):
                    return
                seen = look(connection)
                if seen.stage is not stage:
                    stage, since = seen.stage, time.monotonic()
                if load.first and self.held is None and self._hold_at.reached(seen, time.monotonic() - since):
                    before = time.monotonic()
                    self._hold(load, seen)
                    since += time.monotonic() - before
                elif self.killed is None and self._due(load, seen, time.monotonic() - since):
                    self._kill(load, seen)
                    return

    def _due(self, load: _Load, seen: Seen, stage_s: float) -> bool:
        if load.first:
            return self._kill_at.reached(seen, stage_s)
        # The first load has passed the point and ended: a later one is killed once it has begun.
        return seen.owner == load.run

    def _hold(self, load: _Load, seen: Seen) -> None:
        began = time.time()
        with stopped(load.process):
            self._told(f"first load held (SIGSTOP) where {told_of(seen)}; a window with DDL is published meanwhile")
            try:
                windows = self._publish(self._over)
            except BaseException as error:
                raise RuntimeError(
                    f"no window with DDL was published while the first load stood still: {error}"
                ) from error
        self.held = HeldLoad(run=load.run, where=told_of(seen), began=began, ended=time.time(), windows=windows)
        self._told(f"first load goes on (SIGCONT): {len(windows)} windows with DDL were published")

    def _kill(self, load: _Load, seen: Seen) -> None:
        """Kill the driver and its JVM, not the workers; `killed` is set once Airflow tries again.

        A load that had just told its end is none that was killed: then a later one is.
        """
        children = load.process.children(recursive=True)
        load.process.kill()
        for child in children:
            with suppress(psutil.Error):
                if "java" in child.name():
                    child.kill()
        self._told(f"killed the load of {load.run} (kill -9) where {told_of(seen)}")
        while not self._over.wait(0.2):
            with suppress(StackError):
                found = self._api.tasks(watch.LOAD, load.run)
                if any(task["state"] == "success" and task["id"] == load.task["id"] for task in found):
                    self._told("that load had ended already; a later one is killed")
                    return
                if any(task["state"] == "up_for_retry" or task["id"] != load.task["id"] for task in found):
                    self.killed = Killed(run=load.run, where=told_of(seen))
                    return


def told_of(seen: Seen) -> str:
    """A look in words."""
    counts = {"objects": seen.objects, "units": seen.units, "DDL statements": seen.intents}
    text = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return f"{seen.stage.words}{text and f' ({text})'}"


@contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    """A process and all below it stand still inside it."""
    process.suspend()
    tree = [process, *process.children(recursive=True)]
    try:
        for child in tree[1:]:
            with suppress(psutil.Error):
                child.suspend()
        yield
    finally:
        for each in reversed(tree):
            with suppress(psutil.Error):
                each.resume()


def look(connection: Connection[Any]) -> Seen:
    """What a target shows now, in the tables of ours and beside them."""
    owner = _rows(connection, "SELECT run FROM pumphouse.fence")
    state = _rows(connection, "SELECT state FROM pumphouse.checkpoint")
    plans = _rows(connection, "SELECT number, mode, state FROM pumphouse.plan ORDER BY number")
    opened = [(number, str(mode)) for number, mode, plan_state in plans if plan_state == "open"]
    epochs: list[int] = []
    if opened:
        rows = _rows(connection, "SELECT epoch FROM pumphouse.applied WHERE plan = %s", opened[0][0])
        epochs = [int(row[0]) for row in rows]
    ddl = [row[0] for row in _rows(connection, "SELECT state FROM pumphouse.ddl WHERE state <> 'planned'")]
    return Seen(
        owner=str(owner[0][0]) if owner else "",
        state=str(state[0][0]) if state else "",
        objects=0 if plans else _objects(connection),
        opened=opened[0][1] if opened else "",
        closed=frozenset(str(mode) for _, mode, plan_state in plans if plan_state == "closed"),
        units=len(epochs),
        epoch=max(epochs, default=0),
        intents=len(ddl),
        done=ddl.count("done"),
    )


def _objects(connection: Connection[Any]) -> int:
    names = [row[0] for row in _rows(connection, "SELECT schema_name FROM information_schema.schemata")]
    names += [row[0] for row in _rows(connection, "SELECT table_schema FROM information_schema.tables")]
    return sum(not is_system(name) and name != "pumphouse" for name in names)


def _rows(connection: Connection[Any], query: str, *args: object) -> list[tuple[Any, ...]]:
    """Rows; none where the table is not there yet."""
    with connection.cursor() as cursor:
        try:
            cursor.execute(query, args or None)
        except (pymysql.err.ProgrammingError, pymysql.err.OperationalError) as error:
            if error.args and error.args[0] in _MISSING:
                return []
            raise
        return list(cursor.fetchall())
