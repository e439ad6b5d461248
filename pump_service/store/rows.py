"""Index entries as rows of bytes, made by kernels: key ``ts:`` and u64be, value u32le file id and i64le offset."""

# mypy: disable-error-code="arg-type, assignment, return-value"
# (inside kernels there is one kind of integer)

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from pumphouse.codec.jit import Bytes, kernel, primitive
from pumphouse.model.position import Pointer

_ENTRY = struct.Struct("11s12s")  # key, value


@primitive
def put_row(rows: Bytes, row: int, ts: int, fid: int, offset: int) -> None:
    """Write one entry; the first three bytes of the key are there already."""
    for byte in range(8):
        rows[row, 3 + byte] = np.uint8(ts >> (56 - 8 * byte) & 0xFF)
        rows[row, 15 + byte] = np.uint8(offset >> 8 * byte & 0xFF)
    for byte in range(4):
        rows[row, 11 + byte] = np.uint8(fid >> 8 * byte & 0xFF)


class Puts:
    """Entries for the index, in order: of several with one timestamp the last counts."""

    def __init__(self, room: int) -> None:
        self.rows = np.empty((room, _ENTRY.size), np.uint8)
        self.rows[:, :3] = np.frombuffer(b"ts:", np.uint8)
        self.count = 0

    def add(self, ts: int, pointer: Pointer) -> None:
        """One entry."""
        put_one(self.rows, self.count, ts, pointer.fid, pointer.offset)
        self.count += 1

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        """Key and value of each."""
        return _ENTRY.iter_unpack(memoryview(self.rows[: self.count].reshape(-1)))


@kernel
def put_one(rows: Bytes, row: int, ts: int, fid: int, offset: int) -> None:
    """`put_row`, for one."""
    put_row(rows, row, ts, fid, offset)
