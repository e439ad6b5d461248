"""What a restore to a moment reads and does. Pure: from genesis, manifests and the timeline alone (rows R1, R2).

Its steps are those of a first load (`pumphouse.loader.begin`), and the plans up to the moment.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from typing import Any

from pumphouse import advice
from pumphouse.archive.base import Base
from pumphouse.archive.losses import Losses
from pumphouse.archive.view import ArchiveView
from pumphouse.archive.windows import Windows
from pumphouse.errors import RestoreError, TargetUnreachable, UsageError
from pumphouse.loader.begin import fill
from pumphouse.loader.rules import Rules, lacking_hint
from pumphouse.loader.state import our_schemas
from pumphouse.loader.steps import Apply, Follow, Given, Ready, Steps
from pumphouse.loader.work import SegmentPart, Work, base_work, databases_between, ids_of, total_bytes, works_between
from pumphouse.model.tso import Tso, lies_ahead, show
from pumphouse.schema.actions import is_system
from pumphouse.schema.route import Routes
from pumphouse.settings import LoadSettings

LATEST = "latest"


def parse_moment(text: str, parse: Callable[[str], Tso]) -> Tso | None:
    """Read the moment of a restore: None for ``latest``, the archive's end, else a TIME; UsageError."""
    return None if text.strip() == LATEST else parse(text)


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
class TableSize:
    """What is read of one table: rows of the dump, changes in segments of the log; one that is cut counts in full."""

    table: str
    rows: int
    changes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlStep:
    """One DDL that is carried out."""

    commit_ts: Tso
    job_id: int
    action: str
    query: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """A restore from the newest dump before ``to``: what is shown is what is carried out.

    Args:
        to: every transaction with commit ts <= this, none above it.
        end: end of the archive that was seen; who carries the plan out later sees the archive up to there.
        base: from when on the dump is exact.
        base_low: the log above it, up to ``base``, is laid over the dump; equal to ``base`` where none is.
        base_tables: tables in it.
        works: the plans, the dump's first; each names the segments and DDLs that it reads.
        windows: windows in (base low, to], in order, with what is read of them.
        databases: databases that may lie on the target from before, as they are called there: they are dropped.
        sources: databases of the source that there are at the base, or come up to the moment.
        made: what these are called there.
        routes: by which they and their tables are called so.
        tables: tables that there will be.
        sizes: of those with rows or changes, the largest first.
        losses: what (base low, to] lacks.
        idle: rules that have no effect, because the dump has what they leave out or replace; in words.
    """

    to: Tso
    end: Tso
    base: Tso
    base_low: Tso
    base_tables: int
    works: tuple[Work, ...]
    windows: tuple[WindowStep, ...]
    databases: tuple[str, ...]
    sources: tuple[str, ...]
    made: tuple[str, ...]
    routes: Routes
    tables: int
    sizes: tuple[TableSize, ...]
    losses: Losses
    idle: tuple[str, ...]

    def steps(self, given: Given, beside: Sequence[str] = ()) -> Steps:
        """What is done: the target is emptied, built as the dump has it, filled, and loaded up to the moment.

        Args:
            given: what the plan was made from, and the server that is replaced.
            beside: databases there that loads made by other rules.
        """
        base, *works = self.works
        why = f"a restore to {show(self.to)} has not ended"
        drop = self.dropped(given.target.schema_name)
        filled = fill(given, base, drop, why, beside=beside, taken_up=tuple(given.settings.rules))
        # Only at its end may the target be loaded further; until then a load is refused.
        ready = Ready(reason=f"restored to {show(self.to)}")
        applied = (Apply(work=work) for work in works)
        return Steps(from_ts=self.base, to_ts=self.to, anew=(*filled, *applied, ready))

    def dropped(self, own: str) -> list[str]:
        """Databases that are dropped on a target whose schema ``own`` keeps the state of its loads.

        One of that name which comes after the moment was never loaded there, and is no obstacle.
        """
        ours = {name.casefold() for name in our_schemas(own)}
        return [name for name in self.databases if name in self.made or name.casefold() not in ours]

    @property
    def base_rows(self) -> int:
        """Rows in the dump."""
        return sum(piece.segment.changes for piece in self._of_base())

    @property
    def base_bytes(self) -> int:
        """Payload bytes of the dump."""
        return sum(piece.bytes for piece in self._of_base())

    def _of_base(self) -> Iterator[SegmentPart]:
        """Pieces of the dump, which come first: the log's are not asked for."""
        return takewhile(lambda piece: piece.window is None, self.works[0].pieces)

    @property
    def ddls(self) -> tuple[DdlStep, ...]:
        """DDLs in (base, to], in order."""
        return tuple(
            DdlStep(
                commit_ts=event.commit_ts, job_id=event.job.id, action=event.action.name, query=event.job.query[:500]
            )
            for work in self.works
            for event in work.events
        )

    @property
    def left_out(self) -> dict[str, str]:
        """What a rule leaves out or replaces: tables by name, DDLs by job id, transactions; with the reason."""
        return {name: why for work in self.works for name, why in work.plan.skipped.items()} | self.ruled

    @property
    def ruled(self) -> dict[str, str]:
        """Those of them that are DDLs and transactions."""
        found = {}
        for work in self.works:
            for event in work.events:
                if (rule := work.rulings.get(event.commit_ts)) is not None:
                    found[f"DDL job {event.job.id}"] = f"{rule.do}: {rule.why}"
            for ts, rule in work.txn_rules.items():
                found[f"rows of the transaction at {show(ts)}"] = f"{rule.do}: {rule.why}"
        return found

    @property
    def rows(self) -> int:
        """Row changes in the segments that are read; one that is cut counts in full."""
        return sum(window.rows for window in self.windows)

    @property
    def bytes(self) -> int:
        """Payload bytes in them."""
        return total_bytes(self.works) - self.base_bytes

    def follow(self, cluster_id: int) -> Follow:
        """The step behind it, of a restore that its load follows: known again by the dump, and by rules up to there."""
        ruled = sorted(
            (int(ts), rule.model_dump_json())
            for work in self.works
            for ts, rule in (*work.rulings.items(), *work.txn_rules.items())
        )
        return Follow(cluster_id=cluster_id, ts=self.to, by=(f"{self.base}", *(f"{ts} {rule}" for ts, rule in ruled)))

    def digest(self) -> str:
        """SHA-256 of everything that decides what is done: a plan that was shown is told from another by it."""
        digest = hashlib.sha256(f"{self.to} {self.end} {self.databases} {self.routes or ''}".encode())
        for work in self.works:
            digest.update(work.plan.digest().encode())
            for ts, rule in (*work.rulings.items(), *work.txn_rules.items()):
                digest.update(f"{ts} {rule.model_dump_json()}\n".encode())
            for piece in work.pieces:
                digest.update(f"{piece.segment.key} {piece.segment.sha256} {piece.after} {piece.upto}\n".encode())
        return digest.hexdigest()

    def require_shown(self, digest: str) -> None:
        """RestoreError unless this is the plan with that digest."""
        if self.digest() != digest:
            raise RestoreError(
                f"the plan of the restore to {show(self.to)} is another one than was shown",
                hint="settings or the archive changed since: look at the plan again",
            )

    def require_accepted(self, accept_losses: bool) -> None:
        """RestoreError when something in the range is lost for certain and nobody said that this is accepted."""
        certain = self.losses.certain
        if certain and not accept_losses:
            raise RestoreError(
                f"the moment {show(self.to)} cannot be restored whole: {'; '.join(certain.lines())}",
                hint="restore what there is with --accept-losses (accept_losses=True), or a moment before the loss",
                declared=[each.to_dict() for each in certain.declared],
                binlog_skipped=[each.to_dict() for each in certain.binlog_skipped],
            )

    def to_dict(self) -> dict[str, Any]:
        """JSON object."""
        return {
            "to": self.to,
            "end": self.end,
            "digest": self.digest(),
            "base": self.base,
            "base_low": self.base_low,
            "base_tables": self.base_tables,
            "base_rows": self.base_rows,
            "base_bytes": self.base_bytes,
            "windows": [asdict(window) for window in self.windows],
            "ddls": [asdict(ddl) for ddl in self.ddls],
            "databases": self.databases,
            "left_out": self.left_out,
            "routes": dict((*self.routes.databases, *self.routes.tables)),
            "tables": self.tables,
            "sizes": [asdict(size) for size in self.sizes],
            "idle": self.idle,
            "rows": self.rows,
            "bytes": self.bytes,
            **asdict(self.losses),
        }


def plan_restore(
    view: ArchiveView,
    target_ts: Tso | None,
    *,
    task: str,
    settings: LoadSettings,
    wall: Tso | None = None,
) -> RestorePlan:
    """Plan a restore.

    Args:
        view: the whole archive, from genesis on.
        target_ts: the moment, inclusive; None = the archive's end.
        task: load that goes on from there.
        settings: how plans are cut and spread over units.
        wall: this machine's time, to say of a moment that it lies in the future.

    Raises:
        TargetUnreachable: the moment lies before the first dump or behind the archive; it is never moved to fit.
        RestoreError: the archive holds no dump.
    """
    end = view.end
    to = end if target_ts is None else target_ts
    # Since nothing: what a rule leaves out is not there at all.
    rules = Rules.of(settings.rules, Tso(0))
    base = view.base_for(to, rules.leaves_out_name) if to <= end else None
    if base is None:
        raise unreachable(to, view, rules.leaves_out_name, wall)
    works = (base_work(view, base, task, settings, rules), *works_between(view, base.ts, to, task, settings, rules))
    windows = view.between(base.low, to)
    sources = databases_between(view.timeline, base.ts, to, rules)
    return RestorePlan(
        to=to,
        end=end,
        base=base.ts,
        base_low=base.low,
        base_tables=len(base.tables),
        works=works,
        windows=tuple(window_steps(windows, base.low, to, ids_of(view.timeline, rules.only) if rules.only else None)),
        databases=tuple(rules.routes.places(view.databases)),
        sources=tuple(sources),
        made=tuple(rules.routes.places(sources)),
        routes=rules.routes,
        tables=sum(not is_system(version.db) for version in view.timeline.tables_at(to)),
        sizes=table_sizes(view, base, to),
        losses=view.losses(base.since, to),
        idle=tuple(idle_rules(view, rules, base)),
    )


def idle_rules(view: ArchiveView, rules: Rules, base: Base) -> Iterator[str]:
    """Of the rules for transactions and DDLs those that come too late for a dump, and which older one would do."""
    found = {Tso(ts): f"the transaction at {show(Tso(ts))}" for ts in rules.txns}
    for event in view.timeline.ddls(Tso(0), base.ts):
        if rules.rule_of(event) is not None:
            found[event.commit_ts] = f"DDL job {event.job.id} at {show(event.commit_ts)}"
    for ts, what in sorted(found.items()):
        if ts <= base.ts:
            older = [each.ts for each in view.bases if each.ts < ts]
            way = f"--base {older[-1]} begins before it" if older else "no older dump leads here"
            yield f"the rule for {what} has no effect: the dump of {show(base.ts)} has it already ({way})"


def begin_at(view: ArchiveView, base: Tso | None, to: Tso | None) -> ArchiveView:
    """The view with this dump alone, by the ts that it is exact from on; None = with all of them. ConfigError."""
    if base is None:
        return view
    if to is not None and base > to:
        raise UsageError(f"the dump of {show(base)} is later than {show(to)}", hint="pumphouse archive ls")
    return replace(view, bases=(view.base_at(base),))


def table_sizes(view: ArchiveView, base: Base, to: Tso, names: Container[str] | None = None) -> tuple[TableSize, ...]:
    """What is read of each table that there is at the moment; ``names``: of these, in lower case, alone."""
    timeline = view.timeline
    there = {".".join(version.name).lower(): ".".join(version.name) for version in timeline.tables_at(to)}
    rows, changes = Counter[str](), Counter[str]()

    def name_of(table_id: int) -> str:
        versions = timeline.versions.get(timeline.partitions.get(table_id, table_id), ())
        last = next((version for version in reversed(versions) if version.commit_ts <= to), None)
        return "" if last is None or is_system(last.db) else ".".join(last.name).lower()

    for table in base.tables:
        rows[name_of(table.table_id)] += table.rows
    for table_id, stat in view.between(base.low, to).stats().items():
        changes[name_of(table_id)] += stat.rows
    found = [
        TableSize(table=there[name], rows=rows[name], changes=changes[name])
        for name in (rows | changes).keys() & there.keys()
        if names is None or name in names
    ]
    return tuple(sorted(found, key=lambda each: (-each.rows - each.changes, each.table)))


def unreachable(
    target_ts: Tso, view: ArchiveView, leaves_out: Callable[[str], bool], wall: Tso | None = None
) -> RestoreError | TargetUnreachable:
    """Why no dump leads to a moment; ``leaves_out``: as `base_for` was asked."""
    start, end, why = view.kept.start, view.end, ""
    hint: advice.Part | advice.Hint
    if not view.bases:
        return RestoreError(
            "the archive holds no dump of the tables that there were when it began: there is nothing to restore from",
            hint=("take one, and every moment after it can be restored: ", advice.dump()),
        )
    first = view.bases[0].ts
    if target_ts < first and view.kept.base is not None:
        why = f"{view.kept.told()}; of what there is now, "
        hint = "the first moment is the oldest dump's; see `pumphouse archive ls`"
    elif start <= target_ts < first:
        why = f"the archive's first dump is exact from {show(first)} on, and "
        hint = "a restore begins from a dump; see `pumphouse archive ls`"
    elif target_ts < start:
        hint = "nothing from before its beginning can be restored; see `pumphouse archive ls`"
    elif target_ts <= end and (lacking := view.lacking(target_ts, leaves_out)):
        why = f"no dump before it has the rows of {lacking.name}, which a rule left out ({lacking.why}), and "
        hint = lacking_hint(lacking.name)
    elif target_ts <= end:
        why = "a table was brought back after the dump that lacks it, and "
        hint = ("take a new dump, and every moment after it can be restored: ", advice.dump())
    elif wall is not None and lies_ahead(target_ts, wall):
        why = "it lies in the future, and "
        hint = "`--to latest` (in the form: latest) restores to the archive's end"
    else:
        # Not "up to now, then try again": now is always behind the end.
        hint = advice.saying(
            "`--to latest` (in the form: latest) restores to the archive's end, which always lies before now; {} first "
            "takes in what was written since",
            advice.SNAPSHOT,
        )
    return TargetUnreachable(
        f"{show(target_ts)} cannot be restored: {why}the archive covers {show(start)} to {show(end)}",
        hint=hint,
        target=target_ts,
        have_from=start,
        have_to=end,
    )


def window_steps(windows: Windows, after: Tso, to: Tso, tables: Collection[int] | None = None) -> Iterator[WindowStep]:
    """Windows with what plans up to ``to`` read of them; ``tables``: with changes under one of these ids alone."""
    read = (each.tolist() for each in windows.read_of(after, to, tables))
    for start, end, segments, size, rows in zip(windows.starts.tolist(), windows.ends.tolist(), *read, strict=True):
        yield WindowStep(start=start, end=end, segments=segments, bytes=size, rows=rows, cut=end > to)
