"""The task that makes a window visible: settle what the pulls brought, write the manifest, move the checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import groupby

import pyarrow as pa
import structlog

from pumphouse.archive import consumer, layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.coverage import drained_or_lost
from pumphouse.archive.ddl import write_jobs
from pumphouse.archive.declare import accepted_commits, record_settled
from pumphouse.archive.duplicates import Mask, find_duplicates
from pumphouse.archive.history import ddl_binlogs, with_jobs
from pumphouse.archive.holders import holder, named
from pumphouse.archive.indexing import extend_index
from pumphouse.archive.manifest import AcceptedCommit, DdlEntry, LastBinlog, Manifest, PumpEntry, SegmentEntry
from pumphouse.archive.puller import open_puller
from pumphouse.archive.segment import Reader, SegmentWriter, read_nearby, read_segment
from pumphouse.archive.settle import settle_pending
from pumphouse.archive.skipping import binlog_skipped
from pumphouse.archive.window import Action, PublishedWindow, PullReport, WindowPlan
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import BadSegment, BinlogError, ManifestConflict, UsageError, WindowHeld
from pumphouse.model import strict
from pumphouse.model.node import NodeKind
from pumphouse.model.tso import Tso, show
from pumphouse.registry.base import Cluster
from pumphouse.rpc.operator import proof
from pumphouse.schema.history import JobSource
from pumphouse.settings import Settings

log = structlog.get_logger()

_NOT_LOGGED = frozenset({"declared", "unsynced"})  # every window repeats them


def commit_window(
    archive: Archive,
    cluster: Cluster,
    plan: WindowPlan,
    reports: Sequence[PullReport],
    history: JobSource | None,
    settings: Settings,
    *,
    waiting: Callable[[str], None] = lambda _: None,
    clock: Clock = SYSTEM_CLOCK,
) -> PublishedWindow:
    """Make the window visible.

    Raises:
        WindowHeld: names every holder with the start ts that blocks it, or the DDL job that is not in the history, or
            the transaction of which Pumps have different contents.
        ManifestConflict: another run published this window first.
        UnsafeStore: the store takes a conditional put of an object that exists.
    """
    found = _complete(plan, reports)
    end = min([report.reached for report in found], default=plan.end)
    for report in found:
        lost = report.action is Action.LOST
        if (lost or report.declared is not None) and (report.declared is None or end > report.declared.to_ts):
            raise UsageError(
                f"the report of {report.node_id} gives up data up to {show(end)}, which no declared loss covers",
                hint="plan the window again",
            )
    if end <= plan.start:
        holders = [holder(each.node_id, "it brought nothing") for each in found if each.reached <= end]
        raise WindowHeld(f"the window after {show(plan.start)} does not move", holders=holders)
    _require_end(archive, plan)
    last = archive.last()
    before = {each.node_id: each for each in (archive.genesis() if last is None else last).pumps}
    attempt = layout.attempt_id()
    pulled = segments = _trimmed(archive, plan, found, end, attempt, settings.archive.part_bytes)
    records = _records(archive, found, plan.start, end)
    with _told_if_overtaken(archive, plan), read_nearby(archive.store) as read:
        accepted, holders = settle_pending(archive, found, segments, records, plan.start, end)
        pending = {(int(each.start_ts), int(each.commit_ts)) for report in found for each in report.pending}
        twice = find_duplicates(read, segments, records, pending)
        holders += twice.holders
        if holders:
            raise WindowHeld(
                f"the window after {show(plan.start)} is held: {named(holders)}",
                holders=holders,
            )
        segments = _without(archive, plan, read, segments, twice.left_out, settings.archive.part_bytes)
        binlogs = ddl_binlogs(archive.store, segments, twice.found, end)
    jobs, without = with_jobs(
        binlogs,
        history,
        wait_s=settings.archive.ddl_wait_s,
        poll_s=settings.archive.poll_interval_s,
        accepted=records,
        waiting=waiting,
        clock=clock,
    )
    ddl: DdlEntry | None = None
    if jobs:
        ddl = write_jobs(archive.store, layout.ddl_key(plan.start, plan.end, attempt), jobs)
    manifest = archive.publish(
        Manifest(
            cluster_id=archive.cluster_id,
            attempt=attempt,
            start=plan.start,
            planned_end=plan.end,
            end=end,
            fence=plan.fence,
            previous=plan.previous,
            pumps=tuple(_pump_entry(each, before.get(each.node_id), end) for each in found),
            segments=tuple(segments),
            duplicates=twice.found,
            ddl=ddl,
            declared=tuple(each.declared for each in found if each.declared is not None),
            accepted=(*accepted, *twice.settled, *without),
            binlog_skipped=binlog_skipped(settings.history.history, settings.tls),
        )
    )
    if manifest.binlog_skipped:
        log.error("tidb_skips_binlogs", window=manifest.key, hint="its writes are in no Pump: POST /binlog/recover")
    consumer.move(archive, cluster, consumer.of_snapshot(settings.airflow, manifest.end))
    if twice.left_out:
        _delete(archive, {each.key for each in pulled} - {each.key for each in segments})
    # What is below the window is shown by its Pump as late or orphan, whatever else it was accepted as.
    shown = [each for each in accepted if each.kind in AcceptedCommit.KEPT_OUT or each.commit_ts <= manifest.start]
    _tell(archive, cluster, settings, shown)
    try:
        extend_index(archive)
    except (*strict.SURVIVED, pa.ArrowException, MemoryError) as error:  # nothing depends on it
        log.warning("index_not_extended", why=f"{type(error).__name__}: {error}")
    done = PublishedWindow.of(manifest, plan.until)
    log.info("window_published", **{name: each for name, each in asdict(done).items() if name not in _NOT_LOGGED})
    return done


def _complete(plan: WindowPlan, reports: Sequence[PullReport]) -> list[PullReport]:
    """Exactly one report for each Pump of the plan."""
    found = {report.node_id: report for report in reports}
    if len(found) != len(reports) or found.keys() != set(plan.node_ids):
        raise UsageError(
            f"reports of {sorted(found)} do not fit a plan for {sorted(plan.node_ids)}", hint="pull them all"
        )
    for report in found.values():
        lowest, highest = plan.start, plan.end
        if not lowest <= report.reached <= highest or any(each.min_commit_ts <= plan.start for each in report.segments):
            raise UsageError(f"the report of {report.node_id} belongs to another window")
    return [found[node_id] for node_id in sorted(found)]


def _records(archive: Archive, found: Sequence[PullReport], start: Tso, end: Tso) -> list[AcceptedCommit]:
    """What was settled by name of what a window has, or of what its Pumps show of windows before."""
    shown = {
        layout.accepted_key(report.node_id, each.start_ts, each.commit_ts)
        for report in found
        for each in report.pending
    }

    def concerns(key: str) -> bool:
        commit_ts = layout.accepted_at(key)
        return key in shown or commit_ts is None or start < commit_ts <= end

    return accepted_commits(archive, concerns)


def _trimmed(
    archive: Archive, plan: WindowPlan, reports: Sequence[PullReport], end: Tso, attempt: str, part_bytes: int
) -> list[SegmentEntry]:
    """Segments of the window; those that reach above its end are written again without what lies there."""
    kept: list[SegmentEntry] = []
    for report in reports:
        above = [each for each in report.segments if each.max_commit_ts > end]
        kept.extend(each for each in report.segments if each.max_commit_ts <= end)
        if not above:
            continue
        batches = (batch for entry in above for batch in read_segment(archive.store, entry, after=plan.start, upto=end))
        kept.extend(_written(archive, plan, report.node_id, attempt, part_bytes, batches))
    # As they were written, where a large transaction fills several.
    return sorted(kept, key=lambda each: (each.node_id, each.min_commit_ts))


@contextmanager
def _told_if_overtaken(archive: Archive, plan: WindowPlan) -> Iterator[None]:
    """ManifestConflict in place of a segment that is gone: who has published this window deletes copies in it."""
    try:
        yield
    except BadSegment:
        _require_end(archive, plan)
        raise


def _require_end(archive: Archive, plan: WindowPlan) -> None:
    """ManifestConflict unless the archive ends where the window begins."""
    if archive.end() != plan.start:
        raise ManifestConflict(
            f"the archive ends at {show(archive.end())} by now, the window begins at {show(plan.start)}",
            hint="run again from the new end",
        )


def _without(
    archive: Archive,
    plan: WindowPlan,
    read: Reader,
    segments: Sequence[SegmentEntry],
    left_out: Mapping[str, Mask],
    part_bytes: int,
) -> list[SegmentEntry]:
    """The segments without these rows: those that keep some are written again, and those that keep none are gone."""
    kept: list[SegmentEntry] = []
    some = [each for each in segments if each.key not in left_out or not left_out[each.key].all()]
    for (node_id, anew), run in groupby(some, lambda each: (each.node_id, each.key in left_out)):
        if anew:
            batches = (batch for each in run for batch in _rows_without(read, each, left_out[each.key]))
            kept.extend(_written(archive, plan, node_id, layout.attempt_id(), part_bytes, batches))
        else:
            kept.extend(run)
    return kept


def _rows_without(read: Reader, entry: SegmentEntry, left_out: Mask) -> Iterator[pa.RecordBatch]:
    at = 0
    for batch in read(entry, after=Tso(0), upto=entry.max_commit_ts):
        yield batch.filter(pa.array(~left_out[at : at + batch.num_rows]))
        at += batch.num_rows


def _written(
    archive: Archive, plan: WindowPlan, node_id: str, attempt: str, part_bytes: int, batches: Iterable[pa.RecordBatch]
) -> list[SegmentEntry]:
    """Rows of a Pump's segments in segments of their own."""
    with SegmentWriter(
        archive.store,
        lambda number: layout.segment_key(plan.start, plan.end, node_id, attempt, number),
        node_id,
        part_bytes=part_bytes,
        raw=True,
    ) as writer:
        for batch in batches:
            if batch.num_rows:
                writer.add_rows(batch)
        return writer.finish()


def _delete(archive: Archive, keys: Iterable[str]) -> None:
    """Segments that no window names, nor will: theirs is published. Whatever stays goes with the orphans."""
    try:
        for key in keys:
            archive.store.delete(key)
    except BinlogError as error:
        log.warning("copies_not_deleted", error=str(error))


def _pump_entry(report: PullReport, before: PumpEntry | None, end: Tso) -> PumpEntry:
    """What the manifest says of a Pump."""
    drained, lost = drained_or_lost(report, before, end)
    return PumpEntry(
        node_id=report.node_id,
        incarnation=report.incarnation,
        start_count=report.start_count,
        state=report.state,
        reached=end,
        drained=drained,
        lost=lost,
        sync_log=report.sync_log,
        batch=report.batch,
        registry=report.registry,
        last=_last_binlog(report, end),
        replaced=report.replaced,
    )


def _last_binlog(report: PullReport, end: Tso) -> LastBinlog | None:
    """The newest binlog of a Go Pump that lies in the archive: one above the window's end proves nothing below it."""
    below = [each for each in report.seen if each.commit_ts <= end]
    return below[-1] if below else report.last


def _tell(archive: Archive, cluster: Cluster, settings: Settings, accepted: Sequence[AcceptedCommit]) -> None:
    """Let the Pumps know, so that these commits no longer hold their GC; the next window tries again if this fails.

    That the manifest lists them is recorded first: what a Pump shows as accepted counts only with such a record.
    """
    for each in accepted:
        record_settled(archive, each)
    for each in accepted:
        status = cluster.node(NodeKind.PUMP, each.node_id)
        if status is None:
            continue
        puller = open_puller(status, archive.cluster_id, settings.tls, proof(settings.cluster))
        try:
            puller.accept(each.start_ts, each.commit_ts, each.reason)
        except BinlogError as error:
            log.warning("accept_not_told", node_id=each.node_id, commit_ts=int(each.commit_ts), error=str(error))
        finally:
            puller.close()
