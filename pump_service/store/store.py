"""The store of a Pump: value log, index, order of the stream, GC. The door of this room.

`Store.open` recovers and starts the threads; `submit` takes binlogs; `pull` serves the stream. <data_dir>/value and
<data_dir>/kv are as the Go Pump has them, everything of ours lies in <data_dir>/pumphouse.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

import numpy as np
import structlog

from pump_service.intake.parse import Columns
from pump_service.store import frame, gc, identity
from pump_service.store.ahead import one_ahead
from pump_service.store.batch import ORPHAN, PullBatch
from pump_service.store.block import I64, U8
from pump_service.store.chaser import Chaser
from pump_service.store.collected import HELD_BY, YOUNGER_THAN_MS, CollectedCommits
from pump_service.store.disk import DiskGuard, give_back_at_start, is_full
from pump_service.store.fs import REAL_FS, FileSystem, Syncs
from pump_service.store.gc import GcReport, GcState
from pump_service.store.index import Index, IndexFailed, key_ts, tuning_of, unpack_pointer
from pump_service.store.indexer import Indexer
from pump_service.store.logfile import LogFile, Stored
from pump_service.store.pairing import Unresolved
from pump_service.store.pending import PendingCommit, PendingCommits
from pump_service.store.reader import Reader
from pump_service.store.records import Item, Records
from pump_service.store.skips import load_skipped
from pump_service.store.summary import NEVER, lowest_open_start
from pump_service.store.valuelog import ValueLog
from pump_service.store.writer import BlockDone, Done, Status, Writer
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.codec.jit import frozen
from pumphouse.errors import (
    BadRecord,
    ConfigError,
    LateCommit,
    OrphanCommit,
    PositionCollected,
    PumpReadOnly,
    WriterFailed,
)
from pumphouse.model.node import PumpExtra
from pumphouse.model.position import ZERO_POINTER, Pointer
from pumphouse.model.tso import MAX_TSO, Tso, compose
from pumphouse.proto import binlog_pb2
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
T = TypeVar("T")

_DELETE_KEYS_AT_ONCE = 1024
_PERSIST_WITHIN_S = 5.0
_KEYS_KEPT = 1024
_LEAST_FOR_INDEX = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """Where what is registered under our node id runs at this moment."""

    addr: str
    answers: bool  # somebody took a connection there; else it cannot be told


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
    """One data directory, one process."""

    def __init__(self, settings: PumpSettings, fs: FileSystem, clock: Clock) -> None:
        self._settings = settings
        self._fs = fs
        self._clock = clock
        self._own = settings.data_dir / "pumphouse"
        self._lock_fd = -1
        self._gc_running = threading.Lock()
        self._gc_held_by: list[str] = []
        self._closed = False
        self._closing = threading.Lock()
        self._keys: dict[Pointer, bytes] = {}  # prewrite keys that were read lately
        self._unwritten: list[Callable[[], None]] = []
        self.fault: BaseException | None = None
        self._fault_listeners: list[Callable[[BaseException], None]] = []

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
        store = cls(settings, fs, clock)
        store._lock_fd = lock
        store._recover(registered, elsewhere)
        return store

    def _recover(self, registered: PumpExtra | None, elsewhere: Elsewhere | None) -> None:
        settings, fs = self._settings, self._fs
        begun = self._clock.monotonic()
        fs.make_dirs(self._own)
        previous = identity.load(fs, self._own)
        self._gc = GcState(fs, self._own)
        self._gc.load()
        self._pending = PendingCommits(fs, self._own)
        self._pending.load()
        self._collected = CollectedCommits(fs, self._own)
        self._collected.load()
        self._index = Index.open(settings.data_dir / "kv", tuning_of(settings))
        try:
            self._valuelog = ValueLog(
                fs, settings.data_dir / "value", self._own / "files",
                limit=settings.value_log_file_bytes, sync=settings.sync_log, skipped=load_skipped(fs, self._own),
            )  # fmt: skip
            self._open_value_log(previous, registered, elsewhere)
        except BaseException:
            self._index.close()
            raise
        self._reader = Reader(self._index, self._valuelog, self._pending)
        self._start_threads()
        log.info(
            "store_opened", data_dir=str(settings.data_dir), incarnation=self.incarnation,
            start_count=self.start_count, watermark=self.watermark, unresolved=self.unresolved_count,
            value_log_end=self.synced_end, seconds=round(self._clock.monotonic() - begun, 3),
        )  # fmt: skip

    def _open_value_log(
        self, previous: identity.Identity | None, registered: PumpExtra | None, elsewhere: Elsewhere | None
    ) -> None:
        if previous is None:
            # A data directory of the Go Pump brings its own floor. Before the identity, which says that it was taken.
            floor = Tso(self._index.gc_ts())
            self._gc.save(
                max(floor, self._gc.gc_point), max(floor, self._gc.deletion_limit), self._gc.judged_end
            )  # fmt: skip
        head = self._index.head()
        self._valuelog.open(
            synced_floor=head,
            gaps_upto=int(MAX_TSO) if previous is None else previous.taken_over_fid,
            clean=previous is not None and previous.clean,
        )
        end = self._valuelog.end
        if elsewhere is not None:
            if elsewhere.answers and (
                previous is None or registered is None or registered.incarnation != previous.incarnation
            ):
                self._refuse_other(previous, registered, elsewhere)
            if previous is not None and registered is not None:
                self._refuse_copy(previous, registered, elsewhere)
        if self._gc.judged_end > end:
            # Nothing said so yet, or the log went back: what is written from here on has not been judged.
            self._gc.save(self.gc_point, self.deletion_limit, end)
        # Pointers into what is no longer there, or into other records at the same place. A replay brings no head until
        # its end: of one that was killed the identity tells, and that the index has timestamps without a head.
        went_back = previous is not None and end < previous.end
        ahead = went_back or (self._index.has_head() and head >= end)
        unfinished = self._is_index_unfinished()
        # LevelDB's log is not synced: of a machine that went down it may have a hole, behind which it reads on.
        holes = identity.machine_went_down(previous)
        self._identity = identity.begin(
            previous,
            sync_log=self._settings.sync_log,
            lost=self._what_was_lost(previous, registered, ahead=ahead),
            last_fid=end.fid if self._valuelog.files() else -1,
        )
        # Before the reset, which takes away what tells of a loss. Until the index is whole again the boot id stays as
        # it was found: a start that is killed in between is followed by another that mistrusts the index. So long the
        # largest end of the value log stands there too: whatever is in the index points below it.
        boot = previous.boot_id if holes and previous is not None else self._identity.boot_id
        upto = previous.end if went_back and previous is not None else end
        replaying = replace(self._identity, boot_id=boot, end_fid=upto.fid, end_offset=upto.offset)
        identity.save(self._fs, self._own, replaying)
        if ahead or holes or unfinished:
            reason = "the machine went down" if holes else "building it was not finished"
            self._reset_index("it points behind the value log" if ahead else reason)
        try:
            self._make_indexer()
            self._replay(min(self._index.head(), self._index.handle()))
        except (BadRecord, IndexFailed) as error:
            if is_full(error) or not self._index.has_head():
                raise
            # The index does not fit this value log, or does not read. If the log itself is damaged, the second reading
            # says so.
            self._reset_index(str(error))
            self._make_indexer()
            self._replay(ZERO_POINTER)
        # Before anything is accepted: a start that did not get here has answered nothing.
        identity.save(self._fs, self._own, self._identity)

    def _refuse_other(
        self, previous: identity.Identity | None, registered: PumpExtra | None, elsewhere: Elsewhere
    ) -> None:
        """ConfigError: one node id belongs to one data directory, and that of another one runs elsewhere."""
        mine = "new" if previous is None else f"incarnation {previous.incarnation}"
        theirs = "a Go Pump" if registered is None else f"incarnation {registered.incarnation}"
        raise ConfigError(
            f"a Pump runs at {elsewhere.addr} under this node id, and {self._settings.data_dir} is not its data "
            f"directory: this one is {mine}, that one is {theirs}",
            hint="which is the right one? Is it that one: leave it running, and give a further Pump an empty directory "
            "and a node id of its own. Is it this one: stop that one, keep its directory, then start this one. Is that "
            "one dead: start this one again when its heartbeat is 10 s old",
            found=elsewhere.addr,
        )

    def _refuse_copy(self, previous: identity.Identity, registered: PumpExtra, elsewhere: Elsewhere) -> None:
        """ConfigError when this directory is a copy of the one that runs elsewhere.

        The registry is up to a heartbeat behind that one, so a copy may be as new as the registry or newer. Only where
        it cannot be told whether that one still runs, this one has to be behind the registry.
        """
        synced = Pointer(registered.synced_fid, registered.synced_offset)
        if registered.incarnation != previous.incarnation or not (
            elsewhere.answers or registered.start_count > previous.start_count or synced > self._valuelog.end
        ):
            return
        data_dir = self._settings.data_dir
        raise ConfigError(
            f"{data_dir} is a copy of the data directory of the Pump that runs at {elsewhere.addr} under the same "
            f"node id: this one is of start {previous.start_count} and ends at {self._valuelog.end}, that one is in "
            f"start {registered.start_count} and is at {synced}",
            hint="leave that one running; for a further Pump take an empty data directory and a node id of its own. "
            "Is that one dead: start its own directory, or start this one again when its heartbeat is 10 s old",
            found=elsewhere.addr,
        )

    def _what_was_lost(self, previous: identity.Identity | None, registered: PumpExtra | None, *, ahead: bool) -> str:
        """Why answered binlogs may be missing in the value log; '' = they are not."""
        end = self._valuelog.end
        if previous is not None and end < previous.end:
            return f"the value log ends at {end}, it was {'closed' if previous.clean else 'read'} at {previous.end}"
        if (
            previous is not None
            and registered is not None
            and registered.incarnation == previous.incarnation
            and end < Pointer(registered.synced_fid, registered.synced_offset)
        ):
            return f"the value log ends at {end}, the registry knows {registered.synced_fid}:{registered.synced_offset}"
        return f"the index points at {self._index.head()}, the value log ends at {end}" if ahead else ""

    def _is_index_unfinished(self) -> bool:
        """Whether building it was not finished: it has no head, and timestamps, or what does not read."""
        if self._index.has_head():
            return False
        try:
            return self._index.last_ts() > 0
        except IndexFailed as error:
            if is_full(error):
                raise
            return True

    def _reset_index(self, reason: str) -> None:
        log.warning("index_rebuilt", reason=reason)
        self._index.reset()
        self._index.save_gc_ts(self._gc.gc_point)

    def _make_indexer(self) -> None:
        self._indexer = Indexer(
            index=self._index, valuelog=self._valuelog, pending=self._pending, collected=self._collected,
            clock=self._clock, queue_records=self._settings.index_queue_records, gc_point=lambda: self._gc.gc_point,
            judged_end=self._gc.judged_end,
        )  # fmt: skip

    def _replay(self, start: Pointer) -> None:
        records, last = 0, start
        for entries in one_ahead(self._valuelog.scan(start)):
            self._indexer.process(entries)
            records += len(entries)
            last = entries.last if len(entries) else last
        if records:
            self._indexer.replayed(last)
            log.info("value_log_replayed", start=start, records=records)

    def _start_threads(self) -> None:
        settings = self._settings
        self._guard = DiskGuard(
            self._fs, self._own, self._clock,
            stop_at=settings.stop_write_at_available_bytes, reserve=settings.reserve_bytes,
            # LevelDB writes its buffer to a table while the next one is filled; tables are merged, then deleted.
            bookkeeping=max(_LEAST_FOR_INDEX, 2 * settings.index_write_buffer_bytes) if settings.reserve_bytes else 0,
        )  # fmt: skip
        self._indexer.make_room = self._guard.make_room
        self._chaser = Chaser(
            valuelog=self._valuelog, queue=self._indexer.queue, clock=self._clock,
            threshold_s=settings.slow_chaser_threshold_s,
        )  # fmt: skip
        self._writer = Writer(
            valuelog=self._valuelog, guard=self._guard, next_stage=self._chaser, clock=self._clock,
            group_bytes=settings.group_commit_bytes,
        )  # fmt: skip
        self._chaser.write_lock = self._writer.lock
        self._writer.on_written = self._write_outcomes
        for stage in (self._indexer, self._chaser, self._writer):
            stage.on_fault = self._faulted
            stage.start()

    def _faulted(self, error: BaseException) -> None:
        self.fault = error
        for listener in self._fault_listeners:
            listener(error)

    def on_fault(self, listener: Callable[[BaseException], None]) -> None:
        """Call this when a thread of the store ended by an unexpected error; the process should stop then."""
        self._fault_listeners.append(listener)

    def attach(self, syncs: Syncs) -> None:
        """Small groups are written on the thread of ``syncs`` from now on, which must live until `close` is through."""
        self._writer.attach(syncs)

    def close(self) -> None:
        """Write and index what is queued, persist positions, close files. A second call does nothing.

        Never on the thread of `attach`.
        """
        self._writer.refuse_loop()
        with self._closing:  # a second one comes back when the first is through
            if not self._closed:
                self._closed = True
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

    def submit(self, items: Sequence[Item], done: Done) -> None:
        """Store binlogs; never blocks. ``done`` gets one status an item (None = durable) from the thread that wrote.

        Statuses: PumpReadOnly (prewrites on a full disk; anything when not even the reserve is left), WriterFailed.
        Callers hold back while `backlog_bytes` is above ``queue_bytes``.
        """
        self._writer.submit(items, done)

    def submit_block(
        self, data: U8, starts: I64, sizes: I64, columns: Columns, payload_bytes: int, done: BlockDone
    ) -> None:
        """Store payloads that lie in a buffer, as `pump_service.intake.parse` describes them; never blocks.

        Every row must be `GOOD`; ``payload_bytes`` is the sum of their sizes. The arrays belong to the store from here
        on, also the buffer, until ``done`` is called, once, from the thread that wrote: None = all are durable, else
        one status a row, as `submit` has them.
        """
        self._writer.submit_records(Records(frozen(data), starts, sizes, columns, payload_bytes), done)

    @property
    def backlog_bytes(self) -> int:
        """Bytes of payloads that wait to be written."""
        return self._writer.backlog_bytes

    def settle_committed(
        self,
        start_ts: int,
        commit_ts: int,
        *,
        reason: str = "",
        who: str = "",
        done: Callable[[Status], None] | None = None,
    ) -> None:
        """The outcome of a prewrite is known: write its commit, as the Go Pump would.

        Where nothing can be written, the outcome is kept in memory and served; it is asked for again after a restart.
        """
        if reason and who != "resolver":
            self._record_settled(start_ts, commit_ts, reason, who)
        message = binlog_pb2.Binlog(
            tp=binlog_pb2.Commit, start_ts=start_ts, commit_ts=commit_ts, ddl_job_id=0, ddl_schema_state=0
        )
        payload = message.SerializeToString()
        item = Item(payload, 1, start_ts, commit_ts)
        self._settle(item, done, lambda: self._indexer.remember_commit(start_ts, commit_ts, payload))

    def settle_rolled_back(
        self, start_ts: int, *, reason: str = "", who: str = "", done: Callable[[Status], None] | None = None
    ) -> None:
        """The transaction can never commit: its prewrite is dropped by a rollback record of our own.

        The record makes the outcome part of the value log, so a rebuilt index knows it too. Where nothing can be
        written it is kept in memory. ``reason`` and ``who`` of a settlement by hand go to pumphouse/settled.jsonl.
        """
        if reason and who != "resolver":
            self._record_settled(start_ts, 0, reason, who)
        message = binlog_pb2.Binlog(
            tp=binlog_pb2.Rollback, start_ts=start_ts, commit_ts=0, ddl_job_id=0, ddl_schema_state=0
        )
        item = Item(message.SerializeToString(), 2, start_ts, 0)
        self._settle(item, done, lambda: self._indexer.remember_rollback(start_ts))

    def _settle(self, item: Item, done: Callable[[Status], None] | None, remember: Callable[[], None]) -> None:
        def written(statuses: list[Status]) -> None:
            if statuses[0] is not None:
                log.warning("outcome_kept_in_memory", start_ts=item.start_ts, commit_ts=item.commit_ts)
                self._indexer.queue.call(remember)
                self._unwritten.append(partial(self._writer.submit, [item], written, own=True))
            if done is not None:
                done(None)

        self._writer.submit([item], written, own=True)

    def _write_outcomes(self) -> None:
        """After a group was written, by whoever wrote it: outcomes that a full disk did not take may go now."""
        if self._unwritten:
            again, self._unwritten = self._unwritten, []
            for submit in again:
                submit()

    def _record_settled(self, start_ts: int, commit_ts: int, reason: str, who: str) -> None:
        line = {
            "start_ts": start_ts, "commit_ts": commit_ts, "reason": reason, "who": who, "at": self._clock.now(),
        }  # fmt: skip
        self._with_room(lambda: self._fs.append_line(self._own / "settled.jsonl", json.dumps(line).encode() + b"\n"))

    def _with_room(self, action: Callable[[], T]) -> T:
        """Bookkeeping that must work on a full disk too: once more when the reserve for it could be given back."""
        try:
            return action()
        except (OSError, IndexFailed) as error:
            if not is_full(error) or not self._guard.make_room():
                raise
            if isinstance(error, IndexFailed):
                self._indexer.reopen()
        return action()

    @staticmethod
    def fake_item(ts: int) -> Item:
        """A fake binlog, which only moves the watermark: submit it."""
        message = binlog_pb2.Binlog(tp=binlog_pb2.Rollback, start_ts=ts, commit_ts=ts, ddl_job_id=0, ddl_schema_state=0)
        return Item(message.SerializeToString(), 2, ts, ts)

    def publish_unpersisted(self, ts: int) -> bool:
        """Move the watermark by a fake that is on no file, when nothing can be written.

        False, and nothing happens, when the Pump can write or the index has not caught up; an unresolved prewrite
        holds it as it holds any fake. ``ts`` must be fresh.
        """
        if not (self.writer_failed or self.read_only) or self._chaser.on or len(self._indexer.queue):
            return False
        # Behind everything that was written: the writer is idle or refuses, and the queue is first in, first out.
        if not self._writer.try_lock():
            return False
        try:
            self._indexer.queue.call(lambda: self._indexer.remember_fake(ts))
        finally:
            self._writer.lock.release()
        return True

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
        return self._gc.gc_point

    @property
    def deletion_limit(self) -> Tso:
        """D: below it files and keys may be gone."""
        return self._gc.deletion_limit

    @property
    def read_only(self) -> bool:
        """Whether prewrites are refused for want of space."""
        return self._guard.read_only()

    def check_space(self) -> None:
        """Raise PumpReadOnly when prewrites are refused. The writer looks again; this spares it the work."""
        if self._guard.read_only():
            available = self._guard.available()
            raise PumpReadOnly(
                f"no available space, available: {available}, StopWriteAtAvailableSpace: {self._guard.stop_at}",
                available=available,
                limit=self._guard.stop_at,
            )

    @property
    def writer_error(self) -> WriterFailed | None:
        """What ended writing in this process."""
        return self._writer.failed

    @property
    def writer_failed(self) -> bool:
        """Whether this process writes no more."""
        return self._writer.failed is not None

    @property
    def synced_end(self) -> Pointer:
        """End of the durable value log; heartbeats register it."""
        return self._valuelog.end

    @property
    def unresolved_count(self) -> int:
        """Prewrites without an outcome, those included that are written but not indexed yet."""
        # In this order: a prewrite that is indexed in between is counted twice rather than not at all.
        behind = self._writer.prewrites - self._indexer.prewrites
        return max(behind, 0) + len(self._indexer.pairing)

    def is_unresolved(self, start_ts: int) -> bool:
        """Whether a prewrite waits for its outcome, among those that are indexed."""
        return self._indexer.pairing.is_waiting(start_ts)

    def wait_for_index(self) -> None:
        """Wait until what was answered before this call is indexed, some seconds at most; not what the chaser has."""
        with self._writer.lock:  # behind it the records of every answer are in the queue
            pass
        indexed = threading.Event()
        self._indexer.queue.call(indexed.set)
        indexed.wait(_PERSIST_WITHIN_S)

    def unresolved(self, limit: int = 100, *, keys: bool = True) -> list[Unresolved]:
        """Prewrites without an outcome, in order of arrival: the first holds the watermark.

        Their keys are read from the value log, unless they are not wanted: from the first bytes of the records alone,
        however large those are, so they are for showing. One that cannot be read is left empty here.
        """
        found = self._indexer.pairing.oldest(limit)
        return [replace(each, prewrite_key=self._shown_key(each)) for each in found] if keys else found

    def prewrite_key(self, prewrite: Unresolved) -> bytes:
        """Key of an unresolved prewrite, from the value log, checked with its record. Raises BadRecord, OSError."""
        return self._valuelog.file(prewrite.pointer.fid).read_key(prewrite.pointer.offset)

    def _shown_key(self, prewrite: Unresolved) -> bytes:
        known = self._keys.get(prewrite.pointer)
        if known is None:
            try:
                known = self._peeked_key(prewrite)
            except BadRecord as error:  # as it will be at the next look: said once
                log.warning("prewrite_key_unread", start_ts=prewrite.start_ts, error=str(error))
                known = b""
            except OSError as error:
                log.warning("prewrite_key_unread", start_ts=prewrite.start_ts, error=str(error))
                return b""
            if len(self._keys) >= _KEYS_KEPT:
                self._keys.clear()
            self._keys[prewrite.pointer] = known
        return known

    def _peeked_key(self, prewrite: Unresolved) -> bytes:
        file = self._valuelog.file(prewrite.pointer.fid)
        meta = file.peek(prewrite.pointer.offset)
        if (meta.tp, meta.start_ts) != (0, prewrite.start_ts):
            raise file.bad(prewrite.pointer.offset, f"it is not the prewrite of start ts {prewrite.start_ts}")
        return meta.prewrite_key

    def min_unresolved(self) -> Tso | None:
        """Smallest start ts of them."""
        lowest = self._indexer.pairing.min_start()
        return None if lowest is None else Tso(lowest)

    def prewrites(self) -> tuple[int, int]:
        """Prewrites that this process has written, and how many of them are indexed. Both only grow."""
        indexed = self._indexer.prewrites  # first: it never looks as if more were indexed than written
        return self._writer.prewrites, indexed

    def min_unsettled(self) -> Tso | None:
        """Smallest start ts whose outcome is not on disk: of prewrites without one, and of those kept in memory."""
        lowest = [self._indexer.pairing.min_start(), min(list(self._indexer.memory_starts), default=None)]
        return Tso(min(found)) if (found := [ts for ts in lowest if ts is not None]) else None

    def late(self) -> list[PendingCommit]:
        """Late commits, accepted ones too."""
        return [item for item in self._pending.all() if item.late]

    def orphans(self) -> list[PendingCommit]:
        """Commits whose prewrite is on no file, accepted ones too."""
        return [item for item in self._pending.all() if item.orphan]

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
            gc_held_by=list(self._gc_held_by),
            unresolved=self.unresolved_count,
            oldest_unresolved=self.unresolved(keys=keys),
            late=self.late(),
            orphans=self.orphans(),
            value_log_bytes=self.value_log_bytes,
            value_log_files=len(self._valuelog.files()),
            available_bytes=self._guard.available(),
            read_only=self.read_only,
            writer_failed=self.writer_failed,
            sync_log=self._settings.sync_log,
            slow_mode=self._chaser.on,
            duplicate_commits=self._indexer.duplicates,
            index_failures=self._indexer.failures,
            queued_records=len(self._indexer.queue),
            backlog_bytes=self.backlog_bytes,
            synced_end=self.synced_end,
        )

    # -- reading -------------------------------------------------------------------------------------------------------

    def pull(
        self, after: int, *, until: int | None = None, max_bytes: int, most: int | None = None, strict: bool = False
    ) -> PullBatch:
        """Committed binlogs with commit ts above ``after``, up to the watermark (or ``until``), in order.

        At least one binlog when there is one; then as many as fit into ``max_bytes``. Raises PositionCollected below
        the GC point, BadRecord on damage. ``strict`` is for the protocol that has no flags: LateCommit while an
        unaccepted one lies at or below the watermark (this puller may have passed it), OrphanCommit when one is next.
        LargeBinlog when ``most`` is given and the next one alone may be larger.
        """
        self._check_floor(after)
        watermark = self.watermark
        upto = watermark if until is None else min(watermark, until)
        try:
            found = self._reader.read(after, upto, self._indexer.memory, max_bytes=max_bytes, most=most)
        except (BadRecord, OrphanCommit):
            self._check_floor(after)
            raise
        batch = PullBatch(
            after=Tso(after), last=Tso(max(after, found.last)), watermark=watermark, binlogs=found.binlogs,
            more=found.last < upto,
        )  # fmt: skip
        if self._pending:
            batch.behind = [item for item in self._pending.between(0, after) if item.late and item.holds]
            if strict:
                self._refuse_flagged(batch)
        # GC may have passed while this was read; then something may be missing.
        self._check_floor(after)
        return batch

    def _check_floor(self, after: int) -> None:
        if after < self.gc_point:
            raise PositionCollected(
                f"binlogs after {after} were asked for, this Pump keeps what is above {self.gc_point}",
                hint="start from a restore or a new genesis",
                start_from=after,
                gc_point=self.gc_point,
            )

    def _refuse_flagged(self, batch: PullBatch) -> None:
        for item in self._pending.between(0, batch.watermark):
            if item.late and item.holds:
                raise LateCommit(
                    f"commit {item.commit_ts} (start ts {item.start_ts}) came below the watermark {item.watermark}",
                    hint="look at the transaction, then `pumphouse archive accept`",
                    start_ts=item.start_ts, commit_ts=item.commit_ts, watermark=item.watermark,
                )  # fmt: skip
        orphans = np.flatnonzero(batch.binlogs.flags == ORPHAN)
        if not len(orphans):
            return
        at = int(orphans[0])
        if at == 0:
            start_ts, commit_ts = batch.start_list[0], batch.commit_list[0]
            raise OrphanCommit(
                f"the prewrite of commit {commit_ts} with start ts {start_ts} is on no file",
                hint="look at the transaction, then `pumphouse archive accept`",
                start_ts=start_ts, commit_ts=commit_ts,
            )  # fmt: skip
        batch.cut(at)

    def find(self, ts: int) -> bytes | None:
        """The record under a storage ts as it was stored: a prewrite by its start ts, a commit by its commit ts."""
        pointer = self._index.get(ts)
        if pointer is None:
            return next((i for i in self._memory_payload(ts)), None)
        return self._valuelog.read(pointer)

    def stored(self, ts: int) -> Stored | bytes | None:
        """As `find`, of a record that may be large: where it lies, checked; bytes of what is on no file."""
        pointer = self._index.get(ts)
        if pointer is None:
            return next((i for i in self._memory_payload(ts)), None)
        return self._valuelog.file(pointer.fid).stored(pointer.offset)

    def _memory_payload(self, ts: int) -> list[bytes]:
        kept = self._indexer.memory.get(ts)
        return [] if kept is None else [kept[1]]

    def accept(self, start_ts: int, commit_ts: int, reason: str) -> None:
        """Accept a late or orphan commit by name. Raises UsageError when there is none."""
        self._with_room(lambda: self._pending.accept(start_ts, commit_ts, reason, self._clock.now()))
        log.warning("commit_accepted", start_ts=start_ts, commit_ts=commit_ts, reason=reason)

    # -- GC ------------------------------------------------------------------------------------------------------------

    def collect(self, checkpoints: Mapping[str, int], now_minus_retention: int) -> GcReport:
        """One GC run. ``checkpoints``: of every consumer that is not offline. Blocks; a second one at once is refused.

        Raises OSError or IndexFailed when the bookkeeping cannot be written; nothing is deleted then.
        """
        if not self._gc_running.acquire(blocking=False):
            return GcReport(started=False, gc_point=self.gc_point, deletion_limit=self.deletion_limit)
        try:
            return self._with_room(lambda: self._collect(checkpoints, now_minus_retention))
        finally:
            self._gc_running.release()

    def _collect(self, checkpoints: Mapping[str, int], now_minus_retention: int) -> GcReport:
        begun = time.monotonic()
        self._persist_position()
        point = gc.decide_point(self.gc_point, checkpoints, now_minus_retention, self.watermark)
        # Behind the look at the watermark: what that has passed lies before it.
        judged_end = self._indexer.indexed_end
        if point.gc_point > self.gc_point:
            # Persisted first: whatever is deleted later, a pull below it is refused, also after a restart.
            self._gc.save(point.gc_point, self.deletion_limit, judged_end)
            self._index.save_gc_ts(point.gc_point)
        # The snapshot comes before D: a prewrite that is indexed later cannot be among its keys, and one indexed
        # before is in pairing when D is taken.
        with self._index.snapshot() as snapshot:
            limit = self._deletion_limit(judged_end)
            self._gc.save(self.gc_point, limit.deletion_limit, judged_end)
            files = gc.deletable(self._valuelog.files(), limit.deletion_limit, self._index.head(), self._index.handle())
            files = list(takewhile(lambda file: self._really_below(file, limit.deletion_limit), files))
            deleted, upto = self._delete_keys(snapshot.below(limit.deletion_limit), limit.deletion_limit)
        if upto < limit.deletion_limit:
            # What could not be noted stays, with every file that has it.
            limit = gc.Limit(deletion_limit=Tso(upto), held_by=[*limit.held_by, HELD_BY])
            # Killed before this, the higher one stays there until the next run: it says what may go, not what went.
            self._gc.save(self.gc_point, limit.deletion_limit, judged_end)
            files = list(takewhile(lambda file: file.max_ts < upto, files))
        freed_bytes = 0
        for file in files:
            freed_bytes += file.end
            self._valuelog.remove(file)
            log.info("value_log_file_freed", file_id=file.fid, max_ts=file.max_ts)
        left = self._valuelog.files()
        if files:
            self._pending.forget_below(left[0].fid)
        self._gc_held_by = point.held_by + limit.held_by
        report = GcReport(
            started=True,
            gc_point=self.gc_point,
            deletion_limit=limit.deletion_limit,
            requested_by_retention=Tso(now_minus_retention),
            requested_by_checkpoints=Tso(min(checkpoints.values())) if checkpoints else None,
            held_by=list(self._gc_held_by),
            freed_files=len(files),
            freed_bytes=freed_bytes,
            kept_files=len(left),
            deleted_keys=deleted,
        )
        log.info(
            "gc_done", gc_point=report.gc_point, deletion_limit=report.deletion_limit, freed_files=report.freed_files,
            deleted_keys=deleted, held_by=report.held_by, requested_by_retention=report.requested_by_retention,
            requested_by_checkpoints=report.requested_by_checkpoints, seconds=round(time.monotonic() - begun, 3),
        )  # fmt: skip
        return report

    def _persist_position(self) -> None:
        """Have the handle pointer persisted as it is now: files before it may go."""
        persisted = threading.Event()

        def persist() -> None:
            self._indexer.persist()
            persisted.set()

        self._indexer.queue.call(persist)
        # Without it less can go, so it is not waited for in vain.
        persisted.wait(_PERSIST_WITHIN_S)

    def _deletion_limit(self, indexed_end: Pointer) -> gc.Limit:
        """``indexed_end``: the indexer's, looked at before this."""
        gc_point = self.gc_point
        # The order of these looks matters. What is indexed after the first is covered by the summaries; a prewrite that
        # pairing no longer has when it is asked has its commit in the summaries, which are read last. A late commit
        # was noted before the first look, or is covered by the summaries as one that is not indexed.
        unresolved = [self._indexer.pairing.min_start(), min(list(self._indexer.memory_starts), default=None)]
        pending = self._pending.lowest()
        lowest = NEVER
        for file in self._valuelog.files():
            if file.sealed and file.max_ts <= gc_point and file.fid < indexed_end.fid:
                continue  # nothing in it is above G, everything in it is known to pairing
            done_upto = -1 if file.fid > indexed_end.fid else int(MAX_TSO)
            if file.fid == indexed_end.fid:
                done_upto = indexed_end.offset
            buckets = self._valuelog.summary(file).buckets()
            read = partial(self._valuelog.between, file)
            lowest = min(lowest, lowest_open_start(buckets, gc_point, done_upto, read))
        return gc.decide_limit(
            gc_point,
            unresolved=min((ts for ts in unresolved if ts is not None), default=None),
            pending=pending,
            open_start=lowest if lowest != NEVER else None,
        )

    def _really_below(self, file: LogFile, limit: int) -> bool:
        """Whether a file's records say what its footer says, which has no checksum; a damaged file stays."""
        try:
            summary = self._valuelog.summary(file)
        except BadRecord as error:
            log.error("gc_held_by_damage", path=error.path, offset=error.offset, reason=error.reason)  # noqa: TRY400
            return False
        if summary.max_ts < limit:
            return True
        log.error("gc_held_by_footer", path=str(file.path), footer=file.max_ts, max_ts=summary.max_ts)
        file.max_ts = summary.max_ts
        return False

    def _delete_keys(self, pairs: Iterable[tuple[bytes, bytes]], limit: int) -> tuple[int, int]:
        """Delete in order of the timestamps; how many, and up to where all are gone: ``limit``, or less."""
        deleted = 0
        batch: list[tuple[bytes, bytes]] = []
        for pair in pairs:
            batch.append(pair)
            if len(batch) >= _DELETE_KEYS_AT_ONCE:
                if self._closed:  # which waits for this; files go behind their keys, so the next run does the rest
                    raise WriterFailed("the store is closing", hint="the next GC run goes on")
                if (done := self._delete_batch(batch)) is None:
                    return deleted, key_ts(batch[0][0])
                deleted += done
                batch = []
        if batch:
            if (done := self._delete_batch(batch)) is None:
                return deleted, key_ts(batch[0][0])
            deleted += done
        return deleted, limit

    def _delete_batch(self, batch: list[tuple[bytes, bytes]]) -> int | None:
        """Delete; None when there is no room to note which young commits these were."""
        oldest = compose(max(int(self._clock.now() * 1000) - YOUNGER_THAN_MS, 0))
        young = [unpack_pointer(value) for key, value in batch if key_ts(key) >= oldest]
        if young:
            # A key whose deletion was lost with the machine may point into a file that is gone: it was noted before.
            metas = [frame.read_meta(self._valuelog.read(p)) for p in young if p.fid >= self._valuelog.first_fid]
            if not self._collected.add([(m.start_ts, m.commit_ts) for m in metas if m.tp and m.commit_ts], oldest):
                return None
        with self._indexer.lock:
            return self._index.delete_unchanged(batch)


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
