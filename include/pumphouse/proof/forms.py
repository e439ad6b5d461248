"""What a checksum is of: the one text of a value that both sides of a proof must arrive at, each by its own code.

A row's text is the texts of its columns, one behind the other, so that it can be read in one way only:

- NULL is ``N,``.
- A number, a date or a time is its text and a comma: integers, BIT, YEAR, ENUM and SET in decimal digits; FLOAT and
  DOUBLE as the shortest digits that tell the double apart, as a MySQL prints them, and -0 as ``0``; DECIMAL, dates and
  times with all the digits of their type, TIMESTAMP in UTC.
- Bytes and text in utf8mb4 are their length in bytes, a colon and themselves; where they are longer than `LONGEST`, a
  ``#``, the hexadecimal SHA-256 of them and a comma, because a server cuts off what is larger than a packet.

The checksum of a row is the first 64 bits of the SHA-256 of its text; that of rows is the sum modulo 2^64. So order
does not matter, and two equal rows count twice. A MariaDB keeps the text of JSON that it was given: where rows differ
there, those that have one value (`pumphouse.proof.alike`) count with the target's text.

`pumphouse.proof.archived` renders what the archive has; `pumphouse.proof.servers` has the server render what it has.
They share this page and no code: a load writes rows by a third way (`pumphouse.loader.textrows`), whose mistakes must
not be in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from pumphouse.codec.datum import Kind, kind_of
from pumphouse.codec.time import fsp_of
from pumphouse.model.table import ColumnInfo, FieldType, MysqlType
from pumphouse.schema.dialect import Dialect

LONGEST = 256


class Form(Enum):
    """How the text of a value is made."""

    SIGNED = auto()
    UNSIGNED = auto()
    REAL = auto()
    FIXED = auto()  # as many digits behind the point as the type has
    BYTES = auto()
    TEXT = auto()


_INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
_BYTES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """A column that checksums are of.

    ``scale``: digits behind the point of a `FIXED` one; ``called``: types there; ``json``: its texts are JSON, of which
    two may have one value.
    """

    name: str
    form: Form
    scale: int
    called: frozenset[str]
    json: bool = False


def proven(column: ColumnInfo, dialect: Dialect) -> Proven | str:
    """How a column is compared on such a server, or why it is not."""
    kind = kind_of(column.type)
    if kind is Kind.JSON and dialect is not Dialect.MARIADB:
        return "a MySQL keeps JSON in a form of its own"
    form, called = _compared(column.type)
    scale = 0
    if kind is Kind.DECIMAL:
        scale = max(column.type.decimal, 0)
    elif kind in (Kind.DATETIME, Kind.TIME):
        scale = fsp_of(column.type.decimal)
    return Proven(name=column.name, form=form, scale=scale, called=called, json=kind is Kind.JSON)


def _compared(of: FieldType) -> tuple[Form, frozenset[str]]:  # noqa: C901, PLR0911 - one a kind
    """Form of a type's values, and what a server may call a column whose values are compared as these."""
    if of.tp == MysqlType.YEAR:
        return Form.SIGNED, frozenset({"year"})
    match kind_of(of):
        case Kind.INT:
            return Form.SIGNED, _INTEGERS
        case Kind.UINT:
            return Form.UNSIGNED, _INTEGERS | {"bit"}
        case Kind.ENUM:
            return Form.UNSIGNED, frozenset({"enum"})
        case Kind.SET:
            return Form.UNSIGNED, frozenset({"set"})
        case Kind.FLOAT | Kind.DOUBLE:
            return Form.REAL, frozenset({"float", "double"})
        case Kind.DECIMAL:
            return Form.FIXED, frozenset({"decimal"})
        case Kind.DATE:
            return Form.FIXED, frozenset({"date"})
        case Kind.DATETIME:
            return Form.FIXED, frozenset({"datetime", "timestamp"})
        case Kind.TIME:
            return Form.FIXED, frozenset({"time"})
        case Kind.JSON:
            return Form.TEXT, _TEXTS
        case Kind.BYTES:
            return (Form.BYTES, _BYTES) if of.charset == "binary" else (Form.TEXT, _TEXTS)
