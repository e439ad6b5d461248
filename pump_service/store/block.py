"""Records of the value log as columns: what writer, chaser, recovery and indexer hand to each other.

Rows are in the order of the value log. No row has a Python object; the payloads stay where they are, in a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, overload

import numpy as np
from numpy.typing import NDArray

from pump_service.store import frame
from pumphouse.model.position import Pointer

U8 = NDArray[np.uint8]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


class Entry(NamedTuple):
    """One record of the value log by itself."""

    tp: int
    start_ts: int
    commit_ts: int
    fid: int
    offset: int
    size: int  # bytes of the payload; the record is 16 longer

    @property
    def end(self) -> int:
        """Offset behind the record."""
        return self.offset + frame.HEADER_BYTES + self.size


@dataclass(slots=True, eq=False)  # not frozen: that sets each field by a call, and there is one of these a group
class Block:
    """n records, one after the other in the value log. All columns have length n and are not changed any more.

    It can be read as a sequence of entries as well, for tests and rare paths.
    """

    fid: I32
    offset: I64  # of the record, that is of its header
    size: I64  # bytes of the payload
    tp: U8  # a type above 255 is kept as 255
    start_ts: I64
    commit_ts: I64
    ddl_job_id: I64  # 0 = no DDL
    key_at: I64  # prewrite_key inside the payload
    key_size: I64  # 0 = there is none

    @classmethod
    def empty(cls) -> Self:
        """No records."""
        return cls.zeros(0)

    @classmethod
    def zeros(cls, n: int) -> Self:
        """Columns of zeros, to be filled by a kernel."""
        wide = np.zeros((7, n), np.int64)
        return cls(
            fid=np.zeros(n, np.int32), offset=wide[0], size=wide[1], tp=np.zeros(n, np.uint8), start_ts=wide[2],
            commit_ts=wide[3], ddl_job_id=wide[4], key_at=wide[5], key_size=wide[6],
        )  # fmt: skip

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Self:
        """From entries. Keys and DDL jobs do not come along."""
        block = cls.zeros(len(entries))
        for at, entry in enumerate(entries):
            block.tp[at] = min(entry.tp, 255)
            block.start_ts[at], block.commit_ts[at] = entry.start_ts, entry.commit_ts
            block.fid[at], block.offset[at], block.size[at] = entry.fid, entry.offset, entry.size
        return block

    @classmethod
    def concat(cls, blocks: Sequence[Self]) -> Self:
        """One block of several that follow each other."""
        if len(blocks) == 1:
            return blocks[0]
        return cls(*(np.concatenate([column(block) for block in blocks]) for column in _COLUMNS))

    def __len__(self) -> int:
        return len(self.offset)

    @overload
    def __getitem__(self, at: int) -> Entry: ...

    @overload
    def __getitem__(self, at: slice) -> Block: ...

    def __getitem__(self, at: int | slice) -> Entry | Block:
        if isinstance(at, slice):
            return Block(*(column(self)[at] for column in _COLUMNS))
        return Entry(
            int(self.tp[at]), int(self.start_ts[at]), int(self.commit_ts[at]), int(self.fid[at]),
            int(self.offset[at]), int(self.size[at]),
        )  # fmt: skip

    def __iter__(self) -> Iterator[Entry]:
        columns = (self.tp, self.start_ts, self.commit_ts, self.fid, self.offset, self.size)
        return map(Entry._make, zip(*(c.tolist() for c in columns), strict=True))

    @property
    def first(self) -> Pointer:
        """Pointer of the first record; there must be one."""
        return Pointer(int(self.fid[0]), int(self.offset[0]))

    @property
    def last(self) -> Pointer:
        """Pointer of the last record; there must be one."""
        return Pointer(int(self.fid[-1]), int(self.offset[-1]))

    @property
    def end(self) -> Pointer:
        """Behind the last record; there must be one."""
        return Pointer(int(self.fid[-1]), int(self.offset[-1]) + frame.HEADER_BYTES + int(self.size[-1]))


def _column(name: str) -> Any:
    def get(block: Block) -> Any:
        return getattr(block, name)

    return get


_COLUMNS = [_column(name) for name in Block.__slots__]
