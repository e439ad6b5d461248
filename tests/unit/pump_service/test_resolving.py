"""Which resolver is asked, what is made of its answers, and when."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path
from typing import Any

import pytest

from pump_service.metrics import PumpMetrics
from pump_service.node.horizon import Horizon, Timestamps
from pump_service.resolve import application as application_module
from pump_service.resolve.application import ApplicationResolver, _outcome, choose
from pump_service.resolve.asker import Asker
from pump_service.resolve.base import Fate, NoAnswer, Outcome
from pump_service.store.store import Store
from pumphouse.client.resolver import PENDING, ResolverServer
from pumphouse.clock import SYSTEM_CLOCK
from pumphouse.errors import ClusterUnavailable, PumpReadOnly
from pumphouse.model.tso import Tso, compose, physical_ms
from pumphouse.proto.pumphouse_pb2 import TxnStatusResponse
from pumphouse.registry.base import ResolverRecord
from pumphouse.registry.file import FileCluster
from pumphouse.rpc.channel import open_aio_channel
from pumphouse.settings import PumpSettings, TlsSettings
from tests.support.crashfs import FaultyFs, failing
from tests.support.storekit import commit, fake, log_payloads, open_store, prewrite, settings, settle, store_all

pytestmark = pytest.mark.row("P6")

NOW = 1000.0


def record(name: str, *prefixes: bytes, age: float = 1.0) -> ResolverRecord:
    return ResolverRecord(resolver_id=name, host=f"{name}:1", prefixes=prefixes, heartbeat=NOW - age)


@pytest.mark.parametrize(
    ("records", "chosen"),
    [
        ([], None),
        ([record("a", b"x/")], None),
        ([record("a", b"app/")], "a"),
        ([record("all", b""), record("a", b"app/")], "a"),
        ([record("all", b""), record("a", b"app/", age=10.0)], "all"),
        ([record("a", b"app/", age=11.0)], None),
        ([record("a", b"x/", b"app/k")], "a"),
        ([record("gone", b"app/k", age=-3600.0), record("new", b"app/")], "new"),  # its clock was ahead
    ],
)
def test_the_live_resolver_with_the_longest_prefix_is_asked(records: list[ResolverRecord], chosen: str | None) -> None:
    found = choose(records, b"app/key", NOW)
    assert (found.resolver_id if found else None) == chosen


class Registry:
    """Resolvers of a cluster whose registry may be away; its clock goes a second on with each look."""

    def __init__(self) -> None:
        self.records: list[ResolverRecord] = []
        self.away = False
        self.moment = NOW

    def resolvers(self) -> list[ResolverRecord]:
        if self.away:
            raise ClusterUnavailable("etcd is away")
        return self.records

    def now(self) -> float:
        return self.moment

    def monotonic(self) -> float:
        self.moment += 1.0
        return self.moment

    def sleep(self, seconds: float) -> None:
        self.moment += seconds


def test_a_key_is_nobodys_only_while_the_registry_says_so() -> None:
    registry = Registry()
    application = ApplicationResolver(registry, 1, TlsSettings(), registry)  # type: ignore[arg-type]

    async def run() -> None:
        assert not await application.claims(b"app/1")
        registry.away = True
        registry.records = [record("new", b"app/", age=3600.0)]
        with pytest.raises(NoAnswer, match="cannot be read"):
            await application.claims(b"app/1")
        registry.away = False
        assert await application.claims(b"app/1")
        assert not await application.claims(b"t/1")

    asyncio.run(run())


def test_answers_that_cannot_be_are_no_answers() -> None:
    assert _outcome(TxnStatusResponse(), 5, "a") == Outcome(fate=Fate.PENDING)
    assert _outcome(TxnStatusResponse(outcome=TxnStatusResponse.COMMITTED, commit_ts=6), 5, "a") == Outcome(
        fate=Fate.COMMITTED, commit_ts=6
    )
    assert _outcome(TxnStatusResponse(outcome=TxnStatusResponse.ROLLED_BACK, commit_ts=6), 5, "a") == Outcome(
        fate=Fate.ROLLED_BACK
    )
    for commit_ts in (0, 4, 5):
        with pytest.raises(NoAnswer, match="cannot be"):
            _outcome(TxnStatusResponse(outcome=TxnStatusResponse.COMMITTED, commit_ts=commit_ts), 5, "a")
    with pytest.raises(NoAnswer):
        _outcome(TxnStatusResponse(outcome=9), 5, "a")  # type: ignore[arg-type]


class Knows:
    """A Resolver by a table; anything else is no answer."""

    def __init__(self) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self.asked: list[tuple[int, bool]] = []

    async def ask(self, start_ts: int, prewrite_key: bytes, *, decide: bool) -> Outcome:
        self.asked.append((start_ts, decide))
        if start_ts not in self.outcomes:
            raise NoAnswer("nobody knows", start_ts=start_ts)
        return self.outcomes[start_ts]

    async def evidence(self, start_ts: int, prewrite_key: bytes) -> str:
        return ""

    async def close(self) -> None:
        pass


class Later:
    """The machine's clock, some seconds later."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def now(self) -> float:
        return SYSTEM_CLOCK.now()

    def monotonic(self) -> float:
        return SYSTEM_CLOCK.monotonic() + self.seconds

    def sleep(self, seconds: float) -> None:
        SYSTEM_CLOCK.sleep(seconds)


def test_power_is_used_only_after_the_time_out_and_only_an_outcome_ends_the_wait(tmp_path: Path) -> None:
    cluster = FileCluster(tmp_path / "cluster")
    store = Store.open(settings(tmp_path / "data"))
    young = cluster.tso()
    old = compose(physical_ms(young) - 601_000)
    store_all(store, prewrite(old), prewrite(young))
    resolver, metrics = Knows(), PumpMetrics()

    async def rounds() -> None:
        def asker(seconds: float) -> Asker:
            return Asker(
                store=store, resolver=resolver, timestamps=Timestamps(cluster, SYSTEM_CLOCK), horizon=Horizon(Timestamps(cluster, SYSTEM_CLOCK), SYSTEM_CLOCK), settings=PumpSettings(), metrics=metrics,
                clock=Later(seconds),
            )  # fmt: skip

        await asker(0.0).round()
        assert resolver.asked == []  # both arrived a moment ago
        await asker(2.0).round()
        assert sorted(resolver.asked) == [(old, True), (young, False)]  # side by side, in any order
        settle(store)
        assert store.prewrites.count == 2
        assert b"binlog_pump_unanswered_prewrites 1.0" in metrics.text()
        resolver.outcomes = {old: Outcome(fate=Fate.PENDING), young: Outcome(fate=Fate.PENDING)}
        await asker(2.0).round()
        settle(store)
        assert store.prewrites.count == 2
        commit_ts = cluster.tso()
        resolver.outcomes = {
            old: Outcome(fate=Fate.ROLLED_BACK),
            young: Outcome(fate=Fate.COMMITTED, commit_ts=commit_ts),
        }
        await asker(2.0).round()
        settle(store)
        assert store.prewrites.count == 0
        pulled = store.stream.pull(old, max_bytes=1 << 20)
        assert pulled.start_list == [young]
        assert commit(young, commit_ts).payload in log_payloads(store)  # as its client would have written it
        await asker(2.0).round()
        assert b"binlog_pump_unanswered_prewrites 0.0" in metrics.text()

    try:
        asyncio.run(asyncio.wait_for(rounds(), 20))
    finally:
        store.close()


def test_many_open_prewrites_are_all_asked_about_in_one_round(tmp_path: Path) -> None:
    cluster = FileCluster(tmp_path / "cluster")
    store = Store.open(settings(tmp_path / "data"))
    starts = [Tso(cluster.tso()) for _ in range(200)]
    store_all(store, *(prewrite(ts) for ts in starts))
    resolver = Knows()
    resolver.outcomes = {ts: Outcome(fate=Fate.ROLLED_BACK) for ts in starts[::2]}

    async def one_round() -> None:
        await Asker(
            store=store, resolver=resolver, timestamps=Timestamps(cluster, SYSTEM_CLOCK), horizon=Horizon(Timestamps(cluster, SYSTEM_CLOCK), SYSTEM_CLOCK), settings=PumpSettings(), metrics=PumpMetrics(),
            clock=Later(2.0),
        ).round()  # fmt: skip
        settle(store)
        assert store.prewrites.count == 100

    try:
        asyncio.run(asyncio.wait_for(one_round(), 20))
        assert sorted(ts for ts, _ in resolver.asked) == starts
    finally:
        store.close()


def test_a_commit_ts_from_the_future_is_no_answer(tmp_path: Path) -> None:
    cluster = FileCluster(tmp_path / "cluster")
    store = Store.open(settings(tmp_path / "data"))
    start = cluster.tso()
    store_all(store, prewrite(start))
    resolver, metrics = Knows(), PumpMetrics()

    async def rounds() -> None:
        asker = Asker(
            store=store, resolver=resolver, timestamps=Timestamps(cluster, SYSTEM_CLOCK), horizon=Horizon(Timestamps(cluster, SYSTEM_CLOCK), SYSTEM_CLOCK),
            settings=PumpSettings(), metrics=metrics, clock=Later(2.0),
        )  # fmt: skip
        resolver.outcomes = {start: Outcome(fate=Fate.COMMITTED, commit_ts=compose(physical_ms(start) + 60_000))}
        await asker.round()
        settle(store)
        assert [waiting.start_ts for waiting in store.prewrites.oldest()] == [start]
        assert b'binlog_pump_resolver_questions_total{answer="none"} 1.0' in metrics.text()
        resolver.outcomes = {start: Outcome(fate=Fate.COMMITTED, commit_ts=cluster.tso())}
        await asker.round()
        settle(store)
        assert store.prewrites.count == 0

    try:
        asyncio.run(asyncio.wait_for(rounds(), 20))
        assert store.watermark <= cluster.tso()
    finally:
        store.close()


def test_an_outcome_that_neither_disk_nor_memory_takes_is_an_error_for_who_settles(tmp_path: Path) -> None:
    cluster = FileCluster(tmp_path / "cluster")
    store = open_store(tmp_path / "data", fs := FaultyFs())
    start, below, above = cluster.tso(), cluster.tso(), cluster.tso()
    store_all(store, fake(above), prewrite(start))
    fs.faults["write"], fs.free = failing(errno.ENOSPC), 0
    resolver = Knows()
    resolver.outcomes = {start: Outcome(fate=Fate.COMMITTED, commit_ts=below)}

    async def settled() -> None:
        asker = Asker(
            store=store, resolver=resolver, timestamps=Timestamps(cluster, SYSTEM_CLOCK), horizon=Horizon(Timestamps(cluster, SYSTEM_CLOCK), SYSTEM_CLOCK),
            settings=PumpSettings(), metrics=PumpMetrics(), clock=Later(2.0),
        )  # fmt: skip
        with pytest.raises(PumpReadOnly):
            await asker.committed(start, below, reason="it was", who="me")
        await asker.round()
        assert store.prewrites.is_open(start)
        await asker.rolled_back(start, reason="it was not", who="me")
        assert not store.prewrites.is_open(start)

    try:
        asyncio.run(asyncio.wait_for(settled(), 20))
    finally:
        fs.faults.clear()
        store.close()


def test_channels_to_addresses_that_no_resolver_has_any_more_are_closed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(application_module, "_REGISTRY_TTL_S", 0.0)
    cluster = FileCluster(tmp_path)
    opened: list[Any] = []

    def open_and_keep(host: str, tls: TlsSettings) -> Any:
        opened.append(open_aio_channel(host, tls))
        return opened[-1]

    monkeypatch.setattr(application_module, "open_aio_channel", open_and_keep)

    async def run() -> None:
        application = ApplicationResolver(cluster, cluster.cluster_id(), TlsSettings(), SYSTEM_CLOCK)
        with ResolverServer(cluster, "stays", [b"stays/"], lambda *_: PENDING):
            assert (await application.ask(1, b"stays/1", decide=False)).fate is Fate.PENDING
            for _ in range(5):  # each on another port
                server = await asyncio.to_thread(ResolverServer, cluster, "moves", [b"moves/"], lambda *_: PENDING)
                assert (await application.ask(1, b"moves/1", decide=False)).fate is Fate.PENDING
                await asyncio.to_thread(server.close)
            assert len(opened) == 6
            assert len(application._channels) == 2
            # The one that stayed is asked over the same channel as ever.
            assert (await application.ask(2, b"stays/1", decide=False)).fate is Fate.PENDING
            assert len(opened) == 6
        await application.close()

    asyncio.run(run())


def test_a_question_under_way_keeps_its_channel_until_it_is_answered(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(application_module, "_REGISTRY_TTL_S", 0.0)
    cluster = FileCluster(tmp_path)
    asked, answer = threading.Event(), threading.Event()

    def slow(*_: object) -> Any:
        asked.set()
        answer.wait(60)
        return PENDING

    async def run() -> None:
        application = ApplicationResolver(cluster, cluster.cluster_id(), TlsSettings(), SYSTEM_CLOCK)
        with ResolverServer(cluster, "old", [b"k"], slow, heartbeat_interval_s=1000.0) as old:
            question = asyncio.create_task(application.ask(1, b"k", decide=False))
            assert await asyncio.to_thread(asked.wait, 10)
            cluster.delete_resolver("old")
            assert not await application.claims(b"k")  # reads the registry: nobody is at that address any more
            answer.set()
            assert (await question).fate is Fate.PENDING
            await application.claims(b"k")
            assert old.host not in application._channels
        await application.close()

    asyncio.run(run())
