"""Which timestamps are believed without a question to the cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pump_service.node.horizon import BELIEVED_S, Horizon, Timestamps
from pumphouse.model.tso import Tso, compose
from pumphouse.registry.base import Cluster
from pumphouse.registry.file import FileCluster
from pumphouse.registry.file_tso import PAST_AHEAD_MS

pytestmark = pytest.mark.row("P1")


class Server:
    """A cluster's clock, and a machine's; a look at the latter takes 0.3 ms. Counts the questions."""

    def __init__(self) -> None:
        self.asked = 0
        self.last = 0
        self.moment = 1000.0

    def draw(self) -> int:
        self.last = max(self.last + 1, compose(int(self.moment * 1000)))
        return self.last

    def tso(self) -> Tso:
        self.asked += 1
        return Tso(self.draw())

    def now(self) -> float:
        return self.moment

    def monotonic(self) -> float:
        self.moment += 0.0003
        return self.moment

    def sleep(self, seconds: float) -> None:
        self.moment += seconds


def questions(*, patience_s: float) -> int:
    """How many 200 commits cost, each drawn a moment before it comes."""
    server = Server()
    cluster: Cluster = server  # type: ignore[assignment]
    horizon = Horizon(Timestamps(cluster, server), server, patience_s=patience_s)

    async def run() -> None:
        for _ in range(200):
            assert await horizon.reaches(server.draw())

    asyncio.run(run())
    return server.asked


def test_commits_wait_a_moment_rather_than_cost_a_question_each() -> None:
    assert questions(patience_s=0.0) > 40
    assert questions(patience_s=0.002) < 5


class CountedCluster(FileCluster):
    """A cluster in a directory that counts how often it draws a timestamp."""

    asked = 0

    def tso(self) -> Tso:
        self.asked += 1
        return super().tso()


def test_a_cluster_on_this_machine_is_hardly_asked_about_timestamps_of_the_moment(tmp_path: Path) -> None:
    clock = Server()
    ours = CountedCluster(tmp_path, clock=clock)
    theirs = FileCluster(tmp_path, clock=clock)
    horizon = Horizon(Timestamps(ours, clock), clock, is_past=ours.is_past)

    async def run() -> None:
        for _ in range(200):
            assert await horizon.reaches(theirs.tso())
        assert ours.asked == 0  # what was drawn is known to have been drawn
        for _ in range(1000):  # a client that takes the time of day: 0.3 ms each
            assert await horizon.reaches(compose(int(clock.monotonic() * 1000)) - 1)
        assert ours.asked <= 5
        asked = ours.asked
        assert not await horizon.reaches(compose(int(clock.moment * 1000) + 110))
        assert ours.asked > asked

    asyncio.run(run())


def test_what_is_past_is_not_taken_for_what_the_cluster_said() -> None:
    """A past of this machine's clock is true now; should the clock go back, it must not stay believed."""
    server, answers = Server(), [True, False]
    cluster: Cluster = server  # type: ignore[assignment]
    horizon = Horizon(Timestamps(cluster, server), server, is_past=lambda _ts: answers.pop(0))
    assert horizon.covers(compose(1_000_050))
    assert not horizon.covers(compose(1_000_050))
    assert server.asked == 0


def test_no_more_of_the_future_is_believed_than_a_start_tolerates() -> None:
    """A Pump does not start above the cluster's clock by more than this (`pump_service.process.app`)."""
    assert PAST_AHEAD_MS <= BELIEVED_S * 1000


def test_a_timestamp_from_the_future_is_asked_about_and_refused() -> None:
    server = Server()
    cluster: Cluster = server  # type: ignore[assignment]
    horizon = Horizon(Timestamps(cluster, server), server, patience_s=0.002)

    async def run() -> None:
        now = server.draw()
        assert await horizon.reaches(now)
        asked = server.asked
        assert not await horizon.reaches(now + compose(60_000))
        assert server.asked > asked

    asyncio.run(run())


def test_a_commit_that_has_its_turn_when_a_question_has_just_ended_asks_another() -> None:
    class Late(Server):
        looks = 0
        begin = staticmethod(lambda: None)

        def monotonic(self) -> float:
            self.looks += 1
            assert self.looks < 10_000, "it looks for ever"
            begin, self.begin = self.begin, lambda: None
            begin()
            return super().monotonic()

    server = Late()
    cluster: Cluster = server  # type: ignore[assignment]
    timestamps = Timestamps(cluster, server)
    horizon = Horizon(timestamps, server, patience_s=0.002)
    answers: list[asyncio.Task[bool]] = []

    async def commit() -> bool:
        server.sleep(0.2)  # the answer had to wait: drawn that much later, and come before it was heard
        return await horizon.reaches(server.draw())

    async def run() -> None:
        # The question looks at the clock in its last step: what begins there has its turn before its end is told.
        server.begin = lambda: answers.append(asyncio.create_task(commit()))
        await timestamps.current()
        assert await answers[0]

    asyncio.run(asyncio.wait_for(run(), 20))
    assert server.asked == 2


def test_a_clock_that_stands_still_is_not_believed_to_have_gone_far() -> None:
    server = Server()
    cluster: Cluster = server  # type: ignore[assignment]
    horizon = Horizon(Timestamps(cluster, server), server)

    async def run() -> None:
        server.last = compose(int((server.moment + 3600) * 1000))  # it is ahead of the time of day, and waits for it
        for _ in range(20):
            assert await horizon.reaches(server.draw())
            server.sleep(0.13)
            # Made up, and above what the cluster gives out for an hour to come.
            assert not await horizon.reaches(server.last + compose(110))

    asyncio.run(run())
