"""The statements that put rows back: each finds its row by key and by every value that it is to have. Pure.

Rows go first, those that others refer to last; then rows change, then rows come. An update that gives up a value of a
unique key which another row of the batch needs is done as a delete and an insert: so rows can exchange such values.
Where it takes several statements for a row, or for one that was under several keys, all is looked at before the first
of them, behind locks, and none does anything unless all is as it is to be.
"""

# Names and values are quoted by pumphouse.schema.ident.
# ruff: noqa: S608

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pumphouse.flashback.changes import NetChange, Values
from pumphouse.flashback.there import Reference, TableThere
from pumphouse.schema.ident import qualified, quote

# Of the session: whether all rows that go or stay together are as they are to be.
_WHOLE = "@pumphouse_whole_{}"


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
        return Row(there=self.there, want=self.now, now=self.want, change=self.change.turned)

    @property
    def bound(self) -> Hashable:
        """The same of rows that go or stay together."""
        return (self.there.place, self.change.group) if self.change.group else id(self)

    def find(self) -> str:
        """Condition that finds the row under its key, whatever its values."""
        return " AND ".join(self.there.cells[name].find(value) for name, value in self.key.items())

    def at(self) -> str:
        """Condition that finds the row under exactly its key, which to the server may be equal to another one."""
        cells = self.there.cells
        exact = [cells[name].same(value) for name, value in self.key.items()]
        return " AND ".join(dict.fromkeys([self.find(), *exact]))

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
    """A statement for a row. ``last``: no other of this row comes behind it. ``looks``: it changes nothing."""

    row: Row
    sql: str
    last: bool = True
    looks: bool = False


def steps(rows: Sequence[Row], rank: Mapping[tuple[str, str], int]) -> Iterator[Step]:
    """Statements of one transaction, in order; each changes one row, or none where the row is another one by now.

    Args:
        rows: of one batch, each with a key of its own.
        rank: of each table by its place: parents before children.
    """
    ordered = sorted(rows, key=lambda row: (rank[row.there.place], [-each for each in row.change.order]))
    apart = _in_the_way(ordered)
    together: dict[Hashable, list[Row]] = {}
    for row in ordered:
        together.setdefault(row.bound, []).append(row)
    conditions: dict[Hashable, str] = {}

    def looks(row: Row) -> Iterator[Step]:
        """Before the first statement for rows that go or stay together."""
        mates = together[row.bound]
        if row.bound in conditions or (len(mates) == 1 and id(row) not in apart):
            return
        whole = _WHOLE.format(len(conditions))
        conditions[row.bound] = f" AND {whole} = 1"
        for number, each in enumerate(mates):
            first = "" if not number else f"{whole} AND "
            yield Step(row=each, sql=f"SET {whole} = {first}{_as_judged(each, apart)}", last=False, looks=True)

    for row in sorted(ordered, key=lambda row: -rank[row.there.place]):
        if row.now is not None and (row.want is None or id(row) in apart):
            yield from looks(row)
            sql = f"DELETE FROM {row.there.target} WHERE {row.is_(row.now)}{_unless_referred(row)}"
            yield Step(row=row, sql=sql + conditions.get(row.bound, ""), last=row.want is None)
    for row in ordered:
        if row.now is not None and row.want is not None and id(row) not in apart:
            yield from looks(row)
            yield Step(row=row, sql=_update(row, row.want, row.now) + conditions.get(row.bound, ""))
    for row in ordered:
        if row.want is not None and (row.now is None or id(row) in apart):
            yield from looks(row)
            yield Step(row=row, sql=_insert(row, row.want, conditions.get(row.bound, "")))


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


def _as_judged(row: Row, apart: Collection[int]) -> str:
    """Expression: it is as it was judged; its row, or the place of one that is not there, is locked then."""
    if row.now is None:
        return f"NOT EXISTS (SELECT 1 FROM {row.there.target} WHERE {row.at()} FOR UPDATE)"
    changed = None if row.want is None or id(row) in apart else _changed(row.want, row.now)
    where = row.is_(row.now) + _unless_referred(row, changed)
    return f"EXISTS (SELECT 1 FROM {row.there.target} WHERE {where} FOR UPDATE)"


def _changed(want: Values, now: Values) -> list[str]:
    return [name for name in want if want[name] != now[name]]


def _update(row: Row, want: Values, now: Values) -> str:
    cells = row.there.cells
    changed = _changed(want, now)
    set_ = [f"{cells[name].name} = {cells[name].literal(want[name])}" for name in changed]
    # A column that is assigned, also to itself, is left alone by its ON UPDATE.
    set_ += [f"{cell.name} = {cell.name}" for name, cell in cells.items() if cell.stamped and name not in changed]
    moved = _unless_referred(row, changed)
    return f"UPDATE {row.there.target} SET {', '.join(set_)} WHERE {row.is_(now)}{moved}"


def _insert(row: Row, want: Values, whole: str) -> str:
    """``whole``: condition of rows that go or stay together; a key that is taken is an error then, and ends all."""
    cells, target = row.there.cells, row.there.target
    names = ", ".join(cells[name].name for name in want)
    values = ", ".join(cells[name].literal(value) for name, value in want.items())
    return (
        f"INSERT INTO {target} ({names}) SELECT {values} FROM DUAL"
        f" WHERE {whole.removeprefix(' AND ') or f'NOT EXISTS (SELECT 1 FROM {target} WHERE {row.find()})'}"
    )


def _unless_referred(row: Row, changed: Collection[str] | None = None) -> str:
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
    itself = f" AND NOT ({row.find()})" if reference.child == row.there.place else ""
    return f"SELECT 1 FROM {qualified(*reference.child)} WHERE {where}{itself} LIMIT 1"
