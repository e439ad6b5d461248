"""One table on one server: checksums in SQL, or digests of its rows, of all of it or of a part.

A checksum is of the text that a proof gives a value (`pumphouse.proof.forms`). Texts that are equal are equal values;
texts that differ need not be others (JSON ``3`` and ``3.0``), so a checksum says that rows are equal, and what differs
by it is read as rows. Where a server cannot say the text of a column, the rows of the table are read at once.
"""

# Names in statements are quoted by pumphouse.diff.rows; numbers are ours.
# ruff: noqa: S608

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pumphouse.diff.rows import Column, Encode, encoder, quote, row_digest, select_expression
from pumphouse.diff.servers import Row, rows, text
from pumphouse.diff.tables import Table
from pumphouse.mysql import ServerConnection
from pumphouse.proof.forms import Form, Proven
from pumphouse.proof.readable import CODED, of_server
from pumphouse.proof.servers import ColumnThere, checksum, expression
from pumphouse.schema.dialect import Dialect

_MODULUS = {True: 1 << 64, False: 1 << 128}
# Of a row whose text is larger than a packet, a server says NULL: such a sum is below zero.
_UNSAID = "-" + "9" * 40
# By which rows are told apart that no range of a key tells apart.
BUCKETS = 1024
_INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
_FORMS = {
    **dict.fromkeys(("bit", "enum", "set", "year"), Form.UNSIGNED),
    **dict.fromkeys(("float", "double"), Form.REAL),
    **dict.fromkeys(("decimal", "date", "datetime", "timestamp", "time"), Form.FIXED),
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "json"), Form.TEXT),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), Form.BYTES),
}


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a table: with ``low <= key < below``, and of these buckets. None = all."""

    low: int | None = None
    below: int | None = None
    buckets: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Sums:
    """How many rows there are, and the sum of their checksums; None = the server cannot say it."""

    rows: int
    sum: int | None

    def equal(self, other: Sums) -> bool:
        """Whether the rows are equal for certain."""
        return self.sum is not None and self == other


def in_rows(a: Table, b: Table, dialects: tuple[Dialect, Dialect]) -> str:
    """Why checksums in SQL cannot compare two tables, or ''."""
    for x, y in zip(a.columns, b.columns, strict=True):
        if x.data_type not in _FORMS and x.data_type not in _INTEGERS:
            return f"{x.name} is {x.data_type}, for which there is no checksum in SQL"
        if x.type != y.type or x.json != y.json:
            return f"{x.name} has another type in the target"
        if dialects[0] is not dialects[1]:
            if x.json:
                return f"{x.name} is JSON, which {dialects[0]} and {dialects[1]} print differently"
            if Dialect.TIDB in dialects and _FORMS.get(x.data_type) is Form.REAL:
                return f"{x.name} is {x.data_type}, which a TiDB prints differently"
    return ""


def range_key(a: Table, b: Table) -> str:
    """The integer by which the rows of both tables are cut into ranges; '' = there is none."""
    if not a.key or not b.key or a.key[0].lower() != b.key[0].lower():
        return ""
    kinds = [next(c.type for c in table.columns if c.name == table.key[0]) for table in (a, b)]
    return a.key[0] if kinds[0] == kinds[1] and kinds[0].split()[0] in _INTEGERS else ""


class Side:
    """How the rows of a table on one server are asked for.

    Args:
        schema: on that server.
        name: its name there.
        table: what it is there.
        other: what it is on the other server.
        dialect: of that server.
        key: the integer that ranges are of; '' = none.
        in_sql: checksums are asked for in SQL.
    """

    def __init__(
        self, schema: str, name: str, table: Table, other: Table, dialect: Dialect, *, key: str, in_sql: bool
    ) -> None:
        self.columns = table.columns
        self.table = table
        self._key = quote(key) if key else ""
        self.place = f"{quote(schema)}.{quote(name)}"
        self._encoders: list[Encode | None] = [
            encoder(x, as_json=x.json or y.json) for x, y in zip(table.columns, other.columns, strict=True)
        ]
        self._fields = ", ".join(select_expression(column) for column in table.columns)
        self.in_sql = in_sql
        if in_sql:
            told = [_proven(column) for column in table.columns]
            signs = [_sign(column) for column in table.columns if column.data_type in ("float", "double")]
            self._checksum = f"COALESCE({checksum(told, dialect, signs)}, {_UNSAID})"
            keys = {name.lower() for name in table.key}
            known = [each for each in told if (each[0].name.lower() in keys if keys else _is_steady(each[0], table))]
            of = [expression(*each, dialect) for each in known]
            self._bucket = f"COALESCE(CRC32(CONCAT({', '.join(of)})) % {BUCKETS}, 0)" if of else "0"

    def sums(self, connection: ServerConnection, part: Part) -> Sums:
        """Of the rows of a part."""
        if not self.in_sql:
            (found,) = self.digest_sums(connection, part, 1)
            return found
        asked = f"SELECT COUNT(*), COALESCE(SUM({self._checksum}), 0) FROM {self.place}{self._where(part)}"
        ((count, total),) = list(rows(connection, asked))
        return _sums(count, total)

    def bucket_sums(self, connection: ServerConnection, part: Part) -> dict[int, Sums]:
        """The same for each bucket that has rows."""
        asked = f"SELECT {self._bucket}, COUNT(*), SUM({self._checksum}) FROM {self.place}{self._where(part)}"
        found = list(rows(connection, f"{asked} GROUP BY 1"))
        return {int(text(bucket)): _sums(count, total) for bucket, count, total in found}

    def ends(self, connection: ServerConnection, part: Part) -> tuple[int, int] | None:
        """The smallest and the largest key of a part; None = it has no rows."""
        asked = f"SELECT MIN({self._key}), MAX({self._key}) FROM {self.place}{self._where(part)}"
        ((low, high),) = list(rows(connection, asked))
        return None if low is None else (int(text(low)), int(text(high)))

    def digest_sums(self, connection: ServerConnection, part: Part, count: int) -> list[Sums]:
        """Sums of the digests of a part's rows, which are read, by ``count`` shares that their digests deal out."""
        found, totals = [0] * count, [0] * count
        for digest in self._digests(connection, part):
            share = _share(digest, count)
            found[share] += 1
            totals[share] += int.from_bytes(digest, "little")
        return [Sums(*each) for each in zip(found, (each % _MODULUS[False] for each in totals), strict=True)]

    def digests(self, connection: ServerConnection, part: Part, count: int, share: int) -> Counter[bytes]:
        """Digest -> how often, of one share."""
        return Counter(each for each in self._digests(connection, part) if _share(each, count) == share)

    def find(self, connection: ServerConnection, part: Part, wanted: Counter[bytes]) -> Iterator[tuple[Row, str]]:
        """Rows whose digests are wanted, as often as they are, in the order of the key; each also for people."""
        left, count = wanted.copy(), len(self.columns)
        order = f" ORDER BY {', '.join(map(quote, self.table.key))}" if self.table.key else ""
        coded = [at for at, column in enumerate(self.columns) if column.data_type in CODED]
        told = [of_server(quote(self.columns[at].name), self.columns[at].data_type) for at in coded]
        fields = ", ".join([self._fields, *told])
        for found in rows(connection, f"SELECT {fields} FROM {self.place}{self._where(part)}{order}"):
            row = found[:count]
            key = row_digest(row, self._encoders)
            if left[key] > 0:
                left[key] -= 1
                yield row, self._shown(dict(enumerate(row)) | dict(zip(coded, found[count:], strict=True)))

    def _shown(self, values: Mapping[int, bytes | None]) -> str:
        cells = ((column.name, values[at]) for at, column in enumerate(self.columns))
        return ", ".join(f"{name}={'NULL' if value is None else _shown(value)}" for name, value in cells)

    def _digests(self, connection: ServerConnection, part: Part) -> Iterator[bytes]:
        for row in rows(connection, f"SELECT {self._fields} FROM {self.place}{self._where(part)}"):
            yield row_digest(row, self._encoders)

    def _where(self, part: Part) -> str:
        found = [] if part.low is None else [f"{self._key} >= {part.low}"]
        found += [] if part.below is None else [f"{self._key} < {part.below}"]
        if part.buckets is not None:
            found.append(f"{self._bucket} IN ({', '.join(map(str, part.buckets))})")
        return f" WHERE {' AND '.join(found)}" if found else ""


def _proven(column: Column) -> tuple[Proven, ColumnThere]:
    form = _FORMS.get(column.data_type) or (Form.UNSIGNED if "unsigned" in column.type else Form.SIGNED)
    there = ColumnThere(
        name=column.name,
        type=column.data_type,
        zerofill="zerofill" in column.type,
        charset="" if column.data_type == "json" else column.charset,
        computed=column.computed,
    )
    return Proven(name=column.name, form=form, scale=0, called=frozenset()), there


def _sign(column: Column) -> str:
    """What tells -0 from 0, which a proof takes for one."""
    name = quote(column.name)
    return f"IF({name} = 0, LEFT({name}, 1), '')"


def _is_steady(column: Proven, table: Table) -> bool:
    """Whether equal values of a column have one text on every server."""
    found = next(each for each in table.columns if each.name == column.name)
    return not found.json and column.form is not Form.REAL


def _sums(count: bytes | None, total: bytes | None) -> Sums:
    summed = int(text(total) or 0)
    return Sums(int(text(count)), summed % _MODULUS[True] if summed >= 0 else None)


def _share(digest: bytes, count: int) -> int:
    return int.from_bytes(digest[:4], "little") % count


def _shown(value: bytes) -> str:
    """Text as it is, anything else as bytes."""
    try:
        shown = value.decode()
        return repr(shown[:40]) + "…" * (len(shown) > 40)
    except UnicodeDecodeError:
        return repr(value[:40])[1:] + "…" * (len(value) > 40)
