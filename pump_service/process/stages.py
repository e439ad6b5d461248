"""The parts of a Pump and how they hang together; built once by `pump_service.process.app`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pump_service.api.operations import Operations
from pump_service.intake.fakes import FakeWriter
from pump_service.intake.ingest import Ingest
from pump_service.intake.submit import Submitter
from pump_service.metrics import PumpMetrics
from pump_service.node.collector import Collector
from pump_service.node.heartbeat import Registrar, Report
from pump_service.node.horizon import Horizon, Timestamps
from pump_service.node.lifecycle import Action, Lifecycle
from pump_service.node.score import score
from pump_service.process.store_samples import store_samples
from pump_service.pulls.pulls import Pulls
from pump_service.resolve.application import ApplicationResolver
from pump_service.resolve.asker import Asker
from pump_service.resolve.base import Resolver
from pump_service.resolve.choice import ApplicationFirst
from pump_service.resolve.gc_hold import GcHold
from pump_service.resolve.tikv import TikvResolver
from pump_service.resolve.tikv_calls import TikvCalls
from pump_service.store.store import Store
from pumphouse.clock import Clock
from pumphouse.model.node import PumpExtra
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
    in_clear: Sequence[str] = (),
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
    ingest = Ingest(
        cluster_id=cluster_id, horizon=horizon, lifecycle=lifecycle, store=store, submitter=submitter,
        check_rows=settings.check_rows,
    )  # fmt: skip
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
        collector=collector, resolver=resolver, sync_log=settings.sync_log, in_clear=in_clear, request=request,
    )  # fmt: skip
    return Stages(
        store=store, registrar=registrar, lifecycle=lifecycle, metrics=metrics, submitter=submitter, ingest=ingest,
        pulls=Pulls(
            store, metrics, memory_bytes=settings.pull_memory_bytes, most_streams=settings.max_pull_streams
        ),
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
