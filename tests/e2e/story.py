"""``make demo``: the whole product on this machine, checked from end to end. Raises when anything does not hold."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pumphouse.archive.archive import Archive
from pumphouse.diff.compare import DiffReport, compare, user_schemas
from pumphouse.durable import write_atomic
from pumphouse.model.tso import Tso, show
from pumphouse.mysql import DUMP, connect
from pumphouse.settings import Settings
from tests.e2e import airflow_watch as watch
from tests.e2e.first_load import HeldLoad, Killed, LoadWatch
from tests.e2e.freed import FileKeeper, FreedCheck, check_freed, said_by_pumps, window_of
from tests.e2e.marks import Mark, take_mark
from tests.e2e.points import choose
from tests.e2e.say import Say
from tests.e2e.scenario import IN_FIRST_LOAD, WHILE_RUNNING
from tests.e2e.workload import Workload
from tests.stack.local import LocalStack
from tests.stack.supervisor import StackError

RESTORE_CONNECTION = "pumphouse_restore"
# Compiled once, beside everything else, where this copy of the code has no cache of them yet.
PUMP_KERNELS, CAPTURE_KERNELS, BATCH_KERNELS = "kernels-pump", "kernels-capture", "kernels-batch"
_KERNELS = {
    PUMP_KERNELS: "from pump_service.process.compiler import compile_apart; compile_apart()",
    CAPTURE_KERNELS: "from pumphouse.capture.source.warm import warm; warm()",
    BATCH_KERNELS: "from pumphouse.codec.warm import warm; warm(); from spark_tasks.daemon import warm; warm()",
}


class DemoFailed(StackError):
    """Something that the demo promises does not hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSize:
    """What the demo must at least do, and how fast it goes about it."""

    transactions: int = 20_000
    rows: int = 120_000
    ddls: int = 12
    windows: int = 3
    rate: float = 140.0
    """Transactions a second, all writers together."""
    workload_s: float = 140.0
    """Over so long the DDLs, the kill and the mark are spread; the writers go on until all counts are reached."""
    limit_s: float = 1800.0
    """A part that waits gives up when the demo has run so long: some times what a busy machine takes."""
    seed: int = 0
    """Chooses where the first load is held, and where a load is killed."""


@dataclass(slots=True)
class Outcome:
    """What the summary shows."""

    counts: Counter[str] = field(default_factory=Counter)
    ddls: list[str] = field(default_factory=list)
    windows: int = 0
    scheduled_windows: int = 0
    binlog_bytes: int = 0
    archive_bytes: int = 0
    load_tries: int = 0
    held: HeldLoad | None = None
    killed: Killed | None = None
    rows_compared: int = 0
    tables_compared: int = 0
    freed: FreedCheck | None = None
    gc_reports: int = 0
    mark: Mark | None = None
    mark_window: tuple[Tso, Tso] | None = None
    restored: DiffReport | None = None


class Demo:
    """One run. The stack is cleared first and ended by the caller."""

    def __init__(self, stack: LocalStack, say: Say, size: DemoSize) -> None:
        self.stack = stack
        self.say = say
        self.size = size
        self.workload = Workload(stack, rate=size.rate)
        self.outcome = Outcome()
        self.loads: LoadWatch | None = None
        self._capture = threading.Lock()  # of whoever kills it, or waits for it
        self._opened: Archive | None = None
        self.keeper = FileKeeper(stack.pumps, stack.directory / "kept")

    def run(self) -> Outcome:
        """All steps, in order."""
        hold, kill = choose(self.size.seed)
        self.say(
            f"seed {self.size.seed} (`--seed` repeats it): the first load is held where {hold}, killed where {kill}"
        )
        with ThreadPoolExecutor(1) as pool:
            self._start_kernels()
            self._start_stores()
            airflow = pool.submit(self.stack.start_airflow)
            self._start_source()
            self._begin_archive()
            self.say("Airflow is starting …")
            airflow.result()
        self._start_dags()
        end = self._work()
        self._wait_for_target(end)
        self._compare_target()
        self._tamper()
        self._check_gc()
        self._restore()
        self._count_runs()
        return self.outcome

    # Beginning

    def _start_kernels(self) -> None:
        for name, code in _KERNELS.items():
            self.stack.supervisor.start(name, [sys.executable, "-c", code])

    def _wait_for_kernels(self, name: str) -> None:
        # Whoever finds none compiles them itself: several at once, each for itself.
        alive = self.stack.supervisor.alive
        self._wait(lambda: not alive(name), "the kernels to be compiled", workload=False)

    def _start_stores(self) -> None:
        self.stack.start_stores()
        ports = ", ".join(f"{name} {server.port}" for name, server in self.stack.databases.items())
        self.say(f"MariaDB servers on 127.0.0.1: {ports}; S3 server: {self.stack.s3.port}")

    def _start_source(self) -> None:
        self._wait_for_kernels(PUMP_KERNELS)
        self.stack.start_pumps()
        self.keeper.start()
        self.say(f"Pumps: {', '.join(f'{pump.node_id} on {pump.addr}' for pump in self.stack.pumps)}")
        self.workload.open(customers=3000)
        self._wait_for_kernels(CAPTURE_KERNELS)
        self.stack.start_capture()
        self.say("a capture follows the binlog of the shop's server; the shop speaks SQL alone")
        self.workload.start_writers()
        names = f"{self.workload.processes} processes with {self.workload.threads} threads each"
        self.say(f"writers: {names}, all at once")

    def _begin_archive(self) -> None:
        self._wait_for_kernels(BATCH_KERNELS)
        self._wait(lambda: self.workload.counts()["transactions"] >= 50, "the first transactions")
        report = self.stack.begin_archive()
        if report is None:
            raise DemoFailed("a cleared stack has a dump")
        self.say(f"archive begun, and {report.rows:,} rows dumped under load, exact from {show(report.ts)} on")

    def _start_dags(self) -> None:
        api = self.stack.airflow.api()
        api.wait_for_dags({*watch.SCHEDULED, watch.RESTORE, watch.APPLY})
        for dag_id in (*reversed(watch.SCHEDULED), watch.RESTORE):
            api.unpause(dag_id)
        self.say(f"Airflow on {self.stack.airflow.url}: its scheduler runs {', '.join(watch.SCHEDULED)}, each minute")

    # Under load

    def _work(self) -> Tso:
        """Everything that happens while the writers write; returns a TSO above all of it."""
        size, began, api = self.size, time.monotonic(), self.stack.airflow.api()
        self.workload.start_ddl(WHILE_RUNNING, size.workload_s, lambda name: self.say(f"DDL: {name}"))
        loads = self.loads = LoadWatch(
            self.stack.supervisor,
            api,
            self.stack.dsn("target"),
            choose(size.seed),
            publish=self._publish_ddl,
            told=self.say,
        )
        loads.start()
        try:
            self._until(began + size.workload_s * 0.15)
            # Some DDLs are in it; the schedule would make it at the full minute.
            api.trigger(watch.SNAPSHOT)
            self._until(began + size.workload_s * 0.3)
            self._kill_pump()
            self._until(began + size.workload_s * 0.45)
            self._kill_capture()
            self._until(began + size.workload_s * 0.55)
            self._mark()
            self._until(began + size.workload_s)
            self.workload.wait_ddl(self._left_s())
            self._wait(self._enough, "transactions, scheduled windows and the killed load", poll_s=2.0)
        finally:
            loads.stop()
        self.workload.stop_writers()
        self.stack.captured()
        end = self.stack.cluster.tso()
        self.outcome.counts = self.workload.counts()
        self.outcome.ddls = self.workload.ddl_done
        self.outcome.held, self.outcome.killed = loads.held, loads.killed
        counts = self.outcome.counts
        self.say(f"writers ended: {counts['transactions']:,} transactions, {counts['rows']:,} row changes")
        return end

    def _enough(self) -> bool:
        return (
            self._written()
            and self.loads is not None
            and self.loads.done
            and watch.scheduled_windows(self.stack.airflow.api()) >= self.size.windows
        )

    def _publish_ddl(self, over: threading.Event) -> tuple[int, ...]:
        """Publish a window with DDL, now; the ends of such windows that came meanwhile. Runs in the watch's thread."""
        archive, api = self._new_archive(), self.stack.airflow.api()
        before = archive.end()
        self.workload.run_ddl(IN_FIRST_LOAD, lambda name: self.say(f"DDL while the first load stands still: {name}"))
        time.sleep(2.0)  # for rows in the new shapes
        with self._capture:
            self.stack.captured()
        end = self.stack.cluster.tso()
        api.trigger(watch.SNAPSHOT)
        while archive.end() < end:
            if over.wait(0.25):
                raise DemoFailed("the demo gave up")
        return tuple(int(m.end) for m in archive.windows() if m.end > before and m.ddl is not None and m.ddl.jobs)

    def _written(self) -> bool:
        """Whether the writers have done their part; then they go on at a walk."""
        counts, size = self.workload.counts(), self.size
        written = counts["transactions"] >= size.transactions and counts["rows"] >= size.rows
        if written:
            self.workload.slow_down()
        return written

    def _kill_pump(self) -> None:
        pump = self.stack.pumps[-1]
        pump.kill()
        self.say(f"killed {pump.node_id} under load (kill -9); writes go to the other Pump")
        time.sleep(2.0)
        pump.start()
        self.say(f"{pump.node_id} is back: {pump.addr}")

    def _kill_capture(self) -> None:
        with self._capture:
            self.stack.kill_capture()
            self.say("killed the capture under load (kill -9); the shop goes on")
            time.sleep(2.0)
            self.stack.start_capture()
            self.say("the capture is back, and reads on behind its last decision")

    def _mark(self) -> None:
        # Windows end at full minutes: well inside one.
        self._wait(lambda: 12 <= time.time() % 60 <= 45, "the middle of a minute")
        with self.workload.turn:
            mark = take_mark(self.stack.dsn("source"), self.stack.cluster, captured=self.stack.captured)
        self.outcome.mark = mark
        self.say(f"mark at {show(mark.ts)}: {mark.tables} tables, {mark.rows:,} rows kept aside")

    # Afterwards

    def _wait_for_target(self, end: Tso) -> None:
        target = self.stack.dsn("target")
        self.stack.airflow.api().trigger(watch.SNAPSHOT)
        self._wait(lambda: self._archive().end() >= end, "the last snapshot window", workload=False, poll_s=1.0)
        self.say(f"the archive reaches {show(self._archive().end())}: {len(self._archive().windows())} windows")
        self._wait(lambda: watch.read_checkpoint(target) >= end, "the target to be loaded", workload=False, poll_s=0.5)
        self.say(f"the target is loaded up to {show(watch.read_checkpoint(target))}")

    def _compare_target(self) -> None:
        report = self._compare("target")
        self._must_be_equal(report, "the target", "the source")
        self.outcome.tables_compared, self.outcome.rows_compared = report.tables, report.rows
        self.say(f"target equals source: {report.tables} tables, {report.rows:,} rows, every column")

    def _tamper(self) -> None:
        """The comparer must see a single changed value; then it is put back."""
        with closing(self.stack.dsn("target").connect(autocommit=True)) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT name FROM shop.customers WHERE id = 7")
            (before,) = cursor.fetchone() or (None,)
            cursor.execute("UPDATE shop.customers SET name = 'somebody else' WHERE id = 7")
            report = self._compare("target")
            cursor.execute("UPDATE shop.customers SET name = %s WHERE id = 7", (before,))
        if {d.table for d in report.differences} != {"shop.customers"}:
            raise DemoFailed(f"one downstream row was edited by hand, and the comparer found {report.differences}")
        self.say("one row of the target edited by hand: the comparer finds it")

    def _check_gc(self) -> None:
        api = self.stack.airflow.api()
        self._wait(lambda: bool(self.keeper.freed()), "GC to free a file", workload=False)
        # A run that is under way may free more: look when it has ended.
        self._wait(lambda: all(run["state"] != "running" for run in api.runs(watch.GC)), "GC to end", workload=False)
        self.keeper.stop()
        check = check_freed(self.keeper.freed(), self._archive(), said_by_pumps(self.keeper.kept()))
        self.outcome.freed = check
        if check.missing:
            raise DemoFailed(f"GC freed transactions that the archive lacks: {check.missing[:5]}")
        self.say(
            f"Pump GC freed {check.files} value-log files ({check.bytes / 1e6:.0f} MB); all {check.transactions:,} "
            "committed transactions in them are in the archive"
        )

    def _restore(self) -> None:
        api, mark = self.stack.airflow.api(), self.outcome.mark
        if mark is None:
            raise DemoFailed("there is no mark to restore to")
        window = self.outcome.mark_window = window_of(self._archive(), mark.ts)
        if window is None:
            raise DemoFailed(f"the mark {show(mark.ts)} does not lie in the middle of a window")
        asked = {"to": str(int(mark.ts)), "target": RESTORE_CONNECTION, "dry_run": False}
        run_id = api.trigger(watch.RESTORE, asked)
        self.say(f"restore to the mark, in the middle of window ({show(window[0])}, {show(window[1])}]: {run_id}")
        run = api.wait_for_run(watch.RESTORE, run_id, timeout_s=self._left_s(), asked=self._yes)
        if run["state"] != "success":
            raise DemoFailed(f"the restore failed: {watch.failure(api, watch.RESTORE, run_id)}")
        report = compare(self.stack.dsn("source"), self.stack.dsn("restore"), schemas=mark.schemas, views=False)
        self._must_be_equal(report, "the restored target", "the copy of the mark")
        with connect(self.stack.dsn("restore").server, DUMP, "restore_target") as connection:
            names = user_schemas(connection)
        if names != set(mark.schemas.values()):
            raise DemoFailed(f"the restored target has the databases {sorted(names)}, not those of the mark")
        self.outcome.restored = report
        self.say(f"restored target equals the copy: {report.tables} tables, {report.rows:,} rows")

    def _yes(self, _task_id: str, question: str) -> str:
        self.say(f"Airflow asks: {question} Answered by yes")
        return watch.YES

    def _count_runs(self) -> None:
        api, outcome = self.stack.airflow.api(), self.outcome
        windows = self._archive().windows()
        outcome.windows = len(windows)
        segments = [each for window in windows for each in window.segments]
        outcome.binlog_bytes = sum(each.payload_bytes for each in segments)
        outcome.archive_bytes = sum(each.bytes for each in segments)
        outcome.scheduled_windows = watch.scheduled_windows(api)
        outcome.gc_reports = sum(run["state"] == "success" for run in api.runs(watch.GC))
        tasks = api.tasks(watch.LOAD, outcome.killed.run) if outcome.killed else []
        outcome.load_tries = max((int(task["try_number"]) for task in tasks), default=0)
        retried = all(task["state"] == "success" for task in tasks) and outcome.load_tries >= 2
        problems = {
            f"{outcome.scheduled_windows} scheduled snapshot windows": outcome.scheduled_windows >= self.size.windows,
            f"{outcome.counts['transactions']} transactions": outcome.counts["transactions"] >= self.size.transactions,
            f"{outcome.counts['rows']} row changes": outcome.counts["rows"] >= self.size.rows,
            f"{len(outcome.ddls)} DDLs": len(outcome.ddls) >= self.size.ddls and len(set(outcome.ddls)) >= 10,
            f"the killed load had {outcome.load_tries} tries": retried,
            "no window with DDL was published while the first load ran": self._published_in_first_load(),
        }
        wrong = [text for text, holds in problems.items() if not holds]
        wrong += watch.failed_runs(api)
        if wrong:
            raise DemoFailed("; ".join(wrong))

    def _published_in_first_load(self) -> bool:
        """Whether the archive has a window with DDL that came between begin and end of the first load."""
        held, (first, *_) = self.outcome.held, self.stack.airflow.api().runs(watch.LOAD)
        if held is None or first["dag_run_id"] != held.run or first["state"] != "success":
            return False
        began, ended = watch.span(first)
        with_ddl = {int(m.end) for m in self._archive().windows() if m.ddl is not None and m.ddl.jobs}
        return began < held.began and held.ended < ended and bool(held.windows) and with_ddl.issuperset(held.windows)

    # Parts

    def _settings(self) -> Settings:
        return Settings.read(self.stack.config)

    def _archive(self) -> Archive:
        if self._opened is None:
            self._opened = self._new_archive()
        return self._opened

    def _new_archive(self) -> Archive:
        settings = self._settings()
        cluster_id = self.stack.cluster.cluster_id()
        return Archive.open(settings.archive, cluster_id)

    def _compare(self, name: str) -> DiffReport:
        copies = set(self.outcome.mark.schemas) if self.outcome.mark else set()
        return compare(self.stack.dsn("source"), self.stack.dsn(name), ignore=copies | {"history"})

    def _must_be_equal(self, report: DiffReport, what: str, other: str) -> None:
        if report.equal:
            return
        path = self.stack.directory / "differences.txt"
        lines = [f"{d.table}: {d.kind} {d.side}: {d.detail}" for d in report.differences]
        write_atomic(path, "\n".join(lines).encode())
        raise DemoFailed(f"{what} differs from {other}: " + "; ".join(lines[:6]), hint=f"all of it is in {path}")

    def _until(self, moment: float) -> None:
        self._wait(lambda: time.monotonic() >= moment, "")

    def _left_s(self) -> float:
        return max(60.0, self.size.limit_s - self.say.elapsed_s)

    def _wait(self, ready: Callable[[], bool], what: str, *, workload: bool = True, poll_s: float = 0.25) -> None:
        """Wait, showing progress every ten seconds and looking after everything that runs."""
        limit = time.monotonic() + self._left_s()
        shown = time.monotonic()
        while not ready():
            if workload:
                self.workload.check()
            if self.loads is not None:
                self.loads.check()
            if time.monotonic() - shown >= 10:
                shown = time.monotonic()
                self.say(self._progress(what))
                self._written()
                self._require_no_failed_run()
            if time.monotonic() > limit:
                raise DemoFailed(f"waited too long for {what}; {self._progress('')}")
            time.sleep(poll_s)

    def _require_no_failed_run(self) -> None:
        """A run that has failed has had all its tries: nothing that is waited for would come."""
        if self.loads is None:
            return  # Airflow has not started
        try:
            failed = watch.failed_runs(self.stack.airflow.api())
        except (StackError, OSError):
            return  # it is slow to answer; the next look will tell
        if failed:
            raise DemoFailed("\n".join(failed))

    def _progress(self, what: str) -> str:
        counts = self.workload.counts()
        archive = self._archive()
        windows = len(archive.windows()) if archive.begun() else 0
        text = f"… {counts['transactions']:,} transactions, {counts['rows']:,} row changes, {windows} windows"
        return f"{text}; waiting for {what}" if what else text


def summary(outcome: Outcome, seconds: float) -> list[tuple[str, object]]:
    """Rows of the table that is printed at the end."""
    counts, mark, freed, restored = outcome.counts, outcome.mark, outcome.freed, outcome.restored
    held, killed = outcome.held, outcome.killed
    taken, binlogs = outcome.archive_bytes, outcome.binlog_bytes
    return [
        ("transactions", f"{counts['transactions']:,}"),
        ("row changes", f"{counts['rows']:,}"),
        ("rolled back", f"{counts['rolled back']:,}"),
        ("DDLs", f"{len(outcome.ddls)} of {len(set(outcome.ddls))} kinds"),
        ("snapshot windows", f"{outcome.windows}, {outcome.scheduled_windows} of them scheduled runs of Airflow"),
        ("archive", f"{taken / 1e6:.1f} MB for {binlogs / 1e6:.1f} MB of binlogs ({taken / max(1, binlogs):.2f})"),
        ("killed and started again", "pump-2; the capture"),
        (
            "First load held",
            f"where {held.where}; {len(held.windows)} windows with DDL came meanwhile" if held else "-",
        ),
        ("Load killed", f"where {killed.where}; Airflow's try {outcome.load_tries} ended it" if killed else "-"),
        ("target equals source", f"{outcome.tables_compared} tables, {outcome.rows_compared:,} rows"),
        (
            "value-log files freed",
            f"{freed.files}, {freed.transactions:,} transactions, none missing" if freed else "-",
        ),
        ("restored to", show(mark.ts) if mark else "-"),
        ("restore equals the copy", f"{restored.tables} tables, {restored.rows:,} rows" if restored else "-"),
        ("seconds", f"{seconds:.0f}"),
    ]


def write_up(stack: LocalStack, path: Path, more: dict[str, Any] | None = None) -> None:
    """Put ``build/up.json`` where others find it; it holds passwords."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(stack.describe(more), indent=2).encode(), mode=0o600)
