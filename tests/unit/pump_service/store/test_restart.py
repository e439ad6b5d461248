"""Restarts: the index is lost, behind, foreign or ahead; identities; the lock (rows P1, P2, P5)."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import plyvel
import pytest

from pump_service.store import damage, frame, identity
from pump_service.store.index import Index, IndexFailed
from pump_service.store.opening import Opening
from pump_service.store.store import Elsewhere, Item, Store
from pumphouse.errors import BadRecord, ConfigError, CorruptionError, PositionCollected
from pumphouse.model.node import PumpExtra
from pumphouse.model.position import Pointer
from tests.support.storekit import (
    commit,
    fake,
    find,
    in_index,
    index_meets,
    open_store,
    positions,
    prewrite,
    pull_all,
    rollback,
    settings,
    so_often,
    store_all,
    stream,
    until,
    value_files,
    value_log,
    write,
)

SMALL = {"value_log_file_bytes": 4096}


def fill(store: Store, first: int = 100, count: int = 30) -> None:
    for start in range(first, first + 10 * count, 10):
        store_all(store, prewrite(start, b"v" * 300), commit(start, start + 5))


@pytest.mark.row("P5", "P2")
@pytest.mark.parametrize("how", ["lost", "corrupt", "older", "foreign"])
def test_the_index_is_rebuilt_from_the_value_log(how: str, tmp_path: Path) -> None:
    data, kv, old = tmp_path / "data", tmp_path / "data" / "kv", tmp_path / "old"
    store = open_store(data, **SMALL)
    fill(store)
    store.close()
    shutil.copytree(kv, old)
    store = open_store(data, **SMALL)
    fill(store, first=1000)
    store_all(store, prewrite(5000), commit(7, 6000), rollback(5001))
    expected, watermark = pull_all(store), store.watermark
    store.close()
    shutil.rmtree(kv)
    if how == "corrupt":
        shutil.copytree(old, kv)
        for manifest in kv.glob("MANIFEST*"):
            manifest.write_bytes(b"not a manifest")
    elif how == "older":
        shutil.copytree(old, kv)
    elif how == "foreign":
        other = open_store(tmp_path / "other", **SMALL)
        store_all(other, prewrite(100, b"another value"), commit(100, 101))
        other.close()
        shutil.copytree(tmp_path / "other" / "kv", kv)
    store = open_store(data, **SMALL)
    assert pull_all(store) == expected
    assert store.watermark == watermark
    assert [each.start_ts for each in store.prewrites.oldest()] == [5000]
    assert [each.commit_ts for each in store.orphans()] == [6000]


@pytest.mark.row("P1", "P5")
def test_an_index_that_points_behind_the_log_is_thrown_away_with_a_new_incarnation(tmp_path: Path) -> None:
    store = open_store(tmp_path, **SMALL)
    fill(store)
    before = store.incarnation
    store.close()
    value_files(tmp_path)[-1].unlink()
    store = open_store(tmp_path, **SMALL)
    assert store.incarnation != before
    assert store.start_count == 2
    store_all(store, *[rollback(each.start_ts) for each in store.prewrites.oldest()], fake(900))
    found = stream(store)
    assert 0 < len(found) < 30
    fill(store, first=1000, count=3)
    assert stream(store) == [*found, (1000, 1005), (1010, 1015), (1020, 1025)]


@pytest.mark.row("P1")
def test_identity_lives_with_the_directory_and_counts_starts(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first = store.incarnation
    assert store.start_count == 1
    store.close()
    store = open_store(tmp_path)
    assert (store.incarnation, store.start_count) == (first, 2)
    store.close()
    shutil.rmtree(tmp_path)
    store = open_store(tmp_path)
    assert store.incarnation != first, "an emptied data directory is another life"
    assert store.start_count == 1


@pytest.mark.row("P5")
def test_a_log_that_ends_before_what_the_registry_knows_is_another_incarnation(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, count=3)
    incarnation, end = store.incarnation, store.synced_end
    store.close()

    def reopen(registered: PumpExtra) -> str:
        store = Store.open(settings(tmp_path), registered=registered)
        found = store.incarnation
        store.close()
        return found

    known = PumpExtra(incarnation=incarnation, start_count=1, synced_fid=end.fid, synced_offset=end.offset)
    assert reopen(known) == incarnation
    stranger = PumpExtra(incarnation="another", start_count=1, synced_fid=99)
    assert reopen(stranger) == incarnation
    ahead = PumpExtra(incarnation=incarnation, start_count=1, synced_fid=end.fid, synced_offset=end.offset + 1)
    assert reopen(ahead) != incarnation


@pytest.mark.row("W3", "A2")
@pytest.mark.parametrize("answers", [True, False])
def test_a_directory_as_new_as_the_registry_is_a_copy_only_where_the_registered_pump_answers(
    answers: bool, tmp_path: Path
) -> None:
    store = open_store(tmp_path)
    fill(store, count=3)
    incarnation, end = store.incarnation, store.synced_end
    store.close()
    known = PumpExtra(incarnation=incarnation, start_count=1, synced_fid=end.fid, synced_offset=end.offset)
    elsewhere = Elsewhere(addr="other:8250", answers=answers)
    if answers:
        with pytest.raises(ConfigError, match="is a copy of the data directory of the Pump that runs at other:8250"):
            Store.open(settings(tmp_path), registered=known, elsewhere=elsewhere)
        elsewhere = None
    store = Store.open(settings(tmp_path), registered=known, elsewhere=elsewhere)
    assert (store.incarnation, store.start_count) == (incarnation, 2)


@pytest.mark.row("W3", "A2")
@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("theirs", ["another", None])
def test_a_directory_that_is_not_that_of_the_pump_that_runs_is_refused(
    used: bool, theirs: str | None, tmp_path: Path
) -> None:
    incarnation = ""
    if used:
        store = open_store(tmp_path)
        incarnation = store.incarnation
        store.close()
    registered = None if theirs is None else PumpExtra(incarnation=theirs, start_count=1)
    runs = Elsewhere(addr="other:8250", answers=True)
    with pytest.raises(ConfigError, match=r"a Pump runs at other:8250 .* is not its data directory") as error:
        Store.open(settings(tmp_path), registered=registered, elsewhere=runs)
    assert "stop that one, keep its directory" in (error.value.hint or "")
    store = Store.open(settings(tmp_path), registered=registered, elsewhere=replace(runs, answers=False))
    assert not used or store.incarnation == incarnation
    store.close()


@pytest.mark.row("P3")
@pytest.mark.parametrize(
    ("sync", "clean", "same_boot", "keeps"),
    [
        (True, False, False, True),
        (False, True, False, True),
        (False, False, True, True),
        (False, False, False, False),
    ],
)
def test_an_unclean_stop_without_fsync_and_a_reboot_make_a_new_incarnation(
    sync: bool, clean: bool, same_boot: bool, keeps: bool, tmp_path: Path
) -> None:
    store = open_store(tmp_path, sync_log=sync)
    fill(store, count=2)
    before = store.incarnation
    store.close()
    path = tmp_path / "pumphouse" / identity.FILE_NAME
    data = json.loads(path.read_bytes())
    data |= {"clean": clean} | ({} if clean else {"end_fid": 0, "end_offset": 0})
    data |= {} if same_boot else {"boot_id": "the boot before"}
    path.write_text(json.dumps(data))
    store = open_store(tmp_path, sync_log=sync)
    assert (store.incarnation == before) is keeps


def test_an_identity_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    (tmp_path / "pumphouse" / identity.FILE_NAME).write_text("{")
    with pytest.raises(CorruptionError):
        open_store(tmp_path)
    (tmp_path / "pumphouse" / identity.FILE_NAME).write_text('{"format_version": 2}')
    with pytest.raises(CorruptionError, match="format 2"):
        open_store(tmp_path)


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(ConfigError, match="another process"):
        open_store(tmp_path)
    store.close()
    open_store(tmp_path).close()


@pytest.mark.row("P1")
def test_only_files_that_are_large_at_close_get_a_footer_and_footed_files_are_never_appended_to(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store_all(store, prewrite(10, b"v" * 1000), commit(10, 11))
    store.close()
    (path,) = value_files(tmp_path)
    assert frame.decode_footer(path.read_bytes()[-12:]) is None
    store = open_store(tmp_path)
    store_all(store, prewrite(20, b"v" * 60_000), commit(20, 99))
    store.close()
    sealed = path.read_bytes()
    assert frame.decode_footer(sealed[-12:]) == 99
    store = open_store(tmp_path)
    store_all(store, prewrite(200), commit(200, 201))
    assert path.read_bytes() == sealed
    assert [p.name for p in value_files(tmp_path)] == ["000000.vlog", "000001.vlog"]
    assert stream(store) == [(10, 11), (20, 99), (200, 201)]
    store.close()


@pytest.mark.row("P1")
def test_a_full_file_is_sealed_with_the_largest_ts_and_the_next_one_begun(tmp_path: Path) -> None:
    store = open_store(tmp_path, **SMALL)
    fill(store)
    store.close()
    paths = value_files(tmp_path)
    assert len(paths) > 2
    for path in paths[:-1]:
        data = path.read_bytes()
        records = data[:-12]
        assert len(records) > 4096
        max_ts, at = 0, 0
        while at < len(records):
            header = frame.decode_header(records, at)
            meta = frame.read_meta(records[at + 16 : at + 16 + header.length])
            max_ts = max(max_ts, meta.start_ts, meta.commit_ts)
            at += 16 + header.length
        assert frame.decode_footer(data[-12:]) == max_ts
    store = open_store(tmp_path, **SMALL)
    assert value_log(store).files()[0].max_ts == frame.decode_footer(paths[0].read_bytes()[-12:])


@pytest.mark.row("P1")
def test_a_directory_of_the_go_pump_is_taken_over(tmp_path: Path) -> None:
    """value/ and kv/ only, files without a footer, a gap that its GC left, its GC point in LevelDB."""
    made = tmp_path / "made"
    store = open_store(made, **SMALL)
    fill(store)
    store.gc.collect({"archive": 120}, 1 << 60)
    store.close()
    shutil.rmtree(made / "pumphouse")
    value_files(made)[1].unlink()
    store = open_store(made, **SMALL)
    assert store.gc_point == 120
    assert store.start_count == 1
    fill(store, first=2000)
    store.close()
    store = open_store(made, **SMALL)
    assert store.start_count == 2
    store.close()
    value_files(made)[-2].unlink()
    with pytest.raises(BadRecord, match="missing"):  # a gap of our own time is none of the Go Pump's
        open_store(made, **SMALL)


@pytest.mark.row("P1", "P11")
def test_the_go_pumps_floor_is_taken_over_though_the_first_start_fails(tmp_path: Path) -> None:
    records = b"".join(frame.encode_record(item.payload) for item in (prewrite(5000), commit(5000, 5005)))
    path = tmp_path / "value" / "000003.vlog"
    path.parent.mkdir()
    path.write_bytes(records + b"\x07" * 700 + records)
    index = Index.open(tmp_path / "kv")
    index.save_gc_ts(4000)
    index.close()
    with pytest.raises(BadRecord):
        open_store(tmp_path)
    path.write_bytes(records)
    store = open_store(tmp_path)
    assert store.gc_point == 4000
    with pytest.raises(PositionCollected):
        store.stream.pull(100, max_bytes=1 << 20)


@pytest.mark.row("P1", "P5")
@pytest.mark.parametrize("item", [prewrite(-5), commit(5, -6), commit(-5, 6), fake(-7), rollback(-8)])
def test_a_foreign_record_with_a_time_below_zero_is_damage_by_name_and_has_the_recorded_way_past_it(
    item: Item, tmp_path: Path
) -> None:
    good = b"".join(frame.encode_record(each.payload) for each in (prewrite(10), commit(10, 15)))
    bad, behind = frame.encode_record(item.payload), frame.encode_record(fake(20).payload)
    path = tmp_path / "value" / "000000.vlog"
    path.parent.mkdir()
    path.write_bytes(good + bad + behind)
    with pytest.raises(BadRecord, match="below 0") as raised:
        open_store(tmp_path)
    assert (raised.value.path, raised.value.offset) == (str(path), len(good))
    (found,) = damage.verify(tmp_path).damages
    assert (found.start, found.stop) == (len(good), len(good) + len(bad))


@pytest.mark.row("P6")
def test_a_foreign_commit_without_a_start_time_is_an_orphan_and_takes_no_rollback_for_its_prewrite(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path)
    store_all(store, prewrite(10), rollback(10))
    store.close()
    (path,) = value_files(tmp_path)
    with path.open("ab") as file:
        file.write(
            b"".join(frame.encode_record(each.payload) for each in (commit(0, 15), prewrite(20), commit(20, 25)))
        )
    store = open_store(tmp_path)
    assert [(each.start_ts, each.commit_ts) for each in store.orphans()] == [(0, 15)]
    assert stream(store) == [(0, 15), (20, 25)]
    store.accept(0, 15, "test")
    assert [(start, commit_ts) for commit_ts, start, *_ in pull_all(store, strict=True)] == [(20, 25)]


@pytest.mark.row("P5")
@pytest.mark.parametrize("step", ["reset", "replay"])
def test_a_loss_is_known_though_the_start_that_saw_it_was_killed(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "data")
    store_all(store, prewrite(100), commit(100, 105))
    before, end = store.incarnation, store.synced_end
    store_all(store, prewrite(110), commit(110, 115))
    store.gc.collect({}, 0)  # which saves the position
    shutil.copytree(tmp_path / "data", tmp_path / "found")
    store.close()
    (path,) = value_files(tmp_path / "found")
    path.write_bytes(path.read_bytes()[: end.offset])

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(*((Index, "reset") if step == "reset" else (Opening, "_replayed")), killed)
        with pytest.raises(KeyboardInterrupt):
            open_store(tmp_path / "found")
    store = open_store(tmp_path / "found")
    assert store.incarnation != before
    assert stream(store) == [(100, 105)]


@pytest.mark.row("P5", "P2")
@pytest.mark.parametrize("index", ["lost", "older"])
@pytest.mark.parametrize("log_goes_back", [False, True])
def test_an_index_whose_building_was_killed_is_not_trusted_with_another_value_log(
    index: str, log_goes_back: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay writes the head at its end only: what it left points into places that other records take."""
    data, own = tmp_path / "data", tmp_path / "killed"
    store = open_store(data)
    fill(store, count=3)
    store.close()
    if index == "older":
        shutil.copytree(data / "kv", tmp_path / "kv")
    store = open_store(data)
    store_all(store, prewrite(500), commit(500, 505))
    before = store.incarnation
    value = tmp_path / "value"
    shutil.copytree(data / "value", value)
    fill(store, first=1000, count=3)
    whole = stream(store)
    shutil.copytree(data, own, ignore=shutil.ignore_patterns("kv"))
    store.close()
    if index == "older":
        shutil.copytree(tmp_path / "kv", own / "kv")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pump_service.store.opening.Indexer.replayed", killed)
        for _start in range(2):
            with pytest.raises(KeyboardInterrupt):
                open_store(own)
    if log_goes_back:
        shutil.rmtree(own / "value")
        shutil.copytree(value, own / "value")
        with monkeypatch.context() as patch:
            patch.setattr(Index, "reset", killed)
            with pytest.raises(KeyboardInterrupt):
                open_store(own)
    store = open_store(own)
    assert (store.incarnation != before) is log_goes_back
    assert stream(store) == (whole[:4] if log_goes_back else whole)
    assert (find(store, 1000) is None) is log_goes_back
    # Other records come to where those of before lay.
    store_all(store, prewrite(2000, b"w" * 400), commit(2000, 2005), fake(2010))
    assert stream(store) == [*(whole[:4] if log_goes_back else whole), (2000, 2005)]
    store.close()
    store = open_store(own)
    assert (store.incarnation != before) is log_goes_back


@pytest.mark.row("P5")
def test_a_damaged_sealed_file_stops_a_rebuild_by_name(tmp_path: Path) -> None:
    store = open_store(tmp_path, **SMALL)
    fill(store)
    store.close()
    path = value_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    open_store(tmp_path, **SMALL).close()
    shutil.rmtree(tmp_path / "kv")
    with pytest.raises(BadRecord) as raised:
        open_store(tmp_path, **SMALL)
    assert raised.value.path == str(path)


@pytest.mark.row("P2")
def test_positions_are_persisted_within_a_second_and_only_what_lies_behind_is_read_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, count=5)
    until(lambda: positions(store).handle > Pointer(0, 0))
    store_all(store, fake(900))
    store.close()
    db = plyvel.DB(str(tmp_path / "kv"))
    handle = Pointer.unpack(db.get(b"!binlog!handlePointer"))
    head = Pointer.unpack(db.get(b"!binlog!headPointer"))
    db.close()
    assert handle == head
    store = open_store(tmp_path)
    assert store.watermark == 900


@pytest.mark.row("P6", "P5")
def test_a_late_commit_that_was_answered_right_before_a_kill_is_still_a_late_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watermark is saved once a second: what a puller has seen is more than what was saved."""
    monkeypatch.setattr("pump_service.store.indexer.PERSIST_EVERY_S", 3600.0)
    store = open_store(tmp_path / "data")
    store_all(store, prewrite(50), commit(50, 100), prewrite(60), prewrite(70))
    assert store.watermark == 100
    assert [ts for ts, *_ in pull_all(store)] == [100]
    on = threading.Event()
    in_index(store, lambda: assert_waited(on))  # the index lags behind
    assert write(store, commit(60, 80), commit(70, 110)) == [None, None]
    shutil.copytree(tmp_path / "data", tmp_path / "killed")
    on.set()
    store.close()
    store = open_store(tmp_path / "killed")
    assert [(each.start_ts, each.commit_ts) for each in store.late()] == [(60, 80)]
    assert [each.commit_ts for each in store.stream.pull(100, max_bytes=1 << 20).behind] == [80]
    assert stream(store, 100) == [(70, 110)]


def assert_waited(event: threading.Event) -> None:
    assert event.wait(60)


@pytest.mark.row("P3")
def test_an_index_that_fails_is_opened_again_and_nothing_is_published_meanwhile(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store_all(store, prewrite(10))
    published: list[int] = []

    def fails() -> None:
        published.append(store.watermark)
        raise IndexFailed("injected")

    with index_meets(write=so_often(3, fails)):
        store_all(store, commit(10, 11))
    assert published == [0, 0, 0]
    assert store.watermark == 11
    assert store.status().index_failures == 3
    assert stream(store) == [(10, 11)]
    store.close()
    store = open_store(tmp_path)
    assert stream(store) == [(10, 11)]
