"""The timeline in the archive: made from windows, kept as deltas, never written twice."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pumphouse.archive import schema_store
from pumphouse.archive.schema_store import WHOLE_EVERY, StoredSchema, pending_jobs, rebuild, schema_key
from pumphouse.errors import BadManifest, HistoryUnavailable
from pumphouse.schema.timeline import Timeline
from tests.support.documents import changed
from tests.support.madearchive import MadeSource
from tests.support.schemajobs import int_col


@pytest.fixture
def made(tmp_path: Path) -> Iterator[MadeSource]:
    source = MadeSource(tmp_path / "archive")
    source.create_table("t", [int_col("id", flag=4099, id=1)])
    source.genesis()
    return source


def _objects(made: MadeSource) -> list[str]:
    return [o.key for o in made.archive.store.list("schema/")]


@pytest.mark.row("S1", "A3")
def test_the_timeline_is_the_fold_of_genesis_and_windows(made: MadeSource) -> None:
    made.add_column("t", int_col("a", id=2))
    end = made.cut()
    assert pending_jobs(made.archive) > 0
    done = rebuild(made.archive)
    assert done.timeline == made.timeline()
    assert (done.upto, done.key, _objects(made)) == (end, schema_key(end), [schema_key(end)])
    assert pending_jobs(made.archive) == 0


@pytest.mark.row("S1")
def test_a_window_without_ddl_writes_nothing_and_reads_no_history_again(
    made: MadeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.cut()
    first = rebuild(made.archive)
    monkeypatch.setattr(schema_store, "_from_genesis", None)
    made.cut()
    again = rebuild(made.archive)
    assert (again.key, again.jobs) == ("", 0)
    assert again.timeline == first.timeline
    made.add_column("t", int_col("a", id=2))
    made.cut()
    assert rebuild(made.archive).jobs == 1
    assert len(_objects(made)) == 2


@pytest.mark.row("S1")
def test_deltas_build_on_each_other_and_a_whole_one_comes_now_and_then(made: MadeSource) -> None:
    for n in range(WHOLE_EVERY + 3):
        made.add_column("t", int_col(f"c{n}", id=2 + n))
        made.cut()
        assert rebuild(made.archive).timeline == made.timeline()
    stored = [StoredSchema.from_json(key, made.archive.store.get(key)) for key in _objects(made)]
    assert [s.depth for s in stored] == [*range(WHOLE_EVERY), 0, 1, 2]
    assert [s.base is None for s in stored].count(True) == 2
    assert [len(s.jobs) for s in stored[1:WHOLE_EVERY]] == [1] * (WHOLE_EVERY - 1)


@pytest.mark.row("S1")
def test_a_moment_in_the_past_or_inside_a_window_reads_its_own_schema_and_stores_nothing(made: MadeSource) -> None:
    made.add_column("t", int_col("a", id=2))
    between = made.tick()
    made.add_column("t", int_col("b", id=3))
    made.cut()
    at = rebuild(made.archive, between)
    assert at.key == ""
    assert [c.name for c in at.timeline.tables_at(between)[0].table.public_columns] == ["id", "a"]
    rebuild(made.archive)
    assert rebuild(made.archive, between).timeline == at.timeline
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
    assert rebuild(made.archive).timeline == done.timeline
    assert made.archive.store.get(done.key) == body


@pytest.mark.row("A4")
def test_a_damaged_missing_or_foreign_object_is_refused(made: MadeSource) -> None:
    made.cut()
    base = rebuild(made.archive).key
    made.add_column("t", int_col("a", id=2))
    made.cut()
    delta = rebuild(made.archive).key
    store = made.archive.store
    good = store.get(base)
    for bad, match in (
        (good.replace(b'"depth": 0', b'"depth": 1'), "is damaged"),
        (changed(good, lambda s: s.update(depth=1)), "not what the next"),
        (json.dumps(json.loads(good) | {"format_version": 7}).encode(), "format version 7"),
        (good[:-9], "is no schema"),
        (changed(good, lambda s: s.update(genesis_sha256="x")), "another genesis"),
        (changed(good, lambda s: s.update(upto=s["upto"] + 1)), "holds the schema up to"),
    ):
        store.put(base, bad)
        with pytest.raises(BadManifest, match=match):
            rebuild(made.archive)
    store.put(base, good)
    newest = store.get(delta)
    store.put(delta, changed(newest, lambda s: s.update(window_sha256="0" * 64)))
    with pytest.raises(BadManifest, match="another window"):
        rebuild(made.archive)
    store.put(delta, newest)
    store.delete(base)
    with pytest.raises(BadManifest, match="is missing"):
        rebuild(made.archive)
    store.delete(delta)
    assert isinstance(rebuild(made.archive).timeline, Timeline)


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
    assert rebuild(source.archive).timeline.tables_at(source.ts)[0].name == ("d", "t")
