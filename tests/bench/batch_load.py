"""A load client for a Pump's WriteBinlogs: batches of real P/C pairs, made beforehand; prints one JSON line."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator

import grpc

from pumphouse.proto.pumphouse_pb2 import WriteBinlogsResponse
from pumphouse.rpc.channel import SERVER_OPTIONS
from tests.bench.h2_load import one_row, varint

_METHOD = "/pumphouse.v1.PumpBatch/WriteBinlogs"


def batches(cluster: int, size: int, pairs: int, count: int) -> list[bytes]:
    """Serialized WriteBinlogsRequest messages: ``pairs`` prewrites, each with its commit behind it."""
    value = b"\x2a" + varint(len(rows := one_row(size))) + rows
    tail = b"\x38\x00\x40\x00"
    ts = int(time.time() * 1000) << 18
    made = []
    for number in range(1, count + 1):
        parts = [b"\x08" + varint(cluster) + b"\x10" + varint(number)]
        for _ in range(pairs):
            ts += 4
            start, commit = varint(ts), varint(ts + 2)
            key = b"\x22\x11t%016x" % ts
            prewrite = b"\x08\x00\x10" + start + b"\x18\x00" + key + value + tail
            done = b"\x08\x01\x10" + start + b"\x18" + commit + key + tail
            parts += (b"\x1a", varint(len(prewrite)), prewrite, b"\x1a", varint(len(done)), done)
        made.append(b"".join(parts))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("addr")
    parser.add_argument("cluster", type=int)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--batches", type=int, default=1000)
    args = parser.parse_args()
    made = batches(args.cluster, args.size, args.pairs, args.batches)
    channel = grpc.insecure_channel(args.addr, options=SERVER_OPTIONS)
    call = channel.stream_stream(_METHOD, None, None)
    grpc.channel_ready_future(channel).result(30)
    began, cpu = time.perf_counter(), time.process_time()

    def send() -> Iterator[bytes]:
        yield from made

    answers = list(call(send()))
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    ok = 0
    for number, answer in enumerate(answers, 1):
        message = WriteBinlogsResponse.FromString(answer)
        assert message.batch_id == number
        assert not any(status.code for status in message.statuses), message.statuses
        ok += len(message.statuses)
    assert ok == 2 * args.pairs * args.batches
    print(json.dumps({"ok": ok, "seconds": seconds, "client_cpu_s_per_100k": used / ok * 1e5}))


if __name__ == "__main__":
    main()
