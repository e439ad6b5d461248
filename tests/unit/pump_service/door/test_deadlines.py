"""The wheel of deadlines: never early, in order, and nothing kept of what has ended."""

from __future__ import annotations

import asyncio
from typing import Any

from structlog.testing import capture_logs

from pump_service.door.deadlines import Deadlines
from tests.support.doorkit import still, stilled


class CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that knows what waits for a time."""

    def __init__(self) -> None:
        super().__init__()
        self.timers: list[asyncio.TimerHandle] = []

    def call_at(self, *given: Any, **named: Any) -> asyncio.TimerHandle:
        self.timers.append(super().call_at(*given, **named))
        return self.timers[-1]


class Timed:
    def __init__(self, wheel: Deadlines, again: list[float] | None = None) -> None:
        self.wheel, self.again, self.fired = wheel, again or [], []

    def expire(self, now: float) -> None:
        self.fired.append(now)
        if self.again:
            self.wheel.add(now + self.again.pop(), self)


def test_deadlines_are_met_late_by_a_tick_at_most_and_never_early() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        wheel = Deadlines(loop)
        began = loop.time()
        at = {delay: Timed(wheel) for delay in (0.0, 0.031, 0.05, 0.12)}
        for delay, timed in at.items():
            wheel.add(began + delay, timed)
        gone = Timed(wheel)
        wheel.discard(wheel.add(began + 0.05, gone), gone)
        twice = Timed(wheel, [0.0])
        wheel.add(began - 5, twice)
        while len(wheel):
            await asyncio.sleep(0.01)
        for delay, timed in at.items():
            assert len(timed.fired) == 1
            assert timed.fired[0] >= began + delay
        assert [t.fired[0] for t in at.values()] == sorted(t.fired[0] for t in at.values())
        assert not gone.fired
        assert len(twice.fired) == 2
        loop.timers.clear()
        await asyncio.sleep(0.1)
        assert len(loop.timers) == 1  # that of the sleep: nothing runs where nothing waits

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        runner.run(test())


@stilled
async def test_far_deadlines_cost_no_more_than_near_ones_when_a_process_was_stopped_for_long() -> None:
    wheel = Deadlines(still())
    timed = Timed(wheel)
    wheel.add(1e14, timed)
    wheel.add(still().time(), timed)
    still().now += 1e12  # an eternity
    while not timed.fired:
        await asyncio.sleep(0)
    assert len(timed.fired) == 1
    assert len(wheel) == 1
    wheel.close()
    assert len(wheel) == 0


def test_an_expiry_that_fails_delays_nobody_elses() -> None:
    async def test() -> None:
        wheel = Deadlines(asyncio.get_running_loop())

        class Failing(Timed):
            def expire(self, now: float) -> None:
                raise RuntimeError(f"at {now}")

        now = asyncio.get_running_loop().time()
        after = [Timed(wheel) for _ in range(8)]  # of a set: some come before the failing one
        for timed in (Failing(wheel), *after):
            wheel.add(now, timed)
        later = Timed(wheel)
        wheel.add(now + 0.06, later)
        with capture_logs() as logs:
            while len(wheel):
                await asyncio.sleep(0.01)
        assert [len(timed.fired) for timed in (*after, later)] == [1] * 9
        assert [entry["event"] for entry in logs] == ["expiry_failed"]

    asyncio.run(asyncio.wait_for(test(), 10))
