"""The one thread that writes the value log: group commit, answers after the sync, then the hand-over to the index.

Whatever waits goes into one write and one fdatasync (row P3). An answer leaves only after that. The thread also decides
what a failure means: no space is a state that ends by itself; a failed sync, or any other failed write, ends writing in
this process for good, because what the medium holds is unknown from then on (row P15).
"""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from include.clock import Clock
from include.errors import BinlogError, PumpReadOnly, WriterFailed
from include.model.position import Pointer
from pump_service.store.block import Entry
from pump_service.store.disk import DiskGuard
from pump_service.store.logfile import SyncFailed
from pump_service.store.valuelog import ValueLog

log = structlog.get_logger(__name__)

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
SAVE_SUMMARY_EVERY = 64 << 20

Status = BinlogError | None
Done = Callable[[list[Status]], None]


@dataclass(frozen=True, slots=True)
class Item:
    """One binlog to be stored. ``payload`` is the serialized Binlog with all always-emitted fields, as it is kept."""

    payload: bytes
    tp: int
    start_ts: int
    commit_ts: int
    prewrite_key: bytes = b""


class HandOver(Protocol):
    """What comes behind the writer."""

    def hand_over(self, entries: Sequence[Entry]) -> None:
        """Take durable records, in order."""
        ...


@dataclass(slots=True)
class _Request:
    items: Sequence[Item]
    done: Done
    bytes: int
    own: bool


class Writer:
    """Queue and thread."""

    def __init__(
        self, *, valuelog: ValueLog, guard: DiskGuard, next_stage: HandOver, clock: Clock, group_bytes: int
    ) -> None:
        self._valuelog = valuelog
        self._guard = guard
        self._next = next_stage
        self._clock = clock
        self._group_bytes = group_bytes
        self._queue: deque[_Request] = deque()
        self._waiting = threading.Condition()
        self._stopping = False
        self._unsaved = 0
        self.lock = threading.Lock()  # held while a group is written and handed over
        self.backlog_bytes = 0
        self.failed: WriterFailed | None = None
        self.refused = 0
        self.groups = 0
        self.prewrites = 0  # written ones
        self.records = 0
        self._thread = threading.Thread(target=self._run, name="pump-writer", daemon=True)
        self.on_fault: Callable[[BaseException], None] = lambda _error: None
        self.on_written: Callable[[], None] = lambda: None  # after each group of which something was written

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write what is queued, then end."""
        with self._waiting:
            self._stopping = True
            self._waiting.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, items: Sequence[Item], done: Done, *, own: bool = False) -> None:
        """Queue items; never blocks. ``done`` gets one status an item, from the writer thread.

        ``own``: outcomes that the store settles. They may use the bookkeeping's reserve: a prewrite without an outcome
        on file keeps every file behind it, and then a full disk would stay full.
        """
        size = sum(len(item.payload) for item in items)
        with self._waiting:
            if self._stopping:
                stopped = WriterFailed("the store is closing", hint="send it to another Pump")
            else:
                self._queue.append(_Request(items, done, size, own))
                self.backlog_bytes += size
                self._waiting.notify()
                return
        done([stopped] * len(items))

    def _run(self) -> None:
        while True:
            with self._waiting:
                self._waiting.wait_for(lambda: self._queue or self._stopping)
                if not self._queue:
                    return
                group: list[_Request] = []
                size = 0
                while self._queue and (not group or size + self._queue[0].bytes <= self._group_bytes):
                    request = self._queue.popleft()
                    group.append(request)
                    size += request.bytes
                self.backlog_bytes -= size
            try:
                self._write_group(group)
            except BaseException as error:
                # A bug, not a disk: fail like a disk that cannot be trusted.
                log.exception("writer_stopped")
                self._fail(error)
                self.on_fault(error)

    def _write_group(self, group: list[_Request]) -> None:
        with self.lock:
            items = [item for request in group for item in request.items]
            statuses: list[Status] = [None] * len(items)
            entries: list[Entry] = []
            try:
                entries = self._store(items, statuses, [request.own for request in group for _ in request.items])
            finally:
                # Counted before the answer: who has it must find the prewrite among the unresolved.
                self.prewrites += sum(1 for entry in entries if entry.tp == 0)
                at = 0
                for request in group:
                    upto = at + len(request.items)
                    _answer(request.done, statuses[at:upto] if len(group) > 1 else statuses)
                    at = upto
            if entries:
                self._next.hand_over(entries)
        if entries:
            self.on_written()
        self.groups += 1
        self.records += len(entries)
        self._unsaved += sum(entry.size for entry in entries)
        if self._unsaved >= SAVE_SUMMARY_EVERY:
            self._unsaved = 0
            self._valuelog.save_active_summary()

    def _store(self, items: list[Item], statuses: list[Status], own: list[bool]) -> list[Entry]:
        """Append what may be appended; sets the statuses of the rest."""
        if self.failed is not None:
            statuses[:] = [self.failed] * len(items)
            return []
        left = list(range(len(items)))
        if self._guard.left_to_bookkeeping():
            left = self._only_own(left, own, statuses)
        if self._guard.read_only():
            left = self._refuse_prewrites(left, items, statuses)
        entries: list[Entry] = []
        for attempt in (1, 2, 3):
            if not left:
                break
            try:
                appended = self._valuelog.append([items[i] for i in left])
            except BaseException:
                for i in left:
                    statuses[i] = WriterFailed("the writer stopped on an unexpected error")
                raise
            entries += appended.entries
            left = left[len(appended.entries) :]
            if appended.error is None:
                break
            if not self._survives(appended.error):
                for i in left:
                    statuses[i] = self.failed
                break
            left = self._refuse_prewrites(left, items, statuses)
            left = self._after_full(attempt, left, own, statuses)
        return entries

    def _survives(self, error: OSError) -> bool:
        """Whether a failed append leaves the log as it was: only a full disk does, and only when the cut works."""
        if error.errno in _NO_SPACE and not isinstance(error, SyncFailed):
            try:
                self._valuelog.cut_partial()
            except OSError as second:
                self._fail(second)
            else:
                return True
        else:
            self._fail(error)
        return False

    def _fail(self, error: BaseException) -> None:
        if self.failed is None:
            path = str(getattr(error, "filename", None) or "value log")
            log.error("writer_failed", error=repr(error))
            self.failed = WriterFailed(
                f"writing failed and this process writes no more: {error!r}",
                hint="check the disk, then restart the Pump",
                path=path,
            )

    def _refuse_prewrites(self, which: Sequence[int], items: list[Item], statuses: list[Status]) -> list[int]:
        refused = [i for i in which if items[i].tp == 0]
        self._refuse(refused, statuses)
        gone = set(refused)
        return [i for i in which if i not in gone]

    def _after_full(self, attempt: int, left: list[int], own: list[bool], statuses: list[Status]) -> list[int]:
        """What may be tried once more on a full disk: first everything, then what may use the other reserve."""
        if attempt == 1 and self._guard.went_full():
            return left
        left = self._only_own(left, own, statuses)
        if attempt <= 2 and left and self._guard.make_room():
            return left
        self._refuse(left, statuses)
        return []

    def _only_own(self, which: Sequence[int], own: list[bool], statuses: list[Status]) -> list[int]:
        self._refuse([i for i in which if not own[i]], statuses)
        return [i for i in which if own[i]]

    def _refuse(self, which: Sequence[int], statuses: list[Status]) -> None:
        if not which:
            return
        self.refused += len(which)
        available = self._guard.available()
        error = PumpReadOnly(
            f"no available space, available: {available}, StopWriteAtAvailableSpace: {self._guard.stop_at}",
            available=available,
            limit=self._guard.stop_at,
        )
        for i in which:
            statuses[i] = error

    def synced_end(self) -> Pointer:
        """End of what is durable."""
        return self._valuelog.end


def _answer(done: Done, statuses: list[Status]) -> None:
    try:
        done(statuses)
    except Exception:
        # The caller's loop may be gone; the records are durable and the others must have their answers.
        log.exception("answer_failed")
