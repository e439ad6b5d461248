"""Scanning a file gives the same records whatever the block size, and never believes a length beyond the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from pump_service.store import frame
from pump_service.store.fs import REAL_FS
from pump_service.store.scan import FileScan
from tests.support.storekit import commit, fake, prewrite


def make(path: Path, payloads: list[bytes], tail: bytes = b"") -> Path:
    path.write_bytes(b"".join(map(frame.encode_record, payloads)) + tail)
    return path


@pytest.mark.row("P1")
@pytest.mark.parametrize("block", [17, 64, 100, 1000, 1 << 20])
def test_block_size_does_not_matter(block: int, tmp_path: Path) -> None:
    items = [prewrite(10, b"x" * 500), fake(11), commit(10, 12), prewrite(13, b""), prewrite(14, b"y" * 90)]
    handle = REAL_FS.open_log(make(tmp_path / "f", [item.payload for item in items]))
    scan = FileScan(handle, 3, 0, handle.size(), block)
    found = [entry for entries in scan for entry in entries]
    assert [(e.tp, e.start_ts, e.commit_ts, e.key) for e in found] == [
        (i.tp, i.start_ts, i.commit_ts, i.prewrite_key) for i in items
    ]
    assert all(e.fid == 3 for e in found)
    assert scan.end == handle.size()
    assert scan.problem == ""
    handle.close()


@pytest.mark.parametrize(
    ("tail", "problem"),
    [
        (b"\0" * 40, "no record magic"),
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
