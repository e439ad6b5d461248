"""Which timestamps are believed without a question to the cluster."""

from __future__ import annotations

import asyncio

import pytest

from include.model.tso import Tso, compose
from include.registry.base import Cluster
from pump_service.horizon import Horizon, Timestamps

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
