"""Write, damage, prove that it is damaged, repair or refuse, read, append more, read again."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from include.errors import BadRecord, WriterFailed
from pump_service.store import frame
from pump_service.store.logfile import AHEAD_BYTES, AHEAD_FOR
from tests.support.crashfs import CrashFs, FaultyFs, failing
from tests.support.storekit import (
    commit,
    fake,
    log_payloads,
    open_store,
    prewrite,
    store_all,
    stream,
    value_files,
    write,
)


def filled(data_dir: Path, transactions: int = 20, value: bytes = b"v" * 700, *, summaries: bool = False) -> Path:
    """A store that was killed: no clean close, no footer, no summary. Returns its only file."""
    store = open_store(data_dir)
    for n in range(transactions):
        store_all(store, prewrite(100 + 10 * n, value), commit(100 + 10 * n, 105 + 10 * n))
    store.close()
    for summary in [] if summaries else (data_dir / "pumphouse" / "files").iterdir():
        summary.unlink()
    return value_files(data_dir)[-1]


def cut(count: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:-count]


def zero_last_sector(data: bytes) -> bytes:
    start = (len(data) - 1) // 512 * 512
    return data[:start] + bytes(len(data) - start)


def add(tail: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data + tail


BIG = frame.encode_record(prewrite(5000, b"z" * 3000).payload)


def unwritten_sectors_before_a_good_record(data: bytes) -> bytes:
    """One group of two records of which the medium wrote the second first."""
    start = len(data)
    sector = (start // 512 + 1) * 512
    hole = BIG[: sector - start] + bytes(1024) + BIG[sector - start + 1024 :]
    return data + hole + frame.encode_record(fake(6000).payload)


TORN = {
    "half a header": add(BIG[:7]),
    "half a payload": add(BIG[:900]),
    "more zeros than are laid ahead": add(bytes(AHEAD_BYTES + AHEAD_FOR + 1)),
    "a last sector that was never written": lambda data: zero_last_sector(data + BIG),
    "unwritten sectors in the middle": unwritten_sectors_before_a_good_record,
    "half a footer": add(frame.encode_footer(7)[:5]),
}


# Whether the writer had laid zeros ahead when it was killed: the tail is judged alike.
AHEAD = {"nothing ahead": 0, "a little ahead": 300, "zeros ahead": AHEAD_BYTES}


@pytest.mark.row("P5", "P1")
@pytest.mark.parametrize("ahead", AHEAD)
@pytest.mark.parametrize("how", TORN)
def test_a_torn_tail_is_cut_and_the_log_takes_new_records(how: str, ahead: str, tmp_path: Path) -> None:
    path = filled(tmp_path)
    before = path.read_bytes()
    path.write_bytes(TORN[how](before) + bytes(AHEAD[ahead]))
    after_crash = path.read_bytes()
    store = open_store(tmp_path)
    assert len(stream(store)) == 20
    assert path.read_bytes() == before
    broken = path.with_name(path.name + ".broken")
    assert before + broken.read_bytes() == after_crash
    store_all(store, prewrite(9000, b"more"), commit(9000, 9001))
    store.close()
    store = open_store(tmp_path)
    assert stream(store)[-1] == (9000, 9001)
    assert len(log_payloads(store)) == 42
    store.close()


def flip(offset_from_end: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        at = len(data) - offset_from_end
        return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]

    return change


LAST = len(frame.encode_record(commit(290, 295).payload))
DAMAGE = {
    "a bit of the last payload": flip(5),
    "a bit in the middle": flip(8000),
    "a length in the middle": lambda data: data[:4] + b"\xff" + data[5:],
    "a magic in the middle": lambda data: b"\0" + data[1:],
    "zeros in the middle of what was synced": lambda data: data[:1024] + bytes(1024) + data[2048:],
    "the last magic": lambda data: data[:-LAST] + b"\0" + data[1 - LAST :],
    "the last length, a little longer": lambda data: data[: 4 - LAST] + bytes([data[4 - LAST] + 3]) + data[5 - LAST :],
    "the last length, sectors longer": lambda data: data[: 5 - LAST] + b"\x07" + data[6 - LAST :],
    "the last length, beyond the end": lambda data: data[: 7 - LAST] + b"\x01" + data[8 - LAST :],
    "the last length, shorter": lambda data: data[: 4 - LAST] + bytes([data[4 - LAST] - 3]) + data[5 - LAST :],
    "the last checksum": lambda data: data[: 12 - LAST] + bytes([data[12 - LAST] ^ 1]) + data[13 - LAST :],
}


@pytest.mark.row("P5")
@pytest.mark.parametrize("ahead", AHEAD)
@pytest.mark.parametrize("how", DAMAGE)
def test_damage_of_what_may_have_been_answered_is_refused_by_name(how: str, ahead: str, tmp_path: Path) -> None:
    path = filled(tmp_path)
    damaged = DAMAGE[how](path.read_bytes()) + bytes(AHEAD[ahead])
    path.write_bytes(damaged)
    with pytest.raises(BadRecord) as raised:
        open_store(tmp_path)
    assert raised.value.path == str(path)
    assert path.read_bytes() == damaged, "nothing may be changed"


@pytest.mark.row("P5", "P1")
@pytest.mark.parametrize("lost", [1, 3000])
@pytest.mark.parametrize("summaries", [False, True])
def test_a_log_that_ends_before_what_the_index_knows_is_served_under_a_new_incarnation(
    lost: int, summaries: bool, tmp_path: Path
) -> None:
    path = filled(tmp_path, summaries=summaries)
    before = json.loads((tmp_path / "pumphouse" / "incarnation.json").read_bytes())["incarnation"]
    path.write_bytes(path.read_bytes()[:-lost])
    store = open_store(tmp_path)
    assert store.incarnation != before
    found = stream(store)
    assert 15 < len(found) < 20
    store.close()


@pytest.mark.row("P1")
def test_a_payload_that_ends_like_a_footer_is_no_footer(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    item = prewrite(10)
    # A key is the last field here, so the record ends with the magic of a footer.
    from include.proto.binlog_pb2 import Binlog
    from pump_service.store.store import Item

    payload = Binlog(tp=0, start_ts=20, commit_ts=0, prewrite_key=bytes(8) + frame.FOOTER_MAGIC_BYTES)
    trick = Item(payload.SerializeToString(), 0, 20, 0)
    assert write(store, item, trick) == [None, None]
    store.close()
    store = open_store(tmp_path)
    store_all(store, commit(10, 30), commit(20, 31))
    assert stream(store) == [(10, 30), (20, 31)]
    assert len(value_files(tmp_path)) == 1
    store.close()


@pytest.mark.row("P1")
def test_a_hole_between_files_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path, value_log_file_bytes=4096)
    for n in range(20):
        store_all(store, prewrite(100 + n * 10, b"v" * 900), commit(100 + n * 10, 105 + n * 10))
    store.close()
    value_files(tmp_path)[1].unlink()
    with pytest.raises(BadRecord, match="000001"):
        open_store(tmp_path, value_log_file_bytes=4096)


@pytest.mark.row("P5", "P15")
def test_a_sealed_tail_of_a_run_that_failed_is_brought_to_the_medium_before_more_is_answered(tmp_path: Path) -> None:
    fs = FaultyFs()
    store = open_store(tmp_path / "data", fs, value_log_file_bytes=4096)
    store_all(store, prewrite(100, b"v" * 3000), commit(100, 105))
    fs.faults["sync"] = failing(errno.EIO)
    assert isinstance(write(store, prewrite(110, b"w" * 3000))[0], WriterFailed)
    store.close()
    (path,) = value_files(tmp_path / "data")
    assert frame.decode_footer(path.read_bytes()[-12:]) is not None, "the kernel has it, the medium may not"
    medium = CrashFs(tmp_path / "data", lambda: None)
    store = open_store(tmp_path / "data", medium, value_log_file_bytes=4096)
    store_all(store, commit(110, 115), prewrite(120, b"answered"), commit(120, 125), fake(130))
    expected = stream(store)
    assert expected == [(100, 105), (110, 115), (120, 125)]
    store_all(store, fake(131))
    store.close()
    image = next(image for image in reversed(medium.images) if image.what == "sync 000001.vlog")
    assert image.durable["value/000000.vlog"] == path.read_bytes()
    image.lay_out(tmp_path / "found", tail="nothing", index="holes")
    store = open_store(tmp_path / "found", value_log_file_bytes=4096)
    assert stream(store) == expected
    store.close()
