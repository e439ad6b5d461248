"""Statements that make the rows of the target equal to those of the source, in a file. Nothing runs them.

Of each table all DELETEs stand before all INSERTs: a value of a unique key may have gone from one row to another. Each
DELETE is of the row as it was found, and the file ends in an error where that row is not there any more.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self, TextIO

from pumphouse.diff.rows import Column, quote
from pumphouse.diff.servers import Row
from pumphouse.diff.sides import Side
from pumphouse.durable import new_private
from pumphouse.mysql import SQL_MODE
from pumphouse.proof.servers import utf8_bytes

_NUMBERS = frozenset({
    "tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double", "enum", "set", "year",
})  # fmt: skip
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "json"})
_TIMES = frozenset({"date", "datetime", "timestamp", "time"})
_PRINTED = _TEXTS | {"uuid", "inet4", "inet6"}
_HEAD = f"""SET NAMES utf8mb4;
SET time_zone = '+00:00', foreign_key_checks = 0, sql_mode = '{SQL_MODE}';
-- "DOUBLE value is out of range" says that the row of the DELETE before it has changed since: compare again.
START TRANSACTION;
"""
# An error unless the statement before it has deleted a row. No subquery: a TiDB evaluates one that IF does not choose.
_DELETED = "SET @the_row_was_as_found = EXP(IF(ROW_COUNT() = 1, 0, 1000))"


class FixFile:
    """Written by several threads; ``rows``: how many rows it deletes and inserts."""

    def __init__(self, out: TextIO, folder: Path) -> None:
        self._out = out
        self._folder = folder
        self._lock = threading.Lock()
        self._tables: dict[str, int] = {}
        self.rows = 0

    @classmethod
    @contextmanager
    def made(cls, path: Path, title: str) -> Iterator[Self]:
        """A new file; FileExistsError where there is one."""
        with new_private(path) as out, tempfile.TemporaryDirectory(prefix="pumphouse-diff-") as folder:
            out.write(f"-- {title.replace(chr(10), ' ')}\n{_HEAD}")
            yield cls(out, Path(folder))

    def add(self, title: str, at: int, row: Row, source: Side, target: Side) -> None:
        """A row that the source only has (``at`` 0), or the target only (1)."""
        statement = _insert(row, source, target) if at == 0 else f"{_delete(row, target)};\n{_DELETED}"
        with self._lock:
            number = self._tables.setdefault(title, len(self._tables))
            self.rows += 1
            with self._part(number, 1 - at).open("a", encoding="utf-8") as file:
                file.write(f"{statement};\n")

    def note(self, text: str) -> None:
        """Something that is left to whoever reads the file."""
        self._out.write(f"-- {text.replace(chr(10), ' ')}\n")

    def end(self) -> None:
        """Put everything together."""
        for title, number in sorted(self._tables.items()):
            self.note(title)
            for at in (0, 1):
                if self._part(number, at).exists():
                    with self._part(number, at).open(encoding="utf-8", newline="") as file:
                        self._out.writelines(file)
        self._out.write("COMMIT;\n")

    def _part(self, number: int, at: int) -> Path:
        return self._folder / f"{number}-{at}"


def _insert(row: Row, source: Side, target: Side) -> str:
    cells = [
        (quote(there.name), literal(here, value))
        for here, there, value in zip(source.columns, target.columns, row, strict=True)
        if not there.computed
    ]
    names, values = (", ".join(each) for each in zip(*cells, strict=True))
    return f"INSERT INTO {target.place} ({names}) VALUES ({values})"  # noqa: S608 - names are quoted, values are literals


def _delete(row: Row, target: Side) -> str:
    key = {name.lower() for name in target.table.key}
    cells = [each for each in zip(target.columns, row, strict=True) if not each[0].computed]
    # By the key, so that the server finds it; and by everything, so that it is this row.
    wanted = [
        f"{quote(column.name)} = {literal(column, value)}" for column, value in cells if column.name.lower() in key
    ]
    wanted += [_same(column, value) for column, value in cells]
    return f"DELETE FROM {target.place} WHERE {' AND '.join(wanted)} LIMIT 1"  # noqa: S608 - as above


def _same(column: Column, value: bytes | None) -> str:
    """Whether a column has exactly this value, whatever its collation takes for equal."""
    if value is not None and column.data_type in _TEXTS:
        return f"{utf8_bytes(quote(column.name), column.charset)} = x'{value.hex()}'"
    return f"{quote(column.name)} <=> {literal(column, value)}"


def literal(column: Column, value: bytes | None) -> str:
    """A value as it was read, in SQL; nothing of it can be anything but a value."""
    if value is None:
        return "NULL"
    if column.data_type in _NUMBERS:
        number = value.decode("ascii")
        if not set(number) <= set("0123456789.+-eE"):
            raise ValueError(f"{number!r} is no number")
        is_plain = column.data_type in ("float", "double") and not set(number) & {"e", "E"}
        return f"{number}e0" if is_plain else number  # else -0 is an integer, which has no sign
    if column.data_type in _TIMES:
        moment = value.decode("ascii")  # a TiDB makes no date of a hexadecimal text
        if not set(moment) <= set("0123456789-:. "):
            raise ValueError(f"{moment!r} is no time")
        return f"'{moment}'"
    if column.data_type not in _PRINTED:
        return f"0x{value.hex()}" if value else "''"
    if column.json:
        return f"CONVERT(x'{value.hex()}' USING utf8mb4)"  # a TiDB takes the other form for bytes
    own = value[:1] == b"\xff" and column.charset.isalnum()  # not UTF-8: the bytes of its own charset
    return f"_{column.charset} x'{value[1:].hex()}'" if own else f"_utf8mb4 x'{value.hex()}'"
