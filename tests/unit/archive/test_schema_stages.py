"""A history that many processes fold is stored as one process stores it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pumphouse.archive import schema_parts, schema_store
from pumphouse.archive.ddl import read_groups, read_jobs
from pumphouse.archive.schema_parts import SchemaParts, read_rows, rows_of
from pumphouse.archive.schema_stages import CannotTell, components
from pumphouse.archive.schema_store import pending_jobs, rebuild, timeline_of, whole_fold
from pumphouse.archive.verify import verify
from pumphouse.errors import BadSegment, HistoryUnavailable, SchemaError
from pumphouse.schema.actions import Action
from tests.support.madearchive import MadeSource
from tests.support.randomhistory import RandomHistory
from tests.support.schemajobs import START, add, int_col
from tests.support.serialfold import SMALL, serial_fold

_ID = int_col("id", flag=4099)


def empty(tmp_path: Path) -> MadeSource:
    """An archive that has not begun, of a source without a job."""
    made = MadeSource(tmp_path / "archive")
    made.jobs.clear()
    made.events.clear()
    made.schema_version = 0
    made.ts = int(START) + (3_600_000 << 18)  # behind whatever a random history says of when its jobs finished
    return made


def stored(made: MadeSource, key: str) -> SchemaParts:
    return SchemaParts.from_json(key, made.archive.store.get(key))


def whole(made: MadeSource) -> Any:
    found = whole_fold(made.archive, few=0)
    assert found is not None
    return found


def same_as_alone(made: MadeSource, done: Any) -> None:
    """What is stored is what one process says of genesis and windows, row by row."""
    document = stored(made, done.key)
    made.archive.store.delete(done.key)
    timeline = timeline_of(made.archive)
    rows = [row for part in document.parts for row in read_rows(made.archive.store, part)]
    wanted = [
        row
        for part in document.parts
        for row in rows_of(timeline, part.after)
        if row.schema_version <= part.upto
    ]  # fmt: skip
    assert rows == wanted
    alone = rebuild(made.archive)
    other = stored(made, alone.key)
    assert (alone.jobs, alone.tables, alone.schema_version) == (done.jobs, done.tables, done.schema_version)
    for said in ("upto", "window", "whole", "sequences", "views"):
        assert getattr(document, said) == getattr(other, said)
    made.archive.store.put(done.key, document.to_json())
    assert timeline_of(made.archive) == timeline
    assert verify(made.archive, deep=True).problems == []


@pytest.mark.row("S1", "S2", "A4")
@pytest.mark.parametrize("seed", range(14))
def test_what_many_processes_store_is_what_one_says(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_parts, "_FILE_ROWS", 8)
    made, history = empty(tmp_path), RandomHistory(seed)
    chosen = random.Random(seed)
    taken = 0

    def take(jobs: int) -> None:
        nonlocal taken
        history.run(jobs)
        if seed % 5 == 4:
            history.create(f"{history.schema()}.s{len(history.jobs)}", [_ID], action=Action.CREATE_SEQUENCE,
                           sequence={"sequence_start": 1})  # fmt: skip
        for timed in history.jobs[taken:]:
            made.take_job(timed.job)
        taken = len(history.jobs)

    take(chosen.choice([40, 90]))
    made.genesis()
    for _ in range(chosen.randint(0, 3)):
        take(chosen.randint(1, 30))
        made.cut()
    if not made.archive.windows():
        made.cut()
    done, plan = serial_fold(whole(made), replace(SMALL, task_jobs=chosen.choice([5, 30, 1000])))
    assert plan.folds > 1
    same_as_alone(made, done)
    # What comes next goes on by what is stored, also where the whole history is needed for it.
    take(chosen.randint(1, 12))
    made.cut()
    again = whole_fold(made.archive, few=0)
    if again is None:
        rebuild(made.archive)
        assert verify(made.archive, deep=True).problems == []
        made.archive.store.delete(f"schema/parts/{made.archive.end():020d}.json")
        again = schema_store.WholeFold(
            made.archive, made.archive.windows(), made.archive.end(), done.upto, stored(made, done.key)
        )
    before = stored(made, done.key).parts
    done, plan = serial_fold(again)
    after = stored(made, done.key).parts
    assert sum(part.jobs for part in after) == plan.jobs
    assert after[0] == before[0] or after[0].jobs > before[0].jobs
    same_as_alone(made, done)


@pytest.mark.row("S1")
def test_tables_that_one_job_makes_are_folded_apart_and_the_job_is_stored_once(tmp_path: Path) -> None:
    """CREATE TABLES of 30, with partitions; each is altered, a third is emptied, all go with their database."""
    made, history = empty(tmp_path), RandomHistory(3)
    schema = history.schema()
    raws = {f"{schema}.n{number}": history.make_raw(f"{schema}.n{number}") for number in range(30)}
    history.tables |= raws
    history.job(Action.CREATE_TABLES, schema, MultipleTableInfos=list(raws.values()))
    for each in list(raws):
        history.alter(each, Action.ADD_COLUMN, lambda t: add(t, int_col("more")))
    for timed in history.jobs:
        made.take_job(timed.job)
    made.genesis()
    for each in list(raws)[::3]:
        history.truncate(each)
        made.take_job(history.jobs[-1].job)
    history.drop_db(schema)
    made.take_job(history.jobs[-1].job)
    made.cut()
    done, plan = serial_fold(whole(made))
    assert plan.folds >= 10
    same_as_alone(made, done)


@pytest.mark.row("S1", "S2")
def test_a_view_that_replaces_another_by_name_is_folded_with_it(tmp_path: Path) -> None:
    made, history = empty(tmp_path), RandomHistory(4)
    schema, other = sorted(history.dbs)[:2]

    def view(db: str, short: str) -> None:
        raw = {**history.make(f"{db}.{short}", [_ID]), "view": {"view_select": "SELECT 1"}}
        history.create_raw(f"{db}.{short}", raw, action=Action.CREATE_VIEW)

    for number in range(40):
        view(schema, f"v{number}")
        view(other, f"v{number}")
    for number in range(0, 40, 2):
        history.rename(f"{schema}.v{number}", f"{schema}.w{number}")
    for number in range(0, 40, 2):
        view(schema, f"W{number}")
    for timed in history.jobs:
        made.take_job(timed.job)
    made.genesis()
    made.cut()
    done, plan = serial_fold(whole(made))
    assert plan.folds > 5
    assert sum(event.changes[0].before is not None for event in timeline_of(made.archive).events if event.changes) == 40
    same_as_alone(made, done)


@pytest.mark.row("A3", "S1")
def test_a_job_of_genesis_that_a_window_brings_stands_where_the_window_says(tmp_path: Path) -> None:
    made = MadeSource(tmp_path / "archive")
    for number in range(20):
        made.create_table(f"t{number}", [int_col("id", flag=4099, id=1)])
    # Finished behind all there is: the history at genesis has it, and a window brings it.
    made.add_column("t3", int_col("a", id=2))
    late = made.rewrite_job(lambda raw: raw["binlog"].update(FinishedTS=made.ts + (100_000 << 18)))
    event = made.events[-1]
    made.genesis()
    with pytest.raises(HistoryUnavailable, match=f"job {late.id} was running at genesis"):
        serial_fold(whole(made))
    event.commit_ts = made.tick()
    made.events.append(event)
    for number in range(0, 20, 2):
        made.add_column(f"t{number}", int_col("b", id=3))
    made.cut()
    for task_jobs in (4, 1000):
        done, _ = serial_fold(whole(made), replace(SMALL, task_jobs=task_jobs))
        same_as_alone(made, done)
        found = next(each for each in timeline_of(made.archive).jobs if each.job.id == late.id)
        assert (found.genesis, found.commit_ts) == (False, event.commit_ts)
        made.archive.store.delete(done.key)


@pytest.mark.row("A3", "S1")
def test_a_job_that_had_finished_at_genesis_and_comes_with_a_window_stands_there(tmp_path: Path) -> None:
    made = MadeSource(tmp_path / "archive")
    for number in range(20):
        made.create_table(f"t{number}", [int_col("id", flag=4099, id=1)])
    made.add_column("t4", int_col("a", id=2))
    again, job = made.events[-1], made.jobs[-1].job
    assert job.finished_ts < made.genesis()
    again.commit_ts = made.tick()
    made.events.append(again)
    made.cut()
    done, _ = serial_fold(whole(made))
    same_as_alone(made, done)
    (found,) = [each for each in timeline_of(made.archive).jobs if each.job.id == job.id]
    assert (found.genesis, found.commit_ts) == (False, again.commit_ts)


@pytest.mark.row("S1", "S2")
@pytest.mark.parametrize("action", [211, Action.RENAME_TABLES])
def test_a_job_that_does_not_say_what_it_touches_is_left_to_one_process(tmp_path: Path, action: int) -> None:
    made, history = empty(tmp_path), RandomHistory(5)
    history.create("d1.t" if "d1" in history.dbs else f"{history.schema()}.t", [_ID])
    table = next(iter(history.tables))
    schema, short = table.split(".")
    if action == Action.RENAME_TABLES:
        history.job(action, schema, table_id=history.tables[table]["id"], query=f"RENAME TABLE {table} TO {schema}.u")
    else:
        history.alter(table, action, lambda t: add(t, int_col("new")))
    del short
    for timed in history.jobs:
        made.take_job(timed.job)
    made.genesis()
    made.cut()
    with pytest.raises(CannotTell, match=f"DDL job {history.jobs[-1].job.id} may touch"):
        serial_fold(whole(made))


@pytest.mark.row("S1", "S2")
def test_a_history_without_its_databases_is_left_to_one_process(tmp_path: Path) -> None:
    made, history = empty(tmp_path), RandomHistory(6)
    history.run(40, without=("drop_db", "alter_db"))
    for timed in history.jobs:
        if timed.job.type != Action.CREATE_SCHEMA:
            made.take_job(timed.job)
    made.genesis()
    made.cut()
    with pytest.raises(CannotTell, match="no job makes a database"):
        serial_fold(whole(made))


@pytest.mark.row("S1")
def test_jobs_out_of_order_are_refused_in_the_words_of_one_process(tmp_path: Path) -> None:
    made = MadeSource(tmp_path / "archive")
    for number in range(20):
        made.create_table(f"t{number}", [int_col("id", flag=4099, id=1)])
    made.genesis()
    made.schema_version -= 5
    made.add_column("t1", int_col("a", id=2))
    made.cut()
    with pytest.raises(SchemaError) as alone:
        timeline_of(made.archive)
    with pytest.raises(SchemaError) as many:
        serial_fold(whole(made))
    assert str(many.value) == str(alone.value)
    assert "the same schema version" in str(many.value)


@pytest.mark.row("S1")
def test_pending_jobs_count_those_of_genesis_and_no_text_is_read_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = MadeSource(tmp_path / "archive")
    for number in range(20):
        made.create_table(f"t{number}", [int_col("id", flag=4099, id=1)])
    made.genesis()
    for number in range(6):
        made.add_column(f"t{number}", int_col("a", id=2))
    made.cut()
    with monkeypatch.context() as patched:
        patched.setattr(schema_store, "read_groups", None)
        assert pending_jobs(made.archive) == 27
    rebuild(made.archive)
    assert pending_jobs(made.archive) == 0
    for number in range(6):
        made.add_column(f"t{number}", int_col("b", id=3))
    made.cut()
    assert pending_jobs(made.archive) == 6
    assert pending_jobs(made.archive, enough=4) == 4


@pytest.mark.row("A4", "S1")
def test_an_object_of_ddl_jobs_is_read_by_row_groups_and_from_a_file_where_it_is_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pumphouse.archive.ddl._GROUP_JOBS", 4)
    made = MadeSource(tmp_path / "archive")
    for number in range(20):
        made.create_table(f"t{number}", [int_col("id", flag=4099, id=1)])
    made.genesis()
    entry, store = made.archive.genesis().ddl, made.archive.store
    every = read_jobs(store, entry)
    monkeypatch.setattr("pumphouse.archive.segment._IN_MEMORY_BYTES", 10)
    groups = list(read_groups(store, entry))
    assert [(at, len(jobs)) for at, jobs in groups] == [(0, 4), (4, 4), (8, 4), (12, 4), (16, 4), (20, 1)]
    for parts in (1, 2, 4, 9):
        found = [each for part in range(parts) for each in read_groups(store, entry, part=part, parts=parts)]
        assert found == groups
    assert [job for _, jobs in groups for job in jobs] == every
    good = store.get(entry.key)
    store.put(entry.key, good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
    with pytest.raises(BadSegment, match="has the digest"):
        next(read_groups(store, entry))


def test_components_are_those_of_a_walk() -> None:
    rng = np.random.default_rng(1)
    for nodes, edges in ((1, 0), (50, 20), (500, 400), (3000, 3000)):
        one, other = rng.integers(0, nodes, (2, edges))
        links: dict[int, set[int]] = {node: {node} for node in range(nodes)}
        for a, b in zip(one.tolist(), other.tolist(), strict=True):
            merged = links[a] | links[b]
            for node in merged:
                links[node] = merged
        assert components(nodes, one, other).tolist() == [min(links[node]) for node in range(nodes)]
    chain = np.arange(9999)
    assert not components(10000, chain, chain + 1).any()
