"""Load every kernel of the read path: pulls and scans. As `pump_service.process.warm` does for writes."""

from __future__ import annotations

import numpy as np

from pump_service.api.fields import Fields, InMemory
from pump_service.api.frame import binlog_messages
from pump_service.store import frame, gather
from pump_service.store.batch import Binlog, Binlogs
from pump_service.store.scan import walk_records

_PREWRITE = b"\x08\x00\x10\x01\x18\x00\x2a\x01v\x38\x00\x40\x00"
_COMMIT = b"\x08\x01\x10\x01\x18\x02\x38\x00\x40\x00"


def warm_reads() -> None:
    """Run each of them once."""
    records = frame.encode_record(_PREWRITE) + frame.encode_record(_COMMIT)
    data = np.frombuffer(records, np.uint8).copy()
    walk_records(data, 0, len(data), 0, np.empty(4, np.uint8), np.empty((7, 4), np.int64), np.zeros(3, np.int64))
    at = np.array([0, frame.HEADER_BYTES + len(_PREWRITE)])
    start, size = np.empty(2, np.int64), np.empty(2, np.int64)
    gather.classify(data, at, len(data) - at, np.array([1, 2]), np.empty(2, np.uint8), start, size)
    head, tail_at, tail, job = np.empty((4, 1), np.int64)
    gather.measure(data, at[1:], size[1:], at[:1], size[:1], start[1:], head, tail_at, tail, job)
    out = np.empty(int(head[0] + tail[0]), np.uint8)
    gather.merge_all(data, at[1:], head, tail_at, tail, np.array([0, len(out)]), out)
    gather.is_good(data, 0, 1)
    gather.is_good_in_two(data, 16, 1, out, 0)
    gather.tail_of(data, 16, 17)
    gather.job_of(out, 0, 1)
    fields = Fields(InMemory(_PREWRITE))
    fields.field(0, len(_PREWRITE))
    fields.tally(0, len(_PREWRITE))
    binlog_messages(Binlogs.of([Binlog(2, 1, out.tobytes(), 0)]))
