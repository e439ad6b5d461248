"""What stands for kill -9 in the process of a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pumphouse.loader.target import TargetConnection


class Killed(BaseException):
    """Nothing below catches it, and a connection that it falls on is gone."""


def calls_until_killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of calls of the target until one falls on its connection: set its only item; 0 = none."""
    left = [0]

    def deadly(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: TargetConnection, *args: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                self._connection._force_close()
                raise Killed
            return original(self, *args)

        return call

    for name in ("execute", "load_local"):
        monkeypatch.setattr(TargetConnection, name, deadly(getattr(TargetConnection, name)))
    return left
