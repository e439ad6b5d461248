"""Rows that share a key while the source drops it, on a real MariaDB: in a merge and in a replay."""

from __future__ import annotations

import pytest

from pumphouse.errors import DuplicateKey, RowRejected
from pumphouse.loader.target import TargetConnection
from pumphouse.runs import load
from pumphouse.settings import Settings
from tests.integration.test_load_rules import ruled
from tests.support.madearchive import MadeSource, column, index, target_rows

LOAD = {"engine": "local"}
pytestmark = pytest.mark.row("L2", "L4", "S3")


@pytest.fixture(autouse=True)
def tables(source: MadeSource) -> None:
    """``t`` has a key that can be dropped; ``w`` is beside it."""
    going = [index(1, "ka", ("a", 0), unique=True)]
    source.create_table("t", [column(1, "a", flag=1), column(2, "b")], pk_is_handle=False, index_info=going)
    source.create_table("w", [column(1, "id", flag=3)])


@pytest.fixture(params=["merge", "replay"])
def settings(request: pytest.FixtureRequest, settings: Settings) -> Settings:
    return settings.model_copy(update={"load": settings.load.model_copy(update={"mode": request.param})})


def put(source: MadeSource, a: int, b: int) -> int:
    with source.txn() as t:
        return t.insert("t", a=a, b=b)


def refused(settings: Settings) -> None:
    for _ in range(2):
        with pytest.raises((RowRejected, DuplicateKey)):
            load.run(settings)


def behind_the_drop(source: MadeSource, settings: Settings) -> None:
    source.drop_indexes("t")
    source.cut()
    load.run(settings)


@pytest.mark.parametrize("there", [[0], [5], []])
def test_a_row_under_a_key_that_may_be_going_stops_the_load_until_its_drop_is_there(
    source: MadeSource, settings: Settings, target: TargetConnection, there: list[int]
) -> None:
    for b in there:
        put(source, 1, b)
    source.genesis()
    load.run(settings)
    for _ in range(2 - len(there)):
        put(source, 1, 5)
    source.cut()
    same = settings.load.mode == "merge" and there == [5]  # in all columns: a merge does not see it (docs/limits.md)
    if same:
        load.run(settings)
    else:
        refused(settings)
    behind_the_drop(source, settings)
    if same:
        load.run(settings, resync="d.t")
    assert target_rows(target) == source.snapshot()


@pytest.mark.parametrize("what", ["delete", "move"])
def test_a_row_that_comes_before_the_one_with_its_key_goes_stops_the_load_too(
    source: MadeSource, settings: Settings, target: TargetConnection, what: str
) -> None:
    old = put(source, 1, 0)
    source.genesis()
    load.run(settings)
    put(source, 1, 6)
    with source.txn() as t:
        t.delete("t", old) if what == "delete" else t.update("t", old, a=2)
    source.cut()
    refused(settings)
    behind_the_drop(source, settings)
    assert target_rows(target) == source.snapshot()


def test_rows_that_come_and_go_stop_no_load(source: MadeSource, settings: Settings, target: TargetConnection) -> None:
    put(source, 1, 0)
    source.genesis()
    load.run(settings)
    passing = [put(source, a, 6) for a in (2, 3)]
    with source.txn() as t:
        t.update("t", passing[0], a=4)
        t.delete("t", passing[1])
    source.cut()
    load.run(settings)
    assert target_rows(target) == source.snapshot()


@pytest.mark.parametrize("rule", ["", "for another table"])
def test_a_plan_that_has_begun_stops_and_the_table_comes_back_behind_the_drop(
    source: MadeSource, settings: Settings, target: TargetConnection, rule: str
) -> None:
    put(source, 1, 0)
    source.genesis()
    load.run(settings)
    with source.txn() as t:
        t.insert("w", id=1)
    if rule:
        settings = ruled(settings, {"do": "skip", "txn": source.events[-1].commit_ts})
        with source.txn() as t:
            t.insert("w", id=2)
    put(source, 1, 6)
    source.cut()
    refused(settings)
    source.drop_indexes("t")
    source.cut()
    if settings.load.mode == "merge":  # of its plan the other table is applied already
        with pytest.raises(RowRejected) as stopped:
            load.run(settings)
        assert "a DROP INDEX of this table was under way where this plan ends" in stopped.value.hint
        load.run(ruled(settings, {"do": "park", "table": "d.t"}))
        load.run(settings, resync="d.t")
    load.run(settings)
    assert target_rows(target)["t"] == source.snapshot()["t"]
