"""A source's binlog as groups of transactions: reads what the source sends, and lets kernels walk over it.

A group ends with the last transaction that is whole in what was read; what has begun is carried over to the next. Only
one that is larger than a group goes out in parts. So memory is bounded by the size of a group and the largest event.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NoReturn

import numpy as np

from pumphouse.capture.source import codes, events, tablemap, walk
from pumphouse.capture.source.gtid import Flavor
from pumphouse.capture.source.model import (
    Group,
    Heartbeat,
    Position,
    Query,
    RowsEvents,
    TableMap,
    Transaction,
    Xa,
    XaStep,
)
from pumphouse.capture.source.session import Session
from pumphouse.capture.source.statements import Word, savepoint_of, word_of
from pumphouse.codec.jit import Bytes, Ints
from pumphouse.errors import CaptureRefused
from pumphouse.settings import ServerSettings

_READ_BYTES = 1 << 20
_EVENTS = 1 << 14
_TABLES = 1 << 12
_DEFINITIONS = 1 << 12  # so many are kept from one group to the next
_PLACES = (walk.R_BITMAPS, walk.R_START, walk.R_END)
_FORMAT = (
    "no session of the source may write with binlog_format = STATEMENT or MIXED: take the right to set it away from"
    " users; what it changed is in no row: take a new dump of its tables behind it"
)
_LARGE = "make [capture] group_bytes larger than the transaction, and start the capture again"
_LATER = "a later release may read it; else begin behind it, with a new `pumphouse archive dump`"
_REFUSED = {
    codes.PARTIAL_UPDATE: (
        "parts of JSON values in place of rows",
        "on the source: SET GLOBAL binlog_row_value_options = ''; what was written before needs a new dump",
    ),
    codes.INCIDENT: (
        "an incident: the source lost events",
        "what it lost is in no binlog: begin behind it, with a new `pumphouse archive dump`",
    ),
    **dict.fromkeys(codes.LOAD_DATA, ("a LOAD DATA as a statement, and not its rows", _FORMAT)),
}
# Where the bytes of decompressed events lie until the group is put together: far behind any buffer.
_ASIDE = 1 << 48
_TAGGED_BYTES = 1 << 8  # more than a GTID event with a tag has
_UNSIGNED = 1 << 64  # a kernel holds numbers of MariaDB's transactions with a sign

# Of events: where they begin, their sizes, their types.
_Events = tuple[Ints, Ints, Ints]


@contextmanager
def open_stream(
    server: ServerSettings,
    start: Position,
    *,
    section: str,
    server_id: int,
    heartbeat_s: float = 1.0,
    semi_sync: bool = False,
    group_bytes: int = 8 << 20,
    stop: threading.Event | None = None,
) -> Iterator[Stream]:
    """Read a source's binlog behind a position, as long as the block lasts.

    Args:
        server: the source.
        start: what was read up to here is not read again. Without GTIDs its file and offset count. With semi-sync
            whoever waits for something before them is let go: they are on stable storage, or not named.
        section: of the settings that names the server, for messages.
        server_id: a number that no other replica of the source has.
        heartbeat_s: after so long without anything new there is a heartbeat.
        semi_sync: commits of the source wait until `Stream.acknowledge` is called.
        group_bytes: about so much is read at most before a group goes out.
        stop: set when nothing more is to be read.

    Raises:
        AccessDenied, ConfigError: the user may not read the binlog, or the server has none.
        SourceFailed: the source does not answer.
    """
    session = Session.open(
        server, start, section=section, server_id=server_id, heartbeat_s=heartbeat_s, semi_sync=semi_sync
    )
    try:
        if semi_sync and start.file:
            session.acknowledge(start.file, start.offset)
        yield Stream(session, start, semi_sync=semi_sync, group_bytes=group_bytes, stop=stop or threading.Event())
    finally:
        session.close()


class Stream:
    """Groups and heartbeats, in the source's order. One thread iterates; any may acknowledge."""

    def __init__(
        self, session: Session, start: Position, *, semi_sync: bool, group_bytes: int, stop: threading.Event
    ) -> None:
        self._session = session
        self._semi_sync = semi_sync
        self._stop = stop
        self._group_bytes = group_bytes
        self._reader = Reader(
            session.flavor, start, summed=session.summed, semi_sync=semi_sync, aside_bytes=group_bytes
        )

    def __iter__(self) -> Iterator[Group | Heartbeat]:
        """Read until ``stop`` is set.

        Raises:
            SourcePurged, SourceErrant: the source does not go on from the position.
            SourceFailed: it is lost: connect again, from the last position.
            CaptureRefused: it has, or lacks, something that makes rows inexact; it says what.
            CorruptionError: bytes that make no sense, or whose checksum is another one.
        """
        reader, heard = self._reader, time.monotonic()
        while not self._stop.is_set():
            got = self._session.read_into(reader.room())
            if got is None:
                raise self._session.lost("it closed the connection")
            if not got:
                if time.monotonic() - heard > self._session.silence_s:
                    raise self._session.lost(f"nothing came for {self._session.silence_s:g} s, not even a heartbeat")
                continue
            heard = time.monotonic()
            refused = reader.took(got)
            yield from reader.groups(self._group_bytes)
            while reader.behind:
                refused = reader.took(0)
                yield from reader.groups(self._group_bytes)
            if refused is not None:
                if not refused:
                    raise self._session.lost("it ended the binlog")
                self._session.refuse(refused, reader.position)

    @property
    def flavor(self) -> Flavor:
        """Whose binlog."""
        return self._session.flavor

    def acknowledge(self, group: Group) -> None:
        """With semi-sync: everything up to the end of this group is safe.

        Raises:
            SourceFailed: the connection is gone.
        """
        if group.acknowledge is not None:
            self._session.acknowledge(*group.acknowledge)


class Reader:
    """Bytes of packets in, groups out; no socket. Bytes are put into `room` and then said by `took`.

    Where that decompressed ``aside_bytes``, it stops, and is `behind`: groups go out, then it goes on with ``took(0)``.
    """

    def __init__(
        self,
        flavor: Flavor,
        start: Position,
        *,
        summed: bool,
        semi_sync: bool = False,
        aside_bytes: int = 8 << 20,
    ) -> None:
        self.behind = False
        self._aside_most = aside_bytes
        self._flavor = flavor
        self.position = start
        self._summed = summed
        self._semi_sync = semi_sync
        self._file = start.file
        self._data: Bytes = np.empty(2 * _READ_BYTES, np.uint8)
        self.used = 0
        self._seen = 0  # up to here packets were looked at
        self._events = _events(_EVENTS)
        self._found = np.zeros(walk.FOUND, np.int64)
        self._state = np.zeros(walk.STATES, np.int64)
        self._counts = np.zeros(4, np.int64)
        self._txns = np.zeros((1024, walk.T_COLUMNS), np.int64)
        self._rows = np.zeros((4096, walk.R_COLUMNS), np.int64)
        self._open_ids = np.zeros(_TABLES, np.int64)
        self._open_tables = np.zeros(_TABLES, np.int64)
        self._tables = _Definitions(flavor)
        self._aside: list[bytes | bytearray] = []
        self._aside_bytes = 0
        self._text_bytes = 0  # of statements that were decompressed
        self._queries: list[tuple[int, Query]] = []
        self._steps: dict[int, Xa] = {}
        self._savepoints: dict[tuple[int, bytes], int] = {}  # rows events before each
        self._files: dict[int, str] = {}  # of transactions before a rotation
        self._names: dict[bytes, str] = {}
        self._part = 0  # of the transaction that goes on from an earlier group
        self._going: Transaction | None = None
        self._acknowledge: tuple[str, int] | None = None
        self._heartbeat: Position | None = None

    # -- bytes in

    def room(self) -> memoryview:
        """Where the next bytes go; CorruptionError where one event has more than a server makes."""
        if self.used - self._seen > events.MAX_EVENT_BYTES:
            raise events.damaged(f"behind {self._place()} is an event of more than {events.MAX_EVENT_BYTES} bytes")
        if len(self._data) - self.used < _READ_BYTES:
            more = np.empty(2 * len(self._data), np.uint8)
            more[: self.used] = self._data[: self.used]
            self._data = more
        return self._data[self.used :].data

    def took(self, size: int) -> bytes | None:
        """So many bytes were put there. An error packet of the source, b"" at the binlog's end, else None."""
        self.used += size
        self.behind = False
        while True:
            walk.packets(self._data, self._seen, self.used, self._summed, self._semi_sync, *self._events, self._found)
            count, self._seen, why, asked = map(int, self._found)
            self._walk(self._data, 0, self._events, count, asked)
            if why == walk.FULL and self._aside_bytes + self._text_bytes >= self._aside_most:
                self.behind = True
                return None
            if why == walk.FORMAT:
                self._format(int(self._events[0][count - 1]), int(self._events[1][count - 1]))
            elif why == walk.MORE:
                return None
            elif why == walk.END:
                return b""
            elif why == walk.ERROR:
                size = int.from_bytes(self._data[self._seen : self._seen + 3].tobytes(), "little")
                return self._data[self._seen + 4 : self._seen + 4 + size].tobytes()
            elif why == walk.CHECKSUM:
                raise events.damaged(f"the checksum of an event behind {self._place()} is another one")
            elif why == walk.DAMAGED:
                raise events.damaged(f"a packet behind {self._place()} makes no sense")

    def _format(self, begin: int, size: int) -> None:
        """A format description says how the events behind it end."""
        self._summed = bool(self._data[begin + size - 1] == 1)
        created = int.from_bytes(self._data[begin + 71 : begin + 75].tobytes(), "little")
        if created and self._state[walk.STATE_IN] != walk.OUTSIDE:
            # The source's server was started anew: what was under way in its log before never ended.
            self._forget()

    # -- events

    def _walk(self, data: Bytes, base: int, found: _Events, count: int, asked: int = -1) -> None:
        """Have the kernel go over events; look at those that it stops at."""
        begins, sizes, types = found
        self._counts[0], self._counts[1] = 0, count
        while True:
            why = walk.transactions(
                data, base, *found, self._counts, self._state, self._open_ids, self._open_tables,
                self._tables.index(), self._txns, self._rows,
            )  # fmt: skip
            if why == walk.DONE:
                break
            at = int(self._counts[0])
            begin, size, kind = int(begins[at]), int(sizes[at]), int(types[at])
            if why == walk.ROOM:
                self._grow()
            elif why == walk.NEW_TABLE:
                self._new_table(data, begin + codes.HEADER + 8, begin + size)
            elif why == walk.STATEMENT:
                self._statement(data, base, begin, size)
                self._counts[0] += 1
            elif why == walk.OTHER:
                self._other(data, base, begin, size, kind)
                self._counts[0] += 1
            else:
                self._damaged(why, kind)
        if asked >= 0:
            end = data[begins[asked] + 13 : begins[asked] + 17].tobytes()
            self._acknowledge = self._file, int.from_bytes(end, "little")

    def _grow(self) -> None:
        if self._counts[2] >= len(self._txns):
            self._txns = np.concatenate([self._txns, np.zeros_like(self._txns)])
        elif self._counts[3] >= len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        else:
            more = np.zeros_like(self._open_ids)
            self._open_ids = np.concatenate([self._open_ids, more])
            self._open_tables = np.concatenate([self._open_tables, more])

    def _damaged(self, why: int, kind: int) -> NoReturn:
        what = {
            walk.UNKNOWN_TABLE: "it has rows of a table that it has not named",
            walk.NO_TRANSACTION: f"an event of type {kind} is in no transaction",
            walk.UNFINISHED: "a transaction begins in the middle of another one",
        }.get(why, f"an event of type {kind} ends in the middle")
        raise events.damaged(f"behind {self._place()} {what}")

    def _new_table(self, data: Bytes, begin: int, end: int) -> None:
        self._tables.add(data[begin:end].tobytes())

    def _statement(self, data: Bytes, base: int, begin: int, size: int, *, compressed: bool = False) -> None:
        seconds = int.from_bytes(data[begin : begin + 4].tobytes(), "little")
        body = data[begin + codes.HEADER : begin + size].tobytes()
        with self._named():
            found = events.query(body, seconds, int(self._counts[3]), compressed=compressed)
        self._text_bytes += len(found.text) if compressed else 0
        inside = int(self._state[walk.STATE_IN])
        word = word_of(found.text)
        if inside == walk.OUTSIDE:
            if word in (Word.NOTHING, Word.SAVEPOINT) or not found.text:
                return
            self._damaged(walk.NO_TRANSACTION, codes.QUERY)
        ends = inside == walk.OPENED
        if word is Word.BEGIN:
            self._state[walk.STATE_IN] = walk.BEGUN
            ends = False
        elif word is Word.COMMIT:
            ends = True
        elif word is Word.ROLLBACK:
            ends = True
            self._begin_anew()
            self._undo(int(self._txns[self._counts[2], walk.T_FIRST]))
        elif word in (Word.SAVEPOINT, Word.ROLLBACK_TO):
            self._savepoint(found, back=word is Word.ROLLBACK_TO)
        elif word is Word.ROWS:
            self._refuse(found, "a statement that changes rows, and not the rows", _FORMAT)
        elif word is Word.XA:
            ends = self._xa(found, ends)
        elif word is Word.OTHER:
            if found.unknown >= 0:
                self._refuse(found, f"a statement with the unknown status variable {found.unknown}", _LATER)
            self._queries.append((int(self._counts[2]), found))
        self._note(data, base, begin, size, whole=ends)

    def _savepoint(self, found: Query, *, back: bool) -> None:
        place = int(self._counts[2]), savepoint_of(found.text)
        if not back:
            self._savepoints[place] = int(self._counts[3])
        elif place in self._savepoints:
            self._undo(self._savepoints[place])
        else:
            self._refuse(found, "a return to a savepoint whose rows have been given out", _LARGE)

    def _undo(self, rows: int) -> None:
        """What the transaction under way has behind so many rows events never was.

        A MariaDB writes it where a temporary table came or went between: tables that are captured are transactional.
        """
        self._counts[3] = rows
        at = int(self._counts[2])
        self._queries = [each for each in self._queries if each[0] != at or each[1].before <= rows]

    def _xa(self, found: Query, ends: bool) -> bool:
        """A statement of XA; whether the transaction ends with it."""
        step, xid = events.xa_statement(found.text.decode("utf-8", "replace")) or ("", "")
        if step in ("start", "begin"):
            self._state[walk.STATE_IN] = walk.BEGUN
            return False
        if step in ("commit", "rollback"):
            if xid.upper().endswith("ONE PHASE"):
                return True
            self._steps[int(self._counts[2])] = Xa(XaStep(step), xid)
            return True
        return ends and step not in ("end", "prepare")

    def _refuse(self, found: Query, what: str, hint: str) -> NoReturn:
        text = found.text[:120].decode("utf-8", "replace")
        raise CaptureRefused(f"{self._place()}: the binlog has {what}: {text}", hint=hint, place=self._place())

    @contextmanager
    def _named(self) -> Iterator[None]:
        """What is refused inside is named with its place."""
        try:
            yield
        except CaptureRefused as error:
            raise CaptureRefused(f"{self._place()}: {error.message}", hint=error.advice, place=self._place()) from error

    def _other(self, data: Bytes, base: int, begin: int, size: int, kind: int) -> None:
        body = data[begin + codes.HEADER : begin + size].tobytes() if kind != codes.FORMAT else b""
        handle = self._handlers().get(kind)
        if handle is not None:
            handle(data, base, begin, size, body)
        elif kind in codes.ROWS_COMPRESSED:
            self._compressed_rows(data, begin, size, kind)
            self._note(data, base, begin, size)
        elif kind in codes.BESIDE_STATEMENTS or kind in (codes.FORMAT, codes.START_ENCRYPTION):
            # A server that encrypts its files sends events in the clear.
            self._note(data, base, begin, size)
        else:
            flags = int.from_bytes(data[begin + 17 : begin + 19].tobytes(), "little")
            if not flags & codes.IGNORABLE_FLAG:
                what, hint = _REFUSED.get(kind, (f"an event of the unknown type {kind}", "a later release may read it"))
                raise CaptureRefused(f"{self._place()}: the binlog has {what}", hint=hint, place=self._place())
            self._note(data, base, begin, size)

    def _handlers(self) -> dict[int, Callable[[Bytes, int, int, int, bytes], None]]:
        return {
            codes.ROTATE: self._rotate,
            codes.HEARTBEAT: self._beat,
            codes.HEARTBEAT_V2: self._beat,
            codes.XA_PREPARE: self._prepare,
            codes.GTID_TAGGED: self._tagged,
            codes.QUERY_COMPRESSED: lambda data, base, begin, size, _: self._statement(
                data, base, begin, size, compressed=True
            ),
            codes.TRANSACTION_PAYLOAD: self._payload,
        }

    def _rotate(self, _data: Bytes, _base: int, _begin: int, _size: int, body: bytes) -> None:
        for each in range(int(self._counts[2])):
            self._files.setdefault(each, self._file)
        self._file, at = events.rotation(body)
        known = self.position.gtids or self.position.file
        if known and self._state[walk.STATE_IN] == walk.OUTSIDE and not self._counts[2]:
            self.position = replace(self.position, file=self._file, offset=at)

    def _beat(self, data: Bytes, _base: int, begin: int, _size: int, body: bytes) -> None:
        file, at = events.heartbeat(body, second=data[begin + 4] == codes.HEARTBEAT_V2)
        here = int.from_bytes(data[begin + 13 : begin + 17].tobytes(), "little") if at is None else at
        self._heartbeat = Position(gtids=self.position.gtids, file=file or self._file, offset=here)

    def _tagged(self, data: Bytes, base: int, begin: int, size: int, body: bytes) -> None:
        """A MySQL's transaction with a tag begins; the kernel begins those without one."""
        if self._state[walk.STATE_IN] != walk.OUTSIDE:
            self._damaged(walk.UNFINISHED, codes.GTID_TAGGED)
        if self._counts[2] >= len(self._txns):
            self._grow()
        with self._named():
            _, number, micros = events.tagged(body)
        row = self._txns[self._counts[2]]
        row[:] = 0
        row[walk.T_AT], row[walk.T_FIRST] = base + begin, self._counts[3]
        row[walk.T_SECONDS] = int.from_bytes(data[begin : begin + 4].tobytes(), "little")
        row[walk.T_SERVER] = int.from_bytes(data[begin + 5 : begin + 9].tobytes(), "little")
        row[walk.T_NUMBER], row[walk.T_MICROS] = number, micros
        self._state[walk.STATE_IN], self._state[walk.STATE_OPEN] = walk.OPENED, 0
        self._note(data, base, begin, size)

    def _prepare(self, data: Bytes, base: int, begin: int, size: int, body: bytes) -> None:
        if self._state[walk.STATE_IN] == walk.OUTSIDE:
            self._damaged(walk.NO_TRANSACTION, codes.XA_PREPARE)
        step = events.xa_prepare(body)
        if step is not None:
            self._steps[int(self._counts[2])] = step
        self._note(data, base, begin, size, whole=True)

    def _payload(self, data: Bytes, base: int, begin: int, size: int, body: bytes) -> None:
        with self._named():
            plain = bytearray(events.unpacked(body))
        inner = np.frombuffer(plain, np.uint8)
        columns = _events(max(1024, len(inner) // 64))
        while (count := walk.plain_events(inner, *columns)) == -2:
            columns = _events(2 * len(columns[0]))
        if count < 0:
            raise events.damaged(f"behind {self._place()} a compressed transaction makes no sense")
        outer = self._counts[:2].copy()
        transaction = int(self._counts[2])
        self._walk(inner, self._put_aside(plain), columns, count)
        self._counts[:2] = outer
        # Its inner events have no place in the file.
        for column, value in (
            (walk.T_END, base + begin + size),
            (walk.T_FILE_END, int.from_bytes(data[begin + 13 : begin + 17].tobytes(), "little")),
        ):
            self._txns[transaction, column] = value

    def _compressed_rows(self, data: Bytes, begin: int, size: int, kind: int) -> None:
        """MariaDB's: table, flags, columns and bitmaps as they are, then the images by zlib."""
        if self._state[walk.STATE_IN] == walk.OUTSIDE:
            self._damaged(walk.NO_TRANSACTION, kind)
        plain = kind - 166 + codes.WRITE_V1 if kind < 169 else kind - 169 + codes.WRITE_V2
        head = data[begin : begin + size].tobytes()
        fields = events.Fields(head, "a rows event")
        fields.take(codes.HEADER + 8)
        if plain >= codes.WRITE_V2:
            fields.take(fields.number(2) - 2)
        width = fields.lenenc()
        fields.take((width + 7) // 8 * (2 if plain in (codes.UPDATE_V1, codes.UPDATE_V2) else 1))
        whole = bytearray(head[: fields.at] + events.inflated(head[fields.at :]))
        whole[4] = plain
        inner = np.frombuffer(whole, np.uint8)
        one = (np.zeros(1, np.int64), np.array([len(inner)]), np.array([plain]))
        outer = self._counts[:2].copy()
        kept = self._txns[self._counts[2]].copy()
        self._walk(inner, self._put_aside(whole), one, 1)
        kept[walk.T_LAST] = self._counts[3]
        self._txns[self._counts[2]] = kept
        self._counts[:2] = outer

    def _put_aside(self, data: bytes | bytearray) -> int:
        """Keep decompressed bytes for the group; where they will be, before the buffer's size is known."""
        base = _ASIDE + self._aside_bytes
        self._aside.append(data)
        self._aside_bytes += len(data)
        return base

    def _note(self, data: Bytes, base: int, begin: int, size: int, *, whole: bool = False) -> None:
        """An event belongs to the transaction that is under way; with ``whole`` it ends that."""
        if self._state[walk.STATE_IN] == walk.OUTSIDE:
            return
        row = self._txns[self._counts[2]]
        row[walk.T_END] = base + begin + size
        row[walk.T_FILE_END] = int.from_bytes(data[begin + 13 : begin + 17].tobytes(), "little")
        row[walk.T_LAST] = self._counts[3]
        if whole:
            row[walk.T_WHOLE] = 1
            self._state[walk.STATE_IN] = walk.OUTSIDE
            self._counts[2] += 1

    def _forget(self) -> None:
        """What is under way never ended."""
        at = int(self._counts[2])
        self._counts[3] = self._txns[at, walk.T_FIRST]
        self._queries = [each for each in self._queries if each[0] != at]
        self._steps.pop(at, None)
        self._savepoints.clear()
        self._state[walk.STATE_IN] = walk.OUTSIDE
        self._begin_anew()

    def _begin_anew(self) -> None:
        """What has been given out of the transaction under way is forgotten; another's parts stay what they are."""
        if self._txns[self._counts[2], walk.T_AT] < 0:
            self._part = 0

    def _place(self) -> str:
        return str(self.position) or "the beginning"

    # -- groups out

    def groups(self, most: int) -> Iterator[Group | Heartbeat]:
        """What is whole by now; or a part of a transaction, where whole events of it have so many bytes or more."""
        count = int(self._counts[2])
        part = bool(not count and self._seen + self._aside_bytes >= most and self._state[walk.STATE_IN] != walk.OUTSIDE)
        if count or part:
            self._heartbeat = None  # it may be from before the group's end
            yield self._group(count, part=part)
        elif self._state[walk.STATE_IN] == walk.OUTSIDE and self._seen:
            self._drop(self._seen)
        if self._heartbeat is not None and self._state[walk.STATE_IN] == walk.OUTSIDE:
            beat, self._heartbeat = self._heartbeat, None
            yield Heartbeat(position=replace(beat, gtids=self.position.gtids), seconds=time.time())

    def _group(self, count: int, *, part: bool) -> Group:
        """Put it together, and begin the next buffer with what is left."""
        taken = count + part
        rows_end = int(self._txns[taken - 1, walk.T_LAST])
        transactions = self._transactions(taken, part=part)
        end = self._end(transactions)
        rows = self._rows[:rows_end].T.copy()
        group = Group(
            data=self._whole_data(rows),
            tables=self._tables.all(),
            events=RowsEvents(
                table=rows[walk.R_TABLE],
                kind=rows[walk.R_KIND],
                bitmaps=rows[walk.R_BITMAPS],
                start=rows[walk.R_START],
                end=rows[walk.R_END],
                flags=rows[walk.R_FLAGS],
            ),
            transactions=transactions,
            end=end,
            acknowledge=self._acknowledge,
        )
        self.position = end
        self._acknowledge = None
        self._begin_next(taken, rows_end, transactions[-1] if part else None)
        return group

    def _end(self, transactions: tuple[Transaction, ...]) -> Position:
        """The position behind those that are whole."""
        whole = transactions if transactions[-1].final else transactions[:-1]
        if not whole:
            return self.position
        last, here = whole[-1], self.position
        gtids = [each.gtid for each in whole if each.has_gtid] if here.gtids or not here.file else []
        return Position(gtids=here.gtids.plus(*gtids), file=last.file, offset=last.end)

    def _whole_data(self, rows: Ints) -> Bytes:
        """The buffer, with what was decompressed behind it."""
        if not self._aside:
            return self._data
        size = self._seen
        for column in _PLACES:
            rows[column] = np.where(rows[column] >= _ASIDE, rows[column] - _ASIDE + size, rows[column])
        return np.concatenate([self._data[:size], np.frombuffer(b"".join(self._aside), np.uint8)])

    def _transactions(self, taken: int, *, part: bool) -> tuple[Transaction, ...]:
        out = []
        queries: dict[int, list[Query]] = {}
        for at, query in self._queries:
            queries.setdefault(at, []).append(query)
        steps, files, file = self._steps, self._files, self._file
        for at, row in enumerate(self._txns[:taken].tolist()):
            going = self._going if row[walk.T_AT] < 0 else None
            gtid, has_gtid = (going.gtid, going.has_gtid) if going else self._gtid(row)
            out.append(
                Transaction(
                    gtid,
                    has_gtid,
                    row[walk.T_SERVER],
                    row[walk.T_MICROS] or row[walk.T_SECONDS] * 1_000_000,
                    row[walk.T_FIRST],
                    row[walk.T_LAST],
                    tuple(queries[at]) if at in queries else (),
                    self._part if going else 0,
                    not part or at < taken - 1,
                    steps.get(at) if steps else None,
                    row[walk.T_END] - max(row[walk.T_AT], 0),
                    files.get(at, file) if files else file,
                    row[walk.T_FILE_END],
                )
            )
        return tuple(out)

    def _gtid(self, row: list[int]) -> tuple[str, bool]:
        number = row[walk.T_NUMBER]
        if self._flavor is Flavor.MARIADB:
            return f"{row[walk.T_DOMAIN]}-{row[walk.T_SERVER]}-{number % _UNSIGNED}", True
        if not number:
            return f"{self._file}:{row[walk.T_FILE_END]}", False
        if number < 0:
            raise events.damaged(f"behind {self._place()} is a transaction of the number {number}")
        if self._data[row[walk.T_AT] + 4] == codes.GTID_TAGGED:
            begin = row[walk.T_AT] + codes.HEADER
            tagged, _, _ = events.tagged(self._data[begin : begin + _TAGGED_BYTES].tobytes())
            return f"{tagged}:{number}", True
        raw = self._data[row[walk.T_AT] + codes.HEADER + 1 : row[walk.T_AT] + codes.HEADER + 17].tobytes()
        name = self._names.get(raw)
        if name is None:
            name = self._names[raw] = str(uuid.UUID(bytes=raw))
        return f"{name}:{number}", True

    def _begin_next(self, taken: int, rows_end: int, part: Transaction | None) -> None:
        """Carry over what is under way."""
        going = part is None and self._state[walk.STATE_IN] != walk.OUTSIDE
        noted = int(self._counts[3])
        cut = int(self._txns[taken, walk.T_AT]) if going else self._seen
        left = self.used - cut
        fresh = np.empty(max(2 * _READ_BYTES, left + _READ_BYTES), np.uint8)
        fresh[:left] = self._data[cut : self.used]
        self._data, self.used, self._seen = fresh, left, self._seen - cut
        rows = self._rows[rows_end:noted].copy()
        self._carry_aside(rows)
        for column in _PLACES:
            rows[:, column] -= np.where(rows[:, column] < _ASIDE, cut, 0)
        self._rows[: len(rows)] = rows
        self._counts[2], self._counts[3] = 0, len(rows)
        self._queries = [
            (0, replace(query, before=query.before - rows_end)) for at, query in self._queries if going and at == taken
        ]
        self._steps, self._files, self._text_bytes = {}, {}, 0
        self._going = None
        self._savepoints = {
            (0, name): rows_before - rows_end
            for (at, name), rows_before in self._savepoints.items()
            if going and at == taken
        }
        if self._state[walk.STATE_IN] == walk.OUTSIDE and len(self._tables.all()) > _DEFINITIONS:
            self._tables = _Definitions(self._flavor)  # every transaction names its tables anew
        if part is not None:
            self._part, self._going = part.part + 1, part
            self._txns[0] = self._txns[taken - 1]
            self._txns[0, walk.T_AT] = -1
            self._txns[0, walk.T_END] = self._txns[0, walk.T_FIRST] = self._txns[0, walk.T_LAST] = 0
        elif going:
            self._part = 0
            self._txns[0] = self._txns[taken]
            self._txns[0, walk.T_AT] = 0
            self._txns[0, walk.T_END] -= cut
            self._txns[0, walk.T_FIRST] -= rows_end
            self._txns[0, walk.T_LAST] -= rows_end

    def _carry_aside(self, rows: Ints) -> None:
        """Of what was decompressed, keep what these rows events lie in."""
        places = rows[:, walk.R_BITMAPS]
        there = places[places >= _ASIDE]
        if not len(there):
            self._aside, self._aside_bytes = [], 0
            return
        low = int(there.min())
        kept = b"".join(self._aside)[low - _ASIDE :]
        self._aside, self._aside_bytes = [kept], len(kept)
        for column in _PLACES:
            rows[:, column] -= np.where(rows[:, column] >= _ASIDE, low - _ASIDE, 0)

    def _drop(self, upto: int) -> None:
        """Forget bytes that nobody needs."""
        left = self.used - upto
        self._data[:left] = self._data[upto : self.used].copy()
        self.used, self._seen = left, 0


def _events(count: int) -> _Events:
    return np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)


class _Definitions:
    """Tables by the bytes of their definitions, for `walk.transactions`: a hash table that Python fills."""

    def __init__(self, flavor: Flavor) -> None:
        self._flavor = flavor
        self._maps: list[TableMap] = []
        self._all: tuple[TableMap, ...] = ()
        self._slots = np.full(256, -1, np.int64)
        self._hashes = np.zeros(64, np.uint64)
        self._places = np.zeros(65, np.int64)
        self._kept: Bytes = np.zeros(1 << 14, np.uint8)
        self._widths = np.zeros(64, np.int64)

    def index(self) -> walk.Definitions:
        """As the kernel takes it."""
        return self._slots, self._hashes, self._places, self._kept, self._widths

    def all(self) -> tuple[TableMap, ...]:
        """By number."""
        return self._all

    def add(self, definition: bytes) -> None:
        """One more; CorruptionError where it makes no sense."""
        made, number = tablemap.read(definition, self._flavor), len(self._maps)
        begin = int(self._places[number])
        end = begin + len(definition)
        if end > len(self._kept):
            self._kept = np.concatenate([self._kept, np.zeros(max(end, len(self._kept)), np.uint8)])
        if number + 1 >= len(self._hashes):
            self._hashes = np.concatenate([self._hashes, np.zeros_like(self._hashes)])
            self._places = np.concatenate([self._places, np.zeros_like(self._places)])
            self._widths = np.concatenate([self._widths, np.zeros_like(self._widths)])
        self._kept[begin:end] = np.frombuffer(definition, np.uint8)
        self._places[number + 1] = end
        self._widths[number] = len(made.columns)
        self._hashes[number] = walk.definition_hash(self._kept, begin, end)
        self._maps.append(made)
        self._all = tuple(self._maps)
        if 2 * len(self._maps) > len(self._slots):
            self._slots = np.full(2 * len(self._slots), -1, np.int64)
            for each in range(number):
                self._place(each)
        self._place(number)

    def _place(self, number: int) -> None:
        mask = len(self._slots) - 1
        slot = int(self._hashes[number]) & mask
        while self._slots[slot] >= 0:
            slot = (slot + 1) & mask
        self._slots[slot] = number
