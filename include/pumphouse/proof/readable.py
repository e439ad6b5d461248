"""What people read of a value: of the archive and of a server, each by its own code, so that equal ones look equal.

ENUM and SET are the texts of their elements, and a number where there is no element, as ENUM's 0. BIT is a number.
"""

from __future__ import annotations

from typing import Any

from pumphouse.codec.datum import Kind, kind_of
from pumphouse.codec.reading import named
from pumphouse.loader.columns import shown
from pumphouse.model.table import FieldType

_AS_PRINTED = frozenset({"decimal", "date", "datetime", "timestamp", "time"})
# What a server sends of these says little, or not what an image has.
CODED = frozenset({"enum", "set", "bit"})


def of_archive(value: Any, type_: FieldType) -> str:
    """A value of an image that is not NULL."""
    return shown(named(value, type_) if kind_of(type_) in (Kind.ENUM, Kind.SET) else value)


def of_server(name: str, kind: str, *, zerofill: bool = False) -> str:
    """SQL of a column's value, of which `shown` makes the same. ``name``: quoted; ``kind``: as the server calls it."""
    number = f"CAST({name} AS UNSIGNED)"
    if kind == "enum":
        return f"IF({number} = 0, '0', {name})"
    if kind == "bit":
        return number
    if kind in ("float", "double"):  # a FLOAT is printed with six digits
        return f"CAST({name} AS DOUBLE)"
    if kind in _AS_PRINTED:
        return f"CAST({name}{' + 0' * zerofill} AS CHAR)"
    return name
