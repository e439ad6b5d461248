"""Late and orphan commits of a window: taken by themselves where another Pump proves them, else by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pumphouse.archive.archive import Archive
from pumphouse.archive.declare import accept_with, declarations
from pumphouse.archive.duplicates import digest_of
from pumphouse.archive.holders import holder
from pumphouse.archive.manifest import AcceptedCommit, Declaration, SegmentEntry
from pumphouse.archive.window import PendingCommit, PullReport
from pumphouse.model.tso import Tso, show


def settle_pending(
    archive: Archive,
    reports: Sequence[PullReport],
    segments: Sequence[SegmentEntry],
    records: Sequence[AcceptedCommit],
    start: Tso,
    end: Tso,
) -> tuple[tuple[AcceptedCommit, ...], list[dict[str, Any]]]:
    """What is taken, and who holds the window.

    A late or orphan commit is taken when another Pump's segments have the same (start, commit), with equal content
    where this Pump has one; in this window, or in the one that its commit ts belongs to when that is archived already.
    What was accepted by name is taken too; a late commit that the archive has passed is lost then, unless it has it.
    There the Pump's own segments count too: they have a late commit that was accepted at the Pump before it was pulled.
    An orphan whose prewrite went with an incarnation of its Pump that was declared lost is left out by that word.
    One that was accepted as late, when its Pump still had the prewrite or by a release that took it for late, is lost.
    """
    taken: list[AcceptedCommit] = []
    holders: list[dict[str, Any]] = []
    pending = [(report.node_id, each) for report in reports for each in report.pending if each.commit_ts <= end]
    if not pending:
        return (), []
    by_name = {(each.node_id, each.start_ts, each.commit_ts): each for each in records}
    now = {report.node_id: report.incarnation for report in reports}
    orphans = any(each.kind == AcceptedCommit.ORPHAN for _, each in pending)
    losses = [each for each in declarations(archive) if each.incarnation != now.get(each.node_id)] if orphans else []
    for node_id, each in pending:
        named = by_name.get((node_id, each.start_ts, each.commit_ts))
        orphan = each.kind == AcceptedCommit.ORPHAN
        if named is not None and not (named.kind == AcceptedCommit.LATE and (orphan or each.commit_ts <= start)):
            taken.append(named)
            continue
        other = None if each.why else _elsewhere(archive, node_id, each, segments if each.commit_ts > start else None)
        if other is not None:
            taken.append(
                AcceptedCommit(
                    node_id=node_id,
                    start_ts=each.start_ts,
                    commit_ts=each.commit_ts,
                    kind=each.kind,
                    reason=f"{other} has the whole transaction",
                    who=AcceptedCommit.ARCHIVE,
                )
            )
            continue
        if named is None and orphan and (lost := _lost_with(losses, node_id, each)) is not None:
            named = accept_with(archive, lost, each.start_ts, each.commit_ts)
        if named is not None:
            taken.append(
                replace(named, kind=AcceptedCommit.ORPHAN) if orphan and named.kind == AcceptedCommit.LATE else named
            )
            continue
        holders.append(
            holder(
                node_id,
                f"{_what(each)}: pumphouse archive accept {node_id} {each.start_ts} {each.commit_ts} --reason …",
                each.start_ts,
                commit_ts=int(each.commit_ts),
            )
        )
    return tuple(taken), holders


def _lost_with(losses: Sequence[Declaration], node_id: str, orphan: PendingCommit) -> Declaration | None:
    """The declaration that its prewrite, and what came of it, is not to be had.

    None of a second prewrite, which its Pump has on file.
    """
    if orphan.start_ts == orphan.commit_ts:
        return None
    return next(
        (
            each
            for each in losses
            if each.node_id == node_id and orphan.start_ts <= each.to_ts and each.from_ts < orphan.commit_ts
        ),
        None,
    )


def _what(pending: PendingCommit) -> str:
    if pending.why:
        return (
            f"transaction {show(pending.commit_ts)}, which began at {show(pending.start_ts)}, cannot be read "
            f"({pending.why}); it is left out with"
        )
    if pending.start_ts == pending.commit_ts:
        return (
            f"a prewrite of start ts {show(pending.start_ts)}, which is already in use: by another prewrite with "
            "different content, or as the commit ts of another transaction"
        )
    return f"{pending.kind} commit {show(pending.commit_ts)} of the transaction that began at {show(pending.start_ts)}"


def _elsewhere(
    archive: Archive, node_id: str, commit: PendingCommit, segments: Sequence[SegmentEntry] | None
) -> str | None:
    """A Pump of which the archive has the same transaction."""
    passed = segments is None
    if segments is None:
        if commit.commit_ts <= archive.range().start:
            return None
        window = archive.by_manifests().windows_between(Tso(commit.commit_ts - 1), commit.commit_ts)
        segments = [each.segment for each in window.placed()]
    found = digest_of(archive.store, segments, commit.start_ts, commit.commit_ts)
    mine = found.pop(node_id, None)
    if passed and mine is not None:
        return node_id
    for other, digests in found.items():
        # A transaction in parts has several digests: then this Pump's own parts are what can be compared.
        if commit.kind == AcceptedCommit.ORPHAN or digests in (mine, (commit.digest,)):
            return other
    return None
