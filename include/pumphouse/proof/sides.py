"""One table of a proof, as both sides have it: which columns are compared, and which ranges of its key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from pumphouse.archive.proofs import ProvenRange, ProvenTable
from pumphouse.loader.tables import Wanted
from pumphouse.loader.work import Work
from pumphouse.model.table import INTEGERS, TableInfo
from pumphouse.proof.forms import Proven, proven
from pumphouse.proof.servers import ColumnThere
from pumphouse.schema.dialect import Dialect

_SHOWN_COLUMNS = 8
There = Mapping[tuple[str, str], list[ColumnThere]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A table to compare.

    Args:
        wanted: as its rows have it.
        rendered: the columns that are compared, as the archive's side renders them.
        there: its database and name on the server.
        columns: the same columns, with what they are there; () where the server is not asked any more.
    """

    wanted: Wanted
    rendered: tuple[Proven, ...]
    there: tuple[str, str] = ("", "")
    columns: tuple[tuple[Proven, ColumnThere], ...] = ()

    @property
    def named(self) -> tuple[tuple[str, ColumnThere], ...]:
        """By what a row is shown: columns of the key, else the first ones; (in the archive, there)."""
        found = [(column.name, there) for column, there in self.columns]
        return tuple(each for each in found if each[0] in self.wanted.key) or tuple(found[:_SHOWN_COLUMNS])

    @property
    def json(self) -> tuple[str, ...]:
        """Columns whose texts are JSON."""
        return tuple(each.name for each in self.rendered if each.json)


def side_of(
    table: ProvenTable, source: TableInfo, wanted: Wanted, there: There, dialect: Dialect
) -> tuple[ProvenTable, Side | None]:
    """The table with what is compared of it; no side where there is nothing to compare.

    Args:
        table: of the proof.
        source: as the source has it.
        wanted: as its rows have it on a target.
        there: what the server has.
        dialect: of the server.
    """
    name = actual((wanted.db, wanted.table.name), there)
    if name is None:
        return replace(table, why="the target does not have it", differs=True), None
    found = {each.name.lower(): each for each in there[name]}
    left = {column.name for column in wanted.table.public_columns}
    without = {
        column.name: "generated, and the target leaves it out"
        for column in source.public_columns
        if column.name not in left
    }
    columns, wrong = [], []
    for column in wanted.table.public_columns:
        at = found.get(column.name.lower())
        if at is None:
            if column.generated or column.name in wanted.stored:
                without[column.name] = "generated, and the target does not have it"
            else:
                wrong.append(f"{column.name} is not there")
        elif column.generated or at.computed:
            without[column.name] = "generated"
        elif isinstance(how := proven(column, dialect), str):
            without[column.name] = how
        elif at.type not in how.called:
            wrong.append(f"{column.name} is {at.type} there")
        else:
            columns.append((how, at))
    table = replace(table, columns=tuple(how.name for how, _ in columns), without=without)
    if wrong:
        return replace(table, why="; ".join(wrong), differs=True), None
    if not columns:
        return replace(table, why="it has no column that can be compared"), None
    rendered = tuple(how for how, _ in columns)
    return table, Side(wanted=wanted, rendered=rendered, there=name, columns=tuple(columns))


def side_again(table: ProvenTable, wanted: Wanted, dialect: Dialect) -> Side:
    """What is compared of a table whose checksums the server has said already."""
    found = (proven(column, dialect) for column in wanted.table.public_columns if column.name in table.columns)
    return Side(wanted=wanted, rendered=tuple(each for each in found if isinstance(each, Proven)))


def actual(name: tuple[str, str], there: There) -> tuple[str, str] | None:
    """The server's spelling of a name, of which it may have folded the case."""
    if name in there:
        return name
    return next((each for each in there if folded(each) == folded(name)), None)


def folded(name: tuple[str, str]) -> tuple[str, str]:
    """A name without its case."""
    return name[0].lower(), name[1].lower()


def range_column(wanted: Wanted) -> tuple[str, bool] | None:
    """The integer by which a table's rows are cut into ranges, and whether it is signed; None where there is none."""
    first = next((column for column in wanted.table.public_columns if column.name in wanted.key[:1]), None)
    if first is None or first.type.tp not in INTEGERS:
        return None
    return first.name, not first.type.unsigned


def with_ranges(table: ProvenTable, wanted: Wanted, work: Work) -> ProvenTable:
    """The table with the ranges that its rows are dealt out by, where a server can be asked for them; else one."""
    column, starts = range_column(wanted), work.plan.ranges.get(table.table_id, ())
    if column is None or not starts:
        return replace(table, ranges=(ProvenRange(),))
    name, signed = column
    edges = [None, *(rank - (1 << 63) if signed else rank for rank in starts), None]
    ranges = tuple(ProvenRange(low=low, below=below) for low, below in pairwise(edges))
    return replace(table, key=name, ranges=ranges)


def ranks_of(table: ProvenTable, wanted: Wanted) -> tuple[int, ...]:
    """The other way round: where the buckets begin by which the ranges of a table were made."""
    column = range_column(wanted)
    signed = column is not None and column[1]
    return tuple(each.low + (1 << 63 if signed else 0) for each in table.ranges if each.low is not None)
