"""Calls that a kernel took (`lean`), of one socket read or several, as columns until they are handed over.

A read costs a call of the kernel and no array of its own: its calls are added to columns that all connections share.
Usually what was gathered goes to one handler together, and the columns are its requests as they are.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pump_service.door.group import Requests
from pump_service.door.http2 import lean
from pump_service.door.http2.lean import COLUMNS, END, GIVEN, SIZES, STARTS, TABLE, TIMEOUTS, take_calls

_ROOM = 4096  # calls, at least


class Run:
    """Calls that came one behind the other on one connection."""

    __slots__ = ("_begin", "chunk", "first", "gathered", "message_bytes", "soonest", "stream_ids")

    def __init__(
        self, gathered: Gathered, first: int, stream_ids: list[int], chunk: bytes, begin: int, message_bytes: int,
        soonest: int,
    ) -> None:  # fmt: skip
        self.gathered = gathered
        self.first = first  # row
        self.stream_ids = stream_ids
        self.message_bytes = message_bytes
        self.soonest = soonest  # timeout in nanoseconds, below 0 when there is none
        self.chunk = chunk  # what was read; nothing once it was handed over
        self._begin = begin  # of the chunk, among all bytes that were gathered

    def _rows(self) -> NDArray[np.int64]:
        return self.gathered.columns[:, self.first : self.first + len(self.stream_ids)]

    def requests(self) -> Requests:
        """Their messages, without those of other runs; once, when the columns are there."""
        rows = self._rows()
        data = np.frombuffer(self.chunk, np.uint8)
        self.chunk = b""
        return Requests(data, rows[STARTS] - self._begin, rows[SIZES], self.message_bytes)

    def deadlines(self, began: float) -> list[float]:
        """Of each call, when their time runs from ``began``; infinity is none."""
        return [math.inf if each < 0 else began + each / 1e9 for each in self._rows()[TIMEOUTS].tolist()]


class Gathered:
    """What runs that follow each other have in common."""

    __slots__ = ("columns",)

    columns: NDArray[np.int64]  # when all of them are there


class Runs:
    """The columns of a server."""

    def __init__(self, streams: int) -> None:
        """``streams``: of one connection, at most."""
        self._room = max(streams, _ROOM)
        self._columns = np.empty((COLUMNS, self._room), np.int64)
        self._table = np.zeros(TABLE, np.int64)
        self._gathered = Gathered()
        self._runs: list[Run] = []  # all of it: so many calls and bytes
        self._calls = 0
        self._bytes = 0

    def take(self, data: bytes, at: int, last: int, room: int, most: int, block: bytes) -> tuple[Run, int, int] | None:
        """Calls from ``at`` on as `take_calls` finds them: the run, where it ends, and its bytes of DATA frames."""
        if self._calls + room > self._room:
            self._cut()
        first, begin = self._calls, self._bytes
        table = self._table
        table[:GIVEN] = at, last, room, most, first, begin
        count = take_calls(np.frombuffer(data, np.uint8), np.frombuffer(block, np.uint8), self._columns, table)
        if not count:
            return None
        end, taken, soonest = table[END:].tolist()
        chunk = data[at:end]  # no copy where it is all of it
        self._calls = stop = first + count
        self._bytes = begin + end - at
        ids = self._columns[lean.IDS, first:stop].tolist()
        run = Run(self._gathered, first, ids, chunk, begin, taken - 5 * count, soonest)
        self._runs.append(run)
        return run, end, taken

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
