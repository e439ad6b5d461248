"""Parts of a transaction that is larger than a group, and the P that is made of their file."""

from __future__ import annotations

import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pumphouse.capture import spool
from pumphouse.capture.follow import Parts
from pumphouse.capture.source.model import Transaction
from pumphouse.capture.spool import Spool, SpooledPrewrite
from pumphouse.codec.payload import make_prewrite
from pumphouse.errors import CaptureRefused
from pumphouse.model.tso import Tso

pytestmark = pytest.mark.row("Q1")


def part(number: int, *, final: bool = False) -> Transaction:
    return Transaction("0-1-7", True, 1, 0, 0, 1, part=number, final=final)


def test_parts_of_a_transaction_that_the_source_forgot_are_not_of_the_next_one(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    assert parts.whole(part(0), b"a") is None
    assert parts.whole(part(1), b"b") is None
    whole = parts.whole(part(2, final=True), b"c")
    assert isinstance(whole, Spool)
    assert whole.read() == b"abc"
    assert parts.whole(part(0), b"forgotten") is None
    assert parts.whole(part(0, final=True), b"next") == b"next"
    assert parts.whole(part(0), b"forgotten") is None
    parts.clear()
    whole = parts.whole(part(1, final=True), b"")
    assert whole is not None
    assert not whole
    assert list(tmp_path.iterdir()) == []


def test_what_came_before_a_part_with_a_statement_is_taken_over_and_what_was_forgotten_is_not(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    assert parts.whole(part(0), b"a") is None
    assert parts.whole(part(1), b"b") is None
    taken = parts.take(part(2))
    assert taken is not None
    assert taken.read() == b"ab"
    assert parts.whole(part(0), b"forgotten") is None
    assert parts.take(part(0)) is None
    assert parts.take(part(1)) is None


@pytest.mark.parametrize("key", [b"", b"k*\0*\0", b"*\0" * 100])
@pytest.mark.parametrize("size", [1, 127, 128, 70_000])
def test_the_p_of_a_file_is_that_of_its_bytes(tmp_path: Path, key: bytes, size: int) -> None:
    whole = Spool(tmp_path, "0-1-7")
    whole.add(b"x" * size)
    whole.head = b"\x08\x07"
    made = SpooledPrewrite(Tso(42 << 18), key, whole)
    for _ in range(2):  # a second Pump is tried
        assert bytes(made) == make_prewrite(42 << 18, key, b"\x08\x07" + b"x" * size)
    assert len(made) == len(bytes(made))


def test_a_transaction_over_the_limit_is_refused_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "MAX_TRANSACTION_BYTES", 10)
    parts = Parts(tmp_path)
    assert parts.whole(part(0), b"x" * 10) is None
    with pytest.raises(CaptureRefused, match="0-1-7 has more than 10 bytes"):
        parts.whole(part(1), b"x")


def test_two_tries_that_read_the_file_at_once_have_all_of_it(tmp_path: Path) -> None:
    whole = Spool(tmp_path, "0-1-7")
    whole.add(b"x" * 3_000_000)
    made = SpooledPrewrite(Tso(42 << 18), b"k", whole)
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(len, pool.map(bytes, [made] * 200))) == {len(made)}


def test_a_full_disk_names_the_transaction_and_where_room_is_needed(tmp_path: Path) -> None:
    whole = Spool(tmp_path, "0-1-7")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
    try:
        with pytest.raises(CaptureRefused, match=f"0-1-7 were not written to {tmp_path}") as refused:
            for _ in range(8):
                whole.add(b"x" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "capture.directory" in str(refused.value.hint)
