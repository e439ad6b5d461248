"""From the payload of a write to what is stored."""

from __future__ import annotations

import pytest

from pump_service.intake.convert import item_of
from pumphouse.errors import BadBinlog
from pumphouse.model.binlog import MAX_TRANSACTION_BYTES
from pumphouse.proto.binlog_pb2 import Binlog, BinlogType

pytestmark = pytest.mark.row("W1", "W2")


def test_always_emitted_fields_are_set_and_everything_else_is_kept_byte_for_byte() -> None:
    item = item_of(Binlog(start_ts=5, prewrite_key=b"k", prewrite_value=b"v", ddl_query=b"").SerializeToString())
    assert item.payload == bytes.fromhex("0800 1005 1800 22016b 2a0176 3200 3800 4000".replace(" ", ""))
    assert (item.tp, item.start_ts, item.commit_ts, item.prewrite_key) == (0, 5, 0, b"k")
    assert item_of(item.payload).payload == item.payload


def test_an_absent_key_stays_absent() -> None:
    item = item_of(Binlog(tp=BinlogType.Commit, start_ts=5, commit_ts=6).SerializeToString())
    assert not Binlog.FromString(item.payload).HasField("prewrite_key")
    assert (item.tp, item.start_ts, item.commit_ts) == (1, 5, 6)


def test_fields_of_a_later_version_are_kept() -> None:
    later = Binlog(start_ts=5).SerializeToString() + b"\x7a\x03new"
    assert item_of(later).payload.endswith(b"\x7a\x03new")


def test_an_empty_payload_is_a_probe() -> None:
    item = item_of(b"")
    assert (item.tp, item.start_ts, item.commit_ts) == (0, 0, 0)


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"\x0a", "is no Binlog"),
        (b"\x08\x03\x10\x05", "type 3"),
        (b"\x08\x04\x10\x05", "type 4"),
        (b"\x08\x09\x10\x05", "type unknown"),
        (Binlog(start_ts=-1).SerializeToString(), "negative time"),
        (Binlog(tp=BinlogType.Commit, start_ts=5, commit_ts=0).SerializeToString(), "above its start"),
        (Binlog(tp=BinlogType.Commit, start_ts=5, commit_ts=4).SerializeToString(), "above its start"),
        (Binlog(tp=BinlogType.Rollback, start_ts=5, commit_ts=6).SerializeToString(), "has no commit time"),
        (Binlog(tp=BinlogType.Commit, start_ts=0, commit_ts=6).SerializeToString(), "without a start time"),
        (Binlog(tp=BinlogType.Prewrite, start_ts=0, commit_ts=6).SerializeToString(), "without a start time"),
    ],
)
def test_what_would_be_lost_in_silence_is_refused(payload: bytes, why: str) -> None:
    with pytest.raises(BadBinlog, match=why):
        item_of(payload)


@pytest.mark.row("P17")
def test_one_at_the_limit_on_transactions_is_taken_and_one_above_it_is_refused_with_it() -> None:
    class Sized(bytes):  # says that it is so large: without the memory
        size: int

        def __len__(self) -> int:
            return self.size

    payload = Sized(Binlog(start_ts=5).SerializeToString())
    payload.size = MAX_TRANSACTION_BYTES
    assert item_of(payload).start_ts == 5
    payload.size += 1
    with pytest.raises(BadBinlog, match="over the limit of 2040109465") as refused:
        item_of(payload)
    assert (refused.value.size, refused.value.limit) == (payload.size, MAX_TRANSACTION_BYTES)
