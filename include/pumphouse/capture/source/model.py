"""What the reader of a source's binlog hands on: positions, tables as TABLE_MAP says them, and groups of transactions.

A group is what was read at once: one buffer of bytes, columns about its rows events, and one small object for each
transaction. Row images stay where they are in the buffer; `pumphouse.capture.source.encode` turns them into TiDB
Binlog's rows without an object for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple

from pumphouse.capture.source.gtid import Flavor, GtidSet
from pumphouse.codec.jit import Bytes, Ints

__all__ = [
    "Column",
    "Flavor",
    "Group",
    "GtidSet",
    "Heartbeat",
    "Kind",
    "Position",
    "Query",
    "RowsEvents",
    "TableMap",
    "Transaction",
    "Xa",
    "XaStep",
]


class Kind(IntEnum):
    """What a rows event does: the values are those of the codec's row operations."""

    INSERT = 0
    UPDATE = 1
    DELETE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Up to where a source was read: everything in ``gtids`` is done.

    Args:
        gtids: empty where the source has no GTIDs.
        file, offset: the same place as the server that was read counts it; another server has it elsewhere. Beside
            GTIDs they are for people alone. A `file` of '' is unknown.
    """

    gtids: GtidSet
    file: str = ""
    offset: int = 0

    def __str__(self) -> str:
        place = f"{self.file}:{self.offset}" if self.file else ""
        return f"{self.gtids} ({place})" if self.gtids and place else str(self.gtids) or place

    @property
    def by_gtid(self) -> Position:
        """To be asked for of a source with GTIDs: without any it is the begin, as a file's place brings none."""
        return self if self.gtids else Position(gtids=self.gtids)

    def after(self, transaction: Transaction) -> Position:
        """The position behind a transaction that comes next.

        One that is by file alone stays so: GTIDs from its middle on would be no set of what was read.
        """
        by_gtid = transaction.has_gtid and (self.gtids or not self.file)
        gtids = self.gtids.plus(transaction.gtid) if by_gtid else self.gtids
        return Position(gtids=gtids, file=transaction.file, offset=transaction.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a TABLE_MAP.

    Args:
        name: '' where the source's binlog_row_metadata is not FULL.
        tp: type code of the binlog: of DATETIME, TIMESTAMP and TIME with fractions 18, 17 and 19; of ENUM and SET 247
            and 248; MariaDB's compressed columns have 140 and 141.
        meta: what the type needs to be read: bytes of a length, digits, element bytes (docs of MySQL's
            Table_map_event, "Table_map_event column types: numerical identifier and metadata").
        collation: id of the collation of a text, an ENUM or a SET; 63 is binary; 0 where the type has none.
        elements: of an ENUM or a SET, as the binlog has them: bytes in the column's character set.
        key: place in the primary key from 0 on, -1 = none.
        key_prefix: characters of a prefix of the key, 0 = the whole column.
    """

    name: str
    tp: int
    meta: int
    nullable: bool
    unsigned: bool = False
    collation: int = 0
    elements: tuple[bytes, ...] = ()
    key: int = -1
    key_prefix: int = 0
    visible: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableMap:
    """A table as the rows events that follow have it. The same object for a definition, for thousands of them at least.

    So it may be the key of a dict; the numbers that the server gives tables are left out, as they change at any time.
    """

    schema: str
    table: str
    columns: tuple[Column, ...]

    @property
    def name(self) -> tuple[str, str]:
        """(database, table)."""
        return self.schema, self.table


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsEvents:
    """The rows events of a group, as columns: event n is the n-th of each.

    Args:
        table: index in the group's ``tables``.
        kind: `Kind`.
        bitmaps: where in the buffer the bitmap of present columns begins, of an update that of the old images; that of
            its new ones follows.
        start, end: the images in the buffer.
        flags: of the event: 1 the statement ends, 2 foreign keys were not checked, 4 unique keys were not.
    """

    table: Ints
    kind: Ints
    bitmaps: Ints
    start: Ints
    end: Ints
    flags: Ints

    def __len__(self) -> int:
        return len(self.table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A statement in the binlog, with what it has to be run with to mean the same.

    Never one that changes rows (that is refused), nor BEGIN, COMMIT, SAVEPOINT: DDL, account statements, FLUSH and the
    like.

    Args:
        text: in the character set of ``client_collation``.
        schema: the default database, '' = none.
        before: the rows event of the group that it stands before.
        sql_mode: bits, as the server numbers them; None = not said.
        client_collation, connection_collation, server_collation, database_collation: ids; 0 = not said.
        time_zone: name or offset; '' = not said.
        seconds, micros: NOW() of the statement, in seconds since 1970, and its fraction; 0 = not said.
        flags: bits of the options that were set: 1 << 26 foreign_key_checks = 0, 1 << 27 unique_checks = 0,
            1 << 14 sql_auto_is_null, 1 << 19 autocommit = 0; None = not said.
        lc_time_names: number of the locale; 0 = not said.
        auto_increment: (increment, offset); None = not said.
        explicit_defaults: explicit_defaults_for_timestamp; None = not said.
        utf8mb4_collation: id of MySQL's default_collation_for_utf8mb4; 0 = not said.
        charset_collations: (character set's collation id, id of its default collation) of MariaDB's
            character_set_collations.
        error: the code that the statement ended with on the source; 0 = it ended well.
        unknown: a status variable that is not known: what is said behind it was not read; -1 = none.
    """

    text: bytes
    schema: str
    before: int
    sql_mode: int | None = None
    client_collation: int = 0
    connection_collation: int = 0
    server_collation: int = 0
    database_collation: int = 0
    time_zone: str = ""
    seconds: int = 0
    micros: int = 0
    flags: int | None = None
    lc_time_names: int = 0
    auto_increment: tuple[int, int] | None = None
    explicit_defaults: bool | None = None
    utf8mb4_collation: int = 0
    charset_collations: tuple[tuple[int, int], ...] = ()
    error: int = 0
    unknown: int = -1


class XaStep(StrEnum):
    """What a transaction of the binlog is to an XA transaction."""

    PREPARE = "prepare"
    COMMIT = "commit"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class Xa:
    """A step of an XA transaction. The rows come with PREPARE, and count from COMMIT on: both have GTIDs of their own.

    ``xid``: as the server writes it, ``X'…',X'…',format``. One phase alone (XA COMMIT … ONE PHASE) is no XA here.
    """

    step: XaStep
    xid: str


class Transaction(NamedTuple):
    """A transaction, or a part of one that is larger than a group.

    Args:
        gtid: ``0-1-42``, ``uuid:42``; without GTIDs ``file:offset`` of its end.
        has_gtid: whether the source gave it.
        server_id: of the server on which it was committed first.
        micros: when, in microseconds since 1970: exact of a MySQL with GTID events, else whole seconds.
        first, last: its rows events in the group: ``range(first, last)``.
        queries: its statements in order; each says where among the rows events it stands.
        part: 0 of a whole transaction and of the first part; the others count on, in the groups that follow.
        final: whether it ends here. Nothing of it counts before: a part 0 in place of the next part, or a new stream,
            says that the source forgot it, or begins it anew.
        xa: where it is a step of an XA transaction.
        bytes: of its events in the binlog, in this group.
        file, end: where the server that was read has its end (of a part: the end of the part).
    """

    gtid: str
    has_gtid: bool
    server_id: int
    micros: int
    first: int
    last: int
    queries: tuple[Query, ...] = ()
    part: int = 0
    final: bool = True
    xa: Xa | None = None
    bytes: int = 0
    file: str = ""
    end: int = 0

    def pieces(self) -> Iterator[range | Query]:
        """Its rows events and statements in order: ranges of events of the group, none of them empty, and queries."""
        at = self.first
        for query in self.queries:
            if query.before > at:
                yield range(at, query.before)
                at = query.before
            yield query
        if self.last > at:
            yield range(at, self.last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What was read at once: transactions in the source's order.

    Args:
        data: the bytes that offsets refer to.
        tables: what ``events.table`` counts.
        events: all rows events.
        transactions: none is empty of meaning: one without rows and queries still has a GTID to be passed.
        end: behind the last transaction that is whole here.
        acknowledge: with semi-sync: the (file, offset) that the source waits for, None = it waits for nothing here.
    """

    data: Bytes
    tables: tuple[TableMap, ...]
    events: RowsEvents
    transactions: tuple[Transaction, ...]
    end: Position
    acknowledge: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The source has nothing more: everything up to here was handed on."""

    position: Position
    seconds: float = field(default=0.0)
    """When it was received, in seconds since 1970."""
