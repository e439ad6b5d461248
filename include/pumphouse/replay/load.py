"""A load in the mode replay: transactions of the archive in commit order, change by change, from the checkpoint on.

The checkpoint moves with each round, in its last transaction; rows that come once (`Shape.once`) lie in it. What else a
round had on the target when the run ended is taken back by the next one: every key that the round may have touched gets
the row that the first change of it found. From there on all is as if the run had not ended. DDLs run in between, as in
a merge, by whoever carries the steps of the load out.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
import pyarrow as pa

from pumphouse.errors import CodecError, LoadError, SchemaError
from pumphouse.loader import state
from pumphouse.loader.context import LoadContext
from pumphouse.loader.plan import Plan
from pumphouse.loader.report import LoadReport, Progress
from pumphouse.loader.tables import comes_first
from pumphouse.loader.target import TargetConnection
from pumphouse.loader.work import Work
from pumphouse.model.tso import Tso
from pumphouse.replay.batches import Batches
from pumphouse.replay.change import Change, Round
from pumphouse.replay.images import Images
from pumphouse.replay.order import in_commit_order
from pumphouse.replay.rounds import Rounds
from pumphouse.replay.statements import key_line
from pumphouse.replay.steps import Safety
from pumphouse.schema.versions import DdlEvent
from pumphouse.settings import LoadSettings

_COLUMNS = ("commit_ts", "start_ts", "part", "payload")
# What a run leaves behind is found by it: a later release may make it larger, not smaller.
_ROUND_ROWS = 40_000


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A plan of the mode replay on a target that its caller owns.

    Args:
        connection: the one that owns the target; the caller uses it only for DDLs that it is given.
        fence: number that each transaction must find.
        work: the plan; of `take_back` as the run before had it, which says by what keys the rows were written.
        context: what decoding it needs.
        settings: the section [load].
        report: what was done is counted there.
        rows: and the rows that came, by the source's id of the table.
        progress: told of each step.
    """

    connection: TargetConnection
    fence: int
    work: Work
    context: LoadContext
    settings: LoadSettings
    report: LoadReport
    rows: Counter[int]
    progress: Progress

    def run(self) -> Generator[DdlEvent]:
        """Carry everything of the plan above the checkpoint out.

        Yields each DDL when all before it is committed; when the next one is asked for, it has run.
        """
        images, batches = Images(self.context), Batches(rows=_ROUND_ROWS, seconds=float("inf"))
        safety = Safety.ONCE if self.settings.safe_mode else Safety.STRICT
        with self._rounds(safety) as rounds:
            events = deque(placed(self.work.events, self.work.plan))

            def drain() -> None:
                for round_ in batches.take():
                    rounds.submit(round_)
                rounds.drain()

            for commit_ts, changes, first in self._transactions(images):
                while events and events[0][0] < commit_ts:
                    drain()
                    yield events.popleft()[1]
                for round_ in batches.put(commit_ts, changes, 0.0, apart=first and images.apart):
                    rounds.submit(round_)
            drain()
            for _, event in events:
                yield event

    def take_back(self) -> Generator[DdlEvent]:
        """Put back what the run before may have written of its last round: the target is as it was at the checkpoint.

        Every key that the round may have touched gets the row that it had before. The round began in the first
        transaction above the checkpoint or behind it, closed at so many rows, and went beyond no DDL. Yields DDLs that
        have to run before.
        """
        before, events = _Before(), deque(placed(self.work.events, self.work.plan))
        upto = rows = 0
        with self._rounds(Safety.CLEARED) as rounds:
            for commit_ts, changes, _ in self._decodable(Images(self.context, whole=True)):
                while not upto and events and events[0][0] < commit_ts:
                    yield events.popleft()[1]
                if upto and (rows >= _ROUND_ROWS or (events and events[0][0] < commit_ts)):
                    break
                rows += len(changes) if upto else 0
                upto = commit_ts
                before.add(changes)
            for step in (before.going(), before.coming()):
                rounds.submit(Round(groups=[[change] for change in step]))
            rounds.drain()

    @contextmanager
    def _rounds(self, safety: Safety) -> Iterator[Rounds]:
        rounds = Rounds(
            self.connection.settings,
            self.connection,
            self.fence,
            connections=self.settings.connections,
            job_rows=_ROUND_ROWS // (2 * self.settings.connections),
            bytes_per_s=self.settings.bytes_per_s,
            safety=lambda: safety,
            close_round=self._close_round,
            committed=self._count,
            failed=lambda _: None,
        )
        try:
            yield rounds
        finally:
            rounds.stop()

    def _transactions(self, images: Images) -> Iterator[tuple[int, list[Change], bool]]:
        """Commit ts, changes, and whether it is the first that was decoded with some others."""
        task = self.work.plan.task
        found = state.read(self.connection, task)
        if found is None:
            raise LoadError(f"task {task} has no checkpoint on {self.connection.name}")
        after = Tso(max(found.ts, self.work.plan.from_ts))
        for rows in _rows_of(self.work, self.context, after, self.progress):
            changes, commit_ts = images.changes(rows)
            ends = [*map(int, np.flatnonzero(np.diff(commit_ts)) + 1), len(changes)] if changes else []
            for begin, end in pairwise([0, *ends]):
                yield int(commit_ts[begin]), changes[begin:end], not begin

    def _decodable(self, images: Images) -> Iterator[tuple[int, list[Change], bool]]:
        """Transactions up to rows that cannot be decoded: no run has written those, and the next one says why."""
        with suppress(CodecError, SchemaError):
            yield from self._transactions(images)

    def _close_round(self, connection: TargetConnection, round_: Round) -> None:
        if round_.txns:
            state.move_checkpoint(connection, self.work.plan.task, Tso(round_.txns[-1]))

    def _count(self, round_: Round) -> None:
        report = self.report
        if not round_.rows and not round_.txns:
            return  # of what was taken back
        report.units += 1
        coming = Counter(change.shape.table_id for group in round_.groups for change in group if change.new is not None)
        report.deleted += sum(change.old is not None for group in round_.groups for change in group)
        report.inserted += coming.total()
        self.rows.update(coming)


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


def _rows_of(work: Work, context: LoadContext, after: Tso, progress: Progress) -> Iterator[pa.Table]:
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
