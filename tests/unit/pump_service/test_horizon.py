"""Which timestamps are believed without a question to the cluster."""

from __future__ import annotations

import asyncio

import pytest

from include.clock import SYSTEM_CLOCK
from include.model.tso import Tso, compose
from include.registry.base import Cluster
from pump_service.horizon import Horizon

pytestmark = pytest.mark.row("P1")


class Server:
    """A clock that moves in steps of 50 ms, as PD's, and counts the questions."""

    def __init__(self) -> None:
        self.asked = 0
        self.last = 0

    def draw(self) -> int:
        self.last = max(self.last + 1, compose(int(SYSTEM_CLOCK.now() * 20) * 50))
        return self.last

    def tso(self) -> Tso:
        self.asked += 1
        return Tso(self.draw())


def commits(horizon: Horizon, server: Server) -> int:
    async def run() -> int:
        until = SYSTEM_CLOCK.monotonic() + 0.5
        count = 0
        while SYSTEM_CLOCK.monotonic() < until:
            assert await horizon.reaches(server.draw())
            count += 1
        return count

    return asyncio.run(run())


def test_commits_wait_a_moment_rather_than_cost_a_question_each() -> None:
    eager, patient = Server(), Server()
    impatient: Cluster = eager  # type: ignore[assignment]
    waiting: Cluster = patient  # type: ignore[assignment]
    assert commits(Horizon(impatient, SYSTEM_CLOCK), eager) > eager.asked
    assert commits(Horizon(waiting, SYSTEM_CLOCK, patience_s=0.002), patient) > patient.asked
    assert patient.asked < eager.asked / 5


def test_a_timestamp_from_the_future_is_asked_about_and_refused() -> None:
    server = Server()
    cluster: Cluster = server  # type: ignore[assignment]
    horizon = Horizon(cluster, SYSTEM_CLOCK, patience_s=0.002)

    async def run() -> None:
        now = server.draw()
        assert await horizon.reaches(now)
        asked = server.asked
        assert not await horizon.reaches(now + compose(60_000))
        assert server.asked > asked

    asyncio.run(run())
