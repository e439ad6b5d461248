"""Requests to write and their groups: what is small, who is durable, who is refused, who was told."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from pump_service.store.block import I64
from pump_service.store.frame import HEADER_BYTES
from pump_service.store.framing import LONGEST_TAIL
from pump_service.store.records import Records
from pumphouse.errors import BinlogError, WriterFailed

log = structlog.get_logger(__name__)

# Bytes of a group for which a change of thread is dearer than that an event loop stands still meanwhile.
SMALL_BYTES = 512 << 10
# And the requests, each of which costs more than its rows.
SMALL_REQUESTS = 64

Status = BinlogError | None
# None = every record is durable, else one status a record.
Done = Callable[[list[Status] | None], None]
_NOT_WRITTEN = WriterFailed("the writer ended before this was written", hint="restart the Pump")


@dataclass(slots=True)
class Request:
    """Records that were submitted together, and who is told of them, once."""

    records: Records
    done: Done
    own: bool = False
    durable: bool = False  # all of it
    statuses: list[Status] | None = None  # where not all rows went the same way: None = durable

    @property
    def size(self) -> int:
        """Bytes of the log, at most."""
        return self.records.bytes + (HEADER_BYTES + LONGEST_TAIL) * len(self.records)

    def set(self, rows: I64, status: Status) -> None:
        """What became of some rows."""
        if status is None and len(rows) == len(self.records):
            self.durable = True
            return
        if self.statuses is None:
            self.statuses = [_NOT_WRITTEN] * len(self.records)
        for row in rows.tolist():
            self.statuses[row] = status

    def outcome(self) -> list[Status] | None:
        """Durable is only what an append reported: a row of which nothing was said was not written."""
        if self.durable or not len(self.records):
            return None
        if self.statuses is None:
            return [_NOT_WRITTEN] * len(self.records)
        return self.statuses if any(status is not None for status in self.statuses) else None


Group = list[Request]
# Rows of requests that are still to be written, in order.
Left = list[tuple[Request, I64]]


class RequestQueue:
    """What waits to be written: any thread puts, who has the write lock takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: deque[Request] = deque()
        self.closed = False
        self._put = self._taken = 0

    @property
    def bytes(self) -> int:
        """What waits, in bytes of the log at most."""
        return self._put - self._taken

    def is_small(self, most: int) -> bool:
        """Whether an event loop may write all of it, as one group of so many bytes at most."""
        return len(self._requests) <= SMALL_REQUESTS and self.bytes <= min(SMALL_BYTES, most)

    def put(self, request: Request) -> bool:
        """Queue it; False, and it is not, when nothing more is taken."""
        with self._lock:
            if not self.closed:
                self._put += request.size
                self._requests.append(request)
            return not self.closed

    def close(self) -> None:
        """Take nothing more; what is queued stays."""
        with self._lock:
            self.closed = True

    def take(self, most: int) -> Group:
        """Everything that waits, in order, up to so many bytes; one request at least where there is one."""
        group: Group = []
        size = 0
        while self._requests and (not group or size + self._requests[0].size <= most):
            group.append(self._requests.popleft())
            size += group[-1].size
        self._taken += size
        return group


def rows_of(left: Left) -> list[Records]:
    """The records that are left."""
    return [
        request.records if len(rows) == len(request.records) else request.records.take(rows) for request, rows in left
    ]


def written(left: Left, count: int) -> Left:
    """The first ``count`` rows are durable; returns what is left."""
    rest = []
    for request, rows in left:
        if count:
            request.set(rows[:count], None)
        if count < len(rows):
            rest.append((request, rows[count:]))
        count = max(count - len(rows), 0)
    return rest


def refuse(which: Left, error: BinlogError) -> None:
    """These are not written."""
    for request, rows in which:
        request.set(rows, error)


def answer(group: Group) -> None:
    """Tell everybody."""
    failed: list[BaseException] = []
    for request in group:
        try:
            request.done(request.outcome())
        except BaseException as error:  # noqa: BLE001
            # The caller's loop may be gone; the others must have their answers, whatever becomes of the log.
            failed.append(error)
    for each in failed:
        log.error("answer_failed", exc_info=each)
