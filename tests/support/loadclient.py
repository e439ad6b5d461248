"""A process that writes transactions to a Pump as fast as they are answered, and keeps a journal of what was answered.

    python -m tests.support.loadclient ADDR CLUSTER_DIR JOURNAL SEED CALLERS STREAMS LARGEST

It outlives the Pump that is killed under it, so its journal is the truth: a line is written before a binlog is sent
(`p`, `c`, `r`) and after it was answered (`P`, `C`, `R`), with start ts and size or commit ts. Payloads follow from the
start ts alone (`value_of`). It ends when the Pump does.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

import grpc
import uvloop

from pumphouse.codec.payload import PrewriteValueBuilder
from pumphouse.proto.pump_pb2 import WriteBinlogReq
from pumphouse.proto.pump_pb2_grpc import PumpStub
from pumphouse.proto.pumphouse_pb2 import WriteBinlogsRequest, WriteBinlogsResponse
from pumphouse.proto.pumphouse_pb2_grpc import PumpBatchStub
from pumphouse.registry.file import FileCluster
from tests.support.pumpserver import commit, prewrite, rollback


def value_of(start_ts: int, size: int) -> bytes:
    """The prewrite value: one row of that many bytes."""
    builder = PrewriteValueBuilder(1)
    builder.insert(7, random.Random(start_ts).randbytes(size + 1))
    return builder.build()


class Journal:
    """Lines in the order in which things happened, straight to the file."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def say(self, what: str, start_ts: int, value: int = 0) -> None:
        """One line."""
        os.write(self._fd, f"{what} {start_ts} {value}\n".encode())


class Load:
    """Unary callers and batch streams on one event loop."""

    def __init__(self, addr: str, cluster: FileCluster, journal: Journal, seed: int, largest: int) -> None:
        self._addr = addr
        self._cluster = cluster
        self._id = cluster.cluster_id()
        self._journal = journal
        self._seed = seed
        self._largest = largest

    def size(self, chance: random.Random) -> int:
        """Mostly small, now and then as large as allowed."""
        return chance.randint(0, self._largest) if chance.random() < 0.05 else chance.randint(0, 600)

    async def caller(self, number: int) -> None:
        """One transaction after the other, as TiDB does it."""
        chance = random.Random(f"{self._seed}-{number}")
        async with grpc.aio.insecure_channel(self._addr) as channel:
            stub = PumpStub(channel)

            async def write(payload: bytes) -> None:
                await stub.WriteBinlog(WriteBinlogReq(clusterID=self._id, payload=payload), timeout=20)

            while True:
                start, size = int(self._cluster.tso()), self.size(chance)
                self._journal.say("p", start, size)
                await write(prewrite(start, value_of(start, size)))
                self._journal.say("P", start, size)
                if chance.random() < 0.06:
                    self._journal.say("r", start)
                    await write(rollback(start))
                    self._journal.say("R", start)
                    continue
                ts = int(self._cluster.tso())
                self._journal.say("c", start, ts)
                await write(commit(start, ts))
                self._journal.say("C", start, ts)

    async def stream(self, number: int) -> None:
        """Batches of prewrites, and of their commits, over one stream."""
        chance = random.Random(f"{self._seed}-stream-{number}")
        async with grpc.aio.insecure_channel(self._addr) as channel:
            call = PumpBatchStub(channel).WriteBinlogs()

            async def write(payloads: list[bytes]) -> None:
                await call.write(WriteBinlogsRequest(cluster_id=self._id, batch_id=1, payloads=payloads))
                answer = await call.read()
                if not isinstance(answer, WriteBinlogsResponse) or any(status.code for status in answer.statuses):
                    raise ConnectionError(str(answer))

            while True:
                starts = {int(self._cluster.tso()): self.size(chance) for _ in range(chance.randint(1, 40))}
                for start, size in starts.items():
                    self._journal.say("p", start, size)
                await write([prewrite(start, value_of(start, size)) for start, size in starts.items()])
                for start, size in starts.items():
                    self._journal.say("P", start, size)
                outcomes = {start: int(self._cluster.tso()) for start in starts}
                for start, ts in outcomes.items():
                    self._journal.say("c", start, ts)
                await write([commit(start, ts) for start, ts in outcomes.items()])
                for start, ts in outcomes.items():
                    self._journal.say("C", start, ts)


async def run(arguments: list[str]) -> None:
    """Until every caller has met the end of the Pump."""
    addr, directory, journal, seed, callers, streams, largest = arguments
    load = Load(addr, FileCluster(Path(directory)), Journal(Path(journal)), int(seed), int(largest))
    work = [load.caller(n) for n in range(int(callers))] + [load.stream(n) for n in range(int(streams))]
    ends = await asyncio.gather(*work, return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException) and not isinstance(end, grpc.RpcError | ConnectionError):
            raise end


if __name__ == "__main__":
    uvloop.run(run(sys.argv[1:]))
