import json

import pytest

from pumphouse.archive import consumer, segment
from pumphouse.archive.verify import verify
from pumphouse.errors import BadManifest, BadSegment, ConfigError, UnsafeStore
from pumphouse.model.node import NodeKind
from tests.support.documents import changed
from tests.unit.archive.test_genesis import Dump


@pytest.fixture
def full(world):
    """An archive with everything in it: dump, two Pumps, parts, duplicates, DDLs."""
    one, two = world.pump("pump-1"), world.pump("pump-2")
    world.history.add(1)
    world.init(dump=Dump(world, {"t": [[b"row"] * 5, [b"other"] * 5]}))
    for _ in range(3):
        for pump in (one, two):
            for _ in range(5):
                pump.transaction(rows=3)
        one.transaction(rows=50, size=100)
        two.put(*one.binlogs[-1])
        one.ddl(2)
        world.history.add(2)
        world.snapshot(part_bytes=1024)
    return world


def problems(world, **options):
    return [(each.key, each.what) for each in verify(world.archive, **options).problems]


def objects(world, part):
    return sorted(key for key in world.store.objects if part in key)


@pytest.mark.row("A4")
def test_a_sound_archive_is_sound_and_counted(full):
    seen = []
    report = verify(full.archive, tick=lambda *each: seen.append(each))
    assert report.problems == []
    assert (report.windows, report.sound, report.orphans) == (3, True, 0)
    assert report.start == full.archive.genesis().ts
    assert report.end == full.archive.end()
    assert report.changes == 10 + 3 * (2 * 5 * 3 + 2 * 50)
    assert len(seen) == report.objects
    assert json.loads(json.dumps(report.to_dict()))["sound"]
    assert verify(full.archive, deep=False).sound


@pytest.mark.row("A4")
def test_a_rule_that_deletes_objects_is_named_where_one_is_missing_and_before(full, capsys):
    full.store.rules = ("the lifecycle rule 'tidy' deletes objects after 30 days",)
    full.snapshot()
    assert "'tidy' deletes" in capsys.readouterr().out
    assert [each for each in problems(full) if "'tidy' deletes" in each[1]] == problems(full) != []
    manifest = full.archive.windows()[0]
    full.archive.store.delete(manifest.segments[0].key)
    with pytest.raises(BadSegment, match="is not there; the lifecycle rule 'tidy' deletes objects after 30 days"):
        list(full.archive.segment_batches(manifest, manifest.segments[0]))
    full.archive.store.delete("genesis.json")
    with pytest.raises(ConfigError, match=r"there is no archive of cluster.*'tidy' deletes"):
        full.archive.genesis()
    full.cluster.update_node(NodeKind.DRAINER, "pumphouse-main", lambda _: None)
    with pytest.raises(UnsafeStore, match="'tidy' deletes"):
        full.init()


@pytest.mark.row("A4")
def test_every_flipped_byte_of_any_object_is_found(full):
    keys = list(full.store.objects)
    assert len(keys) > 12
    for key in keys:
        good = full.store.objects[key]
        for at in (0, len(good) // 2, len(good) - 1):
            full.store.objects[key] = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
            assert problems(full), (key, at)
        full.store.objects[key] = good
    assert problems(full) == []


@pytest.mark.row("A4")
def test_every_missing_object_is_found_and_named(full):
    for key in list(full.store.objects):
        good = full.store.objects.pop(key)
        found = problems(full)
        assert found, key
        full.store.objects[key] = good


@pytest.mark.row("A4")
def test_two_swapped_segments_are_found(full):
    first, second = objects(full, "/segments/")[:2]
    store = full.store.objects
    store[first], store[second] = store[second], store[first]
    named = {key for key, _ in problems(full)}
    assert {first.partition("/")[2], second.partition("/")[2]} <= named


def rewrite(world, key, change):
    """Change the newest manifest as a liar would: whole JSON, right digest of its own."""
    world.store.objects[key] = changed(world.store.objects[key], change)


@pytest.mark.row("A4", "A2")
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m["pumps"].pop(0), "is missing, the one before names it"),
        (lambda m: m["pumps"][0].update(incarnation="other"), "became another incarnation"),
        (
            lambda m: m["pumps"][0].update(replaced=[{"incarnation": "other", "startCount": 3, "updateTS": 5}]),
            "replaced incarnation other, start 3, without a declaration",
        ),
        (lambda m: m["pumps"][0].update(state="offline"), "was not drained"),
        (lambda m: m["pumps"][0].update(lost=True), "given up without a declaration"),
        (lambda m: m["pumps"][0].update(reached=5), "reached"),
        (lambda m: m["segments"][0].update(rows=999), "the manifest says 999"),
        (lambda m: m["segments"][0].update(changes=999), "the manifest says"),
        (lambda m: m["segments"][0]["tables"].update({"5": {"rows": 1, "bytes": 1}}), "the manifest says"),
        (lambda m: m["duplicates"].append(dict(m["duplicates"][0], start_ts=9)), "duplicate"),
        (lambda m: m.update(duplicates=[]), "DDL"),
        (lambda m: m.update(ddl=None), "DDL"),
    ],
)
def test_a_manifest_that_lies_is_found(full, change, says):
    # A second copy of the DDL makes the duplicates count for the jobs too.
    pump = full.pumps[0]
    pump.ddl(3)
    full.pumps[1].put(*pump.binlogs[-1])
    full.history.add(3)
    full.snapshot()
    rewrite(full, objects(full, "/windows/")[-1], change)
    assert any(says in what for _, what in problems(full)), problems(full)


@pytest.mark.row("A4")
def test_a_segment_that_reaches_outside_of_its_window_is_found(full):
    key = objects(full, "/windows/")[-1]
    rewrite(full, key, lambda m: m.update(end=m["segments"][0]["max_commit_ts"] - 1))
    assert any("reaches outside" in what for _, what in problems(full))


def test_objects_of_killed_tasks_are_counted_and_are_no_problem(full):
    full.store.put(f"{full.cluster.cluster_id()}/segments/1-2/pump-1/dead-0.parquet", b"half")
    report = verify(full.archive)
    assert report.sound
    assert report.orphans == 1


def test_an_archive_that_was_not_begun_is_a_problem_and_no_crash(world):
    assert "archive init" in verify(world.archive).problems[0].what


@pytest.mark.row("A4", "P11")
def test_a_lost_newest_window_is_found_by_head_and_checkpoint_and_not_written_again(full):
    checkpoint = consumer.checkpoint(full.cluster, "main")
    del full.store.objects[objects(full, "/windows/")[-1]]
    found = [each.what for each in verify(full.archive, checkpoint=checkpoint).problems]
    assert any("named by HEAD" in what for what in found)
    assert any("checkpoint on the Pumps" in what for what in found)
    with pytest.raises(BadManifest, match="the archive's end was cut off"):
        full.snapshot()
    full.store.delete(objects(full, "/HEAD")[0])
    with pytest.raises(BadManifest, match="newest windows are missing"):
        full.snapshot()


@pytest.mark.row("A4")
@pytest.mark.parametrize("lost", [None, 0, 1, 2, "last"])
def test_parts_of_a_transaction_lie_in_several_segments_and_none_is_missing(world, monkeypatch, lost):
    """``lost``: a part that a writer with a bug leaves out; the manifest is as that writer says."""
    for name in ("ROW_GROUP_BYTES", "SEGMENT_BYTES"):
        monkeypatch.setattr(segment, name, 2000)
    cut = segment._parts_of

    def parts(row, part_bytes):
        found = [*cut(row, part_bytes)]
        assert len(found) > 3
        gone = len(found) - 1 if lost == "last" else lost
        return (each for number, each in enumerate(found) if number != gone)

    monkeypatch.setattr(segment, "_parts_of", parts)
    pump = world.pump("pump-1")
    world.init()
    pump.transaction()
    pump.transaction(rows=250, size=200)
    if lost != "last":
        pump.transaction()
    world.snapshot(part_bytes=2000)
    (window,) = world.archive.windows()
    assert len(window.segments) > 10
    batches = [each for one in window.segments for each in world.archive.segment_batches(window, one)]
    read = [(row["commit_ts"], row["part"]) for batch in batches for row in batch.to_pylist()]
    assert read == sorted(read), "as they were written"
    found = [what for _, what in problems(world)]
    assert (found == []) is (lost is None)
    assert all("parts" in what for what in found), found
