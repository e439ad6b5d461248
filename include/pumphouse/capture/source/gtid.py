"""GTIDs of MariaDB (``0-1-42``: domain, server, number) and MySQL (``uuid:42``), and sets of them.

A MariaDB's position is the last GTID of each domain, and stands for everything before it there. A MySQL's is intervals
of numbers for each server's UUID, and for each tag there (MySQL Reference Manual, "GTID Sets").
"""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from pumphouse.errors import UsageError

_MARIADB = re.compile(r"(\d{1,10})-(\d{1,10})-(\d{1,20})")
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_INTERVAL = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?")


class Flavor(StrEnum):
    """Whose binlog."""

    MARIADB = "mariadb"
    MYSQL = "mysql"


Intervals = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class GtidSet:
    """A set of GTIDs; make it by `parse`.

    Attributes:
        flavor: whose.
        last: MariaDB: domain -> (server id, number).
        done: MySQL: ``uuid`` or ``uuid:tag`` -> intervals (first, last), ascending, with holes between.
    """

    flavor: Flavor
    last: Mapping[int, tuple[int, int]]
    done: Mapping[str, Intervals]

    @classmethod
    def parse(cls, text: str, flavor: Flavor) -> Self:
        """Read what a server prints, or a person types.

        Raises:
            UsageError: it is none.
        """
        parts = [each.strip() for each in text.replace("\n", "").split(",") if each.strip()]
        last: dict[int, tuple[int, int]] = {}
        done: dict[str, Intervals] = {}
        for part in parts:
            if flavor is Flavor.MARIADB:
                match = _MARIADB.fullmatch(part)
                if match is None:
                    raise _no_gtids(text, "0-1-42")
                domain, server, number = map(int, match.groups())
                if last.get(domain, (0, -1))[1] < number:
                    last[domain] = (server, number)
            else:
                for name, interval in _mysql(text, part):
                    done[name] = _joined([*done.get(name, ()), interval])
        return cls(flavor, last, done)

    def __str__(self) -> str:
        if self.flavor is Flavor.MARIADB:
            return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in sorted(self.last.items()))
        return ",".join(f"{name}:{':'.join(map(_printed, found))}" for name, found in sorted(self.done.items()))

    def __bool__(self) -> bool:
        return bool(self.last or self.done)

    def __contains__(self, gtid: object) -> bool:
        if not isinstance(gtid, str):
            return False
        if self.flavor is Flavor.MARIADB:
            domain, _, number = map(int, gtid.split("-"))
            return self.last.get(domain, (0, 0))[1] >= number
        name, _, text = gtid.lower().rpartition(":")
        number = int(text)
        return any(low <= number <= high for low, high in self.done.get(name, ()))

    def plus(self, *gtids: str) -> GtidSet:
        """With more, in the order in which they were committed."""
        if self.flavor is Flavor.MARIADB:
            latest = {}
            for each in gtids:
                domain, server, number = each.split("-")
                latest[domain] = server, number
            found = {int(domain): (int(server), int(number)) for domain, (server, number) in latest.items()}
            return GtidSet(self.flavor, {**self.last, **found}, {})
        numbers: dict[str, list[int]] = {}
        for each in gtids:
            name, _, text = each.rpartition(":")
            numbers.setdefault(name.lower(), []).append(int(text))
        done = {name: _with(self.done.get(name, ()), found) for name, found in numbers.items()}
        return GtidSet(self.flavor, {}, {**self.done, **done})

    def out_of_order(self, gtids: Iterable[str]) -> str | None:
        """The first of those that follow whose number does not ascend in its domain: a MariaDB's set cannot have it."""
        found = dict(self.last)
        for each in gtids if self.flavor is Flavor.MARIADB else ():
            domain, server, number = map(int, each.split("-"))
            if number <= found.get(domain, (0, -1))[1]:
                return each
            found[domain] = server, number
        return None

    def covers(self, other: GtidSet) -> bool:
        """Whether everything of the other is in this one."""
        if self.flavor is Flavor.MARIADB:
            return all(self.last.get(domain, (0, 0))[1] >= number for domain, (_, number) in other.last.items())
        return all(
            any(low <= first and end <= high for low, high in self.done.get(name, ()))
            for name, found in other.done.items()
            for first, end in found
        )

    def lacking(self, other: GtidSet) -> GtidSet:
        """What of the other is not in this one; of a MariaDB's domains the last one.

        A number that two servers gave is not the same transaction: where the ends of a domain say so, it is lacking.
        """
        if self.flavor is Flavor.MARIADB:
            strange = {
                domain: (server, number)
                for domain, (server, number) in other.last.items()
                if number > self.last.get(domain, (0, 0))[1]
                or (number == self.last[domain][1] and server != self.last[domain][0])
            }
            return GtidSet(self.flavor, strange, {})
        gone = {name: _without(found, self.done.get(name, ())) for name, found in other.done.items()}
        return GtidSet(self.flavor, {}, {name: found for name, found in gone.items() if found})

    def encoded(self) -> bytes:
        """A MySQL's set as COM_BINLOG_DUMP_GTID has it: counts and numbers, little endian; intervals end behind.

        Where there is a tag, the count says so at both of its ends, and each UUID has one behind it, with its length;
        a MySQL from before 8.3 knows neither (``encode_nsids_format`` in its sql/rpl_gtid_set.cc).
        """
        tagged = any(":" in name for name in self.done)
        out = bytearray(struct.pack("<Q", 1 << 56 | len(self.done) << 8 | 1 if tagged else len(self.done)))
        for name, found in sorted(self.done.items()):
            server, _, tag = name.partition(":")
            out += uuid.UUID(server).bytes
            if tagged:
                out += bytes((2 * len(tag),)) + tag.encode()
            out += struct.pack("<Q", len(found))
            for low, high in found:
                out += struct.pack("<QQ", low, high + 1)
        return bytes(out)


def _no_gtids(text: str, example: str) -> UsageError:
    return UsageError(f"{text[:80]!r} is no set of GTIDs", hint=f"it looks like {example}")


def _mysql(text: str, part: str) -> list[tuple[str, tuple[int, int]]]:
    """What stands at one UUID: ``UUID:1-3:7:tag:1-2``, numbers behind a tag are of that tag."""
    server, *words = (each.strip().lower() for each in part.split(":"))
    if not _UUID.fullmatch(server):
        raise _no_gtids(text, "UUID:1-42")
    name, found = server, []
    for word in words:
        if _TAG.fullmatch(word):
            name = f"{server}:{word}"
        else:
            found.append((name, _interval(text, word)))
    if not found or _TAG.fullmatch(words[-1]):
        raise _no_gtids(text, "UUID:1-42")
    return found


def _interval(text: str, part: str) -> tuple[int, int]:
    match = _INTERVAL.fullmatch(part)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 0 < low <= high:
        raise _no_gtids(text, "UUID:1-42")
    return low, high


def _printed(interval: tuple[int, int]) -> str:
    low, high = interval
    return str(low) if low == high else f"{low}-{high}"


def _with(found: Intervals, numbers: list[int]) -> Intervals:
    """With numbers in the order of their commits, which a replica may take in another one than the primary gave."""
    row = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    more = [(numbers[0], numbers[-1])] if row else [(each, each) for each in numbers]
    return _joined([*found, *more])


def _without(found: Intervals, taken: Intervals) -> Intervals:
    out = []
    for first, end in found:
        low = first
        for begin, last in taken:
            if last < low or begin > end:
                continue
            if begin > low:
                out.append((low, begin - 1))
            low = last + 1
        if low <= end:
            out.append((low, end))
    return tuple(out)


def _joined(found: list[tuple[int, int]]) -> Intervals:
    out: list[tuple[int, int]] = []
    for low, high in sorted(found):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return tuple(out)
