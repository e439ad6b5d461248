"""The whole chain, small: the shop, two Pumps, snapshots, load, Pump GC, restore; compared at each end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pumphouse.archive.archive import Archive
from pumphouse.archive.snapshot import run_snapshot
from pumphouse.client.admin import trigger_gc
from pumphouse.diff.compare import DiffReport, compare
from pumphouse.objectstore.open import open_store
from pumphouse.runs import load, restore
from pumphouse.schema.history import open_history
from pumphouse.settings import Settings
from tests.e2e.freed import FileKeeper, check_freed, said_by_pumps, said_by_shop, window_of
from tests.e2e.marks import take_mark
from tests.e2e.scenario import WHILE_RUNNING
from tests.e2e.workload import Workload
from tests.stack.local import SMALL, LocalStack

SETTINGS = {
    **SMALL,
    "pump": {**SMALL["pump"], "value_log_file_bytes": 1 << 18, "retention_s": 2.0, "max_txn_timeout_s": 3.0},
    "load": {"engine": "local", "connections": 2},
}


# Tests of captures have the links of the other chain, and `make demo` has all of it.
@pytest.fixture(params=["client", pytest.param("capture", marks=pytest.mark.slow)])
def stack(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalStack]:
    """With a shop that writes binlogs by the client, over a bad network; and with one that speaks SQL alone."""
    stack = LocalStack(tmp_path / "stack", store="file", settings=SETTINGS, capture=request.param == "capture")
    try:
        stack.start_stores()
        yield stack
    finally:
        stack.stop(timeout_s=0)


def _wait(ready: Callable[[], bool], timeout_s: float, workload: Workload) -> None:
    limit = time.monotonic() + timeout_s
    while not ready():
        workload.check()
        assert time.monotonic() < limit, "waited too long"
        time.sleep(0.1)


def _differences(report: DiffReport) -> str:
    return "\n".join(f"{d.table}: {d.kind} {d.side} {d.detail}" for d in report.differences)


@pytest.mark.timeout(600)
@pytest.mark.row("Q1", "Q2", "W1", "W3", "P3", "P5", "P7", "P8", "A1", "A2", "A3", "S1", "S3", "L1", "L2", "R1", "R2")
def test_from_the_application_to_the_target_and_back_to_a_moment(stack: LocalStack) -> None:
    workload = Workload(stack, processes=1, threads=3, rate=40)
    stack.start_pumps()
    workload.open(customers=100)
    keeper = FileKeeper(stack.pumps, stack.directory / "kept", interval_s=0.02)
    keeper.start()
    if stack.captures:
        stack.start_capture()
    else:
        workload.start_resolver()
    captured = stack.captured if stack.captures else None
    workload.start_writers()
    settings = Settings.read(stack.config)
    archive = Archive(open_store(settings.archive), stack.cluster.cluster_id(), archive_id=settings.archive.archive_id)
    history = open_history(settings.history)
    assert history is not None
    _wait(lambda: workload.counts()["transactions"] > 30, 60, workload)
    stack.begin_archive()

    def snapshot() -> None:
        run_snapshot(archive, stack.cluster, stack.cluster.tso(), settings, history)

    workload.start_ddl(WHILE_RUNNING, 12, lambda name: None)
    time.sleep(3)
    stack.pumps[1].kill()
    stack.pumps[1].start()
    if stack.captures:
        stack.kill_capture()
        time.sleep(1)
        stack.start_capture()
    snapshot()
    load.run(settings)
    time.sleep(2)
    with workload.turn:
        mark = take_mark(stack.dsn("source"), stack.cluster, captured=captured)
    time.sleep(2)
    snapshot()
    workload.wait_ddl(60)
    workload.stop_writers()
    counts = workload.counts()
    if captured is not None:
        captured()
    end = stack.cluster.tso()
    snapshot()
    assert archive.end() >= end

    load.run(settings)
    report = compare(stack.dsn("source"), stack.dsn("target"), ignore={*mark.schemas, "history"})
    assert report.equal, _differences(report)
    assert report.rows > 500
    assert counts["transactions"] > 300
    assert counts["rolled back"] > 0

    window = window_of(archive, mark.ts)
    assert window is not None
    restore.run(settings, to=mark.ts, dry_run=False)
    restored = compare(stack.dsn("source"), stack.dsn("restore"), schemas=mark.schemas, views=False)
    assert restored.equal, _differences(restored)

    reports = trigger_gc(stack.cluster, tls=settings.tls)
    assert sum(report.freed_files for report in reports) > 0
    keeper.stop()
    with closing(stack.dsn("source").connect()) as source:
        outcomes = said_by_pumps(keeper.kept()) if stack.captures else said_by_shop(source)
    freed = check_freed(keeper.freed(), archive, outcomes)
    assert freed.files > 0
    assert freed.missing == []
    assert freed.transactions > 0
