"""The statements that put rows back: each finds its row by key and by every value that it is to have. Pure.

Rows go first, those that others refer to last; then rows change, then rows come. An update that gives up a value of a
unique key which another row of the batch needs is done as a delete and an insert: so rows can exchange such values.
"""

# Names and values are quoted by pumphouse.schema.ident.
# ruff: noqa: S608

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pumphouse.flashback.changes import NetChange, Values
from pumphouse.flashback.there import Reference, TableThere
from pumphouse.schema.ident import qualified, quote

# Of the session: whether the delete of a row that comes again found it.
_WENT = "@pumphouse_went_{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row that the server is to have as ``want`` and has as ``now``; None = none."""

    there: TableThere
    want: Values | None
    now: Values | None
    change: NetChange

    @property
    def image(self) -> Values:
        """Any image of it: all have its key."""
        return (self.want if self.now is None else self.now) or {}

    @property
    def key(self) -> dict[str, Any]:
        """Its key."""
        return {name: self.image[name] for name in self.there.subject.key}

    @property
    def turned(self) -> Row:
        """The same, the other way round: what undoes it."""
        return Row(there=self.there, want=self.now, now=self.want, change=self.change)

    def find(self) -> str:
        """Condition that finds the row under its key, whatever its values."""
        return " AND ".join(self.there.cells[name].find(value) for name, value in self.key.items())

    def is_(self, image: Values | None) -> str:
        """Condition: the row under the key has these values; one that is not there has none."""
        if image is None:
            return "FALSE"
        cells = self.there.cells
        found = [cells[name].find(value) for name, value in self.key.items()]
        found += [cells[name].same(value) for name, value in image.items()]
        return " AND ".join(dict.fromkeys(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A statement for a row. ``last``: no other of this row comes behind it."""

    row: Row
    sql: str
    last: bool = True


def steps(rows: Sequence[Row], rank: Mapping[tuple[str, str], int]) -> Iterator[Step]:
    """Statements of one transaction, in order; each changes one row, or none where the row is another one by now.

    Args:
        rows: of one batch, each with a key of its own.
        rank: of each table by its place: parents before children.
    """
    ordered = sorted(rows, key=lambda row: (rank[row.there.place], [-each for each in row.change.order]))
    apart = _in_the_way(ordered)
    numbers = {id(row): number for number, row in enumerate(ordered)}
    going = sorted(ordered, key=lambda row: -rank[row.there.place])
    for row in going:
        if row.now is not None and (row.want is None or id(row) in apart):
            sql = f"DELETE FROM {row.there.target} WHERE {row.is_(row.now)}{_unless_referred(row)}"
            yield Step(row=row, sql=sql, last=row.want is None)
            if row.want is not None:
                yield Step(row=row, sql=f"SET {_WENT.format(numbers[id(row)])} = ROW_COUNT()", last=False)
    for row in ordered:
        if row.now is not None and row.want is not None and id(row) not in apart:
            yield Step(row=row, sql=_update(row, row.want, row.now))
    for row in ordered:
        if row.want is not None and (row.now is None or id(row) in apart):
            went = f"{_WENT.format(numbers[id(row)])} = 1 AND " if row.now is not None else ""
            yield Step(row=row, sql=_insert(row, row.want, went))


def ranks(tables: Sequence[TableThere]) -> dict[tuple[str, str], int]:
    """Places in an order in which what rows refer to comes before them, as far as there is one."""
    found: dict[tuple[str, str], int] = {}
    by_place = {each.place: each for each in tables}

    def put(there: TableThere, under: frozenset[tuple[str, str]]) -> None:
        for parent in there.parents:
            if parent in by_place and parent not in found and parent not in under:
                put(by_place[parent], under | {there.place})
        found.setdefault(there.place, len(found))

    for each in sorted(tables, key=lambda there: there.place):
        put(each, frozenset())
    return found


def _in_the_way(rows: Sequence[Row]) -> set[int]:
    """Ids of the rows to change that give up a value of a unique key which another row to change needs."""
    held: dict[Any, Row] = {}
    for row in rows:
        if row.now is not None and row.want is not None:
            held |= dict.fromkeys(_taken(row, row.now) - _taken(row, row.want), row)
    needed = [
        held.get(taken)
        for row in rows
        if row.now is not None and row.want is not None
        for taken in _taken(row, row.want) - _taken(row, row.now)
    ]
    return {id(row) for row in needed if row is not None}


def _taken(row: Row, image: Values) -> set[Any]:
    """Values of unique keys that an image takes; a NULL takes none."""
    found = ((each, tuple(image[name] for name in each)) for each in row.there.unique)
    return {(row.there.place, names, values) for names, values in found if None not in values}


def _update(row: Row, want: Values, now: Values) -> str:
    cells = row.there.cells
    changed = [name for name in want if want[name] != now[name]]
    set_ = [f"{cells[name].name} = {cells[name].literal(want[name])}" for name in changed]
    # A column that is assigned, also to itself, is left alone by its ON UPDATE.
    set_ += [f"{cell.name} = {cell.name}" for name, cell in cells.items() if cell.stamped and name not in changed]
    moved = _unless_referred(row, frozenset(changed))
    return f"UPDATE {row.there.target} SET {', '.join(set_)} WHERE {row.is_(now)}{moved}"


def _insert(row: Row, want: Values, went: str) -> str:
    cells, target = row.there.cells, row.there.target
    names = ", ".join(cells[name].name for name in want)
    values = ", ".join(cells[name].literal(value) for name, value in want.items())
    return (
        f"INSERT INTO {target} ({names}) SELECT {values} FROM DUAL"
        f" WHERE {went}NOT EXISTS (SELECT 1 FROM {target} WHERE {row.find()})"
    )


def _unless_referred(row: Row, changed: frozenset[str] | None = None) -> str:
    """Condition that no row refers to it by a foreign key, which the server may follow; to any of these columns."""
    return "".join(
        f" AND NOT EXISTS (SELECT 1 FROM ({_referring(row, reference)}) AS it)"
        for reference in row.there.references
        if changed is None or any(own in changed for _, own in reference.columns)
    )


def _referring(row: Row, reference: Reference) -> str:
    """Rows that refer to it; for a derived table, in which a server reads also the table that it changes."""
    cells, image = row.there.cells, row.now or {}
    where = " AND ".join(f"{quote(name)} = {cells[own].literal(image[own])}" for name, own in reference.columns)
    return f"SELECT 1 FROM {qualified(*reference.child)} WHERE {where or 'TRUE'} LIMIT 1"
