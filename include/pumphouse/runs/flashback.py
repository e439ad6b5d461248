"""Take chosen changes back on a live server: what `pumphouse flashback` does (`pumphouse.flashback`)."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import IO

from pumphouse import advice
from pumphouse.archive.archive import Archive
from pumphouse.archive.losses import losses_of
from pumphouse.archive.sourced import is_captured
from pumphouse.archive.view import ArchiveView, read_view
from pumphouse.errors import LoadError, RestoreError, TargetUnreachable, UsageError
from pumphouse.flashback.apply import BATCH_BYTES, BATCH_ROWS, Done, conflict, equals, judged, put_back, size_of
from pumphouse.flashback.changes import Changes
from pumphouse.flashback.links import MOST_LINKED
from pumphouse.flashback.plan import subjects
from pumphouse.flashback.report import MOST_CONFLICTS, FlashbackReport, TableCount
from pumphouse.flashback.sqlfile import SqlFile
from pumphouse.flashback.statements import Row, ranks
from pumphouse.flashback.there import TableThere, look_at
from pumphouse.loader.report import Progress, silent
from pumphouse.loader.rules import routes_of
from pumphouse.loader.target import TargetConnection
from pumphouse.loader.unfit import unseen
from pumphouse.model.tso import Tso, show
from pumphouse.mysql import FLASHBACK
from pumphouse.parts import Parts
from pumphouse.proof.gather import Spill
from pumphouse.proof.servers import stand_of
from pumphouse.restore.check import Place, named_target
from pumphouse.restore.find import Sought
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.route import NO_ROUTES
from pumphouse.settings import Settings

_UNLOGGED = (
    "what a flashback changes on the source is in no binlog, so the archive and the targets do not have it: run "
    "`pumphouse archive dump` at once (no moment between another change of such a row and that dump can be restored), "
    "and the same flashback --into each target"
)
_OF_A_TARGET = "the source keeps its rows: what a flashback changes on a target, a diff and a proof find there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Which changes are taken back.

    Args:
        after: commit ts, exclusive; None = that of the first of ``txns``.
        until: commit ts, inclusive; None = that of the last of ``txns``.
        latest: up to the archive's end, in place of ``until``.
        txns: commit ts of transactions; () = all of the range.
        tables: ``database.table``, also as patterns; () = all.
        keys: primary keys, of several columns as a line of CSV; () = all rows.
    """

    after: Tso | None = None
    until: Tso | None = None
    latest: bool = False
    txns: tuple[Tso, ...] = ()
    tables: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()

    def digest(self) -> str:
        """Of what is chosen within the range, '' = all of it: flashbacks of one range are told apart by it."""
        chosen = [sorted(self.txns), sorted(self.tables), sorted(self.keys)]
        return hashlib.sha256(json.dumps(chosen).encode()).hexdigest()[:12] if any(chosen) else ""

    def sought(self, end: Tso) -> Sought:
        """The range, of an archive that ends at ``end``; UsageError."""
        upto = end if self.latest else self.until
        if not self.txns and (self.after is None or upto is None):
            raise UsageError("which changes?", hint="--from TIME --until TIME (or latest), or --txn COMMIT_TS")
        if self.keys and len(self.tables) != 1:
            raise UsageError("--key is of one table", hint="name it: --table DB.TABLE")
        after = Tso(min(self.txns) - 1) if self.after is None else self.after
        until = Tso(max(self.txns)) if upto is None else upto
        outside = [each for each in self.txns if not after < each <= until]
        if after >= until or outside:
            what = f"transaction {show(outside[0])} does not lie" if outside else "nothing lies"
            raise UsageError(f"{what} between {show(after)} and {show(until)}")
        if self.txns:  # what a DDL did before them is no obstacle
            after, until = Tso(min(self.txns) - 1), Tso(max(self.txns))
        return Sought(after=after, upto=until, tables=self.tables, keys=self.keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """What is written beside the server.

    Args:
        sql: gets the statements, which are not run then.
        redo: gets those that undo them; a run that goes on adds to it.
        report: gets each conflict, a JSON object a line.
    """

    sql: Path | None = None
    redo: Path | None = None
    report: Path | None = None


NO_FILES = Files()


def run(
    settings: Settings,
    *,
    chosen: Chosen,
    into: Place,
    apply: bool = False,
    files: Files = NO_FILES,
    accept_losses: bool = False,
    batch_rows: int = BATCH_ROWS,
    progress: Progress = silent,
) -> FlashbackReport:
    """Judge each row that the chosen changes touched, and put back those that nobody changed since.

    Args:
        settings: all settings.
        chosen: which changes.
        into: section of the settings that names the server; of a target, as its load calls the tables.
        apply: change the server; else it is only looked at.
        files: what is written.
        accept_losses: go on although something since the first change is lost: a later change may be.
        batch_rows: most rows of one transaction on the server.
        progress: told of each step.

    Raises:
        UsageError, UnknownTable: nothing fits what was asked for; a target has not come to the range's end.
        TargetUnreachable: the archive does not hold the range.
        LoadError, TargetIncomplete, TargetBusy: a target is not whole, or another archive's.
        RestoreError: a table cannot be put back, or the archive has losses.
        TargetBusy: somebody else holds the rows.
    """
    target = named_target(settings, into)
    with Parts(settings) as parts, TargetConnection.open(target, session=FLASHBACK, section=into, owner=True) as there:
        archive = parts.readable_archive
        sought = chosen.sought(archive.end())
        view = _view(archive, sought)
        moment = view.end if into == "source" else _moment(there, settings, archive, sought, view.end)
        found = subjects(view, sought, moment)
        routes = NO_ROUTES if into == "source" else routes_of(settings.load.rules)
        version = str(there.value("SELECT VERSION()"))
        report = FlashbackReport(
            server=there.name, version=version, applied=apply, after=sought.after, until=sought.upto, seen=moment
        )
        report.losses = losses_of(view.windows, after=sought.after, upto=moment)
        with Spill.made() as spill:
            changes = Changes(archive, view, sought, chosen.txns, found, moment, spill, progress)
            changes.gather()
            touched = [found[table_id] for table_id in changes.tables]
            report.transactions = dict(changes.transactions)
            report.tables = {found[each].name: TableCount(changes=n) for each, n in sorted(changes.tables.items())}
            tables, problems = look_at(there, [each for each in touched if not each.problem], routes)
            report.problems = {each.name: each.problem for each in touched if each.problem} | problems
            for table_id, table in tables.items():
                _tie(there, changes, table)
                if changes.too_many(table_id):
                    report.problems[table.subject.name] = (
                        f"more than {MOST_LINKED:,} of its rows have moved to other keys: --key or --txn names fewer"
                    )
            if into == "source" and there.dialect is not Dialect.TIDB and not is_captured(archive):
                report.notes.append(_UNLOGGED)
            elif into != "source":
                report.notes.append(_OF_A_TARGET)
            report.notes += unseen(there, {each.place[0] for each in tables.values()})
            if apply or files.sql is not None:
                _require_whole(report, accept_losses=accept_losses)
            runner = _Runner(
                there, report, tables, files, chosen.digest(), apply=apply, rows=batch_rows, progress=progress
            )
            runner.run(changes)
    return report


def _view(archive: Archive, sought: Sought) -> ArchiveView:
    """The archive from the range on; TargetUnreachable where it does not hold all of it."""
    kept = archive.range()
    if sought.after < kept.start:
        raise TargetUnreachable(
            f"the archive begins at {show(kept.start)}, after {show(sought.after)}{kept.aside(sought.after)}",
            hint=f"--from {int(kept.start)}",
        )
    view = read_view(archive, since=sought.after) if sought.after < archive.end() else None
    if view is None or sought.upto > view.end:
        raise TargetUnreachable(
            f"the archive ends at {show(archive.end())}, before {show(sought.upto)}",
            hint=(advice.SNAPSHOT, " archives what came since; then run this again"),
        )
    return view


def _moment(there: TargetConnection, settings: Settings, archive: Archive, sought: Sought, end: Tso) -> Tso:
    """Where a target of loads or restores stands, at most the archive's end."""
    stand = stand_of(there, settings.load.task)
    if stand.cluster_id != archive.cluster_id:
        raise LoadError(
            f"target {there.name} has rows of cluster {stand.cluster_id}, the archive is of {archive.cluster_id}",
            hint="are cluster.url and the target those that belong together?",
            target=there.name,
        )
    if stand.at < sought.upto:
        raise UsageError(
            f"target {there.name} is at {show(stand.at)}, and has not come to {show(sought.upto)}",
            hint=(advice.load(), " first"),
        )
    return Tso(min(stand.at, end))


def _tie(there: TargetConnection, changes: Changes, table: TableThere) -> None:
    """Rows of several keys that are one to the server go or stay together."""
    table_id = table.subject.version.table.id
    for some in changes.folded(table_id, keep=True) if table.collated else ():
        met = equals(there, [Row(there=table, want=each.old, now=each.new, change=each) for each in some])
        changes.tie(table_id, [(row.key, key) for row, key in met])


def _require_whole(report: FlashbackReport, *, accept_losses: bool) -> None:
    """RestoreError where not all of what was chosen can be judged."""
    if report.problems:
        told = "; ".join(f"{name}: {why}" for name, why in sorted(report.problems.items()))
        raise RestoreError(
            f"{len(report.problems)} tables cannot be put back: {told}",
            hint="nothing was changed; --table names the others",
            problems=dict(report.problems),
        )
    if report.losses.certain and not accept_losses:
        raise RestoreError(
            f"the archive has losses since {show(report.after)}, and a later change of a row may be among them: "
            + "; ".join(report.losses.lines()),
            hint="nothing was changed; --accept-losses goes on: a row must equal what the archive has all the same",
        )


class _Runner:
    """Takes the rows of all tables, a batch at a time."""

    def __init__(
        self,
        connection: TargetConnection,
        report: FlashbackReport,
        tables: Mapping[int, TableThere],
        files: Files,
        selection: str,
        *,
        apply: bool,
        rows: int,
        progress: Progress,
    ) -> None:
        self._connection, self._report, self._tables = connection, report, tables
        self._apply, self._most, self._progress = apply, rows, progress
        self._rank = ranks(list(tables.values()))
        what = f"a flashback of {report.server}: changes of ({show(report.after)}, {show(report.until)}]"
        what += f", selection {selection}" * bool(selection)
        stop = "Stop at the first error (no --force): then nothing of its transaction counts."
        self._sql = None if files.sql is None else SqlFile(files.sql, [f"Does {what}.", stop], new=True)
        redo = files.redo or (None if files.sql is None else files.sql.with_suffix(".redo.sql"))
        if redo is None and apply:
            server = re.sub(r"[^\w.@-]+", "-", report.server)
            of = f"{int(report.after)}-{int(report.until)}" + f"-{selection}" * bool(selection)
            redo = Path(f"flashback-{server}-{of}.redo.sql")
        self._redo = None if redo is None else SqlFile(redo, [f"Undoes {what}.", stop], new=not apply, undoes=True)
        self._path = files.report

    def run(self, changes: Changes) -> None:
        """All of it."""
        order = sorted(self._tables.values(), key=lambda each: self._rank[each.place])
        with ExitStack() as stack:
            self._file: IO[str] | None = None if self._path is None else stack.enter_context(_opened(self._path))
            batch: list[Row] = []
            size = 0
            for some in self._rows(changes, order):
                found = judged(self._connection, some)
                self._told(Done(back=found.back, conflicts=found.conflicts))
                batch += found.put
                size += sum(map(size_of, found.put))
                if len(batch) >= self._most or size >= BATCH_BYTES:
                    self._batch(batch)
                    batch, size = [], 0
            if batch:
                self._batch(batch)
        files = {"sql": self._sql, "redo": self._redo}
        self._report.files = {kind: str(each.path) for kind, each in files.items() if each and each.path.exists()}
        if self._path is not None:
            self._report.files["report"] = str(self._path)

    def _rows(self, changes: Changes, order: Sequence[TableThere]) -> Iterator[list[Row]]:
        """Those to judge, at most as many at once as a transaction has."""
        for number, there in enumerate(order):
            self._progress("rows of tables", number, len(order))
            held: list[Row] = []
            for some in changes.folded(there.subject.version.table.id):
                rows = [Row(there=there, want=each.old, now=each.new, change=each) for each in some]
                held += [row for row in rows if row.change.group]
                rows = [row for row in rows if not row.change.group]
                yield from (rows[at : at + self._most] for at in range(0, len(rows), self._most))
            held.sort(key=lambda row: row.change.group)
            together: list[Row] = []
            for _, mates in groupby(held, key=lambda row: row.change.group):
                together += mates
                if len(together) >= self._most:
                    yield together
                    together = []
            yield together
        self._progress("rows of tables", len(order), len(order))

    def _batch(self, rows: list[Row]) -> None:
        """Rows that are to be put back."""
        self._report.batches += 1
        done = Done(put=rows)
        if self._apply:
            done = put_back(self._connection, rows, self._rank, self._keep)
        elif self._sql is not None:
            self._sql.add(rows, self._rank)
            self._keep(rows)
        self._told(done)

    def _told(self, done: Done) -> None:
        self._report.count(done)
        for row, why in done.conflicts:
            kept = len(self._report.conflicts) < MOST_CONFLICTS
            if kept or self._file is not None:
                told = conflict(self._connection, row, why)
                self._report.conflicts += [told] if kept else []
                if self._file is not None:
                    self._file.write(json.dumps(asdict(told), ensure_ascii=False) + "\n")

    def _keep(self, rows: Sequence[Row]) -> None:
        if self._redo is not None:
            self._redo.add([row.turned for row in rows], self._rank)


def _opened(path: Path) -> IO[str]:
    """For its owner alone: it has rows."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8")
