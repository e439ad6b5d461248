"""What one run sees of the archive: its end, the windows up to there and the schema at exactly that end, read once.

Everything that plans, decodes or restores takes this value and asks the store for content alone, by digest. A window
that is published meanwhile belongs to the next run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pumphouse import advice
from pumphouse.archive.archive import Archive
from pumphouse.archive.base import Base, TableWithout
from pumphouse.archive.ddl import Later, look_at_later
from pumphouse.archive.genesis import Genesis
from pumphouse.archive.losses import Losses, losses_of, together
from pumphouse.archive.range import Range
from pumphouse.archive.schema_store import fold_schema, fold_tables, newest_schema
from pumphouse.archive.windows import Windows
from pumphouse.errors import BinlogError, ConfigError
from pumphouse.model.tso import MAX_TSO, Tso, show
from pumphouse.schema.actions import is_system
from pumphouse.schema.sequence import SetVal, parse_setval
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import TableVersion, with_kept


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveView:
    """Genesis, windows and timeline, as they belong together.

    Args:
        genesis: where the archive began.
        kept: from when on it is kept.
        windows: chained to each other; all of them, or from the one on that the run begins in.
        timeline: schema from genesis to ``upto``, and nothing beyond; of all tables, or of those that the run touches.
        bases: dumps that a target can begin from, ascending; () where the run begins in a later window.
        setvals: what the windows say of the values of sequences, in commit order.
        upto: the moment that the run goes to, and no further; None = ``end``.
        later: names of databases in the DDL jobs above ``upto``, which are folded nowhere.
    """

    genesis: Genesis
    kept: Range
    windows: Windows
    timeline: Timeline
    bases: tuple[Base, ...] = ()
    setvals: tuple[SetVal, ...] = ()
    upto: Tso | None = None
    later: tuple[str, ...] = ()

    @property
    def end(self) -> Tso:
        """Everything with commit ts up to this is seen, and nothing above it."""
        return self.windows.end if self.windows else self.genesis.ts

    @property
    def reach(self) -> Tso:
        """The run goes to here at most, and so does the timeline."""
        return self.end if self.upto is None else self.upto

    @property
    def start(self) -> Tso:
        """Ranges may begin here."""
        return self.windows.start if self.windows else self.kept.start

    @property
    def databases(self) -> tuple[str, ...]:
        """Every database that the source ever had: a target that stood at any moment has none but these."""
        names = {
            version.info.name
            for versions in self.timeline.databases.values()
            for version in versions
            if version.info is not None and not is_system(version.info.name)
        }
        return tuple(sorted(names | {*self.later}))

    def base_for(self, to: Tso, leaves_out: Callable[[str], bool] = lambda _: False) -> Base | None:
        """The newest dump that leads to a moment; None where there is none.

        A table that was dropped before genesis and comes back is in no dump: the load names it.

        Args:
            to: the moment.
            leaves_out: whether nobody wants a table, ``database.table``: a dump that lacks another is passed over.
        """
        for base in self._leading(to):
            if all(leaves_out(each.name) for each in base.without):
                return base
        return None

    def lacking(self, to: Tso, leaves_out: Callable[[str], bool]) -> TableWithout | None:
        """The first table that the newest dump which leads to a moment lacks, and that somebody wants."""
        base = next(self._leading(to), None)
        return None if base is None else next((each for each in base.without if not leaves_out(each.name)), None)

    def _leading(self, to: Tso) -> Iterator[Base]:
        for base in reversed(self.bases):
            if base.ts <= to and (base.ts == self.genesis.ts or not self.recovered(base, to)):
                yield base

    def base_at(self, ts: Tso) -> Base:
        """The dump that is exact from a moment on; ConfigError."""
        for base in self.bases:
            if base.ts == ts:
                return base
        raise ConfigError(f"the archive has no dump of {show(ts)}", hint="pumphouse archive ls", ts=ts)

    def recovered(self, base: Base, to: Tso) -> bool:
        """Whether a table comes back in (base, to] that was dropped before the dump, which so lacks its rows."""
        return any(
            self.timeline.at_ts(table_id, base.ts).dropped
            for event in self.timeline.ddls(base.ts, to)
            for table_id in event.returning
        )

    def losses(self, since: Tso, upto: Tso) -> Losses:
        """What a base and the log behind it up to a moment lack: also of windows that are gone since it was made.

        ``since``: `Base.since`.
        """
        gone = self.kept.losses.above(since) if since < self.kept.start else Losses()
        return together(gone, losses_of(self.windows, after=since, upto=upto))

    def between(self, after: Tso, upto: Tso) -> Windows:
        """Windows that hold commit ts in (after, upto].

        ConfigError when the range is not all seen: a plan beyond the timeline cannot be made, nor is it cut to fit.
        """
        if after < self.start or upto > self.reach:
            raise ConfigError(
                f"this run sees the archive from {show(self.start)} to {show(self.reach)}, asked for {show(after)} to "
                f"{show(upto)}{self.kept.aside(after)}",
                hint="pumphouse archive ls",
                have_from=self.start,
                have_to=self.reach,
            )
        return self.windows.between(after, upto) if after < upto else self.windows[:0]


def read_view(
    archive: Archive,
    *,
    since: Tso | None = None,
    end: Tso | None = None,
    upto: Tso | None = None,
    touched: bool = False,
) -> ArchiveView:
    """Read the archive as it is now.

    Args:
        archive: which one.
        since: ranges of the run begin here or later; None = at genesis. Windows before it are seen where a DROP
            PARTITION of the ranges began in them.
        end: the end that an earlier view of the same run saw; None = the archive's end.
        upto: of a run from genesis, the moment that it goes to: no DDL job above it is folded, so none of them can
            stop it. A drop before it keeps what one of them brings back. None = ``end``, and so is a moment that the
            archive does not hold.
        touched: the timeline is that of the tables which change in the ranges from ``since`` on, and no others.

    Raises:
        ConfigError: there is no archive, or it never ended at ``end``.
        BadManifest, BadSegment: an object is damaged, missing or not the one that the others name.
        HistoryUnavailable: a DDL job of genesis has its place in a window that is still to come.
    """
    kept = archive.range()
    while True:
        failed: BinlogError | None = None
        try:
            view = _read(archive, kept, since, end, upto, touched=touched)
        except BinlogError as error:
            failed = error
        # What expired while it was read is in neither: the older range does not say what the windows lacked.
        before, kept = kept, archive.range()
        if kept.start == before.start:
            if failed is not None:
                raise failed
            return view


def _read(
    archive: Archive, kept: Range, since: Tso | None, end: Tso | None, upto: Tso | None, *, touched: bool
) -> ArchiveView:
    genesis = archive.genesis()
    # The schema first: what is found was made from windows that are listed after it.
    stored = newest_schema(archive, end if upto is None else upto)
    low = min(genesis.ts if stored is None else stored, genesis.ts if since is None else since)
    # Before the windows: a dump is put after the windows that it needs.
    later = archive.bases(MAX_TSO) if since is None else []
    windows = _up_to(archive.windows(Tso(low)), kept, end)
    if touched and since is not None:
        timeline = fold_tables(archive, windows, stored)
    else:
        upto = upto if upto is not None and windows and kept.start <= upto < windows.end else None
        timeline = fold_schema(archive, windows, stored, upto).timeline
    if windows and since is not None:
        begun = [each.dropping_since for each in timeline.ddls(since, windows.end) if each.dropping_since]
        if begun and min(begun) < windows.start:
            windows = _up_to(archive.windows(Tso(max(min(begun), kept.start))), kept, windows.end)
    behind = Later() if upto is None else look_at_later(archive.jobs(windows, upto, MAX_TSO))
    if behind.tables or behind.schemas:
        timeline = replace(timeline, events=with_kept(timeline.events, behind.tables, behind.schemas))
    view = ArchiveView(
        genesis=genesis,
        kept=kept,
        windows=windows,
        timeline=timeline,
        setvals=_setvals(archive, windows, timeline, past=since is None),
        upto=upto,
        later=behind.databases,
    )
    if since is not None:
        return view
    return replace(view, bases=(*first_base(view), *(base for base in later if base.ts <= view.end)))


def _setvals(archive: Archive, windows: Windows, timeline: Timeline, *, past: bool) -> tuple[SetVal, ...]:
    """Read only where there is a sequence: the objects of every window are opened. ``past``: what is gone too."""
    if not any(versions[-1].table.is_sequence for versions in timeline.versions.values()):
        return ()
    archived = [*(archive.past_jobs(windows) if past else ()), *archive.jobs(windows, Tso(0), MAX_TSO)]
    found = (parse_setval(each.commit_ts, each.query) for each in archived if each.job is None)
    return tuple(each for each in found if each is not None)


def first_base(view: ArchiveView) -> tuple[Base, ...]:
    """The dump of genesis, while it is kept; an empty one where there was nothing to dump."""
    genesis = view.genesis
    if view.kept.base is not None and view.kept.base.begun != genesis.ts:
        return ()
    if genesis.as_base is not None:
        return (genesis.as_base,)
    if any(has_rows(version) for version in view.timeline.tables_at(genesis.ts)):
        return ()
    return (Base(begun=genesis.ts, ts=genesis.ts, low=genesis.ts, tables=(), columns=False, sha256=genesis.sha256),)


def has_rows(version: TableVersion) -> bool:
    """Whether it is a table whose rows a dump holds: no view, sequence or temporary table, none of the system's."""
    table = version.table
    temporary = int(table.raw.get("temp_table_type") or 0)
    return not (is_system(version.db) or table.is_view or table.is_sequence or temporary)


def _up_to(windows: Windows, kept: Range, end: Tso | None) -> Windows:
    seen = windows if end is None else windows.ended(end)
    have = seen.end if seen else kept.start
    if end is not None and have != end:
        raise ConfigError(
            f"the archive does not end at {show(end)} any more, its windows end at {show(have)} and later",
            hint=("plan again: ", advice.restore(dry_run=True)),
        )
    return seen
