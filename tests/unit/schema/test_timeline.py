"""The timeline says which columns a table id had, by schema version and by commit ts."""

import json

import pytest

from pumphouse.errors import SchemaError, UnknownDdl, UnknownTable
from pumphouse.model.table import Job
from pumphouse.model.tso import Tso
from pumphouse.schema.actions import Action
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.render import render
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import TableVersion, TimedJob, genesis_jobs
from tests.support.schemajobs import Source, add, find, int_col, name, remove

ID = int_col("id", flag=4099)


def _names(version: TableVersion) -> list[str]:
    return [c.name for c in version.table.public_columns]


@pytest.fixture
def source() -> Source:
    made = Source()
    made.create_db("d")
    return made


@pytest.mark.row("S1", "S3")
def test_a_row_is_decoded_at_its_own_version_and_projected_at_its_commit_ts(source: Source) -> None:
    source.create("d.t", [ID, int_col("a")])
    added = source.alter("d.t", Action.ADD_COLUMN, lambda t: add(t, int_col("b")))
    dropped = source.alter("d.t", Action.DROP_COLUMN, lambda t: remove(t, "a"))
    timeline, table_id = source.timeline(), source.tables["d.t"]["id"]
    at_added = added.job.schema_version
    # Versions between two jobs belong to the earlier one: TiDB counts intermediate states too.
    assert [_names(timeline.at_version(table_id, v)) for v in (at_added - 1, at_added, at_added + 1, at_added + 2)] == [
        ["id", "a"], ["id", "a", "b"], ["id", "a", "b"], ["id", "b"],
    ]  # fmt: skip
    assert _names(timeline.at_ts(table_id, added.commit_ts - 1)) == ["id", "a"]
    assert _names(timeline.at_ts(table_id, added.commit_ts)) == ["id", "a", "b"]
    assert _names(timeline.at_ts(table_id, dropped.commit_ts + 10**12)) == ["id", "b"]
    # A row written before the second ADD COLUMN of another name, committed after: two different answers.
    assert _names(timeline.at_version(table_id, at_added - 1)) != _names(timeline.at_ts(table_id, added.commit_ts))


@pytest.mark.row("S1")
def test_folding_in_steps_in_any_order_or_from_json_gives_the_same_timeline(source: Source) -> None:
    source.create("d.t", [ID])
    source.truncate("d.t")
    source.rename("d.t", "d.u")
    source.drop("d.u")
    whole = source.timeline()
    stepwise = Timeline.empty()
    for job in source.jobs:
        stepwise = stepwise.fold([job])
    assert stepwise == whole
    assert Timeline.empty().fold(reversed(source.jobs)) == whole
    assert Timeline.empty().fold(source.jobs[3:]) != whole
    assert Timeline.from_json(whole.to_json()) == whole
    assert Timeline.from_json(whole.to_json()).to_json() == whole.to_json()
    assert whole.fold(source.jobs) is whole


def test_a_timeline_of_another_format_is_refused() -> None:
    with pytest.raises(SchemaError, match="format version 99"):
        Timeline.from_json(json.dumps({"format_version": 99, "jobs": []}))
    with pytest.raises(SchemaError, match="cannot be read"):
        Timeline.from_json(b"[]")


@pytest.mark.row("S2")
def test_an_unknown_type_of_ddl_that_touches_nothing_is_carried(source: Source) -> None:
    source.create("d.t", [ID])
    source.job(211, "")
    source.create("d.u", [ID])
    timeline = source.timeline()
    assert [event.problem for event in timeline.events] == [""] * 4
    assert timeline.events[2].silent
    assert len(timeline.tables_at(source.jobs[-1].commit_ts)) == 2


@pytest.mark.row("S2")
def test_an_unknown_type_of_ddl_on_a_table_is_a_problem_from_there_on_alone(source: Source) -> None:
    source.create("d.t", [ID])
    bad = source.alter("d.t", 211, lambda t: add(t, int_col("new")), query="ALTER TABLE t GROW")
    source.job(Action.DROP_TABLE, "d", table_id=4711)
    source.create("d.u", [ID])
    timeline = source.timeline()
    assert ["type 211" in event.problem for event in timeline.events] == [False, False, True, False, False]
    assert "behind a DDL that this release does not understand" in timeline.events[3].problem
    with pytest.raises(UnknownDdl, match="type 211, which this release does not know: ALTER TABLE t GROW") as caught:
        render(timeline.events[2], Dialect.MARIADB)
    assert (caught.value.job_id, caught.value.type) == (bad.job.id, 211)
    # What comes later is folded as far as it says, also when it comes in another call.
    assert [_names(v) for v in timeline.tables_at(source.jobs[-1].commit_ts)] == [["id", "new"], ["id"]]
    source.job(Action.DROP_TABLE, "d", table_id=4712)
    assert timeline.fold(source.jobs).events[-1].problem


@pytest.mark.row("S2")
def test_partitioning_gives_a_table_a_new_id_and_keeps_it(source: Source) -> None:
    source.create("d.t", [ID])
    old = source.tables["d.t"]["id"]
    new = source.take()
    done = {**source.tables["d.t"], "id": new, "partition": source.partitions(("p0", "10"), expr="`id`")}
    job = source.job(Action.PARTITION_BY, "d", "t", table_id=old, TableInfo=done)
    back = {**done, "id": source.take(), "partition": None}
    source.job(Action.REMOVE_PARTITIONING, "d", "t", table_id=new, TableInfo=back)
    timeline = source.timeline()
    assert timeline.at_ts(old, job.commit_ts).dropped
    assert timeline.at_ts(done["partition"]["definitions"][0]["id"], job.commit_ts).table.id == new
    assert [v.table.id for v in timeline.tables_at(source.jobs[-1].commit_ts)] == [back["id"]]


@pytest.mark.row("S3")
def test_an_unknown_table_id_is_named(source: Source) -> None:
    timeline = source.timeline()
    with pytest.raises(UnknownTable, match="4711"):
        timeline.at_version(4711, 5)
    with pytest.raises(UnknownTable, match="4711"):
        timeline.at_ts(4711, 5)


@pytest.mark.row("S2")
def test_jobs_that_did_not_end_well_change_nothing(source: Source) -> None:
    source.create("d.t", [ID])
    before = source.timeline()
    for state in (1, 3, 5):
        source.job(Action.ADD_COLUMN, "d", state=state, TableInfo=source.tables["d.t"])
    source.jobs.append(TimedJob(source.jobs[-1].commit_ts, _version_zero(source)))
    assert source.timeline() == before


def _version_zero(source: Source) -> Job:
    raw = source.jobs[-1].job.raw
    return Job.from_dict({**raw, "id": 9999, "state": 6, "binlog": {**raw["binlog"], "SchemaVersion": 0}})


@pytest.mark.row("S2")
def test_silent_types_are_events_without_changes(source: Source) -> None:
    source.create("d.t", [ID])
    for action in (Action.LOCK_TABLE, Action.ALTER_TABLE_ATTRIBUTES, Action.CREATE_PLACEMENT_POLICY):
        source.job(action, "d", table_id=source.tables["d.t"]["id"], TableInfo=source.tables["d.t"])
    timeline = source.timeline()
    assert [e.silent for e in timeline.events[-3:]] == [True, True, True]
    assert len(timeline.versions[source.tables["d.t"]["id"]]) == 1


@pytest.mark.row("S2")
def test_truncate_gives_a_new_id_and_ends_the_old_one(source: Source) -> None:
    source.create("d.t", [ID])
    old = source.tables["d.t"]["id"]
    job = source.truncate("d.t")
    timeline = source.timeline()
    new = source.tables["d.t"]["id"]
    assert timeline.at_ts(old, job.commit_ts).dropped
    assert not timeline.at_ts(old, job.commit_ts - 1).dropped
    assert timeline.at_ts(new, job.commit_ts).name == ("d", "t")
    assert timeline.events[-1].table_ids == {old, new}


@pytest.mark.row("S2")
def test_partition_ids_stand_for_their_table_also_after_truncate_and_reorganize(source: Source) -> None:
    source.create("d.p", [int_col("a")], partition=source.partitions(("p0", "10"), ("p1", "20"), expr="`a`"))
    table_id = source.tables["d.p"]["id"]
    old = [d["id"] for d in source.tables["d.p"]["partition"]["definitions"]]

    def renew(raw: dict) -> None:
        raw["partition"] = source.partitions(("p0", "5"), ("p00", "10"), ("p1", "20"), expr="`a`")

    source.alter("d.p", Action.REORGANIZE_PARTITION, renew)
    timeline = source.timeline()
    new = [d["id"] for d in source.tables["d.p"]["partition"]["definitions"]]
    assert {timeline.at_version(pid, timeline.schema_version).table.id for pid in old + new} == {table_id}


@pytest.mark.row("S2")
def test_a_multi_table_rename_swaps_the_tables(source: Source) -> None:
    """The Go Drainer does not track it: later rows go to the old names, and a swap corrupts data."""
    source.create("d.a", [ID, int_col("x")])
    source.create("d.b", [ID, int_col("y")])
    a, b = source.tables["d.a"]["id"], source.tables["d.b"]["id"]
    job = source.rename_many(
        "rename table a to `tmp`, d.b to a, tmp to b", [("d.a", "d.tmp"), ("d.b", "d.a"), ("d.tmp", "d.b")]
    )
    timeline = source.timeline()
    assert timeline.at_ts(a, job.commit_ts).name == ("d", "b")
    assert timeline.at_ts(b, job.commit_ts).name == ("d", "a")
    assert [v.name for v in timeline.tables_at(job.commit_ts)] == [("d", "a"), ("d", "b")]


@pytest.mark.row("S2")
def test_a_multi_table_rename_across_databases_is_read_from_arguments_or_statement(source: Source) -> None:
    source.create_db("e")
    source.create("d.a", [ID])
    source.create("d.b", [ID])
    ids = [source.tables["d.a"]["id"], source.tables["d.b"]["id"]]
    pairs = [("d.a", "e.a"), ("d.b", "d.c")]
    args = [[source.dbs["d"]] * 2, [source.dbs["e"], source.dbs["d"]], [name("a"), name("c")], ids]
    with_args = source.rename_many("unreadable (", pairs, raw_args=args)
    with_text = TimedJob(
        with_args.commit_ts,
        Job.from_dict({**with_args.job.raw, "raw_args": None, "query": "RENAME TABLE `a` TO `e`.`a`, b TO c"}),
    )
    for job in (with_args, with_text):
        timeline = Timeline.empty().fold([*source.jobs[:-1], job])
        assert [v.name for v in timeline.tables_at(job.commit_ts)] == [("d", "c"), ("e", "a")]
    lying = TimedJob(
        with_args.commit_ts, Job.from_dict({**with_text.job.raw, "query": "RENAME TABLE a TO e.a, b TO d"})
    )
    with pytest.raises(SchemaError, match="says otherwise"):
        Timeline.empty().fold([*source.jobs[:-1], lying])


@pytest.mark.row("S2")
def test_exchange_partition_moves_the_ids(source: Source) -> None:
    """The Go Drainer loses the plain table here: its rows come under the partition's old id from now on."""
    source.create("d.p", [int_col("a")], partition=source.partitions(("p0", "10"), ("p1", "20"), expr="`a`"))
    source.create("d.n", [int_col("a")])
    partitioned, plain = source.tables["d.p"]["id"], source.tables["d.n"]["id"]
    job = source.exchange("d.p", "p1", "d.n")
    timeline = source.timeline()
    moved = source.tables["d.n"]["id"]
    assert timeline.at_ts(moved, job.commit_ts).name == ("d", "n")
    assert timeline.at_ts(moved, job.commit_ts).table.id == moved
    assert timeline.at_ts(partitioned, job.commit_ts).table.partition_ids[1] == plain
    # As a physical id it is a partition now.
    assert timeline.at_ts(plain, job.commit_ts).table.id == partitioned
    assert timeline.at_ts(plain, job.commit_ts - 1).name == ("d", "n")
    assert timeline.at_version(moved, job.job.schema_version - 1).table.id == partitioned


@pytest.mark.row("S2")
def test_a_dropped_table_that_is_recovered_is_marked_at_its_drop(source: Source) -> None:
    source.create("d.t", [ID])
    source.create("d.u", [ID])
    kept, raw = source.tables["d.t"]["id"], source.tables["d.t"]
    source.drop("d.t")
    source.drop("d.u")
    before = source.timeline()
    source.recover("d.back", raw)
    timeline = before.fold(source.jobs)
    assert [e.kept for e in timeline.events[-3:]] == [{kept}, set(), set()]
    assert [e.kept for e in before.events[-2:]] == [set(), set()]
    assert timeline.at_ts(kept, source.jobs[-1].commit_ts).name == ("d", "back")


@pytest.mark.row("S2")
def test_a_recovered_database_brings_its_tables_back(source: Source) -> None:
    source.create("d.t", [ID])
    table_id = source.tables["d.t"]["id"]
    dropped = source.drop_db("d")
    recovered = source.job(Action.RECOVER_SCHEMA, "d", DBInfo=dropped.job.raw["binlog"]["DBInfo"])
    timeline = source.timeline()
    assert timeline.tables_at(dropped.commit_ts) == []
    assert [d.name for d in timeline.databases_at(dropped.commit_ts)] == []
    assert [v.table.id for v in timeline.tables_at(recovered.commit_ts)] == [table_id]
    assert timeline.events[-2].kept == {table_id}


@pytest.mark.row("S2")
def test_a_batch_creates_every_table(source: Source) -> None:
    infos = [source.make("d.x", [ID]), source.make("d.y", [ID])]
    job = source.job(Action.CREATE_TABLES, "d", MultipleTableInfos=infos)
    assert [v.name for v in source.timeline().tables_at(job.commit_ts)] == [("d", "x"), ("d", "y")]


@pytest.mark.row("S1")
def test_databases_and_tables_at_a_moment(source: Source) -> None:
    source.create("d.t", [ID])
    source.create_db("e")
    source.create("e.t", [ID])
    dropped = source.drop_db("e")
    timeline = source.timeline()
    assert [v.name for v in timeline.tables_at(dropped.commit_ts - 1)] == [("d", "t"), ("e", "t")]
    assert [v.name for v in timeline.tables_at(dropped.commit_ts)] == [("d", "t")]
    assert [d.name for d in timeline.databases_at(dropped.commit_ts - 1)] == ["d", "e"]
    assert [d.name for d in timeline.databases_at(dropped.commit_ts)] == ["d"]
    assert timeline.tables_at(0) == []


@pytest.mark.row("S3")
def test_ddls_stand_in_the_half_open_range(source: Source) -> None:
    source.create("d.t", [ID])
    a, b = source.jobs
    timeline = source.timeline()
    assert [e.job.id for e in timeline.ddls(a.commit_ts, b.commit_ts)] == [b.job.id]
    assert [e.job.id for e in timeline.ddls(a.commit_ts - 1, b.commit_ts - 1)] == [a.job.id]
    assert timeline.ddls(b.commit_ts, b.commit_ts + 10**15) == []


@pytest.mark.row("A3", "S1")
def test_a_job_in_genesis_and_in_a_window_counts_once_at_the_windows_ts(source: Source) -> None:
    source.create("d.t", [ID])
    doubtful = source.alter("d.t", Action.ADD_COLUMN, lambda t: add(t, int_col("b")))
    genesis_ts = Tso(doubtful.commit_ts - 100)
    genesis = genesis_jobs([t.job for t in source.jobs], genesis_ts)
    assert [t.commit_ts <= genesis_ts for t in genesis] == [True] * 3
    assert [t.commit_ts for t in genesis] == sorted(t.commit_ts for t in genesis)
    timeline = Timeline.empty().fold(genesis).fold([doubtful])
    table_id = source.tables["d.t"]["id"]
    assert _names(timeline.at_ts(table_id, genesis_ts)) == ["id"]
    assert _names(timeline.at_ts(table_id, doubtful.commit_ts)) == ["id", "b"]
    assert [e.job.id for e in timeline.events] == [t.job.id for t in source.jobs]
    assert timeline == Timeline.empty().fold([doubtful]).fold(genesis)


@pytest.mark.row("A3")
def test_versions_below_genesis_decode_with_the_genesis_schema(source: Source) -> None:
    source.create("d.t", [ID])
    table_id = source.tables["d.t"]["id"]
    timeline = Timeline.empty().fold(genesis_jobs([t.job for t in source.jobs], source.jobs[-1].commit_ts))
    assert _names(timeline.at_version(table_id, 1)) == ["id"]


@pytest.mark.row("S1", "S3")
def test_a_transaction_that_began_before_a_table_writes_to_its_first_version(source: Source) -> None:
    """TRUNCATE gives the name another id, and who first uses the name behind it writes under that id."""
    source.create("d.t", [ID])
    began = source.jobs[-1].job.schema_version
    truncated = source.truncate("d.t")
    source.alter("d.t", Action.ADD_COLUMN, lambda t: add(t, int_col("b")))
    table_id, timeline = source.tables["d.t"]["id"], source.timeline()
    assert timeline.at_version(table_id, began) is timeline.at_version(table_id, truncated.job.schema_version)
    assert _names(timeline.at_version(table_id, began)) == ["id"]
    # A row that commits before the table is there belongs to nothing.
    with pytest.raises(UnknownTable):
        timeline.at_ts(table_id, truncated.commit_ts - 1)


@pytest.mark.row("S1", "S2")
def test_a_table_that_got_a_partitions_id_writes_to_its_own_first_version(source: Source) -> None:
    began = source.jobs[-1].job.schema_version
    source.create("d.p", [int_col("a")], partition=source.partitions(("p0", "10"), ("p1", "20"), expr="`a`"))
    source.create("d.n", [int_col("a")])
    source.exchange("d.p", "p1", "d.n")
    moved = source.tables["d.n"]["id"]
    assert source.timeline().at_version(moved, began).name == ("d", "n")
    assert source.timeline().at_version(source.tables["d.p"]["id"], began).name == ("d", "p")


def test_jobs_whose_versions_and_commit_ts_disagree_are_refused(source: Source) -> None:
    source.create("d.t", [ID])
    late = TimedJob(Tso(source.jobs[0].commit_ts - 1), source.jobs[1].job)
    with pytest.raises(SchemaError, match="lower version"):
        Timeline.empty().fold([source.jobs[0], late])


@pytest.mark.row("S2")
def test_two_jobs_of_one_commit_ts_are_refused_unless_they_are_of_genesis(source: Source) -> None:
    source.create("d.a", [ID])
    first, second = source.jobs
    same = TimedJob(first.commit_ts, second.job)
    with pytest.raises(SchemaError, match="same commit ts"):
        Timeline.empty().fold([first, same])
    old = [TimedJob(job.commit_ts, job.job, genesis=True) for job in (first, same)]
    assert len(Timeline.empty().fold(old).events) == 2


def test_a_recovery_of_a_table_that_was_dropped_before_genesis_is_marked(source: Source) -> None:
    source.create("d.a", [ID])
    source.create("d.b", [ID])
    a, b = source.tables["d.a"], source.tables["d.b"]
    source.drop("d.a")
    genesis = [TimedJob(job.commit_ts, job.job, genesis=True) for job in source.jobs]
    source.jobs.clear()
    source.drop("d.b")
    source.recover("d.a", a)
    source.recover("d.b", b)
    assert [event.lost for event in Timeline.empty().fold([*genesis, *source.jobs]).events[-2:]] == [{a["id"]}, set()]


def test_a_table_that_exists_or_does_not_is_an_error(source: Source) -> None:
    source.create("d.t", [ID])
    raw = source.tables["d.t"]
    source.create_raw("d.t", raw)
    with pytest.raises(SchemaError, match="which exists"):
        source.timeline()
    source.jobs.pop()
    source.drop("d.t")
    source.job(Action.DROP_TABLE, "d", table_id=raw["id"])
    with pytest.raises(SchemaError, match="unknown table id"):
        source.timeline()


@pytest.mark.row("S2")
def test_a_replaced_view_ends_the_old_one(source: Source) -> None:
    source.create("d.v", [int_col("a")], action=Action.CREATE_VIEW, view={"view_select": "SELECT 1 AS `a`"})
    old = source.tables["d.v"]["id"]
    job = source.create("d.v", [int_col("b")], action=Action.CREATE_VIEW, view={"view_select": "SELECT 2 AS `b`"})
    timeline = source.timeline()
    assert timeline.at_ts(old, job.commit_ts).dropped
    assert [_names(v) for v in timeline.tables_at(job.commit_ts)] == [["b"]]


@pytest.mark.row("S2")
def test_columns_that_are_not_public_yet_are_in_the_info_and_not_shown(source: Source) -> None:
    source.create("d.t", [ID, int_col("a")])
    source.alter("d.t", Action.MODIFY_TABLE_COMMENT, lambda t: find(t, "a").update(state=2))
    version = source.timeline().tables_at(source.jobs[-1].commit_ts)[0]
    assert _names(version) == ["id"]
    assert version.table.column_by_id(2) is not None
