"""Which table of the history the rows of a group belong to, and their bytes in prewrite values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pumphouse.capture.ddl import Schema
from pumphouse.capture.source.encode import encode
from pumphouse.capture.source.model import Group, TableMap, Transaction
from pumphouse.capture.source.session import character_sets
from pumphouse.capture.source.target import Target
from pumphouse.codec.number import append_uvarint
from pumphouse.errors import UnknownTable
from pumphouse.model.table import TableInfo
from pumphouse.model.tso import MAX_TSO
from pumphouse.schema.actions import is_system


class RowWriter:
    """Encodes rows for the schema as it is; `renew` it after each change.

    Attributes:
        head: begin of each prewrite value: the schema version. Mutations follow.
    """

    def __init__(self, schema: Schema, leaves_out: Callable[[str, str], bool]) -> None:
        self._schema = schema
        self._leaves_out = leaves_out
        self._charsets = character_sets(schema.shadow.connection)
        self.renew()

    def renew(self) -> None:
        """The schema is another one from now on."""
        self._tables = {version.name: version.table for version in self._schema.known.timeline.tables_at(MAX_TSO)}
        self._targets: dict[TableMap, Target | None] = {}
        head = bytearray(b"\x08")
        append_uvarint(head, self._schema.known.version)
        self.head = bytes(head)

    def values(self, group: Group, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Mutations of ranges of rows events, ascending; b"" where nothing is of our tables.

        Raises:
            UnknownTable, ColumnMismatch: the binlog's table is not the one that the DDL in it made.
            CaptureRefused: a value has no exact form.
        """
        if not ranges:
            return []
        first, last = ranges[0][0], ranges[-1][1]
        found = encode(group, self._of(group, first, last), first, last)
        return [bytes(found.of(first, last)) for first, last in ranges]

    def of(self, group: Group, transaction: Transaction) -> bytes:
        """Those of one transaction, or of a part of it."""
        (value,) = self.values(group, [(transaction.first, transaction.last)])
        return value

    def _of(self, group: Group, first: int, last: int) -> list[Target | None]:
        """Targets of the tables of a range; a group has tables from before a statement and from behind it."""
        out: list[Target | None] = [None] * len(group.tables)
        for at in np.unique(group.events.table[first:last]).tolist():
            table = group.tables[at]
            if table not in self._targets:
                self._targets[table] = self._target(table)
            out[at] = self._targets[table]
        return out

    def _target(self, table: TableMap) -> Target | None:
        db, name = table.name
        if is_system(db) or db.lower() in self._schema.own or self._leaves_out(db, name):
            return None
        info = self._info(db, name)
        # A sequence has one row, which is not one of a table.
        return None if info.is_sequence else Target.of(table, info, self._charsets)

    def _info(self, db: str, name: str) -> TableInfo:
        info = self._tables.get((db, name))
        if info is None and self._schema.folds:
            folded = db.lower(), name.lower()
            info = next(
                (each for key, each in self._tables.items() if (key[0].lower(), key[1].lower()) == folded), None
            )
        if info is None:
            raise UnknownTable(
                f"the binlog has rows of {db}.{name}, and no DDL in it made that table",
                hint="was a DDL kept out of the binlog (SET sql_log_bin = 0)? `pumphouse capture run --anew` begins at "
                "the source's present position (docs/capture.md)",
            )
        return info
