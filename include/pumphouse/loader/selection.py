"""Rows that somebody asks for by their primary key: values as they are typed, compared as a server compares (row R3).

- **A key** is a value for each of its columns, a range is of its first column.
- **Numbers, dates, times and bytes** are equal where the archive's are: what is typed gets the form of the column.
- **Text** is equal by its collation. A ``_bin`` one compares bytes, most of them without the spaces at the end. Those
  of `_CASELESS` compare printable ASCII without its case. Which other characters one of them takes for such a text only
  a server knows: a row whose key may be equal is an error, and no guess.
- **Ranges** are of integers, dates and bytes, which have the same order everywhere.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pumphouse.codec.datum import Kind, kind_of
from pumphouse.codec.layout import arrow_field
from pumphouse.codec.time import date_text, datetime_text, duration_text, fsp_of, pack_datetime, parse_duration
from pumphouse.errors import CodecError, LoadError, UsageError
from pumphouse.loader.keys import Predicate
from pumphouse.loader.tables import Wanted
from pumphouse.model.table import ColumnInfo, FieldType, MysqlType

_WHOLE = "restore the whole table, and take these rows from the copy by SQL"
_APPROXIMATE = {Kind.FLOAT, Kind.DOUBLE, Kind.JSON}
_ORDERED = {Kind.INT, Kind.UINT, Kind.DATE, Kind.DATETIME}
# Bytes of UTF-8, as RE2 has them: what is not printable ASCII, and of that what utf8mb4_general_ci takes for an ASCII
# character, one for one: nothing outside U+0080 to U+02FF and U+1E00 to U+1EFF.
_OTHER, _LATIN = r"[^\x20-\x7e]", r"(?:[\xc2-\xcb][\x80-\xbf]|\xe1[\xb8-\xbb][\x80-\xbf])"
# By Unicode's tables a character may also stand for several, or for none.
_CASELESS = re.compile(r"utf8(?:mb3|mb4)?_(?:(general_ci)|unicode_ci|unicode_520_ci|0900_ai_ci)")
_NO_PAD = re.compile(r"_nopad_|_0900_")
_Matcher = Callable[[pa.Array], pa.Array]


class Selection:
    """The rows of a predicate in one version of a table; UsageError where they cannot be told as a server would."""

    def __init__(self, predicate: Predicate, wanted: Wanted) -> None:
        self.wanted = wanted
        columns = _key_columns(wanted)
        table = f"{wanted.db}.{wanted.table.name}"
        self._keys: list[list[tuple[str, _Matcher]]] = []
        for text in predicate.keys:
            values = key_of(wanted, text)
            equal = [
                partial(pc.equal, v) if predicate.exact else _equal(c, v, table)
                for c, v in zip(columns, values, strict=True)
            ]
            self._keys.append([(c.name, each) for c, each in zip(columns, equal, strict=True)])
        self._bounds: list[_Matcher] = []
        limits: list[pa.Scalar] = []
        for bound, compare in ((predicate.low, pc.less_equal), (predicate.below, pc.greater)):
            if bound is not None:
                _require_order(columns[0], table)
                limits.append(_value(columns[0], bound, f"the key of {table}"))
                self._bounds.append(partial(compare, limits[-1]))
        if len(limits) == 2 and not pc.less(*limits).as_py():
            raise UsageError(
                f"{table} can have no row {predicate}", hint="--key-from has to be less than --key-to, which is no part"
            )

    def mask(self, rows: pa.RecordBatch) -> np.ndarray:
        """Of rows, or of their keys alone, those that are asked for; LoadError where only a server knows."""
        if self._bounds:
            first = rows.column(self.wanted.key[0])
            return _all([each(first) for each in self._bounds])
        mask = np.zeros(rows.num_rows, np.bool_)
        for key in self._keys:
            mask |= _all([matches(rows.column(name)) for name, matches in key])
        return mask


def key_of(wanted: Wanted, text: str) -> list[pa.Scalar]:
    """A key as somebody types it, in the types of its columns; UsageError."""
    columns = _key_columns(wanted)
    of = f"the key of {wanted.db}.{wanted.table.name} ({', '.join(wanted.key)})"
    try:
        said = [text] if len(columns) == 1 else next(csv.reader([text], strict=True), [])
    except csv.Error as error:
        raise UsageError(f"{text!r} is no line of CSV for {of}: {error}", hint="as --key 7,abc") from error
    if len(said) != len(columns):
        raise UsageError(f"{text!r} has {len(said)} values, {of} has {len(columns)}", hint="as --key 7,abc")
    return [_value(column, value, of) for column, value in zip(columns, said, strict=True)]


def has_key(rows: pa.RecordBatch, names: Sequence[str], key: Sequence[pa.Scalar]) -> np.ndarray:
    """Mask of the rows with exactly a key."""
    return _all([pc.equal(rows.column(name), value) for name, value in zip(names, key, strict=True)])


def _all(masks: Sequence[pa.Array]) -> np.ndarray:
    found: np.ndarray = np.logical_and.reduce(
        [pc.fill_null(each, False).to_numpy(zero_copy_only=False) for each in masks]
    )
    return found


def _key_columns(wanted: Wanted) -> list[ColumnInfo]:
    by_name = {column.name: column for column in wanted.table.public_columns}
    return [by_name[name] for name in wanted.key]


def _value(column: ColumnInfo, text: str, of: str) -> pa.Scalar:
    """A value of a column, in the one form that the archive has it in."""
    try:
        return pa.scalar(_formed(column.type, text), arrow_field(column).type)
    except (ValueError, ArithmeticError, CodecError, pa.ArrowException) as error:
        raise UsageError(f"{text!r} is no value of {column.name} in {of}") from error


def _of_text(kind: FieldType, text: str) -> bytes:
    return bytes.fromhex(text[2:]) if kind.charset == "binary" and text.startswith("0x") else text.encode()


def _of_year(text: str) -> int:
    """ValueError for one of two digits: a server takes 26 for 2026, and the year 0 by how it is written."""
    year = int(_number(text))
    if text not in ("0", "0000") and not 1901 <= year <= 2155:
        raise ValueError(text)
    return year


def _of_enum(kind: FieldType, text: str) -> int:
    """ValueError for what is no name of it; '' is also the value of a server's that is none."""
    return kind.elems.index(text) + 1 if text or text in kind.elems else 0


def _of_set(kind: FieldType, text: str) -> int:
    return sum(1 << kind.elems.index(each) for each in set(filter(None, text.split(","))))


def _number(text: str) -> str:
    """ValueError for spellings that are Python's alone."""
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return text


def _digits(number: Decimal, scale: int) -> str:
    whole, _, behind = format(number.copy_abs(), "f").partition(".")
    behind = behind.rstrip("0")
    if not whole.isdigit() or len(behind) > scale:
        raise ValueError(number)
    minus = "-" if number < 0 else ""
    return f"{minus}{whole.lstrip('0') or '0'}{'.' * (scale > 0)}{behind.ljust(scale, '0')}"


def _unchanged(text: str, formed: str, read: Callable[[str], int]) -> str:
    """ValueError where the column has fewer digits than were typed."""
    if read(text) != read(formed):
        raise ValueError(text)
    return formed


def _formed(kind: FieldType, text: str) -> Any:  # noqa: PLR0911 - one a kind
    if kind.tp == MysqlType.YEAR:
        return _of_year(text)
    match kind_of(kind):
        case Kind.INT | Kind.UINT:
            return int(_number(text))
        case Kind.FLOAT | Kind.DOUBLE:
            return float(_number(text))
        case Kind.DECIMAL:
            return _digits(Decimal(_number(text)), max(kind.decimal, 0))
        case Kind.DATE:
            return _unchanged(text, date_text(pack_datetime(text)), pack_datetime)
        case Kind.DATETIME:
            return _unchanged(text, datetime_text(pack_datetime(text), fsp_of(kind.decimal)), pack_datetime)
        case Kind.TIME:
            return _unchanged(text, duration_text(parse_duration(text), fsp_of(kind.decimal)), parse_duration)
        case Kind.JSON:
            return text
        case Kind.BYTES:
            return _of_text(kind, text)
        case Kind.ENUM:
            return _of_enum(kind, text)
        case Kind.SET:
            return _of_set(kind, text)
        case never:
            assert_never(never)


# -- as a server compares


def _equal(column: ColumnInfo, value: pa.Scalar, table: str) -> _Matcher:
    """Which values of a column are equal to one on a server; UsageError where that is not known."""
    kind, collation = kind_of(column.type), column.type.collate
    if kind in _APPROXIMATE:
        raise UsageError(f"{column.name} of {table} is {kind.name}, whose values only a server compares", hint=_WHOLE)
    if kind is not Kind.BYTES or column.type.charset == "binary":
        return partial(pc.equal, value)
    pads = not _NO_PAD.search(collation)
    text, pad = (value.as_py().rstrip(b" "), r"\x20*") if pads else (value.as_py(), "")
    if collation.endswith("_bin"):
        return partial(pc.match_substring_regex, pattern=rf"\A{''.join(map(_byte, text))}{pad}\z")
    caseless = _CASELESS.fullmatch(collation)
    if caseless is None or re.search(_OTHER, text.decode()):
        raise UsageError(
            f"{text.decode()!r} cannot be compared with {column.name} of {table} as a server does by {collation}",
            hint=_WHOLE,
        )
    letters = [_letter(byte) for byte in text]
    if caseless[1]:
        alike = "".join(f"(?:{letter}|{_LATIN})" for letter in letters) + pad
    else:
        alike = f"{_OTHER}*{''.join(f'(?:{letter}{_OTHER}*)?' for letter in letters)}" + pads * rf"(?:\x20|{_OTHER})*"
    equal = rf"\A{''.join(letters)}{pad}\z"
    return partial(_caseless, equal, rf"\A{alike}\z", column.name, collation, text)


def _caseless(equal: str, alike: str, column: str, collation: str, text: bytes, values: pa.Array) -> pa.Array:
    """Those that are equal; LoadError for a value that may be."""
    unknown = pc.and_(pc.match_substring_regex(values, _OTHER), pc.match_substring_regex(values, alike))
    if pc.any(unknown).as_py():
        found = values.filter(unknown)[0].as_py().decode(errors="replace")
        raise LoadError(
            f"the key {found!r} ({column}) may be equal to {text.decode()!r} by {collation}, which only a server knows",
            hint=f"{_WHOLE}; --anew gives this one up",
        )
    return pc.match_substring_regex(values, equal)


def _byte(byte: int) -> str:
    return f"\\x{byte:02x}"


def _letter(byte: int) -> str:
    return f"[{chr(byte).lower()}{chr(byte).upper()}]" if chr(byte).isalpha() else _byte(byte)


def _require_order(column: ColumnInfo, table: str) -> None:
    """UsageError where a server orders values in another way than this release."""
    kind, binary = kind_of(column.type), column.type.charset == "binary"
    if column.type.tp == MysqlType.YEAR or not (kind in _ORDERED or (kind is Kind.BYTES and binary)):
        what = f"text in {column.type.collate}" if kind is Kind.BYTES else MysqlType(column.type.tp).name
        raise UsageError(f"a range of {column.name} of {table} is not known: it is {what}", hint=f"--key, or {_WHOLE}")
