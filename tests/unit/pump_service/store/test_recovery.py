"""Write, damage, prove that it is damaged, repair or refuse, read, append more, read again."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pump_service.store import damage, frame, recovery
from pump_service.store.laid import AHEAD_BYTES, AHEAD_FOR
from pump_service.store.store import Item
from pumphouse.errors import BadRecord, WriterFailed
from pumphouse.proto.binlog_pb2 import Binlog
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


def ends_at(remainder: int, data_dir: Path, kind: Callable[[bytes], Item]) -> tuple[Path, bytes, bytes]:
    """A file after a kill whose records end at this place of a sector, its bytes up to there, and a record of a kind.

    The record is so long that it ends one byte behind a sector.
    """
    store = open_store(data_dir)
    store_all(store, prewrite(10), commit(10, 20))
    lengths = {len(frame.encode_record(prewrite(30, b"p" * pad).payload)): pad for pad in range(1, 1200)}
    end = store.synced_end.offset
    store_all(store, prewrite(30, b"p" * next(pad for n, pad in lengths.items() if (end + n) % 512 == remainder)))
    end = store.synced_end.offset
    store.close()
    records = (frame.encode_record(kind(b"L" * size).payload) for size in range(900, 3000))
    record = next(record for record in records if (end + len(record)) % 512 == 1)
    (path,) = value_files(data_dir)
    return path, path.read_bytes()[:end], record


def of_ddl(value: bytes) -> Item:
    """Its last byte is a state, not 0."""
    message = Binlog(
        tp=0, start_ts=40, commit_ts=0, prewrite_key=b"k", prewrite_value=value, ddl_query=b"q", ddl_job_id=7,
        ddl_schema_state=5,
    )  # fmt: skip
    return Item(message.SerializeToString(), 0, 40, 0, b"k")


def reopened(path: Path, before: bytes) -> None:
    """Torn behind ``before``, and nothing came of the rest."""
    found = path.read_bytes()
    store = open_store(path.parent.parent)
    assert store.synced_end.offset == len(before)
    assert len(log_payloads(store)) == 3
    store.close()
    assert path.with_name(path.name + ".broken").read_bytes() == found[len(before) :]


@pytest.mark.row("P5", "P1")
@pytest.mark.parametrize("ahead", [0, AHEAD_BYTES, AHEAD_BYTES + AHEAD_FOR + 1])
@pytest.mark.parametrize("remainder", [*range(490, 512), 0, 100])
def test_a_record_of_which_one_sector_arrived_is_torn_wherever_its_header_was_cut(
    remainder: int, ahead: int, tmp_path: Path
) -> None:
    path, before, record = ends_at(remainder, tmp_path, lambda value: prewrite(40, value))
    arrived = record[: 512 - remainder]
    path.write_bytes(before + arrived + bytes(max(len(record) - len(arrived), ahead)))
    reopened(path, before)


@pytest.mark.row("P5", "P1")
@pytest.mark.parametrize("ahead", [0, 400, AHEAD_BYTES])
def test_a_record_that_lacks_its_last_byte_alone_is_torn(ahead: int, tmp_path: Path) -> None:
    path, before, record = ends_at(100, tmp_path, of_ddl)
    assert record[-1]
    path.write_bytes(before + record[:-1] + bytes(1 + ahead))
    reopened(path, before)
    damaged = bytearray(record[:-1] + bytes(1 + ahead))
    damaged[50] ^= 1
    path.write_bytes(before + damaged)
    with pytest.raises(BadRecord, match="checksum"):
        open_store(tmp_path)


@pytest.mark.row("P5")
def test_a_large_torn_record_is_judged_by_few_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = []
    real = recovery.crc32c_of
    monkeypatch.setattr(recovery, "crc32c_of", lambda *args: sums.append(1) or real(*args))
    path = filled(tmp_path)
    before = path.read_bytes()
    record = frame.encode_record(prewrite(5000, b"L" * (8 << 20)).payload)
    for arrived in (600, 7 << 20, len(record) - 3000):
        path.write_bytes(before + record[:arrived] + bytes(len(record) - arrived))
        store = open_store(tmp_path)
        assert store.synced_end.offset == len(before)
        store.close()
    assert len(sums) < 3000


def _killed_and_gone_on(tmp_path: Path, theirs: Sequence[Item]) -> tuple[Path, int]:
    """A directory whose Pump was killed, to which the Go Pump appended: at the file's end, whatever lies before it."""
    store = open_store(tmp_path / "live")
    store_all(store, prewrite(10), commit(10, 20))
    end = store.synced_end.offset
    shutil.copytree(tmp_path / "live", tmp_path / "killed")
    store.close()
    (path,) = value_files(tmp_path / "killed")
    path.write_bytes(path.read_bytes() + b"".join(frame.encode_record(item.payload) for item in theirs))
    return path, end


@pytest.mark.row("P5", "P1")
@pytest.mark.parametrize("index", ["kept", "lost"])
def test_what_a_go_pump_wrote_behind_laid_zeros_is_served_and_written_on(index: str, tmp_path: Path) -> None:
    path, end = _killed_and_gone_on(tmp_path, (prewrite(30), commit(30, 40), prewrite(50)))
    whole = path.stat().st_size
    if index == "lost":
        shutil.rmtree(tmp_path / "killed" / "kv")
    report = damage.verify(tmp_path / "killed")
    assert report.sound
    (note,) = report.notes
    assert f"bytes of zeros at {end}, behind which another program went on" in note
    for _ in range(2):
        store = open_store(tmp_path / "killed")
        assert stream(store) == [(10, 20), (30, 40)]
        assert [each.start_ts for each in store.prewrites.oldest()] == [50]
        assert store.synced_end.offset == whole
        store.close()
    store = open_store(tmp_path / "killed")
    store_all(store, commit(50, 60))
    assert stream(store)[-1] == (50, 60)
    store.close()
    assert not list(path.parent.glob("*.broken"))


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


@pytest.mark.row("P1")
def test_a_payload_that_ends_like_a_footer_is_no_footer(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    item = prewrite(10)
    # A key is the last field here, so the record ends with the magic of a footer.
    payload = Binlog(tp=0, start_ts=20, commit_ts=0, prewrite_key=bytes(8) + frame.FOOTER_MAGIC_BYTES)
    trick = Item(payload.SerializeToString(), 0, 20, 0)
    assert write(store, item, trick) == [None, None]
    store.close()
    store = open_store(tmp_path)
    store_all(store, commit(10, 30), commit(20, 31))
    assert stream(store) == [(10, 30), (20, 31)]
    assert len(value_files(tmp_path)) == 1


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
