"""Which epoch of its table a change belongs to, and when units are applied. Pure; follows from a plan's row alone.

A table's epochs end at the DDLs that touch it, and are counted by table: other tables' DDLs neither cut nor number
them. Between two DDLs of a plan lies a *place*; place p is before boundary p, the last place behind them all. A unit
may be applied at any place from the last DDL of its table to the next one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pumphouse.loader.plan import Plan, UnitId


@dataclass(frozen=True, slots=True)
class PlaceUnits:
    """Units that are applied at one place: no DDL of their tables lies between them and it."""

    place: int
    units: tuple[UnitId, ...]


class Epochs:
    """The epochs of one plan."""

    def __init__(self, plan: Plan) -> None:
        self._boundaries = plan.boundaries
        self._everything = range(len(plan.boundaries)) if plan.touched is None else None
        self._ends: dict[int, list[int]] = defaultdict(list)
        for at, tables in enumerate(plan.touched or ()):
            for table_id in tables:
                self._ends[table_id].append(at)

    def place(self, commit_ts: int) -> int:
        """Place of a transaction. A DDL's own commit ts belongs to the place that it ends; no row carries it."""
        return bisect_left(self._boundaries, commit_ts)

    def of(self, table_id: int, commit_ts: int) -> int:
        """Epoch of a change of a table."""
        return bisect_left(self._ends_of(table_id), self.place(commit_ts))

    def after(self, table_id: int, commit_ts: int) -> int:
        """Epoch of a table that begins with a DDL."""
        return bisect_left(self._ends_of(table_id), bisect_right(self._boundaries, commit_ts))

    def places(self, table_id: int, epoch: int) -> tuple[int, int]:
        """First and last place at which the units of an epoch may be applied."""
        ends = self._ends_of(table_id)
        first = ends[epoch - 1] + 1 if epoch else 0
        return first, ends[epoch] if epoch < len(ends) else len(self._boundaries)

    def steps(self, units: Sequence[UnitId]) -> list[PlaceUnits]:
        """The fewest steps that apply all units, in order: each as late as its first unit that cannot wait allows."""
        places = ((unit, self.places(unit.table_id, unit.epoch)) for unit in units)
        spans = sorted((last, first, unit) for unit, (first, last) in places)
        steps: list[PlaceUnits] = []
        waiting: list[UnitId] = []
        at = -1
        for last, first, unit in spans:
            if first > at:
                if waiting:
                    steps.append(PlaceUnits(at, tuple(waiting)))
                at, waiting = last, []
            waiting.append(unit)
        return [*steps, PlaceUnits(at, tuple(waiting))] if waiting else steps

    def _ends_of(self, table_id: int) -> Sequence[int]:
        return self._ends.get(table_id, ()) if self._everything is None else self._everything
