"""Rows of the source as loader values: how a column is read from MariaDB without loss, and how a row is found again."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pymysql.connections import Connection
from pymysql.converters import encoders

from pumphouse.codec.datum import Kind, Value, kind_of
from pumphouse.model.table import ColumnInfo, MysqlType, TableInfo
from pumphouse.mysql.dsn import Dsn
from pumphouse.schema.ident import qualified, quote

Row = dict[int, Value]

SESSION = (
    "SET time_zone = '+00:00', foreign_key_checks = 0, innodb_lock_wait_timeout = 10, "
    "sql_mode = 'STRICT_TRANS_TABLES,NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION'"
)


def connect(source: Dsn) -> Connection[Any]:
    """A connection whose results are the bytes that the server printed; READ COMMITTED, so that gaps are not locked."""
    connection = source.connect(conv=encoders, use_unicode=False, autocommit=False)
    with connection.cursor() as cursor:
        cursor.execute(SESSION)
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    connection.commit()
    return connection


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table as the writers use it: names, expressions and decoders worked out once for each version."""

    db: str
    info: TableInfo
    columns: tuple[ColumnInfo, ...]
    stored: tuple[ColumnInfo, ...]
    """Columns that take values (no generated ones)."""
    key: tuple[ColumnInfo, ...]

    @classmethod
    def of(cls, db: str, info: TableInfo) -> SourceTable:
        """Work it out."""
        columns = info.public_columns
        return cls(
            db=db,
            info=info,
            columns=columns,
            stored=tuple(c for c in columns if not c.generated),
            key=tuple(info.columns[part.offset] for part in info.primary_key()),
        )

    @property
    def name(self) -> str:
        """Quoted, with its database."""
        return qualified(self.db, self.info.name)

    def select(self, where: str) -> str:
        """SELECT of all columns; ``where`` begins with its keyword or is empty."""
        return f"SELECT {', '.join(map(_expression, self.columns))} FROM {self.name} {where}"  # noqa: S608

    def decode(self, cells: Sequence[bytes | None]) -> Row:
        """Loader values of a row that `select` brought."""
        return {
            column.id: None if cell is None else _DECODERS[kind_of(column.type)](cell)
            for column, cell in zip(self.columns, cells, strict=True)
        }

    def key_of(self, row: Mapping[int, Value]) -> tuple[Value, ...]:
        """Values of the primary key; () without one."""
        return tuple(row[column.id] for column in self.key)

    def where_key(self, count: int) -> str:
        """Condition for ``count`` keys, given one after the other."""
        names = ", ".join(quote(column.name) for column in self.key)
        one = f"({', '.join(['%s'] * len(self.key))})"
        return f"WHERE ({names}) IN ({', '.join([one] * count)})"

    def where_row(self, row: Mapping[int, Value]) -> tuple[str, list[Value]]:
        """Condition that exactly the rows with these values fulfil, for tables without a key."""
        parts = [f"{_comparable(column)} <=> %s" for column in self.stored]
        return f"WHERE {' AND '.join(parts)}", [row[column.id] for column in self.stored]

    def insert(self, verb: str, count: int) -> str:
        """``verb`` INTO the table for so many rows."""
        names = ", ".join(quote(column.name) for column in self.stored)
        one = f"({', '.join(['%s'] * len(self.stored))})"
        return f"{verb} INTO {self.name} ({names}) VALUES {', '.join([one] * count)}"

    def cells(self, row: Mapping[int, Value]) -> list[Value]:
        """Values in the order of `insert`."""
        return [row[column.id] for column in self.stored]

    def handle(self, row: Mapping[int, Value]) -> int | None:
        """Stands for TiDB's hidden row id: stable for a row, None where the key itself is the handle."""
        if self.info.pk_is_handle or self.info.is_common_handle:
            return None
        identity = self.key_of(row) or tuple(row[column.id] for column in self.stored)
        return zlib.crc32(repr(identity).encode()) + 1


def _expression(column: ColumnInfo) -> str:
    name = quote(column.name)
    kind = kind_of(column.type)
    if kind is Kind.FLOAT:
        return f"CAST({name} AS DOUBLE)"
    if kind in (Kind.ENUM, Kind.SET) or column.type.tp == MysqlType.BIT:
        return f"CAST({name} AS UNSIGNED)"
    return name


def _comparable(column: ColumnInfo) -> str:
    kind = kind_of(column.type)
    return f"BINARY {quote(column.name)}" if kind in (Kind.BYTES, Kind.JSON) else _expression(column)


def _text(cell: bytes) -> Value:
    return cell.decode()


_DECODERS: dict[Kind, Callable[[bytes], Value]] = {
    Kind.INT: int,
    Kind.UINT: int,
    Kind.ENUM: int,
    Kind.SET: int,
    Kind.FLOAT: float,
    Kind.DOUBLE: float,
    Kind.DECIMAL: _text,
    Kind.DATE: _text,
    Kind.DATETIME: _text,
    Kind.TIME: _text,
    Kind.JSON: _text,
    Kind.BYTES: bytes,
}
