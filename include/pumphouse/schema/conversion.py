"""What MODIFY COLUMN makes of the values that are there: where a target does as the source, and where it is told how.

The one place of TiDB's casts on a target. A pair of types is alike (an ALTER is enough), has expressions that give
TiDB's value, or is not known: then a table with rows is not changed. What is said here is held against what a TiDB made
of edge values (tests/recorded/conversions.json), each pair on a real MariaDB and on a real MySQL. A source that is a
MySQL or a MariaDB (`Cast`) casts as a target of its kind does; as another one, where both do as TiDB.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

from pumphouse.model.table import INTEGERS, STRINGS, ColumnFlag, FieldType, MysqlType
from pumphouse.schema.dialect import Dialect


class Family(StrEnum):
    """Types whose values are cast alike."""

    INTEGER = "integer"
    YEAR = "year"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    BIT = "bit"
    DATE = "date"
    DATETIME = "datetime"
    TIMESTAMP = "timestamp"
    TIME = "time"
    TEXT = "text"
    CHAR = "char"
    BYTES = "bytes"
    BINARY = "binary"
    ENUM = "enum"
    SET = "set"
    JSON = "json"


_FAMILIES: dict[int, Family] = {
    **dict.fromkeys(INTEGERS, Family.INTEGER),
    MysqlType.YEAR: Family.YEAR,
    MysqlType.FLOAT: Family.FLOAT,
    MysqlType.DOUBLE: Family.DOUBLE,
    MysqlType.NEWDECIMAL: Family.DECIMAL,
    MysqlType.BIT: Family.BIT,
    MysqlType.DATE: Family.DATE,
    MysqlType.DATETIME: Family.DATETIME,
    MysqlType.TIMESTAMP: Family.TIMESTAMP,
    MysqlType.TIME: Family.TIME,
    MysqlType.ENUM: Family.ENUM,
    MysqlType.SET: Family.SET,
    MysqlType.JSON: Family.JSON,
}


def family(field: FieldType) -> Family | None:
    """Of a type; None: of its casts nothing is known."""
    if field.tp not in STRINGS:
        return _FAMILIES.get(field.tp)
    binary, fixed = field.charset == "binary", field.tp == MysqlType.STRING
    if binary:
        return Family.BINARY if fixed else Family.BYTES
    return Family.CHAR if fixed else Family.TEXT


@dataclass(frozen=True, slots=True)
class Conversion:
    """How values come into a new type.

    ``steps``: expressions for a column of the new type, set one after the other: ``{old}`` is the old column, ``{new}``
    the new one; each may be set twice. () = the target's own conversion is TiDB's.
    ``unless``: a condition on ``{old}``: of rows where it holds that is not known.
    """

    steps: tuple[str, ...] = ()
    unless: str = ""


ALIKE = Conversion()

_TEXTS = frozenset({Family.CHAR, Family.TEXT})
_READ = _TEXTS | {Family.BYTES}
_STRINGS = _READ | {Family.BINARY}
_REALS = frozenset({Family.FLOAT, Family.DOUBLE})
_NUMBERS = _REALS | {Family.DECIMAL}
_MOMENTS = frozenset({Family.DATETIME, Family.TIMESTAMP})

# From -> to, where the server's own conversion gives what TiDB's does: in strict mode, and without it.
_ALIKE: dict[Family, frozenset[Family]] = {
    Family.INTEGER: _NUMBERS
    | _MOMENTS
    | _STRINGS
    | {Family.INTEGER, Family.BIT, Family.YEAR, Family.DATE, Family.TIME, Family.ENUM, Family.SET, Family.JSON},
    Family.YEAR: _NUMBERS | {Family.INTEGER, Family.TIME},
    Family.FLOAT: frozenset({Family.INTEGER, Family.BIT}) | _NUMBERS,
    Family.DOUBLE: frozenset({Family.INTEGER, Family.BIT}) | _NUMBERS,
    Family.DECIMAL: frozenset({Family.INTEGER, Family.BIT, Family.TIME}) | _NUMBERS | _STRINGS,
    Family.BIT: _NUMBERS | {Family.INTEGER, Family.BIT, Family.YEAR},
    Family.DATE: _NUMBERS | _MOMENTS | _STRINGS | {Family.INTEGER, Family.TIME},
    Family.DATETIME: _NUMBERS | _MOMENTS | _STRINGS | {Family.INTEGER, Family.DATE, Family.TIME},
    Family.TIMESTAMP: _NUMBERS | _MOMENTS | _STRINGS | {Family.INTEGER, Family.DATE, Family.TIME},
    Family.TIME: _NUMBERS | _STRINGS | {Family.INTEGER, Family.TIME},
    Family.CHAR: _NUMBERS | _MOMENTS | _STRINGS | {Family.TIME, Family.ENUM, Family.SET},
    Family.TEXT: _NUMBERS | _MOMENTS | _STRINGS | {Family.TIME, Family.ENUM, Family.SET},
    Family.BYTES: _NUMBERS | _MOMENTS | _STRINGS | {Family.TIME, Family.ENUM, Family.SET},
    Family.BINARY: frozenset({Family.BYTES, Family.BINARY, Family.TEXT}),
    Family.ENUM: _NUMBERS | _STRINGS | {Family.INTEGER, Family.BIT, Family.YEAR, Family.SET, Family.ENUM},
    Family.SET: _NUMBERS | _STRINGS | {Family.INTEGER, Family.BIT, Family.YEAR, Family.ENUM, Family.SET},
    Family.JSON: _STRINGS,
}
_LOOSE: dict[Family, frozenset[Family]] = {
    Family.INTEGER: _NUMBERS | _STRINGS | {Family.INTEGER, Family.BIT, Family.DATE, Family.DATETIME, Family.ENUM},
    Family.YEAR: _NUMBERS | {Family.INTEGER, Family.TIME},
    Family.BIT: frozenset({Family.INTEGER, Family.DECIMAL, Family.BIT}),
    Family.FLOAT: frozenset({Family.DOUBLE, Family.DECIMAL, Family.FLOAT}),
    Family.DOUBLE: frozenset({Family.FLOAT, Family.DECIMAL}),
    Family.DECIMAL: frozenset({Family.FLOAT, Family.DECIMAL, Family.BIT}) | _STRINGS,
    Family.DATE: _NUMBERS | _STRINGS | {Family.DATETIME, Family.TIME},
    Family.DATETIME: _NUMBERS | _STRINGS | {Family.DATE, Family.DATETIME, Family.TIME},
    Family.TIMESTAMP: _NUMBERS | _MOMENTS | _STRINGS | {Family.DATE, Family.TIME},
    Family.TIME: _NUMBERS | _STRINGS,
    Family.CHAR: _NUMBERS | _MOMENTS | _STRINGS | {Family.ENUM},
    Family.TEXT: _NUMBERS | _MOMENTS | _STRINGS | {Family.ENUM},
    Family.BYTES: _NUMBERS | {Family.BYTES, Family.BINARY, Family.ENUM},
    Family.BINARY: frozenset({Family.BYTES, Family.BINARY}),
    Family.ENUM: _ALIKE[Family.ENUM],
    Family.SET: _ALIKE[Family.SET],
    Family.JSON: _STRINGS,
}


# Where a MySQL gives other values than TiDB and MariaDB, or refuses some: in strict mode, and without it.
_OTHERWISE_ON_MYSQL: dict[bool, frozenset[tuple[Family, Family]]] = {
    True: frozenset((before, after) for before in (Family.JSON, Family.FLOAT) for after in _STRINGS)
    | {(before, Family.TIME) for before in _TEXTS}
    | {(Family.INTEGER, after) for after in _MOMENTS | {Family.DATE}}
    | {(Family.BYTES, Family.INTEGER)},
    False: frozenset((Family.JSON, after) for after in _STRINGS)
    | {(before, after) for before in _TEXTS for after in _MOMENTS}
    | {(before, Family.DATE) for before in _MOMENTS}
    | {(Family.DECIMAL, Family.BIT), (Family.INTEGER, Family.DATE), (Family.INTEGER, Family.DATETIME)},
}


def conversion(
    old: FieldType, new: FieldType, *, strict: bool, dialect: Dialect = Dialect.MARIADB
) -> Conversion | None:
    """How TiDB's cast is had on a target; None where it is not known. ``strict``: the sql_mode of the change."""
    before, after = family(old), family(new)
    if before is None or after is None:
        return None
    if dialect is Dialect.MYSQL and (before, after) in _OTHERWISE_ON_MYSQL[strict]:
        return None
    if after in _REALS and new.decimal >= 0:
        return None  # DOUBLE(10,2): each rounds in its own way
    if not strict:
        # What does not fit is cut, there and here; no expression of ours is held against that.
        return ALIKE if after in _LOOSE[before] and not _padded(old, after) else None
    printed = after in _STRINGS or _padded(old, after)
    steps = _into_text(old, before, after) if printed else _into_numbers(old, new, before, after)
    if dialect is Dialect.MYSQL and before in _MOMENTS and after is Family.DATE:
        steps = ("DATE({old})",)  # it rounds into the next day
    if not steps and after not in _ALIKE[before]:
        return None
    unless = _unless(old, new, before, after)
    if dialect is Dialect.MYSQL and before is Family.DOUBLE and after in _STRINGS:
        unless = "CHAR_LENGTH(CAST({old} + 0e0 AS CHAR)) >= 22"  # it prints no more
    if dialect is Dialect.MYSQL and before in {Family.DOUBLE, Family.DECIMAL} and after in {Family.INTEGER, Family.BIT}:
        unless = f"{unless or 'FALSE'} OR ABS({{old}}) >= {2**63 - 1}"  # not even as the largest one
    return Conversion(steps, unless)


@dataclass(frozen=True, slots=True)
class Cast:
    """By what a source cast the values of a column that keeps its id.

    ``kind``: of server; None = that is not known, and taken to be the target's. ``rounds``: whether it rounds fractions
    of seconds; None = that is not known. ``strict``: its sql_mode.
    """

    kind: Dialect | None = None
    rounds: bool | None = None
    strict: bool = True

    @classmethod
    def of(cls, reorg: Mapping[str, Any], *, strict: bool) -> Self:
        """Of a job's ``reorg_meta``, where a capture says it."""
        said = reorg.get("server") or {}
        kind, rounds = said.get("kind"), said.get("rounds")
        return cls(Dialect(kind) if kind in set(Dialect) else None, None if rounds is None else bool(rounds), strict)


def unlike(old: FieldType, new: FieldType, cast: Cast, dialect: Dialect) -> str | None:
    """Rows that a target may cast otherwise than the source: a condition on ``{old}``, '' = any row; None = none."""
    before, after = family(old), family(new)
    if replace(old, flag=0) == replace(new, flag=0) and (old.unsigned, before) == (new.unsigned, after):
        return None  # NOT NULL, or another flag of a key
    if before is Family.TIME and after in _MOMENTS | {Family.DATE}:
        return ""  # it depends on the day of the change
    found = [_fractions(old, new, cast, dialect)]
    for kind in sorted({cast.kind or dialect, dialect} - {Dialect.TIDB}) if cast.kind not in (None, dialect) else ():
        how = conversion(old, new, strict=cast.strict, dialect=kind)
        refused = (
            cast.strict and before in _READ and after is Family.INTEGER and Dialect.TIDB not in (cast.kind, dialect)
        )
        if (how is None or how.steps) and not refused:
            return ""
        found.append("" if how is None or refused else how.unless)
        if before in _REALS and after is Family.INTEGER:
            found.append(f"ABS({{old}}) >= {2**63 - 1}")  # a MySQL makes the smallest one of it
    return " OR ".join(dict.fromkeys(filter(None, found))) or None


def _fractions(old: FieldType, new: FieldType, cast: Cast, dialect: Dialect) -> str:
    """Rows in which rounding a second and cutting it make two, where the target may not do as the source; '' = none."""
    told = cast.rounds is not None and (cast.rounds or dialect is not Dialect.TIDB)
    before, after, digits = family(old), family(new), max(new.decimal, 0)
    if told or after not in _MOMENTS | {Family.TIME, Family.INTEGER} or digits >= 6:
        return ""
    if before in _MOMENTS | {Family.TIME}:
        unit = 10 ** (6 - digits)
        return f"MICROSECOND({{old}}) MOD {unit} >= {unit // 2}" if digits < max(old.decimal, 0) else ""
    return "{old} LIKE '%.%'" if after is not Family.INTEGER and before in _READ | _NUMBERS else ""


def _padded(old: FieldType, after: Family) -> bool:
    """Whether a server prints zeros in front of the number, as TiDB does not."""
    text = after in _STRINGS or (after is Family.JSON and family(old) in {Family.INTEGER, Family.YEAR})
    return text and bool(old.flag & ColumnFlag.ZEROFILL)


def _into_text(old: FieldType, before: Family, after: Family) -> tuple[str, ...]:
    """TiDB's cast in SQL, where the server's own is another."""
    if before in _REALS:
        printed = "{old} + 0e0" if before is Family.DOUBLE else _shortest()
        # Not into BINARY(n), whose zeros would be in the way.
        return (f"CAST({printed} AS CHAR)", _positional("{new}")) if after in _READ else ()
    if before in {Family.YEAR, Family.BIT} or _padded(old, after):
        return ("CAST({old} + 0 AS CHAR)",)  # YEAR 0 is no '0000', BIT no byte
    return ()


def _into_numbers(old: FieldType, new: FieldType, before: Family, after: Family) -> tuple[str, ...]:
    """TiDB's cast in SQL, where the server's own is another."""
    if before in _READ and after is Family.INTEGER:
        return ("ROUND(CAST(TRIM({old}) AS DECIMAL(65,30)))",)  # '1e3' is 1000, and '1.5' is 2
    if before in _READ and after is Family.DATE:
        return ("CAST({old} AS DATETIME)",)  # the time of day is rounded, into the next day as well
    if before in _MOMENTS and after is Family.INTEGER and old.decimal > 0:
        # The moment is rounded, or, into an unsigned type, the number: 23:59:59.9 is 235960 there.
        rounded = "TRUNCATE(({old} + INTERVAL 500000 MICROSECOND) + 0, 0)"
        return (
            f"CASE WHEN MICROSECOND({{old}}) = 0 OR {int(new.unsigned)} THEN ROUND({{old}} + 0) ELSE {rounded} END",
        )
    return ()


def _unless(old: FieldType, new: FieldType, before: Family, after: Family) -> str:
    """Values that are not known to be cast alike."""
    integer = after is Family.INTEGER
    finer = max(new.decimal, 0) < max(old.decimal, 0)
    cases = (
        # TiDB makes 2^64 - 1 of the largest one, whatever the type.
        (before in _REALS and after is Family.BIT, f"{{old}} >= {min(_largest(new), 2**63 - 1)}"),
        (before in _REALS and integer and new.unsigned, f"{{old}} >= {min(_largest(new), 2**63 - 1)}"),
        (before is Family.BIT and after in _REALS, "{old} >= 9223372036854775808"),
        (before is after is Family.DECIMAL and new.unsigned and not old.unsigned, "{old} < 0"),
        # Halves of negative times go up at TiDB.
        (before is after is Family.TIME and finer, "{old} < 0 AND MICROSECOND({old}) <> 0"),
        (before is Family.TIME and integer and old.decimal > 0, "MICROSECOND({old}) <> 0"),
        (before in _READ and after is Family.TIME, "{old} LIKE '%-%.%'"),
        # TiDB reads '1e400' as 1.
        (before in _READ and integer, "LOWER({old}) REGEXP 'e[-+]?[0-9]{3}'"),
        # No UTF-8: into latin1 TiDB takes it.
        (
            before in {Family.BYTES, Family.BINARY} and after in _TEXTS,
            "{old} <> CAST(CONVERT({old} USING utf8mb4) AS BINARY)",
        ),
    )
    return next((where for holds, where in cases if holds), "")


_BITS = {MysqlType.TINY: 8, MysqlType.SHORT: 16, MysqlType.INT24: 24, MysqlType.LONG: 32, MysqlType.LONGLONG: 64}


def _largest(field: FieldType) -> int:
    """Of an unsigned integer or a BIT; 0 of any other type."""
    bits = field.flen if field.tp == MysqlType.BIT else _BITS.get(MysqlType(field.tp), 0)
    return int(2**bits - 1)


def _positional(text: str) -> str:
    """A printed float without an exponent; what has none stays as it is."""
    whole, power = f"SUBSTRING_INDEX({text}, 'e', 1)", f"CAST(SUBSTRING_INDEX({text}, 'e', -1) AS SIGNED)"
    digits = f"REPLACE(REPLACE({whole}, '-', ''), '.', '')"
    small = f"CONCAT('0.', REPEAT('0', -1 - {power}), {digits})"
    cut = f"CONCAT(LEFT({digits}, {power} + 1), '.', SUBSTRING({digits}, {power} + 2))"
    large = f"IF(CHAR_LENGTH({digits}) <= {power} + 1, RPAD({digits}, {power} + 1, '0'), {cut})"
    sign = f"IF(LEFT({text}, 1) = '-', '-', '')"
    return f"IF(LOCATE('e', {text}) = 0, {text}, CONCAT({sign}, IF({power} < 0, {small}, {large})))"


def _shortest() -> str:
    """The DOUBLE with the fewest digits that is the FLOAT {old}: servers print a FLOAT with six, which may be another.

    Digits are tried as decimals, so each is exact; of two that are as near the even one, as TiDB has it.
    """
    real = "({old} + 0e0)"
    exact, text = f"CAST({real} AS DECIMAL(65,30))", f"CAST({real} AS CHAR)"

    def plain(digits: int) -> str:
        place = f"{digits - 1} - FLOOR(LOG10(ABS({real})))"
        near, toward_zero = f"ROUND({exact}, {place})", f"TRUNCATE({exact}, {place})"
        tie = f"{near} <> {toward_zero} AND {near} - {exact} = {exact} - {toward_zero}"
        even = f"MOD(ROUND({toward_zero} * POW(10, {place})), 2) = 0"
        return f"(IF({tie} AND {even}, {toward_zero}, {near}) + 0e0)"

    def scaled(digits: int) -> str:
        mantissa = f"ROUND(CAST(SUBSTRING_INDEX({text}, 'e', 1) AS DECIMAL(20,18)), {digits - 1})"
        return f"(CONCAT({mantissa}, 'e', SUBSTRING_INDEX({text}, 'e', -1)) + 0e0)"

    def first(found: list[str]) -> str:
        cases = " ".join(f"WHEN CAST({each} AS FLOAT) = {{old}} THEN {each}" for each in found[:-1])
        return f"CASE {cases} ELSE {found[-1]} END"

    # Six digits are what a server prints: mostly that is all, but below the smallest normal FLOAT it may be too much.
    printed = "CAST({old} AS CHAR)"
    usual = first([plain(digits) for digits in (7, 8, 9)])
    large = first([scaled(digits) for digits in (7, 8, 9)])
    tiny = first([scaled(digits) for digits in range(1, 10)])
    return (
        f"CASE WHEN {{old}} = 0 THEN {real} WHEN ABS({real}) < 1.17549435e-38 THEN {tiny} "
        f"WHEN CAST({printed} AS FLOAT) = {{old}} THEN {printed} + 0e0 "
        f"WHEN ABS({real}) BETWEEN 1e-20 AND 1e34 THEN {usual} ELSE {large} END"
    )
