"""The history of some tables says of them what the whole history says."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest

from pumphouse.errors import BinlogError
from pumphouse.schema.actions import Action
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import Change
from tests.support.randomhistory import RandomHistory
from tests.support.schemajobs import Source, add, int_col

_SEEDS = range(60)


def answers(timeline: Timeline, table_id: int, versions: list[int], moments: list[int]) -> list[object]:
    """Everything that decoding rows of an id asks."""
    found: list[object] = []
    for version in versions:
        try:
            written = timeline.at_version(table_id, version)
            found += [written, timeline.rewritten(written, versions[-1])]
        except BinlogError as error:
            found.append(str(error))
    for moment in moments:
        try:
            wanted = timeline.at_ts(table_id, moment)
            found += [wanted, timeline.versions[wanted.table.id]]
        except BinlogError as error:
            found.append(str(error))
    return found


def ids_of(source: Source) -> list[int]:
    """Every id that a row may carry, and one that none does."""
    timeline = source.timeline()
    return [*{*timeline.versions, *timeline.partitions}, 999_999]


@pytest.mark.row("S1", "S3")
@pytest.mark.parametrize("seed", _SEEDS)
def test_the_history_of_some_tables_says_of_them_what_the_whole_one_says(seed: int) -> None:
    source = RandomHistory(seed)
    source.run(120)
    if seed % 10 == 9:
        source.job(Action.FLASHBACK_CLUSTER, "")
        source.run(30)
    whole, ids = source.timeline(), ids_of(source)
    versions = [0, *(j.job.schema_version + d for j in source.jobs for d in (0, 1))]
    moments = [0, *(int(j.commit_ts) + d for j in source.jobs for d in (-1, 0))]
    chosen = random.Random(seed)
    for _ in range(4):
        some = chosen.sample(ids, chosen.randint(1, 3))
        part = Timeline.from_json(whole.of_tables(some).to_json())
        for table_id in some:
            assert answers(part, table_id, versions, moments) == answers(whole, table_id, versions, moments)
        # What a DDL did to them it did: also what is kept for a later one, and what an archive cannot have.
        assert _done(part, part) == _done(whole, part)
        assert len(part.jobs) < len(whole.jobs)


def _done(timeline: Timeline, of: Timeline) -> list[object]:
    return [
        (event.job.id, event.action, changes, event.kept & tables, event.lost & tables, event.problem)
        for tables in [of.versions.keys()]
        for event in timeline.events
        if (changes := [_known(change, tables) for change in event.changes if change.known.table.id in tables])
    ]


def _known(change: Change, tables: Collection[int]) -> Change:
    """What a TRUNCATE leaves needs nothing of what was before."""
    return change if change.before is None or change.before.table.id in tables else Change(None, change.after)


@pytest.mark.row("S1")
def test_a_table_that_is_emptied_daily_has_a_short_history() -> None:
    source = Source()
    source.create_db("d")
    source.create("d.t", [int_col("id", flag=4099)])
    first = source.tables["d.t"]["id"]
    for _ in range(100):
        source.truncate("d.t")
    whole, last = source.timeline(), source.tables["d.t"]["id"]
    assert [job.job.type for job in whole.of_tables([last]).jobs] == [Action.CREATE_SCHEMA, Action.TRUNCATE_TABLE]
    assert whole.of_tables([first]) == whole


@pytest.mark.row("S1")
def test_a_plan_of_one_table_carries_its_jobs_alone() -> None:
    source = Source()
    source.create_db("d")
    source.create_db("e")
    for number in range(50):
        source.create(f"{'de'[number % 2]}.t{number}", [int_col("id", flag=4099)])
    for number in range(50):
        source.alter(f"{'de'[number % 2]}.t{number}", Action.ADD_COLUMN, lambda t: add(t, int_col("a")))
    part = source.timeline().of_tables([source.tables["e.t7"]["id"]])
    assert [job.job.type for job in part.jobs] == [Action.CREATE_SCHEMA, Action.CREATE_TABLE, Action.ADD_COLUMN]
    assert source.timeline().of_tables([]).jobs == ()


@pytest.mark.row("S2")
def test_a_history_with_a_ddl_that_is_not_understood_is_carried_whole() -> None:
    source = Source()
    source.create_db("d")
    source.create("d.t", [int_col("id", flag=4099)])
    source.create("d.u", [int_col("id", flag=4099)])
    source.alter("d.u", 211, lambda t: add(t, int_col("new")))
    whole = source.timeline()
    assert whole.of_tables([source.tables["d.t"]["id"]]) == whole
