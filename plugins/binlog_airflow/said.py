"""What a task did, in one sentence: the last line of its log. Its numbers are the XCom's, which machines read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.filesize import decimal

from pumphouse.clock import duration
from pumphouse.model.tso import show

if TYPE_CHECKING:
    from pumphouse.archive.drills import Drill
    from pumphouse.archive.proofs import Proof
    from pumphouse.archive.window import PublishedWindow, PullReport, WindowPlan
    from pumphouse.client.admin import PumpGc
    from pumphouse.export.kafkarun import KafkaReport
    from pumphouse.loader.report import LoadReport
    from pumphouse.model.tso import Tso
    from pumphouse.restore.report import RestoreReport
    from pumphouse.runs.schema import SchemaReport


def planned(plan: WindowPlan) -> str:
    """Of a snapshot's plan."""
    return f"the next window goes up to {show(plan.end)}, from {_some(len(plan.pumps), 'Pump')}"


def pulled(report: PullReport) -> str:
    """Of one Pump's part."""
    if report.action != "pull":
        return f"{report.action}: Pump {report.node_id} has nothing for this window"
    rows = sum(each.rows for each in report.segments)
    size = decimal(sum(each.payload_bytes for each in report.segments))
    return (
        f"pulled {_some(rows, 'transaction')}, {size}, from Pump {report.node_id}: complete to {show(report.reached)}"
    )


def published(done: PublishedWindow) -> str:
    """Of the newest window."""
    what = f"{_some(done.rows, 'transaction')}, {_some(done.changes, 'row change')}, {_some(done.ddls, 'DDL job')}"
    return f"archived up to {show(done.end)}: {what}, {decimal(done.payload_bytes)} in the last window"


def archived_already(end: Tso, until: Tso) -> str:
    """Of an archive that was at a window's end before anybody asked, or past it."""
    past = f", past {show(until)}" if end > until else ""
    return f"nothing to do: the archive is at {show(end)} already{past}"


def folded(report: SchemaReport) -> str:
    """Of the schema timeline."""
    at = f"schema version {report.schema_version} at {show(report.upto)}"
    return f"folded {_some(report.jobs, 'DDL job')}: {at}" if report.jobs else f"no new DDL job: {at}"


def loaded(report: LoadReport) -> str:
    """Of a load."""
    if report.from_ts == report.to_ts and not report.plans:
        return f"nothing to do: {report.target} is at {show(report.to_ts)} already"
    what = f"{_some(report.inserted, 'row')} put, {_some(report.deleted, 'key')} taken, {_some(report.ddls, 'DDL')}"
    parked = f"; NOT whole, parked: {', '.join(sorted(report.parked)[:5])}" if report.parked else ""
    return f"loaded {report.target} up to {show(report.to_ts)} in {duration(report.seconds)}: {what}{parked}"


def sent(report: KafkaReport) -> str:
    """Of messages for Kafka."""
    if not report.messages:
        return f"nothing to send: the topic {report.topic} has everything up to {show(report.to_ts)}"
    what = f"{_some(report.messages, 'message')}, {_some(report.changes, 'row change')}, {_some(report.ddls, 'DDL')}"
    return f"sent {what}, {decimal(report.size)}, to {report.topic}: it has everything up to {show(report.to_ts)}"


def restored(report: RestoreReport) -> str:
    """Of a restore; a row that windows changed behind the dump was put more than once."""
    what = f"{_some(report.plan.tables, 'table')}, {_some(report.load.inserted, 'row')} put"
    return f"restored {what}, to {show(report.plan.to)} in {duration(report.load.seconds)} on {report.target}"


def proved(proof: Proof) -> str:
    """Of a proof, whatever it found."""
    what = f"{_some(len(proof.tables), 'table')}, {_some(proof.rows, 'equal row')}"
    return f"{proof.verdict}: {what} on {proof.target} at {show(proof.at)}"


def drilled(drill: Drill) -> str:
    """Of a drill."""
    times = f"restored in {duration(drill.restore_ms / 1000)}, proved in {duration(drill.proof_ms / 1000)}"
    return f"{drill.verdict}: {_some(drill.tables, 'table')} as of {show(drill.at)}, {times}; again: {drill.again}"


def collected(report: PumpGc) -> str:
    """Of one Pump's GC."""
    if report.error:
        return f"Pump {report.node_id}: {report.error}"
    if not report.started:
        return f"Pump {report.node_id}: {report.note or 'its GC runs already'}"
    freed = f"freed {_some(report.freed_files, 'file')}, {decimal(report.freed_bytes)}"
    upto = f", up to {show(report.requested)}" if report.requested is not None else ""
    held = f" by {', '.join(report.held_by)}" if report.held_by else ""
    return f"Pump {report.node_id}: {freed}{upto}; {_some(report.kept_files, 'file')} kept{held}"


def _some(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"
