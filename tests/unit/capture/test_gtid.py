"""Sets of GTIDs, whatever order and numbers a server gives."""

from __future__ import annotations

import random

import pytest

from pumphouse.capture.source.gtid import Flavor, GtidSet
from pumphouse.errors import UsageError
from pumphouse.model.captured import place_of

pytestmark = pytest.mark.row("Q1")

ONE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


@pytest.mark.parametrize(
    ("numbers", "made"),
    [
        ([10, 11, 12], "10-12"),
        ([10, 13, 12], "10:12-13"),
        ([1, 2, 10, 14, 12, 13], "1-2:10:12-14"),
        ([12, 11, 10], "10-12"),
        ([5, 1 << 60], f"5:{1 << 60}"),
    ],
)
def test_numbers_out_of_order_stand_for_themselves_alone(numbers: list[int], made: str) -> None:
    found = GtidSet.parse("", Flavor.MYSQL).plus(*(f"{ONE}:{each}" for each in numbers))
    assert str(found) == f"{ONE}:{made}"


def test_whatever_comes_together_is_what_comes_one_by_one() -> None:
    draw = random.Random(3)
    for _ in range(500):
        numbers = draw.sample(range(1, 12), draw.randrange(1, 9))
        gtids = [f"{ONE}:{each}" for each in numbers]
        before = GtidSet.parse(draw.choice(["", f"{ONE}:20-22"]), Flavor.MYSQL)
        one_by_one = before
        for each in gtids:
            one_by_one = one_by_one.plus(each)
        assert before.plus(*gtids) == one_by_one, numbers


def test_each_tag_of_a_server_has_numbers_of_its_own() -> None:
    found = GtidSet.parse(f"{ONE}:1-3:7:Books:1-2:4:shop:9, {ONE}:books:3", Flavor.MYSQL)
    assert str(found) == f"{ONE}:1-3:7,{ONE}:books:1-4,{ONE}:shop:9"
    assert GtidSet.parse(str(found), Flavor.MYSQL) == found
    assert f"{ONE}:BOOKS:4" in found
    assert f"{ONE}:shop:4" not in found
    assert str(found.plus(f"{ONE}:shop:10", f"{ONE}:4")) == f"{ONE}:1-4:7,{ONE}:books:1-4,{ONE}:shop:9-10"
    assert not GtidSet.parse(f"{ONE}:1-9", Flavor.MYSQL).covers(found)
    assert str(found.lacking(GtidSet.parse(f"{ONE}:1-4:shop:9", Flavor.MYSQL))) == f"{ONE}:4"
    assert place_of(f"{ONE}:books:4") == (f"{ONE}:books", 4)
    for text in (f"{ONE}:books", f"{ONE}:1:books", f"{ONE}:9tag:1", f"{ONE}:{'a' * 33}:1"):
        with pytest.raises(UsageError):
            GtidSet.parse(text, Flavor.MYSQL)
