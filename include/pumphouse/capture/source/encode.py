"""The rows of a group as TiDB Binlog has them: table mutations, event by event, ready for the prewrite values.

The kernel does it (`rows.encode`). A value that has no exact form by itself is asked for: JSON texts of a MariaDB, and
dates, decimals and bytes in a MySQL's JSON, go through the codec's own reader of texts, as those of a dump do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn

import numpy as np

from pumphouse.capture.source import jsonb, rows
from pumphouse.capture.source.jsontext import document_text
from pumphouse.capture.source.model import Group
from pumphouse.capture.source.target import Target
from pumphouse.codec.datum import JSON
from pumphouse.codec.jit import Bytes, Int32s, Ints
from pumphouse.codec.json import encode_json
from pumphouse.codec.number import append_uvarint
from pumphouse.errors import CaptureRefused, CodecError, CorruptionError
from pumphouse.model.table import MysqlType

_WANTED = 1 << 12
_NAMES = 1 << 14  # of one JSON document's objects that are open at once
_IMAGE = (
    "on the source: SET GLOBAL binlog_row_image = FULL; what was written before cannot be read: take a new"
    " `pumphouse archive dump`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutations:
    """Table mutations of a range of rows events.

    Attributes:
        data: them, one behind the other.
        first: number of the first event.
        bounds: where the mutations of each event begin in ``data``, and at last where they end; those of a table that
            is left out are nothing.
        changes: row changes of each event.
    """

    data: memoryview
    first: int
    bounds: Sequence[int]
    changes: Ints

    def of(self, first: int, last: int) -> memoryview:
        """Bytes of the mutations of events ``range(first, last)``."""
        return self.data[self.bounds[first - self.first] : self.bounds[last - self.first]]

    def prewrite_value(self, first: int, last: int, schema_version: int) -> bytes:
        """A whole prewrite value of these events."""
        return b"".join((_head(schema_version), self.of(first, last)))


@lru_cache(maxsize=4)
def _head(schema_version: int) -> bytes:
    out = bytearray(b"\x08")
    append_uvarint(out, schema_version)
    return bytes(out)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Targets as one set of arrays."""

    targets: Ints
    columns: Ints
    keys: Ints
    maps: Int32s
    widest: int


@lru_cache(maxsize=64)
def _plan(targets: tuple[Target | None, ...]) -> _Plan:
    table = np.zeros((max(len(targets), 1), rows.TARGET_FIELDS), np.int64)
    columns, keys, maps = [np.zeros((0, rows.COLUMN_FIELDS), np.int64)], [np.zeros((0, rows.KEY_FIELDS), np.int64)], []
    first = key_first = map_first = 0
    for at, target in enumerate(targets):
        if target is None:
            continue
        width = len(target.columns)
        table[at] = first, width, target.table_id, target.handle, key_first, len(target.keys)
        fields = target.columns.copy()
        fields[:, rows.MAP] += map_first
        columns.append(fields)
        keys.append(target.keys)
        maps.append(target.map)
        first, key_first, map_first = first + width, key_first + len(target.keys), map_first + len(target.map)
    return _Plan(
        table,
        np.concatenate(columns),
        np.concatenate(keys),
        np.concatenate([*maps, np.zeros(1, np.int32)]),
        max((len(each.columns) for each in targets if each is not None), default=1),
    )


def encode(group: Group, targets: Sequence[Target | None], first: int = 0, last: int | None = None) -> Mutations:
    """Make the rows of events ``range(first, last)`` of a group.

    Args:
        group: what was read.
        targets: by number of the group's tables; None leaves a table out.
        first: the first event.
        last: the one behind the last; None = all that follow.

    Raises:
        CaptureRefused: a value has no exact form, or an image lacks a column; table and column are named.
        CorruptionError: an image makes no sense.
    """
    last = len(group.events) if last is None else last
    events = group.events
    plan = _plan(tuple(targets))
    table = np.stack([
        each[first:last] for each in (events.table, events.kind, events.bitmaps, events.start, events.end)
    ])  # fmt: skip
    count = last - first
    size = int((table[4] - table[3]).sum())
    run = _Run(group, targets, plan, table, count, 2 * size + 64 * count + 4096)
    while run.again():
        pass
    return Mutations(data=run.out.data, first=first, bounds=[0, *run.ends.tolist()], changes=run.changes)


class _Run:
    """One call of `encode`: the kernel's buffers, and what it asked for."""

    def __init__(
        self, group: Group, targets: Sequence[Target | None], plan: _Plan, events: Ints, count: int, room: int
    ) -> None:
        self._group, self._targets, self._plan, self._events, self._count = group, targets, plan, events, count
        self.out: Bytes = np.empty(room, np.uint8)
        self.ends = np.zeros(count, np.int64)
        self.changes = np.zeros(count, np.int64)
        self.state = np.zeros(rows.STATES, np.int64)
        self._scratch = np.empty((2, 2 * plan.widest), np.int64)
        single, double = np.zeros(1, np.uint32), np.zeros(1, np.uint64)
        self._tools = plan.maps, single, single.view(np.float32), double, double.view(np.float64)
        self._wanted = np.empty((_WANTED, 4), np.int64)
        self._order, self._stack = np.empty(_NAMES, np.int32), np.empty((jsonb.MAX_DEPTH, jsonb.LEVEL), np.int64)
        self._patches: rows.Patches = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint8)

    def again(self) -> bool:
        """Run the kernel; whether it has to run again."""
        plan = self._plan
        why = rows.encode(
            self._group.data, self._events, self._count, plan.targets, plan.columns, plan.keys, self._tools,
            self._scratch, plan.widest, self._patches, self._wanted, self._order, self._stack, self.out, self.ends,
            self.changes, self.state,
        )  # fmt: skip
        if why == rows.DONE:
            return False
        if why == rows.FULL:
            more = np.empty(max(2 * len(self.out), int(self.state[rows.S_NEED])), np.uint8)
            used = int(self.state[rows.S_OUT])
            more[:used] = self.out[:used]
            self.out = more
        elif why == rows.WANTED:
            self._help(int(self.state[rows.S_WANTED]))
            self.state[:] = 0
        else:
            self._refuse(why)
        return True

    def _help(self, asked: int) -> None:
        """Make the values that the kernel could not."""
        if asked > len(self._wanted):
            self._wanted = np.empty((asked, 4), np.int64)
            return
        made = []
        for place, size, event, column in self._wanted[:asked].tolist():
            target = self._targets[int(self._events[0, event])]
            data = self._group.data[place : place + size].tobytes()
            if target is not None:
                made.append(_document(target, column, data))
        # The kernel meets them in this order again.
        self._patches = (
            self._wanted[:asked, 0].copy(),
            np.cumsum([len(each) for each in made], dtype=np.int64),
            np.frombuffer(b"".join(made), np.uint8).copy(),
        )

    def _refuse(self, why: int) -> NoReturn:
        event, row, at = (int(self.state[each]) for each in (rows.S_EVENT, rows.S_ROW, rows.S_COLUMN))
        target = self._targets[int(self._events[0, event])]
        name = "" if target is None else ".".join(target.source.name)
        if target is None or why == rows.DAMAGED:
            raise CorruptionError(f"the source's binlog is damaged: row {row} of an event of {name} makes no sense")
        column = target.source.columns[at].name
        what, hint = {
            rows.ABSENT: (f"a row of {name} lacks the column {column}", _IMAGE),
            rows.BAD_TEXT: (f"a value of {name}.{column} is no text of its character set", "correct it on the source"),
            rows.BAD_TIME: (f"a value of {name}.{column} is no time", "correct it on the source"),
        }[why]
        raise CaptureRefused(what, hint=hint, table=name, column=column)


def _document(target: Target, column: int, data: bytes) -> bytes:
    """The datum of a JSON document that the kernel left alone."""
    source = target.source.columns[column]
    try:
        text = document_text(data) if source.tp == MysqlType.JSON else data
        return bytes((JSON,)) + encode_json(text)
    except CodecError as error:
        name = ".".join(target.source.name)
        raise CaptureRefused(
            f"a value of {name}.{source.name}: {error.message}", hint=error.advice, table=name, column=source.name
        ) from error
