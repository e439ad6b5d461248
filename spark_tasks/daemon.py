"""Spark's Python daemon, with our kernels loaded before it forks its workers (setting ``spark.python.daemon.module``).

A worker that imports Arrow and numba and loads the kernels by itself needs three CPU seconds for it, each of them.
"""

from __future__ import annotations

from include.codec import row
from include.codec.columnar import DELETE, INSERT, UPDATE, decode_images, key_hash, walk
from include.codec.layout import RowLayout
from include.codec.payload import PrewriteValueBuilder, make_prewrite
from include.model.table import MysqlType, TableInfo


def warm() -> None:
    """Run every kernel once on a row with every kind of value."""
    import pyarrow as pa

    from include.loader import stages

    del stages  # imported for the workers to have it
    values: row.Row = {
        1: 1,
        2: 2,
        3: 1.5,
        4: "1.50",
        5: "2026-11-21 07:30:00",
        6: "12:00:00",
        7: '{"a": [1, "b"]}',
        8: b"text",
    }
    kinds = (
        MysqlType.LONGLONG, MysqlType.ENUM, MysqlType.DOUBLE, MysqlType.NEWDECIMAL, MysqlType.DATETIME, MysqlType.TIME,
        MysqlType.JSON, MysqlType.VARCHAR,
    )  # fmt: skip
    columns = [
        {
            "id": at,
            "name": f"c{at}",
            "offset": at - 1,
            "state": 5,
            "type": {
                "Tp": int(kind),
                "Flag": 3 if at == 1 else 0,
                "Flen": 10,
                "Decimal": 2 if kind == MysqlType.NEWDECIMAL else 0,
                "Charset": "utf8mb4",
                "Collate": "utf8mb4_bin",
                "Elems": ["a", "b"],
            },
        }
        for at, kind in enumerate(kinds, 1)
    ]
    table = TableInfo.from_dict({"id": 1, "name": "warm", "cols": columns, "pk_is_handle": True})
    builder = PrewriteValueBuilder(1)
    builder.insert(1, row.encode_insert(table, values))
    builder.update(1, row.encode_update(table, values, values))
    builder.delete(1, row.encode_delete(table, values))
    found = walk(pa.array([make_prewrite(1, b"k", builder.build())], pa.large_binary()))
    layout = RowLayout.of(table, table)
    for at, kind in enumerate((INSERT, UPDATE, DELETE)):
        batches = decode_images(found.data, found.row_start[at : at + 1], found.row_len[at : at + 1], kind, layout)
        key_hash(batches[0] if isinstance(batches, tuple) else batches, ["c1", "c8"])


if __name__ == "__main__":
    from pyspark.daemon import manager

    warm()
    manager()
