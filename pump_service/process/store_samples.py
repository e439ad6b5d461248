"""Gauges of the store, for `metrics`."""

from __future__ import annotations

import shutil
from pathlib import Path

from pump_service.metrics import Sample
from pump_service.store.store import PendingCommit, Store
from pumphouse.model.tso import physical_ms


def store_samples(store: Store, data_dir: Path) -> list[Sample]:
    """Gauges of the store, read when somebody scrapes. Timestamps are physical milliseconds."""
    status = store.status(keys=False)  # on the event loop: no file is read
    prefix = "binlog_pump_storage_"
    return [
        (prefix + "max_commit_ts", "Watermark", {}, physical_ms(status.watermark)),
        (prefix + "gc_ts", "GC point G", {}, physical_ms(status.gc_point)),
        (prefix + "deletion_limit_ts", "Deletion limit D", {}, physical_ms(status.deletion_limit)),
        ("binlog_pump_value_log_bytes", "Bytes of value-log files", {}, status.value_log_bytes),
        (prefix + "storage_size_bytes", "Disk", {"type": "available"}, status.available_bytes),
        (prefix + "storage_size_bytes", "Disk", {"type": "capacity"}, shutil.disk_usage(data_dir).total),
        # Counters of the Go Pump, shown as gauges because of their names.
        (prefix + "error_count", "Errors of the storage", {"type": "index"}, status.index_failures),
        (prefix + "error_count", "Errors of the storage", {"type": "writer"}, float(status.writer_failed)),
        ("binlog_pump_loss_binlog_count", "Commits whose prewrite is on no file", {}, len(status.orphans)),
        ("binlog_pump_index_queue_records", "Records between value log and index", {}, status.queued_records),
        ("binlog_pump_index_backlog_bytes", "Bytes of the value log that are not indexed", {}, status.backlog_bytes),
        ("binlog_pump_unresolved_prewrites", "Prewrites without an outcome", {}, status.unresolved),
        ("binlog_pump_late_commits", "Late commits that nobody accepted", {}, _open(status.late)),
        ("binlog_pump_orphan_commits", "Orphan commits that nobody accepted", {}, _open(status.orphans)),
        ("binlog_pump_duplicate_commits", "Commits that were in the stream already", {}, status.duplicate_commits),
        ("binlog_pump_read_only", "1 = prewrites are refused for want of space", {}, float(status.read_only)),
        ("binlog_pump_writer_failed", "1 = this process writes no more", {}, float(status.writer_failed)),
        ("binlog_pump_slow_mode", "1 = writes bypass the queue to the index", {}, float(status.slow_mode)),
    ]


def _open(commits: list[PendingCommit]) -> int:
    return sum(not commit.accepted for commit in commits)
