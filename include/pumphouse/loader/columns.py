"""How a column of ours reaches a column of the target, by MySQL type code (wire-format 4.9, "Loader values").

The batches of a unit carry one Arrow column for each target column; the field's name is the column's name and its
metadata ``tp`` the type code. Everything that depends on the type when text is rendered or compared is said here, once.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from pumphouse.model.table import INTEGERS, STRINGS, MysqlType
from pumphouse.schema.ident import quote

# Read as text, these would be taken for names ('2' of an ENUM), for a character (BIT) or for a short year ('0' of a
# YEAR is 2000): they go through a variable and a cast.
_NUMBERS = frozenset({MysqlType.ENUM, MysqlType.SET, MysqlType.BIT, MysqlType.YEAR})
_BYTES = STRINGS | {MysqlType.JSON}
_FLOATS = frozenset({MysqlType.FLOAT, MysqlType.DOUBLE})
TP = b"tp"
# Set where the values are bytes, not text.
BINARY = b"binary"


@dataclass(frozen=True, slots=True)
class Column:
    """One target column; ``binary``: its values are bytes, not text."""

    name: str
    tp: int
    binary: bool = False

    @classmethod
    def of(cls, field: pa.Field) -> Column:
        """Read a field of a unit's batch."""
        return cls(field.name, int(field.metadata[TP]), binary=BINARY in field.metadata)

    def field(self, kind: pa.DataType) -> pa.Field:
        """As a field of a unit's batch, with values of this Arrow type."""
        return pa.field(self.name, kind, metadata={TP: str(self.tp).encode()} | ({BINARY: b"1"} if self.binary else {}))

    @property
    def through_variable(self) -> bool:
        """Whether LOAD DATA must read it into a variable and cast."""
        return self.tp in _NUMBERS

    @property
    def is_enum(self) -> bool:
        """Whether it is an ENUM, whose value 0 a strict session refuses."""
        return self.tp == MysqlType.ENUM

    @property
    def is_text(self) -> bool:
        """Whether its values are text, JSON's too, and not bytes."""
        return self.tp in _BYTES and not self.binary

    @property
    def is_integer(self) -> bool:
        """Whether it is an integer that nothing else stands for."""
        return self.tp in INTEGERS

    @property
    def is_number(self) -> bool:
        """Whether it may be AUTO_INCREMENT."""
        return self.tp in INTEGERS | _FLOATS

    def same(self, left: str, right: str, *, json: bool = False) -> str:
        """Condition: both hold the same value, byte by byte, NULL equal to NULL; ``json``: JSON by value.

        The plain comparison stands beside the one of bytes so that an index can serve it; for JSON and for bytes a
        collation must not decide.
        """
        a, b = f"{left}.{quote(self.name)}", f"{right}.{quote(self.name)}"
        if self.tp in _BYTES and not (json and self.tp == MysqlType.JSON):
            return f"CAST({a} AS BINARY) <=> CAST({b} AS BINARY)"
        return f"{a} <=> {b}"

    def digest(self, side: str, *, json: bool = False) -> str:
        """Expression whose text is equal where `same` holds; NULL has a text of its own.

        Of bytes their CRC: a stronger digest costs the server more than reading the row does.
        """
        name = f"{side}.{quote(self.name)}"
        text = f"CRC32(CAST({name} AS BINARY))" if self.tp in _BYTES else f"CAST({name} AS CHAR)"
        if self.tp in _NUMBERS:
            text = f"CAST({name} + 0 AS CHAR)"
        if json and self.tp == MysqlType.JSON:  # 1.0 has the value of 1
            text = f"CRC32(REPLACE(REPLACE(CAST({name} AS CHAR), '-0.0', '0.0'), '.0', ''))"
        return f"IFNULL({text}, '~')"


def shown(value: object) -> str:
    """A value of a row, for people."""
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= 80 else text[:79] + "…"


def columns_of(schema: pa.Schema) -> list[Column]:
    """Columns of a unit's batch."""
    return [Column.of(field) for field in schema]
