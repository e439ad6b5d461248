"""Fills a Pump through its batch call, for the benchmarks that read."""

from __future__ import annotations

import os
from collections.abc import Iterator

import grpc
import numpy as np

from pumphouse.codec import payload
from pumphouse.codec.payload import make_commit, make_prewrite, make_rollback
from pumphouse.proto import pumphouse_pb2, pumphouse_pb2_grpc
from tests.bench.pumps import RunningPump

_KEY = b"bench"
_TRANSACTIONS_AT_ONCE = 256
_TS_BYTES = 9  # of a timestamp of our time, as a varint


def _varints(ts: np.ndarray) -> np.ndarray:
    """(n, 9) bytes."""
    shifts = np.arange(_TS_BYTES, dtype=np.uint64) * np.uint64(7)
    found = (ts.astype(np.uint64)[:, None] >> shifts & np.uint64(0x7F)).astype(np.uint8)
    found[:, :-1] |= 0x80
    return found


def pairs(first_ts: int, count: int, value: bytes) -> Iterator[list[bytes]]:
    """Batches of P and C binlogs of `count` transactions with one prewrite value each."""
    p = np.frombuffer(make_prewrite(first_ts, _KEY, value), np.uint8)
    c = np.frombuffer(make_commit(first_ts, first_ts + 2, _KEY), np.uint8)
    for at in range(0, count, _TRANSACTIONS_AT_ONCE):
        start = first_ts + 4 * np.arange(at, min(at + _TRANSACTIONS_AT_ONCE, count))
        ps, cs = np.tile(p, (len(start), 1)), np.tile(c, (len(start), 1))
        # Type, tag of the start ts, start ts, tag of the commit ts, commit ts.
        ps[:, 3 : 3 + _TS_BYTES] = cs[:, 3 : 3 + _TS_BYTES] = _varints(start)
        cs[:, 4 + _TS_BYTES : 4 + 2 * _TS_BYTES] = _varints(start + 2)
        yield [row.tobytes() for pair in zip(ps, cs, strict=True) for row in pair]


def fill(running: RunningPump, first_ts: int, count: int, size: int) -> int:
    """Write `count` transactions of one inserted row with `size` bytes; returns the last commit ts.

    Their timestamps are made up from ``first_ts`` on, which must be one that the cluster has just given out: nothing at or
    below a watermark that the Pump has published. A prewrite that is rolled back behind them holds the watermark
    meanwhile: a fake of the Pump's own would make them late.
    """
    builder = payload.PrewriteValueBuilder(1)
    builder.insert(1, os.urandom(size))
    value = builder.build()
    holder = first_ts + 1  # between the first prewrite's and the first commit's

    def batches() -> Iterator[list[bytes]]:
        yield [make_prewrite(holder, _KEY)]
        yield from pairs(first_ts, count, value)
        yield [make_rollback(holder, _KEY)]

    with grpc.insecure_channel(
        running.grpc, options=[("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    ) as channel:
        stub = pumphouse_pb2_grpc.PumpBatchStub(channel)
        requests = (
            pumphouse_pb2.WriteBinlogsRequest(cluster_id=running.cluster_id, batch_id=n, payloads=batch)
            for n, batch in enumerate(batches())
        )
        for answer in stub.WriteBinlogs(requests):
            bad = [s for s in answer.statuses if s.code]
            if bad:
                raise RuntimeError(f"the Pump refused: {bad[0].message}")
    return first_ts + 4 * (count - 1) + 2
