"""What a restore to a moment reads and does. Pure: from genesis, manifests and the timeline alone (rows R1, R2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from include.archive.genesis import Genesis
from include.archive.manifest import Declaration, Manifest
from include.errors import RestoreError, TargetUnreachable
from include.loader.begin import lacks_dump
from include.loader.losses import Losses, Range, losses_of
from include.model.tso import Tso, parse_time, physical_ms, show
from include.schema.actions import is_system
from include.schema.timeline import Timeline

LATEST = "latest"
# The clock of this machine may lag behind that of the cluster by this much.
_AHEAD_MS = 10_000


def parse_moment(text: str, now: Callable[[], Tso]) -> Tso | None:
    """Read the moment of a restore: None for ``latest``, the archive's end, else a TIME; UsageError."""
    return None if text.strip() == LATEST else parse_time(text, now, word=LATEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowStep:
    """One window that is read. ``cut``: only its part up to the moment."""

    start: Tso
    end: Tso
    segments: int
    bytes: int
    rows: int
    cut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlStep:
    """One DDL that is carried out."""

    commit_ts: Tso
    job_id: int
    action: str
    query: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """A restore from the dump at genesis to ``to``.

    Args:
        to: every transaction with commit ts <= this, none above it.
        base: ts of the dump.
        base_tables: tables in it.
        base_rows: rows in it.
        base_bytes: payload bytes of it.
        windows: windows that are read, in order.
        ddls: DDLs in (base, to], in order.
        databases: databases that are replaced on the target.
        tables: tables that there will be.
        rows: row changes in the windows; a window that is cut counts in full.
        bytes: payload bytes in the windows.
        declared: what was given up in (base, to]; see `Losses` for this and the next two.
        unsynced: Pumps that ran without fsync then.
        binlog_skipped: ranges in which TiDB skipped binlogs.
    """

    to: Tso
    base: Tso
    base_tables: int
    base_rows: int
    base_bytes: int
    windows: tuple[WindowStep, ...]
    ddls: tuple[DdlStep, ...]
    databases: tuple[str, ...]
    tables: int
    rows: int
    bytes: int
    declared: tuple[Declaration, ...] = ()
    unsynced: tuple[str, ...] = ()
    binlog_skipped: tuple[Range, ...] = ()

    @property
    def losses(self) -> Losses:
        """What the target will lack, or may lack."""
        return Losses(declared=self.declared, unsynced=self.unsynced, binlog_skipped=self.binlog_skipped)

    def require_accepted(self, accept_losses: bool) -> None:
        """RestoreError when something in the range was declared lost and nobody said that this is accepted."""
        if self.declared and not accept_losses:
            lines = Losses(declared=self.declared).lines()
            raise RestoreError(
                f"the moment {show(self.to)} cannot be restored whole: {'; '.join(lines)}",
                hint="restore what there is with --accept-losses (accept_losses=True), or a moment before the loss",
                declared=[each.to_dict() for each in self.declared],
            )

    def to_dict(self) -> dict[str, Any]:
        """JSON object."""
        return asdict(self)


def plan_restore(
    genesis: Genesis,
    manifests: Sequence[Manifest],
    target_ts: Tso | None,
    timeline: Timeline,
    *,
    wall: Tso | None = None,
) -> RestorePlan:
    """Plan a restore.

    Args:
        genesis: where the archive begins.
        manifests: the chain, in order, as far as it goes.
        target_ts: the moment, inclusive; None = the archive's end.
        timeline: schema up to the archive's end.
        wall: this machine's time, to say of a moment that it lies in the future.

    Raises:
        TargetUnreachable: the moment lies before genesis or behind the archive; it is never moved to fit.
        RestoreError: the archive holds no dump of the tables that there were at genesis.
    """
    end = manifests[-1].end if manifests else genesis.ts
    if target_ts is None:
        target_ts = end
    if not genesis.ts <= target_ts <= end:
        raise _unreachable(target_ts, genesis.ts, end, wall)
    if lacks_dump(genesis, timeline):
        raise RestoreError(
            "the archive was begun without a dump of the tables that there were: there is nothing to restore from",
            hint="make a target equal to the source yourself, then go on from there: `pumphouse load --equal-at TIME`",
        )
    base = genesis.base or ()
    losses = losses_of(manifests, after=genesis.ts, upto=target_ts)
    windows = tuple(_step(manifest, target_ts) for manifest in manifests if manifest.start < target_ts)
    return RestorePlan(
        to=target_ts,
        base=genesis.ts,
        base_tables=len(base),
        base_rows=sum(table.rows for table in base),
        base_bytes=sum(segment.payload_bytes for table in base for segment in table.segments),
        windows=windows,
        ddls=tuple(
            DdlStep(
                commit_ts=event.commit_ts, job_id=event.job.id, action=event.action.name, query=event.job.query[:500]
            )
            for event in timeline.ddls(genesis.ts, target_ts)
            if not event.silent
        ),
        databases=all_databases(timeline),
        tables=sum(not is_system(version.db) for version in timeline.tables_at(target_ts)),
        rows=sum(window.rows for window in windows),
        bytes=sum(window.bytes for window in windows),
        declared=losses.declared,
        unsynced=losses.unsynced,
        binlog_skipped=losses.binlog_skipped,
    )


def _unreachable(target_ts: Tso, start: Tso, end: Tso, wall: Tso | None) -> TargetUnreachable:
    why = ""
    if target_ts < start:
        hint = "nothing from before its beginning can be restored; see `pumphouse archive ls`"
    elif wall is not None and physical_ms(target_ts) > physical_ms(wall) + _AHEAD_MS:
        why = "it lies in the future, and "
        hint = "`--to latest` (in the form: latest) restores to the archive's end"
    else:
        # Not "up to now, then try again": now is always behind the end.
        hint = (
            "`--to latest` (in the form: latest) restores to the archive's end, which always lies before now; "
            "`pumphouse snapshot` first takes in what was written since"
        )
    return TargetUnreachable(
        f"{show(target_ts)} cannot be restored: {why}the archive covers {show(start)} to {show(end)}",
        hint=hint,
        target=target_ts,
        have_from=start,
        have_to=end,
    )


def _step(manifest: Manifest, target_ts: Tso) -> WindowStep:
    read = [segment for segment in manifest.segments if segment.min_commit_ts <= target_ts and segment.rows]
    return WindowStep(
        start=manifest.start,
        end=manifest.end,
        segments=len(read),
        bytes=sum(segment.payload_bytes for segment in read),
        rows=sum(segment.changes for segment in read),
        cut=manifest.end > target_ts,
    )


def all_databases(timeline: Timeline) -> tuple[str, ...]:
    """Every database that the source ever had: a target that stood at any moment has none but these."""
    names = {
        version.info.name
        for versions in timeline.databases.values()
        for version in versions
        if version.info is not None and not is_system(version.info.name)
    }
    return tuple(sorted(names))
