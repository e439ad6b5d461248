"""Where a load is held and killed comes from a seed, and no moment of a load escapes it."""

from __future__ import annotations

import pytest

from tests.e2e.points import Point, Seen, Stage, choose

# What a target shows in the course of a first load.
COURSE = (
    (Stage.STARTED, Seen()),
    (Stage.OWNED, Seen(owner="r")),
    (Stage.BEGUN, Seen(owner="r", state="incomplete")),
    (Stage.MAKING, Seen(owner="r", state="incomplete", objects=3)),
    (Stage.BASE_PLANNED, Seen(owner="r", state="incomplete", opened="base")),
    (Stage.BASE_UNITS, Seen(owner="r", state="incomplete", opened="base", units=2)),
    (Stage.BASE_CLOSED, Seen(owner="r", state="incomplete", closed=frozenset({"base"}))),
    (Stage.READY, Seen(owner="r", state="ready", closed=frozenset({"base"}))),
    (Stage.MERGE_PLANNED, Seen(owner="r", state="ready", opened="merge", closed=frozenset({"base"}))),
    (Stage.MERGING, Seen(owner="r", state="ready", opened="merge", closed=frozenset({"base"}), intents=1)),
    (Stage.MERGING, Seen(owner="r", state="ready", opened="merge", closed=frozenset({"base"}), units=5, epoch=1)),
    (Stage.MERGED, Seen(owner="r", state="ready", closed=frozenset({"base", "merge"}))),
    # A later plan is open: the first one is closed all the same.
    (Stage.MERGED, Seen(owner="r", state="ready", opened="merge", closed=frozenset({"base", "merge"}))),
)


@pytest.mark.row("O6")
def test_a_seed_gives_the_same_points_each_time_and_another_one_others() -> None:
    assert [choose(seed) for seed in range(50)] == [choose(seed) for seed in range(50)]
    assert len({choose(seed) for seed in range(50)}) > 40


@pytest.mark.row("O6")
def test_every_stage_of_a_load_is_chosen_sooner_or_later() -> None:
    points = [choose(seed) for seed in range(2000)]
    holds, kills = ({point.stage for point in each} for each in zip(*points, strict=True))
    assert kills == set(Stage) - {Stage.STARTED}
    # One that has begun to change rows may be over before it stands still.
    assert holds == {stage for stage in Stage if Stage.OWNED <= stage <= Stage.MERGE_PLANNED}
    assert {kill.counted for _, kill in points} == {"", "objects", "units", "epoch", "intents", "done"}


def test_the_stage_follows_from_what_the_target_shows() -> None:
    assert [seen.stage for _, seen in COURSE] == [stage for stage, _ in COURSE]


def test_a_counted_point_is_reached_by_its_count() -> None:
    point = Point(stage=Stage.BASE_UNITS, counted="units", count=3)
    planned, units = COURSE[4][1], COURSE[5][1]
    assert not point.reached(planned, 99)
    assert not point.reached(units, 99)
    assert point.reached(Seen(owner="r", state="incomplete", opened="base", units=3), 0)


def test_a_point_in_time_is_reached_after_its_delay() -> None:
    point = Point(stage=Stage.BASE_PLANNED, delay_s=2.5)
    planned = COURSE[4][1]
    assert not point.reached(planned, 2.4)
    assert point.reached(planned, 2.5)


@pytest.mark.row("O6")
def test_a_point_that_a_load_passes_between_two_looks_is_reached_all_the_same() -> None:
    for seed in range(300):
        for point in choose(seed):
            assert not any(point.reached(seen, 99) for stage, seen in COURSE if stage < point.stage)
            assert all(point.reached(seen, 0) for stage, seen in COURSE if stage > point.stage)
