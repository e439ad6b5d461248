"""What the DAGs' tasks do: read the connections, open the parts, call the same functions as the command line.

Every function takes and returns small JSON, because that is what XCom carries; a window's plan and reports become
JSON here and nowhere below (`binlog_airflow.xcom`).
"""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import structlog

from binlog_airflow import xcom
from binlog_airflow.hooks import SOURCE, settings_from
from binlog_airflow.shown import markdown, plan_facts
from binlog_airflow.silence import naming_silence
from binlog_airflow.streams import ordinary_stderr
from pumphouse.errors import ConfigError, GapError, ManifestConflict, TargetAhead, UsageError
from pumphouse.model import tso
from pumphouse.settings import DOWNSTREAM

if TYPE_CHECKING:
    from pumphouse.loader.confirmed import Published
    from pumphouse.parts import Parts
    from pumphouse.restore.check import Into
    from pumphouse.schema.history import JobSource
    from pumphouse.settings import Settings

log = structlog.get_logger()

_SAY_AGAIN_S = 10.0


def _parts(settings: Settings) -> Parts:
    from pumphouse.parts import Parts

    return Parts(settings)


def _history(parts: Parts) -> JobSource:
    if parts.history is None:
        raise ConfigError(
            "the cluster connection names no DDL history", hint="set `history` in the extra of pumphouse_cluster"
        )
    return parts.history


def plan_window(until: datetime | None) -> dict[str, Any] | None:
    """The next window towards the interval's end, None = now; None when the archive is there already."""
    from pumphouse.archive.failed import noting
    from pumphouse.archive.snapshot import plan_window as plan

    settings = settings_from()
    with _parts(settings) as parts, noting(parts.archive, "snapshot"):
        # Now is the cluster's, as for `pumphouse snapshot`: the clock of this machine may run ahead of it.
        moment = parts.cluster.tso() if until is None else tso.from_datetime(until)
        found = plan(parts.archive, parts.cluster, moment, settings)
    return None if found is None else xcom.dump(found)


def node_ids(plan: dict[str, Any]) -> list[str]:
    """The Pumps of a plan: one mapped task for each."""
    from pumphouse.archive.window import WindowPlan

    return list(xcom.read(WindowPlan, plan).node_ids)


def pull_node(plan: dict[str, Any], node_id: str) -> dict[str, Any]:
    """One Pump's part of a window, into segments that no manifest names yet."""
    from pumphouse.archive.failed import noting
    from pumphouse.archive.snapshot import pull_node as pull
    from pumphouse.archive.window import WindowPlan

    planned = xcom.read(WindowPlan, plan)
    settings = settings_from()
    with (
        naming_silence(lambda: _parts(settings), node_id),
        _parts(settings) as parts,
        noting(parts.archive, "snapshot"),
    ):
        return xcom.dump(pull(parts.archive, parts.cluster, planned, node_id, settings))


def commit_window(plan: dict[str, Any], reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Make the window visible, then go on in this task while the byte budget left something before the plan's end."""
    from pumphouse.archive.failed import noting
    from pumphouse.archive.snapshot import commit_window as commit
    from pumphouse.archive.snapshot import run_snapshot
    from pumphouse.archive.window import PublishedWindow, PullReport, WindowPlan

    planned, pulled = xcom.read(WindowPlan, plan), [xcom.read(PullReport, each) for each in reports]
    settings = settings_from()
    with _parts(settings) as parts, noting(parts.archive, "snapshot"):
        archive, cluster, history = parts.archive, parts.cluster, _history(parts)
        try:
            done = commit(archive, cluster, planned, pulled, history, settings)
            more = done.more
        except ManifestConflict:
            # This window is there already: a try of this task was killed after its manifest, or another run won.
            newest, more = archive.last(), True
            if newest is None:
                raise
            done = PublishedWindow.of(newest, planned.until)
        if more:
            later = run_snapshot(archive, cluster, planned.until, settings, history)
            done = later[-1] if later else done
    return xcom.dump(done)


def dump_source(conn_id: str = SOURCE) -> dict[str, Any]:
    """Dump the source while it is written to; a retry goes on where the try before was killed."""
    from pumphouse.dump.run import take_dump

    settings = settings_from(source=conn_id)
    with _parts(settings) as parts:
        said = 0.0

        def progress(what: str, rows: int, estimate: int) -> None:
            nonlocal said
            if time.monotonic() - said >= _SAY_AGAIN_S:
                said = time.monotonic()
                log.info("dumping", table=what, rows=rows, of_about=estimate)

        return xcom.bounded(
            asdict(take_dump(parts.archive, parts.cluster, _history(parts), settings, progress=progress))
        )


@ordinary_stderr()
def rebuild_schema() -> dict[str, Any]:
    """Fold the DDL jobs of new windows into the schema timeline; a Spark session only when there are any."""
    from pumphouse.runs import schema

    return xcom.bounded(asdict(schema.run(settings_from())))


@ordinary_stderr()
def load_target(run_id: str, conn_id: str = DOWNSTREAM) -> dict[str, Any]:
    """Bring a target up to the archive's end, in safe mode. A retry of the same run takes over from itself."""
    from pumphouse.runs import load

    settings = settings_from(downstream=conn_id)
    return xcom.bounded(load.run(settings, target=settings.target, task=settings.load.task, run_id=run_id).to_dict())


def collect_pumps() -> dict[str, Any]:
    """Trigger GC on every Pump; report what was asked for, what was freed and who holds the rest.

    Where GC follows the load, what the archive and every target have is published before. Fails, after GC, when a Pump
    does, when it is not known where a target stands, and when the archive is not far enough ahead of a Go Pump, whose
    GC nobody can hold.
    """
    from pumphouse.archive import consumer
    from pumphouse.client import admin
    from pumphouse.client.go_gc import GoLimits
    from pumphouse.rpc.operator import proof

    settings = settings_from()
    with _parts(settings) as parts:
        cluster = parts.cluster
        known = consumer.require(parts.archive, cluster)
        published = _publish_loaded(settings, parts) if settings.airflow.gc_follows == "load" else None
        limits = GoLimits(
            # Not registered here is as bad as empty: the DAG runs to keep an archive safe.
            archived=published.confirmed.archive_end
            if published is not None
            else (known and known.checkpoint) or tso.Tso(0),
            retention_s=settings.archive.go_pump_gc_s,
            margin_s=settings.archive.go_pump_margin_s,
        )
        reports = admin.trigger_gc(cluster, tls=settings.tls, proof=proof(settings.cluster), go_limits=limits)
    shown = [report.to_dict() for report in reports]
    for each in shown:
        log.info("pump_collected", **each)
    error = admin.failures(reports) or (published and published.failure())
    if error:
        raise error
    found = {"pumps": shown} if published is None else {"pumps": shown, "published": published.to_dict()}
    return xcom.bounded(found)


def _publish_loaded(settings: Settings, parts: Parts) -> Published:
    """Let the Pumps know what the archive and every target that GC waits for have."""
    from pumphouse.loader.confirmed import ask, publish

    cluster_id = parts.cluster.cluster_id()
    stands = []
    for conn_id in settings.waited_for:
        of = settings_from(archive=None, cluster=None, downstream=conn_id)
        stands.append(ask(conn_id, of.target, of.load.task, cluster_id))
    done = publish(parts.archive, parts.cluster, stands)
    log.info("checkpoint_published", **done.to_dict())
    return done


def asked_moment(moment: str | None, to: str) -> str:
    """The moment of a restore out of the form's two fields; UsageError when both name one."""
    from pumphouse.restore.plan import LATEST

    if moment and to.strip() != LATEST:
        raise UsageError(
            f"the form names two moments, {moment} and {to}", hint=f"leave Moment empty, or write {LATEST} below it"
        )
    return moment or to


def plan_restore(to: str, conn_id: str) -> dict[str, Any]:
    """What a restore to that moment would read and do, bounded, with ``shown``, the plan as Markdown."""
    from pumphouse.restore.plan import LATEST, parse_moment
    from pumphouse.runs import restore

    settings, into = _restore_settings(conn_id)
    with _parts(settings) as parts:
        moment = parse_moment(to, lambda text: parts.moment(text, word=LATEST).ts)
    report = restore.run(settings, into=into, to=moment, dry_run=True)
    log.info("restore_moment", asked=to, moment=tso.show(report.plan.to), archive_end=moment is None)
    found = report.to_dict()
    facts = plan_facts(found)
    for line in (f"{name}: {value}" for name, value in facts):
        log.info(line)
    # What is shown names kinds of DDL; their texts stay in the archive.
    found["plan"]["ddls"] = len(found["plan"]["ddls"])
    return {**xcom.bounded(found), "moment": tso.show(report.plan.to), "shown": markdown(facts)}


@ordinary_stderr()
def restore_target(plan: dict[str, Any], run_id: str, conn_id: str, *, accept_losses: bool) -> dict[str, Any]:
    """Carry out the plan that was shown, and no other: reset the target, load the dump, then the windows.

    Who approved the plan approved the server in it: the connection must still name that one.
    """
    from pumphouse.restore.report import ShownPlan
    from pumphouse.runs import restore

    (settings, into), shown = _restore_settings(conn_id), plan["plan"]
    done = restore.run(
        settings,
        into=into,
        shown=ShownPlan(to=tso.Tso(int(shown["to"])), end=tso.Tso(int(shown["end"])), digest=str(shown["digest"])),
        dry_run=False,
        run_id=run_id,
        accept_losses=accept_losses,
        replace=str(plan["check"]["server"]),
    ).to_dict()
    done["plan"]["ddls"] = len(done["plan"]["ddls"])
    return xcom.bounded(done)


def _restore_settings(conn_id: str) -> tuple[Settings, Into]:
    """Settings of a restore onto a connection, and their section with it: the connection of loads is [target]."""
    if conn_id == DOWNSTREAM or conn_id in settings_from().targets:
        return settings_from(downstream=conn_id), "target"
    return settings_from(restore=conn_id), "restore_target"


@ordinary_stderr()
def apply_interval(end: datetime, conf: dict[str, Any], run_id: str) -> dict[str, Any]:
    """Load (checkpoint, min(end, stop)] onto a restored target; nothing to do where the checkpoint is there already.

    Intervals may come in any order: what lies between the checkpoint and this one's start is loaded too, as an
    interval before it that has not run yet would have been. So nothing is left out, and none waits for another.
    """
    from pumphouse.loader import state
    from pumphouse.loader.target import TargetConnection
    from pumphouse.runs import load

    settings = settings_from(downstream=str(conf["target"]))
    with _parts(settings) as parts:
        stop = parts.moment(str(conf["stop"])).ts if conf.get("stop") else tso.MAX_TSO
    upto = tso.Tso(min(tso.from_datetime(end), stop))
    with TargetConnection.open(settings.target) as connection:
        found = state.read(connection, settings.load.task)
    if found is None:
        raise GapError(
            f"target {conf['target']!r} has no checkpoint to go on from",
            hint="restore it first: DAG binlog_restore, or `pumphouse restore`",
        )
    checkpoint = found.ts
    if checkpoint > stop:
        raise TargetAhead(
            f"the target stands at {tso.show(checkpoint)}, beyond the stop {tso.show(stop)}",
            hint="restore it to a moment before the stop: DAG binlog_restore",
            checkpoint=checkpoint,
            archive_end=stop,
        )
    if checkpoint >= upto and found.state is state.TargetState.READY:
        return xcom.bounded({"from": checkpoint, "to": checkpoint, "rows": 0, "skipped": True})
    return xcom.bounded(
        load.run(settings, target=settings.target, task=settings.load.task, to=upto, run_id=run_id).to_dict()
    )
