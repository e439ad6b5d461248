"""Calls that the kernel took (`lean`), of one socket read or several, as columns until they are handed over.

A read costs a call of the kernel and no array of its own: its calls are added to columns that all connections share.
Usually what was gathered goes to one handler together, and the columns are its requests as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pump_service.door.group import Requests
from pump_service.door.http2 import lean
from pump_service.door.http2.lean import COLUMNS, CREDITS, END, GIVEN, IDS, SIZES, STARTS, TIMEOUTS, take_calls
from pump_service.door.http2.table import Table, scratch
from pump_service.door.limits import Limits

_ROOM = 4096  # calls, at least


class Run:
    """Calls that came one behind the other on one connection."""

    __slots__ = ("_begin", "began", "chunk", "first", "gathered", "message_bytes", "soonest", "stream_ids")

    def __init__(
        self, gathered: Gathered, first: int, stream_ids: list[int], chunk: bytes, begin: int, message_bytes: int,
        soonest: int, began: float,
    ) -> None:  # fmt: skip
        self.gathered = gathered
        self.first = first  # row
        self.stream_ids = stream_ids
        self.message_bytes = message_bytes
        self.soonest = soonest  # timeout in nanoseconds, below 0 when there is none
        self.chunk = chunk  # what was read; nothing once it was handed over
        self.began = began  # when they came
        self._begin = begin  # of the chunk, among all bytes that were gathered

    def _rows(self) -> NDArray[np.int64]:
        return self.gathered.columns[:, self.first : self.first + len(self.stream_ids)]

    def requests(self) -> Requests:
        """Their messages, without those of other runs; once, when the columns are there."""
        rows = self._rows()
        data = np.frombuffer(self.chunk, np.uint8)
        self.chunk = b""
        return Requests(data, rows[STARTS] - self._begin, rows[SIZES], self.message_bytes)

    def deadlines(self) -> list[float]:
        """Of each call; infinity is none."""
        return [math.inf if each < 0 else self.began + each / 1e9 for each in self._rows()[TIMEOUTS].tolist()]

    def credits(self) -> dict[int, int]:
        """What the peer takes of answers beyond its initial window, by stream id."""
        return dict(zip(self.stream_ids, self._rows()[CREDITS].tolist(), strict=True))


class Gathered:
    """What runs that follow each other have in common."""

    __slots__ = ("columns",)

    columns: NDArray[np.int64]  # when all of them are there


@dataclass(slots=True)
class Reading:
    """How far the kernel came in a read."""

    run: Run | None  # the calls that it took
    end: int  # where it stopped
    taken: int  # bytes of DATA frames
    credit: int  # what the peer takes more of the connection
    stop: int  # why: `lean.FRAME`, `OTHER`, `BROKEN`
    section: int  # of the call where it stopped: size of its section in `Runs.scratch`
    next: int  # where it ends
    more: int  # what the peer takes more of the connection inside of it
    fault: int


class Runs:
    """The columns of a server, and the kernel's room for what it reads."""

    def __init__(self, limits: Limits) -> None:
        self._room = max(limits.streams, _ROOM)
        # Bytes of a frame, of a message that is taken here, of a header list.
        self._limits = limits.frame, min(limits.frame - 5, limits.message), limits.header_list
        self.scratch = scratch(max(limits.header_block, limits.frame), limits.header_list)
        self._columns = np.empty((COLUMNS, self._room), np.int64)
        self._table = np.zeros(lean.TABLE, np.int64)
        self._gathered = Gathered()
        self._runs: list[Run] = []  # all of it: so many calls and bytes
        self._calls = 0
        self._bytes = 0

    def take(
        self, data: bytes, at: int, table: Table, like: NDArray[np.uint8], *, last: int, room: int, window: int,
        now: float,
    ) -> Reading:  # fmt: skip
        """Calls from ``at`` on as `take_calls` finds them."""
        if self._calls + room > self._room:
            self._cut()
        first, begin = self._calls, self._bytes
        numbers = self._table
        numbers[:GIVEN] = at, last, room, *self._limits, window, first, begin
        count = take_calls(
            np.frombuffer(data, np.uint8), like, table.arena, table.entries, table.numbers, self.scratch,
            self._columns, numbers,
        )  # fmt: skip
        end, taken, soonest, *rest = numbers[END:].tolist()
        run = self._run(data[at:end], count, taken - 5 * count, soonest, now) if count else None
        return Reading(run, end, taken, *rest)

    def other(self) -> tuple[int, int, int]:
        """Stream id, bytes of the message, and timeout in nanoseconds of the call that has another section."""
        row = self._columns[:, self._calls]
        return int(row[IDS]), int(row[SIZES]), int(row[TIMEOUTS])

    def take_other(self, data: bytes, found: Reading, now: float) -> Run:
        """It is taken all the same; before anything else is."""
        _, size, timeout = self.other()
        return self._run(data[found.end : found.next], 1, size, timeout, now)

    def _run(self, chunk: bytes, count: int, message_bytes: int, soonest: int, now: float) -> Run:
        """``chunk`` is no copy where it is all of a read."""
        first, begin = self._calls, self._bytes
        self._calls = stop = first + count
        self._bytes = begin + len(chunk)
        ids = self._columns[IDS, first:stop].tolist()
        run = Run(self._gathered, first, ids, chunk, begin, message_bytes, soonest, now)
        self._runs.append(run)
        return run

    def requests(self, parts: list[Requests | Run]) -> Requests:
        """One behind the other; of runs, once. Where they are all that was gathered, the columns are theirs."""
        runs = self._runs
        if runs:
            columns = self._cut()
            if runs == parts:
                data = np.frombuffer(b"".join([run.chunk for run in runs]), np.uint8)
                message_bytes = 0
                for run in runs:
                    message_bytes += run.message_bytes
                    run.chunk = b""
                return Requests.joined([Requests(data, columns[STARTS], columns[SIZES], message_bytes)])
        return Requests.joined([part.requests() if isinstance(part, Run) else part for part in parts])

    def _cut(self) -> NDArray[np.int64]:
        """What comes from now on is gathered elsewhere; the columns of what was."""
        columns = self._gathered.columns = self._columns[:, : self._calls].copy()
        self._gathered = Gathered()
        self._runs = []
        self._calls = self._bytes = 0
        return columns
