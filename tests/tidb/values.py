"""SQL literals for a column of any type that TiDB has: edges, and what others get wrong, more often than the ordinary."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from pumphouse.model.table import ColumnFlag, FieldType, MysqlType
from pumphouse.schema.conversion import conversion
from pumphouse.schema.dialect import Dialect
from tests.support.kind import is_mysql

_TYPE = re.compile(r"^(\w+)(?:\((.*)\))?(.*)$", re.DOTALL)
_ELEMENT = re.compile(r"'((?:[^']|'')*)'")
_INT_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_CODES = {
    "tinyint": MysqlType.TINY, "smallint": MysqlType.SHORT, "mediumint": MysqlType.INT24, "int": MysqlType.LONG,
    "bigint": MysqlType.LONGLONG, "decimal": MysqlType.NEWDECIMAL, "float": MysqlType.FLOAT, "double": MysqlType.DOUBLE,
    "bit": MysqlType.BIT, "char": MysqlType.STRING, "varchar": MysqlType.VARCHAR, "binary": MysqlType.STRING,
    "varbinary": MysqlType.VARCHAR, "tinytext": MysqlType.TINY_BLOB, "text": MysqlType.BLOB,
    "mediumtext": MysqlType.MEDIUM_BLOB, "longtext": MysqlType.LONG_BLOB, "tinyblob": MysqlType.TINY_BLOB,
    "blob": MysqlType.BLOB, "mediumblob": MysqlType.MEDIUM_BLOB, "longblob": MysqlType.LONG_BLOB,
    "date": MysqlType.DATE, "time": MysqlType.TIME, "datetime": MysqlType.DATETIME, "timestamp": MysqlType.TIMESTAMP,
    "year": MysqlType.YEAR, "enum": MysqlType.ENUM, "set": MysqlType.SET, "json": MysqlType.JSON,
}  # fmt: skip
_TEXTS = (
    "",
    "a",
    "A",
    "a ",
    " a",
    "b",
    "aB",
    "it''s",
    'q"q',
    "back\\\\slash",
    "tab\\tnew\\nline",
    "%_",
    "null",
    "0",
    "1e3",
    "-1.5",
    "2024-02-29",
)
_WIDE = ("ß", "é", "É", "中文", "😀", "a😀b", "Ω≈ç", "İ", "ﬁ", "e\u0301")
_JSONS = (
    "{}", "[]", "null", "true", "0", "-0.5", "1.5", "1e100", "18446744073709551615", "-9223372036854775808", '\\"\\"',
    '{\\"a\\": 1, \\"b\\": [1, 2.5, null, {\\"c\\": \\"é😀\\"}]}', '[[[[1]]], \\"x\\", false]', '{\\"\\": \\"\\"}', '\\"a\\\\nb\\"',
    '{\\"k\\": 3.0}',
)  # fmt: skip


@dataclass(frozen=True)
class Column:
    """A column as TiDB's information_schema has it."""

    name: str
    type: str  # COLUMN_TYPE
    charset: str
    nullable: bool
    generated: str  # the expression; empty: it is written
    key: bool  # part of the primary or a unique key
    automatic: bool  # AUTO_INCREMENT or AUTO_RANDOM


def literal(rng: random.Random, column: Column) -> str:
    """A value for INSERT or UPDATE; now and then one that the column refuses."""
    if column.nullable and rng.random() < 0.15:
        return "NULL"
    found = _TYPE.match(column.type)
    assert found is not None
    base, inside, rest = found[1].lower(), found[2] or "", found[3].lower()
    if base in _INT_BITS:
        return _integer(rng, _INT_BITS[base], "unsigned" in rest, small=column.key)
    if base == "decimal":
        return _decimal(rng, inside, "unsigned" in rest)
    if base in {"float", "double"}:
        return _real(rng, base, inside, "unsigned" in rest)
    if base == "bit":
        bits = int(inside)
        return str(rng.choice((0, 1, (1 << bits) - 1, rng.getrandbits(bits))))
    if base in {"char", "varchar", "tinytext", "text", "mediumtext", "longtext"}:
        return _text(rng, column.charset, int(inside) if inside else 200, small=column.key)
    if base in {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}:
        return _binary(rng, int(inside) if inside else 200)
    if base in {"enum", "set"}:
        return _elements(rng, base, inside)
    if base == "json":
        return f"'{rng.choice(_JSONS)}'"
    return _time(rng, base, int(inside) if inside and base != "year" else 0)


def cast_is_known(column: Column, wanted: str, *, strict: bool) -> bool:
    """Whether every value becomes on the target what TiDB makes of it, when the column becomes ``wanted``: `name` TYPE …."""
    dialect = Dialect.MYSQL if is_mysql() else Dialect.MARIADB
    how = conversion(_field(column.type), _field(wanted.split("` ", 1)[1]), strict=strict, dialect=dialect)
    return how is not None and not how.unless


def _field(kind: str) -> FieldType:
    """Of a type in SQL, as far as casts go."""
    found = _TYPE.match(kind)
    assert found is not None
    base, numbers = found[1].lower(), re.findall(r"^\s*\((\d+)(?:,\s*(\d+))?\)", kind[len(found[1]) :])
    first, second = numbers[0] if numbers else ("", "")
    timed = base in {"time", "datetime", "timestamp"}
    return FieldType(
        tp=_CODES[base],
        flag=ColumnFlag.UNSIGNED if re.search(r"\bunsigned\b", kind, re.IGNORECASE) else 0,
        flen=int(first or (1 if base == "bit" else -1)),
        decimal=int((first if timed else second) or (-1 if base in {"float", "double"} else 0)),
        charset="utf8mb4" if base.endswith(("char", "text")) or base in {"enum", "set"} else "binary",
        collate="",
        elems=(),
    )


def _integer(rng: random.Random, bits: int, unsigned: bool, *, small: bool) -> str:
    if small and rng.random() < 0.9:
        return str(rng.randrange(40))
    low, high = (0, (1 << bits) - 1) if unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    return str(rng.choice((low, high, low + 1, high - 1, 0, 1, rng.randint(low, high))))


def _decimal(rng: random.Random, inside: str, unsigned: bool) -> str:
    digits, scale = (int(part) for part in inside.split(","))
    most = f"{'9' * (digits - scale) or '0'}{'.' + '9' * scale if scale else ''}"
    whole = rng.randrange(10 ** min(digits - scale, 6)) if digits > scale else 0
    some = f"{whole}{'.' + str(rng.randrange(10**scale)).zfill(scale) if scale else ''}"
    text = rng.choice((most, "0", some, some, f"0.{'0' * (scale - 1)}1" if scale else "1"))
    return text if unsigned or rng.random() < 0.6 else f"-{text}"


def _real(rng: random.Random, base: str, inside: str, unsigned: bool) -> str:
    if inside:
        digits, scale = (int(part) for part in inside.split(","))
        text = f"{rng.uniform(0, 10 ** (digits - scale) - 1):.{scale}f}"
    else:
        edge = "3.4028234e38" if base == "float" else "1.7976931348623157e308"
        tiny = "1.17549435e-38" if base == "float" else "2.2250738585072014e-308"
        some = repr(rng.uniform(-1e6, 1e6))
        edges = ("0", "0.1", "1.1", "1e20", "16777216", "16777217", "123456789.123", "1e-7", "1e15", "1e16", "1.5e14")
        text = rng.choice((*edges, edge, tiny, some, some, some)).lstrip("-")
    return text if unsigned or rng.random() < 0.6 else f"-{text}"


def _text(rng: random.Random, charset: str, most: int, *, small: bool) -> str:
    if small and rng.random() < 0.7:
        return f"'{rng.choice(('a', 'A', 'b', 'B', 'a ', 'c', 'd'))}'"
    if rng.random() < 0.1:
        return f"REPEAT('x', {most})"
    wide = () if charset in {"ascii", "latin1", "binary"} else ("中文",) if charset == "gbk" else _WIDE
    if charset in {"utf8", "utf8mb3"}:
        wide = tuple(text for text in wide if max(map(ord, text)) < 0x10000)
    text = rng.choice((*_TEXTS, *wide, *wide))
    return f"'{text}'"


def _binary(rng: random.Random, most: int) -> str:
    data = rng.choice(
        (b"", b"\x00", b"\xff\xfe", b"a\x00", b" ", b"a ", b"\x80abc", bytes(range(16)), rng.randbytes(most))
    )
    data = data[:most]
    return f"X'{data.hex()}'" if data else "''"


def _elements(rng: random.Random, base: str, inside: str) -> str:
    elements = _ELEMENT.findall(inside)
    if rng.random() < 0.1:
        return "''"  # without strict mode the value 0 of an ENUM
    if base == "enum":
        return f"'{rng.choice(elements)}'"
    return f"'{','.join(rng.sample(elements, rng.randrange(len(elements) + 1)))}'"


def _time(rng: random.Random, base: str, digits: int) -> str:
    part = f".{str(rng.randrange(10**digits)).zfill(digits)}" if digits else ""
    if base == "year":
        return rng.choice(("0", "1901", "2155", "2024", str(rng.randint(1901, 2155))))
    if base == "date":
        return f"'{rng.choice(('0000-00-00', '1000-01-01', '9999-12-31', '2024-02-29', '0001-01-01', _day(rng)))}'"
    if base == "time":
        hours = rng.choice((0, 0, 1, 23, 99, 837, rng.randrange(838)))
        text = rng.choice(
            ("-838:59:59", "838:59:59", "00:00:00", f"{hours:02}:34:56{part}", f"-{hours:02}:00:01{part}")
        )
        return f"'{text}'"
    if base == "timestamp":
        edges = ("1970-01-01 00:00:01", "2038-01-19 03:14:07", "2024-03-31 02:30:00" + part, "0000-00-00 00:00:00")
        return f"'{rng.choice((*edges, _clock(rng, 1971, 2037) + part))}'"
    edges = ("0000-00-00 00:00:00", "1000-01-01 00:00:00", "9999-12-31 23:59:59" + part, "0001-01-01 00:00:00" + part)
    return f"'{rng.choice((*edges, _clock(rng, 1000, 9999) + part, _clock(rng, 1990, 2030) + part))}'"


def _day(rng: random.Random) -> str:
    return f"{rng.randint(1900, 2100)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def _clock(rng: random.Random, low: int, high: int) -> str:
    return (
        f"{rng.randint(low, high):04}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02} "
        f"{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}"
    )
