"""An archive with an index reads as one without it: whatever happens to the index costs time, and never a window."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from pumphouse.archive import commit, indexing, layout, settle
from pumphouse.archive.archive import Archive
from pumphouse.archive.document import sha256
from pumphouse.archive.expire import Ages, delete_orphans, expire
from pumphouse.archive.head import Head
from pumphouse.archive.index import Run, decode, encode, runs_in
from pumphouse.archive.indexing import NEWEST, RUN, extend_index
from pumphouse.archive.manifest import AcceptedCommit, Duplicate, Manifest, TableStat
from pumphouse.archive.retention import Policy
from pumphouse.archive.verify import verify
from pumphouse.archive.view import read_view
from pumphouse.archive.window import PendingCommit
from pumphouse.archive.windows import SCHEMA, Windows
from pumphouse.errors import BadManifest, ObjectNotFound, StoreUnavailable
from pumphouse.loader.work import pieces_of
from pumphouse.model.tso import Tso
from tests.support.agedarchive import Aged, plan_of, require_restorable
from tests.support.madearchive import MadeSource, column
from tests.support.manywindows import add_windows

pytestmark = pytest.mark.row("A6")


class Indexed:
    """A copy of an aged archive, its windows in runs of two; and what it says without them."""

    def __init__(self, made: Aged) -> None:
        self.store, archive = made.in_memory()
        self.moments = [at for at, _ in made.moments]
        self.id = archive.cluster_id
        self.windows = [*archive.windows()]
        self.plans = self.digests()
        while extend_index(self.archive, size=2, newest=1):
            pass
        self.runs = runs_in(self.archive.store)

    @property
    def archive(self) -> Archive:
        """As another process sees it."""
        return Archive(self.store, self.id)

    def digests(self) -> list[str]:
        return [plan_of(self.archive, at).digest() for at in self.moments]

    def require_same(self) -> None:
        assert [*self.archive.windows()] == self.windows
        assert self.digests() == self.plans

    def wrong(self) -> list[str]:
        return [each.key for each in verify(self.archive, deep=False).problems]

    def remove(self, *keys: str) -> None:
        for key in keys:
            del self.store.objects[f"{self.id}/{key}"]

    def lie(self, change: Callable[[Manifest], Manifest], size: int = 2) -> None:
        """Each run says of its windows what this makes of them, under their digests: as a faulty writer does."""
        self.remove(*(run.key for run in runs_in(self.archive.store)))
        every = [*self.archive.windows()][:-1]
        for at in range(0, len(every) - size + 1, size):
            self.replace(*encode(Windows.of(map(change, every[at : at + size])), self.archive.genesis()))

    def rewind(self, number: int) -> list[Manifest]:
        """The archive is put back to before a window of that number; another one takes its place, and so the rest."""
        fresh: list[Manifest] = []
        for window in self.windows[number:]:
            new = dataclasses.replace(window, previous=fresh[-1].sha256 if fresh else window.previous)
            if not fresh:
                new = dataclasses.replace(new, attempt="0" * len(window.attempt), segments=(), ddl=None)
            self.archive.store.put(new.key, new.to_json())
            fresh.append(Manifest.from_json(new.key, new.to_json()))
        self.archive.store.put(layout.HEAD, Head.of(fresh[-1]).to_json())
        return fresh

    def replace(self, run: Run, data: bytes) -> None:
        self.store.objects[f"{self.id}/{run.key}"] = data

    @contextmanager
    def instead(self, run: Run, windows: list[Manifest]) -> Iterator[Run]:
        """A run that says what these windows say, in the place of another."""
        other, data = encode(Windows.of(windows), self.archive.genesis())
        good = self.store.objects.pop(f"{self.id}/{run.key}")
        self.replace(other, data)
        yield other
        del self.store.objects[f"{self.id}/{other.key}"]
        self.replace(run, good)


def expiry(indexed: Indexed) -> None:
    archive = indexed.archive
    expire(archive, Ages(), Policy(bases=1), (), now=archive.end(), who="me@here")


def orphans(indexed: Indexed) -> None:
    delete_orphans(indexed.archive, Ages(grace_s=-1.0))


@pytest.fixture
def indexed(made: Aged) -> Indexed:
    return Indexed(made)


def test_windows_and_plans_are_those_of_the_manifests_which_are_not_read(indexed: Indexed) -> None:
    assert len(indexed.runs) == (len(indexed.windows) - 1) // 2 > 2
    assert all(one.end == two.start for one, two in pairwise(indexed.runs))
    indexed.require_same()
    assert indexed.wrong() == []
    read: list[str] = []
    archive, get = indexed.archive, indexed.store.get
    indexed.store.get = lambda key: read.append(key) or get(key)  # type: ignore[func-returns-value,method-assign]
    found = archive.windows()
    assert len(found) == len(indexed.windows)
    manifests = [key for key in read if "/windows/" in key]
    behind = len(found) - 2 * len(indexed.runs)
    # Those that no run has, those that hang on the runs, and the one that HEAD names.
    assert len(manifests) <= behind + len(indexed.runs) + 1


def test_the_chain_since_any_moment_is_the_same(indexed: Indexed) -> None:
    every = indexed.windows
    for number, window in enumerate(every):
        for since in (window.start, Tso(window.start + 1), Tso(window.end - 1)):
            assert [*indexed.archive.windows(since)] == every[number:]
            assert indexed.archive.windows(since).previous == window.previous
        for later in every[number:]:
            between = indexed.archive.windows_between(window.start, later.end)
            assert [*between] == every[number : every.index(later) + 1]


def test_columns_say_what_manifests_say(made: Aged) -> None:
    manifests = [*made.in_memory()[1].windows()]
    twice = Duplicate(start_ts=Tso(1), commit_ts=Tso(2), keep="a", drop=(manifests[2].segments[0].node_id,))
    manifests[2] = dataclasses.replace(manifests[2], duplicates=(twice,), binlog_skipped=True)
    ids = {201, 203}
    for first, last in ((0, len(manifests)), (1, 4), (2, 3), (3, 3)):
        some = manifests[first:last]
        for windows in (Windows.of(manifests)[first:last], Windows.of(manifests).packed()[first:last]):
            segments = [(window, each) for window in some for each in window.segments]
            assert [*windows] == some
            assert [*windows.digests()] == [each.sha256 for each in some]
            assert [*windows.ddls()] == [each.ddl for each in some if each.ddl is not None]
            assert [*windows.names()] == [(each.key, each.bytes) for _, each in segments]
            assert [each.segment for each in windows.placed()] == [
                dataclasses.replace(each, tables={}) for _, each in segments
            ]
            mine = [(window, each) for window, each in segments if ids & each.tables.keys()]
            assert [(each.start, each.segment.key) for each in windows.placed(ids)] == [
                (window.start, each.key) for window, each in mine
            ]
            assert windows.table_ids() == {id_ for _, each in segments for id_ in each.tables}
            assert windows.table_ids(ids) == {id_ for _, each in mine for id_ in each.tables}
            rows, size = Counter[int](), Counter[int]()
            newest: dict[int, int] = {}
            for _, each in segments:
                for id_, stat in each.tables.items():
                    rows[id_] += stat.rows
                    size[id_] += stat.bytes
                    newest[id_] = max(newest.get(id_, 0), each.max_commit_ts)
            assert windows.stats() == {id_: TableStat(rows=rows[id_], bytes=size[id_]) for id_ in rows}
            assert windows.newest() == newest
            assert windows.payload_sizes(ids).tolist() == [
                sum(each.payload_bytes for of, each in mine if of is window) for window in some
            ]
            assert [*windows.skipped()] == [(each.start, each.end) for each in some if each.binlog_skipped]
            totals = windows.totals()
            assert (totals.segments, totals.bytes) == (len(segments), sum(each.bytes for _, each in segments))
            assert totals.duplicates == sum(len(each.duplicates) for each in some)
            if some:
                after, upto = Tso(some[0].start + 5), Tso(some[-1].end - 5)
                pieces = [*pieces_of(windows, after, upto, ids)]
                assert [piece.drop for piece in pieces] == [
                    window.dropped(piece.segment.node_id)
                    for piece in pieces
                    for window in some
                    if window.start == piece.window
                ]
                read = windows.read_of(after, upto, ids)
                assert int(read.segments.sum()) == len(pieces)
                assert int(read.payload_bytes.sum()) == sum(piece.bytes for piece in pieces)


@pytest.mark.row("A4")
def test_a_run_that_is_missing_damaged_or_another_ones_costs_no_window(indexed: Indexed) -> None:
    for run, other in pairwise(indexed.runs):
        good, key = indexed.archive.store.get(run.key), f"{indexed.id}/{run.key}"
        del indexed.store.objects[key]
        indexed.require_same()
        assert indexed.wrong() == []
        assert extend_index(indexed.archive, size=2, newest=1) == run  # and no other
        assert indexed.archive.store.get(run.key) == good
        for bad in (good[:-1], b"", indexed.archive.store.get(other.key)):
            indexed.replace(run, bad)
            indexed.require_same()
            assert indexed.wrong() == [run.key]
        for at in (*range(0, len(good), 1_997), good.index(b"parquet-cpp")):  # also one that no reader reads
            indexed.replace(run, good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
            assert [*indexed.archive.windows()] == indexed.windows
            assert indexed.wrong() == [run.key]
        indexed.replace(run, good)
    for run in indexed.runs:
        del indexed.store.objects[f"{indexed.id}/{run.key}"]
    indexed.require_same()


@pytest.mark.row("A4")
def test_a_run_of_another_chain_is_left_out(indexed: Indexed) -> None:
    """What lies behind it does not hang on it, or it not on what lies before it."""
    for run in indexed.runs:
        one, two = decode(
            run, indexed.archive.store.get(run.key), indexed.archive.genesis(), indexed.archive.read_named
        )
        no = "0" * 64
        for other in ([one, dataclasses.replace(two, sha256=no)], [dataclasses.replace(one, previous=no), two]):
            with indexed.instead(run, other) as lying:
                with capture_logs() as said:
                    indexed.archive.windows()
                assert [each["event"] for each in said] == ["index_run_left_out"]
                indexed.require_same()
                assert indexed.wrong() == [lying.key]


@pytest.mark.row("A4")
def test_a_run_that_says_otherwise_than_its_manifests_is_named(indexed: Indexed) -> None:
    run = indexed.runs[0]
    one, two = decode(run, indexed.archive.store.get(run.key), indexed.archive.genesis(), indexed.archive.read_named)
    first, *rest = one.segments
    for lie in (
        dataclasses.replace(one, segments=tuple(rest)),
        dataclasses.replace(one, segments=(dataclasses.replace(first, changes=first.changes + 1), *rest)),
        dataclasses.replace(one, segments=(dataclasses.replace(first, tables={}), *rest)),
        dataclasses.replace(one, ddl=None),
        dataclasses.replace(one, binlog_skipped=True),
    ):
        with indexed.instead(run, [lie, two]) as lying:
            assert indexed.wrong() == [lying.key]
    indexed.archive.store.put("index/x", b"")
    assert indexed.wrong() == ["index/x"]


def test_an_index_of_an_archive_that_expires_goes_with_its_windows(indexed: Indexed) -> None:
    archive = indexed.archive
    expire(archive, Ages(), Policy(bases=1), (), now=archive.end(), who="me@here")
    start = archive.range().start
    assert 0 < len(runs_in(archive.store)) < len(indexed.runs)
    assert all(run.end > start for run in runs_in(archive.store))
    assert [*indexed.archive.windows()] == [each for each in indexed.windows if each.start >= start]
    kept = archive.range().base
    assert kept is not None
    require_restorable(indexed.archive, [at for at in indexed.moments if at >= kept.ts])
    # What is written then begins where the range does.
    for run in runs_in(archive.store):
        archive.store.delete(run.key)
    first = extend_index(indexed.archive, size=2, newest=1)
    assert first is not None
    assert first.start == start


def test_a_manifest_that_is_gone_is_named_and_what_needs_it_is_refused(indexed: Indexed) -> None:
    window = indexed.windows[1]
    del indexed.store.objects[f"{indexed.id}/{window.key}"]
    assert window.key in " ".join(each.what for each in verify(indexed.archive, deep=False).problems)
    indexed.store.rules = ("rule 'old' deletes objects after 30 days",)
    for _ in range(2):  # with the index and without
        for look in (indexed.archive.windows, indexed.digests, lambda: expiry(indexed), lambda: orphans(indexed)):
            with pytest.raises(BadManifest, match=r"a gap.*rule 'old' deletes objects"):
                look()
        for run in indexed.runs:
            indexed.store.objects.pop(f"{indexed.id}/{run.key}", None)


def test_another_manifest_under_the_name_is_refused_when_it_is_read(indexed: Indexed) -> None:
    window = indexed.windows[1]
    key = f"{indexed.id}/{window.key}"
    other = dataclasses.replace(window, fence=Tso(window.fence + 1))
    indexed.store.objects[key] = other.to_json()
    with pytest.raises(BadManifest, match="what follows it names"):
        list(indexed.archive.windows())
    assert window.key in indexed.wrong() + [each.key for each in indexed.windows]


def test_a_snapshot_writes_a_run_when_there_are_enough_windows(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=1)
    source.cut(pumps=1)
    add_windows(source, RUN + NEWEST - 2)
    archive = source.archive
    assert extend_index(archive) is None
    source.cut(pumps=1)
    run = extend_index(archive)
    assert run is not None
    assert extend_index(archive) is None
    assert (run.start, len(archive.windows())) == (archive.genesis().ts, RUN + NEWEST)
    view = read_view(Archive.open(source.settings, source.cluster_id))
    assert len(view.windows) == RUN + NEWEST
    keys = [each.key for each in archive.store.list(layout.WINDOWS, after=layout.before_window(run.end))]
    assert len(keys) == NEWEST
    assert json.loads(archive.store.get(keys[0]))["start"] == run.end
    assert Manifest.from_json(keys[0], archive.store.get(keys[0])).previous == archive.windows()[RUN - 1].sha256


@pytest.mark.row("A4")
def test_an_archive_that_was_put_back_is_read_by_what_is_there(indexed: Indexed) -> None:
    """Manifests and HEAD went back, and the index did not: with nothing behind it, and when the chain has gone on."""
    indexed.remove(*(each.key for each in indexed.archive.store.list(layout.SCHEMA)))  # of windows that go
    for number in range(1, len(indexed.windows)):
        held = dict(indexed.store.objects)
        fresh = indexed.rewind(number)
        for _ in range(2):
            archive = indexed.archive
            found, head = archive.windows(), archive.head()
            assert head is not None
            assert (found.end, found.digest) == (archive.end(), head.manifest_sha256)
            assert read_view(archive).end == archive.end()
            assert [*found] == [*indexed.windows[:number], *fresh]
            assert [*archive.windows_between(fresh[0].start, fresh[0].end)] == fresh[:1]
            assert [*archive.windows(fresh[0].start).placed()] == [*Windows.of(fresh).placed()]
            indexed.remove(*(each.key for each in fresh[1:]))
            indexed.archive.store.put(layout.HEAD, Head.of(fresh[0]).to_json())
            fresh = fresh[:1]
        orphans(indexed)
        indexed.store.objects = held


@pytest.mark.row("A4")
def test_a_window_of_head_that_a_run_says_otherwise_of_is_read_from_its_manifest(indexed: Indexed) -> None:
    """HEAD may lag behind."""
    one = indexed.windows[2]
    indexed.lie(lambda window: dataclasses.replace(window, sha256="0" * 64) if window == one else window)
    assert [*indexed.archive.windows().digests()][2] != one.sha256
    indexed.archive.store.put(layout.HEAD, Head.of(one).to_json())
    assert [*indexed.archive.windows().digests()][2] == one.sha256


@pytest.mark.row("A5")
def test_what_is_deleted_is_not_chosen_by_the_index(indexed: Indexed) -> None:
    every = indexed.windows
    named = {each.key for window in every for each in window.segments} | {each.ddl.key for each in every if each.ddl}
    indexed.lie(lambda window: dataclasses.replace(window, ddl=None, segments=window.segments[1:]))
    assert indexed.archive.windows().totals().segments < sum(len(each.segments) for each in every)
    orphans(indexed)
    assert all(f"{indexed.id}/{key}" in indexed.store.objects for key in named)
    expiry(indexed)
    kept = indexed.archive.range()
    jobs = [each.ddl.jobs for each in every if each.ddl and each.end <= kept.start]
    assert sum(each.jobs for each in kept.ddl) == sum(jobs) > 0


@pytest.mark.row("A1")
def test_a_commit_is_not_settled_by_the_index(indexed: Indexed) -> None:
    """The window lacks it, and a run says that an object there has it."""
    number, lost = next(
        (n, each) for n, each in enumerate(indexed.windows) if n > 2 and any(s.rows for s in each.segments)
    )
    segment = next(each for each in lost.segments if each.rows)
    rows = next(iter(indexed.archive.segment_batches(lost, segment, columns=("start_ts", "commit_ts"))))
    start_ts, commit_ts = (Tso(rows.column(name)[0].as_py()) for name in ("start_ts", "commit_ts"))
    pending = PendingCommit(start_ts=start_ts, commit_ts=commit_ts, kind=AcceptedCommit.LATE, digest="")
    assert settle._elsewhere(indexed.archive, segment.node_id, pending, None) == segment.node_id
    indexed.windows = [*indexed.windows[:number], *indexed.rewind(number)]
    indexed.lie(lambda at: dataclasses.replace(at, segments=lost.segments) if at.start == lost.start else at)
    assert [each.segment.key for each in indexed.archive.windows_between(lost.start, lost.end).placed()]
    assert settle._elsewhere(indexed.archive, segment.node_id, pending, None) is None


@pytest.mark.row("A4")
def test_the_end_is_not_proved_by_the_index(indexed: Indexed) -> None:
    indexed.remove(layout.HEAD, indexed.windows[2].key)
    with pytest.raises(BadManifest, match="a gap"):
        indexed.archive.listed()
    indexed.archive.store.put(indexed.windows[2].key, b"damaged")
    with pytest.raises(BadManifest, match=indexed.windows[2].key):
        indexed.archive.listed()


@pytest.mark.row("A4")
def test_a_run_of_another_archive_of_the_cluster_is_left_out(indexed: Indexed) -> None:
    good = indexed.archive
    other = dataclasses.replace(good.genesis(), sha256="1" * 64)
    run = indexed.runs[1]
    windows = decode(run, good.store.get(run.key), good.genesis(), good.read_named)
    theirs, data = encode(windows, other)
    with pytest.raises(BadManifest, match="of another archive"):
        decode(theirs, data, good.genesis(), good.read_named)
    last = indexed.windows[-1]
    for start, end in ((last.start, last.end + 100), (last.start + 1, last.end + 100), (last.end + 10, last.end + 100)):
        far = dataclasses.replace(last, start=Tso(start), end=Tso(end), planned_end=Tso(end), previous="1" * 64)
        for genesis in (other, good.genesis()):
            beyond, data = encode(Windows.of([far]), genesis)
            indexed.replace(beyond, data)
            for since in (None, last.start, Tso(last.start + 5), Tso(last.end + 20)):
                assert indexed.archive.windows(since).digest == last.sha256
            indexed.remove(beyond.key)


def test_names_that_no_window_bears_out_do_not_stop_the_index(indexed: Indexed) -> None:
    last = indexed.runs[-1]
    indexed.remove(last.key)
    indexed.archive.store.put(layout.index_key(Tso(0), Tso((1 << 63) - 1), "0" * 64), b"")
    indexed.archive.store.put(layout.index_key(last.start, Tso(last.end + 1), "0" * 64), b"")
    indexed.archive.store.put("index/x", b"")
    assert extend_index(indexed.archive, size=2, newest=1) == last
    indexed.require_same()


def test_a_store_that_does_not_answer_is_no_damaged_index(indexed: Indexed) -> None:
    get = indexed.store.get

    def refuse(key: str) -> bytes:
        if "/index/" in key:
            raise StoreUnavailable("503 slow down", key=key)
        return get(key)

    indexed.store.get = refuse  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        indexed.archive.windows()


def test_a_run_with_nulls_is_refused(indexed: Indexed) -> None:
    archive, run = indexed.archive, indexed.runs[0]
    table = decode(run, archive.store.get(run.key), archive.genesis(), archive.read_named).table()
    facts = pq.read_schema(pa.BufferReader(archive.store.get(run.key))).metadata
    for name in ("segments", "declared", "accepted", "sha256"):
        at = SCHEMA.get_field_index(name)
        field = SCHEMA.field(name).with_nullable(True)
        bad = table.set_column(at, field, pa.nulls(len(table), field.type)).replace_schema_metadata(facts)
        sink = pa.BufferOutputStream()
        pq.write_table(bad, sink)
        data = sink.getvalue().to_pybytes()
        lying = Run(run.start, run.end, sha256(data))
        with pytest.raises(BadManifest, match="other columns"):
            decode(lying, data, archive.genesis(), archive.read_named)


def test_a_run_ends_where_wide_windows_have_filled_it(indexed: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    def figures(windows: list[Manifest]) -> int:
        return sum(1 + len(each.tables) for window in windows for each in window.segments)

    indexed.remove(*(run.key for run in indexed.runs))
    most = max(figures([window]) for window in indexed.windows[2:])
    monkeypatch.setattr(indexing, "FIGURES", most)
    while extend_index(indexed.archive, size=4, newest=1):
        pass
    for run in runs_in(indexed.archive.store):
        held = [each for each in indexed.windows if run.start <= each.start < run.end]
        assert figures(held) <= most or len(held) == 1
    assert len(runs_in(indexed.archive.store)) > len(indexed.windows) // 4
    indexed.require_same()


@pytest.mark.row("A1")
@pytest.mark.parametrize("error", [pa.ArrowException("x"), OverflowError("x"), OSError("x"), MemoryError()])
def test_a_snapshot_succeeds_whatever_happens_to_the_index(
    world: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(_archive: Archive) -> None:
        raise error

    monkeypatch.setattr(commit, "extend_index", fail)
    pump = world.pump("pump-1")
    world.init()
    pump.transaction(rows=1)
    (done,) = world.snapshot()
    assert world.archive.end() == done.end


def test_a_manifest_that_expired_since_it_was_planned_says_so(indexed: Indexed) -> None:
    found = indexed.archive.windows()
    expiry(indexed)
    with pytest.raises(ObjectNotFound, match=r"it expired meanwhile.*run again"):
        found[0]
