"""The front door alone: unary calls that a group handler answers at once, from the lean client.

`python -m tests.bench.door` is the server: prints its port and serves until it is killed.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.bench.harness import Result, Sample, Watch

_SECONDS = 4.0


def _one(concurrency: int, connections: int, deadline: bool) -> Sample:
    server = subprocess.Popen([sys.executable, "-m", "tests.bench.door"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        addr = f"127.0.0.1:{int(server.stdout.readline())}"
        with Watch(server.pid) as watch:
            done = subprocess.run(
                [
                    sys.executable, "-m", "tests.bench.h2_load", addr, "1", "--c", str(concurrency),
                    "--conns", str(connections), "--seconds", str(_SECONDS),
                    *(["--timeout-header"] if deadline else []),
                ],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )  # fmt: skip
        said = json.loads(done.stdout.strip().splitlines()[-1])
        watch.seconds = said["seconds"]
        return watch.sample(
            said["ok"],
            p50_ms=said["p50_ms"],
            p99_ms=said["p99_ms"],
            client_cpu_s_per_100k=said["client_cpu_s_per_100k"],
        )
    finally:
        server.kill()
        server.wait()


def _bench(work: Path, runs: int, *, name: str, concurrency: int, connections: int, deadline: bool) -> Result:
    del work
    return Result(name, "requests/s", [_one(concurrency, connections, deadline) for _ in range(runs)])


BENCHES: dict[str, Callable[[Path, int], Result]] = {
    name: partial(_bench, name=name, concurrency=concurrency, connections=connections, deadline=deadline)
    for name, concurrency, connections, deadline in (
        ("door_unary_256B_c1", 1, 1, False),
        ("door_unary_256B_c64", 64, 1, False),
        ("door_unary_256B_c256", 256, 1, False),
        ("door_unary_256B_c64_deadline", 64, 1, True),
        ("door_unary_256B_c256_deadline_8_connections", 256, 8, True),
    )
}


async def _serve() -> None:
    from pump_service.door.server import Server

    listening = socket.create_server(("127.0.0.1", 0))
    server = Server(listening)
    server.add_group_method("/binlog.Pump/WriteBinlog", lambda requests, answer: answer([b""] * len(requests)))
    await server.start()
    print(listening.getsockname()[1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve())
