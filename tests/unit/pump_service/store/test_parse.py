"""The parse kernel against protobuf: what it takes is stored as protobuf would store it, the rest is left to that."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from pump_service.intake.convert import item_of
from pump_service.store import frame, parse
from pump_service.store.records import Records
from pump_service.store.store import Item
from pumphouse.errors import BadBinlog
from pumphouse.model.binlog import MAX_TRANSACTION_BYTES
from pumphouse.proto.binlog_pb2 import Binlog, BinlogType
from tests.support.storekit import as_stored

pytestmark = pytest.mark.row("W1", "W2")

_EDGES = (0, 1, 127, 128, 300, 1 << 31, (1 << 31) - 1, 1 << 32, 1 << 62, (1 << 63) - 1, -1, -(1 << 31), -(1 << 63))


def _message(chance: random.Random) -> bytes:
    """A Binlog as some writer may have put it: fields set or not, edges of their types."""
    message = Binlog()
    start = chance.choice(_EDGES) if chance.random() < 0.2 else chance.getrandbits(60)
    if chance.random() < 0.98:
        message.tp = chance.choice([BinlogType.Prewrite, BinlogType.Commit, BinlogType.Rollback, BinlogType.PreDDL])
    if chance.random() < 0.98:
        message.start_ts = start
    if chance.random() < 0.98:
        message.commit_ts = chance.choice(
            [0, start, min(start + 2, (1 << 63) - 1)] if chance.random() < 0.9 else _EDGES
        )
    for name in ("prewrite_key", "prewrite_value", "ddl_query"):
        if chance.random() < 0.5:
            setattr(message, name, chance.randbytes(chance.choice([0, 1, 20, 127, 128, 300])))
    if chance.random() < 0.6:
        message.ddl_job_id = chance.choice([0, 0, 7, *_EDGES])
    if chance.random() < 0.6:
        message.ddl_schema_state = chance.choice([0, 0, 1, 5, -1, (1 << 31) - 1, -(1 << 31)])
    return message.SerializeToString()


def _mutated(data: bytes, chance: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(chance.choice([0, 0, 0, 1, 1, 2, 5])):
        at = chance.randrange(len(out) + 1)
        match chance.randrange(5):
            case 0:
                out[at:at] = chance.randbytes(chance.choice([1, 2, 9]))
            case 1:
                del out[at : at + chance.choice([1, 2, 9])]
            case 2 if at < len(out):
                out[at] = chance.randrange(256)
            case 3:
                out += chance.choice([b"\x38\x00", b"\x40\x00", b"\x08\x01", b"\x22\x01k", b"\x7a\x03new"])
            case 4 if at < len(out):
                # a varint longer than it need be, where a byte ends one
                out[at : at + 1] = bytes([out[at] | 0x80, 0])
    return bytes(out)


def _payloads(seed: int, count: int) -> Iterator[bytes]:
    chance = random.Random(seed)
    yield b""
    for _ in range(count):
        yield _mutated(_message(chance), chance)
        yield chance.randbytes(chance.randrange(12))


def _placed(payloads: list[bytes], gap: bytes) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    sizes = np.array([len(each) for each in payloads], np.int64)
    starts = np.cumsum(sizes + len(gap)) - sizes
    return np.frombuffer(b"".join(gap + each for each in payloads), np.uint8), starts, sizes


def _reference(payload: bytes) -> Item | None:
    try:
        return item_of(payload)
    except BadBinlog:
        return None


@pytest.mark.parametrize("seed", range(6))
def test_what_the_kernel_takes_is_what_protobuf_makes_of_it(seed: int) -> None:
    payloads = list(_payloads(seed, 3000))
    # Bytes around a payload must not matter: between them stands what could go on as a varint or a field.
    data, starts, sizes = _placed(payloads, chr(0x3A + seed).encode() * 2)
    columns = parse.parse(data, starts, sizes)
    records = Records(data, starts, sizes, columns, len(data))
    good = 0
    for row, payload in enumerate(payloads):
        item = _reference(payload)
        if columns.verdict[row] != parse.GOOD:
            continue
        good += 1
        assert item is not None, payload.hex()
        assert as_stored(records, row) == item.payload, payload.hex()
        key_at, key_size = int(columns.key_at[row]), int(columns.key_size[row])
        assert (columns.tp[row], columns.start_ts[row], columns.commit_ts[row]) == (
            item.tp, item.start_ts, item.commit_ts,
        )  # fmt: skip
        assert item.payload[key_at : key_at + key_size] == item.prewrite_key
        assert columns.ddl_job_id[row] == Binlog.FromString(item.payload).ddl_job_id
    assert good > 300


@pytest.mark.parametrize("seed", range(3))
def test_whatever_protobuf_stores_is_taken_by_the_kernel_the_next_time(seed: int) -> None:
    items = [item for payload in _payloads(100 + seed, 2000) if (item := _reference(payload)) is not None]
    known = [item for item in items if item.payload == _without_unknown(item.payload)]
    data, starts, sizes = _placed([item.payload for item in known], b"")
    columns = parse.parse(data, starts, sizes)
    assert not columns.verdict.any()
    assert not columns.tail.any()
    assert len(known) > 500


def _without_unknown(payload: bytes) -> bytes:
    message = Binlog.FromString(payload)
    message.DiscardUnknownFields()
    return message.SerializeToString()


@pytest.mark.row("P17")
@pytest.mark.parametrize(("over", "verdict"), [(0, parse.GOOD), (1, parse.OTHER)])
def test_a_binlog_above_the_limit_on_transactions_is_left_to_the_refusal(over: int, verdict: int) -> None:
    size = MAX_TRANSACTION_BYTES + over
    head = Binlog(tp=0, start_ts=5, commit_ts=0).SerializeToString()
    tail = b"\x38\x00\x40\x00"
    fill = size - len(head) - len(tail) - 6
    head += b"\x2a" + frame.varint(fill)
    assert len(head) + fill + len(tail) == size
    data = np.zeros(size, np.uint8)  # no memory before it is touched
    data[: len(head)] = np.frombuffer(head, np.uint8)
    data[-len(tail) :] = np.frombuffer(tail, np.uint8)
    columns = parse.parse(data, np.array([0]), np.array([size]))
    assert columns.verdict[0] == verdict
