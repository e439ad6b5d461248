"""Row changes of archived transactions, decoded and rendered in columns, to `Change`s in their order."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pumphouse.codec.columnar import INSERT, UPDATE, Mutations, blocks, key_hash
from pumphouse.codec.datum import Kind, kind_of
from pumphouse.codec.jit import UInts
from pumphouse.codec.layout import arrow_field
from pumphouse.errors import CodecError, SchemaError
from pumphouse.loader import textrows
from pumphouse.loader.columns import columns_of
from pumphouse.loader.context import LoadContext
from pumphouse.loader.decode import Layouts, groups_of, moved_of, walked
from pumphouse.loader.held import images_of
from pumphouse.loader.tables import Wanted, WantedTables
from pumphouse.model.table import ColumnInfo
from pumphouse.replay.change import Change, Shape
from pumphouse.replay.keys import Equality, equality_of
from pumphouse.schema.versions import TableVersion

_PLAIN = "^[ -~]*$"
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class _Key:
    """A unique key: its columns, how they compare, prefix lengths (-1 = whole), a number of its own."""

    columns: tuple[str, ...]
    equality: tuple[Equality, ...]
    lengths: tuple[int, ...]
    seed: np.uint64


@dataclass(slots=True, eq=False)
class _Goal:
    """A table version that rows are written to; ``unknown``: keys of which all rows are one (`keys.ANY`)."""

    wanted: Wanted
    shape: Shape
    keys: tuple[_Key, ...]
    whole: np.uint64
    unknown: set[int]

    @property
    def old_names(self) -> Sequence[str] | None:
        """Columns that are needed of an old image; None = all."""
        if not self.wanted.key:
            return None
        return sorted({*self.wanted.key, *(name for key in self.keys for name in key.columns)})


class Images:
    """Decodes for one plan. ``apart`` says whether keys are made by another rule since the last answer.

    ``whole``: the line of a row that goes has all columns, as that of one that comes, where it can be decoded so
    (`Change.whole`); it may be loose, too.
    """

    def __init__(self, context: LoadContext, *, whole: bool = False) -> None:
        self._context, self._whole = context, whole
        self._wanted = WantedTables(context)
        self._goals: dict[int, _Goal] = {}  # by the identity of what `WantedTables` keeps
        self._layouts = Layouts(context.timeline)
        self.apart = False

    def changes(self, rows: pa.Table) -> tuple[list[Change], np.ndarray]:
        """Changes of transactions in commit order, and the commit ts of each."""
        txn_ts = rows.column("commit_ts").to_numpy()
        found = walked(rows)
        if self._context.plan.without:
            found = found.take(~np.isin(txn_ts, self._context.plan.without)[found.txn])
        commit_ts = txn_ts[found.txn]
        self.apart = False
        out = self._decoded(found, commit_ts)
        if self.apart:  # what was decoded before a key of the same batch became one of all rows had keys of its own
            out = self._decoded(found, commit_ts)
        kept = np.array([change is not None for change in out], np.bool_)
        return [change for change in out if change is not None], commit_ts[kept]

    def _decoded(self, found: Mutations, commit_ts: np.ndarray) -> list[Change | None]:
        places = np.searchsorted(np.asarray(self._context.plan.boundaries, np.int64), commit_ts)
        out: list[Change | None] = [None] * len(found)
        for at in groups_of(places, found.table_id, found.schema_version, found.op):
            wanted = self._wanted.of(int(found.table_id[at[0]]), int(commit_ts[at[0]]))
            if wanted is not None:
                written = self._context.timeline.at_version(wanted.table_id, int(found.schema_version[at[0]]))
                for block in blocks(found.row_len[at]):
                    self._decode(found.take(at[block]), at[block], self._goal(wanted), written, out)
        return out

    def _decode(
        self, part: Mutations, at: np.ndarray, goal: _Goal, written: TableVersion, out: list[Change | None]
    ) -> None:
        wanted, shape, op = goal.wanted, goal.shape, int(part.op[0])
        layout = self._layouts.of(wanted, written)
        read = partial(images_of, part.data, part.row_start, part.row_len, op, wanted, layout)
        images, whole = None, self._whole
        if whole:
            try:
                images = read(None)
            except (CodecError, SchemaError):
                whole = False
        images = read(goal.old_names) if images is None else images
        old, new = images if op == UPDATE else (None, images) if op == INSERT else (images, None)
        count = len(part)
        none = [None] * count
        lines = none if new is None else textrows.lines(new).to_pylist()
        named = [column.name for column in (shape.columns if whole else shape.old_columns)]
        gone = none if old is None else textrows.lines(old.select(named)).to_pylist()
        keys = self._keys(goal, [image for image in (new, old) if image is not None], count)
        moved = [False] * count
        if op == UPDATE and not wanted.key:
            moved = [True] * count
        elif op == UPDATE and (found := moved_of(old, new, wanted.key)) is not None:
            moved = found.to_pylist()
        loose = _enum_zero(new) if new is not None else None
        if whole and old is not None and (zeros := _enum_zero(old)) is not None:
            loose = [a or b for a, b in zip(loose or zeros, zeros, strict=True)]
        changes = map(Change, [shape] * count, keys, gone, lines, moved, loose or [False] * count, [whole] * count)
        for place, change in zip(at.tolist(), changes, strict=True):
            out[place] = change

    def _keys(self, goal: _Goal, images: list[pa.RecordBatch], count: int) -> list[tuple[Hashable, ...]]:
        """Keys of each change, of all its images."""
        columns: list[list[int | None]] = []
        for image in images:
            found = [self._hashes(goal, number, image) for number in range(len(goal.keys))]
            none = np.ones(count, np.bool_)
            for hashes, valid in found:
                none &= ~valid
                columns.append(_where(valid, hashes))
            if none.any():
                whole = key_hash(image) * _MIX ^ goal.whole
                columns.append(_where(none, whole))
        if len(columns) == 1:
            return [(key,) for key in columns[0]]
        return [tuple({key for key in keys if key is not None}) for keys in zip(*columns, strict=True)]

    def _hashes(self, goal: _Goal, number: int, image: pa.RecordBatch) -> tuple[UInts, np.ndarray]:
        """A number for each row's values of a key; whether they are all there (a NULL conflicts with nothing)."""
        key, count = goal.keys[number], image.num_rows
        valid = np.ones(count, np.bool_)
        values = []
        known = number not in goal.unknown
        for name, equality, length in zip(key.columns, key.equality, key.lengths, strict=True):
            if equality is Equality.UNKNOWN:
                known = False
                continue
            column = image.column(name)
            valid &= ~np.asarray(column.is_null().to_numpy(zero_copy_only=False), np.bool_)
            text = _comparable(column, equality, length)
            known = known and text is not None
            values.append(text)
        if not known:
            if number not in goal.unknown:
                goal.unknown.add(number)
                self.apart = True
            return np.full(count, key.seed), valid
        batch = pa.RecordBatch.from_arrays(values, names=[str(at) for at in range(len(values))])
        return key_hash(batch) * _MIX ^ key.seed, valid

    def _goal(self, wanted: Wanted) -> _Goal:
        if id(wanted) not in self._goals:
            fields = [arrow_field(column) for column in wanted.table.public_columns if not column.generated]
            columns = tuple(columns_of(pa.schema(fields)))
            places = {column.name: at for at, column in enumerate(columns)}
            keys, key = tuple(self._unique_keys(wanted)), tuple(places[name] for name in wanted.key)
            shape = Shape(
                wanted.db, wanted.table.name, columns, key, droppable=wanted.droppable, others=len(keys) > 1,
                stored=tuple(sorted(wanted.stored)), table_id=wanted.table_id,
            )  # fmt: skip
            unknown = {at for at, key in enumerate(keys) if Equality.UNKNOWN in key.equality}
            self._goals[id(wanted)] = _Goal(wanted, shape, keys, _seed(wanted, -1), unknown)
        return self._goals[id(wanted)]

    def _unique_keys(self, wanted: Wanted) -> list[_Key]:
        table = wanted.table
        by_name = {column.name.lower(): column for column in table.public_columns}
        unique = [index.columns for index in table.indexes if index.unique and index.public and not index.primary]
        keys: list[_Key] = []
        for parts in (table.primary_key(), *unique):
            if parts:
                columns = [by_name.get(part.name.lower()) for part in parts]
                names = tuple(part.name if c is None else c.name for c, part in zip(columns, parts, strict=True))
                equality = tuple(map(_equality, columns))
                keys.append(_Key(names, equality, tuple(part.length for part in parts), _seed(wanted, len(keys))))
        return keys


def _seed(wanted: Wanted, number: int) -> np.uint64:
    return np.uint64(hash((wanted.table_id, number)) & 0xFFFFFFFFFFFFFFFF)


def _where(valid: np.ndarray, hashes: UInts) -> list[int | None]:
    values: list[int | None] = hashes.tolist()
    if valid.all():
        return values
    return [value if there else None for value, there in zip(values, valid.tolist(), strict=True)]


def _equality(column: ColumnInfo | None) -> Equality:
    if column is None or column.generated:
        return Equality.UNKNOWN
    # Of one column all values are written in one way, but for text.
    if kind_of(column.type) is not Kind.BYTES or column.type.charset == "binary":
        return Equality.EXACT
    return equality_of(column.type.collate)


def _comparable(column: pa.Array, equality: Equality, length: int) -> pa.Array | None:
    """What equal values have alike (`keys.comparable`, in columns); None where that cannot be told."""
    if length >= 0 and pa.types.is_large_binary(column.type):
        # In bytes, which is never longer than in characters.
        column = pc.binary_slice(column, 0, length)
    if equality is Equality.EXACT:
        return column
    text = column.view(pa.large_string())
    if equality is Equality.PADDED:
        return pc.ascii_rtrim(text, " ")
    if not pc.all(pc.match_substring_regex(column, _PLAIN)).as_py() and pc.count(column).as_py():
        return None
    return pc.ascii_upper(pc.ascii_rtrim(text, " "))


def _enum_zero(batch: pa.RecordBatch) -> list[bool] | None:
    """Which rows hold an ENUM of value 0; None = none does."""
    found = np.zeros(batch.num_rows, np.bool_)
    for column, values in zip(columns_of(batch.schema), batch.columns, strict=True):
        if column.is_enum:
            found |= pc.fill_null(pc.equal(values, 0), False).to_numpy(zero_copy_only=False)
    return found.tolist() if found.any() else None
