"""A lean load client for a Pump's unary WriteBinlog: real P/C pairs, many calls in each socket write; prints one JSON line.

Each of `--c` slots sends a P, waits for its answer, sends its C, waits, and so on. HTTP/2 is spoken by hand (own HPACK
block: literal once, indexed afterwards), so the client costs 0.4-0.6 CPU s per 100,000 calls and is the same for every
server. Any answer that is not an empty WriteBinlogResp makes it fail.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import struct
import time

import uvloop

PATH = b"/binlog.Pump/WriteBinlog"
_FRAME = struct.Struct(">IBI")


def varint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def one_row(size: int) -> bytes:
    """A PrewriteValue of about so many bytes: one inserted row of random ones."""
    image = os.urandom(size)
    mutation = b"\x08\x05\x12" + varint(len(image)) + image + b"\x38\x00"
    return b"\x08\x01\x12" + varint(len(mutation)) + mutation


def literal(first: int, name: bytes, value: bytes) -> bytes:
    return bytes([first]) + (varint(len(name)) + name if name else b"") + varint(len(value)) + value


class Run:
    """What all connections of one run share."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.first = (
            b"\x83\x86"
            + literal(0x44, b"", PATH)
            + literal(0x41, b"", args.addr.encode())
            + literal(0x5F, b"", b"application/grpc")
            + literal(0x40, b"te", b"trailers")
            + literal(0x7A, b"", b"pump-load")
        )
        self.next = b"\x83\x86\xc2\xc1\xc0\xbf\xbe"
        self.value = b"\x2a" + varint(len(value := one_row(args.size))) + value  # prewrite_value, field 5
        self.cluster = b"\x08" + varint(args.cluster)
        self.newest = 0
        self.latencies: list[float] = []

    def now(self) -> None:
        """Timestamps are of this moment from here on, as PD's are: none that a Pump has left behind.

        Of the millisecond before: within one a cluster's own clock may be behind ours, and its future is refused.
        """
        self.newest = max(self.newest, int(time.time() * 1000) - 1 << 18)

    def ts(self) -> int:
        self.newest += 2
        return self.newest

    def request(self, kind: int, start: int, commit: int) -> bytes:
        key = b"t%016x" % start
        head = b"\x08" + varint(kind) + b"\x10" + varint(start) + b"\x18" + varint(commit)
        body = head + b"\x22" + varint(len(key)) + key + (self.value if kind == 0 else b"")
        return self.cluster + b"\x12" + varint(len(body)) + body


class Conn(asyncio.Protocol):
    """One connection with some of the slots."""

    def __init__(self, run: Run, slots: int, done: asyncio.Future[None]) -> None:
        self.run, self.slots, self.done = run, slots, done
        self.buffer = b""
        self.stream = 1
        self.open: dict[int, tuple[int, int, float]] = {}
        self.window = 65535
        self.ready: list[tuple[int, int]] = []
        self.ok = self.bad = 0
        self.stop = False
        self.first = True

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        settings = _FRAME.pack(6 << 8 | 4, 0, 0) + struct.pack(">HI", 4, 1 << 20)
        transport.write(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + _FRAME.pack(4 << 8 | 8, 0, 0) + struct.pack(">I", 1 << 30)
        )
        self.ready = [(0, 0)] * self.slots
        self.pump([])

    def pump(self, out: list[bytes]) -> None:
        keep = []
        self.run.now()
        for start, kind in self.ready:
            if self.stop and kind == 0:
                continue
            ts = start if kind else self.run.ts()
            body = self.run.request(kind, ts, self.run.ts() if kind else 0)
            if self.window < len(body) + 5:
                keep.append((start, kind))
                continue
            self.window -= len(body) + 5
            head = self.run.first if self.first else self.run.next
            self.first = False
            if self.run.args.timeout_header:
                head += literal(0x00, b"grpc-timeout", b"%dm" % (14000 + self.stream % 999))
            sid, self.stream = self.stream, self.stream + 2
            self.open[sid] = (ts, kind, time.perf_counter())
            out += (
                _FRAME.pack(len(head) << 8 | 1, 4, sid), head,
                _FRAME.pack((len(body) + 5) << 8, 1, sid), b"\0" + struct.pack(">I", len(body)), body,
            )  # fmt: skip
        self.ready = keep
        if out:
            self.transport.write(b"".join(out))
        if self.stop and not self.open and not self.done.done():
            self.done.set_result(None)

    def data_received(self, data: bytes) -> None:
        buffer = self.buffer + data if self.buffer else data
        at, size, out, now = 0, len(buffer), [], time.perf_counter()
        while size - at >= 9:
            length_type, flags, sid = _FRAME.unpack_from(buffer, at)
            length, kind = length_type >> 8, length_type & 255
            end = at + 9 + length
            if end > size:
                break
            if kind == 0:
                if length == 5 or (length == 7 and buffer[end - 2 : end] == b"\x0a\x00"):
                    self.ok += 1
                elif length:
                    self.bad += 1
                    print("answer", buffer[at + 14 : end][:120])
            if kind in (0, 1) and flags & 1:
                done = self.open.pop(sid, None)
                if done:
                    self.run.latencies.append(now - done[2])
                    self.ready.append((done[0], 1) if done[1] == 0 else (0, 0))
            elif kind == 4 and not flags & 1:
                out.append(_FRAME.pack(4, 1, 0))
            elif kind == 6 and not flags & 1:
                out += (_FRAME.pack(8 << 8 | 6, 1, 0), buffer[at + 9 : end])
            elif kind == 8 and sid == 0:
                self.window += int.from_bytes(buffer[at + 9 : end], "big")
            elif kind in (3, 7):
                self.bad += 1
                print("reset or goaway", kind, buffer[at + 9 : end][:80])
                self.open.pop(sid, None)
            at = end
        self.buffer = buffer[at:]
        self.pump(out)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.bad += 1
            self.done.set_result(None)


async def drive(args: argparse.Namespace) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    run = Run(args)
    host, port = args.addr.rsplit(":", 1)
    began, cpu = time.perf_counter(), time.process_time()
    conns = []
    for _ in range(args.conns):
        done = loop.create_future()
        _, conn = await loop.create_connection(lambda d=done: Conn(run, args.c // args.conns, d), host, int(port))
        conns.append((conn, done))
    await asyncio.sleep(args.seconds)
    for conn, _ in conns:
        conn.stop = True
    await asyncio.wait_for(asyncio.gather(*(done for _, done in conns)), 30)
    seconds = time.perf_counter() - began
    ok, bad = sum(c.ok for c, _ in conns), sum(c.bad for c, _ in conns)
    latencies = sorted(run.latencies)
    if refused := len(latencies) - ok:  # calls that ended with a status alone
        print("refused", refused)
        bad += refused
    return {
        "ok": ok,
        "bad": bad,
        "seconds": seconds,
        "p50_ms": latencies[len(latencies) // 2] * 1e3,
        "p99_ms": latencies[int(len(latencies) * 0.99)] * 1e3,
        "client_cpu_s_per_100k": (time.process_time() - cpu) / max(ok, 1) * 1e5,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("addr")
    parser.add_argument("cluster", type=int)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--c", type=int, default=64)
    parser.add_argument("--conns", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--timeout-header", action="store_true")
    args = parser.parse_args()
    result = uvloop.run(drive(args))
    print(json.dumps(result))
    raise SystemExit(result["bad"] != 0)


if __name__ == "__main__":
    main()
