"""Which columns of a source cannot be captured, and why: the one list for `capture check` and for whoever asks.

What no DDL job can say of a column, the reader of `schema import` refuses (`pumphouse.schema_import`). Here is what its
values in the binlog cannot be read as, exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pumphouse.capture.source.charsets import KNOWN

_TYPES = {
    **dict.fromkeys(
        ("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
         "geometrycollection", "geomcollection"),
        "TiDB has no geometries",
    ),
    **dict.fromkeys(("uuid", "inet4", "inet6"), "TiDB has no such type, and the binlog has its bytes alone"),
    "vector": "TiDB's vectors are in no binlog",
    "xmltype": "TiDB has no such type",
}  # fmt: skip


def unfit(row: Mapping[str, Any]) -> str:
    """Why values of a column cannot be captured; '' = they can.

    Args:
        row: of information_schema.COLUMNS, names in lower case: data_type, column_type, character_set_name.
    """
    kind, whole = str(row["data_type"]).lower(), str(row["column_type"])
    if kind in _TYPES:
        return f"it is {kind}: {_TYPES[kind]}"
    if "COMPRESSED" in whole:
        return "it is COMPRESSED: the binlog has its bytes as they lie on disk"
    if "mariadb-5.3" in whole and "(" in whole:
        return "it has fractions of a second in the form of MariaDB 5.3: ALTER TABLE … FORCE gives it that of today"
    charset = str(row.get("character_set_name") or "")
    if charset and charset not in KNOWN:
        return f"its character set {charset} is none of TiDB's: convert it to utf8mb4"
    return ""
