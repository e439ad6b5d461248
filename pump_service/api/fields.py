"""Fields of a protobuf message that stays where it is: read in pieces, so that any size costs the same memory."""

# mypy: disable-error-code="arg-type, assignment, return-value"
# (inside kernels there is one kind of integer)

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from pumphouse.codec.jit import Bytes, Ints, kernel
from pumphouse.codec.wire import read_field

# Tag and length, or tag and varint, of any field.
_HEAD = 20
_WINDOW = 64 << 10
_PIECE = 1 << 20
# Higher numbers than any field of our messages count together, as 0.
NUMBERS = 16


class Source(Protocol):
    """Bytes that are somewhere."""

    @property
    def size(self) -> int:
        """How many."""
        ...

    def read(self, at: int, size: int) -> bytes:
        """A part of them; both ends lie inside."""
        ...


@dataclass(frozen=True, slots=True)
class InMemory:
    """A source in memory."""

    data: bytes

    @property
    def size(self) -> int:
        """How many bytes."""
        return len(self.data)

    def read(self, at: int, size: int) -> bytes:
        """A part of them."""
        return self.data[at : at + size]


class Field(NamedTuple):
    """One field: of a varint, ``at`` and ``length`` are those of the varint itself."""

    number: int
    wire: int
    at: int
    length: int
    after: int  # where the next one begins


class Tally(NamedTuple):
    """Fields that were passed over, by number, and where the bytes stopped to parse (-1: nowhere)."""

    counts: Ints
    sizes: Ints
    damaged_at: int


@kernel
def count_fields(data: Bytes, end: int, counts: Ints, sizes: Ints) -> tuple[int, bool]:
    """Count the fields of a message of ``end`` bytes that begins with ``data``, as far as their heads are in there.

    Returns where the first one begins that was not counted, and whether it parses as far as can be seen.
    """
    have = len(data)
    pos = 0
    while pos < end and (pos + _HEAD <= have or have >= end):
        number, _, _, length, after = read_field(data, pos, end)
        if after < 0:
            return pos, False
        slot = number if number < NUMBERS else 0
        counts[slot] += 1
        sizes[slot] += length
        pos = after
    return pos, True


class Fields:
    """Walks over a source. Positions are those of the source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._window = b""
        self._begin = 0

    def bytes(self, at: int, size: int) -> bytes:
        """A small part of the source."""
        if at < self._begin or at + size > self._begin + len(self._window):
            self._window = self._source.read(at, min(max(size, _WINDOW), self._source.size - at))
            self._begin = at
        return self._window[at - self._begin : at - self._begin + size]

    def field(self, at: int, end: int) -> Field | None:
        """The field at a position of a message that ends at ``end``; None where the bytes do not parse."""
        head = np.frombuffer(self.bytes(at, min(_HEAD, end - at)), np.uint8)
        number, wire, start, length, after = read_field(head, 0, end - at)
        return None if after < 0 else Field(number, wire, at + start, length, at + after)

    def tally(self, at: int, end: int) -> Tally:
        """Count the fields from a position on to the end of their message; the GIL is free meanwhile."""
        tally = Tally(np.zeros(NUMBERS, np.int64), np.zeros(NUMBERS, np.int64), -1)
        while at < end:
            piece = np.frombuffer(self._source.read(at, min(_PIECE, end - at)), np.uint8)
            passed, parses = count_fields(piece, end - at, tally.counts, tally.sizes)
            at += passed
            if not parses:
                return tally._replace(damaged_at=at)
        return tally
