"""The parts of a Pump and how they hang together; built once by `pump_service.app`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pump_service.collector import Collector
from pump_service.fakes import FakeWriter
from pump_service.heartbeat import Registrar, Report
from pump_service.horizon import Horizon, Timestamps
from pump_service.ingest import Ingest
from pump_service.lifecycle import Action, Lifecycle
from pump_service.metrics import PumpMetrics, Sample
from pump_service.operations import Operations
from pump_service.pulls import Pulls
from pump_service.resolve.application import ApplicationResolver
from pump_service.resolve.asker import Asker
from pump_service.resolve.base import Resolver
from pump_service.resolve.choice import ApplicationFirst
from pump_service.resolve.gc_hold import GcHold
from pump_service.resolve.tikv import TikvResolver
from pump_service.resolve.tikv_calls import TikvCalls
from pump_service.store.store import PendingCommit, Store
from pump_service.submit import Submitter
from pumphouse.clock import Clock
from pumphouse.model.node import PumpExtra
from pumphouse.model.tso import physical_ms
from pumphouse.registry.base import Cluster
from pumphouse.registry.file import FileCluster
from pumphouse.registry.pd import PdCluster
from pumphouse.settings import PumpSettings, TlsSettings

# A commit waits so long before PD or etcd is asked whether its timestamp can be; nobody waits for a commit's answer.
_PATIENCE_S = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Everything that runs."""

    store: Store
    registrar: Registrar
    lifecycle: Lifecycle
    metrics: PumpMetrics
    submitter: Submitter
    ingest: Ingest
    pulls: Pulls
    fakes: FakeWriter
    resolver: Resolver
    gc_hold: GcHold | None  # pd:// only
    asker: Asker
    collector: Collector
    operations: Operations
    report: Callable[[], Report]


def build_stages(
    settings: PumpSettings,
    *,
    cluster: Cluster,
    tls: TlsSettings,
    clock: Clock,
    store: Store,
    registrar: Registrar,
    http: str,
    request: Callable[[Action], None],
) -> Stages:
    """Wire the parts; nothing runs yet. Call it on the event loop."""
    metrics = PumpMetrics()
    metrics.watch(lambda: store_samples(store, settings.data_dir))
    lifecycle = Lifecycle(registrar.found.state if registrar.found is not None else None)
    submitter = Submitter(store, settings.queue_bytes, metrics)
    cluster_id = cluster.cluster_id()
    timestamps = Timestamps(cluster, clock)
    horizon = _horizon(cluster, timestamps, clock)
    ingest = Ingest(cluster_id=cluster_id, horizon=horizon, lifecycle=lifecycle, store=store, submitter=submitter)
    application = ApplicationResolver(cluster, cluster_id, tls, clock)
    hold, resolver = _resolver(settings, cluster, application, clock, store, registrar.node_id)
    collector = Collector(
        cluster=cluster, store=store, retention_s=settings.retention_s, interval_s=settings.gc_interval_s,
        metrics=metrics,
    )  # fmt: skip
    asker = Asker(
        store=store, resolver=resolver, timestamps=timestamps, horizon=horizon, settings=settings, metrics=metrics,
        clock=clock,
    )  # fmt: skip
    operations = Operations(
        cluster=cluster, timestamps=timestamps, registrar=registrar, lifecycle=lifecycle, store=store, asker=asker,
        collector=collector, resolver=resolver, sync_log=settings.sync_log, request=request,
    )  # fmt: skip
    return Stages(
        store=store, registrar=registrar, lifecycle=lifecycle, metrics=metrics, submitter=submitter, ingest=ingest,
        pulls=Pulls(store, metrics, memory_bytes=settings.pull_memory_bytes),
        fakes=FakeWriter(timestamps, store, submitter, metrics),
        resolver=resolver, gc_hold=hold, asker=asker, collector=collector, operations=operations,
        report=lambda: _report(store, settings, http),
    )  # fmt: skip


def _horizon(cluster: Cluster, timestamps: Timestamps, clock: Clock) -> Horizon:
    if isinstance(cluster, FileCluster):
        return Horizon(timestamps, clock, is_past=cluster.is_past)
    return Horizon(timestamps, clock, patience_s=_PATIENCE_S)


def _resolver(
    settings: PumpSettings, cluster: Cluster, application: ApplicationResolver, clock: Clock, store: Store, node_id: str
) -> tuple[GcHold | None, Resolver]:
    """Who knows what became of a transaction, and what keeps TiDB's GC from it: with ``pd://`` TiKV as well."""
    if not isinstance(cluster, PdCluster):
        return None, application
    hold = GcHold(
        cluster.client, node_id, store.prewrites.lowest_unsettled, store.prewrites.written_and_indexed,
        ttl_s=settings.gc_hold_ttl_s, caught_up=store.wait_for_index,
    )  # fmt: skip
    calls = TikvCalls(cluster.client, clock=clock)
    return hold, ApplicationFirst(application, TikvResolver(calls, hold, cluster.tso, close=calls.close))


def _report(store: Store, settings: PumpSettings, http: str) -> Report:
    """What a heartbeat says of this moment."""
    end = store.synced_end
    disk = shutil.disk_usage(settings.data_dir)
    return Report(
        max_commit_ts=store.watermark,
        extra=PumpExtra(
            incarnation=store.incarnation, start_count=store.start_count, synced_fid=end.fid, synced_offset=end.offset,
            http=http, batch=True, sync_log=settings.sync_log,
        ),
        label=dict(settings.labels) or None,
        score=score(
            free=disk.free, total=disk.total, stored=store.value_log_bytes,
            load=os.getloadavg()[0] / (os.cpu_count() or 1), writable=not store.read_only,
        ),
    )  # fmt: skip


def score(*, free: int, total: int, stored: int, load: float, writable: bool) -> int:
    """How well this Pump can take more: 0 (not at all) to 100 (row P10).

    The free share of the disk; up to half of it is taken off for load, and up to half of the rest for how full the Pump
    itself is. So of two Pumps on one disk, of which both say the same free share, the one that holds less gets more.

    Args:
        free: bytes of the disk that can be written.
        total: bytes of the disk.
        stored: bytes of the value log.
        load: load average a CPU; 1 and above is busy.
        writable: whether Ps are taken at all.
    """
    if not writable:
        return 0
    free_share = min(max(free / total, 0.0), 1.0) if total else 0.0
    filled = stored / (stored + free) if stored else 0.0  # of all that it could ever hold
    return max(1, round(100 * free_share * (1.0 - 0.5 * min(max(load, 0.0), 1.0)) * (1.0 - 0.5 * filled)))


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
