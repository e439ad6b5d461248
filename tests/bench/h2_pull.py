"""A lean pull client: reads one stream of a Pump to a commit ts and prints one JSON line.

HTTP/2 is spoken by hand: DATA frames are taken in bulk out of large socket reads, messages are counted by a kernel, and
only the last one of a read is looked into. So it costs no more than a Go client, for every server: PullBinlogs of ours,
over either transport, and of a Go Pump. Of PullBatches each frame is opened where it lies.
"""

from __future__ import annotations

import argparse
import json
import socket
import struct
import time

import numpy as np
import pyarrow as pa

from pumphouse.codec.jit import Bytes, kernel
from pumphouse.proto.pump_pb2 import Pos, PullBinlogReq, PullBinlogResp
from pumphouse.proto.pumphouse_pb2 import PullBatchesRequest, PullBatchesResponse
from tests.bench.h2_load import literal

_FRAME = struct.Struct(">IBI")
_WINDOW = 1 << 30
_READ = 4 << 20


@kernel
def count_messages(data: Bytes, at: int, end: int, out: Bytes) -> int:
    """Whole messages from ``at`` on; out[0] = behind the last, out[1] = where the last one begins."""
    count = 0
    out[1] = -1
    while at + 5 <= end:
        size = np.int64(data[at + 1]) << 24 | np.int64(data[at + 2]) << 16 | np.int64(data[at + 3]) << 8 | data[at + 4]
        if at + 5 + size > end:
            break
        out[1] = at
        at += 5 + size
        count += 1
    out[0] = at
    return count


class Puller:
    """One connection with one call."""

    def __init__(self, addr: str, path: bytes, request: bytes) -> None:
        host, port = addr.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        head = (
            b"\x83\x86" + literal(0x04, b"", path) + literal(0x01, b"", addr.encode())
            + b"\x0f" + literal(31 - 15, b"", b"application/grpc")
            + literal(0x00, b"te", b"trailers")
        )  # fmt: skip
        settings = struct.pack(">HIHI", 4, _WINDOW, 5, (1 << 24) - 1)
        body = b"\0" + struct.pack(">I", len(request)) + request
        self.socket.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + _FRAME.pack(len(settings) << 8 | 4, 0, 0) + settings
            + _FRAME.pack(4 << 8 | 8, 0, 0) + struct.pack(">I", _WINDOW)
            + _FRAME.pack(len(head) << 8 | 1, 4, 1) + head
            + _FRAME.pack(len(body) << 8, 1, 1) + body
        )  # fmt: skip
        self.raw = bytearray(_READ + (1 << 24))
        self.have = 0
        self.taken = 0
        self.data = bytearray()

    def read(self) -> None:
        """One socket read: payloads of DATA frames go to `data`."""
        got = self.socket.recv_into(memoryview(self.raw)[self.have : self.have + _READ])
        if not got:
            raise RuntimeError("the server hung up")
        self.have += got
        at, view = 0, memoryview(self.raw)
        while self.have - at >= 9:
            length_type, flags, _ = _FRAME.unpack_from(self.raw, at)
            length, kind = length_type >> 8, length_type & 255
            end = at + 9 + length
            if end > self.have:
                break
            if kind == 0:
                self.data += view[at + 9 : end]
                self.taken += length
            elif kind == 1 and flags & 1:
                raise RuntimeError(f"the stream ended: {bytes(view[at + 9 : end])!r}")
            elif kind in (3, 7):
                raise RuntimeError(f"reset or goaway: {bytes(view[at + 9 : end])!r}")
            elif kind == 4 and not flags & 1:
                self.socket.sendall(_FRAME.pack(4, 1, 0))
            elif kind == 6 and not flags & 1:
                self.socket.sendall(_FRAME.pack(8 << 8 | 6, 1, 0) + bytes(view[at + 9 : end]))
            at = end
        self.raw[: self.have - at] = self.raw[at : self.have]
        self.have -= at
        if self.taken > _WINDOW // 4:
            grant = struct.pack(">I", self.taken)
            self.socket.sendall(_FRAME.pack(4 << 8 | 8, 0, 0) + grant + _FRAME.pack(4 << 8 | 8, 0, 1) + grant)
            self.taken = 0


def unary(addr: str, cluster: int, after: int, until: int) -> int:
    """Messages of PullBinlogs up to a commit ts."""
    puller = Puller(
        addr, b"/binlog.Pump/PullBinlogs",
        PullBinlogReq(clusterID=cluster, startFrom=Pos(offset=after)).SerializeToString(),
    )  # fmt: skip
    count, out = 0, np.zeros(2, np.int64)
    while True:
        puller.read()
        data = np.frombuffer(puller.data, np.uint8)
        count += count_messages(data, 0, len(data), out)
        del data
        if out[1] >= 0:
            last = PullBinlogResp.FromString(bytes(puller.data[int(out[1]) + 5 : int(out[0])]))
            if last.entity.meta.commitTs >= until:
                return count
        del puller.data[: int(out[0])]


def opened(message: memoryview) -> tuple[int, int]:
    """Rows and watermark of a PullBatchesResponse, whose frame, if there is one, is its first field; no copy of it."""
    size = at = 0
    if message[0] == 0x0A:
        at = 1
        for shift in range(0, 35, 7):
            size |= (message[at] & 0x7F) << shift
            at += 1
            if message[at - 1] < 0x80:
                break
    rows = pa.ipc.open_stream(pa.py_buffer(message[at : at + size])).read_next_batch().num_rows if size else 0
    return rows, PullBatchesResponse.FromString(message[at + size :]).watermark


def batch(addr: str, cluster: int, after: int, until: int) -> int:
    """Rows of PullBatches up to a commit ts."""
    puller = Puller(
        addr, b"/pumphouse.v1.PumpBatch/PullBatches",
        PullBatchesRequest(cluster_id=cluster, start_from=after).SerializeToString(),
    )  # fmt: skip
    count = 0
    while True:
        puller.read()
        at = 0
        while len(puller.data) - at >= 5:
            end = at + 5 + int.from_bytes(puller.data[at + 1 : at + 5], "big")
            if end > len(puller.data):
                break
            rows, watermark = opened(memoryview(puller.data)[at + 5 : end])
            count += rows
            if watermark >= until:
                return count
            at = end
        del puller.data[:at]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method", choices=("unary", "batch"))
    parser.add_argument("addr")
    parser.add_argument("cluster", type=int)
    parser.add_argument("after", type=int)
    parser.add_argument("until", type=int)
    args = parser.parse_args()
    count_messages(np.zeros(1, np.uint8), 0, 0, np.zeros(2, np.int64))
    began, cpu = time.perf_counter(), time.process_time()
    pull = unary if args.method == "unary" else batch
    count = pull(args.addr, args.cluster, args.after, args.until)
    seconds = time.perf_counter() - began
    used = (time.process_time() - cpu) / max(count, 1) * 1e5
    print(json.dumps({"count": count, "seconds": seconds, "client_cpu_s_per_100k": used}))


if __name__ == "__main__":
    main()
