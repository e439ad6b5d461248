"""Fakes, draining, GC runs, score, addresses: the small loops of a Pump, on a real store."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from pump_service.door.group import Messages
from pump_service.intake.fakes import FakeWriter
from pump_service.intake.submit import Submitter
from pump_service.metrics import PumpMetrics
from pump_service.node.collector import Collector, checkpoints
from pump_service.node.heartbeat import Registrar
from pump_service.node.horizon import Timestamps
from pump_service.node.lifecycle import Action
from pump_service.node.score import score
from pump_service.process import drain
from pump_service.process.listen import bind_http, split_address
from pump_service.process.stages import build_stages
from pump_service.process.store_samples import store_samples
from pump_service.pulls.pulls import Pulls
from pump_service.store.batch import PullBatch
from pump_service.store.store import GcReport, Store
from pumphouse.clock import SYSTEM_CLOCK
from pumphouse.errors import BadRecord, BinlogError, ConfigError, PositionCollected, PumpUnavailable
from pumphouse.model.node import NodeKind, NodeState, NodeStatus
from pumphouse.model.tso import Tso, show
from pumphouse.registry.file import FileCluster
from pumphouse.settings import TlsSettings
from tests.support.awaycluster import AwayCluster
from tests.support.crashfs import FaultyFs, failing
from tests.support.quickloop import run_quickly
from tests.support.storekit import commit, prewrite, settings, store_all, write
from tests.support.waiting import eventually


def _never(error: BinlogError) -> None:
    raise AssertionError(error)


@pytest.fixture
def cluster(tmp_path: Path) -> AwayCluster:
    return AwayCluster(tmp_path / "cluster")


@pytest.fixture
def fs() -> FaultyFs:
    return FaultyFs()


@pytest.fixture
def store(tmp_path: Path, fs: FaultyFs) -> Iterator[Store]:
    opened = Store.open(settings(tmp_path / "data"), fs=fs)
    yield opened
    opened.close()


def fake_writer(cluster: FileCluster, store: Store) -> tuple[FakeWriter, PumpMetrics]:
    metrics = PumpMetrics()
    submitter = Submitter(store, 1 << 20, metrics)
    return FakeWriter(Timestamps(cluster, SYSTEM_CLOCK), store, submitter, metrics), metrics


def consumer(cluster: FileCluster, name: str, checkpoint: int, state: NodeState = NodeState.PAUSED) -> None:
    status = NodeStatus(node_id=name, host="", state=state, max_commit_ts=Tso(checkpoint))
    cluster.update_node(NodeKind.DRAINER, name, lambda _: status)


@pytest.mark.row("P8")
def test_a_fake_is_written_in_each_interval_in_which_nothing_else_moves_the_watermark(
    store: Store, cluster: FileCluster, monkeypatch: pytest.MonkeyPatch
) -> None:

    async def run() -> None:
        fakes, metrics = fake_writer(cluster, store)
        began, interval = asyncio.Semaphore(0), asyncio.Semaphore(0)

        async def sleep(_seconds: float) -> None:
            began.release()
            await interval.acquire()

        monkeypatch.setattr("pump_service.intake.fakes.asyncio", SimpleNamespace(sleep=sleep))
        task = asyncio.create_task(fakes.run(3.0))
        await began.acquire()

        async def pass_interval() -> None:
            interval.release()
            await began.acquire()

        async def until_passed(ts: int) -> None:
            while store.watermark < ts:
                await asyncio.sleep(0.005)

        for _ in range(5):  # always moving
            start_ts, commit_ts = cluster.tso(), cluster.tso()
            await asyncio.to_thread(write, store, prewrite(start_ts), commit(start_ts, commit_ts))
            await until_passed(commit_ts)
            await pass_interval()
        assert b'fake_binlogs_total{how="written"}' not in metrics.text()
        before = store.watermark
        for n in range(1, 5):  # one in each interval in which nothing else moves it
            await pass_interval()
            assert b'fake_binlogs_total{how="written"} %d.0' % n in metrics.text()
            last = cluster.tso()
            while not (before < store.watermark < last):
                await asyncio.sleep(0.005)
            before = store.watermark
        task.cancel()

    run_quickly(run())


@pytest.mark.row("P8", "P15")
def test_a_fake_that_no_file_takes_is_published_unpersisted(store: Store, fs: FaultyFs, cluster: FileCluster) -> None:
    fs.faults["write"] = failing(errno.ENOSPC)

    async def run() -> None:
        fakes, metrics = fake_writer(cluster, store)
        end = store.synced_end
        ts = await fakes.write()
        assert ts is not None
        while store.watermark < ts:
            await asyncio.sleep(0.01)
        assert store.synced_end == end
        assert b'fake_binlogs_total{how="unpersisted"} 1.0' in metrics.text()

    run_quickly(run())


@pytest.mark.row("P13")
def test_the_last_position_is_above_every_commit_and_waits_for_open_prewrites(
    store: Store, cluster: FileCluster
) -> None:
    open_ts = cluster.tso()
    write(store, prewrite(open_ts))

    async def run() -> None:
        fakes, metrics = fake_writer(cluster, store)
        going = asyncio.create_task(drain.drained(cluster, store, fakes))
        await asyncio.sleep(5)
        assert b"fake" not in b"".join(line for line in metrics.text().splitlines() if b'how="' in line)
        commit_ts = cluster.tso()
        await asyncio.to_thread(write, store, commit(open_ts, commit_ts))
        last = await going
        assert last > commit_ts
        assert store.watermark >= last

    run_quickly(run())


@pytest.mark.row("P13")
def test_a_pump_that_waits_for_prewrites_says_so_with_their_number_and_the_oldest(
    store: Store, cluster: FileCluster
) -> None:
    starts = [cluster.tso() for _ in range(3)]
    store_all(store, *(prewrite(ts) for ts in reversed(starts)))

    async def run() -> None:
        fakes, _ = fake_writer(cluster, store)
        with capture_logs() as logged:
            going = asyncio.create_task(drain.drained(cluster, store, fakes))
            while len(logged) < 2:
                await asyncio.sleep(0.02)
            await asyncio.to_thread(write, store, *(commit(ts, cluster.tso()) for ts in starts))
            await going
        lines = [line for line in logged if line["event"] == "waiting_for_prewrites"]
        assert len(lines) >= 2
        assert (lines[0]["count"], lines[0]["oldest"]) == (3, show(starts[0]))
        assert "pump settle" in lines[0]["hint"]

    run_quickly(run())


@pytest.mark.row("P13")
def test_a_registry_that_does_not_answer_is_not_a_cluster_without_consumers(store: Store, cluster: AwayCluster) -> None:
    cluster.fails("nodes", PumpUnavailable("the registry is away"))

    async def run() -> None:
        fakes, _ = fake_writer(cluster, store)
        with capture_logs() as logged:
            going = asyncio.create_task(drain.drained(cluster, store, fakes))
            while sum(line["event"] == "consumers_unreadable" for line in logged) < 2:
                assert not going.done()
                await asyncio.sleep(0.02)
            cluster.first.clear()
            await going

    run_quickly(run())


@pytest.mark.row("P13")
def test_a_pump_that_closes_waits_for_every_consumer_that_is_not_offline(store: Store, cluster: FileCluster) -> None:
    consumer(cluster, "gone", 0, NodeState.OFFLINE)
    for name in ("archive", "drainer"):
        consumer(cluster, name, 0)

    async def run() -> None:
        fakes, _ = fake_writer(cluster, store)
        going = asyncio.create_task(drain.drained(cluster, store, fakes))
        while not store.watermark:
            await asyncio.sleep(0.01)
        last = store.watermark
        consumer(cluster, "archive", last)
        consumer(cluster, "drainer", last - 1)
        await asyncio.sleep(5)
        assert not going.done()
        consumer(cluster, "drainer", last)
        assert await going == last

    run_quickly(run())


class HeldStore:
    """A store whose GC run takes as long as the test wants."""

    gc_point = Tso(1)
    deletion_limit = Tso(1)

    def __init__(self) -> None:
        self.go = threading.Event()
        self.asked: list[dict[str, int]] = []
        self.gc = self

    def collect(self, checkpoints: Mapping[str, int], now_minus_retention: int) -> GcReport:
        self.asked.append(dict(checkpoints) | {"retention": now_minus_retention})
        self.go.wait(60)
        return GcReport(started=True, gc_point=Tso(2), deletion_limit=Tso(2), freed_bytes=5)


def collector(cluster: FileCluster, store: Any, metrics: PumpMetrics, interval_s: float = 3600.0) -> Collector:
    return Collector(cluster=cluster, store=store, retention_s=60.0, interval_s=interval_s, metrics=metrics)


@pytest.mark.row("P11")
def test_gc_asks_every_consumer_that_is_not_offline_and_ignores_a_trigger_while_it_runs(cluster: FileCluster) -> None:
    for number, state in enumerate(NodeState, 1):
        consumer(cluster, str(state), number, state)
    store, metrics = HeldStore(), PumpMetrics()

    async def run() -> None:
        gc = collector(cluster, store, metrics)
        first = asyncio.create_task(gc.trigger())
        while not store.asked:
            await asyncio.sleep(0.01)
        assert not (await gc.trigger()).started
        store.go.set()
        assert (await first).started
        assert (await gc.trigger()).started

    asyncio.run(asyncio.wait_for(run(), 20))
    now = cluster.tso()
    for asked in store.asked:
        kept = now - asked.pop("retention")
        assert 59_000 << 18 < kept < 90_000 << 18
        assert asked == {"online": 1, "pausing": 2, "paused": 3, "closing": 4}
    assert len(store.asked) == 2
    assert b"binlog_pump_gc_freed_bytes_total 10.0" in metrics.text()


@pytest.mark.row("P11")
def test_nothing_is_collected_when_the_consumers_cannot_be_read(cluster: AwayCluster) -> None:
    cluster.fails("nodes", PumpUnavailable("the registry is away"))
    store = HeldStore()
    store.go.set()
    gc = collector(cluster, store, PumpMetrics())
    with pytest.raises(PumpUnavailable):
        asyncio.run(gc.trigger())
    assert store.asked == []
    assert not gc.running


@pytest.mark.row("P11")
def test_gc_goes_on_beside_a_registry_value_with_a_number_that_is_none(tmp_path: Path) -> None:
    cluster = FileCluster(tmp_path / "registry")
    consumer(cluster, "archive", 7, NodeState.PAUSED)
    (path,) = (tmp_path / "registry").rglob("drainers/archive*")
    good = path.read_bytes()
    path.write_bytes(good.replace(b'"maxCommitTS":7', b'"maxCommitTS":1e400'))
    assert path.read_bytes() != good
    store, metrics = HeldStore(), PumpMetrics()
    store.go.set()

    async def run() -> None:
        for_ever = asyncio.create_task(collector(cluster, store, metrics, interval_s=0.01).run())
        while not _failed(metrics):
            assert not for_ever.done()
            await asyncio.sleep(0.01)
        path.write_bytes(good)
        while not store.asked:
            assert not for_ever.done()
            await asyncio.sleep(0.01)
        for_ever.cancel()

    asyncio.run(asyncio.wait_for(run(), 20))
    assert store.asked[0]["archive"] == 7


def _failed(metrics: PumpMetrics) -> float:
    return float(metrics.gc_runs.labels("failed")._value.get())


@pytest.mark.row("P11")
@pytest.mark.parametrize(
    "error", [OSError("the disk is away"), OverflowError("inf"), TypeError("a text"), KeyError("x")]
)
def test_gc_runs_again_after_each_interval_also_after_one_that_failed(cluster: FileCluster, error: Exception) -> None:
    class Flaky(HeldStore):
        def collect(self, checkpoints: Mapping[str, int], now_minus_retention: int) -> GcReport:
            report = super().collect(checkpoints, now_minus_retention)
            if len(self.asked) == 1:
                raise error
            return report

    store = Flaky()
    store.go.set()

    async def run() -> None:
        gc = collector(cluster, store, PumpMetrics(), interval_s=0.01)
        for_ever = asyncio.create_task(gc.run())
        while len(store.asked) < 3 and not for_ever.done():
            await asyncio.sleep(0.01)
        for_ever.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await for_ever

    asyncio.run(asyncio.wait_for(run(), 20))
    assert len(store.asked) >= 3


@pytest.mark.row("P11")
def test_a_consumer_at_0_is_a_checkpoint_like_any_other(cluster: FileCluster) -> None:
    consumer(cluster, "new", 0)
    assert checkpoints(cluster) == {"new": 0}


@pytest.mark.row("P7")
def test_streams_wake_when_the_watermark_moves_say_so_when_it_does_not_and_end_on_stop(
    store: Store, cluster: FileCluster
) -> None:

    async def run() -> None:
        pulls = Pulls(store, PumpMetrics(), memory_bytes=1 << 20)
        loop = asyncio.get_running_loop()
        pulled: list[list[int]] = []

        def render(batch: PullBatch) -> Messages:
            pulled.append(batch.commit_list)
            return Messages((b"",), len(batch))

        stream = pulls.follow(Tso(0), render, max_bytes=1 << 20, strict=False, end=_never)
        assert (await anext(stream)).messages.count == 0  # nothing yet, and it says so at once
        began = loop.time()
        assert (await anext(stream)).messages.count == 0
        assert loop.time() - began > 0.5
        start_ts, commit_ts = cluster.tso(), cluster.tso()
        await asyncio.to_thread(write, store, prewrite(start_ts), commit(start_ts, commit_ts))
        while not (sent := await anext(stream)).messages.count:
            pass  # on a busy machine the write takes longer than the stream is silent
        assert sent.complete_to == commit_ts
        assert pulled[-1] == [commit_ts]
        asyncio.get_running_loop().call_later(0.1, pulls.stop)
        assert [sent.messages.count async for sent in stream] == []
        pulls.close()

    run_quickly(run())


@pytest.mark.row("P7")
def test_a_pull_from_below_zero_is_one_from_zero_until_something_was_collected(store: Store) -> None:
    store_all(store, prewrite(100), commit(100, 110), prewrite(120), commit(120, 130))

    async def first() -> int:
        pulls = Pulls(store, PumpMetrics(), memory_bytes=1 << 20)
        stream = pulls.follow(
            Tso(-1), lambda batch: Messages((b"",), len(batch)), max_bytes=1 << 20, strict=True, end=_never
        )
        try:
            async with contextlib.aclosing(stream):
                return (await anext(stream)).messages.count
        finally:
            pulls.close()

    assert asyncio.run(first()) == 2
    store.gc.collect({}, 115)
    assert store.gc_point == 115
    with pytest.raises(PositionCollected, match="after -1 were asked for"):
        asyncio.run(first())


@pytest.mark.row("P7", "P5")
def test_damage_met_by_pulls_is_logged_once_for_each_place_with_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store.open(settings(Path("data")))
    write(store, prewrite(100, b"first"), commit(100, 110), prewrite(120, b"second"), commit(120, 130))
    eventually(lambda: store.watermark >= 130)
    path = tmp_path / "data" / "value" / "000000.vlog"
    with path.open("r+b") as file:
        at = path.read_bytes().index(b"second")
        file.seek(at)
        file.write(b"S")

    async def pull_twice() -> None:
        pulls = Pulls(store, PumpMetrics(), memory_bytes=1 << 20)
        for _ in range(2):
            stream = pulls.follow(
                Tso(0), lambda batch: Messages((b"",), len(batch)), max_bytes=1 << 20, strict=False, end=_never
            )
            assert (await anext(stream)).complete_to < 130  # what lies before it is served
            with pytest.raises(BadRecord):
                await anext(stream)
        pulls.close()

    try:
        with capture_logs() as logged:
            asyncio.run(asyncio.wait_for(pull_twice(), 20))
    finally:
        store.close()
    (line,) = [each for each in logged if each["event"] == "pull_met_damage"]
    assert line["path"] == str(path)
    assert 0 < line["offset"] < at
    assert line["reason"]


def score_of(*, free: int = 500, total: int = 1000, stored: int = 0, load: float = 0.0, writable: bool = True) -> int:
    return score(free=free, total=total, stored=stored, load=load, writable=writable)


@pytest.mark.row("P10")
def test_the_score_falls_with_disk_use_load_and_stored_size_and_is_0_for_a_pump_that_takes_nothing() -> None:
    assert score_of(free=1000) == 100
    assert score_of(free=1000, writable=False) == 0
    assert score_of(free=0, load=9.0) == score_of(free=0, stored=1000) == score_of(free=0, total=0) == 1
    shares = [score_of(free=free, load=0.5) for free in range(0, 1001, 100)]
    assert shares == sorted(set(shares))
    loads = [score_of(load=load / 10) for load in range(15)]
    assert loads == sorted(loads, reverse=True)
    assert loads[0] == 2 * loads[10] == 2 * loads[14]
    sizes = [score_of(stored=stored) for stored in (0, 100, 500, 2000, 10**9)]
    assert sizes == sorted(set(sizes), reverse=True)
    assert sizes[0] == 2 * sizes[-1]


@pytest.mark.row("P1")
def test_commits_of_a_cluster_on_this_machine_cost_it_no_question(tmp_path: Path) -> None:
    class Asked(FileCluster):
        times = 0

        def tso(self) -> Tso:
            self.times += 1
            return super().tso()

    ours = Asked(tmp_path / "cluster")
    given = settings(tmp_path / "data")

    async def run() -> None:
        store = Store.open(given)
        registrar = Registrar(ours, "pump", "127.0.0.1:1", SYSTEM_CLOCK)
        stages = build_stages(
            given, cluster=ours, tls=TlsSettings(), clock=SYSTEM_CLOCK, store=store, registrar=registrar, http="",
            request=lambda _: None,
        )  # fmt: skip
        stages.lifecycle.apply(Action.START)
        application = FileCluster(tmp_path / "cluster")
        asked = ours.times  # the registrar's timestamp of the start
        try:
            for _ in range(50):
                start_ts = application.tso()
                await stages.ingest.write(prewrite(start_ts).payload)
                await stages.ingest.write(commit(start_ts, application.tso()).payload)
            assert ours.times == asked
        finally:
            stages.pulls.close()
            await registrar.close()
            store.close()

    asyncio.run(run())


@pytest.mark.row("P10")
def test_a_heartbeat_weighs_what_the_value_log_holds(
    tmp_path: Path, cluster: FileCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two Pumps on one disk, which look the same but for their value logs."""
    monkeypatch.setattr(
        "pump_service.process.stages.shutil.disk_usage", lambda _: SimpleNamespace(free=50_000, total=100_000)
    )
    monkeypatch.setattr("pump_service.process.stages.os.getloadavg", lambda: (0.0, 0.0, 0.0))

    async def reported(name: str, *payloads: bytes) -> int:
        given = settings(tmp_path / name)
        store = Store.open(given)
        registrar = Registrar(cluster, name, "127.0.0.1:1", SYSTEM_CLOCK)
        stages = build_stages(
            given, cluster=cluster, tls=TlsSettings(), clock=SYSTEM_CLOCK, store=store, registrar=registrar, http="",
            request=lambda _: None,
        )  # fmt: skip
        try:
            if payloads:
                await asyncio.to_thread(write, store, *payloads)
            return stages.report().score
        finally:
            stages.pulls.close()
            await registrar.close()
            store.close()

    async def run() -> None:
        assert await reported("empty") == 50
        assert await reported("full", prewrite(cluster.tso(), value=bytes(50_000))) == 37

    asyncio.run(run())


@pytest.mark.row("P14")
def test_every_gauge_of_the_store_is_scraped(store: Store, tmp_path: Path) -> None:
    metrics = PumpMetrics()
    metrics.watch(lambda: store_samples(store, tmp_path))
    text = metrics.text().decode()
    for name, _, _, _ in store_samples(store, tmp_path):
        assert f"\n{name}" in text


@pytest.mark.row("P14")
def test_no_counter_has_a_gauge_of_when_it_was_made_beside_it() -> None:
    metrics = PumpMetrics()
    metrics.fakes.labels("published").inc()
    metrics.rpc_seconds.labels("WriteBinlog", "succ").observe(1.0)
    assert "_created" not in metrics.text().decode()


@pytest.mark.parametrize(
    ("text", "parts"),
    [("127.0.0.1:8250", ("127.0.0.1", 8250)), ("[::1]:0", ("::1", 0)), (":8250", ("0.0.0.0", 8250))],
)
def test_addresses(text: str, parts: tuple[str, int]) -> None:
    assert split_address(text) == parts


@pytest.mark.parametrize("text", ["localhost", "a:b", "a:99999", ""])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no address"):
        split_address(text)


def test_a_port_that_is_taken_is_named() -> None:
    with bind_http("127.0.0.1:0") as taken:
        addr = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"cannot listen on {addr}") as refused:
            bind_http(addr)
    assert refused.value.hint.startswith("is another Pump running?")
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:1") as refused:  # nobody's address (RFC 5737)
        bind_http("192.0.2.1:1")
    assert refused.value.hint == ""
