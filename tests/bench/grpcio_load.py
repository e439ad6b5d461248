"""Unary WriteBinlog calls by stock grpcio (asyncio), a deadline of 15 s in each: prints JSON as the other clients do.

`python -m tests.bench.grpcio_load ADDR CLUSTER_ID [--c 64] [--conns 1] [--size 256] [--seconds 5]`
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

import grpc

from pumphouse.codec.payload import make_commit, make_prewrite
from pumphouse.model.tso import Tso
from pumphouse.proto.pump_pb2 import WriteBinlogReq
from tests.bench.h2_load import PATH, one_row

_DEADLINE_S = 15.0
_KEY = b"k"


class Clock:
    """Timestamps of 2 ms ago: a Pump refuses those that the cluster has not given out yet."""

    def __init__(self) -> None:
        self._last = 0

    def ts(self) -> Tso:
        """The next."""
        self._last = max(self._last + 1, int(time.time() * 1000) - 2 << 18)
        return Tso(self._last)


async def drive(args: argparse.Namespace) -> dict[str, Any]:
    """Each of ``c`` workers sends a prewrite and its commit in turn."""
    value, clock = one_row(args.size), Clock()
    latencies: list[float] = []
    failed = 0
    cpu, began = time.process_time(), time.perf_counter()

    async def worker(channel: grpc.aio.Channel) -> None:
        call = channel.unary_unary(PATH.decode())

        async def send(payload: bytes) -> None:
            nonlocal failed
            sent = time.perf_counter()
            request = WriteBinlogReq(clusterID=args.cluster, payload=payload).SerializeToString()
            try:
                failed += bool(await call(request, timeout=_DEADLINE_S))
            except grpc.aio.AioRpcError:
                failed += 1
            latencies.append(time.perf_counter() - sent)

        while time.perf_counter() - began < args.seconds:
            start = clock.ts()
            await send(make_prewrite(start, _KEY, value))
            await send(make_commit(start, clock.ts(), _KEY))

    # Channels of equal arguments share a connection.
    channels = [grpc.aio.insecure_channel(args.addr, [("bench", n)]) for n in range(args.conns)]
    await asyncio.gather(*(worker(channels[n % len(channels)]) for n in range(args.c)))
    seconds, ok = time.perf_counter() - began, len(latencies) - failed
    for channel in channels:
        await channel.close()
    latencies.sort()
    return {
        "ok": ok, "failed": failed, "seconds": seconds,
        "p50_ms": latencies[len(latencies) // 2] * 1e3, "p99_ms": latencies[int(len(latencies) * 0.99)] * 1e3,
        "client_cpu_s_per_100k": (time.process_time() - cpu) / max(ok, 1) * 1e5,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("addr")
    parser.add_argument("cluster", type=int)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--c", type=int, default=64)
    parser.add_argument("--conns", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    print(json.dumps(asyncio.run(drive(parser.parse_args()))))


if __name__ == "__main__":
    main()
