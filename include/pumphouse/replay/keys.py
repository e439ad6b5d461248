"""When two values of a unique key are equal to a server, and so the key that changes conflict by (row L3).

Keys may be equal where the server tells them apart (that only costs parallelism), never the other way round.
"""

from __future__ import annotations

from collections.abc import Hashable
from decimal import Decimal
from enum import Enum, auto
from typing import Any

# One key for all rows of an index: what its values are equal by is not known here.
ANY: Hashable = "any"


class Equality(Enum):
    """How a server compares the values of a column."""

    EXACT = auto()
    PADDED = auto()  # without the spaces at the end
    COLLATED = auto()  # by a collation that takes different letters for equal
    NUMBER = auto()
    TIME = auto()
    UNKNOWN = auto()  # the value is not in a binlog (generated columns), or its collation has rules of its own


# Languages and character sets in whose collations case is not all that is equal in ASCII: i is y in Lithuanian and
# Latvian, i is j and u is v in Latin, ccs is cscs in Hungarian, y is ~ in GBK, m is n in macce.
_OWN_LETTERS = frozenset({"lithuanian", "lt", "latvian", "lv", "roman", "la", "hungarian", "hu"})
_OWN_CHARSETS = frozenset({"big5", "gb2312", "gbk", "geostd8", "macce", "swe7"})


def equality_of(collation: str | None) -> Equality:
    """Of a text column by its collation's name; None or binary: of bytes."""
    if not collation or collation == "binary" or collation.endswith("_nopad_bin"):
        return Equality.EXACT
    if collation.endswith("_bin"):
        return Equality.PADDED
    words = set(collation.split("_"))
    return Equality.UNKNOWN if words & (_OWN_LETTERS | _OWN_CHARSETS) else Equality.COLLATED


def comparable(value: Any, equality: Equality, length: int = -1) -> Hashable:
    """What two values have alike when they are equal; ANY where that cannot be told from this one.

    Args:
        value: not None.
        equality: how the column compares.
        length: of an index over a prefix: its characters, of bytes its bytes.
    """
    if equality is Equality.NUMBER:
        return Decimal(str(value)) if not isinstance(value, int) else value
    if equality is Equality.UNKNOWN:
        return ANY
    if equality is Equality.TIME:
        text = str(value)
        return text.rstrip("0").rstrip(".") if "." in text else text
    if not isinstance(value, bytes):
        value = str(value).encode()
    if length >= 0:
        # Characters, unless it is of bytes; a cut in bytes is never longer than one in characters.
        value = value[:length]
    if equality is Equality.EXACT:
        return bytes(value)
    if equality is Equality.COLLATED:
        # Of plain letters each collation makes upper case; nothing is known of the others.
        return value.rstrip(b" ").upper() if is_plain(value) else ANY
    return bytes(value).rstrip(b" ")


def is_plain(value: bytes) -> bool:
    """Whether it is printable ASCII."""
    return value.isascii() and all(byte >= 0x20 and byte != 0x7F for byte in value)
