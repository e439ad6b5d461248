"""The key of a captured transaction: the source's GTID and clock, and what was decided with it (docs/formats.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

PREFIX = b"capture/"
# What a start brings into the history: no transaction of the source.
OF_A_START = "schema-"
_KEY = re.compile(rb"([^#/@]+)(?:[#/]\d+(?:/\d+)?)?@([0-9a-f]+)\.([0-9a-f]+)\.([0-9a-f]+)(?:\.([0-9a-f]{14}))?")
_MARIADB = re.compile(r"(\d{1,10})-\d{1,10}-(\d{1,20})")
_MYSQL = re.compile(r"([0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?::[a-z_][a-z0-9_]{0,31})?):(\d{1,19})")


def key_of(name: bytes, start_ts: int, first: int, before: int, schema: int, micros: int = 0) -> bytes:
    """A P's key without the capture's prefix: ``0-1-42@<group>.<before>.<schema>.<micros>``, numbers in hex.

    Args:
        name: the source's transaction, and where it has a statement, ``#``, which of its pieces, ``/`` and how many.
        start_ts: its own.
        first: the first start ts of its group; written as the distance.
        before: the start ts before it, in its group or of what was decided before, 0 = none; written as the distance.
        schema: number of the stored schema that holds once its group is decided.
        micros: the source's clock at its commit, in microseconds since 1970, which never goes back from key to key;
            0 = not known.
    """
    clock = b".%014x" % micros if micros else b""
    return b"%s@%x.%x.%x%s" % (name, start_ts - first, start_ts - before, schema, clock)


@dataclass(frozen=True, slots=True)
class CapturedKey:
    """What `key_of` was told: ``group`` and ``before`` are distances of start ts; ``transaction`` is without piece."""

    transaction: str
    group: int
    before: int
    schema: int
    micros: int

    @classmethod
    def read(cls, key: bytes) -> Self | None:
        """Of a key without the prefix; None for one of another form."""
        match = _KEY.fullmatch(key)
        if match is None:
            return None
        group, before, schema, micros = (int(each or b"0", 16) for each in match.groups()[1:])
        return cls(match[1].decode(), group, before, schema, micros)


def place_of(gtid: str) -> tuple[str, int] | None:
    """Where a GTID stands: a MariaDB's domain, or a MySQL's UUID and tag, with its number, which ascends there."""
    match = _MARIADB.fullmatch(gtid) or _MYSQL.fullmatch(gtid.lower())
    return None if match is None else (match[1], int(match[2]))
