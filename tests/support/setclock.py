"""Clocks that a test moves."""

from __future__ import annotations

from pumphouse.clock import SystemClock


class SetClock:
    """`pumphouse.clock.Clock` that stands still until it is told: whoever sleeps moves it on."""

    def __init__(self, now: float = 1000.0) -> None:
        self.value = now

    def now(self) -> float:
        return self.value

    def monotonic(self) -> float:
        return self.value

    def sleep(self, seconds: float) -> None:
        self.value += seconds


class QuickClock(SystemClock):
    """The machine's, for parts that really wait: sleeps take a hundredth; it can be put ahead, or run faster."""

    def __init__(self, *, today: float | None = None, pace: int = 1) -> None:
        self.pace = pace  # of `monotonic`
        self.today = today  # seconds since the epoch; None = the machine's
        self.ahead = 0.0

    def now(self) -> float:
        return (super().now() if self.today is None else self.today) + self.ahead

    def monotonic(self) -> float:
        return super().monotonic() * self.pace + self.ahead

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds / 100)
