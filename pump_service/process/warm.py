"""Load every kernel of the write path before the first request: compiled code comes from the disk cache in some tenths.

The cache was filled before by `compiler`, which goes by the kernels that are not in it: so each of this package is
loaded, here or in `warm_reads`.
"""

from __future__ import annotations

import numpy as np

from pump_service.door.group import Requests
from pump_service.door.http2 import lean
from pump_service.intake.convert import item_of, refuse_unreadable
from pump_service.intake.payloads import read_batch, read_group
from pump_service.store.block import Block
from pump_service.store.framing import Framer, Place
from pump_service.store.order import SMALLEST, Recent, Waiting
from pump_service.store.parse import parse
from pump_service.store.rows import Puts
from pump_service.store.summary import FileSummary
from pumphouse.codec.crc import crc32c_of
from pumphouse.proto.binlog_pb2 import Binlog, BinlogType
from pumphouse.proto.pump_pb2 import WriteBinlogReq
from pumphouse.proto.pumphouse_pb2 import WriteBinlogsRequest


def warm() -> None:
    """Run each of them once."""
    payload = Binlog(tp=BinlogType.Prewrite, start_ts=1, prewrite_value=b"\x08\x01").SerializeToString()
    requests = Requests.of([WriteBinlogReq(clusterID=1, payload=payload).SerializeToString()])
    refuse_unreadable(item_of(payload))
    lean.warm()
    intake = read_group(requests.data, requests.starts, requests.sizes, 1)
    read_batch(WriteBinlogsRequest(cluster_id=1, batch_id=1, payloads=[payload]).SerializeToString())
    records = intake.records
    Framer().write([records], Place(), fid=0, begin=0, limit=1 << 20, most=1 << 20)
    parse(records.data, records.starts, records.sizes)
    crc32c_of(records.data, 0, 1, 0)
    block = Block.zeros(3)
    block.tp[:] = 0, 1, 2
    block.start_ts[:] = 1, 1, 3
    block.commit_ts[:] = 0, 2, 3
    block.size[:] = 10
    block.offset[:] = np.arange(3) * 26
    summary = FileSummary(0)
    summary.add(block)
    summary.buckets()  # sums up
    waiting, recent, puts = Waiting(), Recent(0), Puts(len(block) + 1)
    waiting.advance(block, 0, recent, puts, floor=0, careful=False, now=0.0)
    waiting.prewrite(5, block.end, 0.0)
    waiting.resolve(5)
    waiting.passed(6, None)
    for start_ts in range(10, 10 + SMALLEST):  # one more than there is room for at first
        waiting.prewrite(start_ts, block.end, 0.0)
    waiting.is_waiting(5)
    waiting.min_start()
    recent.remember(7, block.end)
    recent.recall(7)
    puts.add(8, block.end)
