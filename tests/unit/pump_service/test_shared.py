"""Questions to a cluster that many have at once, and one that does not answer."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pump_service.api.operations import Operations
from pump_service.metrics import PumpMetrics
from pump_service.node.horizon import Horizon, Timestamps
from pump_service.node.shared import Shared
from pump_service.resolve.asker import Asker
from pump_service.store.store import Store
from pumphouse.clock import SYSTEM_CLOCK
from pumphouse.errors import ClusterUnavailable
from pumphouse.registry.file import FileCluster
from pumphouse.settings import PumpSettings
from tests.support.awaycluster import AwayCluster
from tests.support.quickloop import run_quickly
from tests.support.storekit import prewrite, settings, write


def test_all_share_one_question_and_who_needs_a_fresh_answer_waits_for_the_next() -> None:
    goes_on, asked = threading.Event(), itertools.count(1)

    def ask() -> int:
        number = next(asked)
        if number == 1:
            goes_on.wait(60)
        return number

    async def run() -> list[int]:
        shared = Shared(ask, "test")
        first = asyncio.create_task(shared.current())
        await asyncio.sleep(0.05)
        others = [asyncio.create_task(shared.current()) for _ in range(50)]
        fresh = [asyncio.create_task(shared.fresh()) for _ in range(50)]
        await asyncio.sleep(0.05)
        goes_on.set()
        return [await first, *[await each for each in others], *[await each for each in fresh]]

    assert asyncio.run(asyncio.wait_for(run(), 10)) == [1] * 51 + [2] * 50


def test_a_question_that_has_just_ended_is_not_under_way_any_more() -> None:
    asked = itertools.count(1)
    found: list[tuple[int, bool]] = []

    class Ending(Shared[int]):
        async def _run(self) -> int:
            answer = await super()._run()
            if answer == 1:
                asyncio.get_running_loop().call_soon(self.look)  # before what the question's end calls
            return answer

        def look(self) -> None:
            question, new = self.question()
            question.add_done_callback(lambda done: found.append((done.result(), new)))

    async def run() -> None:
        shared = Ending(lambda: next(asked), "test")
        assert await shared.current() == 1
        while not found:
            await asyncio.sleep(0.001)
        assert found == [(2, True)]
        assert await shared.fresh() == 3

    asyncio.run(asyncio.wait_for(run(), 10))


def test_no_two_fakes_get_the_same_timestamp_and_the_horizon_knows_whatever_was_drawn(tmp_path: Path) -> None:
    cluster = FileCluster(tmp_path)

    async def run() -> None:
        timestamps = Timestamps(cluster, SYSTEM_CLOCK)
        horizon = Horizon(timestamps, SYSTEM_CLOCK)
        drawn = await asyncio.gather(*(timestamps.own() for _ in range(50)))
        assert len(set(drawn)) == 50
        assert horizon.covers(max(drawn))

    asyncio.run(run())


@pytest.mark.row("P12")
def test_a_silent_clock_of_the_cluster_takes_no_threads_of_the_pump_and_status_says_so(tmp_path: Path) -> None:
    goes_on, cluster = threading.Event(), AwayCluster(tmp_path)
    cluster.first["tso"] = lambda: goes_on.wait(60)
    nothing: Any = None
    before = threading.active_count()

    async def run() -> None:
        operations = Operations(
            cluster=cluster, timestamps=Timestamps(cluster, SYSTEM_CLOCK), registrar=nothing, lifecycle=nothing,
            store=nothing, asker=nothing, collector=nothing, resolver=nothing, sync_log=True, request=nothing,
        )  # fmt: skip
        try:
            bodies = await asyncio.gather(*(operations.http_status() for _ in range(40)))
            assert {body["ErrMsg"] for body in bodies} == {"the cluster does not answer within 5 s"}
            assert threading.active_count() - before <= 2
            assert await asyncio.to_thread(lambda: 1) == 1
        finally:
            goes_on.set()

    run_quickly(run())


@pytest.mark.row("P6")
@pytest.mark.parametrize("error", [OSError("no certificate"), ClusterUnavailable("gone"), KeyError("bug")])
def test_a_question_that_fails_leaves_no_others_running_behind_it(tmp_path: Path, error: Exception) -> None:
    cluster = FileCluster(tmp_path / "cluster")
    store = Store.open(settings(tmp_path / "data"))
    first, *others = [cluster.tso() for _ in range(5)]
    write(store, *(prewrite(ts) for ts in (first, *others)))
    asked: list[int] = []

    class Fails:
        async def ask(self, start_ts: int, prewrite_key: bytes, *, decide: bool) -> None:
            asked.append(start_ts)
            if start_ts == first:
                raise error
            await asyncio.sleep(0.2)
            raise ClusterUnavailable("slow")

    class Later:
        def monotonic(self) -> float:
            return time.monotonic() + 10

    async def run() -> None:
        while len(store.prewrites.oldest()) < 5:
            await asyncio.sleep(0.01)
        timestamps = Timestamps(cluster, SYSTEM_CLOCK)
        resolver: Any = Fails()
        clock: Any = Later()
        asker = Asker(
            store=store, resolver=resolver, timestamps=timestamps, horizon=Horizon(timestamps, SYSTEM_CLOCK),
            settings=PumpSettings(), metrics=PumpMetrics(), clock=clock,
        )  # fmt: skip
        if isinstance(error, KeyError):
            with pytest.raises(ExceptionGroup):
                await asker.round()
        else:
            await asker.round()
            assert sorted(asked) == [first, *others]
        assert len(asyncio.all_tasks()) == 1

    try:
        asyncio.run(run())
    finally:
        store.close()
