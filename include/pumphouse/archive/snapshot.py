"""Extending the archive: plan a window, pull each Pump, commit; the doors of the DAG and of ``pumphouse snapshot``.

Each step can be killed and run again: nothing is visible before a manifest is put, and the manifest is put once.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from pumphouse.archive import consumer, layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.commit import commit_window
from pumphouse.archive.coverage import (
    GONE,
    Verdict,
    given_up,
    judge_all,
    replaced_by,
    start_of,
)
from pumphouse.archive.declare import declarations
from pumphouse.archive.failed import noting
from pumphouse.archive.holders import holder, named
from pumphouse.archive.manifest import PumpEntry
from pumphouse.archive.pull_pump import pull_node
from pumphouse.archive.window import Action, PlannedPump, ProgressSink, PublishedWindow, PullReport, WindowPlan, silent
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import BinlogError, ManifestConflict, UsageError, WindowHeld
from pumphouse.model.node import NodeKind, NodeStatus
from pumphouse.model.tso import Tso, show
from pumphouse.objectstore.probe import KEEP
from pumphouse.registry.base import Cluster
from pumphouse.schema.history import JobSource
from pumphouse.settings import Settings

__all__ = ["commit_window", "plan_window", "pull_node", "run_snapshot"]

log = structlog.get_logger()

# Clocks of schedulers run ahead of the cluster's by a little; more is a mistake in the interval.
_AHEAD_S = 10.0
_AHEAD_POLL_S = 0.2


def plan_window(
    archive: Archive, cluster: Cluster, until: Tso, settings: Settings, *, clock: Clock = SYSTEM_CLOCK
) -> WindowPlan | None:
    """The next window towards ``until``; None when the archive is there already.

    The fence is taken first, the Pumps are listed after: a Pump that registers later takes its first prewrite later, so
    all its commits lie above the fence.

    Raises:
        WindowHeld: a Pump is gone, offline or another one than before, and neither drained nor declared lost.
        UsageError: ``until`` lies in the future.
        BadManifest: the Pumps know the archive further than it goes.
    """
    for rule in archive.store.losing():
        log.error("archive_loses_objects", rule=rule, archive=archive.url, hint=KEEP)
    # Catches up on what a killed commit left undone: its manifest is there, HEAD and its checkpoint are not.
    consumer.publish(archive, cluster, consumer.of_snapshot(settings.airflow))
    genesis, last = archive.genesis(), archive.last()
    start = genesis.ts if last is None else last.end
    if start >= until:
        return None
    fence = _fence_above(cluster, until, clock)
    nodes = cluster.nodes(NodeKind.PUMP)
    declared = declarations(archive)
    before = genesis.pumps if last is None else last.pumps
    verdicts = judge_all(nodes, before, declared, start)
    holders = [holder(each.node_id, each.why, hint=each.hint) for each in verdicts if each.action is Action.HELD]
    if holders:
        raise WindowHeld(
            f"the window after {show(start)} is held: {named(holders)}",
            hint="; ".join(dict.fromkeys(str(each["hint"]) for each in holders)),
            holders=holders,
        )
    # A declared loss covers its own range and no more, also of a Pump that is pulled: it may go away while it is.
    lost = [each.declared.to_ts for each in verdicts if each.declared is not None]
    return WindowPlan(
        start=start,
        end=min([until, *lost]),
        until=until,
        fence=fence,
        previous=genesis.sha256 if last is None else last.sha256,
        run=layout.attempt_id(),
        pumps=_planned_pumps(verdicts, nodes, before),
        declared=tuple(declared),
    )


def run_snapshot(
    archive: Archive,
    cluster: Cluster,
    until: Tso,
    settings: Settings,
    history: JobSource | None,
    progress: ProgressSink = silent,
    *,
    waiting: Callable[[str], None] = lambda _: None,
    patience_s: float | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> list[PublishedWindow]:
    """Extend the archive to ``until``, window by window, all in this process; what `commit_window` gave for each.

    Others may do the same meanwhile, a dump above all: a window that another one published first is left to it, and
    this one goes on from the new end, so that all of them arrive. ``patience_s``: as of `pull_node`.
    """
    done: list[PublishedWindow] = []
    with noting(archive, "snapshot", clock, patience_s=patience_s):
        while (plan := plan_window(archive, cluster, until, settings, clock=clock)) is not None:
            reports = _pull_all(archive, cluster, plan, settings, progress, patience_s, clock)
            try:
                done.append(
                    commit_window(archive, cluster, plan, reports, history, settings, waiting=waiting, clock=clock)
                )
            except ManifestConflict:
                if archive.end() <= plan.start:
                    raise
                log.info("window_published_by_another", start=int(plan.start), end=int(archive.end()))
    return done


def _pull_all(
    archive: Archive,
    cluster: Cluster,
    plan: WindowPlan,
    settings: Settings,
    progress: ProgressSink,
    patience_s: float | None,
    clock: Clock,
) -> list[PullReport]:
    """Every Pump at once; of several that hold the window, all are named."""
    reports: list[PullReport] = []
    failed: list[BinlogError] = []
    with ThreadPoolExecutor(max(len(plan.pumps), 1), thread_name_prefix="pull") as pool:
        running = [
            pool.submit(
                pull_node, archive, cluster, plan, node_id, settings, progress, patience_s=patience_s, clock=clock
            )
            for node_id in plan.node_ids
        ]
        for each in running:
            try:
                reports.append(each.result())
            except BinlogError as error:
                failed.append(error)
    held = [error for error in failed if isinstance(error, WindowHeld)]
    if len(held) > 1 and len(held) == len(failed):
        raise WindowHeld(
            "; ".join(error.message for error in held),
            hint=held[0].hint,
            holders=[holder for error in held for holder in error.holders or ()],
        )
    if failed:
        # What cannot be tried again says more than who merely holds.
        raise next((error for error in failed if not error.retryable), failed[0])
    return reports


def _planned_pumps(
    verdicts: list[Verdict], nodes: list[NodeStatus], before: tuple[PumpEntry, ...]
) -> tuple[PlannedPump, ...]:
    now = {each.node_id: each for each in nodes}
    known = {each.node_id: each for each in before}
    pumps = []
    for verdict in verdicts:
        status, entry = now.get(verdict.node_id), known.get(verdict.node_id)
        # A Pump that is pulled is the one of the registry; one that is not is the one that was drained or lost.
        live = verdict.action is Action.PULL or entry is None or given_up(status, entry, verdict)
        same = entry is not None and (verdict.declared is None or verdict.action is not Action.PULL)
        one = status if live and status is not None else entry
        start = start_of(one)
        pumps.append(
            PlannedPump(
                node_id=verdict.node_id,
                action=verdict.action,
                incarnation=start.incarnation,
                start_count=start.start_count,
                state=GONE if status is None else str(status.state),
                registry=entry.registry if entry is not None and verdict.action is Action.DRAINED else "",
                declared=verdict.declared,
                needed=verdict.needed,
                replaced=replaced_by(one),
                last=entry.last if entry is not None and (same or status is None or status.extra is None) else None,
            )
        )
    return tuple(pumps)


def _fence_above(cluster: Cluster, until: Tso, clock: Clock) -> Tso:
    deadline = clock.monotonic() + _AHEAD_S
    while (fence := cluster.tso()) <= until:
        if (until - fence) >> 18 > _AHEAD_S * 1000 or clock.monotonic() >= deadline:
            raise UsageError(
                f"{show(until)} lies in the future: the cluster's clock says {show(fence)}",
                hint="give a time that has passed, or now",
                until=until,
            )
        clock.sleep(_AHEAD_POLL_S)
    return fence
