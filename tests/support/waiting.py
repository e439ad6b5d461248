"""Waiting for what comes by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(look: Callable[[], T], *, within_s: float = 60.0, what: str = "") -> T:
    """What `look` says once it is truthy; AssertionError when that takes too long. It looks the more seldom, the longer it takes."""
    began = time.monotonic()
    while True:
        found = look()
        if found:
            return found
        waited = time.monotonic() - began
        if waited > within_s:
            raise AssertionError(f"not within {within_s} s: {what or look}")
        time.sleep(min(0.02 + waited / 20, 0.5))
