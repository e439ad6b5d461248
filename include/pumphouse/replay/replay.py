"""The loader on a stream of transactions, as a library (rows L2, L3, L5, L8): Input, Successes, Close, Run, SafeMode.

The thread that calls `run` takes transactions from the input, translates and groups them; rounds of independent groups
go through connections of `Rounds`, one round at a time; each transaction is told when it is committed.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Collection
from contextlib import suppress
from types import TracebackType
from typing import Self

import structlog
from prometheus_client import CollectorRegistry

from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import UsageError
from pumphouse.loader import fence
from pumphouse.loader.target import TargetConnection
from pumphouse.loader.unfit import require_engine, require_state
from pumphouse.replay.batches import Batches
from pumphouse.replay.catalog import Catalog
from pumphouse.replay.change import Change, Round, Txn
from pumphouse.replay.ddl import run_ddl
from pumphouse.replay.intake import Closed, Intake
from pumphouse.replay.metrics import InputMetrics
from pumphouse.replay.outcome import Successes
from pumphouse.replay.position import Positions
from pumphouse.replay.rounds import Rounds, require_loadable
from pumphouse.replay.safemode import SafeMode
from pumphouse.replay.steps import Safety
from pumphouse.replay.translate import Translator
from pumphouse.settings import TargetSettings

log = structlog.get_logger()


class Replay:
    """One stream into one target, which nobody else loads meanwhile. Used once.

    Args:
        target: a MariaDB or MySQL.
        task: name of the stream; its row on the target says how far it came.
        connections: transactions on the target at once.
        batch_rows: row changes that are collected before they are flushed.
        batch_s: seconds that one waits at most, while more comes.
        idle_s: seconds without input after which what was collected is flushed.
        input_bytes: bytes of transactions that wait in the input.
        atomic: keep each transaction of the source whole in one transaction of the target.
        safe_mode: what it is when nothing forces it on (`SafeMode`).
        triggers: triggers on the target that rows fire, as ``database.trigger``; a table with another one is refused.
        registry: where the metrics of the input go.
        take_over: end another run that holds the target.
        clock: time.

    Raises:
        TargetBusy, TargetUnavailable, LoadError: the target cannot be replayed into.
    """

    def __init__(
        self,
        target: TargetSettings,
        *,
        task: str = "replay",
        connections: int = 4,
        batch_rows: int = 20_000,
        batch_s: float = 1.0,
        idle_s: float = 0.01,
        input_bytes: int = 256 << 20,
        atomic: bool = False,
        safe_mode: bool = False,
        triggers: Collection[str] = (),
        registry: CollectorRegistry | None = None,
        take_over: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.input: Intake[Txn] = Intake(input_bytes, InputMetrics(registry))
        self.successes = Successes()
        self._clock, self._idle_s = clock, idle_s
        self._used = threading.Lock()
        self._batches = Batches(rows=batch_rows, seconds=batch_s, atomic=atomic)
        self._owner = TargetConnection.open(target, owner=True)
        try:
            require_loadable(self._owner)
            require_engine(self._owner)
            self._owner.create_tables("fence", "checkpoint", "plan", "applied")
            require_state(self._owner)
            owned = fence.acquire(self._owner, run=f"replay-{secrets.token_hex(4)}", take_over=take_over, clock=clock)
            self._positions = Positions(self._owner, task)
            found = self._positions.begin()
        except BaseException:
            self._owner.leave()
            raise
        self.position = found.commit_ts
        self._safe = SafeMode(unclean=not found.clean, later=safe_mode, clock=clock)
        self._catalog = Catalog(target, triggers)
        self._translator = Translator(self._catalog)
        self._rounds = Rounds(
            target,
            self._owner,
            owned.number,
            connections=connections,
            job_rows=max(1, batch_rows // (2 * connections)),
            safety=lambda: Safety.AGAIN if self._safe.on else Safety.STRICT,
            close_round=self._close_round,
            committed=lambda round_: self.successes.tell(round_.txns),
            failed=self._fail,
            clock=clock,
        )

    @property
    def safe_mode(self) -> bool:
        """Whether a round that begins now runs in safe mode."""
        return self._safe.on

    @safe_mode.setter
    def safe_mode(self, on: bool) -> None:
        self._safe.switch(on)

    def run(self) -> None:
        """Replay until the input is closed and everything of it is committed; raises what went wrong, at once.

        After an error nothing further is applied; what was told is on the target.
        """
        if not self._used.acquire(blocking=False):
            raise UsageError("this replay has run", hint="make a new one")
        try:
            with suppress(Closed):
                while True:
                    self._take()
            self._flush()
            self._rounds.drain()
            self._positions.end()
        except BaseException as error:
            self._fail(error)
            log.warning("replay_failed", server=self._owner.name, error=str(error))
            raise
        finally:
            self._end()

    def close(self) -> None:
        """No more input; `run` returns when what is queued is committed. More than once is no error."""
        self.input.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if self._used.acquire(blocking=False):  # it never ran
            self._positions.end()
            self._end()

    # -- the thread that runs

    def _take(self) -> None:
        left = self._batches.left(self._clock.monotonic())
        txn = self.input.pop(None if left is None else min(left, self._idle_s))
        if txn is None:
            self._flush()
        elif txn.ddl is not None:
            self._ddl(txn)
        else:
            changes = [] if self._known(txn) else self._translator.changes(txn)
            _require_place(txn, changes)
            now, apart = self._clock.monotonic(), self._translator.apart
            for round_ in self._batches.put(txn, changes, now, apart=apart):
                self._rounds.submit(round_)

    def _known(self, txn: Txn) -> bool:
        """Whether an earlier run committed it."""
        return 0 < txn.commit_ts <= self.position

    def _flush(self) -> None:
        for round_ in self._batches.take():
            self._rounds.submit(round_)

    def _ddl(self, txn: Txn) -> None:
        self._flush()
        self._rounds.drain()
        if txn.ddl is not None and not self._known(txn):
            run_ddl(self._owner, txn.ddl, safe=self._safe.on)
            self._positions.move(txn.commit_ts)
            self._catalog.forget()
        self.successes.tell([txn])

    def _close_round(self, _: TargetConnection, round_: Round) -> None:
        self._positions.move(max((txn.commit_ts for txn in round_.txns), default=0))

    def _fail(self, error: BaseException) -> None:
        self.input.fail(error)
        self.successes.end()

    def _end(self) -> None:
        self.successes.end()
        self._rounds.stop()
        self._owner.leave()


def _require_place(txn: Txn, changes: list[Change]) -> None:
    """UsageError for rows without a key in a transaction without a place: given again, they would be there twice."""
    if not txn.commit_ts:
        name = next((change.shape.name for change in changes if not change.shape.key), None)
        if name is not None:
            raise UsageError(
                f"{name} has no key, and the transaction has no commit_ts: given again after a crash, its rows would "
                "double",
                hint="give each transaction its commit_ts, or the table a primary key",
                table=name,
            )
