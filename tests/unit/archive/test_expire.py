"""An archive that shrinks: what goes, what stays whatever happens, and what everybody is told (rows A5, O1)."""

import dataclasses
import errno
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pumphouse.archive import layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.base import Base, BaseBegun, BaseChunk, TableWithout
from pumphouse.archive.drills import Drill, write_drill
from pumphouse.archive.expire import Ages, ExpireReport, delete_orphans, expire
from pumphouse.archive.head import Head
from pumphouse.archive.manifest import Declaration, Manifest
from pumphouse.archive.marks import mark, unmark
from pumphouse.archive.range import Range
from pumphouse.archive.restorable import restorable_from
from pumphouse.archive.retention import Hold, Policy, plan_expiry
from pumphouse.archive.schema_store import rebuild, timeline_of
from pumphouse.archive.segment import read_segment
from pumphouse.archive.sweep import begun_and_live, list_objects
from pumphouse.archive.verify import verify
from pumphouse.archive.view import read_view
from pumphouse.errors import (
    BadManifest,
    BadSegment,
    BinlogError,
    ConfigError,
    ManifestConflict,
    StoreUnavailable,
    TargetUnreachable,
    UsageError,
)
from pumphouse.folding.run import fold_base
from pumphouse.model.tso import MAX_TSO, Tso, compose, physical_ms, show
from pumphouse.objectstore.base import ObjectInfo
from pumphouse.objectstore.file import FileStore
from pumphouse.restore.plan import plan_restore
from pumphouse.settings import DumpRule, LoadSettings
from tests.support.agedarchive import Aged, aged, fresh, kept_moments, pieces_of, plan_of, require_restorable
from tests.support.dumpedsource import DumpedSource
from tests.support.killed import Killed
from tests.support.madearchive import column
from tests.support.memorystore import MemoryStore
from tests.support.storekit import so_often

NEWEST = Policy(bases=1)


def run(archive: Archive, policy: Policy = NEWEST, *holds: Hold, dry_run: bool = False) -> ExpireReport:
    return expire(archive, Ages(), policy, holds, now=archive.end(), dry_run=dry_run, who="me@here")


@pytest.mark.row("A5")
def test_without_a_policy_nothing_expires(archive: Archive, store: MemoryStore) -> None:
    before = dict(store.objects)
    report = run(archive, Policy())
    assert "no retention is set" in report.why_nothing
    assert store.objects == before
    assert not report.objects


@pytest.mark.row("A5")
def test_the_newest_dump_and_every_moment_behind_it_stay(archive: Archive, store: MemoryStore, made: Aged) -> None:
    whole = {at: plan_of(archive, at) for at, _ in made.moments if at >= made.dumps[-1]}
    before = len(store.objects)
    report = run(archive)
    assert report.restorable_from == made.dumps[-1] == restorable_from(fresh(archive))
    assert report.bases_gone == tuple(made.dumps[:-1])
    assert report.windows_gone > 3
    assert len(store.objects) < before * 0.6
    found = fresh(archive)
    assert [at for at in kept_moments(found, made) if at >= made.dumps[-1]] == list(whole)
    require_restorable(found, list(whole))
    # The same objects are read, and the same DDLs carried out, as before.
    for at, plan in whole.items():
        now = plan_of(found, at)
        assert [(each.segment.key, each.after, each.upto) for each in pieces_of(now)] == [
            (each.segment.key, each.after, each.upto) for each in pieces_of(plan)
        ]
        assert now.ddls == plan.ddls
        assert now.databases == plan.databases
    assert found.range().expired_by == "me@here"


@pytest.mark.row("A5")
def test_the_schema_at_the_start_is_what_it_was(archive: Archive, store: MemoryStore, made: Aged) -> None:
    before = timeline_of(archive)
    run(archive)
    found = fresh(archive)
    assert [(each.commit_ts, each.job.id) for each in timeline_of(found).jobs] == [
        (each.commit_ts, each.job.id) for each in before.jobs
    ]
    # Stored or not: it is derived from what is kept.
    for key in [each for each in store.objects if "/schema/" in each]:
        del store.objects[key]
    found = fresh(archive)
    after = timeline_of(found)
    assert after.versions == before.versions
    assert rebuild(found).key
    assert verify(found).problems == []
    start = found.range().start
    assert after.tables_at(start) == before.tables_at(start)
    assert made.source.timeline().tables_at(start) == after.tables_at(start)


@pytest.mark.row("A5")
def test_a_stored_schema_is_there_at_the_start_so_that_nothing_is_folded_from_genesis(
    archive: Archive, store: MemoryStore
) -> None:
    run(archive)
    start = archive.range().start
    named = [each.key for each in archive.store.list("schema/parts/")]
    assert layout.SCHEMA + f"parts/{int(start):020d}.json" in named
    genesis = fresh(archive).genesis()
    del store.objects[f"{archive.cluster_id}/{genesis.ddl.key}"]  # not read
    assert read_view(fresh(archive)).timeline.tables_at(start)


@pytest.mark.row("A5")
def test_a_stored_schema_that_a_rebuild_may_have_begun_from_goes_when_a_later_one_is_old(
    archive: Archive, store: MemoryStore
) -> None:
    run(archive)
    start = f"schema/parts/{int(archive.range().start):020d}.json"
    before = [each.key for each in archive.store.list("schema/parts/") if each.key < start]
    assert before, "the one at the start was written just now"
    assert verify(fresh(archive)).problems == []
    store.put_s = dict.fromkeys(store.objects, 0.0)
    run(archive)
    assert next(archive.store.list("schema/parts/")).key == start
    assert verify(fresh(archive)).problems == []


@pytest.mark.row("A5")
def test_a_moment_before_the_range_is_refused_by_name(archive: Archive, made: Aged) -> None:
    run(archive)
    found = fresh(archive)
    told = f"keeps moments from {show(made.dumps[-1])} on"
    with pytest.raises(TargetUnreachable, match="by me@here") as refused:
        plan_of(found, made.moments[0][0])
    assert told in str(refused.value)
    view = read_view(found)
    for refuse in (
        lambda: view.between(made.dumps[0], view.end),
        lambda: found.windows_between(made.dumps[0], found.end()),
        lambda: timeline_of(found, made.dumps[0]),
        lambda: mark(found, made.dumps[1], "too late"),
    ):
        with pytest.raises(BinlogError, match="by me@here"):
            refuse()  # type: ignore[no-untyped-call]
    late = read_view(found, since=made.dumps[1])
    with pytest.raises(ConfigError, match="expired at"):
        late.between(made.dumps[1], late.end)


@pytest.mark.row("A5")
def test_a_dry_run_says_what_goes_and_nothing_goes(archive: Archive, store: MemoryStore) -> None:
    before = dict(store.objects)
    shown = run(archive, dry_run=True)
    assert store.objects == before
    done = run(archive)
    gone = before.keys() - store.objects.keys()
    assert shown.count == done.count == len(gone)
    assert shown.size == done.size == sum(len(before[key]) for key in gone)
    assert (shown.restorable_from, shown.start, shown.held) == (done.restorable_from, done.start, done.held)


@pytest.mark.row("A5")
def test_days_keep_the_dump_that_the_oldest_of_them_needs(archive: Archive, store: MemoryStore, made: Aged) -> None:
    store.clock = lambda: physical_ms(made.dumps[2]) / 1000 + 9 * 86_400
    now = compose(physical_ms(made.dumps[2]) + 3 * 86_400_000 - 1)
    expired = expire(archive, Ages(), Policy(days=3), (), now=now, who="me@here")
    assert expired.restorable_from == made.dumps[1]
    expired = expire(archive, Ages(), Policy(days=3), (), now=Tso(now + (2 << 18)), who="me@here")
    assert expired.restorable_from == made.dumps[2]


@pytest.mark.row("A5")
def test_days_count_back_from_the_stores_time_where_that_of_the_cluster_has_leapt_ahead(
    archive: Archive, store: MemoryStore, made: Aged
) -> None:
    end_s = physical_ms(archive.end()) / 1000
    store.clock = lambda: end_s + 60
    leapt = compose(physical_ms(archive.end()) + 365 * 86_400_000)
    report = expire(archive, Ages(), Policy(days=30), (), now=leapt, who="me@here")
    assert not report.moves
    assert report.restorable_from == made.dumps[0]
    assert "0.0 days old, and 30 days are kept" in report.why_nothing
    store.clock = lambda: end_s + 31 * 86_400
    assert expire(archive, Ages(), Policy(days=30), (), now=leapt, who="me@here").restorable_from == made.dumps[-1]


@pytest.mark.row("A5")
def test_of_dumps_and_days_whatever_one_of_them_wants_is_kept(archive: Archive, store: MemoryStore, made: Aged) -> None:
    long = compose(physical_ms(made.dumps[-1]) + 86_400_000 * 99)
    store.clock = lambda: physical_ms(long) / 1000
    report = expire(archive, Ages(), Policy(bases=2, days=1), (), now=long, dry_run=True)
    assert report.restorable_from == made.dumps[-2]
    report = expire(archive, Ages(), Policy(bases=1, days=100), (), now=long, dry_run=True)
    assert report.restorable_from == made.dumps[0]
    assert "days" in report.why_nothing


@pytest.mark.row("A5")
def test_a_mark_stays_restorable_until_it_is_taken_away(archive: Archive, made: Aged) -> None:
    at = made.moments[1][0]
    mark(archive, at, "before the migration", who="dba@x")
    report = run(archive)
    assert report.restorable_from == made.dumps[0]
    assert "before the migration" in report.held[0]
    require_restorable(fresh(archive), [each for each, _ in made.moments])
    with pytest.raises(UsageError, match="is not marked"):
        unmark(archive, made.moments[2][0])
    with pytest.raises(UsageError, match="with a reason"):
        mark(archive, at, " ")
    with pytest.raises(UsageError, match="the archive ends at"):
        mark(archive, Tso(archive.end() + 1), "not yet")
    unmark(archive, at)
    assert run(archive).restorable_from == made.dumps[-1]
    require_restorable(fresh(archive), [each for each, _ in made.moments if each >= made.dumps[-1]])


@pytest.mark.row("A5")
def test_the_windows_that_a_target_needs_stay_and_it_is_named(archive: Archive, made: Aged) -> None:
    behind = made.moments[2][0]
    hold = Hold(who="target", ts=behind, restorable=False, why=f"is at {show(behind)}")
    report = run(archive, NEWEST, hold)
    assert report.held == (str(hold),)
    assert report.restorable_from == made.dumps[-1]
    assert report.start <= behind
    found = fresh(archive)
    assert read_view(found, since=behind).between(behind, found.end())
    require_restorable(found, kept_moments(found, made))
    # When it has caught up they go.
    later = run(archive, NEWEST, dataclasses.replace(hold, ts=found.end()))
    assert later.start > behind
    assert not later.bases_gone
    assert later.windows_gone
    require_restorable(fresh(archive), kept_moments(fresh(archive), made))


@pytest.mark.row("A5")
def test_who_does_not_say_what_it_needs_holds_everything(archive: Archive, store: MemoryStore) -> None:
    before = dict(store.objects)
    report = run(archive, NEWEST, Hold(who="target", ts=Tso(0), restorable=True, why="does not answer"))
    assert report.why_nothing == "it is held"
    assert report.held == ("target does not answer",)
    assert store.objects == before


@pytest.mark.row("A5")
def test_a_dump_that_runs_keeps_its_log_and_the_dump_that_it_takes_tables_from(
    archive: Archive, store: MemoryStore, made: Aged
) -> None:
    older = archive.bases(MAX_TSO)[0]
    begun = BaseBegun(cluster_id=archive.cluster_id, low=Tso(archive.end()), tables=("d.t",), over=older.begun)
    archive.store.put(layout.base_begun(begun.low), begun.to_json())
    report = run(archive)
    assert report.restorable_from == older.ts == made.dumps[1]
    assert any("takes tables of an earlier base" in each for each in report.held)
    key = layout.base_begun(begun.low)
    store.put_s[f"{archive.cluster_id}/{key}"] = 1.0  # given up long ago
    assert key in run(archive, dry_run=True).orphans
    assert run(archive).restorable_from == made.dumps[-1]
    assert not list(archive.store.list(key))


@pytest.mark.row("A5")
@pytest.mark.row("O1")
def test_a_drill_that_runs_holds_its_dump(archive: Archive, made: Aged) -> None:
    drill = Drill(
        cluster_id=archive.cluster_id, attempt="0" * 16, begun_ms=1, seed=1, into="x", target="t", at=made.moments[1][0]
    )
    write_drill(archive, drill, keep=10)
    assert run(archive).restorable_from == made.dumps[0]
    write_drill(archive, dataclasses.replace(drill, ended_ms=2, verdict="equal"), keep=10)
    assert run(archive).restorable_from == made.dumps[-1]


@pytest.mark.row("A5")
def test_a_table_that_comes_back_behind_a_dump_keeps_the_older_one(tmp_path: Path) -> None:
    made = aged(tmp_path / "a", rounds=1)
    source = made.source
    held = source.tables["k"]
    low = source.cut()
    source.drop_table("k")
    source.cut()
    read = [source.read(name, Tso(source.previous[0]), Tso(source.previous[0])) for name in sorted(source.tables)]  # type: ignore[index]
    dump = source.publish(Tso(source.previous[0]), read)  # type: ignore[index]
    source.recover_table("k", held)
    source.cut()
    source.tick()
    source.cut()
    assert low < dump
    _, archive = made.in_memory()
    report = run(archive)
    assert report.restorable_from == made.dumps[-1] < dump
    assert plan_of(fresh(archive), archive.end()).base == made.dumps[-1]


@pytest.mark.row("A5")
@pytest.mark.parametrize("meanwhile", [False, True])
def test_parts_that_a_later_dump_names_stay_wherever_they_lie(
    archive: Archive, store: MemoryStore, meanwhile: bool
) -> None:
    first, *_, last = archive.bases(MAX_TSO)
    # As a dump that takes over what has not changed: its document names a part in the folder of the first.
    taken = next(each for each in first.tables if each.table == "new0")
    tables = (*(each for each in last.tables if each.table != "new0"), dataclasses.replace(taken, low=last.low))
    folded = dataclasses.replace(last, begun=Tso(last.begun + 1), low=last.low, tables=tables)
    key = layout.base_document(folded.begun)

    def publish(verb: str = "", put: str = "/range/") -> None:
        if "/range/" in put:
            store.before = lambda verb, key: None
            data = folded.to_json(cluster_id=archive.cluster_id, genesis=archive.genesis().sha256)
            archive.store.put(key, data)

    if meanwhile:  # everything has been looked at, and the range is not yet put
        store.before = publish
    else:
        publish()
    run(archive)
    folder = f"base/{int(first.begun):020d}/"
    assert [each.key for each in archive.store.list(folder)] == [each.key for each in taken.segments]
    assert verify(fresh(archive), deep=False).problems == []


@pytest.mark.row("A5")
def test_nothing_expires_when_what_is_kept_is_not_whole(archive: Archive, store: MemoryStore, made: Aged) -> None:
    newest = archive.bases(MAX_TSO)[-1]
    part = next(each.key for table in newest.tables for each in table.segments)
    del store.objects[f"{archive.cluster_id}/{part}"]
    before = dict(store.objects)
    with pytest.raises(BadManifest, match="nothing expires") as refused:
        run(archive)
    assert part in str(refused.value)
    assert store.objects == before
    assert plan_of(fresh(archive), made.moments[1][0])


@pytest.mark.row("A5")
def test_what_a_rule_deletes_above_the_range_is_named_as_that(archive: Archive, store: MemoryStore) -> None:
    run(archive)
    store.rules = ("the lifecycle rule 'old' deletes objects after 30 days",)
    found = fresh(archive)
    first, second, *_ = found.windows()
    segment = next(each.key for window in (first, second) for each in window.segments if each.rows)
    del store.objects[f"{archive.cluster_id}/{segment}"]
    with pytest.raises(BadSegment, match="the lifecycle rule 'old'") as refused:
        for window in found.windows():
            for each in window.segments:
                list(found.segment_batches(window, each))
    assert "`archive expire` deletes none of it" in str(refused.value)
    for key in (first.key, second.key):
        del store.objects[f"{archive.cluster_id}/{key}"]
        with pytest.raises(BadManifest, match="the lifecycle rule 'old'") as lost:
            fresh(archive).windows()
        assert "a gap" in str(lost.value)
        assert "`archive expire` deletes none of it" in str(lost.value)


@pytest.mark.row("A5")
def test_who_reads_while_it_expires_is_told_or_reads_what_is_kept(
    archive: Archive, store: MemoryStore, made: Aged, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, kept = fresh(archive), fresh(archive)
    view = read_view(slow)
    windows, listed = slow.windows(), fresh(archive)
    # Between the look at the range and the reading of the windows it expires.
    real = listed.range

    def expired_meanwhile() -> Range:
        found = real()
        monkeypatch.setattr(listed, "range", real)
        run(kept)
        return found

    monkeypatch.setattr(listed, "range", expired_meanwhile)
    assert read_view(listed).windows[0].start == kept.range().start
    gone = next(each for window in windows for each in window.segments if each.rows)
    with pytest.raises(BadSegment, match="it expired meanwhile"):
        list(slow.segment_batches(windows[0], gone))
    plan = plan_restore(view, made.moments[1][0], task="main", settings=LoadSettings())
    old = next(piece for piece in pieces_of(plan) if piece.window is None)
    with pytest.raises(BadSegment, match="of a dump that expired"):
        list(read_segment(slow.store, old.segment, after=Tso(0), upto=MAX_TSO))


@pytest.mark.row("A5")
def test_windows_that_expire_while_they_are_read_are_left_out(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = fresh(archive)
    real = slow.store.list

    def listed_late(prefix: str, **how: str) -> Iterator[ObjectInfo]:
        if prefix == layout.WINDOWS and slow.range().start == archive.genesis().ts:
            run(fresh(archive))
        return real(prefix, **how)

    monkeypatch.setattr(slow.store, "list", listed_late)
    windows = slow.windows()
    assert windows[0].start == archive.range().start > archive.genesis().ts


@pytest.mark.row("A5")
def test_what_expires_in_many_steps_leaves_the_schema_that_one_step_leaves(made: Aged) -> None:
    _, once = made.in_memory()
    run(once)
    store, archive = made.in_memory()
    for bases in (3, 2, 1):
        run(fresh(archive), Policy(bases=bases))
    for key in [each for each in store.objects if "/schema/" in each]:
        del store.objects[key]  # nothing is folded but jobs of genesis, of the range, and of windows
    for each in (once, archive):
        assert timeline_of(fresh(each)).versions == timeline_of(made.source.archive).versions
    assert fresh(archive).range().window == fresh(once).range().window
    assert fresh(archive).range().pumps == fresh(once).range().pumps


@pytest.mark.row("A5")
@pytest.mark.row("O1")
def test_what_killed_tasks_left_goes_when_it_is_old_and_nobody_can_name_it(
    archive: Archive, store: MemoryStore
) -> None:
    window = archive.windows()[2]
    left = {
        layout.segment_key(window.start, window.planned_end, "pump-0", "dead", 0): True,
        layout.ddl_key(window.start, window.planned_end, "dead"): True,
        layout.segment_key(archive.end(), Tso(archive.end() + 9), "pump-0", "live", 0): False,  # a window under way
        layout.expired_ddl_key("dead"): True,
        layout.SCHEMA + f"jobs/{'0' * 64}.parquet": True,
        f"base/{int(archive.bases(MAX_TSO)[0].begun):020d}/d.t-1/00000000000000000001/0-dead.parquet": True,
    }
    for key in left:
        archive.store.put(key, b"x")
    assert run(archive, Policy()).orphans == ()  # all are young
    for key in left:
        store.put_s[f"{archive.cluster_id}/{key}"] = 1.0
    goes = {key for key, old in left.items() if old}
    assert {*run(archive, Policy(), dry_run=True).orphans} == goes
    run(archive, Policy())
    assert {key for key in left if list(archive.store.list(key))} == left.keys() - goes
    assert verify(fresh(archive)).problems == []


@pytest.mark.row("A5")
def test_an_orphan_that_is_put_again_meanwhile_stays(archive: Archive, store: MemoryStore) -> None:
    key = layout.SCHEMA + f"jobs/{'0' * 64}.parquet"
    archive.store.put(key, b"x")
    store.put_s[f"{archive.cluster_id}/{key}"] = 1.0

    def put_again(verb: str, other: str) -> None:
        if verb == "put_if_absent" and "/range/" in other:  # everything is listed by then, and nothing deleted
            store.put_s.pop(f"{archive.cluster_id}/{key}", None)

    store.before = put_again
    assert key in run(archive).orphans
    assert list(archive.store.list(key))


def steps_of(archive: Archive, store: MemoryStore) -> list[tuple[str, str]]:
    """Every call that changes the store, of a whole run."""
    seen: list[tuple[str, str]] = []
    store.before = lambda verb, key: seen.append((verb, key))
    run(archive)
    store.before = lambda verb, key: None
    return seen


@pytest.mark.row("A5")
@pytest.mark.row("O1")
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_call_and_run_again_nothing_that_is_named_goes(made: Aged, when: str) -> None:
    store, archive = made.in_memory()
    calls = len(steps_of(archive, store))
    store.put_s = dict.fromkeys(store.objects, 0.0)
    run(fresh(archive))
    whole = set(store.objects)
    assert calls > 20
    # The calls up to the first deletions one by one, then some of the deletions, which are all alike.
    for kill in [*range(12), *range(12, calls, 17)]:
        store, archive = made.in_memory()
        count = itertools.count()

        def hook(verb: str, key: str, count: Iterator[int] = count, kill: int = kill) -> None:
            if next(count) == kill:
                raise Killed

        setattr(store, when, hook)
        with pytest.raises(Killed):
            run(archive)
        store.before = store.after = lambda verb, key: None
        found = fresh(archive)
        require_restorable(found, kept_moments(found, made))
        run(found)
        require_restorable(fresh(archive), kept_moments(fresh(archive), made))
        assert fresh(archive).range().base.ts == made.dumps[-1]  # type: ignore[union-attr]
        # What the killed run left and nobody named goes when it is old.
        store.put_s = dict.fromkeys(store.objects, 0.0)
        run(fresh(archive))
        assert {shape(key) for key in store.objects} == {shape(key) for key in whole}


def shape(key: str) -> str:
    """A name without what is random in it."""
    return "ddl/expired" if "/ddl/expired/" in key else "range" if "/range/" in key else key


@pytest.mark.row("A5")
@pytest.mark.row("O1")
def test_two_at_once_with_other_wishes_leave_what_both_name(made: Aged) -> None:
    for turn in range(6):
        _, archive = made.in_memory()
        policies = [Policy(bases=1), Policy(bases=2)]
        gate, errors = threading.Barrier(2), []

        def other(
            policy: Policy,
            archive: Archive = archive,
            gate: threading.Barrier = gate,
            errors: list[BaseException] = errors,
        ) -> None:
            try:
                gate.wait()
                run(fresh(archive), policy)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=other, args=(policies[(turn + each) % 2],)) for each in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert errors == []
        found = fresh(archive)
        require_restorable(found, kept_moments(found, made))
        assert found.range().base.ts == made.dumps[-1]  # type: ignore[union-attr]


@pytest.mark.row("A5")
def test_a_mark_that_comes_between_the_look_and_the_put_is_honoured(made: Aged) -> None:
    store, archive = made.in_memory()
    at = made.moments[1][0]

    def between(verb: str, key: str) -> None:
        if verb == "put_if_absent" and "/range/" in key:
            store.before = lambda verb, key: None
            mark(fresh(archive), at, "just in time", who="dba@x")

    store.before = between
    assert run(archive).restorable_from == made.dumps[0]
    require_restorable(fresh(archive), [each for each, _ in made.moments])


@pytest.mark.row("A5")
def test_the_archive_goes_on_behind_its_range(tmp_path: Path) -> None:
    made = aged(tmp_path / "a", rounds=2)
    source = made.source
    run(source.archive)
    later = []
    for _ in range(2):
        with source.txn() as txn:
            txn.insert("new0", id=int(source.tick()) & 0xFFFFFF)
        later.append(Tso(source.tick()))
        source.cut()
        source.drop_column("t", "n") if "n" in {c.name for c in source.tables["t"].info.columns} else None
        low = source.cut()
        source.publish(low, [source.read(name, low, low) for name in sorted(source.tables)])
        rebuild(source.archive)
        run(source.archive)
        assert verify(fresh(source.archive)).problems == []
    source.tick()
    source.cut()
    found = Archive(source.archive.store._store, source.cluster_id)  # type: ignore[attr-defined]
    assert len(found.range().ddl) <= 2
    assert timeline_of(found).tables_at(found.end()) == source.timeline().tables_at(found.end())
    require_restorable(found, [found.range().base.ts, found.end()])  # type: ignore[union-attr]


@pytest.mark.row("A5")
@pytest.mark.row("A4")
def test_every_byte_of_the_range_document_counts(archive: Archive, store: MemoryStore) -> None:
    mark(archive, archive.end(), "the end", who="x")
    run(archive)
    key = f"{archive.cluster_id}/{archive.range().key}"
    good = store.objects[key]
    for at in range(0, len(good), 7):
        store.objects[key] = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        with pytest.raises(BinlogError):
            fresh(archive).windows()
        assert verify(fresh(archive), deep=False).problems
    store.objects[key] = good
    assert verify(fresh(archive), deep=False).problems == []
    # Another archive's, a version before it that is another one, and a lost object of its jobs.
    other = dataclasses.replace(archive.range(), genesis="0" * 64)
    store.objects[key] = other.to_json()
    with pytest.raises(BadManifest, match="of another archive"):
        fresh(archive).windows()
    store.objects[key] = dataclasses.replace(archive_range(good, archive), previous="0" * 64).to_json()
    assert any("does not follow" in each.what for each in verify(fresh(archive), deep=False).problems)
    store.objects[key] = good
    del store.objects[f"{archive.cluster_id}/{archive.range().ddl[0].key}"]
    assert any("ddl/expired" in each.key for each in verify(fresh(archive), deep=False).problems)


def archive_range(data: bytes, archive: Archive) -> Range:
    return Range.from_json(archive_key(data), data, archive.genesis())


def archive_key(data: bytes) -> str:
    import json

    return layout.range_key(json.loads(data)["number"])


@pytest.mark.row("A5")
def test_the_newest_windows_stay_whatever_the_dump_is(tmp_path: Path) -> None:
    """HEAD may name the last but one: a writer was slow."""
    made = aged(tmp_path / "a", rounds=1)
    source = made.source
    end = source.archive.end()
    base = Base(begun=end, ts=end, low=end, tables=(), columns=True, sha256="")
    data = base.to_json(cluster_id=source.cluster_id, genesis=source.archive.genesis().sha256)
    source.archive.store.put(layout.base_document(end), data)
    run(source.archive)
    assert len(source.archive.windows()) == 2
    newest: Manifest | None = fresh_from(source.archive).last()
    assert newest is not None
    assert fresh_from(source.archive).end() == end


def fresh_from(archive: Archive) -> Archive:
    return Archive(archive.store._store, archive.cluster_id)  # type: ignore[attr-defined]


@pytest.mark.row("A5")
@pytest.mark.row("O1")
def test_who_deletes_orphans_lets_nothing_expire(archive: Archive, store: MemoryStore) -> None:
    behind = Hold(who="target", ts=Tso(0), restorable=False, why="is behind")
    run(archive, NEWEST, behind)
    before = dict(store.objects)
    store.put_s = dict.fromkeys(store.objects, 0.0)
    left = layout.segment_key(archive.windows()[1].start, archive.windows()[1].planned_end, "pump-0", "dead", 0)
    archive.store.put(left, b"x")
    store.put_s[f"{archive.cluster_id}/{left}"] = 0.0
    assert left in {each.info.key for each in delete_orphans(archive, Ages())}
    assert fresh(archive).range().start == archive.genesis().ts, "the target's windows stay"
    windows = {key for key in before if "/windows/" in key or "/segments/" in key or "/base/" in key}
    assert windows <= store.objects.keys()


@pytest.mark.row("A5")
def test_without_a_policy_the_windows_before_the_first_dump_stay(archive: Archive) -> None:
    view = read_view(archive)
    later = dataclasses.replace(view, bases=view.bases[1:])  # an archive that was begun without a dump
    plan = plan_expiry(later, Policy(), (), view.end)
    assert (plan.moves, plan.start) == (False, view.kept.start)
    assert "no retention is set" in plan.why_nothing
    assert plan_expiry(later, NEWEST, (), view.end).moves


@pytest.mark.row("A5")
def test_a_table_that_a_dump_lacks_keeps_the_newest_dump_that_has_it(archive: Archive) -> None:
    view = read_view(archive)
    ids = {each.table.name: each.table.id for each in view.timeline.tables_at(view.end)}
    lacks = TableWithout(db="d", table="t", table_id=ids["t"], why="too large")

    def lacking(*which: int) -> list[Base]:
        return [
            dataclasses.replace(base, without=(lacks,)) if at in which else base for at, base in enumerate(view.bases)
        ]

    def plan(bases: list[Base]) -> tuple[Tso, tuple[str, ...]]:
        found = plan_expiry(dataclasses.replace(view, bases=tuple(bases)), NEWEST, (), view.end)
        assert found.base is not None
        return found.base.ts, tuple(str(each) for each in found.held)

    oldest, held = plan(lacking(1, 2, 3))
    assert oldest == view.bases[0].ts
    assert "lacks d.t" in held[0]
    assert plan(lacking(3))[0] == view.bases[2].ts
    assert plan(lacking(0, 1, 2)) == (view.bases[3].ts, ())
    assert plan(lacking(0, 1, 2, 3)) == (view.bases[3].ts, ()), "no dump has it"


@pytest.mark.row("A5")
def test_a_dump_with_the_rows_of_a_table_that_was_dropped_since_stays_until_a_later_one_knows_of_that(
    tmp_path: Path,
) -> None:
    source = DumpedSource(tmp_path)
    for name in ("t", "o"):
        source.create_table(name, [column(1, "id", flag=3)])
        with source.txn() as txn:
            txn.insert(name, id=1)
    first = source.genesis()
    low = source.cut()
    lacking = source.publish(low, [source.read("o", low, low)], [DumpRule(table="d.t", why="large")])
    lived = Tso(source.tick())
    source.drop_table("t")
    for _ in range(3):
        source.cut()
    report = run(source.archive)
    assert report.restorable_from == restorable_from(source.archive) == first
    assert "lacks d.t" in report.held[0]
    for at in (lacking, lived, source.archive.end()):
        assert plan_of(source.archive, at).base == first
    low = source.cut()
    whole = source.publish(low, [source.read("o", low, low)])
    for _ in range(3):
        source.cut()
    assert run(source.archive).restorable_from == whole
    assert plan_of(source.archive, source.archive.end()).base == whole


@pytest.mark.row("A5")
def test_a_dump_begun_between_the_plan_and_the_put_is_planned_for(
    archive: Archive, store: MemoryStore, made: Aged
) -> None:
    older = archive.bases(MAX_TSO)[0]
    begun = BaseBegun(cluster_id=archive.cluster_id, low=Tso(archive.end()), tables=("d.t",), over=older.begun)

    def between(verb: str, key: str) -> None:
        if "/ddl/expired/" in key:
            store.before = lambda verb, key: None
            archive.store.put(layout.base_begun(begun.low), begun.to_json())

    store.before = between
    report = run(archive)
    assert report.restorable_from == older.ts == made.dumps[1]


@pytest.mark.row("A5")
def test_what_a_dump_takes_over_stays_when_both_crossed(archive: Archive, store: MemoryStore) -> None:
    """It had read the range before that moved, and is published while the deletions run."""
    first, *_, last = archive.bases(MAX_TSO)
    begun = BaseBegun(cluster_id=archive.cluster_id, low=Tso(last.begun + 1), tables=("d.t",), over=first.begun)
    taken = next(each for each in first.tables if each.table == "new0")
    tables = (*(each for each in last.tables if each.table != "new0"), dataclasses.replace(taken, low=last.low))
    late = dataclasses.replace(last, begun=begun.low, tables=tables)
    published: list[Base] = []

    def hook(verb: str, key: str) -> None:
        if "/range/" in key:
            archive.store.put(layout.base_begun(begun.low), begun.to_json())
        if verb == "delete" and "/probe/" not in key:
            store.before = lambda verb, key: None
            published.append(fresh(archive).publish_base(late, begun=layout.base_begun(late.begun)))

    store.before = hook
    run(archive)
    assert published
    assert archive.range().base.ts == last.ts  # type: ignore[union-attr]
    for segment in taken.segments:
        assert archive.store.size(segment.key) == segment.bytes
    assert verify(fresh(archive), deep=False).problems == []


@pytest.mark.row("A5")
def test_a_dump_whose_log_expired_or_that_was_given_up_is_not_published(archive: Archive) -> None:
    first, *_, last = archive.bases(MAX_TSO)
    begun = BaseBegun(cluster_id=archive.cluster_id, low=Tso(last.begun + 1), tables=("d.t",), over=first.begun)
    late = dataclasses.replace(last, begun=begun.low, low=first.low)
    with pytest.raises(ManifestConflict, match="was given up"):
        archive.publish_base(late, begun=layout.base_begun(late.begun))
    assert not list(archive.store.list(layout.base_document(late.begun)))
    run(archive)
    archive.store.put(layout.base_begun(begun.low), begun.to_json())
    with pytest.raises(ManifestConflict, match="expired while it was made"):
        fresh(archive).publish_base(late, begun=layout.base_begun(late.begun))
    assert [base.begun for base in fresh(archive).bases(MAX_TSO)] == [last.begun]
    assert verify(fresh(archive), deep=False).problems == []


@pytest.mark.row("A5")
def test_a_dump_whose_rows_are_not_there_any_more_is_withdrawn(archive: Archive, store: MemoryStore) -> None:
    last = archive.bases(MAX_TSO)[-1]
    low = Tso(last.begun + 1)
    archive.store.put(layout.base_begun(low), b"")
    late = dataclasses.replace(last, begun=low)
    part = late.tables[0].segments[0].key

    def swept(verb: str, key: str) -> None:
        if verb == "put_if_absent":
            store.objects.pop(f"{archive.cluster_id}/{part}", None)

    store.before = swept
    with pytest.raises(BadSegment, match="is not there") as refused:
        archive.publish_base(late, begun=layout.base_begun(low))
    assert part in str(refused.value)
    assert f"remove {layout.base_begun(low)}" in str(refused.value.hint)
    assert not list(archive.store.list(layout.base_document(low)))


@pytest.mark.row("A5")
def test_a_dump_whose_document_is_lost_is_not_one_that_was_given_up(archive: Archive, store: MemoryStore) -> None:
    newest = archive.bases(MAX_TSO)[-1]
    objects, document = layout.base_objects(newest.begun), layout.base_document(newest.begun)
    archive.store.put(objects, b"x")
    archive.store.delete(document)
    store.put_s = dict.fromkeys(store.objects, 0.0)
    parts = [each.key for table in newest.tables for each in table.segments]
    run(archive)
    delete_orphans(archive, Ages())
    there = {each.key for each in archive.store.list(layout.BASE)}
    assert {*parts, objects} <= there


@pytest.mark.row("A5")
def test_what_a_killed_fold_left_goes_with_its_note_and_parts_of_a_fold_that_ended_stay(
    archive: Archive, store: MemoryStore
) -> None:
    ended, killed = (Tso(archive.end() - n) for n in (1, 2))
    parts = [f"{layout.base_folder(ts)}d.t-1/{int(ts):020d}/0-0-a.parquet" for ts in (ended, killed)]
    note = BaseBegun(cluster_id=archive.cluster_id, low=killed, tables=None, over=archive.bases(MAX_TSO)[0].begun)
    archive.store.put(layout.fold_note(killed, "a"), note.to_json())
    for key in parts:
        archive.store.put(key, b"x")
    assert delete_orphans(archive, Ages()) == ()  # a fold that runs
    held = "\n".join(run(archive, dry_run=True).held)
    assert f"fold that was begun at {killed}" in held
    assert f"`pumphouse archive base --at {int(killed)}` ends it; killed, it holds for 48 h" in held
    archive.store.put(layout.folded_document(killed), b"{}")  # the same command, run again, has ended
    assert begun_and_live(archive, now_s=0.0, for_s=1.0) == []
    archive.store.delete(layout.folded_document(killed))
    store.put_s = dict.fromkeys(store.objects, 0.0)
    delete_orphans(archive, Ages())
    there = {each.key for each in archive.store.list(layout.BASE)}
    assert parts[0] in there  # its document is lost
    assert there.isdisjoint({parts[1], layout.fold_note(killed, "a")})


def unfinished(archive: Archive, low: Tso) -> list[str]:
    """A dump that was killed: what it put, a chunk a table."""
    begun = BaseBegun(cluster_id=archive.cluster_id, low=low, tables=None, over=None)
    made = {layout.base_begun(low): begun.to_json()}
    for table in archive.bases(MAX_TSO)[-1].tables:
        folder = layout.chunk_folder(low, table.db, table.table, table.table_id, Tso(low + 1))
        rows = table.segments[0]
        segment = dataclasses.replace(rows, key=f"{folder}00000000-0123456789abcdef.parquet")
        chunk = BaseChunk(
            db=table.db, table=table.table, table_id=table.table_id, low=Tso(low + 1), number=0, upto=None, last=True,
            segment=segment,
        )  # fmt: skip
        made |= {segment.key: archive.store.get(rows.key), layout.chunk_note(folder, 0): chunk.to_json()}
    for key, data in made.items():
        archive.store.put(key, data)
    return [*made]


@pytest.mark.row("A5")
@pytest.mark.parametrize("expired", [False, True])
def test_a_dump_under_way_keeps_its_chunks_in_the_folder_of_a_fold_that_has_ended(
    archive: Archive, store: MemoryStore, expired: bool
) -> None:
    older, last = archive.bases(MAX_TSO)[-2:]
    # Behind the newest dump, which lets go of a folded base before it, or at the end.
    low = archive.end() if not expired else next(w.end for w in archive.windows() if older.ts < w.end < last.low)
    of = older if expired else last
    tables = tuple(dataclasses.replace(each, low=low) for each in of.tables)
    fold = Base(
        begun=low, low=low, ts=low, tables=tables, columns=True, sha256="", folded=of.ts, descends=of.since
    )  # fmt: skip
    data = fold.to_json(cluster_id=archive.cluster_id, genesis=archive.genesis().sha256)
    archive.store.put(layout.folded_document(low), data)
    left, ages, days = unfinished(archive, low), Ages(grace_s=2 * 86_400, resume_s=7 * 86_400), 86_400
    store.put_s = dict.fromkeys(store.objects, time.time() - 3 * days)
    store.put_s[f"{archive.cluster_id}/{left[-1]}"] = time.time() - 3600
    report = expire(archive, ages, NEWEST, (), now=archive.end())
    assert (low in report.bases, report.orphans) == (not expired, ())
    assert delete_orphans(archive, ages) == ()
    assert {each.key for each in archive.store.list(layout.base_folder(low))} >= {*left}
    # Nobody goes on with it any more: all of it goes, and nothing of what the other names.
    store.put_s = dict.fromkeys(store.objects, time.time() - 8 * days)
    expire(archive, ages, NEWEST, (), now=archive.end())
    delete_orphans(archive, ages)
    there = {each.key for each in archive.store.list(layout.BASE)}
    assert there.isdisjoint(left)
    assert (layout.folded_document(low) in there) is not expired
    assert verify(fresh(archive)).problems == []


@pytest.mark.row("A5")
def test_a_fold_under_way_keeps_its_parts_in_the_folder_of_a_dump_that_has_ended(
    archive: Archive, store: MemoryStore
) -> None:
    older, last = archive.bases(MAX_TSO)[-2:]
    low, ages = last.begun, Ages(grace_s=2 * 86_400, resume_s=7 * 86_400)
    note = BaseBegun(cluster_id=archive.cluster_id, low=low, tables=None, over=older.begun)
    left = [layout.fold_note(low, "a")]
    left += [f"{layout.base_folder(low)}d.t-1/{int(low):020d}/{n}-0-a.parquet" for n in range(2)]
    archive.store.put(layout.base_objects(low), b"x")  # the dump's
    for key in left:
        archive.store.put(key, note.to_json())
    store.put_s = dict.fromkeys(store.objects, time.time() - 3 * 86_400)
    store.put_s[f"{archive.cluster_id}/{left[-1]}"] = time.time() - 3600
    assert delete_orphans(archive, ages) == ()
    store.put_s = dict.fromkeys(store.objects, time.time() - 8 * 86_400)
    assert {each.info.key for each in delete_orphans(archive, ages)} == {*left}
    assert verify(fresh(archive)).problems == []


def killed_at_deletion(archive: Archive, store: MemoryStore, number: int, run: Callable[[], object]) -> bool:
    """Whether a run ends before it; else nothing of it comes after."""
    count = itertools.count()

    def hook(verb: str, key: str) -> None:
        if verb == "delete" and "/probe/" not in key and next(count) >= number:
            raise Killed

    store.before = hook
    try:
        run()
    except Killed:
        return False
    finally:
        store.before = lambda verb, key: None
    return True


@pytest.mark.row("A5")
@pytest.mark.row("A4")
def test_a_sweep_that_is_killed_leaves_a_sound_archive_and_the_next_one_ends_it(made: Aged) -> None:
    for number in itertools.count():
        store, archive = made.in_memory()
        low = Tso(archive.end() - 1)
        fold = Tso(low - 1)  # another folder; the names of its tables come behind that of its note
        left = unfinished(archive, low)
        over = archive.bases(MAX_TSO)[0].begun
        note = BaseBegun(cluster_id=archive.cluster_id, low=fold, tables=None, over=over).to_json()
        left += [layout.fold_note(fold, "a"), f"{layout.base_folder(fold)}z.t-1/{int(fold):020d}/0-0-a.parquet"]
        for key in left[-2:]:
            archive.store.put(key, note)
        assert verify(fresh(archive)).problems == []
        store.put_s = dict.fromkeys(store.objects, 0.0)
        whole = killed_at_deletion(archive, store, number, lambda archive=archive: delete_orphans(archive, Ages()))
        assert verify(fresh(archive)).problems == [], number
        delete_orphans(fresh(archive), Ages())
        assert not {each.key for each in archive.store.list(layout.BASE)}.intersection(left), number
        if whole:
            break
    assert number == len(left)


@pytest.mark.row("A4")
@pytest.mark.parametrize("what", ["folding-", "begun.json", "/00000000.json"])
def test_notes_that_go_while_they_are_looked_at_are_no_damage(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A fold that ends takes its note away, a sweep those of a dump that was given up, and then its chunks."""
    low = Tso(archive.end() - 1)
    note = BaseBegun(cluster_id=archive.cluster_id, low=low, tables=None, over=archive.bases(MAX_TSO)[0].begun)
    archive.store.put(layout.fold_note(low, "a"), note.to_json())
    gone = [key for key in unfinished(archive, low) if "begun" not in key]
    original = MemoryStore.get

    def get(self: MemoryStore, key: str) -> bytes:
        found = self.objects.get(key)
        if what in key and found is not None:
            for each in (key, *(f"{archive.cluster_id}/{each}" for each in gone)):
                self.objects.pop(each, None)
            if what.startswith("/"):
                return found  # it was read, and went then
        return original(self, key)

    monkeypatch.setattr(MemoryStore, "get", get)
    assert verify(fresh(archive)).problems == []


@pytest.mark.row("A5")
def test_nothing_expires_when_the_dump_is_lost_that_the_range_begins_from(archive: Archive, store: MemoryStore) -> None:
    run(archive, Policy(bases=2))
    key = layout.base_document(archive.range().base.begun)  # type: ignore[union-attr]
    archive.store.delete(key)
    store.put_s = dict.fromkeys(store.objects, 0.0)
    before = dict(store.objects)
    for lost in (lambda: run(fresh(archive)), lambda: delete_orphans(fresh(archive), Ages())):
        with pytest.raises(BadManifest, match="nothing expires") as refused:
            lost()  # type: ignore[no-untyped-call]
        assert key in str(refused.value)
    assert store.objects == before


@pytest.mark.row("A5")
def test_the_document_of_a_dump_goes_when_its_parts_are_gone(archive: Archive, store: MemoryStore) -> None:
    order: list[str] = []
    store.before = lambda verb, key: order.append(key) if verb == "delete" and "/base/" in key else None
    run(archive)
    last = max(at for at, key in enumerate(order) if not key.endswith("/base.json"))
    assert all(not key.endswith("/base.json") for key in order[:last])
    assert len(order) - last > 2


@pytest.mark.row("A5")
def test_no_more_goes_than_somebody_has_agreed_to(archive: Archive, store: MemoryStore, made: Aged) -> None:
    shown = run(archive, Policy(bases=2), dry_run=True)
    before = dict(store.objects)
    with pytest.raises(ManifestConflict, match="more would expire"):
        expire(archive, Ages(), NEWEST, (), now=archive.end(), shown=shown)
    assert store.objects == before
    expire(archive, Ages(), Policy(bases=2), (), now=archive.end(), shown=shown)
    assert archive.range().base.ts == made.dumps[-2]  # type: ignore[union-attr]


@pytest.mark.row("A5")
def test_age_is_that_of_the_store_whatever_the_clock_here_says(archive: Archive, store: MemoryStore) -> None:
    store.clock = lambda: time.time() - 30 * 86_400
    older = archive.bases(MAX_TSO)[0]
    begun = BaseBegun(cluster_id=archive.cluster_id, low=Tso(archive.end()), tables=("d.t",), over=older.begun)
    archive.store.put(layout.base_begun(begun.low), begun.to_json())  # just now, by the store's clock
    report = run(archive)
    assert report.restorable_from == older.ts
    assert report.orphans == ()
    assert list(archive.store.list(layout.base_begun(begun.low)))


@pytest.mark.row("A5")
@pytest.mark.row("A2")
def test_a_snapshot_that_commits_while_it_is_listed_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = aged(tmp_path / "a", rounds=1)
    source, real = made.source, list_objects

    def listed_first(archive: Archive) -> list[ObjectInfo]:
        found = real(archive)
        with source.txn() as txn:
            txn.insert("new0", id=4711)
        source.cut()
        return found

    monkeypatch.setattr("pumphouse.archive.expire.list_objects", listed_first)
    report = run(source.archive)
    assert report.windows_gone
    require_restorable(fresh_from(source.archive), [fresh_from(source.archive).end()])


@pytest.mark.row("A5")
def test_a_head_from_before_the_range_is_a_slow_writers(archive: Archive, made: Aged) -> None:
    windows = archive.windows()
    end = archive.end()
    run(archive)
    for old in (Head.of(windows[0]), Head.of(archive.genesis())):
        archive.store.put(layout.HEAD, old.to_json())
        found = fresh(archive)
        assert found.end() == end
        assert found.windows()[-1].end == end
        assert verify(found, deep=False).problems == []
        run(fresh(archive))  # nothing else expires, and nothing stops it
    require_restorable(fresh(archive), kept_moments(fresh(archive), made))


@pytest.mark.row("A5")
def test_tables_of_a_night_that_each_dump_lacks_keep_no_dump_but_the_one_before(tmp_path: Path) -> None:
    source = DumpedSource(tmp_path)
    source.create_table("o", [column(1, "id", flag=3)])
    source.genesis()
    dumps = []
    for night in range(5):
        name = f"tmp_{night}"
        source.create_table(name, [column(1, "id", flag=3)])
        with source.txn() as txn:
            txn.insert(name, id=1)
        low = source.cut()
        dumps.append(source.publish(low, [source.read("o", low, low)], [DumpRule(table="*.tmp_*", why="scratch")]))
        source.drop_table(name)
        source.cut()
        source.cut()
    report = run(source.archive)
    assert report.restorable_from == dumps[-2]
    (held,) = report.held
    assert f"lacks d.tmp_4, to whose rows the one of {show(dumps[-2])} leads" in held


@pytest.mark.row("A5", "R2")
def test_a_view_that_an_expiry_crosses_knows_what_the_windows_that_went_lacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = DumpedSource(tmp_path)
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis()
    lost = Tso(source.tick())
    loss = Declaration(node_id="pump-0", incarnation="i", from_ts=Tso(lost - 5), to_ts=lost, reason="disk", who="ops")
    source.cut(declared=(loss,))
    fold_base(source.archive, LoadSettings(), source.settings, source.cut())
    for _ in range(3):
        source.cut()
    end = source.archive.end()
    before = plan_of(source.archive, end).losses.lines()
    assert len(before) == 1
    look = Archive.range
    began = look(source.archive).start
    gone = so_often(1, lambda: run(source.archive).windows_gone)

    def crossed(archive: Archive) -> Range:
        found = look(archive)
        gone()
        return found

    monkeypatch.setattr(Archive, "range", crossed)
    assert plan_of(source.archive, end).losses.lines() == before
    assert look(source.archive).start > began


@pytest.mark.row("A5")
def test_a_dump_whose_folder_cannot_be_read_is_not_taken_for_one_that_is_gone(
    made: Aged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One lack of descriptors in each listing of an expiry: what it deletes is what it would have deleted."""
    store, disk = FileStore(tmp_path), made.source.archive.store
    for each in disk.list(""):
        key = f"{made.source.cluster_id}/{each.key}"
        store.put(key, disk.get(each.key))
        os.utime(tmp_path / key, (0, 0))
    expected = run(made.in_memory()[1])
    newest = max(each.begun for each in Archive(store, made.source.cluster_id).every_base())
    scandir, left = os.scandir, [0]

    def broken(path: str) -> Any:
        if str(path).rstrip("/").endswith(f"/base/{newest:020d}"):
            left[0] -= 1
            if left[0] == 0:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", broken)
    ended = 0
    for number in range(1, 20):
        left[0] = number
        with suppress(StoreUnavailable):
            run(Archive(store, made.source.cluster_id))
        ended += left[0] <= 0
    assert ended > 3
    found = Archive(store, made.source.cluster_id)
    assert tuple(each.ts for each in found.every_base()) == expected.bases
    assert verify(found).problems == []
    require_restorable(found, [at for at, _ in made.moments if at >= made.dumps[-1]])
