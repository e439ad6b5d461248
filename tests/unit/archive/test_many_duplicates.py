"""Writers that give each transaction to several Pumps: a window has it once, and lists none of its copies."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from pumphouse.archive import commit, duplicates, layout
from pumphouse.archive.declare import accept
from pumphouse.archive.puller import LATE
from pumphouse.archive.verify import verify
from pumphouse.errors import ManifestConflict, WindowHeld
from pumphouse.model.tso import Tso

pytestmark = pytest.mark.row("A7", "Q5")


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch):
    monkeypatch.setattr(duplicates, "_LISTED", 5)


@pytest.fixture
def small_segments(monkeypatch):
    for name in ("ROW_GROUP_BYTES", "SEGMENT_BYTES"):
        monkeypatch.setattr(f"pumphouse.archive.segment.{name}", 2000)


def copied(pumps, rng, rows=1, size=16, commit=0):
    """One transaction on some of the Pumps."""
    one, *others = pumps
    commit_ts = one.transaction(rows=rows, size=size, commit=commit, fill=rng.randrange(250))
    (found,) = [each for each in one.binlogs if each[0] == commit_ts and not any(each in p.binlogs for p in others)][
        -1:
    ]
    for each in others:
        each.put(*found)
    return found


def payloads(world):
    """(commit ts, start ts) -> payload by part, of everything in the archive; each part is there once."""
    read = world.archive
    found = {}
    for manifest in read.windows():
        for segment in manifest.segments:
            for batch in read.segment_batches(manifest, segment):
                for row in batch.to_pylist():
                    parts = found.setdefault((row["commit_ts"], row["start_ts"]), {})
                    assert row["part"] not in parts
                    parts[row["part"]] = row["payload"]
    return found


def unnamed(world):
    """Segments that no window names."""
    named = {each.key for manifest in world.archive.windows() for each in manifest.segments}
    return [each.key for each in world.archive.store.list(layout.SEGMENTS) if each.key not in named]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("segments", ["one of a Pump", "many"])
def test_each_is_read_once_whatever_pumps_have_it(world, request, seed, segments):
    if segments == "many":
        request.getfixturevalue("small_segments")
    rng = random.Random(seed)
    pumps = [world.pump(f"pump-{number}") for number in range(1, 4)]
    world.init()
    written = {}
    for _ in range(60):
        some = rng.sample(pumps, rng.choice((1, 2, 2, 3)))
        large = rng.random() < 0.1
        commit_ts, start_ts, payload, *_ = copied(some, rng, rows=40 if large else 1, size=200 if large else 16)
        written[commit_ts, start_ts] = payload
        if rng.random() < 0.1:  # another one with its commit ts
            commit_ts, start_ts, payload, *_ = copied(some, rng, commit=commit_ts)
            written[commit_ts, start_ts] = payload
    (done,) = world.snapshot(part_bytes=2000)
    found = payloads(world)
    assert found.keys() == written.keys()
    for key, parts in found.items():
        assert len(parts) > 1 or parts[0] == written[key]
    assert any(len(parts) > 1 for parts in found.values())
    assert done.duplicates == 0
    assert verify(world.archive, deep=True).problems == []
    assert unnamed(world) == []


def test_a_pump_that_has_copies_alone_gives_a_window_nothing(world):
    one, two = world.pump("pump-1"), world.pump("pump-2")
    world.init()
    rng = random.Random(1)
    for _ in range(20):
        copied((one, two), rng)
    world.snapshot()
    assert {each.node_id for each in world.archive.last().segments} == {"pump-1"}
    assert len(payloads(world)) == 20
    two.transaction()
    world.snapshot()
    assert {each.node_id for each in world.archive.last().segments} == {"pump-2"}


def test_a_segment_is_fetched_once_and_written_again_only_where_some_of_it_is_left_out(
    world, monkeypatch, small_segments
):
    one, two = world.pump("pump-1"), world.pump("pump-2")
    world.init()
    rng = random.Random(1)
    written = [copied(some, rng, size=200) for some in [(one, two)] * 40 + [(one,), (two,)] * 30 + [(one, two)] * 40]
    plan = world.plan()
    reports = world.pull_all(plan)
    pulled = {each.key: each for report in reports for each in report.segments}
    fetched, put, get = [], [], world.store.get
    monkeypatch.setattr(world.store, "get", lambda key: (fetched.append(key), get(key))[1])
    monkeypatch.setattr(world.store, "before", lambda verb, key: put.append(key) if verb == "put" else None)
    world.commit(plan, reports)
    of_segments = [key.partition("/")[2] for key in fetched if "/segments/" in key]
    assert sorted(of_segments) == sorted(pulled)
    named = {each.key for each in world.archive.last().segments}
    mixed = [
        each
        for each in pulled.values()
        if each.node_id == "pump-2" and each.key not in named and each.max_commit_ts >= written[41][0]
        if each.min_commit_ts <= written[99][0]
    ]
    assert sum("/segments/" in key for key in put) == len(mixed) == 2
    assert len([each for each in pulled.values() if each.node_id == "pump-2" and each.key in named]) > 1
    assert {each.key for each in pulled.values() if each.node_id == "pump-1"} < named
    assert payloads(world).keys() == {each[:2] for each in written}
    assert unnamed(world) == []
    assert verify(world.archive, deep=True).problems == []


def test_killed_at_any_object_that_it_writes_or_deletes_its_retry_has_each_once(world, small_segments):
    pumps = [world.pump(f"pump-{number}") for number in range(1, 4)]
    world.init()
    rng, written, killed = random.Random(1), set(), set()
    for last in range(100):
        written |= {copied(rng.sample(pumps, 2), rng, size=200)[:2] for _ in range(30)}
        plan = world.plan()
        reports = world.pull_all(plan)
        left = [last]

        def before(verb, key, left=left):
            if not left[0]:
                killed.add((verb, key.split("/")[1]))
                raise KeyboardInterrupt
            left[0] -= 1

        world.store.before = before
        with suppress(KeyboardInterrupt):
            world.commit(plan, reports)
        world.store.before = lambda *_: None
        with suppress(ManifestConflict):  # it was published before
            world.commit(plan, reports)
        if left[0]:
            break
    assert {("put", "segments"), ("put_if_absent", "windows"), ("delete", "segments")} <= killed
    assert payloads(world).keys() == written
    assert verify(world.archive, deep=True).problems == []


def test_one_whose_commit_a_pump_wrote_itself_is_listed(world):
    one, two = world.pump("pump-1"), world.pump("pump-2")
    world.init()
    rng = random.Random(1)
    for number in range(20):
        commit_ts, start_ts, payload, *more = copied((one,), rng)
        two.put(commit_ts, start_ts, payload.replace(b"\x22\x01k", b"") if number == 7 else payload, *more)
    (done,) = world.snapshot()
    assert done.duplicates == 1
    assert len(payloads(world)) == 20
    assert verify(world.archive, deep=True).problems == []


def test_different_contents_among_many_hold_the_window_until_one_is_named(world):
    one, two = world.pump("pump-1"), world.pump("pump-2")
    world.init()
    rng = random.Random(1)
    for _ in range(20):
        copied((one, two), rng)
    commit_ts = one.transaction(fill=1)
    start_ts = one.binlogs[-1][1]
    two.transaction(start=start_ts, commit=commit_ts, fill=2)
    with pytest.raises(WindowHeld, match=f"pump-1 and pump-2.*archive accept NODE {start_ts} {commit_ts}"):
        world.snapshot()
    accept(world.archive, world.cluster, "pump-2", Tso(start_ts), commit_ts, "pump-1 was a test", who="ops")
    (done,) = world.snapshot()
    assert done.duplicates == 1
    assert (commit_ts, "pump-2") in world.commits()
    assert len(payloads(world)) == 21


@pytest.mark.parametrize("step", ["settle_pending", "find_duplicates", "_without", "ddl_binlogs", "write_jobs"])
def test_of_two_that_commit_a_window_the_later_one_is_told_so(world, monkeypatch, step):
    one, two = world.pump("pump-1"), world.pump("pump-2")
    world.init()
    rng = random.Random(1)
    for _ in range(20):
        copied((one, two), rng)
    found = copied((one, two), rng)
    two.binlogs = [each if each != found else (*each[:4], LATE) for each in two.binlogs]  # it came late there
    for pump, job in ((one, 7), (two, 8), (two, 9)):
        world.history.add(job, start_ts=1, finished_ts=int(pump.ddl(job)))
    plan = world.plan()
    reports = world.pull_all(plan)
    took, left = getattr(commit, step), [1]

    def overtaken(*given, **more):
        if left:
            left.pop()
            world.commit(plan, reports)
        return took(*given, **more)

    monkeypatch.setattr(commit, step, overtaken)
    with pytest.raises(ManifestConflict):
        world.commit(plan, reports)
    assert len(payloads(world)) == 24


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("gone", [False, True])
def test_one_that_came_late_to_a_pump_is_settled_for_good_though_another_has_it_too(world, monkeypatch, rows, gone):
    """Killed before the Pump was told, which has dropped it by the next window, perhaps."""
    one, two = world.pump("pump-1"), world.pump("pump-2")
    world.init()
    rng = random.Random(1)
    for _ in range(20):
        copied((one, two), rng)
    late = copied((one, two), rng, rows=rows, size=200)
    two.binlogs = [each if each != late else (*each[:4], LATE) for each in two.binlogs]
    two.pending[late[1], late[0]] = "late"
    monkeypatch.setattr(commit, "_tell", lambda *_: None)
    world.snapshot(part_bytes=2000)
    if gone:
        two.gc_point = world.archive.end()
    one.transaction()
    world.snapshot(part_bytes=2000)
    (settled,) = world.archive.last().accepted
    assert (settled.node_id, settled.commit_ts) == ("pump-2", late[0])
    assert len(payloads(world)) == 22
