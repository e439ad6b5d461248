"""The timeline in the archive: made from windows, kept by table, never written twice."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pumphouse.archive import schema_parts, schema_store
from pumphouse.archive.schema_parts import SchemaParts, parts_key
from pumphouse.archive.schema_store import pending_jobs, rebuild, timeline_of
from pumphouse.archive.verify import verify
from pumphouse.archive.view import read_view
from pumphouse.errors import BadManifest, HistoryUnavailable, SchemaError
from pumphouse.model.table import Job
from pumphouse.model.tso import Tso, name20
from pumphouse.schema.actions import Action
from tests.support.documents import changed
from tests.support.madearchive import MadeSource
from tests.support.randomhistory import RandomHistory
from tests.support.schemajobs import Source, int_col


@pytest.fixture
def made(tmp_path: Path) -> Iterator[MadeSource]:
    source = MadeSource(tmp_path / "archive")
    source.create_table("t", [int_col("id", flag=4099, id=1)])
    source.genesis()
    return source


def _objects(made: MadeSource) -> list[str]:
    return [o.key for o in made.archive.store.list("schema/parts/")]


@pytest.mark.row("S1", "A3")
def test_the_timeline_is_the_fold_of_genesis_and_windows(made: MadeSource) -> None:
    made.add_column("t", int_col("a", id=2))
    end = made.cut()
    assert pending_jobs(made.archive) > 0
    done = rebuild(made.archive)
    assert timeline_of(made.archive) == made.timeline()
    assert (done.upto, done.key, _objects(made)) == (end, parts_key(end), [parts_key(end)])
    assert pending_jobs(made.archive) == 0


@pytest.mark.row("S1")
def test_a_window_without_ddl_writes_nothing_and_reads_no_history_again(
    made: MadeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.cut()
    first = rebuild(made.archive)
    monkeypatch.setattr(schema_store, "whole_history", None)
    made.cut()
    again = rebuild(made.archive)
    assert (again.key, again.jobs) == ("", 0)
    assert again.schema_version == first.schema_version == timeline_of(made.archive).schema_version
    made.add_column("t", int_col("a", id=2))
    made.cut()
    assert rebuild(made.archive).jobs == 1
    assert len(_objects(made)) == 2


@pytest.mark.row("S1")
def test_new_jobs_are_a_part_that_takes_smaller_ones_in(made: MadeSource) -> None:
    for n in range(12):
        made.add_column("t", int_col(f"c{n}", id=2 + n))
        made.cut()
        assert rebuild(made.archive).jobs == 1
        assert timeline_of(made.archive) == made.timeline()
    stored = [SchemaParts.from_json(key, made.archive.store.get(key)) for key in _objects(made)]
    assert [[part.jobs for part in each.parts] for each in stored[:6]] == [[3], [3, 1], [3, 2], [3, 2, 1], [7], [7, 1]]
    assert [sum(part.jobs for part in each.parts) for each in stored] == list(range(3, 15))
    # What was not taken in lies where it lay.
    assert stored[3].parts[:2] == stored[2].parts


@pytest.mark.row("S1", "L1")
def test_a_load_reads_the_history_of_the_tables_that_changed_and_of_no_others(
    made: MadeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_parts, "_FILE_ROWS", 4)
    for number in range(40):
        made.create_table(f"u{number}", [int_col("id", flag=4099, id=1)])
        made.add_column(f"u{number}", int_col("a", id=2))
    since = made.cut()
    rebuild(made.archive)
    with made.txn() as txn:
        txn.insert("u7", id=1, a=2)
    made.add_column("u9", int_col("b", id=3))
    made.cut()
    read: list[str] = []
    get = type(made.archive.store).get
    monkeypatch.setattr(type(made.archive.store), "get", lambda self, key: read.append(key) or get(self, key))
    view = read_view(made.archive, since=since, touched=True)
    ids = [made.tables[name].info.id for name in ("u7", "u9")]
    assert {*view.timeline.versions} == {*ids}
    assert view.timeline.of_tables(ids) == made.timeline().of_tables(ids)
    assert view.timeline.databases == made.timeline().databases
    assert view.timeline.ddls(since, view.end) == made.timeline().ddls(since, view.end)
    assert 2 <= len([key for key in read if key.startswith("schema/jobs/")]) <= 4
    assert read_view(made.archive, since=since).timeline == made.timeline()
    # A DDL reads what its table has, and stores what is new.
    read.clear()
    done = rebuild(made.archive)
    assert (done.jobs, done.tables, done.schema_version) == (1, 1, made.schema_version)
    assert len([key for key in read if key.startswith("schema/jobs/")]) <= 2
    monkeypatch.setattr(type(made.archive.store), "get", get)
    assert timeline_of(made.archive) == made.timeline()
    assert verify(made.archive).problems == []
    # A DDL that touches tables which it does not name: all of it is read.
    made.drop_database()
    made.cut()
    assert rebuild(made.archive).tables == 41
    assert verify(made.archive).problems == []
    assert read_view(made.archive, since=since, touched=True).timeline == made.timeline()


@pytest.mark.row("S1", "S2", "A4")
@pytest.mark.parametrize("seed", range(12))
def test_whatever_ddl_windows_bring_what_is_stored_and_read_by_table_is_what_the_whole_history_says(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_parts, "_FILE_ROWS", 8)
    made, history = MadeSource(tmp_path / "archive"), RandomHistory(seed)
    made.jobs.clear()
    made.events.clear()
    made.schema_version = 0
    made.genesis()
    taken, ends = 0, [made.ts]
    for _ in range(8):
        history.run(history.random.randint(1, 20))
        for timed in history.jobs[taken:]:
            made.take_job(timed.job)
        taken = len(history.jobs)
        ends.append(made.cut())
        assert rebuild(made.archive).schema_version == history.jobs[-1].job.schema_version
    whole = made.timeline()
    assert timeline_of(made.archive) == whole
    assert verify(made.archive).problems == []
    for since in ends[-4:-1]:
        view = read_view(made.archive, since=Tso(since), touched=True)
        tables = {table for event in whole.ddls(since, view.end) for table in event.table_ids}
        assert view.timeline.of_tables(tables) == whole.of_tables(tables)
        assert view.timeline.databases == whole.databases
        seen = [(e.job.id, e.changes, e.kept, e.lost) for e in view.timeline.ddls(since, view.end) if e.changes]
        assert seen == [(e.job.id, e.changes, e.kept, e.lost) for e in whole.ddls(since, view.end) if e.changes]


@pytest.mark.row("S1")
def test_a_moment_in_the_past_or_inside_a_window_reads_its_own_schema_and_stores_nothing(made: MadeSource) -> None:
    made.add_column("t", int_col("a", id=2))
    between = made.tick()
    made.add_column("t", int_col("b", id=3))
    made.cut()
    at = rebuild(made.archive, between)
    assert at.key == ""
    past = timeline_of(made.archive, between)
    assert [c.name for c in past.tables_at(between)[0].table.public_columns] == [
        "id",
        "a",
    ]
    rebuild(made.archive)
    assert timeline_of(made.archive, between) == past
    assert len(_objects(made)) == 1


@pytest.mark.row("S1")
def test_two_rebuilds_at_once_leave_one_object(made: MadeSource, monkeypatch: pytest.MonkeyPatch) -> None:
    made.cut()
    rebuild(made.archive)
    body = made.archive.store.get(_objects(made)[0])
    monkeypatch.setattr(schema_store, "newest_schema", lambda *_: None)
    rebuild(made.archive)
    assert made.archive.store.get(_objects(made)[0]) == body


@pytest.mark.row("S1")
def test_a_lost_object_is_made_again(made: MadeSource) -> None:
    made.add_column("t", int_col("a", id=2))
    made.cut()
    done = rebuild(made.archive)
    body = made.archive.store.get(done.key)
    made.archive.store.delete(done.key)
    assert rebuild(made.archive) == done
    assert made.archive.store.get(done.key) == body


@pytest.mark.row("A4")
def test_a_damaged_missing_or_foreign_object_is_refused(made: MadeSource) -> None:
    made.cut()
    rebuild(made.archive)
    made.add_column("t", int_col("a", id=2))
    made.cut()
    newest = rebuild(made.archive).key
    store = made.archive.store
    good = store.get(newest)
    for bad, match in (
        (good.replace(b'"rules": 1', b'"rules": 2'), "is damaged"),
        (json.dumps(json.loads(good) | {"format_version": 7}).encode(), "format version 7"),
        (good[:-9], "is no schema"),
        (changed(good, lambda s: s.update(genesis_sha256="x")), "another genesis"),
        (changed(good, lambda s: s.update(window_sha256="0" * 64)), "another window"),
        (changed(good, lambda s: s.update(upto=s["upto"] + 1)), "holds the schema up to"),
        (changed(good, lambda s: s["parts"].pop(0)), "lacks versions after 0"),
        (changed(good, lambda s: s["parts"][0]["files"][0].update(sha256="0" * 64)), "0.parquet is missing"),
    ):
        store.put(newest, bad)
        with pytest.raises(BadManifest, match=match):
            timeline_of(made.archive)
    store.delete(newest)
    assert rebuild(made.archive).key == newest
    assert store.get(newest) == good


@pytest.mark.row("A4", "O7")
def test_what_is_no_part_of_a_stored_schema_is_told_and_not_read(made: MadeSource) -> None:
    end = made.cut()
    key = f"schema/{name20(end)}.json"
    made.archive.store.put(key, b"{}")
    assert timeline_of(made.archive) == made.timeline()
    (problem,) = verify(made.archive).problems
    assert (problem.key, problem.what.partition(":")[0]) == (key, f"{key} is no part of a stored schema")


@pytest.mark.row("A3")
def test_a_job_that_ran_at_genesis_waits_for_the_windows_that_place_it(tmp_path: Path) -> None:
    source = MadeSource(tmp_path / "archive")
    source.create_table("t", [int_col("id", flag=4099, id=1)])
    # Its FinishedTS lies behind genesis: nobody knows yet on which side its binlog committed.
    job = source.rewrite_job(lambda raw: raw["binlog"].update(FinishedTS=source.ts + (1000 << 18)))
    source.genesis()
    with pytest.raises(HistoryUnavailable, match=f"job {job.id} was running at genesis"):
        rebuild(source.archive)
    source.tick(2000)
    source.cut()
    assert timeline_of(source.archive).tables_at(source.ts)[0].name == ("d", "t")


@pytest.mark.row("S1", "S2")
def test_a_database_that_no_job_makes_has_the_name_that_all_of_its_tables_say(tmp_path: Path) -> None:
    history = Source()
    for name in "abc":
        history.create_db(name)
    for name in ("a.t", "a.x", "b.u", "c.w"):
        history.create(name, [int_col("id", flag=4099)])
    made = MadeSource(tmp_path / "archive")
    begun = made.schema_version

    def take(job: Job, **changes: Any) -> None:
        binlog = job.raw["binlog"] | {
            "SchemaVersion": job.raw["binlog"]["SchemaVersion"] + begun,
            "FinishedTS": made.tick(),
        }
        made.take_job(Job.from_dict(job.raw | {"id": job.id + 10000, "binlog": binlog} | changes))

    for timed in history.jobs:
        if timed.job.type != Action.CREATE_SCHEMA:
            take(timed.job)
    made.genesis()
    since = made.cut()
    rebuild(made.archive)
    renamed = history.rename_many(
        "RENAME TABLE a.t TO b.t, a.x TO c.x",
        [("a.t", "b.t"), ("a.x", "c.x")],
        raw_args=[[history.dbs["a"]] * 2, [history.dbs["b"], history.dbs["c"]], ["t", "x"],
                  [history.tables["a.t"]["id"], history.tables["a.x"]["id"]]],
        schema_id=history.dbs["c"],
    )  # fmt: skip
    take(renamed.job, schema_name="c")
    made.cut()
    whole, touched = (read_view(made.archive, since=since, touched=each).timeline for each in (False, True))
    (event,) = touched.ddls(since, touched.jobs[-1].commit_ts)
    assert [change.known.name for change in event.changes] == [("b", "t"), ("c", "x")]
    for table_id in event.table_ids:
        wanted = whole.versions[table_id]
        assert touched.versions[table_id] == touched.of_tables([table_id]).versions[table_id] == wanted
    rebuild(made.archive)
    assert verify(made.archive, deep=True).sound


@pytest.mark.row("S1")
@pytest.mark.parametrize("below", [1, 4])
def test_a_ddl_whose_schema_version_is_not_above_what_is_stored_is_refused_by_a_load_too(
    tmp_path: Path, below: int
) -> None:
    made = MadeSource(tmp_path / "archive")
    for number in range(6):
        made.create_table(f"t{number}", [int_col("id", flag=4099, id=1)])
    made.genesis()
    for number in range(5):
        made.add_column(f"t{number}", int_col("a", id=2))
    since = made.cut()
    rebuild(made.archive)
    made.schema_version -= below
    made.add_column("t5", int_col("b", id=3))
    made.cut()
    with pytest.raises(SchemaError, match="the same schema version"):
        read_view(made.archive, since=since, touched=True)


@pytest.mark.row("S1")
def test_a_job_of_schema_version_0_leaves_what_is_stored_as_it_is(made: MadeSource) -> None:
    for number in range(20):
        made.create_table(f"t{number}", [int_col("id", flag=4099, id=1)])
    made.cut()
    rebuild(made.archive)
    before = SchemaParts.from_json(key := _objects(made)[-1], made.archive.store.get(key)).parts
    version, made.schema_version = made.schema_version, -1
    made.add_column("t1", int_col("a", id=2))
    made.schema_version = version
    made.add_column("t2", int_col("a", id=2))
    made.cut()
    rebuild(made.archive)
    after = SchemaParts.from_json(key := _objects(made)[-1], made.archive.store.get(key)).parts
    assert after[: len(before)] == before
    assert [part.jobs for part in after[len(before) :]] == [1]


@pytest.mark.row("A3")
def test_a_verify_beside_a_rebuild_misses_no_file(made: MadeSource, monkeypatch: pytest.MonkeyPatch) -> None:
    made.add_column("t", int_col("a", id=2))
    made.cut()
    rebuild(made.archive)
    made.add_column("t", int_col("b", id=3))
    made.cut()
    kind = type(made.archive.store)
    listed = kind.list

    def pages(self: Any, prefix: str) -> Iterator[Any]:
        """A rebuild ends between the page with the files and the one with the documents."""
        if prefix != "schema/":
            yield from listed(self, prefix)
            return
        yield from [each for each in listed(self, prefix) if each.key < "schema/parts/"]
        monkeypatch.setattr(kind, "list", listed)
        rebuild(made.archive)
        yield from [each for each in listed(self, prefix) if each.key >= "schema/parts/"]

    monkeypatch.setattr(kind, "list", pages)
    assert verify(made.archive).sound
