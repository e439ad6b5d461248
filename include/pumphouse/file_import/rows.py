"""Events of files as row changes of TiDB Binlog: a shape of events is held against its table once, then kernels run."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import re
import zoneinfo
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pumphouse.codec.datum import COMPACT, JSON, NULL, Kind, encode_value, kind_of, read_datum
from pumphouse.codec.jit import Bytes, Ints, frozen
from pumphouse.codec.json import encode_json
from pumphouse.codec.row import key_parts
from pumphouse.codec.time import fsp_of
from pumphouse.errors import BadRecord, CodecError, ConfigError, ImportRefused
from pumphouse.file_import import kernels
from pumphouse.file_import.files import Block
from pumphouse.model.table import ColumnInfo, FieldType, MysqlType, TableInfo
from pumphouse.model.tso import show

_EVENTS, _COLUMNS = 1 << 15, 1 << 17
_ALIKE = {int(MysqlType.VAR_STRING): int(MysqlType.VARCHAR)}
_OPS = {
    Kind.INT: kernels.SIGNED, Kind.UINT: kernels.UNSIGNED, Kind.FLOAT: kernels.FLOAT, Kind.DOUBLE: kernels.FLOAT,
    Kind.DECIMAL: kernels.DECIMAL, Kind.DATE: kernels.DATE, Kind.DATETIME: kernels.DATETIME, Kind.TIME: kernels.TIME,
    Kind.JSON: kernels.JSON, Kind.BYTES: kernels.BYTES, Kind.ENUM: kernels.UNSIGNED, Kind.SET: kernels.UNSIGNED,
}  # fmt: skip
_WHY = {
    kernels.NO_VALUE: "has no value",
    kernels.BAD_TYPE: "is a value of another type than the column's",
    kernels.BAD_TEXT: "is no date, time or number",
    kernels.OUT_OF_RANGE: "does not fit the column",
    kernels.NO_TIME: "is no time in the zone (--time-zone): its clocks went forward over it",
    kernels.TWO_TIMES: "is two times in the zone (--time-zone): its clocks went back over it",
    kernels.NO_KEY: "is NULL or missing in the primary key",
}
# Kinds whose values may stand there as text: a Drainer gives a column that an inserted row lacks its default, and the
# schema has that as text.
_NUMBERS = {
    Kind.INT: (re.compile(rb"[+-]?[0-9]{1,20}"), int), Kind.UINT: (re.compile(rb"\+?[0-9]{1,20}"), int),
    **dict.fromkeys(
        (Kind.FLOAT, Kind.DOUBLE), (re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?"), float)
    ),
}  # fmt: skip
_WORDS = ("insert", "update", "delete")
_YEARS = 1970, 2039  # of TIMESTAMPs


def zone_table(name: str) -> Ints:
    """Local seconds from which on a zone has an offset, and the offset (or AMBIGUOUS, GAP); '' = no zone is known.

    Raises:
        ConfigError: this machine does not know the zone.
    """
    if not name:
        return np.zeros((2, 0), np.int64)
    try:
        zone = dt.UTC if name.upper() == "UTC" else zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        if len(name) == 6 and name[0] in "+-" and name[3] == ":" and (name[1:3] + name[4:]).isdigit():
            offset = int(name[1:3]) * 3600 + int(name[4:]) * 60
            return np.array([[-(1 << 62)], [-offset if name[0] == "-" else offset]], np.int64)
        raise ConfigError(
            f"this machine does not know the time zone {name!r}", hint="as Asia/Shanghai, UTC or +08:00"
        ) from None

    def offset_at(seconds: int) -> int:
        told = dt.datetime.fromtimestamp(seconds, zone).utcoffset()
        return round((told or dt.timedelta()).total_seconds())

    begin, end = (int(dt.datetime(year, 1, 1, tzinfo=dt.UTC).timestamp()) for year in _YEARS)
    offset, found = offset_at(begin), [(-(1 << 62), offset_at(begin))]
    for day in range(begin, end, 86_400):
        if (then := offset_at(day + 86_400)) == offset:
            continue
        low, high = day, day + 86_400
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if offset_at(middle) == offset else (low, middle)
        # What the clocks show twice, or never, lies between the two local times of the change.
        first, behind = sorted((high + offset, high + then))
        found += [(first, kernels.GAP if then > offset else kernels.AMBIGUOUS), (behind, then)]
        offset = then
    return np.array(found, np.int64).T.copy()


@dataclass(frozen=True, slots=True)
class _Shape:
    """What all events with the same names, columns and kind have in common."""

    plans: Ints
    table_id: int
    handle: int
    keys: int
    json: tuple[int, ...]
    numbers: tuple[tuple[int, FieldType], ...]
    name: str
    columns: tuple[str, ...]


class RowReader:
    """Turns the events of blocks into payloads.

    Args:
        zone: of TIMESTAMPs in the files (`zone_table`).
    """

    def __init__(self, zone: Ints) -> None:
        self._zone = zone
        self._tables: Mapping[tuple[str, str], TableInfo] = {}
        self._version = 0
        self._shapes: dict[tuple[object, ...], _Shape] = {}
        self._events = np.empty((_EVENTS, kernels.E_FIELDS), np.int64)
        self._columns = np.empty((_COLUMNS, kernels.C_FIELDS), np.int64)

    def renew(self, tables: Mapping[tuple[str, str], TableInfo], version: int) -> None:
        """The schema is another one from now on."""
        self._tables, self._version = tables, version
        self._shapes.clear()

    def payloads(self, block: Block, first: int, last: int) -> tuple[pa.RecordBatch, int]:
        """Frames ``range(first, last)``, which are no DDLs, as rows of a segment; and how many changes they have.

        Raises:
            BadRecord: a frame cannot be read.
            ImportRefused: an event fits no table, or a value its column.
        """
        starts, lengths = block.starts[first:last], block.lengths[first:last]
        state = np.zeros(kernels.W_FIELDS, np.int64)
        pieces: list[tuple[Ints, Bytes]] = []  # transaction and mutations of each run
        changes, why = 0, kernels.FULL
        while why != kernels.DONE:
            why = kernels.walk(block.data, starts, lengths, self._events, self._columns, state)
            count, used = int(state[kernels.W_EVENTS]), int(state[kernels.W_COLUMNS])
            if why == kernels.DAMAGED:
                place = block.place(first + int(state[kernels.W_FRAME]))
                raise BadRecord(
                    f"{place}: the events of a transaction cannot be read",
                    hint="its checksum is right: what wrote it is no Drainer that is known here",
                    path=block.file.name, offset=block.offset, reason="events",
                )  # fmt: skip
            if why == kernels.FULL and not count:
                self._columns = np.empty((2 * len(self._columns), kernels.C_FIELDS), np.int64)
                continue
            if count:
                pieces.append(self._mutations(block, first, self._events[:count], self._columns[:used]))
                changes += count
        return self._batch(block.commit_ts[first:last], pieces), changes

    def _mutations(self, block: Block, first: int, events: Ints, columns: Ints) -> tuple[Ints, Bytes]:
        """Bytes of mutations by transaction: (transactions, where each one's end), and the bytes."""
        shapes, of = self._shapes_of(block, first, events, columns)
        data = self._documents(block, first, events, columns, shapes, of)
        sizes = np.maximum(columns[:, kernels.C_OLD_LEN], 0) + np.maximum(columns[:, kernels.C_NEW_LEN], 0)
        room = 2 * int(sizes.sum()) + kernels.VALUE_ROOM * len(columns) + kernels.EVENT_ROOM * len(events)
        images = np.empty(room, np.uint8)
        rows, failed = np.empty((2 * len(events), kernels.R_FIELDS), np.int64), np.zeros(2, np.int64)
        plans = np.concatenate([each.plans for each in shapes])
        table = np.zeros((len(shapes), kernels.T_FIELDS), np.int64)
        table[:, kernels.T_FIRST] = np.cumsum([0, *(len(each.plans) for each in shapes[:-1])])
        table[:, kernels.T_TABLE] = [each.table_id for each in shapes]
        table[:, kernels.T_HANDLE] = [each.handle for each in shapes]
        table[:, kernels.T_KEYS] = [each.keys for each in shapes]
        count = kernels.encode(data, events, columns, of, table, plans, self._zone, images, rows, failed)
        if count == kernels.BAD_TYPE:
            data = _with_numbers(data, events, columns, shapes, of)
            count = kernels.encode(data, events, columns, of, table, plans, self._zone, images, rows, failed)
        if count < 0:
            event, column = map(int, failed)
            shape = shapes[int(of[event])]
            name = shape.columns[column] if column >= 0 else "a column of the key"
            raise self._refused(block, first, events[event], f"{shape.name}.{name} {_WHY[count]}")
        rows = rows[:count]
        runs = np.empty((count, 3), np.int64)
        runs = runs[: kernels.lay_out(rows, runs)]
        whole = np.array([1 + _uvarint_bytes(size) + size for size in runs[:, 2].tolist()], np.int64)
        ends = np.cumsum(whole)
        out = np.empty(int(ends[-1]), np.uint8)
        kernels.put_mutations(images, rows, runs, ends - whole, out)
        return np.stack([rows[runs[:, 0], kernels.R_TXN], ends]), out

    def _batch(self, commits: Ints, pieces: Sequence[tuple[Ints, Bytes]]) -> pa.RecordBatch:
        """Transactions with their mutations, one row each; those without any are left out."""
        bodies = np.zeros(len(commits), np.int64)
        for of, _ in pieces:
            np.add.at(bodies, of[0], np.diff(of[1], prepend=0))
        kept = np.flatnonzero(bodies)
        commits, bodies = np.ascontiguousarray(commits[kept]), bodies[kept]
        sizes, places = np.empty(len(kept), np.int64), np.empty(len(kept), np.int64)
        kernels.binlog_bytes(commits, bodies, self._version, sizes)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        out = np.empty(int(offsets[-1]), np.uint8)
        kernels.put_heads(commits, bodies, self._version, offsets[:-1], places, out)
        # Mutations stand in the order of transactions in every piece, and one transaction may be in several.
        at = {int(frame): int(place) for frame, place in zip(kept, places, strict=True)} if len(pieces) > 1 else {}
        for of, data in pieces:
            frames, ends = of
            last = np.flatnonzero(np.diff(frames, append=-1))
            begin = 0
            if not at:
                kernels.copy_runs(data, np.ascontiguousarray(ends[last]), places, out)
                continue
            for each in last.tolist():
                frame, end = int(frames[each]), int(ends[each])
                out[at[frame] : at[frame] + end - begin] = data[begin:end]
                at[frame] += end - begin
                begin = end
        payload = pa.Array.from_buffers(pa.large_binary(), len(kept), [None, pa.py_buffer(offsets), pa.py_buffer(out)])
        return pa.RecordBatch.from_arrays(
            [pa.array(commits), pa.array(commits - 1), pa.array(np.zeros(len(kept), np.int64)), payload],
            names=["commit_ts", "start_ts", "ddl_job_id", "payload"],
        )

    def _shapes_of(self, block: Block, first: int, events: Ints, columns: Ints) -> tuple[list[_Shape], Ints]:
        _, models, of = np.unique(events[:, kernels.E_SHAPE], return_index=True, return_inverse=True)
        of = np.ascontiguousarray(of.reshape(-1), np.int64)
        if kernels.unlike(block.data, events, columns, np.ascontiguousarray(models, np.int64), of) >= 0:
            raise CodecError("two kinds of events have one digest of 64 bits")
        shapes = []
        for model in models.tolist():
            event = events[model]
            own = columns[event[kernels.E_FIRST] : event[kernels.E_FIRST] + event[kernels.E_COLUMNS]]
            db, table = (
                _text(block, event[at], event[size])
                for at, size in ((kernels.E_DB, kernels.E_DB_LEN), (kernels.E_TABLE, kernels.E_TABLE_LEN))
            )
            names = tuple(_text(block, each[kernels.C_NAME], each[kernels.C_NAME_LEN]) for each in own)
            key = (db, table, int(event[kernels.E_OP]), names, tuple(own[:, kernels.C_TP].tolist()))
            shape = self._shapes.get(key)
            if shape is None:
                shape = self._shapes[key] = self._shape(block, first, event, db, table, names, own)
            shapes.append(shape)
        return shapes, of

    def _shape(
        self, block: Block, first: int, event: Ints, db: str, table: str, names: tuple[str, ...], own: Ints
    ) -> _Shape:
        info, called = self._tables.get((db, table)), f"{db}.{table}"
        if info is None:
            raise self._refused(
                block, first, event, f"no DDL in the files made {called}",
                hint="the files begin behind it: --schema FILE has the CREATE statements of what was there before",
            )  # fmt: skip
        known = {column.name.lower(): column for column in info.public_columns}
        parts = {column.id: at for at, (column, _) in enumerate(key_parts(info))}
        op = int(event[kernels.E_OP])
        plans = np.full((len(names), kernels.P_FIELDS), -1, np.int64)
        seen = set()
        for plan, name, tp in zip(plans, names, own[:, kernels.C_TP].tolist(), strict=True):
            column = known.get(name.lower())
            what = ""
            if column is None:
                what = f"{called} has no column {name}"
            elif name.lower() in seen:
                what = f"{called}.{name} is there twice"
            elif _ALIKE.get(tp, tp) != _ALIKE.get(int(column.type.tp), int(column.type.tp)):
                what = f"{called}.{name} has type {tp} there, and {int(column.type.tp)} by the DDLs"
            if what or column is None:
                raise self._refused(block, first, event, what)
            seen.add(name.lower())
            self._plan(block, first, event, plan, column, called)
            plan[kernels.P_KEY] = parts.get(column.id, -1)
        needed = [c for c in info.public_columns if not c.generated and (op != kernels.DELETE or c.id in parts)]
        if lacking := [c.name for c in needed if c.name.lower() not in seen]:
            raise self._refused(block, first, event, f"it lacks {called}.{lacking[0]}")
        handle = kernels.INTEGER if info.pk_is_handle else kernels.COMMON if info.is_common_handle else kernels.HIDDEN
        json = tuple(np.flatnonzero(plans[:, kernels.P_OP] == kernels.JSON).tolist())
        types = [known[name.lower()].type for name in names]
        numbers = tuple(
            (at, each) for at, each in enumerate(types) if kind_of(each) in _NUMBERS and each.tp != MysqlType.BIT
        )
        return _Shape(plans, info.id, handle, len(parts), json, numbers, called, names)

    def _plan(self, block: Block, first: int, event: Ints, plan: Ints, column: ColumnInfo, called: str) -> None:
        kind, field = kind_of(column.type), column.type
        plan[kernels.P_ID], plan[kernels.P_OP], plan[kernels.P_ARGUMENT] = column.id, _OPS[kind], -1
        if column.generated and not column.generated_stored:
            plan[kernels.P_OP] = kernels.SKIP
        elif kind is Kind.ENUM:
            plan[kernels.P_ARGUMENT] = len(field.elems)
        elif kind is Kind.SET or field.tp == MysqlType.BIT:
            bits = field.flen if field.tp == MysqlType.BIT else len(field.elems)
            plan[kernels.P_ARGUMENT] = -1 if bits >= 64 else (1 << bits) - 1
        elif kind is Kind.DECIMAL:
            plan[kernels.P_ARGUMENT] = field.flen << 8 | max(field.decimal, 0)
        elif kind in (Kind.DATETIME, Kind.TIME):
            plan[kernels.P_ARGUMENT] = fsp_of(field.decimal)
            if field.tp == MysqlType.TIMESTAMP:
                plan[kernels.P_OP] = kernels.ZONED
                if not self._zone.shape[1]:
                    raise self._refused(
                        block, first, event, f"{called}.{column.name} is a TIMESTAMP in the zone of the Drainer's host",
                        hint="say which one it was: --time-zone Asia/Shanghai, UTC or +08:00",
                    )  # fmt: skip

    def _documents(
        self, block: Block, first: int, events: Ints, columns: Ints, shapes: Sequence[_Shape], of: Ints
    ) -> Bytes:
        """The data, with the binary form of each JSON text behind it, where the columns point then."""
        made, end = [block.data], len(block.data)
        for number, shape in enumerate(shapes):
            for at in np.flatnonzero(of == number).tolist() if shape.json else ():
                for column in shape.json:
                    own = columns[events[at, kernels.E_FIRST] + column]
                    for place, size in ((kernels.C_OLD, kernels.C_OLD_LEN), (kernels.C_NEW, kernels.C_NEW_LEN)):
                        if own[size] < 1:
                            continue
                        raw = block.data[own[place] : own[place] + own[size]].tobytes()
                        try:
                            document = _document(raw)
                        except CodecError as error:
                            what = f"{shape.name}.{shape.columns[column]}: {error.message}"
                            raise self._refused(block, first, events[at], what) from error
                        made.append(np.frombuffer(document, np.uint8))
                        own[place], own[size] = end, len(document)
                        end += len(document)
        return block.data if len(made) == 1 else frozen(np.concatenate(made))

    @staticmethod
    def _refused(block: Block, first: int, event: Ints, what: str, hint: str = "") -> ImportRefused:
        frame = first + int(event[kernels.E_TXN])
        place = block.place(frame)
        word = _WORDS[int(event[kernels.E_OP])]
        return ImportRefused(
            f"{place}: the transaction at {show(block.commit_ts[frame])} has an {word} that fits no table: {what}"
            if word != "delete" else
            f"{place}: the transaction at {show(block.commit_ts[frame])} has a delete that fits no table: {what}",
            hint=hint or "the schema comes from the DDLs in the files and from --schema: does one lack there, or did a "
            "DDL that is given instead (--ddl) say something else?",
            place=place,
        )  # fmt: skip


def _with_numbers(data: Bytes, events: Ints, columns: Ints, shapes: Sequence[_Shape], of: Ints) -> Bytes:
    """The data, with the value of each number that is text behind it, where the columns point then."""
    made, end = [data], len(data)
    for number, shape in enumerate(shapes):
        first = events[of == number, kernels.E_FIRST]
        for column, field in shape.numbers:
            for place, size in ((kernels.C_OLD, kernels.C_OLD_LEN), (kernels.C_NEW, kernels.C_NEW_LEN)):
                own = first + column
                own = own[columns[own, size] > 0]
                for at in own[data[columns[own, place]] == COMPACT].tolist():
                    value = _number(data[columns[at, place] :][: columns[at, size]].tobytes(), field)
                    made.append(np.frombuffer(value, np.uint8))
                    columns[at, place], columns[at, size] = end, len(value)
                    end += len(value)
    return frozen(np.concatenate(made))


def _number(raw: bytes, field: FieldType) -> bytes:
    """The datum of a number that stands there as text; of other text that text, which is refused."""
    written, read = _NUMBERS[kind_of(field)]
    with contextlib.suppress(CodecError):
        (_, text), end = read_datum(raw, 0)
        # A year of two digits gets its century by rules of the server.
        whole = end == len(raw) and (field.tp != MysqlType.YEAR or end == 6)
        if whole and isinstance(text, bytes) and written.fullmatch(text) and math.isfinite(value := read(text)):
            return encode_value(field, value)
    return raw


def _document(raw: bytes) -> bytes:
    datum, end = read_datum(raw, 0)
    if datum.flag == NULL:
        return raw
    if datum.flag != COMPACT or end != len(raw) or not isinstance(datum.value, bytes):
        raise CodecError("it is no JSON text")
    return bytes((JSON,)) + encode_json(datum.value)


def _text(block: Block, at: int, size: int) -> str:
    return block.data[at : at + size].tobytes().decode("utf-8", "replace")


def _uvarint_bytes(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)


def runs_of(block: Block) -> Iterator[tuple[int, int, bool]]:
    """Stretches of frames: (first, behind the last, whether they are DDLs); DDLs of one commit ts are one."""
    at, count = 0, len(block.starts)
    while at < count:
        stop = at + 1
        if block.ddl[at]:
            while stop < count and block.ddl[stop] and block.commit_ts[stop] == block.commit_ts[at]:
                stop += 1
        else:
            while stop < count and not block.ddl[stop]:
                stop += 1
        yield at, stop, bool(block.ddl[at])
        at = stop
