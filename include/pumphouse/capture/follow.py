"""Following the binlog: groups as they are read become transactions of the Pumps, statements become DDL jobs."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog

from pumphouse.capture.ddl import Schema
from pumphouse.capture.journal import Journal
from pumphouse.capture.keys import writes_actions
from pumphouse.capture.lease import Progress
from pumphouse.capture.passed import require_goes_on
from pumphouse.capture.prepared import Prepared, read_again
from pumphouse.capture.primary import find_primary, lacks, not_primary
from pumphouse.capture.publish import Entry, Publisher, Stopped
from pumphouse.capture.rows import RowWriter
from pumphouse.capture.schemas import Schemas, server_kind
from pumphouse.capture.shadow import flavor_of
from pumphouse.capture.source.gtid import GtidSet
from pumphouse.capture.source.model import Group, Heartbeat, Position, Query, Transaction, Xa, XaStep
from pumphouse.capture.source.session import semi_sync_says
from pumphouse.capture.source.stream import Stream, open_stream
from pumphouse.capture.spool import Spool
from pumphouse.clock import Clock
from pumphouse.dump.source import session, where
from pumphouse.errors import BinlogError, CaptureRefused, ConfigError, HistoryUnavailable, SourceFailed
from pumphouse.mysql import ServerConnection
from pumphouse.schema.history import MysqlTableSource
from pumphouse.settings import CaptureSettings, Settings, SourceSettings

log = structlog.get_logger()

T = TypeVar("T")
_HEARTBEAT_S = 1.0
_AGAIN_S = 1.0
_SILENT_S = 5 * _HEARTBEAT_S
# How often the source is asked whether it still is the source, and whether its commits wait for us.
_LOOK_S = 5.0
_LOOK_ANSWER_S = 20
# How often one that stands still looks whether it goes on.
_PAUSED_S = 0.2
# Positions that bring nothing to publish are written that often.
_MARK_S = 1.0
# A time so far ahead of this machine's is none: a statement set it, and nothing behind it would have one of its own.
_AHEAD_S = 300.0


class _Broken:
    """The connection was lost: what has begun comes again."""


_BROKEN = _Broken()


@dataclass(frozen=True, slots=True)
class _Begins:
    """What comes next is of this server, and acknowledged there."""

    server: str
    source: SourceSettings
    stream: Stream
    writes_actions: bool


Item = Group | Heartbeat | _Begins | _Broken | BaseException


class Follower:
    """Reads, encodes and publishes, from the journal's mark on. `run` once."""

    def __init__(
        self,
        settings: Settings,
        journal: Journal,
        publisher: Publisher,
        schema: Schema,
        schemas: Schemas,
        history: MysqlTableSource,
        fits: Callable[[SourceSettings], None],
        paused: Callable[[], bool],
        stop: threading.Event,
        clock: Clock,
    ) -> None:
        """``fits``: raises where a server that took the source's place cannot be captured. ``paused``: stand still."""
        self._settings = settings
        self._journal = journal
        self._publisher = publisher
        self._schema = schema
        self._schemas = schemas
        self._history = history
        self._fits = fits
        self._paused = paused
        self._stop = stop
        self._clock = clock
        self._flavor = flavor_of(schema.shadow.kind.version)
        self._gtids = GtidSet.parse(journal.mark.gtid, self._flavor)
        self._server = journal.mark.server
        self._source = settings.source  # whose binlog that is, once there is a stream
        self._place = (journal.mark.file, journal.mark.offset)
        self._moment = journal.mark.moment
        self._transactions = journal.mark.transactions
        self._rows = RowWriter(schema, settings.capture.leaves_out)
        self._entries: list[Entry] = []
        self._bytes = 0
        self._parts = Parts(settings.capture.directory)
        self._prepared = Prepared(settings.capture.directory, journal.mark.prepared)
        self._alone = False  # the transaction under way has a statement: all its parts are decided together
        self._made: list[Entry] = []  # of that one
        self._number = journal.mark.schema
        self._marked_at = clock.monotonic()
        self._heard = clock.now()
        self._inbox = _Inbox(settings.capture.queue_bytes)
        self._stream: Stream | None = None
        self._asked: Group | None = None  # the source waits for it, once it is published
        self._all_published = threading.Event()
        self._waits: bool | None = None  # commits of the source, for us
        self._read_now: SourceSettings | None = None
        self._off: BinlogError | None = None  # why that one is to be read no more
        self._lost = ""  # why the source is not read
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="capture-publish")
        self._under_way: Future[None] | None = None  # a group that is published while the next one is encoded

    def run(self) -> None:
        """Until ``stop`` is set; what was read and not decided is read again next time."""
        reader = threading.Thread(target=self._read, name="capture-reader", daemon=True)
        reader.start()
        threading.Thread(target=self._look, name="capture-look", daemon=True).start()
        try:
            while not self._stop.is_set():
                if self._paused():
                    self._stand_still()
                item = self._inbox.take(_MARK_S)
                if item is None:
                    self._flush()
                    continue
                self._take(item)
            self._flush(always=True)
            self._publisher.flush()
        finally:
            self._stop.set()
            self._inbox.close()
            self._beside.shutdown()
            if self._under_way is not None and (failure := self._under_way.exception()) is not None:
                log.warning("group_not_published", error=str(failure))
            reader.join()

    def progress(self) -> Progress:
        """What is published."""
        mark = self._publisher.said
        waits = mark.moment > 0 and (self._inbox.busy or bool(self._entries) or self._under_way is not None)
        now = self._clock.now()
        behind = max(0.0, now - mark.moment) if waits else 0.0
        if (
            now - self._heard > _SILENT_S
        ):  # the source is away, or the Pumps take nothing: what it has by now is unknown
            behind = max(behind, now - self._heard)
        source = "" if self._stream is None else where(self._source)
        return Progress(mark=mark, lag_s=behind, source=source, server=self._server, why=self._lost, waits=self._waits)

    # -- reading ahead

    def _read(self) -> None:
        server, (file, offset) = self._server, self._place
        position = Position(gtids=self._gtids, file=file, offset=offset)
        capture = self._settings.capture
        while not self._stop.is_set():
            try:
                source = find_primary(self._settings.source, capture)
                there = require_goes_on(source, position, server)
                if there != server:
                    self._fits(source)
                    position = replace(position, file="", offset=0)  # of the other one's binlog
                with session(source) as connection:  # it may have been started with other settings
                    self._schema.shadow.require_reads_as(server_kind(connection))
                    writes = writes_actions(connection, self._flavor)
                server, self._read_now, self._off = there, source, None
                with open_stream(
                    source,
                    position.by_gtid,
                    section="source",
                    server_id=capture.server_id,
                    heartbeat_s=_HEARTBEAT_S,
                    semi_sync=capture.semi_sync,
                    group_bytes=capture.group_bytes,
                    stop=self._stop,
                ) as stream:
                    self._lost = ""
                    self._inbox.put(_Begins(server, source, stream, writes))
                    for item in stream:
                        self._require_source()
                        position = item.end if isinstance(item, Group) else item.position
                        self._inbox.put(item)
            except SourceFailed as error:
                log.warning("source_lost", error=str(error), again_in_s=_AGAIN_S)
                self._lost, self._read_now = error.message, None
                self._all_published.clear()
                self._inbox.put(_BROKEN)
                self._stop.wait(_AGAIN_S)
                # A semi-sync source takes what we ask to go on behind for safe.
                while not self._all_published.wait(_AGAIN_S) and not self._stop.is_set():
                    pass
            except BaseException as error:  # noqa: BLE001 - the main thread raises it
                self._inbox.put(error)
                return

    def _require_source(self) -> None:
        """What the last look found, if the server that is read is the source no more."""
        if self._off is not None:
            raise self._off

    def _look(self) -> None:
        """What the server that is read says of itself, now and then.

        One that became a replica, or read only, still answers, and its binlog may have nothing new for ever. A
        semi-sync source stops waiting when nobody answers in time, and begins again by itself.
        """
        capture, waits = self._settings.capture, None
        while not self._stop.wait(_LOOK_S):
            source = self._read_now
            if source is None:
                continue
            try:
                with session(source, answer_s=_LOOK_ANSWER_S) as connection:
                    off = _off(connection, source, capture)
                    if capture.semi_sync:
                        waits = semi_sync_says(connection, "status", "STATUS").get("status") == "ON"
            except Exception as error:  # noqa: BLE001 - whatever it was, the next look tells
                log.warning("source_not_looked_at", error=str(error))
                continue
            if source is self._read_now:
                self._off = off
            if waits != self._waits:
                (log.info if waits else log.warning)("semi_sync", waits=waits)
            self._waits = waits

    # -- one after the other

    def _stand_still(self) -> None:
        """Publish what was taken, and then nothing until somebody says that it goes on."""
        self._flush(always=True)
        log.warning("capture_paused", id=self._settings.capture.id, gtid=self._journal.mark.gtid)
        while self._paused() and not self._stop.wait(_PAUSED_S):
            pass
        log.info("capture_goes_on", id=self._settings.capture.id)

    def _take(self, item: Item) -> None:
        if isinstance(item, Group | Heartbeat):
            self._heard = self._clock.now()
        if isinstance(item, Group):
            self._group(item)
            if self._bytes >= self._settings.capture.group_bytes or not self._inbox.busy:
                self._flush()
        elif isinstance(item, Heartbeat):
            self._reached(item.position)
            self._flush()
        elif isinstance(item, _Begins):
            self._stream, self._asked, self._source = item.stream, None, item.source
            self._schema.writes_actions = item.writes_actions
            self._schema.refuse_actions()
            if item.server != self._server:
                self._server, self._place = item.server, ("", 0)
        elif isinstance(item, _Broken):
            self._parts.clear()
            self._forget("the source was lost within a transaction that changes the schema")
            self._flush(always=True)
            self._all_published.set()
        else:
            self._flush(always=True)
            raise item

    def _group(self, group: Group) -> None:
        strange = self._gtids.out_of_order(each.gtid for each in group.transactions if each.final and each.has_gtid)
        if strange is not None:  # a restart may have ended the mode
            raise CaptureRefused(
                f"the transaction {strange} follows {self._gtids}: its number does not ascend, so a position does not "
                "say what was read",
                hint="SET GLOBAL gtid_strict_mode = 'ON' on the source, and the same in its configuration; then "
                "`pumphouse capture run --anew` goes on behind it (docs/capture.md)",
                place=strange,
            )
        plain: list[Transaction] = []
        for transaction in group.transactions:
            if self._alone and not transaction.part:
                self._forget(f"the source forgot a transaction that changes the schema, before {transaction.gtid}")
            if not (transaction.queries or self._alone):
                plain.append(transaction)
                continue
            self._plain(group, plain)
            for each in plain:
                self._gtids = self._gtids.plus(each.gtid) if each.final else self._gtids
            plain.clear()
            self._one(group, transaction)
        self._plain(group, plain)
        self._reached(group.end)
        if group.acknowledge is not None:
            self._asked = group

    def _reached(self, position: Position) -> None:
        self._gtids = position.gtids
        if position.file:
            self._place = (position.file, position.offset)

    def _plain(self, group: Group, transactions: Sequence[Transaction]) -> None:
        """Neighbours without statements: all of them are encoded at once."""
        values = self._rows.values(group, [(each.first, each.last) for each in transactions])
        begin = 0
        for at, (transaction, value) in enumerate(zip(transactions, values, strict=True), 1):
            self._add(transaction, value)
            # A few bytes of XA COMMIT bring as many as were prepared.
            if transaction.xa is not None and self._bytes >= self._settings.capture.group_bytes:
                self._gtids = self._gtids.plus(*(each.gtid for each in transactions[begin:at]))
                self._flush()
                begin = at

    def _add(self, transaction: Transaction, value: bytes) -> None:
        """``value``: its row changes as fields of a PrewriteValue."""
        whole = self._parts.whole(transaction, value)
        if whole is None:
            return
        if transaction.xa is not None:
            whole = self._step(transaction, transaction.xa, whole)
        clock = self._clock_at(transaction)
        if whole:
            if isinstance(whole, Spool):
                whole.head = self._rows.head
            else:
                whole = self._rows.head + whole
            self._push(Entry(transaction.gtid.encode(), clock, value=whole))
        self._passed(clock)

    def _step(self, transaction: Transaction, xa: Xa, value: bytes | Spool) -> bytes:
        """What counts from a step of an XA transaction on: with COMMIT, the rows that its PREPARE brought."""
        if xa.step is XaStep.PREPARE:
            value = value.read() if isinstance(value, Spool) else value
            self._prepared.add(xa.xid, transaction.gtid, value)
            self._bytes += len(value)
            return b""
        held = self._prepared.take(xa.xid)
        if xa.step is XaStep.ROLLBACK:
            return b""
        if held is None:
            return read_again(self._source, xa.xid, transaction, self._rows.of, self._stop)
        return held

    def _one(self, group: Group, transaction: Transaction) -> None:
        """A transaction with a statement, or a part of one: it is decided alone, with all that it has."""
        if transaction.xa is not None:
            raise CaptureRefused(
                f"the transaction {transaction.gtid} of the XA transaction {transaction.xa.xid} has a statement: it is "
                "not followed",
                hint="`pumphouse capture run --anew` goes on behind it (docs/capture.md)",
                place=transaction.gtid,
            )
        if not self._alone:
            self._flush(always=True)
            self._number = self._journal.mark.schema
            self._alone = True
            before = self._parts.take(transaction)
            if before:
                before.head = self._rows.head
                self._made.append(Entry(self._name(transaction), self._clock_at(transaction), value=before))
        for piece in transaction.pieces():
            if isinstance(piece, Query):
                self._statement(transaction, piece)
            else:
                (value,) = self._rows.values(group, [(piece.start, piece.stop)])
                if value:
                    self._add_alone(transaction, value)
        if not transaction.final:
            return
        self._alone = False
        if self._number != self._journal.mark.schema:
            self._save(str(self._gtids.plus(transaction.gtid)))
        pieces = len(self._made)
        self._entries, self._made = [replace(each, name=b"%s/%d" % (each.name, pieces)) for each in self._made], []
        self._passed(self._clock_at(transaction))
        self._gtids = self._gtids.plus(transaction.gtid)
        self._flush(always=True, schema=self._number)

    def _add_alone(self, transaction: Transaction, value: bytes) -> None:
        """Rows of a transaction with statements; those of one that is larger than a group go to a file."""
        last = self._made[-1].value if self._made else None
        if isinstance(last, Spool) and last.head == self._rows.head:
            last.add(value)
            return
        whole: bytes | Spool = self._rows.head + value
        if transaction.part or not transaction.final:
            whole = Spool(self._settings.capture.directory, transaction.gtid)
            whole.add(value)
            whole.head = self._rows.head
        self._made.append(Entry(self._name(transaction), self._clock_at(transaction), value=whole))

    def _forget(self, why: str) -> None:
        """What has come of a transaction with statements never was, or comes again; a shadow cannot take one back."""
        if self._number != self._journal.mark.schema:
            raise SourceFailed(why, hint="start the capture again: it reads on from what was committed")
        self._alone = False
        self._made.clear()

    def _statement(self, transaction: Transaction, query: Query) -> None:
        self._refuse_strangers()
        jobs, changed = self._schema.apply(query)
        for job in jobs:
            self._made.append(Entry(self._name(transaction), self._clock_at(transaction), job=job))
        if changed:
            self._number = self._journal.mark.schema + 1
            self._rows.renew()

    def _name(self, transaction: Transaction) -> bytes:
        return f"{transaction.gtid}#{len(self._made)}".encode()

    def _save(self, gtid: str) -> None:
        stored = self._schema.stored()
        self._until_done(lambda: self._schemas.save(self._number, gtid, stored))

    def _until_done(self, ask: Callable[[], T]) -> T:
        """Ask the history until it answers, or until this is to stop."""
        while True:
            try:
                return ask()
            except HistoryUnavailable as error:
                log.warning("history_not_reached", error=str(error), again_in_s=_AGAIN_S)
                if self._stop.wait(_AGAIN_S):
                    raise Stopped from error

    def _refuse_strangers(self) -> None:
        last = self._schema.known.next_id - 1
        stranger = self._until_done(lambda: next(iter(self._history.jobs(after_id=last)), None))
        if stranger is not None:
            raise CaptureRefused(
                f"{self._history.url} has jobs that this capture did not write: something else writes there",
                hint="a history belongs to one capture alone: no `schema import`, no other source",
            )

    def _push(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._bytes += len(entry.value or b"")

    def _clock_at(self, transaction: Transaction) -> int:
        """What the source's clock shows with it, in microseconds; one that goes back, or far ahead, stands still."""
        ahead = transaction.micros > (self._clock.now() + _AHEAD_S) * 1e6
        return max(round(self._moment * 1e6), 0 if ahead else transaction.micros)

    def _passed(self, clock: int) -> None:
        self._moment = clock / 1e6
        self._transactions += 1

    def _flush(self, *, always: bool = False, schema: int | None = None) -> None:
        """Publish what has gathered, behind the group before. Without entries the position alone, now and then.

        While more waits, the caller goes on with that; but not past prepared XA transactions: which of their files may
        go is known once the mark is decided.
        """
        if self._under_way is not None:
            try:
                self._under_way.result()
            finally:
                self._under_way = None
        due = self._prepared.save() or always or self._clock.monotonic() - self._marked_at >= _MARK_S
        mark = replace(
            self._journal.mark,
            gtid=str(self._gtids),
            moment=self._moment,
            schema=self._journal.mark.schema if schema is None else schema,
            transactions=self._transactions,
            server=self._server,
            file=self._place[0],
            offset=self._place[1],
            prepared=dict(self._prepared.places),
        )
        acknowledge, self._asked = partial(_acknowledge, self._stream, self._asked), None
        if not (self._entries or (mark != self._journal.mark and due)):
            acknowledge()  # of nothing that is ours
            return
        if self._inbox.busy and not (always or mark.prepared):
            self._under_way = self._beside.submit(self._publisher.publish, self._entries, mark, acknowledge)
        else:
            self._publisher.publish(self._entries, mark, acknowledge)
            self._prepared.tidy()
        self._entries, self._bytes = [], 0
        self._marked_at = self._clock.monotonic()


def _acknowledge(stream: Stream | None, asked: Group | None) -> None:
    """Let the source go on: all that was taken is on stable storage, and decided in the journal."""
    if asked is None or stream is None:
        return
    try:
        stream.acknowledge(asked)
    except SourceFailed as error:
        log.warning("not_acknowledged", error=str(error))  # the reader finds that out, too


def _off(connection: ServerConnection, source: SourceSettings, capture: CaptureSettings) -> BinlogError | None:
    """Why a server that is read is to be read no more."""
    if capture.hosts and (why := not_primary(connection, source)):
        return SourceFailed(f"it is not the source any more: {why}")
    if name := lacks(connection, hosts=False):
        return ConfigError(
            f"{where(source)} has become a replica, and {name} is OFF there: what it takes from another server is in "
            "no binlog of it",
            hint="set [source] to the primary, or name both in capture.hosts; what was changed since is in its binlog",
        )
    return None


class Parts:
    """What has come of a transaction that is larger than a group, in a file of a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._spool: Spool | None = None

    def whole(self, transaction: Transaction, value: bytes) -> bytes | Spool | None:
        """The transaction's value once its last part is here. A first part says that the source forgot those before."""
        if transaction.part == 0:
            self._spool = None
            if transaction.final:
                return value
        if self._spool is None:
            self._spool = Spool(self._directory, transaction.gtid)
        self._spool.add(value)
        if not transaction.final:
            return None
        whole, self._spool = self._spool, None
        return whole

    def take(self, transaction: Transaction) -> Spool | None:
        """What came before this part of a transaction, which is not decided as others are."""
        found, self._spool = self._spool, None
        return found if transaction.part else None

    def clear(self) -> None:
        """What has begun comes again."""
        self._spool = None


class _Inbox:
    """Items that were read ahead, bounded by their bytes. One puts, one takes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[tuple[Any, int]] = deque()
        self._bytes = 0
        self._closed = False
        self._changed = threading.Condition()

    def put(self, item: Item) -> None:
        """Wait for room; what is put behind the end is dropped."""
        size = len(item.data) if isinstance(item, Group) else 0
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._items or self._bytes + size <= self._limit)
            if self._closed:
                return
            self._items.append((item, size))
            self._bytes += size
            self._changed.notify_all()

    def take(self, timeout_s: float) -> Item | None:
        """The next one; None after so long."""
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._items), timeout_s):
                return None
            item, size = self._items.popleft()
            self._bytes -= size
            self._changed.notify_all()
            taken: Item = item
            return taken

    @property
    def busy(self) -> bool:
        """Whether a group waits."""
        with self._changed:
            return any(size for _, size in self._items)

    def close(self) -> None:
        """Nobody takes any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
