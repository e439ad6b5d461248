"""JSON that others wrote, read strictly: a value of another type or size is refused, never converted.

Python's own reading takes ``1e400`` for infinity, ``NaN`` for a number, ``true`` for 1 and a text of digits for an
integer; then ``int`` raises OverflowError, or a kernel does, far from where the value was read.
"""

from __future__ import annotations

import json
import math
from typing import Any

from pumphouse.errors import BinlogError

MIN_INT64, MAX_INT64, MAX_UINT64 = -1 << 63, (1 << 63) - 1, (1 << 64) - 1
# What comes of reading or using what others wrote: a loop that must go on survives these, and logs them.
SURVIVED: tuple[type[Exception], ...] = (
    BinlogError, OSError, ArithmeticError, ValueError, TypeError, LookupError, AttributeError, RecursionError,
)  # fmt: skip


def loads(text: bytes | str) -> Any:
    """A JSON text; ValueError where it is none, or has a number that a double does not hold, or is nested too deep."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def integer(value: Any, low: int = 0, high: int = MAX_INT64) -> int:
    """An integer of a range; ValueError."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{value!r:.60} is no integer from {low} to {high}")
    return value


def number(value: Any) -> float:
    """A finite number; ValueError."""
    if type(value) not in (int, float) or abs(value) > float(MAX_INT64) or not math.isfinite(value):
        raise ValueError(f"{value!r:.60} is no number of this size")
    return float(value)


def text(value: Any) -> str:
    """A text; ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.60} is no text")  # noqa: TRY004 - one class for whatever cannot be read
    return value


def boolean(value: Any) -> bool:
    """True or false; ValueError."""
    if not isinstance(value, bool):
        raise ValueError(f"{value!r:.60} is neither true nor false")  # noqa: TRY004 - as above
    return value


def array(value: Any) -> list[Any]:
    """A list; ValueError."""
    if not isinstance(value, list):
        raise ValueError(f"{value!r:.60} is no list")  # noqa: TRY004 - as above
    return value


def mapping(value: Any) -> dict[str, Any]:
    """An object of JSON; ValueError."""
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.60} is no object")  # noqa: TRY004 - as above
    return value


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits:.60} is too large")
    return value
