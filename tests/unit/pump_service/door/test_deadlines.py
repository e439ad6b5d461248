"""The wheel of deadlines: never early, in order, and nothing kept of what has ended."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from pump_service.door.deadlines import Deadlines


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
        assert wheel._timer is None  # nothing runs where nothing waits

    asyncio.run(test())


def test_far_deadlines_cost_no_more_than_near_ones_when_a_process_was_stopped_for_long() -> None:
    async def test() -> None:
        wheel = Deadlines(asyncio.get_running_loop())
        timed = Timed(wheel)
        wheel.add(1e12, timed)
        bucket = wheel.add(asyncio.get_running_loop().time(), timed)
        wheel._seen = -(1 << 40)  # as after an eternity
        wheel._tick()
        while bucket in wheel._buckets:
            await asyncio.sleep(0.01)
        assert len(timed.fired) == 1
        assert len(wheel) == 1
        wheel.close()
        assert len(wheel) == 0

    asyncio.run(test())


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
