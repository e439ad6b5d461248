"""Opening a data directory: what it says of itself, what was lost, the value log, and an index that fits it.

What is refused here is refused before anything is changed, or is repaired by the next start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import structlog

from pump_service.store import identity
from pump_service.store.ahead import one_ahead
from pump_service.store.bookkeeping import Bookkeeping
from pump_service.store.collected import CollectedCommits
from pump_service.store.disk import DiskGuard, is_full
from pump_service.store.fs import FileSystem
from pump_service.store.gc_rules import GcState
from pump_service.store.identity import Identity
from pump_service.store.index import Index, IndexFailed, tuning_of
from pump_service.store.indexer import Indexer
from pump_service.store.order import Order, Recent, Waiting
from pump_service.store.pending import PendingCommits
from pump_service.store.skips import load_skipped
from pump_service.store.valuelog import ValueLog
from pumphouse.clock import Clock
from pumphouse.errors import BadRecord, ConfigError
from pumphouse.model.node import PumpExtra
from pumphouse.model.position import ZERO_POINTER, Pointer
from pumphouse.model.tso import MAX_TSO, Tso
from pumphouse.settings import PumpSettings

log = structlog.get_logger(__name__)

_LEAST_FOR_INDEX = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """Where what is registered under our node id runs at this moment."""

    addr: str
    answers: bool  # somebody took a connection there; else it cannot be told


class Opening:
    """What a directory holds, opened step by step; when it is made, recovery is done and no thread runs yet."""

    def __init__(
        self,
        settings: PumpSettings,
        fs: FileSystem,
        clock: Clock,
        registered: PumpExtra | None,
        elsewhere: Elsewhere | None,
    ) -> None:
        self._settings = settings
        self._fs = fs
        self._clock = clock
        self._registered = registered
        self._elsewhere = elsewhere
        self._own = settings.data_dir / "pumphouse"
        fs.make_dirs(self._own)
        self._previous = identity.load(fs, self._own)
        self.gc = GcState(fs, self._own)
        self.gc.load()
        self.pending = PendingCommits(fs, self._own)
        self.pending.load()
        self.collected = CollectedCommits(fs, self._own)
        self.collected.load()
        self.guard = DiskGuard(
            fs, self._own, clock,
            stop_at=settings.stop_write_at_available_bytes, reserve=settings.reserve_bytes,
            # LevelDB writes its buffer to a table while the next one is filled; tables are merged, then deleted.
            bookkeeping=max(_LEAST_FOR_INDEX, 2 * settings.index_write_buffer_bytes) if settings.reserve_bytes else 0,
        )  # fmt: skip
        self.index = Index.open(settings.data_dir / "kv", tuning_of(settings))
        self.bookkeeping = Bookkeeping(self.index, self.guard, clock)
        try:
            self.valuelog = ValueLog(
                fs, settings.data_dir / "value", self._own / "files",
                limit=settings.value_log_file_bytes, sync=settings.sync_log, skipped=load_skipped(fs, self._own),
            )  # fmt: skip
            self._open_value_log()
        except BaseException:
            self.index.close()
            raise

    def _open_value_log(self) -> None:
        previous, registered, elsewhere = self._previous, self._registered, self._elsewhere
        positions = self.index.positions()
        head = positions.head
        if previous is None:
            # A data directory of the Go Pump brings its own floor. Before the identity, which says that it was taken.
            floor = Tso(positions.gc_ts)
            self.gc.save(max(floor, self.gc.gc_point), max(floor, self.gc.deletion_limit), self.gc.judged_end)
        self.valuelog.open(
            synced_floor=head or ZERO_POINTER,
            gaps_upto=int(MAX_TSO) if previous is None else previous.taken_over_fid,
            clean=previous is not None and previous.clean,
        )
        end = self.valuelog.end
        if elsewhere is not None:
            self._refuse_what_runs(elsewhere)
        if self.gc.judged_end > end:
            # Nothing said so yet, or the log went back: what is written from here on has not been judged.
            self.gc.save(self.gc.gc_point, self.gc.deletion_limit, end)
        # Pointers into what is no longer there, or into other records at the same place. A replay brings no head until
        # its end: of one that was killed the identity tells, and that the index has timestamps without a head.
        went_back = previous is not None and end < previous.end
        ahead = went_back or (head is not None and head >= end)
        unfinished = head is None and self._has_timestamps()
        # LevelDB's log is not synced: of a machine that went down it may have a hole, behind which it reads on.
        holes = identity.machine_went_down(previous)
        self.identity = identity.begin(
            previous,
            sync_log=self._settings.sync_log,
            lost=self._what_was_lost(previous, registered, ahead=ahead),
            last_fid=end.fid if self.valuelog.files() else -1,
        )
        # Before the reset, which takes away what tells of a loss. Until the index is whole again the boot id stays as
        # it was found: a start that is killed in between is followed by another that mistrusts the index. So long the
        # largest end of the value log stands there too: whatever is in the index points below it.
        boot = previous.boot_id if holes and previous is not None else self.identity.boot_id
        upto = previous.end if went_back and previous is not None else end
        replaying = replace(self.identity, boot_id=boot, end_fid=upto.fid, end_offset=upto.offset)
        identity.save(self._fs, self._own, replaying)
        if ahead or holes or unfinished:
            reason = "the machine went down" if holes else "building it was not finished"
            self._reset_index("it points behind the value log" if ahead else reason)
        self.indexer = self._indexed()
        # Before anything is accepted: a start that did not get here has answered nothing.
        identity.save(self._fs, self._own, self.identity)

    def _refuse_what_runs(self, elsewhere: Elsewhere) -> None:
        previous, registered = self._previous, self._registered
        if elsewhere.answers and (
            previous is None or registered is None or registered.incarnation != previous.incarnation
        ):
            self._refuse_other(previous, registered, elsewhere)
        if previous is not None and registered is not None:
            self._refuse_copy(previous, registered, elsewhere)

    def _refuse_other(self, previous: Identity | None, registered: PumpExtra | None, elsewhere: Elsewhere) -> None:
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

    def _refuse_copy(self, previous: Identity, registered: PumpExtra, elsewhere: Elsewhere) -> None:
        """ConfigError when this directory is a copy of the one that runs elsewhere.

        The registry is up to a heartbeat behind that one, so a copy may be as new as the registry or newer. Only where
        it cannot be told whether that one still runs, this one has to be behind the registry.
        """
        synced = Pointer(registered.synced_fid, registered.synced_offset)
        if registered.incarnation != previous.incarnation or not (
            elsewhere.answers or registered.start_count > previous.start_count or synced > self.valuelog.end
        ):
            return
        data_dir = self._settings.data_dir
        raise ConfigError(
            f"{data_dir} is a copy of the data directory of the Pump that runs at {elsewhere.addr} under the same "
            f"node id: this one is of start {previous.start_count} and ends at {self.valuelog.end}, that one is in "
            f"start {registered.start_count} and is at {synced}",
            hint="leave that one running; for a further Pump take an empty data directory and a node id of its own. "
            "Is that one dead: start its own directory, or start this one again when its heartbeat is 10 s old",
            found=elsewhere.addr,
        )

    def _what_was_lost(self, previous: Identity | None, registered: PumpExtra | None, *, ahead: bool) -> str:
        """Why answered binlogs may be missing in the value log; '' = they are not."""
        end = self.valuelog.end
        if previous is not None and end < previous.end:
            return f"the value log ends at {end}, it was {'closed' if previous.clean else 'read'} at {previous.end}"
        if (
            previous is not None
            and registered is not None
            and registered.incarnation == previous.incarnation
            and end < Pointer(registered.synced_fid, registered.synced_offset)
        ):
            return f"the value log ends at {end}, the registry knows {registered.synced_fid}:{registered.synced_offset}"
        return f"the index points at {self.index.positions().head}, the value log ends at {end}" if ahead else ""

    def _has_timestamps(self) -> bool:
        """Whether there are any, or what does not read; of an index without a head: its building was not finished."""
        try:
            return self.index.last_ts() > 0
        except IndexFailed as error:
            if is_full(error):
                raise
            return True

    def _reset_index(self, reason: str) -> None:
        log.warning("index_rebuilt", reason=reason)
        self.index.reset()
        self.index.save_gc_ts(self.gc.gc_point)

    def _indexed(self) -> Indexer:
        """The indexer, of an index that has everything of the value log."""
        head, handle = self.index.positions()[:2]
        try:
            return self._replayed(min(head or ZERO_POINTER, handle))
        except (BadRecord, IndexFailed) as error:
            if is_full(error) or head is None:
                raise
            # The index does not fit this value log, or does not read. If the log itself is damaged, the second reading
            # says so.
            self._reset_index(str(error))
            return self._replayed(ZERO_POINTER)

    def _replayed(self, start: Pointer) -> Indexer:
        saved = self.index.positions()
        indexer = Indexer(
            order=Order(Waiting(saved.watermark, saved.handle), Recent(self.index.last_ts())),
            index=self.index, valuelog=self.valuelog, pending=self.pending, collected=self.collected, gc=self.gc,
            bookkeeping=self.bookkeeping, clock=self._clock, queue_records=self._settings.index_queue_records,
        )  # fmt: skip
        records, last = 0, start
        for entries in one_ahead(self.valuelog.scan(start)):
            indexer.process(entries)
            records += len(entries)
            last = entries.last if len(entries) else last
        if records:
            indexer.replayed(last)
            log.info("value_log_replayed", start=start, records=records)
        indexer.indexed_end = self.valuelog.end_of_records()  # what was skipped as damaged lies before it, too
        return indexer
