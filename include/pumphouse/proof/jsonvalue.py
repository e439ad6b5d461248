"""JSON by value: one text for all JSON texts that say the same.

The order of names, blanks, and ``3`` against ``3.0`` do not matter. Digits and names that an object has twice do.
"""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from typing import Any

_DIGITS = 17  # tell all doubles apart
_DIGITS_64 = 20


def canonical_json(text: bytes) -> bytes:
    """One text, JSON again, for all JSON texts of equal value; a text that is none stands for itself.

    A MariaDB keeps every digit and every name that an object has twice, where a TiDB and a MySQL have doubles and names
    once: those texts are other values.
    """
    try:
        value = json.loads(text, parse_int=_number, parse_float=_number, object_pairs_hook=_Object)
        return _text(value).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return b"no JSON: " + text


class _Object(list[tuple[str, Any]]):
    """Names and values, names that are there twice included."""


class _Number(str):
    """One text for all numbers of equal value."""

    __slots__ = ()


def _number(text: str) -> _Number:
    try:
        value = Decimal(text)
    except InvalidOperation:  # an exponent that is out of all bounds
        return _Number(text)
    digits = _digits(value)[1]
    is_integer = not any(mark in text for mark in ".eE") and -(1 << 63) <= int(text) < 1 << 64
    if not is_integer and len(digits) <= _DIGITS:
        double = float(text)
        if Decimal(f"{double:.{len(digits) - 1}e}") == value:
            value = Decimal(repr(double))  # the text was rounded from this double
    sign, digits, exponent = _digits(value)
    if digits == "0":
        return _Number("0")
    if 0 <= exponent < _DIGITS_64 and -(1 << 63) <= value < 1 << 64:
        return _Number(f"{sign}{digits}{'0' * exponent}")
    return _Number(f"{sign}{digits}e{exponent}")


def _digits(value: Decimal) -> tuple[str, str, int]:
    """Sign, digits without zeros at either end ('0' = none), exponent of the last digit."""
    sign, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    short = text.rstrip("0")
    return "-" * sign, short or "0", int(exponent) + len(text) - len(short)


def _text(value: Any) -> str:
    if isinstance(value, _Number):
        return value
    if isinstance(value, _Object):
        pairs = sorted(value, key=lambda pair: pair[0])  # of equal names each keeps its place
        return "{" + ",".join(f"{json.dumps(name)}:{_text(item)}" for name, item in pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    return json.dumps(value)
