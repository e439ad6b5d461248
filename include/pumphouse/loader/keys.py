"""Which columns tell the rows of a table apart, and which rows somebody asks for by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pumphouse.errors import UsageError
from pumphouse.model.table import ColumnInfo, MysqlType, TableInfo

_LONG = frozenset({MysqlType.BLOB, MysqlType.MEDIUM_BLOB, MysqlType.LONG_BLOB})
_INDEXED_BYTES = 3072  # an index without a length holds no more of a column


def key_columns(table: TableInfo) -> tuple[str, ...]:
    """Columns that identify a row: the primary key, else a unique key none of whose columns can be NULL, else ().

    A key over a generated column does not serve, because binlogs do not carry it; nor does one over JSON, which only a
    MariaDB has.
    """
    by_name = {c.name.lower(): c for c in table.public_columns if not c.generated}

    def resolve(names: list[str], *, primary: bool) -> tuple[str, ...]:
        found: list[ColumnInfo] = [by_name[n.lower()] for n in names if n.lower() in by_name]
        if not names or len(found) != len(names) or not (primary or all(map(_tells_apart, found))):
            return ()
        return tuple(c.name for c in found)

    primary = resolve([c.name for c in table.primary_key()], primary=True)
    if primary:
        return primary
    for index in sorted(table.indexes, key=lambda i: (len(i.columns), i.id)):
        if index.unique and index.public and not index.primary:
            found = resolve([c.name for c in index.columns], primary=False)
            if found:
                return found
    return ()


def page_columns(table: TableInfo) -> tuple[str, ...]:
    """`key_columns` where the source sorts rows by all of the key; () where it would take some for equal.

    A MariaDB's unique key over a long text without a length is a hash, and a sort looks at a text's first bytes alone.
    """
    key = key_columns(table)
    long = {c.name.lower() for c in table.public_columns if c.type.tp in _LONG or c.type.flen > _INDEXED_BYTES}
    parts = {part.name.lower() for index in table.indexes if index.unique for part in index.columns if part.length < 0}
    return () if any(name.lower() in long & parts for name in key) else key


def _tells_apart(column: ColumnInfo) -> bool:
    return column.type.not_null and column.type.tp != MysqlType.JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicate:
    """Which rows; without anything: all.

    Args:
        keys: primary keys, of several columns as a line of CSV.
        low: the key's first column is this or more.
        below: it is less than this.
        exact: keys are these very values, byte by byte, whatever a server takes for equal. No plan keeps it.
    """

    keys: tuple[str, ...] = ()
    low: str | None = None
    below: str | None = None
    exact: bool = False

    def __post_init__(self) -> None:
        """UsageError where it is two things at once."""
        if self.keys and self.ranged:
            raise UsageError("--key is of single rows: it excludes --key-from and --key-to")

    @property
    def ranged(self) -> bool:
        """Whether it is a range."""
        return self.low is not None or self.below is not None

    def __bool__(self) -> bool:
        return bool(self.keys) or self.ranged

    def __str__(self) -> str:
        if self.keys:
            more = f" and {len(self.keys) - 5} more" if len(self.keys) > 5 else ""
            return f"with the key {' or '.join(self.keys[:5])}{more}"
        begin = "" if self.low is None else f" from {self.low}"
        return f"with a key{begin}" + ("" if self.below is None else f" below {self.below}")

    def found(self, rows: int) -> str:
        """How many rows there are, for people; it begins with ``!`` where a key, or a range, has none."""
        keys = len({*self.keys})
        said = f"{keys} keys asked, {rows} rows found" if keys else f"{rows} rows {self}"
        if rows >= max(keys, 1):
            return said
        return f"! {said}: the table had no more at that moment; look at how they are written (a TIMESTAMP is in UTC)"

    def to_dict(self) -> dict[str, Any]:
        """JSON object, of what it is."""
        if self.keys:
            return {"keys": list(self.keys)}
        return {name: each for name, each in (("from", self.low), ("below", self.below)) if each is not None}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read the JSON object."""
        return cls(keys=tuple(data.get("keys", ())), low=data.get("from"), below=data.get("below"))


ALL_ROWS = Predicate()
