"""Waiting for what comes by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(look: Callable[[], T], *, within_s: float = 15.0, what: str = "") -> T:
    """What `look` says once it is truthy; AssertionError when that takes too long."""
    until = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > until:
            raise AssertionError(f"not within {within_s} s: {what or look}")
        time.sleep(0.02)
