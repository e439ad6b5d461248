"""A load in the mode replay: transactions of the archive in commit order, change by change, from the checkpoint on.

The checkpoint moves with each round, in its last transaction; rows that come once (`Shape.once`) lie in it. What else a
round had on the target when the run ended is taken back by the next one: every key that the round may have touched gets
the row that the first change of it found. From there on all is as if the run had not ended. DDL is as in a merge.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import groupby, pairwise

import numpy as np
import pyarrow as pa

from pumphouse.errors import CodecError, LoadError, SchemaError
from pumphouse.loader import fence, state
from pumphouse.loader.context import LoadContext
from pumphouse.loader.ddl import DdlExecutor
from pumphouse.loader.plan import Plan
from pumphouse.loader.run import Loader
from pumphouse.loader.tables import comes_first
from pumphouse.loader.target import TargetConnection
from pumphouse.loader.work import Work
from pumphouse.model.tso import Tso
from pumphouse.replay.batches import Batches
from pumphouse.replay.change import Change, Round
from pumphouse.replay.executor import Executor
from pumphouse.replay.images import Images
from pumphouse.replay.order import in_commit_order
from pumphouse.replay.statements import key_line
from pumphouse.replay.steps import Safety
from pumphouse.schema.versions import DdlEvent

_COLUMNS = ("commit_ts", "start_ts", "part", "payload")
# What a run leaves behind is found by it: a later release may make it larger, not smaller.
_ROUND_ROWS = 40_000
# Of one transaction: its commit ts, its row changes, and whether nothing before it stays open (`Batches.put`).
_Changes = tuple[int, list[Change], bool]


def take_back(loader: Loader, work: Work) -> None:
    """Put back what the run before may have written of its last round: the target is as it was at the checkpoint.

    ``work``: of the plan as that run had it, which says by what keys the rows were written.
    """
    _Stream(loader, work).take_back()


def stream(loader: Loader, work: Work) -> None:
    """Carry out a plan of the mode replay (`Loader`), from the checkpoint on."""
    _Stream(loader, work).run()


class _Stream:
    def __init__(self, loader: Loader, work: Work) -> None:
        found = state.read(loader.connection, loader.task)
        if found is None:
            raise LoadError(f"task {loader.task} has no checkpoint on {loader.connection.name}")
        self._loader, self._work = loader, work
        self._at, self._context = Tso(max(found.ts, work.plan.from_ts)), loader.context(work)
        self._batches = Batches(rows=_ROUND_ROWS, seconds=float("inf"))
        self._ddls = DdlExecutor(loader.connection, loader.owner, loader.task, routes=loader.rules.routes)
        connections = loader.settings.connections
        self._safety = Safety.ONCE if loader.settings.safe_mode else Safety.STRICT
        self._executor = Executor(
            loader.connection.settings,
            loader.connection,
            loader.owner.number,
            connections=connections,
            job_rows=_ROUND_ROWS // (2 * connections),
            safety=lambda: self._safety,
            close_round=self._close_round,
            committed=self._count,
            failed=lambda _: None,
        )

    def run(self) -> None:
        """Everything of the plan above the checkpoint, then its end."""
        images = Images(self._context)
        try:
            events = deque(placed(self._work.events, self._work.plan))
            for commit_ts, changes, first in self._transactions(images):
                self._ddls_before(commit_ts, events)
                for round_ in self._batches.put(commit_ts, changes, 0.0, apart=first and images.apart):
                    self._executor.submit(round_)
            self._drain()
            for _, event in events:
                self._ddl(event)
        finally:
            self._executor.stop()

    def take_back(self) -> None:
        """Give every key that the last round may have touched the row that it had before (`take_back`).

        The round began in the first transaction above the checkpoint or behind it, closed at so many rows, and went
        beyond no DDL.
        """
        self._safety = Safety.CLEARED
        before, events = _Before(), deque(placed(self._work.events, self._work.plan))
        upto = rows = 0
        try:
            for commit_ts, changes, _ in self._decodable(Images(self._context, whole=True)):
                if not upto:
                    self._ddls_before(commit_ts, events)
                elif rows >= _ROUND_ROWS or (events and events[0][0] < commit_ts):
                    break
                else:
                    rows += len(changes)
                upto = commit_ts
                before.add(changes)
            for step in (before.going(), before.coming()):
                self._executor.submit(Round(groups=[[change] for change in step]))
            self._executor.drain()
        finally:
            self._executor.stop()

    def _ddls_before(self, commit_ts: int, events: deque[tuple[int, DdlEvent]]) -> None:
        while events and events[0][0] < commit_ts:
            self._ddl(events.popleft()[1])

    def _transactions(self, images: Images) -> Iterator[tuple[int, list[Change], bool]]:
        """Commit ts, changes, and whether it is the first that was decoded with some others."""
        for rows in _rows_of(self._work, self._context, self._at, self._loader.progress):
            changes, commit_ts = images.changes(rows)
            ends = [*map(int, np.flatnonzero(np.diff(commit_ts)) + 1), len(changes)] if changes else []
            for begin, end in pairwise([0, *ends]):
                yield int(commit_ts[begin]), changes[begin:end], not begin

    def _decodable(self, images: Images) -> Iterator[tuple[int, list[Change], bool]]:
        """Transactions up to rows that cannot be decoded: no run has written those, and the next one says why."""
        with suppress(CodecError, SchemaError):
            yield from self._transactions(images)

    def _drain(self) -> None:
        for round_ in self._batches.take():
            self._executor.submit(round_)
        self._executor.drain()

    def _ddl(self, event: DdlEvent) -> None:
        self._drain()
        fence.check_lock(self._loader.connection)
        self._loader.run_ddl(self._ddls, self._work, event)

    def _close_round(self, connection: TargetConnection, round_: Round) -> None:
        if round_.txns:
            state.move_checkpoint(connection, self._loader.task, Tso(round_.txns[-1]))

    def _count(self, round_: Round) -> None:
        report = self._loader.report
        if not round_.rows and not round_.txns:
            return  # of what was taken back
        report.units += 1
        for change in (change for group in round_.groups for change in group):
            report.deleted += change.old is not None
            report.inserted += change.new is not None


class _Before:
    """The rows that keys had before some transactions, from those alone; of tables whose rows come more than once."""

    def __init__(self) -> None:
        # By table and key: the key as the line that goes, with the row that comes back. None = it is not known.
        self._first: dict[tuple[str, bytes], Change | None] = {}

    def add(self, changes: Iterable[Change]) -> None:
        """Take in the changes of the next transaction."""
        for each in changes:
            shape, old = each.shape, each.old
            if shape.once:
                continue
            if old is not None:
                key = key_line(shape, old) if each.whole else old
                row = Change(shape, (), key, old, loose=each.loose) if each.whole else None
                self._first.setdefault((shape.target, key), row)
            if each.new is not None:
                key = key_line(shape, each.new)
                self._first.setdefault((shape.target, key), Change(shape, (), key, None))

    def going(self) -> Iterator[Change]:
        """The rows that may be there now."""
        return (each._replace(new=None) for each in self._first.values() if each is not None)

    def coming(self) -> Iterator[Change]:
        """The rows that were there."""
        return (each._replace(old=None) for each in self._first.values() if each is not None and each.new is not None)


def placed(events: tuple[DdlEvent, ...], plan: Plan) -> list[tuple[int, DdlEvent]]:
    """DDLs in the order they run in, each behind every transaction up to its place.

    A DDL that only takes columns or keys of a table away runs where the DDL of the table before it did: rows of the
    time between may lack the column or share the key already; they are written as the table is after it
    (`WantedTables`). Not where a rule stands in for it and columns go.
    """
    last: dict[int, int] = {}
    out = []
    for event in events:
        early = bool(event.changes) and all(
            c.before is not None and c.after is not None and comes_first(c.before, c.after, plan.ruled)
            for c in event.changes
        )
        at = (
            max((last.get(id_, int(plan.from_ts)) for id_ in event.table_ids), default=0)
            if early
            else int(event.commit_ts)
        )
        out.append((at, event))
        last |= dict.fromkeys(event.table_ids, at)
    return sorted(out, key=lambda each: each[0])


def _rows_of(
    work: Work, context: LoadContext, after: Tso, progress: Callable[[str, int, int], None]
) -> Iterator[pa.Table]:
    """Transactions above the checkpoint, window by window."""
    done = 0
    for _, group in groupby(work.pieces, key=lambda piece: piece.window):
        pieces = list(group)
        for rows in in_commit_order([context.read(piece, _COLUMNS) for piece in pieces if piece.upto > after]):
            first = int(np.searchsorted(rows.column("commit_ts").to_numpy(), after, "right"))
            if first < rows.num_rows:
                yield rows.slice(first).combine_chunks()
        done += len(pieces)
        progress("replay", done, len(work.pieces))
