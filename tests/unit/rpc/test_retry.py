"""Trying again, on a clock of the test."""

from __future__ import annotations

import pytest

from pumphouse.errors import BadBinlog, PumpUnavailable
from pumphouse.rpc.retry import RetryPolicy, retry


class FakeClock:
    def __init__(self) -> None:
        self.time = 0.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


def failing(times: int, error: Exception, clock: FakeClock, takes_s: float = 0.0):
    calls = 0

    def call() -> int:
        nonlocal calls
        calls += 1
        clock.time += takes_s
        if calls <= times:
            raise error
        return calls

    return call


def test_waits_grow_up_to_the_longest():
    clock = FakeClock()
    policy = RetryPolicy(interval_s=1, factor=2, longest_s=5, timeout_s=100)
    assert retry(failing(5, PumpUnavailable("x"), clock), policy, clock=clock) == 6
    assert clock.slept == [1, 2, 4, 5, 5]


def test_the_last_error_is_raised_when_time_is_up():
    clock = FakeClock()
    error = PumpUnavailable("x")
    with pytest.raises(PumpUnavailable) as raised:
        retry(failing(100, error, clock), RetryPolicy(interval_s=1, timeout_s=3), clock=clock)
    assert raised.value is error
    assert clock.slept == [1, 1, 1]


def test_a_slow_first_try_does_not_use_up_the_tries_of_the_others():
    clock = FakeClock()
    policy = RetryPolicy(interval_s=0.1, timeout_s=15, min_tries=3)
    assert retry(failing(2, PumpUnavailable("x"), clock, takes_s=15), policy, clock=clock) == 3


def test_what_is_not_worth_another_try_is_raised_at_once():
    clock = FakeClock()
    with pytest.raises(BadBinlog):
        retry(failing(1, BadBinlog("x"), clock), RetryPolicy(interval_s=1, timeout_s=3), clock=clock)
    assert clock.slept == []
