"""Scanning a file gives the same records whatever the block size, and never believes a length beyond the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from pump_service.store import frame
from pump_service.store import scan as scan_module
from pump_service.store.block import Block
from pump_service.store.fs import REAL_FS
from pump_service.store.scan import FileScan
from pumphouse.codec.payload import make_prewrite
from tests.support.plainwalk import walk
from tests.support.storekit import commit, fake, prewrite


def make(path: Path, payloads: list[bytes], tail: bytes = b"") -> Path:
    path.write_bytes(b"".join(map(frame.encode_record, payloads)) + tail)
    return path


def rows(blocks: list[Block], data: bytes) -> list[tuple[int, ...]]:
    """Every row of blocks with its key, which lies in the file."""
    found = []
    for block in blocks:
        for at, entry in enumerate(block):
            key_at = entry.offset + frame.HEADER_BYTES + int(block.key_at[at])
            key = data[key_at : key_at + int(block.key_size[at])]
            found.append((*entry, key if entry.tp == 0 else b"", int(block.ddl_job_id[at])))
    return found


@pytest.mark.row("P1")
@pytest.mark.parametrize("block", [17, 64, 100, 1000, 1 << 20])
def test_the_kernel_finds_what_the_plain_walk_finds_whatever_the_block_size(block: int, tmp_path: Path) -> None:
    ddl = make_prewrite(15, b"key", ddl_query=b"drop table t", ddl_job_id=300)
    odd = [b"\x10\x05", b"\x08\x90\x4e\x10\x01", b"\x22\x01k\x08\x00", b"\x10" + b"\xff" * 8 + b"\x7f"]
    items = [prewrite(10, b"x" * 500), fake(11), commit(10, 12), prewrite(13, b""), prewrite(14, b"y" * 90)]
    payloads = [item.payload for item in items] + [ddl, *odd]
    path = make(tmp_path / "f", payloads)
    handle = REAL_FS.open_log(path)
    scan = FileScan(handle, 3, 0, handle.size(), block)
    expected = walk(path.read_bytes(), 3)
    assert len(expected) == len(payloads)
    assert rows(list(scan), path.read_bytes()) == expected
    assert scan.end == handle.size()
    assert scan.problem == ""
    handle.close()


@pytest.mark.row("P1")
def test_more_records_than_a_block_takes_come_in_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "BLOCK_RECORDS", 7)
    path = make(tmp_path / "f", [fake(n).payload for n in range(1, 100)])
    handle = REAL_FS.open_log(path)
    blocks = list(FileScan(handle, 0, 0, handle.size()))
    assert [len(block) for block in blocks] == [7] * 14 + [1]
    assert [entry.start_ts for block in blocks for entry in block] == list(range(1, 100))
    handle.close()


@pytest.mark.parametrize(
    ("tail", "problem"),
    [
        (frame.encode_record(prewrite(-1).payload), "a Binlog with a time below 0"),
        (frame.encode_record(commit(5, -(1 << 63)).payload), "a Binlog with a time below 0"),
        (b"\0" * 40, "no record magic"),
        (frame.RECORD_MAGIC_BYTES + b"\0" * 40, "a record without a payload"),
        (frame.pack_header(frame.RECORD_MAGIC, 1 << 62, 0) + b"abc", "record goes on beyond the end"),
        (frame.encode_record(prewrite(5).payload)[:-1], "record goes on beyond the end"),
        (b"\xe8\x56", "record goes on beyond the end"),
        (frame.pack_header(frame.RECORD_MAGIC, 3, 1) + b"abc", "checksum does not match"),
        (frame.encode_record(b"\x10\x80"), "a payload of the value log is no Binlog message"),
    ],
)
def test_a_scan_ends_behind_the_last_good_record(tail: bytes, problem: str, tmp_path: Path) -> None:
    good = [prewrite(1).payload, commit(1, 2).payload]
    path = make(tmp_path / "f", good, tail)
    handle = REAL_FS.open_log(path)
    for block in (20, 1 << 20):
        scan = FileScan(handle, 0, 0, handle.size(), block)
        assert sum(len(entries) for entries in scan) == 2
        assert scan.problem == problem
        assert scan.end == handle.size() - len(tail)
    handle.close()
