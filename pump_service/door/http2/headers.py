"""What the header blocks of a connection's requests mean."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from pump_service.door.http2.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, ConnectionFault
from pump_service.door.http2.table import FAULTS, MALFORMED, NO_TIMEOUT, TOO_LONG, Table, read_one

Field = tuple[bytes, bytes]
Fields = tuple[Field, ...]
H = TypeVar("H")

_KEPT = 256  # heads of a connection; a client uses a handful
_LARGEST_KEPT = 2048
_SIZES = struct.Struct(">II").unpack_from


class HeaderReader(Generic[H]):
    """Reads them over one dynamic table.

    Args:
        make: what a request's fields (without grpc-timeout) mean; called once for equal fields, the result is shared.
        most: RFC 9113, 6.5.2. Above it `make` gets the fields up to the one that is too much, for it to refuse; more
            than twice as much ends the connection.
        scratch: of the server (`table.scratch`).
    """

    def __init__(self, make: Callable[[Fields], H], most: int, scratch: NDArray[np.uint8]) -> None:
        self.table = Table()
        self._make = make
        self._most = most
        self._scratch = scratch
        self._heads: dict[bytes, H] = {}

    def read(self, block: bytes) -> tuple[H, float | None]:
        """Meaning and timeout in seconds (None = none, MALFORMED = nonsense) of a request's block."""
        section, timeout = self._section(block)
        return self.head(section), timeout_s(timeout)

    def head(self, section: bytes) -> H:
        """Meaning of a section that was read."""
        head = self._heads.get(section)
        if head is None:
            head = self._make(fields_of(section))
            if len(section) <= _LARGEST_KEPT:
                if len(self._heads) >= _KEPT:
                    self._heads.clear()
                self._heads[section] = head
        return head

    def fields(self, block: bytes) -> Fields:
        """Fields of any block: trailers, and blocks of streams that are gone, which still move the table."""
        return fields_of(self._section(block)[0])

    def _section(self, block: bytes) -> tuple[bytes, int]:
        table = self.table
        size, timeout, fault = read_one(
            np.frombuffer(block, np.uint8), table.arena, table.entries, table.numbers, self._scratch, self._most
        )
        refuse(fault)
        return self._scratch[:size].tobytes(), timeout


def refuse(fault: int) -> None:
    """Raise what a fault of `table.FAULTS` is for the connection: nobody knows the table behind it."""
    if fault:
        code = ENHANCE_YOUR_CALM if fault == TOO_LONG else COMPRESSION_ERROR
        raise ConnectionFault(code, f"header block: {FAULTS[fault]}")


def timeout_s(timeout_ns: int) -> float | None:
    """As `HeaderReader.read` says it."""
    return None if timeout_ns == NO_TIMEOUT else MALFORMED if timeout_ns == MALFORMED else timeout_ns / 1e9


def fields_of(section: bytes) -> Fields:
    """The fields that a section has (`table`)."""
    fields, at = [], 0
    while at < len(section):
        name, value = _SIZES(section, at)
        at += 8
        fields.append((section[at : at + name], section[at + name : at + name + value]))
        at += name + value
    return tuple(fields)
