"""The store of a Pump: one data directory, one process. The door of this room.

`Store.open` recovers (`opening`) and starts the threads `writer`, `chaser` and `indexer`. `submit` takes binlogs,
`stream` serves pulls, `prewrites` are those without an outcome, `settling` writes what became of them where
nobody else does, `gc` collects.
<data_dir>/value and <data_dir>/kv are as the Go Pump has them, everything of ours lies in <data_dir>/pumphouse.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from pump_service.store import identity
from pump_service.store.batch import PullBatch
from pump_service.store.chaser import Chaser
from pump_service.store.disk import give_back_at_start, is_full
from pump_service.store.fs import REAL_FS, FileSystem
from pump_service.store.gc import Gc, GcReport
from pump_service.store.groups import Done, Status
from pump_service.store.index import IndexFailed
from pump_service.store.logfile import Stored
from pump_service.store.opening import Elsewhere, Opening
from pump_service.store.order import Unresolved
from pump_service.store.pending import PendingCommit
from pump_service.store.prewrites import OpenPrewrites
from pump_service.store.records import Item, Records
from pump_service.store.settling import Settling
from pump_service.store.stream import Stream
from pump_service.store.transactions import Transactions
from pump_service.store.writer import Writer
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import ConfigError, PumpReadOnly, WriterFailed
from pumphouse.model.node import PumpExtra
from pumphouse.model.position import Pointer
from pumphouse.model.tso import Tso
from pumphouse.settings import PumpSettings

__all__ = [
    "Elsewhere",
    "GcReport",
    "Item",
    "PendingCommit",
    "PullBatch",
    "Status",
    "Store",
    "StoreStatus",
    "Stored",
    "Unresolved",
]

log = structlog.get_logger(__name__)

_INDEX_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatus:
    """Numbers of one moment."""

    incarnation: str
    start_count: int
    watermark: Tso
    gc_point: Tso
    deletion_limit: Tso
    gc_held_by: list[str]
    unresolved: int
    oldest_unresolved: list[Unresolved]
    late: list[PendingCommit]
    orphans: list[PendingCommit]
    value_log_bytes: int
    value_log_files: int
    available_bytes: int
    read_only: bool
    writer_failed: bool
    sync_log: bool
    slow_mode: bool
    duplicate_commits: int
    index_failures: int
    queued_records: int
    backlog_bytes: int
    synced_end: Pointer


class Store:
    """Its parts, and what starts and ends them."""

    def __init__(
        self,
        settings: PumpSettings,
        opened: Opening,
        fs: FileSystem,
        clock: Clock,
        lock: int,
    ) -> None:
        self._settings = settings
        self._fs = fs
        self._clock = clock
        self._own = settings.data_dir / "pumphouse"
        self._lock_fd = lock
        self._closed = False
        self._closing = threading.Lock()
        self.fault: BaseException | None = None
        self._fault_listeners: list[Callable[[BaseException], None]] = []
        self._identity = opened.identity
        self._index, self._indexer, self._valuelog = opened.index, opened.indexer, opened.valuelog
        self._gc_state, self._pending = opened.gc, opened.pending
        self._guard, self._bookkeeping = opened.guard, opened.bookkeeping
        self._chaser = Chaser(
            valuelog=self._valuelog, queue=self._indexer.queue, clock=clock,
            threshold_s=settings.slow_chaser_threshold_s,
        )  # fmt: skip
        self._writer = Writer(
            valuelog=self._valuelog, guard=self._guard, next_stage=self._chaser, clock=clock,
            group_bytes=settings.group_commit_bytes,
        )  # fmt: skip
        self._chaser.write_lock = self._writer.lock
        self.stream = Stream(
            index=self._index, indexer=self._indexer, valuelog=self._valuelog, pending=self._pending, gc=opened.gc
        )
        self.prewrites = OpenPrewrites(writer=self._writer, indexer=self._indexer, valuelog=self._valuelog)
        self.transactions = Transactions(
            index=self._index, indexer=self._indexer, valuelog=self._valuelog, pending=self._pending,
            prewrites=self.prewrites, caught_up=self.wait_for_index,
        )  # fmt: skip
        self.settling = Settling(
            writer=self._writer, indexer=self._indexer, bookkeeping=self._bookkeeping, fs=fs, own=self._own, clock=clock
        )
        self.gc = Gc(
            state=opened.gc, index=self._index, indexer=self._indexer, valuelog=self._valuelog, pending=self._pending,
            collected=opened.collected, bookkeeping=self._bookkeeping, clock=clock,
        )  # fmt: skip
        for stage in (self._indexer, self._chaser, self._writer):
            stage.on_fault = self._faulted
            stage.start()

    # -- life ----------------------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        settings: PumpSettings,
        *,
        fs: FileSystem = REAL_FS,
        clock: Clock = SYSTEM_CLOCK,
        registered: PumpExtra | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> Store:
        """Open a data directory: recovery is done and threads run on return.

        ``registered`` is what the registry holds of this node: a value log that ends before the registered synced end
        of the same incarnation has lost answered binlogs, and the store takes a new incarnation. ``elsewhere`` is
        where what is registered runs at this moment, None = it does not. Where it does, such a directory is a copy;
        where it answers there, so is any of its incarnation.

        Raises ConfigError when another process has it, or has what this one is a copy of; BadRecord when bytes
        that may have been answered are damaged.
        """
        fs.make_dirs(settings.data_dir)
        lock = _lock(settings.data_dir / ".lock")
        try:
            try:
                return cls._opened(settings, fs, clock, lock, registered, elsewhere)
            except (OSError, IndexFailed) as error:
                if not is_full(error) or not give_back_at_start(fs, settings.data_dir / "pumphouse"):
                    raise
                log.warning("started_on_a_full_disk", error=str(error))
            return cls._opened(settings, fs, clock, lock, registered, elsewhere)
        except BaseException:
            os.close(lock)
            raise

    @classmethod
    def _opened(
        cls,
        settings: PumpSettings,
        fs: FileSystem,
        clock: Clock,
        lock: int,
        registered: PumpExtra | None,
        elsewhere: Elsewhere | None,
    ) -> Store:
        begun = clock.monotonic()
        store = cls(settings, Opening(settings, fs, clock, registered, elsewhere), fs, clock, lock)
        log.info(
            "store_opened", data_dir=str(settings.data_dir), incarnation=store.incarnation,
            start_count=store.start_count, watermark=store.watermark, unresolved=store.prewrites.count,
            value_log_end=store.synced_end, seconds=round(clock.monotonic() - begun, 3),
        )  # fmt: skip
        return store

    def _faulted(self, error: BaseException) -> None:
        self.fault = error
        for listener in self._fault_listeners:
            listener(error)

    def on_fault(self, listener: Callable[[BaseException], None]) -> None:
        """Call this when a stage of the store was stopped by an unexpected error; the process should stop then."""
        self._fault_listeners.append(listener)

    def close(self) -> None:
        """Write and index what is queued, persist positions, close files. A second call does nothing."""
        with self._closing:  # a second one comes back when the first is through
            if not self._closed:
                self._closed = True
                self.gc.end()
                self._close()

    def _close(self) -> None:
        self._writer.stop()
        self._chaser.stop()
        self._indexer.stop()
        failed = self._writer.failed is not None
        end = self._valuelog.end
        try:
            self._valuelog.close(footer=not failed)
            if not failed and self.fault is None:
                # A clean stop promises the index as well; the machine may go down right behind it.
                self._index.close_durably()
                clean = replace(self._identity, clean=True, end_fid=end.fid, end_offset=end.offset)
                identity.save(self._fs, self._own, clean)
        finally:
            self._index.close()
            os.close(self._lock_fd)

    # -- writing -------------------------------------------------------------------------------------------------------

    def submit(self, records: Records, done: Done, *, here: bool = False) -> None:
        """Store binlogs; never blocks. Arrays and buffer belong to the store until ``done`` is called.

        It is called once, by the thread that wrote, in this call only where the store is closing: None = all are
        durable, else a status a record: PumpReadOnly (prewrites on a full disk; anything when not even the reserve is
        left), WriterFailed. ``here``: the caller calls `write_here` next; the thread of the store may be quicker.
        """
        self._writer.submit(records, done, here=here)

    def write_here(self) -> None:
        """Write and answer what was submitted on this thread, where that is short: for an event loop."""
        self._writer.write_here()

    def publish_unpersisted(self, ts: int) -> bool:
        """Move the watermark by a fake that is on no file, when nothing can be written.

        False, and nothing happens, when the Pump can write or the index has not caught up; an unresolved prewrite
        holds it as it holds any fake. ``ts`` must be fresh.
        """
        if not (self.writer_error or self.read_only) or self._chaser.on or len(self._indexer.queue):
            return False
        # Behind everything that was written: the writer is idle or refuses, and the queue is first in, first out.
        if not self._writer.try_lock():
            return False
        try:
            self._indexer.queue.call(lambda: self._indexer.remember_fake(ts))
        finally:
            self._writer.lock.release()
        return True

    def refusal(self) -> PumpReadOnly | None:
        """Why prewrites are refused; None = they are not. The writer looks again; this spares it the work."""
        return self._guard.refusal() if self._guard.read_only() else None

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def incarnation(self) -> str:
        """Random id of the data directory's life."""
        return self._identity.incarnation

    @property
    def start_count(self) -> int:
        """How often this directory was opened."""
        return self._identity.start_count

    @property
    def watermark(self) -> Tso:
        """Everything with a commit ts at or below is in the stream already."""
        return self._indexer.watermark

    def on_watermark(self, listener: Callable[[], None]) -> None:
        """Call this, from a thread of the store, whenever the watermark moved. It must not block."""
        self._indexer.listen(listener)

    @property
    def gc_point(self) -> Tso:
        """G: the floor for pulls."""
        return self._gc_state.gc_point

    @property
    def deletion_limit(self) -> Tso:
        """D: below it files and keys may be gone."""
        return self._gc_state.deletion_limit

    @property
    def read_only(self) -> bool:
        """Whether prewrites are refused for want of space."""
        return self._guard.read_only()

    @property
    def writer_error(self) -> WriterFailed | None:
        """What ended writing in this process."""
        return self._writer.failed

    @property
    def synced_end(self) -> Pointer:
        """End of the durable value log; heartbeats register it."""
        return self._valuelog.end

    def wait_for_index(self) -> bool:
        """Wait until what was answered before this call is indexed, some seconds at most; whether it is, all of it.

        What the chaser has is not waited for.
        """
        with self._writer.lock:  # behind it the records of every answer are in the queue
            pass
        indexed = threading.Event()
        self._indexer.queue.call(indexed.set)
        return indexed.wait(_INDEX_WITHIN_S) and not self._chaser.on

    def late(self) -> list[PendingCommit]:
        """Late commits, accepted ones too."""
        return [item for item in self._pending.all() if item.late]

    def orphans(self) -> list[PendingCommit]:
        """Commits whose prewrite is on no file, accepted ones too."""
        return [item for item in self._pending.all() if item.orphan]

    def accept(self, start_ts: int, commit_ts: int, reason: str) -> None:
        """Accept a late or orphan commit by name. Raises UsageError when there is none."""
        self._bookkeeping(lambda: self._pending.accept(start_ts, commit_ts, reason, self._clock.now()))
        log.warning("commit_accepted", start_ts=start_ts, commit_ts=commit_ts, reason=reason)

    @property
    def value_log_bytes(self) -> int:
        """Bytes in all files of the value log."""
        return self._valuelog.bytes()

    def status(self, *, keys: bool = True) -> StoreStatus:
        """Numbers of this moment. With the keys of unresolved prewrites files are read: not on the event loop."""
        return StoreStatus(
            incarnation=self.incarnation,
            start_count=self.start_count,
            watermark=self.watermark,
            gc_point=self.gc_point,
            deletion_limit=self.deletion_limit,
            gc_held_by=list(self.gc.held_by),
            unresolved=self.prewrites.count,
            oldest_unresolved=self.prewrites.oldest(keys=keys),
            late=self.late(),
            orphans=self.orphans(),
            value_log_bytes=self.value_log_bytes,
            value_log_files=len(self._valuelog.files()),
            available_bytes=self._guard.available(),
            read_only=self.read_only,
            writer_failed=self.writer_error is not None,
            sync_log=self._settings.sync_log,
            slow_mode=self._chaser.on,
            duplicate_commits=self._indexer.duplicates,
            index_failures=self._bookkeeping.failures,
            queued_records=len(self._indexer.queue),
            backlog_bytes=self._valuelog.bytes_behind(self._indexer.indexed_end),
            synced_end=self.synced_end,
        )


def _lock(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise ConfigError(
            f"another process has {path.parent}",
            hint="one Pump a data directory: end that one, or give another --data-dir; "
            f"`fuser {shlex.quote(str(path.absolute()))}` names its process, on its host",
            path=str(path),
        ) from error
    return fd
