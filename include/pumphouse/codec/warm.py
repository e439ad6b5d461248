"""Compile (or load from the disk cache) every kernel, so that forked workers inherit compiled code.

A first decoding compiles for about twenty seconds where the cache is empty; with it, loading takes some tenths.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pumphouse.codec import row
from pumphouse.codec.columnar import DELETE, INSERT, UPDATE, copied, decode_images, key_hash, key_rank, walk
from pumphouse.codec.datum import Value
from pumphouse.codec.layout import RowLayout
from pumphouse.codec.payload import PrewriteValueBuilder, make_commit, make_prewrite, merge
from pumphouse.codec.texts import has_any
from pumphouse.model.table import MysqlType, TableInfo

_COLUMNS: tuple[tuple[MysqlType, int, int, Value], ...] = (
    (MysqlType.LONGLONG, 20, 0, 1),
    (MysqlType.DOUBLE, 22, -1, 1.5),
    (MysqlType.NEWDECIMAL, 10, 2, "1.25"),
    (MysqlType.DATETIME, 19, 3, "2024-02-29 01:02:03.456"),
    (MysqlType.VARCHAR, 20, 0, b"text"),
    (MysqlType.JSON, -1, 0, '{"a": [1, 2.5, "b", null]}'),
)


def warm() -> None:
    """Run every kernel once."""
    table = TableInfo.from_dict(
        {
            "id": 1,
            "name": "t",
            "cols": [
                {
                    "id": index + 1,
                    "name": f"c{index}",
                    "offset": index,
                    "type": {"Tp": int(tp), "Flag": 0, "Flen": flen, "Decimal": decimal},
                }
                for index, (tp, flen, decimal, _) in enumerate(_COLUMNS)
            ],
        }
    )
    values = {index + 1: value for index, (*_, value) in enumerate(_COLUMNS)}
    builder = PrewriteValueBuilder(1)
    builder.insert(1, row.encode_insert(table, values, handle=1))
    builder.update(1, row.encode_update(table, values, values, handle=1))
    builder.delete(1, row.encode_delete(table, values, handle=1))
    payload = merge(make_prewrite(1, b"k", builder.build()), make_commit(1, 2, b"k"))
    found = walk(pa.array([payload], pa.large_binary()))
    has_any(found.data, found.data)
    layout = RowLayout.of(table, table)
    copied([found.data], np.zeros(len(found)), found.row_start, found.row_len)
    for at, op in enumerate((INSERT, UPDATE, DELETE)):
        one = slice(at, at + 1)
        batches = decode_images(found.data, found.row_start[one], found.row_len[one], op, layout)
        key_hash(batches[0] if op == UPDATE else batches)
        for column in (batches[0] if op == UPDATE else batches).columns:
            key_rank(column)
