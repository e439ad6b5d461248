"""What is replayed: transactions as a caller gives them, and their row changes as the executor takes them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pumphouse.loader.columns import Column
from pumphouse.schema.ident import qualified

# What Python's objects around a value take, more or less.
_VALUE_BYTES, _TXN_BYTES = 60, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Dml:
    """One row change.

    Args:
        kind: insert, update or delete.
        db: database.
        table: table.
        values: image after the change, loader values (`pumphouse.codec.datum`); of a delete the one before it.
        old: of an update, the image before it.
    """

    kind: Literal["insert", "update", "delete"]
    db: str
    table: str
    values: Mapping[str, Any]
    old: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Ddl:
    """One statement, run in a database ('' = in none)."""

    db: str
    sql: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Txn:
    """One transaction of the source: row changes in their order, or one DDL.

    Args:
        dmls: row changes; each image has every column of the target's table that is not generated.
        ddl: the statement, where it is a DDL.
        commit_ts: its place in the stream, ascending; 0 = none is kept. With it a transaction that is given again after
            a crash is known, which rows without a key need.
        tag: anything of the caller's.
    """

    dmls: Sequence[Dml] = ()
    ddl: Ddl | None = None
    commit_ts: int = 0
    tag: Any = None

    @property
    def rows(self) -> int:
        """Row changes."""
        return len(self.dmls)

    @property
    def bytes(self) -> int:
        """What it takes in memory, more or less."""
        images = (image for dml in self.dmls for image in (dml.values, dml.old) if image is not None)
        values = sum(_VALUE_BYTES + (len(v) if isinstance(v, (str, bytes)) else 8) for i in images for v in i.values())
        return _TXN_BYTES + values + (len(self.ddl.sql) if self.ddl else 0)


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """A table of the target as rows are written to it; two shapes are never equal, so that each is a key of its own.

    Args:
        db: database.
        table: table.
        columns: columns of a row's line, in its order.
        key: places (in ``columns``) of what identifies a row; () = rows are compared whole, as a multiset.
        droppable: the source may drop the key while rows are written, so that two of them have it for a while.
        others: there are other unique keys.
        stored: names of STORED columns of the source, which only a target gets that has them as plain ones.
        table_id: the source's, where it is known.
    """

    db: str
    table: str
    columns: tuple[Column, ...]
    key: tuple[int, ...]
    droppable: bool = False
    others: bool = False
    stored: tuple[str, ...] = ()
    table_id: int = 0

    @property
    def name(self) -> str:
        """``database.table``, for people."""
        return f"{self.db}.{self.table}"

    @property
    def target(self) -> str:
        """Quoted, qualified table."""
        return qualified(self.db, self.table)

    @property
    def once(self) -> bool:
        """Whether rows are written once only, as what stands there does not tell whether they were."""
        return not self.key or self.droppable

    @property
    def old_columns(self) -> list[Column]:
        """Columns of the line of a row that goes."""
        return [self.columns[at] for at in self.key] or list(self.columns)


class Change(NamedTuple):
    """One row change, rendered.

    Attributes:
        shape: the table.
        keys: what it conflicts by (`pumphouse.replay.causality`).
        old: line of the row that goes: the columns of its key, all of them where there is none. None = no row goes.
        new: line of the row that comes, or None.
        moved: of an update: the row's identity changes, so that a REPLACE of the new row leaves the old one there.
        loose: the new row holds an ENUM of value 0, which no strict session takes.
        whole: ``old`` has all columns (`pumphouse.replay.images`).
    """

    shape: Shape
    keys: tuple[Hashable, ...]
    old: bytes | None
    new: bytes | None
    moved: bool = False
    loose: bool = False
    whole: bool = False


@dataclass(slots=True)
class Round:
    """Groups of changes that are independent of each other, and the transactions that are whole with it."""

    groups: list[list[Change]] = field(default_factory=list)
    txns: list[Any] = field(default_factory=list)
    rows: int = 0
