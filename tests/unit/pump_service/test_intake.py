"""Requests read by kernels against protobuf."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pump_service.intake.convert import item_of
from pump_service.intake.payloads import Intake, read_batch, read_group
from pump_service.store.parse import GOOD
from pumphouse.errors import BadBinlog
from pumphouse.proto.pump_pb2 import WriteBinlogReq
from pumphouse.proto.pumphouse_pb2 import WriteBinlogsRequest
from tests.support.storekit import (
    as_stored,
    commit,
    fake,
    prewrite,
    rollback,
)

pytestmark = pytest.mark.row("W1")

CLUSTER = 1 << 62 | 77


def _payloads(chance: random.Random, count: int) -> list[bytes]:
    kinds = [prewrite, rollback, fake, lambda ts: commit(ts, ts + 1)]
    payloads = [chance.choice(kinds)(n).payload for n in range(1, count + 1)]
    return [*(payload[: len(payload) - chance.choice([0, 0, 4])] for payload in payloads), b"", b"\xff"]


def _damaged(data: bytes, chance: random.Random) -> bytes:
    out = bytearray(data)
    if out and chance.random() < 0.4:
        at = chance.randrange(len(out))
        match chance.randrange(3):
            case 0:
                out[at] = chance.randrange(256)
            case 1:
                del out[at : at + chance.choice([1, 3])]
            case _:
                out[at:at] = chance.randbytes(chance.choice([1, 3]))
    return bytes(out)


def _check(intake: Intake, row: int, payload: bytes) -> None:
    """A row that the kernel takes is what protobuf would have stored of the same payload."""
    assert as_stored(intake.records, row) == item_of(payload).payload


@pytest.mark.parametrize("seed", range(20))
def test_a_group_of_requests_holds_what_protobuf_finds_in_each(seed: int) -> None:
    chance = random.Random(seed)
    requests = [
        _damaged(
            WriteBinlogReq(clusterID=chance.choice([CLUSTER] * 9 + [5, 0]), payload=payload).SerializeToString(), chance
        )
        for payload in _payloads(chance, 100)
    ]
    # Between them lies what is no request: they come as they lie in a socket read.
    gaps = [chance.randbytes(chance.randrange(30)) for _ in requests]
    lengths = np.fromiter(map(len, requests), np.int64)
    begins = np.cumsum(lengths + np.fromiter(map(len, gaps), np.int64)) - lengths
    data = np.frombuffer(b"".join(gap + request for gap, request in zip(gaps, requests, strict=True)), np.uint8)
    intake = read_group(data, begins, lengths, CLUSTER)
    good = 0
    latest = prewrites = probes = 0
    for row, request in enumerate(requests):
        if intake.records.columns.verdict[row] != GOOD:
            continue
        good += 1
        message = WriteBinlogReq.FromString(request)
        assert message.clusterID == CLUSTER
        _check(intake, row, message.payload)
        item = item_of(message.payload)
        latest = max(latest, item.start_ts, item.commit_ts)
        prewrites += item.tp == 0
        probes += item.start_ts == item.commit_ts == 0
    assert good > 20
    assert intake.records.bytes == int(intake.records.sizes[intake.records.columns.verdict == GOOD].sum())
    assert (intake.others, intake.latest, intake.prewrites, intake.probes) == (
        len(requests) - good, latest, prewrites, probes,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_a_batch_holds_what_protobuf_finds_in_it(seed: int) -> None:
    chance = random.Random(100 + seed)
    taken = 0
    for _ in range(30):
        payloads = _payloads(chance, chance.choice([0, 1, 30]))[:-2]
        message = WriteBinlogsRequest(
            cluster_id=chance.choice([0, CLUSTER]), batch_id=chance.choice([0, 300]), payloads=payloads
        )
        request = _damaged(message.SerializeToString(), chance)
        found = read_batch(request)
        if found is None:
            continue
        message = WriteBinlogsRequest.FromString(request)
        cluster_id, batch_id, intake = found
        assert intake.records.bytes == int(intake.records.sizes[intake.records.columns.verdict == GOOD].sum())
        assert (cluster_id, batch_id, len(intake.records)) == (
            message.cluster_id,
            message.batch_id,
            len(message.payloads),
        )
        for row, payload in enumerate(message.payloads):
            if intake.records.columns.verdict[row] == GOOD:
                taken += 1
                _check(intake, row, payload)
            else:
                assert _not_as_written(payload)
    assert taken > 50


def _not_as_written(payload: bytes) -> bool:
    """Whether protobuf refuses a payload, or would write it otherwise."""
    try:
        return item_of(payload).payload != payload
    except BadBinlog:
        return True
