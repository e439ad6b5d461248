"""No pull compiles anything: what pulls and scans call is loaded before the Pump serves."""

from __future__ import annotations

from pathlib import Path

from pump_service.api.debug_page import describe
from pump_service.api.fields import count_fields
from pump_service.api.frame import binlog_messages, frame_message
from pump_service.process.warm_reads import warm_reads
from pump_service.store import gather, scan
from pump_service.store.logfile import Stored
from pumphouse.codec.wire import read_field
from tests.support.storekit import commit, open_store, prewrite, store_all


def test_pulls_use_the_kernels_that_were_loaded(tmp_path: Path) -> None:
    warm_reads()
    kernels = [
        gather.classify, gather.measure, gather.merge_all, gather.message_offsets, gather.encode_messages,
        gather.is_good, gather.is_good_in_two, gather.tail_of, gather.job_of, scan.walk_records,
        read_field, count_fields,
    ]  # fmt: skip
    before = [kernel.signatures for kernel in kernels]  # type: ignore[attr-defined]
    store = open_store(tmp_path, value_log_file_bytes=32 << 20)
    store_all(store, prewrite(10), commit(10, 11), prewrite(20, b"\x12\x00" * (9 << 19)), commit(20, 21))
    while (batch := store.stream.pull(0, max_bytes=1 << 20)).more:
        binlog_messages(batch.binlogs)
        frame_message(batch.binlogs, b"")
        binlog_messages(store.stream.pull(batch.last, max_bytes=1 << 20).binlogs)
        break
    found = store.stream.stored(20)
    assert isinstance(found, Stored)
    describe(found)
    store.close()
    assert [kernel.signatures for kernel in kernels] == before  # type: ignore[attr-defined]
