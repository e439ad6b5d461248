"""Zeros that the writer lays ahead of the records: who sees them, and that nobody is misled by them."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from pump_service.store import damage, frame
from pump_service.store.laid import AHEAD_BYTES, AHEAD_FOR
from pump_service.store.records import Records
from pump_service.store.valuelog import ValueLog
from tests.support.crashfs import FaultyFs
from tests.support.storekit import (
    commit,
    log_payloads,
    open_store,
    prewrite,
    store_all,
    stream,
    value_files,
)


def zeros_behind(path: Path) -> int:
    data = path.read_bytes()
    return len(data) - len(data.rstrip(b"\0")) - 1  # a payload ends with a zero byte


@pytest.mark.row("P3", "P1")
def test_small_writes_go_where_zeros_were_laid_and_change_no_size(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    sizes = set()
    for n in range(60):
        store_all(store, prewrite(100 + 10 * n, b"v" * 700), commit(100 + 10 * n, 105 + 10 * n))
        sizes.add(value_files(tmp_path)[0].stat().st_size)
    assert len(sizes) == 1
    assert sizes.pop() % 4096 == 0
    assert 0 < zeros_behind(value_files(tmp_path)[0]) < AHEAD_BYTES
    assert len(stream(store)) == 60


@pytest.mark.row("P3")
def test_large_writes_and_those_without_fsync_lay_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path / "large")
    store_all(store, prewrite(10, b"v" * (AHEAD_FOR + 1)))
    assert zeros_behind(value_files(tmp_path / "large")[0]) == 0
    store.close()
    store = open_store(tmp_path / "unsafe", sync_log=False)
    store_all(store, prewrite(10))
    assert zeros_behind(value_files(tmp_path / "unsafe")[0]) == 0


@pytest.mark.row("P1", "P5")
@pytest.mark.parametrize("index", ["kept", "lost"])
def test_after_a_kill_the_zeros_are_given_back_without_a_copy(index: str, tmp_path: Path) -> None:
    store = open_store(tmp_path / "live")
    store_all(store, prewrite(10), commit(10, 20), prewrite(30))
    end = store.synced_end.offset
    shutil.copytree(tmp_path / "live", tmp_path / "killed")
    store.close()
    (path,) = value_files(tmp_path / "killed")
    zeros = path.stat().st_size - end
    assert zeros == zeros_behind(path) > 0
    if index == "lost":
        shutil.rmtree(tmp_path / "killed" / "kv")
    report = damage.verify(tmp_path / "killed")
    assert report.sound
    assert report.notes == [f"000000.vlog: {zeros} bytes of zeros laid ahead, which the next start gives back"]
    incarnation = store.incarnation
    store = open_store(tmp_path / "killed")
    assert path.stat().st_size == end
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert store.incarnation == incarnation
    store_all(store, commit(30, 40))
    assert stream(store) == [(10, 20), (30, 40)]


@pytest.mark.row("P3")
def test_after_a_kill_zeros_are_laid_again(tmp_path: Path) -> None:
    store = open_store(tmp_path / "live")
    store_all(store, prewrite(10), commit(10, 20))
    shutil.copytree(tmp_path / "live", tmp_path / "killed")
    store.close()
    store = open_store(tmp_path / "killed")
    sizes = set()
    for n in range(60):
        store_all(store, prewrite(100 + 10 * n, b"v" * 700))
        sizes.add(value_files(tmp_path / "killed")[0].stat().st_size)
    store.close()
    assert len(sizes) == 1


@pytest.mark.row("P1")
def test_a_file_that_is_closed_or_full_ends_with_its_last_record_or_its_footer(tmp_path: Path) -> None:
    store = open_store(tmp_path, value_log_file_bytes=200_000)
    for n in range(400):
        store_all(store, prewrite(100 + 10 * n, b"v" * 700))
    full, active = value_files(tmp_path)
    assert frame.decode_footer(full.read_bytes()[-frame.FOOTER_BYTES :]) is not None
    assert zeros_behind(active) > 0
    store.close()
    assert frame.decode_footer(active.read_bytes()[-frame.FOOTER_BYTES :]) is not None
    store = open_store(tmp_path, value_log_file_bytes=200_000)
    store_all(store, prewrite(5000))
    end = store.synced_end.offset
    store.close()  # too small for a footer
    assert value_files(tmp_path)[-1].stat().st_size == end


@pytest.mark.row("P1", "P5")
def test_zeros_behind_the_footer_of_a_file_that_was_just_filled_are_given_back(tmp_path: Path) -> None:
    store = open_store(tmp_path, value_log_file_bytes=4096)
    store_all(store, prewrite(10, b"v" * 5000), commit(10, 15))
    store.close()
    for path in value_files(tmp_path)[1:]:
        path.unlink()
    path = value_files(tmp_path)[0]
    whole = path.read_bytes()
    path.write_bytes(whole + bytes(3000))
    shutil.rmtree(tmp_path / "kv")
    store = open_store(tmp_path, value_log_file_bytes=4096)
    assert path.read_bytes() == whole
    store_all(store, commit(10, 20))
    assert len(value_files(tmp_path)) == 2


@pytest.mark.row("P15")
def test_on_a_nearly_full_disk_room_is_left_to_records(tmp_path: Path) -> None:
    """The write with zeros meets a full disk, the one without them fits."""

    def full(path: Path) -> None:
        writes.append(path)
        if len(writes) == 1:
            raise OSError(errno.ENOSPC, "injected", str(path))

    writes: list[Path] = []
    fs = FaultyFs()
    fs.faults["write"] = full
    fs.short_write = 50_000
    store = open_store(tmp_path, fs)
    store_all(store, prewrite(10, b"v" * 30_000), commit(10, 15))
    assert not store.read_only
    (path,) = value_files(tmp_path)
    assert path.stat().st_size == store.synced_end.offset
    assert stream(store) == [(10, 15)]
    store_all(store, prewrite(20), commit(20, 25))
    assert path.stat().st_size == store.synced_end.offset, "this file tries no more"
    store.close()
    assert len(log_payloads(open_store(tmp_path))) == 4


@pytest.mark.row("P5", "P2")
@pytest.mark.parametrize("behind", [1, 5, 40, None])
def test_a_remembered_end_among_the_zeros_is_not_believed(behind: int | None, tmp_path: Path) -> None:
    """A summary of another life of the directory, that is longer than what there is, or as long as the file."""

    def opened(where: Path) -> ValueLog:
        log = ValueLog(FaultyFs(), where / "value", where / "files", limit=1 << 30, sync=True)
        log.open()
        return log

    log = opened(tmp_path)
    log.append([Records.of([prewrite(ts, b"v" * 100) for ts in range(10)])])
    end = log.end.offset
    other = opened(tmp_path / "other")
    size = value_files(tmp_path)[0].stat().st_size
    wanted = size if behind is None else end + behind
    lengths = {len(frame.encode_record(prewrite(0, b"o" * n).payload)): n for n in range(wanted - 60, wanted)}
    other.append([Records.of([prewrite(0, b"o" * lengths[wanted])])])
    assert other.end.offset == wanted
    other.save_active_summary()
    (saved,) = (tmp_path / "other" / "files").iterdir()
    saved.rename(tmp_path / "files" / saved.name)
    log = opened(tmp_path)
    assert log.end.offset == end
    assert log.file(0).max_ts == 9
