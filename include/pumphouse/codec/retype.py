"""Values of a column in another type: the few casts that change none, for rows from before a MODIFY COLUMN.

What any other cast of TiDB gives says pumphouse.schema.conversion, for rows that are in a target.
"""

from __future__ import annotations

import pyarrow as pa

from pumphouse.codec.datum import Kind, kind_of
from pumphouse.model.table import FieldType, MysqlType

_INTEGERS = {Kind.INT, Kind.UINT}


def keeps_values(old: FieldType, new: FieldType) -> bool:
    """Whether each value of the old type that the new one takes is the same there, in the loader's form too."""
    before, after = kind_of(old), kind_of(new)
    if before in _INTEGERS and after in _INTEGERS:
        return MysqlType.YEAR not in (old.tp, new.tp) and MysqlType.BIT not in (old.tp, new.tp)
    if before is Kind.FLOAT and after is Kind.DOUBLE:
        return new.decimal < 0
    if before is after is Kind.BYTES:
        # CHAR loses spaces, BINARY gains zeros.
        binary = old.charset == "binary", new.charset == "binary"
        return new.tp != MysqlType.STRING and binary[0] == binary[1] and old.flen <= new.flen
    return False


def retyped(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values as another Arrow type; pa.ArrowInvalid where one does not fit."""
    return values if values.type == kind else values.cast(kind)
