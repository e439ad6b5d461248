"""What a pull gives: committed binlogs as columns, their payloads in one buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pump_service.store import frame
from pump_service.store.pending import PendingCommit
from pumphouse.model.tso import Tso

IN_ORDER, ORPHAN, LATE = 0, 1, 2

I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Binlog:
    """One binlog as pullers see it."""

    commit_ts: int
    start_ts: int
    payload: bytes
    flag: int


@dataclass(frozen=True, slots=True, eq=False)
class Binlogs:
    """n binlogs in order (commit ts, start ts).

    Payload i is ``data[offsets[i] : offsets[i + 1]]``; offsets[0] is 0.
    """

    commit_ts: I64
    start_ts: I64
    ddl_job_id: I64  # 0 = no DDL
    flags: U8  # IN_ORDER, ORPHAN (the payload is the bare commit) or LATE
    data: U8
    offsets: I64  # n + 1

    @classmethod
    def of(cls, binlogs: Sequence[Binlog]) -> Binlogs:
        """From single ones: a range that needs a closer look, and tests."""
        offsets = np.zeros(len(binlogs) + 1, np.int64)
        np.cumsum([len(each.payload) for each in binlogs], out=offsets[1:])
        data = np.empty(int(offsets[-1]), np.uint8)
        data[:] = np.frombuffer(b"".join(each.payload for each in binlogs), np.uint8)
        return cls(
            commit_ts=np.array([each.commit_ts for each in binlogs], np.int64),
            start_ts=np.array([each.start_ts for each in binlogs], np.int64),
            ddl_job_id=np.array([frame.ddl_job_id(each.payload) for each in binlogs], np.int64),
            flags=np.array([each.flag for each in binlogs], np.uint8),
            data=data,
            offsets=offsets,
        )

    def __len__(self) -> int:
        return len(self.commit_ts)

    @property
    def size(self) -> int:
        """Bytes of all payloads."""
        return int(self.offsets[-1])

    def first(self, n: int) -> Binlogs:
        """The first n."""
        end = int(self.offsets[n])
        return Binlogs(
            self.commit_ts[:n], self.start_ts[:n], self.ddl_job_id[:n], self.flags[:n], self.data[:end],
            self.offsets[: n + 1],
        )  # fmt: skip


NONE = Binlogs.of([])


class LargeBinlog(Exception):
    """One binlog may need more memory than the caller gave."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


@dataclass(slots=True, kw_only=True)
class PullBatch:
    """Committed binlogs in (after, last].

    ``watermark`` is the Pump's when the pull began; the batch is complete up to ``last``, so the next pull goes on
    there. ``behind``: unaccepted late commits at or below ``after``, which this puller has passed already.
    """

    after: Tso
    last: Tso
    watermark: Tso
    binlogs: Binlogs = NONE
    behind: list[PendingCommit] = field(default_factory=list)
    more: bool = False  # it ended for its size, not at the watermark

    def cut(self, at: int) -> None:
        """Keep the first ``at`` binlogs, at least one."""
        self.binlogs = self.binlogs.first(at)
        self.last = Tso(int(self.binlogs.commit_ts[-1]))
        self.more = True

    def leave_out(self, rows: I64, which: Callable[[int, int], bool]) -> None:
        """Leave out those of some rows whose (start ts, commit ts) are ``which``."""
        binlogs = self.binlogs
        gone = {int(row) for row in rows if which(int(binlogs.start_ts[row]), int(binlogs.commit_ts[row]))}
        if gone:
            columns = zip(self.commit_list, self.start_list, self.payloads, self.flag_list, strict=True)
            self.binlogs = Binlogs.of([Binlog(*each) for row, each in enumerate(columns) if row not in gone])

    def __len__(self) -> int:
        return len(self.binlogs)

    @property
    def size(self) -> int:
        """Bytes of all payloads."""
        return self.binlogs.size

    # -- one by one, for tests and rare paths --------------------------------------------------------------------------

    @property
    def commit_list(self) -> list[int]:
        """Commit ts of each binlog."""
        return list(map(int, self.binlogs.commit_ts))

    @property
    def start_list(self) -> list[int]:
        """Start ts of each binlog."""
        return list(map(int, self.binlogs.start_ts))

    @property
    def flag_list(self) -> list[int]:
        """Flag of each binlog."""
        return list(map(int, self.binlogs.flags))

    @property
    def payloads(self) -> list[bytes]:
        """Payload of each binlog."""
        view, offsets = self.binlogs.data.data, self.binlogs.offsets.tolist()
        return [bytes(view[a:b]) for a, b in pairwise(offsets)]

    def rows(self) -> Iterator[tuple[int, int, bytes]]:
        """(start ts, commit ts, payload) of each binlog."""
        return zip(self.start_list, self.commit_list, self.payloads, strict=True)
