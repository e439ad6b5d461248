"""A clock that stands still until it is told."""

from __future__ import annotations


class SetClock:
    """`pumphouse.clock.Clock`: whoever sleeps moves it on."""

    def __init__(self, now: float = 1000.0) -> None:
        self.value = now

    def now(self) -> float:
        return self.value

    def monotonic(self) -> float:
        return self.value

    def sleep(self, seconds: float) -> None:
        self.value += seconds
