"""What is collected before it is flushed (row L5): by row count, by time; at conflicts, and when it is told to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumphouse.replay.causality import Causality
from pumphouse.replay.change import Change, Round


class Batches:
    """The open round. Used by one thread; `put` and `take` hand full rounds out.

    Args:
        rows: row changes that fill a round.
        seconds: how long a change may wait in it.
        atomic: a transaction's changes are all in one group, so that they commit together.
    """

    def __init__(self, *, rows: int, seconds: float, atomic: bool = False) -> None:
        self._most, self._seconds, self._atomic = rows, seconds, atomic
        self._causality = Causality()
        self._round = Round()
        self._since: float | None = None

    def put(self, txn: Any, changes: Sequence[Change], now: float, *, apart: bool = False) -> list[Round]:
        """Add a transaction; the rounds that were closed for that, in order.

        A transaction may end in a later round than it began in, and is whole with the last of them.

        Args:
            txn: told with the round that it is whole with.
            changes: its row changes.
            now: seconds, monotonic.
            apart: its keys are made by another rule than those before: nothing before it stays open.
        """
        out: list[Round] = []
        if apart:
            self._close(out)
        if self._atomic:
            self._put_whole(changes, out)
        else:
            join, groups = self._causality.join, self._round.groups
            once = [change for change in changes if change.shape.once]
            for change in changes if not once else [change for change in changes if not change.shape.once]:
                group = join(change.keys)
                if group is None:
                    self._close(out)
                    groups = self._round.groups
                    group = join(change.keys)
                if group == len(groups):
                    groups.append([])
                groups[group or 0].append(change)
                self._round.rows += 1
            # What comes once is counted by the position, which moves with the transaction that it belongs to.
            self._put_whole(once, out)
        self._round.txns.append(txn)
        if self._since is None:
            self._since = now
        if self._round.rows >= self._most or now - self._since >= self._seconds:
            self._close(out)
        return out

    def take(self) -> list[Round]:
        """Close the open round, whatever is in it: the input is idle or closed, or a DDL waits."""
        out: list[Round] = []
        self._close(out)
        return out

    def left(self, now: float) -> float | None:
        """Seconds until the open round is due; None when it is empty."""
        return None if self._since is None else max(0.0, self._since + self._seconds - now)

    def _put_whole(self, changes: Sequence[Change], out: list[Round]) -> None:
        keys = [key for change in changes for key in change.keys]
        if not changes:
            return
        group = self._causality.join(keys)
        if group is None:
            self._close(out)
            group = self._causality.join(keys)
        if group == len(self._round.groups):
            self._round.groups.append([])
        self._round.groups[group or 0].extend(changes)
        self._round.rows += len(changes)

    def _close(self, out: list[Round]) -> None:
        self._causality.reset()
        self._since = None
        if self._round.rows or self._round.txns:
            out.append(self._round)
            self._round = Round()
