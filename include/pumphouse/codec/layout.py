"""Which datum of a row image goes to which Arrow column: made once for a pair of table versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import pyarrow as pa

from pumphouse.codec.datum import Kind, Value, kind_of, type_in_rows
from pumphouse.codec.defaults import left_out
from pumphouse.codec.jit import Bytes, Ints, frozen
from pumphouse.codec.row import as_read, is_prefix, kept_on_update, key_parts
from pumphouse.codec.time import fsp_of
from pumphouse.errors import ColumnMismatch
from pumphouse.model.table import ColumnInfo, TableInfo


def arrow_type(column: ColumnInfo) -> pa.DataType:
    """Arrow type of a column's values; texts (decimals, dates, times, JSON) are large strings."""
    match kind_of(column.type):
        case Kind.INT:
            return pa.int64()
        case Kind.UINT | Kind.ENUM | Kind.SET:
            return pa.uint64()
        case Kind.FLOAT:
            return pa.float32()
        case Kind.DOUBLE:
            return pa.float64()
        case Kind.BYTES:
            return pa.large_binary()
        case Kind.DECIMAL | Kind.DATE | Kind.DATETIME | Kind.TIME | Kind.JSON:
            return pa.large_string()
        case never:
            assert_never(never)


def arrow_field(column: ColumnInfo) -> pa.Field:
    """Nullable field named as the column; metadata ``tp`` (type code), ``id`` (column id), ``binary`` (no text)."""
    metadata = {b"tp": str(column.type.tp).encode(), b"id": str(column.id).encode()}
    if kind_of(column.type) is Kind.BYTES and column.type.charset == "binary":
        metadata[b"binary"] = b"1"
    return pa.field(column.name, arrow_type(column), nullable=True, metadata=metadata)


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """One Arrow column.

    Attributes:
        info: The column as wanted.
        kind: How the row holds its values.
        fsp: Fractional digits of its times.
        elements: Elements of an ENUM or SET.
        handle: It is the integer handle.
        fill: Loader value where the row lacks it.
        arrow: Arrow type of the values.
        fill_bytes: ``fill`` of a text or a byte string.
        doubles: Its JSON tells doubles from integers (`json_text`).
    """

    info: ColumnInfo
    kind: Kind
    fsp: int
    elements: int
    handle: bool
    fill: Value
    arrow: pa.DataType
    fill_bytes: Bytes
    doubles: bool

    @classmethod
    def of(cls, column: ColumnInfo, source: ColumnInfo, written: TableInfo, *, doubles: bool = False) -> OutputColumn:
        """``column`` as it is in rows of ``written``, where it is ``source``.

        A row may be of a later version of its table than it says (`Timeline.at_version`).
        """
        held = type_in_rows(source.type, column.type)
        handle = written.pk_is_handle and any(c.id == source.id for c, _ in key_parts(written))
        kind, fsp = kind_of(held), fsp_of(held.decimal)
        fill = left_out(source, column)
        raw = fill.encode() if isinstance(fill, str) else fill if isinstance(fill, bytes) else b""
        return cls(
            column, kind, fsp, len(held.elems), handle, fill, arrow_type(column),
            frozen(np.frombuffer(raw, np.uint8)), doubles,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class RowLayout:
    """How images of one table version become batches of another (:meth:`of`).

    Attributes:
        columns: The columns.
        schema: Their Arrow schema.
        ids: Their ids in the rows.
        handle_columns: For each datum of an inserted row's handle its index in ``ids``, or -1.
        needed: Indices in ``ids`` of the columns that no image lacks: of inserts, updates and deletes.
        rewritten: Index of a column that was rewritten in between -> index in ``ids`` of what it was before, or -1. An
            insert lacks both where the value is NULL, and never the new one alone.
        kept: Indices of the columns that an update leaves as they were, whatever its new image says.
        former: Index of a column that was rewritten in between (a MODIFY COLUMN) -> index in ``ids`` and shape of what
            it was before: old images have that of it, but those of a writer that came when it was done.
        told: Indices of the rewritten columns that old images have in one of the two types.
        partial: Only some columns are wanted: what an image has behind them is not looked at.
    """

    columns: tuple[OutputColumn, ...]
    schema: pa.Schema
    ids: Ints
    handle_columns: Ints
    needed: tuple[Ints, Ints, Ints]
    rewritten: Mapping[int, int]
    kept: Ints
    former: Mapping[int, tuple[int, OutputColumn]]
    told: frozenset[int]
    partial: bool

    @classmethod
    def of(
        cls,
        written: TableInfo,
        wanted: TableInfo,
        key: Sequence[str] | None = None,
        rewritten: Mapping[int, int] | None = None,
        only: Sequence[str] | None = None,
        *,
        doubles: bool = False,
    ) -> RowLayout:
        """Plan the decoding.

        Args:
            written: Table at the rows' own schema version: gives what rows hold, and origin defaults of absent columns.
            wanted: Table at the commit timestamp: its public, not generated columns are the batch's, in order.
            key: Names of the columns that tell rows apart, and so are never filled where a row lacks them; () = all
                columns do: then old images lack none that their version has. None = whatever is absent is filled.
            rewritten: Id of a wanted column -> its id at the rows' own version, of columns that were given another
                type in between. Who writes while that is under way writes both into new images.
            only: Names of the columns that are wanted; None = all. Images are read no further than these need.
            doubles: JSON tells doubles from integers (`json_text`).

        Raises:
            ColumnMismatch: a column has the same id in both but values of another kind.
        """
        parts = key_parts(written)
        columns, ids = [], []
        rewritten = rewritten or {}
        for column in wanted.public_columns:
            if column.generated or (only is not None and column.name not in only):
                continue
            own = written.column_by_id(column.id)
            source = own or column
            if arrow_type(source) != arrow_type(column) and {arrow_type(source), arrow_type(column)} != {
                pa.float32(),
                pa.float64(),
            }:
                raise ColumnMismatch(
                    f"column {column.name} (id {column.id}) of table {wanted.name} is {arrow_type(source)} in the row "
                    f"and {arrow_type(column)} at the commit",
                    table_id=wanted.id,
                )
            columns.append(OutputColumn.of(column, source, written, doubles=doubles))
            ids.append(column.id)  # no id is given out again, so whatever a row has under it is this column
        known = {c.id for c in written.public_columns} & set(ids)
        names = [each.info.name for each in columns]
        keys = {ids.index(c.id) for c, _ in parts if c.id in known} | {names.index(name) for name in key or ()}
        new = {at for at, id_ in enumerate(ids) if id_ in rewritten}
        old = keys - new | ({ids.index(id_) for id_ in known} if key == () else set())
        former = {}
        for at in sorted(new):
            before = written.column_by_id(rewritten[ids[at]])
            if before is not None:
                former[at] = (len(ids), OutputColumn.of(before, before, written))
                ids.append(before.id)
        # A prefix part of a clustered key is no value; the row list has the whole column.
        handle = [-1 if is_prefix(c, length) or c.id not in ids else ids.index(c.id) for c, length in parts]
        return cls(
            tuple(columns),
            pa.schema([arrow_field(each.info) for each in columns]),
            frozen(np.array(ids, np.int64)),
            frozen(np.array(handle or [-1], np.int64)),
            (_indices(keys - new), _indices(old | new), _indices(old)),
            {at: former[at][0] if at in former else -1 for at in sorted(new)},
            _indices({ids.index(id_) for id_ in kept_on_update(as_read(written, wanted)) if id_ in ids}),
            former,
            frozenset(former if key == () else keys & set(former)),
            only is not None,
        )


def _indices(found: set[int]) -> Ints:
    return frozen(np.array(sorted(found), np.int64))
