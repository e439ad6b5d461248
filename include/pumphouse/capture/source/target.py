"""A table of the history as the rows of one TABLE_MAP become it: held against each other once, then numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from pumphouse.capture.source import codes, rows
from pumphouse.capture.source.charsets import KNOWN, MAPPED, character_map, decoded
from pumphouse.capture.source.model import Column, TableMap
from pumphouse.capture.source.tablemap import has_names
from pumphouse.codec.datum import Kind, kind_of
from pumphouse.codec.decimal import binary_size
from pumphouse.codec.jit import Int32s, Ints
from pumphouse.codec.key import is_character, needs_restoring
from pumphouse.codec.row import has_default, is_prefix, key_parts
from pumphouse.codec.time import fsp_of
from pumphouse.errors import CaptureRefused, ColumnMismatch
from pumphouse.model.table import ColumnInfo, MysqlType, TableInfo

_INTEGERS = {MysqlType.TINY: 1, MysqlType.SHORT: 2, MysqlType.INT24: 3, MysqlType.LONG: 4, MysqlType.LONGLONG: 8}
_BLOBS = {MysqlType.TINY_BLOB: 1, MysqlType.BLOB: 2, MysqlType.MEDIUM_BLOB: 3, MysqlType.LONG_BLOB: 4}
_NEW_TIMES = {
    codes.DATETIME2: (MysqlType.DATETIME, 5, rows.DATETIME),
    codes.TIMESTAMP2: (MysqlType.TIMESTAMP, 4, rows.TIMESTAMP),
    codes.TIME2: (MysqlType.TIME, 3, rows.TIME),
}
_OLD_TIMES = {
    MysqlType.DATETIME: (8, rows.OLD_DATETIME),
    MysqlType.TIMESTAMP: (4, rows.OLD_TIMESTAMP),
    MysqlType.TIME: (3, rows.OLD_TIME),
}
# A JSON document grows where short numbers of small containers become long ones.
_JSON_GROWTH = 12
_PLUS = 48
# What a MariaDB computes for a unique key over a long text. Only a binlog has it: no statement names or shows it.
_HASHED = re.compile(r"DB_ROW_HASH_\d+")


class _Differs(Exception):
    """In words; the caller names the column."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Target:
    """How images of a table become rows; make it by `of`, one for each TABLE_MAP and version of the table.

    Attributes:
        source: whose images.
        info: whose rows.
        table_id: that the mutations carry.
        columns, keys, handle: as `rows.encode` reads them.
        map: what texts that are no UTF-8 become UTF-8 by.
    """

    source: TableMap
    info: TableInfo
    table_id: int
    columns: Ints
    keys: Ints
    handle: int
    map: Int32s

    @classmethod
    def of(cls, source: TableMap, info: TableInfo, charsets: Mapping[int, str], table_id: int | None = None) -> Self:
        """Hold a table of the binlog against one of the history.

        Args:
            source: the table as the binlog has it.
            info: the table as the history has it.
            charsets: id of a collation -> its character set, as the source's information_schema says.
            table_id: that the rows are to carry; None = the table's own.

        Raises:
            CaptureRefused: the binlog does not name its columns.
            ColumnMismatch: they are not the same table; the column and the difference are named.
        """
        if not has_names(source.columns):
            raise CaptureRefused(
                f"the binlog does not name the columns of {'.'.join(source.name)}",
                hint="on the source: SET GLOBAL binlog_row_metadata = FULL, and so in its configuration file; what was"
                " written before cannot be read: begin behind it, with a new `pumphouse archive dump`",
                table=".".join(source.name),
            )
        known = {c.name.lower(): c for c in info.columns if c.public}
        parts = {column.id: (column, length) for column, length in key_parts(info)}
        places = {column.name.lower(): at for at, column in enumerate(source.columns)}
        named = {column.id for column in known.values() if column.name.lower() in places}
        if lacking := [c.name for c in info.public_columns if c.id not in named and not _is_virtual(c)]:
            raise _mismatch(source, f"the binlog lacks the column {lacking[0]}", info)
        fields = np.zeros((len(source.columns), rows.COLUMN_FIELDS), np.int64)
        maps: list[Int32s] = []
        for at, column in enumerate(source.columns):
            wanted = known.get(column.name.lower())
            if wanted is None and _HASHED.fullmatch(column.name):
                _read_as(fields[at], column)
                fields[at, rows.OP] = rows.SKIP
                continue
            if wanted is None:
                raise _mismatch(source, f"the history lacks the column {column.name}", info)
            try:
                _plan(fields[at], column, wanted, charsets, maps)
            except _Differs as error:
                raise _mismatch(source, f"the column {column.name}: {error}", info) from error
            if wanted.id in parts:
                part = parts[wanted.id]
                fields[at, rows.LISTED] = not info.pk_is_handle and (is_prefix(*part) or needs_restoring(part[0].type))
                # It is in the handle too.
                fields[at, rows.GROWTH] *= 2
                fields[at, rows.PLUS] *= 2
        keys = [
            (places[column.name.lower()], length if is_prefix(column, length) else -1, is_character(column.type))
            for column, length in parts.values()
        ]
        handle = rows.INTEGER if info.pk_is_handle else rows.COMMON if info.is_common_handle else rows.HIDDEN
        return cls(
            source=source,
            info=info,
            table_id=info.id if table_id is None else table_id,
            columns=fields,
            keys=np.array(keys, np.int64).reshape(len(keys), rows.KEY_FIELDS),
            handle=handle,
            map=np.concatenate(maps) if maps else np.zeros(0, np.int32),
        )


def _mismatch(source: TableMap, what: str, info: TableInfo) -> ColumnMismatch:
    return ColumnMismatch(
        f"the binlog's table {'.'.join(source.name)} is not the one of the history: {what}",
        hint="what the history says comes from the DDL in the binlog: a DDL was not captured (SET sql_log_bin = 0?)",
        table_id=info.id,
    )


def _is_virtual(column: ColumnInfo) -> bool:
    return column.generated and not column.generated_stored


def _plan(fields: Ints, column: Column, wanted: ColumnInfo, charsets: Mapping[int, str], maps: list[Int32s]) -> None:
    """How one column's values are read and written; _Differs where it is not the same column."""
    kind = _read_as(fields, column)
    fields[rows.ID] = wanted.id
    fields[rows.DEFAULT], fields[rows.LISTED] = has_default(wanted), 1
    if _is_virtual(wanted):
        fields[rows.OP] = rows.SKIP
        return
    fields[rows.GROWTH], fields[rows.PLUS] = 1, _PLUS
    if not _written_as(fields, column, wanted) and not _text_as(fields, column, wanted, charsets, maps):
        raise _Differs(f"its values are of the type {kind}, and the history has type {wanted.type.tp}")


def _read_as(fields: Ints, column: Column) -> int:
    """Sets how many bytes a value has, or how many its length has; the type."""
    tp, meta = column.tp, column.meta
    fixed = prefix = 0
    if tp in _INTEGERS:
        fixed = _INTEGERS[MysqlType(tp)]
    elif tp in _NEW_TIMES:
        fixed = _NEW_TIMES[tp][1] + (meta + 1) // 2
    elif tp in _OLD_TIMES:
        fixed = _OLD_TIMES[MysqlType(tp)][0]
    elif tp == MysqlType.NEWDECIMAL:
        fixed = binary_size(meta >> 8, meta & 0xFF)
    elif tp == MysqlType.BIT:
        fixed = (meta + 7) // 8
    elif tp in (MysqlType.ENUM, MysqlType.SET):
        fixed = meta
    elif tp in (MysqlType.STRING, MysqlType.VARCHAR, MysqlType.VAR_STRING, codes.VARCHAR_COMPRESSED):
        prefix = 2 if meta > 255 else 1
    elif tp in (*_BLOBS, MysqlType.JSON, MysqlType.GEOMETRY, codes.BLOB_COMPRESSED, codes.VECTOR):
        prefix = meta
    else:
        fixed = _FIXED.get(MysqlType(tp), 0) if tp in _FIXED else 0
    if not fixed and not 1 <= prefix <= 4:
        raise _Differs(f"its type {tp} is not known")
    fields[rows.FIXED], fields[rows.PREFIX] = fixed, prefix
    return tp


_FIXED = {
    MysqlType.YEAR: 1, MysqlType.DATE: 3, MysqlType.NEWDATE: 3, MysqlType.FLOAT: 4, MysqlType.DOUBLE: 8,
}  # fmt: skip


def _written_as(fields: Ints, column: Column, wanted: ColumnInfo) -> bool:  # noqa: C901, PLR0911, PLR0912 - one a type
    """Numbers, times and JSON: sets how they are written; False where the two are of different types."""
    tp, meta, field = column.tp, column.meta, wanted.type
    if tp in _INTEGERS and tp == field.tp:
        if column.unsigned != field.unsigned:
            raise _Differs("one is UNSIGNED, the other is not")
        fields[rows.OP] = rows.UNSIGNED if field.unsigned else rows.SIGNED
        return True
    if tp == MysqlType.NEWDECIMAL and field.tp == tp:
        if (meta >> 8, meta & 0xFF) != (field.flen, max(field.decimal, 0)):
            raise _Differs(f"it is DECIMAL({meta >> 8},{meta & 0xFF}), and DECIMAL({field.flen},{field.decimal})")
        fields[rows.OP], fields[rows.ARGUMENT] = rows.DECIMAL, meta
        return True
    if tp in _NEW_TIMES:
        want, _, op = _NEW_TIMES[tp]
        if field.tp != want:
            return False
        if meta != fsp_of(field.decimal):
            raise _Differs(f"it has {meta} digits of a second, and {fsp_of(field.decimal)}")
        fields[rows.OP], fields[rows.ARGUMENT] = op, meta
        return True
    if tp in _OLD_TIMES and field.tp == tp:
        if fsp_of(field.decimal):
            raise _Differs("its fractions of a second are in the form of MariaDB 5.3: ALTER TABLE … FORCE changes that")
        fields[rows.OP] = _OLD_TIMES[MysqlType(tp)][1]
        return True
    if tp in (MysqlType.DATE, MysqlType.NEWDATE) and field.tp in (MysqlType.DATE, MysqlType.NEWDATE):
        fields[rows.OP] = rows.DATE
        return True
    if tp == MysqlType.BIT and field.tp == tp:
        if meta != field.flen:
            raise _Differs(f"it has {meta} bits, and {field.flen}")
        fields[rows.OP] = rows.BITS
        return True
    if tp in _SIMPLE and field.tp == tp:
        fields[rows.OP] = _SIMPLE[MysqlType(tp)]
        return True
    if kind_of(field) is Kind.JSON and tp in (MysqlType.JSON, *_BLOBS):
        fields[rows.OP] = rows.JSON if tp == MysqlType.JSON else rows.HELPED
        fields[rows.GROWTH] = _JSON_GROWTH if tp == MysqlType.JSON else 0
        return True
    return False


_SIMPLE = {MysqlType.YEAR: rows.YEAR, MysqlType.FLOAT: rows.FLOAT, MysqlType.DOUBLE: rows.DOUBLE}


def _text_as(fields: Ints, column: Column, wanted: ColumnInfo, charsets: Mapping[int, str], maps: list[Int32s]) -> bool:
    """Texts, bytes, ENUM and SET; False where the two are of different types."""
    tp, field = column.tp, wanted.type
    charset = charsets.get(column.collation, "") if column.collation else "binary"
    if not charset:
        raise _Differs(f"its collation {column.collation} is not known")
    if charset not in KNOWN:
        raise _Differs(f"its character set {charset} is none of TiDB's")
    if tp in (MysqlType.ENUM, MysqlType.SET) and field.tp == tp:
        elements = tuple(decoded(each, charset) for each in column.elements)
        if elements != field.elems:
            raise _Differs(f"its elements are {', '.join(elements)[:200]}, and {', '.join(field.elems)[:200]}")
        fields[rows.OP] = rows.NUMBER
        return True
    if not (_length_of(field.tp) == column.meta if tp in _BLOBS else tp == field.tp):
        return False
    if (charset == "binary") != (field.charset == "binary"):
        raise _Differs(f"its character set is {charset}, and {field.charset}")
    if charset in MAPPED:
        fields[rows.OP], fields[rows.MAP], fields[rows.GROWTH] = rows.MAPPED, sum(map(len, maps)), 3
        maps.append(character_map(charset))
    elif tp == MysqlType.STRING and charset == "binary":
        # The binlog leaves out the zeros at the end of a BINARY(n).
        fields[rows.OP], fields[rows.ARGUMENT] = rows.PADDED, field.flen
        fields[rows.PLUS] += field.flen
    else:
        fields[rows.OP] = rows.STRING
    return True


def _length_of(tp: int) -> int:
    return _BLOBS.get(MysqlType(tp), 0)
