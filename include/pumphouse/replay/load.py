"""A load in the mode replay: transactions of the archive in commit order, change by change, from the checkpoint on.

The checkpoint moves with each round, in its last transaction. What a round had on the target when the run was killed
comes again: rows with a key are replayed in safe mode, the others lie in that last transaction. DDL is as in a merge.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from pumphouse.errors import LoadError
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
from pumphouse.replay.change import Round
from pumphouse.replay.executor import Executor
from pumphouse.replay.images import Images
from pumphouse.replay.order import in_commit_order
from pumphouse.replay.steps import Safety
from pumphouse.schema.versions import DdlEvent

_COLUMNS = ("commit_ts", "start_ts", "part", "payload")
_ROUND_ROWS = 40_000


def stream(loader: Loader, work: Work) -> None:
    """Carry out a plan of the mode replay (`Loader`), from the checkpoint on."""
    _Stream(loader, work).run()


class _Stream:
    def __init__(self, loader: Loader, work: Work) -> None:
        found = state.read(loader.connection, loader.task)
        if found is None:
            raise LoadError(f"task {loader.task} has no checkpoint on {loader.connection.name}")
        self._loader, self._work = loader, work
        self._at = Tso(max(found.ts, work.plan.from_ts))
        self._batches = Batches(rows=_ROUND_ROWS, seconds=float("inf"))
        self._ddls = DdlExecutor(loader.connection, loader.owner, loader.task, routes=loader.rules.routes)
        connections = loader.settings.connections
        safety = Safety.ONCE if loader.settings.safe_mode else Safety.STRICT
        if loader.report.resumed and found.plan_number == work.plan.number:
            safety = Safety.AGAIN
        self._executor = Executor(
            loader.connection.settings,
            loader.connection,
            loader.owner.number,
            connections=connections,
            job_rows=_ROUND_ROWS // (2 * connections),
            safety=lambda: safety,
            close_round=self._close_round,
            committed=self._count,
            failed=lambda _: None,
        )

    def run(self) -> None:
        """Everything of the plan above the checkpoint, then its end."""
        try:
            events = deque(placed(self._work.events, self._work.plan))
            for commit_ts, changes, apart in self._transactions():
                while events and events[0][0] < commit_ts:
                    self._ddl(events.popleft()[1])
                for round_ in self._batches.put(commit_ts, changes, 0.0, apart=apart):
                    self._executor.submit(round_)
            self._drain()
            for _, event in events:
                self._ddl(event)
        finally:
            self._executor.stop()

    def _transactions(self) -> Iterator[tuple[int, list[Any], bool]]:
        context = self._loader.context(self._work)
        images = Images(context)
        for rows in _rows_of(self._work, context, self._at, self._loader.progress):
            changes, commit_ts = images.changes(rows)
            ends = [*map(int, np.flatnonzero(np.diff(commit_ts)) + 1), len(changes)] if changes else []
            begin, apart = 0, images.apart
            for end in ends:
                yield int(commit_ts[begin]), changes[begin:end], apart
                begin, apart = end, False

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
        report.units += 1
        for change in (change for group in round_.groups for change in group):
            report.deleted += change.old is not None
            report.inserted += change.new is not None


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
