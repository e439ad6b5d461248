"""Where a record lies in a value log."""

from __future__ import annotations

import struct
from typing import NamedTuple, Self

_POINTER = struct.Struct("<Iq")


class Pointer(NamedTuple):
    """File id and byte offset of a record; 12 bytes, u32le and i64le, as the Go Pump stores it."""

    fid: int
    offset: int

    def pack(self) -> bytes:
        """The 12 bytes."""
        return _POINTER.pack(self.fid, self.offset)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Read the 12 bytes."""
        return cls(*_POINTER.unpack(data))


ZERO_POINTER = Pointer(0, 0)
