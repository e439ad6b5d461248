"""Trying again: the policy (numbers), the state of one loop, and the loop. Time is injected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import BinlogError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Waits grow from ``interval_s`` by ``factor`` up to ``longest_s``.

    A loop ends when it is older than ``timeout_s`` *and* has been tried ``min_tries`` times, so that a slow first try
    does not keep the others from their turn.
    """

    interval_s: float
    timeout_s: float
    factor: float = 1.0
    longest_s: float = 10.0
    min_tries: int = 1


class RetryState:
    """One loop's tries and age."""

    def __init__(self, policy: RetryPolicy, clock: Clock = SYSTEM_CLOCK) -> None:
        self.policy = policy
        self.tries = 0
        self._clock = clock
        self._started = clock.monotonic()
        self._wait = policy.interval_s

    def another(self) -> bool:
        """Count a try that failed; sleep and say True if there is to be another."""
        self.tries += 1
        if self._clock.monotonic() - self._started >= self.policy.timeout_s and self.tries >= self.policy.min_tries:
            return False
        self._clock.sleep(self._wait)
        self._wait = min(self._wait * self.policy.factor, self.policy.longest_s)
        return True


def retry(
    call: Callable[[], T],
    policy: RetryPolicy,
    *,
    worth: Callable[[BinlogError], bool] = lambda error: error.retryable,
    clock: Clock = SYSTEM_CLOCK,
) -> T:
    """Call until it succeeds, an error is not worth another try, or the policy ends; the last error is raised."""
    state = RetryState(policy, clock)
    while True:
        try:
            return call()
        except BinlogError as error:
            if not worth(error) or not state.another():
                raise
