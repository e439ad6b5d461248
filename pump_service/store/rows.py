"""Index entries as rows of bytes, made by kernels: key ``ts:`` and u64be, value u32le file id and i64le offset."""

# mypy: disable-error-code="arg-type, assignment, return-value"
# (inside kernels there is one kind of integer)

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from include.codec.jit import Bytes, kernel, primitive
from include.model.position import Pointer

KEY_BYTES = 11
VALUE_BYTES = 12


@primitive
def put_row(keys: Bytes, values: Bytes, row: int, ts: int, fid: int, offset: int) -> None:
    """Write one entry; the first three bytes of the key are there already."""
    for byte in range(8):
        keys[row, 3 + byte] = np.uint8(ts >> (56 - 8 * byte) & 0xFF)
        values[row, 4 + byte] = np.uint8(offset >> 8 * byte & 0xFF)
    for byte in range(4):
        values[row, byte] = np.uint8(fid >> 8 * byte & 0xFF)


class Puts:
    """Entries for the index, in order: of several with one timestamp the last counts."""

    def __init__(self, room: int) -> None:
        self.keys = np.empty((room, KEY_BYTES), np.uint8)
        self.keys[:, :3] = np.frombuffer(b"ts:", np.uint8)
        self.values = np.empty((room, VALUE_BYTES), np.uint8)
        self.count = 0

    def add(self, ts: int, pointer: Pointer) -> None:
        """One entry."""
        put_one(self.keys, self.values, self.count, ts, pointer.fid, pointer.offset)
        self.count += 1

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        """Key and value of each."""
        keys = self.keys[: self.count].reshape(-1).view(f"V{KEY_BYTES}").tolist()
        values = self.values[: self.count].reshape(-1).view(f"V{VALUE_BYTES}").tolist()
        return zip(keys, values, strict=True)


@kernel
def put_one(keys: Bytes, values: Bytes, row: int, ts: int, fid: int, offset: int) -> None:
    """`put_row`, for one."""
    put_row(keys, values, row, ts, fid, offset)
