"""``archive init``: where the chain begins. It may be run again at any time; it goes on where it was killed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import structlog

from pumphouse.archive import consumer, layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.base import BaseTable
from pumphouse.archive.content import parse_binlog
from pumphouse.archive.coverage import drained_at_genesis, registry_digest, replaced_by, start_of
from pumphouse.archive.ddl import ArchivedJob, write_jobs
from pumphouse.archive.genesis import Genesis
from pumphouse.archive.history import needs_job
from pumphouse.archive.holders import DDL_HISTORY, holder
from pumphouse.archive.manifest import PumpEntry
from pumphouse.archive.publish import put_once
from pumphouse.archive.puller import open_puller
from pumphouse.archive.segment import SegmentWriter
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.codec.payload import PrewriteValueBuilder, make_commit, make_prewrite, merge
from pumphouse.errors import BinlogError, ConfigError, CorruptionError, ManifestConflict, WindowHeld
from pumphouse.model.node import NodeKind, NodeState, NodeStatus
from pumphouse.model.table import Job, TableInfo
from pumphouse.model.tso import Tso, compose, physical_ms, show
from pumphouse.objectstore.probe import probe_conditional_puts, refuse_losing
from pumphouse.registry.base import Cluster
from pumphouse.rpc.operator import proof
from pumphouse.schema.history import JobSource, TidbStatusSource
from pumphouse.settings import Settings

log = structlog.get_logger()

# How far below genesis the Pumps are searched for DDLs that are done but not in the history yet.
_LOOKBACK_MS = 600_000


class DumpSource(Protocol):
    """Reads all rows of a cluster at one moment.

    `init_archive` calls ``barrier`` once, takes the genesis ts inside it, and reads tables and rows after it, from the
    consistent snapshot that was opened inside it. DDL waits from the barrier until ``close``.
    """

    def barrier(self) -> AbstractContextManager[object]:
        """Inside it no writer holds a commit ts that is not committed yet, and the snapshot is open."""
        ...

    def tables(self) -> Iterable[tuple[str, TableInfo]]:
        """Database and table info of every table to dump."""
        ...

    def batches(self, table: TableInfo) -> Iterator[list[bytes]]:
        """Rows of a table as they are in ``inserted_rows`` of a binlog, some thousand at a time."""
        ...


Show = Callable[[str, int], None]


def init_archive(
    archive: Archive,
    cluster: Cluster,
    history: JobSource | None,
    *,
    dump: DumpSource | None = None,
    settings: Settings,
    progress: Show = lambda _what, _rows: None,
    clock: Clock = SYSTEM_CLOCK,
) -> Genesis:
    """Begin the archive, or finish a begin that was killed; returns genesis.

    Order: probe the store; register as a consumer with checkpoint 0, which holds all GC; list the Pumps; take the
    genesis ts; dump; register ``genesis.json``; put it, then HEAD; move the checkpoint to genesis. What is put is what
    is registered: of several inits one wins, and a ``genesis.json`` that is lost is put back. A begin that fails takes
    its registration back. ``progress(what, rows)`` is called often.

    Raises:
        UnsafeStore: the store ignores conditional puts, or deletes objects by a rule.
        ConfigError: there is no job history to take the schema from, or it is that of another cluster; the cluster
            knows another archive under this id.
        WindowHeld: a DDL before genesis is not in the history.
    """
    if not archive.begun():
        known = consumer.registered(cluster, archive.archive_id)
        if known is None or not (known.genesis_sha256 or known.checkpoint):
            known = _begin(archive, cluster, history, dump, settings, progress, clock)
            head = True
        else:
            head = False
        if not known.genesis_sha256 or known.root != archive.url:
            raise consumer.another(archive, known)
        _put_genesis(archive, known.genesis(archive), clock)
        if head:
            archive.write_head(None)
    genesis = archive.genesis()
    try:
        known = consumer.registered(cluster, archive.archive_id)
    except CorruptionError:
        consumer.put_back(archive, cluster)
        return genesis
    if known is None:
        consumer.move(archive, cluster, genesis.ts)
    else:
        consumer.publish(archive, cluster, genesis.ts)
    return genesis


def _put_genesis(archive: Archive, data: bytes, clock: Clock) -> None:
    with contextlib.suppress(ManifestConflict):  # that of an earlier release's init: it is the archive's, or refused
        put_once(archive.store, layout.GENESIS, data, lambda found: found == data, clock=clock)


def _begin(
    archive: Archive,
    cluster: Cluster,
    history: JobSource | None,
    dump: DumpSource | None,
    settings: Settings,
    progress: Show,
    clock: Clock,
) -> consumer.Registered:
    """Make a genesis and register it; what is registered then, which may be that of another init."""
    if history is None:
        raise ConfigError(
            "there is no job history to take the schema from", hint="set schema.history, as http://tidb:10080"
        )
    if isinstance(history, TidbStatusSource) and not cluster.url.startswith("pd://"):
        raise ConfigError(
            f"schema.history is a TiDB's, and cluster.url is {cluster.url}: a TiDB sends its binlogs to the Pumps"
            " that its PD knows, and to no others",
            hint='set cluster.url to the PD of that TiDB, as "pd://HOST:2379", and run the Pumps with it',
        )
    progress("probing the store", 0)
    refuse_losing(archive.store)
    probe_conditional_puts(archive.store, "")
    attempt = layout.attempt_id()
    consumer.begin(archive, cluster, attempt)
    try:
        pumps = cluster.nodes(NodeKind.PUMP)
        genesis = _genesis(archive, cluster, history, dump, settings, pumps, attempt, progress, clock)
        return consumer.claim(archive, cluster, genesis.to_json())
    except Exception:
        # It would hold the Pumps' GC for an archive that nobody has. A killed one is gone on with.
        try:
            consumer.withdraw(archive, cluster, attempt)
        except BinlogError as error:
            log.warning("consumer_stays_registered", archive_id=archive.archive_id, error=str(error))
        raise


def _genesis(
    archive: Archive,
    cluster: Cluster,
    history: JobSource,
    dump: DumpSource | None,
    settings: Settings,
    pumps: list[NodeStatus],
    attempt: str,
    progress: Show,
    clock: Clock,
) -> Genesis:
    base: tuple[BaseTable, ...] | None = None
    try:
        with dump.barrier() if dump is not None else contextlib.nullcontext():
            ts = cluster.tso()
        jobs = _jobs_before(archive, history, ts, pumps, settings, progress, clock)
        version = max((job.schema_version for job in jobs if job.done), default=0)
        if dump is not None:
            base = tuple(_dump(archive, dump, ts, version, attempt, settings.archive.part_bytes, progress))
    finally:
        # The snapshot stays open while it is read, and DDL waits for it.
        close = getattr(dump, "close", None)
        if close is not None:
            close()
    ddl = write_jobs(archive.store, layout.genesis_ddl_key(attempt), map(ArchivedJob.of_history, jobs))
    return Genesis(
        cluster_id=archive.cluster_id,
        archive_id=archive.archive_id,
        attempt=attempt,
        ts=ts,
        schema_version=version,
        pumps=tuple(_pump(each, ts) for each in pumps),
        ddl=ddl,
        base=base,
    )


def _pump(status: NodeStatus, ts: Tso) -> PumpEntry:
    drained = drained_at_genesis(status)
    return PumpEntry(
        node_id=status.node_id,
        incarnation=start_of(status).incarnation,
        start_count=start_of(status).start_count,
        state=str(status.state),
        reached=ts,
        drained=drained,
        sync_log=status.extra is None or status.extra.sync_log,
        batch=status.extra is not None and status.extra.batch,
        replaced=replaced_by(status),
        registry=registry_digest(status) if drained and status.extra is None else "",
    )


# -- schema -----------------------------------------------------------------------------------------------------------


def _jobs_before(
    archive: Archive,
    history: JobSource,
    ts: Tso,
    pumps: list[NodeStatus],
    settings: Settings,
    progress: Show,
    clock: Clock,
) -> list[Job]:
    """Every job that no window will bring, ascending by schema version.

    Jobs that the Pumps know as committed before genesis are waited for. One that began later has its binlog above
    genesis, so its window brings it; one in both is folded once, at the window's commit ts.
    """
    wanted = _recent_ddls(archive, ts, pumps, settings, progress)
    deadline = clock.monotonic() + settings.archive.ddl_wait_s
    while missing := [each for each in wanted if history.job(each.job_id) is None]:
        why = f"not in the history yet, and committed before genesis: {', '.join(map(str, missing[:5]))}"
        progress(why, 0)
        if clock.monotonic() >= deadline:
            minutes = _LOOKBACK_MS // 60_000
            raise WindowHeld(
                why,
                hint="is schema.history the history of this cluster? If no history will ever have the job, as of a "
                f"binlog that a test wrote, run `archive init` again {minutes} minutes after that commit",
                holders=[holder(DDL_HISTORY, why)],
            )
        clock.sleep(settings.archive.poll_interval_s)
    jobs = []
    for job in history.jobs():
        if int(job.raw.get("start_ts") or 0) <= ts:
            jobs.append(job)
            progress("schema", len(jobs))
    return sorted(jobs, key=lambda job: (job.schema_version, job.id))


@dataclass(frozen=True, slots=True, order=True)
class _DdlBinlog:
    """A DDL's binlog that needs a job of the history."""

    job_id: int
    commit_ts: Tso
    start_ts: Tso
    node_id: str

    def __str__(self) -> str:
        return f"job {self.job_id} of {self.node_id} (start ts {self.start_ts}, commit ts {show(self.commit_ts)})"


def _recent_ddls(
    archive: Archive, ts: Tso, pumps: list[NodeStatus], settings: Settings, progress: Show
) -> list[_DdlBinlog]:
    """Those that were committed shortly before genesis, as far as running Pumps tell."""
    found: set[_DdlBinlog] = set()
    since = compose(max(physical_ms(ts) - _LOOKBACK_MS, 0))
    for status in pumps:
        if status.state in (NodeState.OFFLINE, NodeState.PAUSED):
            continue
        puller = open_puller(status, archive.cluster_id, settings.tls, proof(settings.cluster))
        try:
            shown = puller.status()
            floor = since if shown is None else Tso(max(since, shown.gc_point))
            for frame in puller.frames(floor):
                if frame.batch is not None:
                    found.update(_ddls_of(frame.batch, ts, status.node_id))
                if frame.complete_to >= ts or frame.batch is None:
                    break
        except BinlogError as error:
            # The first window needs this Pump anyway, and will wait for it; here it is only asked for hints.
            progress(f"{status.node_id} was not asked for DDLs: {error.message}", 0)
        finally:
            puller.close()
    return sorted(found)


def _ddls_of(batch: pa.RecordBatch, upto: Tso, node_id: str) -> Iterator[_DdlBinlog]:
    job_ids, commits = batch.column("ddl_job_id").to_numpy(), batch.column("commit_ts").to_numpy()
    for row in map(int, np.flatnonzero((job_ids > 0) & (commits <= upto))):
        job_id, commit_ts = int(job_ids[row]), int(commits[row])
        binlog = parse_binlog(batch.column("payload")[row].as_py())
        if needs_job(
            ArchivedJob(
                commit_ts=Tso(commit_ts),
                start_ts=Tso(binlog.start_ts),
                job_id=job_id,
                schema_state=binlog.ddl_schema_state,
                query=binlog.ddl_query,
                job=None,
            )
        ):
            yield _DdlBinlog(job_id, Tso(commit_ts), Tso(binlog.start_ts), node_id)


# -- dump -------------------------------------------------------------------------------------------------------------


def _dump(
    archive: Archive, dump: DumpSource, ts: Tso, version: int, attempt: str, part_bytes: int, progress: Show
) -> Iterator[BaseTable]:
    """Every table's rows as Binlogs of inserts, committed at genesis, in ordinary segments."""
    for db, table in dump.tables():
        rows = 0

        def key(number: int, db: str = db, table: TableInfo = table) -> str:
            return layout.base_key(ts, db, table.name, attempt, number)

        with SegmentWriter(archive.store, key, "base", part_bytes=part_bytes) as writer:
            for images in dump.batches(table):
                if not images:
                    continue
                writer.add(_binlog(ts, version, table.id, images))
                rows += len(images)
                progress(f"{db}.{table.name}", rows)
            segments = tuple(writer.finish())
        progress(f"{db}.{table.name}", rows)
        yield BaseTable(db=db, table=table.name, table_id=table.id, rows=rows, segments=segments)


def _binlog(ts: Tso, version: int, table_id: int, images: list[bytes]) -> pa.RecordBatch:
    # The start ts is one below, because equal timestamps are the mark of a fake binlog.
    start_ts = ts - 1
    value = PrewriteValueBuilder(version)
    for image in images:
        value.insert(table_id, image)
    payload = merge(make_prewrite(start_ts, b"", value.build()), make_commit(start_ts, ts, b""))
    return pa.RecordBatch.from_pydict(
        {
            "commit_ts": pa.array([int(ts)], pa.int64()),
            "start_ts": pa.array([int(start_ts)], pa.int64()),
            "ddl_job_id": pa.array([0], pa.int64()),
            "payload": pa.array([payload], pa.large_binary()),
        }
    )


def describe(genesis: Genesis) -> str:
    """One line for people."""
    begun = "begun without a dump" if genesis.base is None else f"begun with a dump of {len(genesis.base)} tables"
    return f"genesis {show(genesis.ts)}, {genesis.ddl.jobs} DDL jobs, {begun}, {len(genesis.pumps)} Pumps"
