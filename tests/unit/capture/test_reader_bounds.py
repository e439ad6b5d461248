"""What a damaged or strange binlog says is held against what is known, before a row is believed."""

from __future__ import annotations

import zlib

import pytest

from pumphouse.capture.source import events
from pumphouse.capture.source.charsets import KNOWN, PLAIN, character_map
from pumphouse.errors import CaptureRefused, CorruptionError

pytestmark = pytest.mark.row("Q1")


def _query(status: bytes, text: bytes = b"ALTER TABLE t ADD UNIQUE (b)") -> bytes:
    return b"\0" * 8 + b"\4" + b"\0\0" + len(status).to_bytes(2, "little") + status + b"shop\0" + text


@pytest.mark.parametrize("status", [b"\x82\x02", b"\x82\x08" + b"\x09" + b"\0" * 7])
def test_an_alter_in_two_phases_is_refused(status: bytes) -> None:
    before = b"\0" + b"\1\0\0\0"
    assert events.query(_query(before), 0, 0).flags == 1
    with pytest.raises(CaptureRefused, match="ALTER in two phases") as refused:
        events.query(_query(before + status), 0, 0)
    assert refused.value.hint


def test_a_compressed_event_that_lacks_its_end_is_damaged() -> None:
    text = b"x" * 5000
    whole = b"\x82" + len(text).to_bytes(2, "big") + zlib.compress(text)
    assert events.inflated(whole) == text
    for lacking in (1, 4):
        with pytest.raises(CorruptionError):
            events.inflated(whole[:-lacking])


def test_a_compressed_transaction_that_is_too_large_is_refused_with_its_way_out() -> None:
    size = events.MAX_EVENT_BYTES + 1
    fields = b"\1\1\0" + b"\2\1\0" + b"\3\x09\xfe" + size.to_bytes(8, "little") + b"\0"
    with pytest.raises(CaptureRefused, match=str(size)) as refused:
        events.unpacked(fields)
    assert "binlog_transaction_compression" in refused.value.hint


def test_ascii_is_held_against_its_characters() -> None:
    assert "ascii" in KNOWN - PLAIN
    found = character_map("ascii").tolist()
    assert found == [1 << 24 | each for each in range(128)] + [0] * 128


# As a MySQL 9.7 wrote it.
TAGGED = bytes.fromhex(
    "0276000000029d02127503f502b103da22c503ad021d0304f103000000020404060a626f6f6b73"
    "08140a180c7ffbe548f57561061069041283120b"
)


def test_a_gtid_with_a_tag_is_read_or_damaged() -> None:
    gtid = "a709ddbd-ec6d-11f1-abc7-02fc00000001:books", 1, 1796009114527227
    assert events.tagged(TAGGED) == gtid
    assert events.tagged(TAGGED + b"sum!") == gtid
    for end in range(len(TAGGED)):
        with pytest.raises(CorruptionError):
            events.tagged(TAGGED[:end])
    with pytest.raises(CorruptionError):
        events.tagged(TAGGED.replace(b"books", b"b oks"))
    with pytest.raises(CorruptionError):
        events.tagged(TAGGED.replace(b"\x04\x04\x06", b"\x04\x05\x06"))  # the number -3
    with pytest.raises(CaptureRefused, match="a later MySQL"):
        events.tagged(b"\x02\x76\x18" + TAGGED[3:])


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16383, 16384, 1 << 48, (1 << 56) - 1, 1 << 56, (1 << 64) - 1])
def test_numbers_of_mysqls_serialization_have_one_to_nine_bytes(value: int) -> None:
    size = max(1, -(-value.bit_length() // 7))
    written = (
        b"\xff" + value.to_bytes(8, "little")
        if size > 8
        else (value << size | (1 << size - 1) - 1).to_bytes(size, "little")
    )
    fields = events.Fields(written + b"!", "a number")
    assert (fields.varint(), fields.left) == (value, 1)
