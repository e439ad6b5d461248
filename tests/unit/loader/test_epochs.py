"""Epochs of tables and the steps in which units are applied."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.loader.epochs import Epochs
from pumphouse.loader.plan import Mode, Phase, Plan, UnitId
from pumphouse.model.tso import Tso

T, U = 7, 9


def epochs(touched: tuple[tuple[int, ...], ...] | None) -> Epochs:
    """DDLs at 20, 30, 40, …."""
    boundaries = tuple(range(20, 20 + 10 * (2 if touched is None else len(touched)), 10))
    plan = Plan(
        task="main", number=3, from_ts=Tso(10), to_ts=Tso(100), mode=Mode.MERGE, boundaries=boundaries, touched=touched
    )
    return Epochs(plan)


def unit(table_id: int, epoch: int, phase: Phase = Phase.INSERT) -> UnitId:
    return UnitId(epoch, phase, table_id, 0)


@pytest.mark.row("L6")
def test_an_epoch_of_a_table_ends_at_the_ddls_that_touch_it() -> None:
    two = epochs(((T,), (U,), (T, U)))
    assert [two.of(T, ts) for ts in (11, 19, 21, 39, 41, 100)] == [0, 0, 1, 1, 2, 2]
    assert [two.of(U, ts) for ts in (11, 19, 21, 39, 41, 100)] == [0, 0, 0, 1, 2, 2]
    assert [two.of(8, ts) for ts in (11, 100)] == [0, 0]
    assert [two.after(T, ts) for ts in (20, 30, 40)] == [1, 1, 2]
    assert [two.places(T, epoch) for epoch in (0, 1, 2)] == [(0, 0), (1, 2), (3, 3)]
    assert two.places(8, 0) == (0, 3)


@pytest.mark.row("L6", "O7")
def test_in_a_plan_of_an_older_release_every_ddl_ends_the_epochs_of_all_tables() -> None:
    old = epochs(None)
    assert [old.of(T, ts) for ts in (11, 19, 21, 29, 31, 100)] == [0, 0, 1, 1, 2, 2]
    assert [old.places(T, epoch) for epoch in (0, 1, 2)] == [(0, 0), (1, 1), (2, 2)]


def test_ddls_of_many_tables_are_passed_in_two_steps() -> None:
    many = epochs(tuple((table_id,) for table_id in range(1, 2001)))
    units = [unit(table_id, epoch) for table_id in range(1, 2001) for epoch in (0, 1)]
    steps = many.steps(units)
    assert [step.place for step in steps] == [0, 2000]
    assert sorted(each for step in steps for each in step.units) == sorted(units)


@pytest.mark.row("L6")
@given(
    st.lists(st.sets(st.integers(1, 4), max_size=3).map(tuple), max_size=8),
    st.sets(st.tuples(st.integers(1, 5), st.integers(5, 130)), max_size=20),
)
def test_every_unit_is_applied_once_between_the_ddls_of_its_table(
    touched: list[tuple[int, ...]], changes: set[tuple[int, int]]
) -> None:
    found = epochs(tuple(touched))
    units = {unit(table_id, found.of(table_id, ts)) for table_id, ts in changes if ts % 10}
    steps = found.steps(sorted(units))
    assert [step.place for step in steps] == sorted({step.place for step in steps})
    assert sorted(each for step in steps for each in step.units) == sorted(units)
    where = {each: step.place for step in steps for each in step.units}
    for table_id, ts in changes:
        if ts % 10:
            place = where[unit(table_id, found.of(table_id, ts))]
            between = range(*sorted((place, found.place(ts))))
            assert not any(table_id in touched[at] for at in between)
    for one, other in itertools.pairwise(steps):
        # Both steps are needed: something of the first cannot wait for the second.
        assert any(found.places(each.table_id, each.epoch)[1] < other.place for each in one.units)
