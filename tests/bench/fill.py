"""Fills a Pump through its batch call, for the benchmarks that read."""

from __future__ import annotations

import os
from collections.abc import Iterator

import grpc

from include.codec import payload
from include.proto import pumphouse_pb2, pumphouse_pb2_grpc
from tests.bench.pumps import RunningPump


def pairs(first_ts: int, count: int, value: bytes) -> Iterator[list[bytes]]:
    """Batches of P and C binlogs of `count` transactions with one prewrite value each."""
    batch: list[bytes] = []
    for n in range(count):
        start = first_ts + 4 * n
        key = b"t%016x" % start
        batch.append(payload.make_prewrite(start, key, value))
        batch.append(payload.make_commit(start, start + 2, key))
        if len(batch) >= 512:
            yield batch
            batch = []
    if batch:
        yield batch


def fill(running: RunningPump, first_ts: int, count: int, size: int) -> int:
    """Write `count` transactions of one inserted row with `size` bytes; returns the last commit ts."""
    builder = payload.PrewriteValueBuilder(1)
    builder.insert(1, os.urandom(size))
    value = builder.build()
    with grpc.insecure_channel(
        running.grpc, options=[("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    ) as channel:
        stub = pumphouse_pb2_grpc.PumpBatchStub(channel)
        requests = (
            pumphouse_pb2.WriteBinlogsRequest(cluster_id=running.cluster_id, batch_id=n, payloads=batch)
            for n, batch in enumerate(pairs(first_ts, count, value))
        )
        for answer in stub.WriteBinlogs(requests):
            bad = [s for s in answer.statuses if s.code]
            if bad:
                raise RuntimeError(f"the Pump refused: {bad[0].message}")
    return first_ts + 4 * (count - 1) + 2
