"""A transaction with its binlogs, for applications (row W7): the order that makes a Pump's stream true.

1. P is sent beside the store's own prewrite; either failing aborts the transaction.
2. The commit ts is taken after P's answer **and** after the store holds every lock of the transaction.
3. The store commits with that ts, before it releases any lock.
4. C, or Rollback, goes out in the background.

So what P adds to a transaction is only the time by which its answer comes later than the store's prewrite; that is
measured (`TransactionRunner.added_latency`).
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from pumphouse.client.pump_client import PumpClient
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.codec.payload import make_commit, make_prewrite, make_rollback
from pumphouse.library_log import library_logger
from pumphouse.model.tso import Tso

log = library_logger(__name__)

_KEPT_SAMPLES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionBinlog:
    """What a transaction leaves on a Pump. DML has a prewrite value, DDL a query, a job id and a schema state."""

    start_ts: Tso
    key: bytes
    """Prewrite key: the resolver that is registered for its prefix is asked for the outcome."""
    prewrite_value: bytes | None = None
    ddl_query: bytes | None = None
    ddl_job_id: int = 0
    ddl_schema_state: int = 0

    def prewrite(self) -> bytes:
        """The P."""
        return make_prewrite(
            self.start_ts,
            self.key,
            self.prewrite_value,
            ddl_query=self.ddl_query,
            ddl_job_id=self.ddl_job_id,
            ddl_schema_state=self.ddl_schema_state,
        )

    def commit(self, commit_ts: Tso) -> bytes:
        """The C."""
        return make_commit(
            self.start_ts,
            commit_ts,
            self.key,
            ddl_query=self.ddl_query,
            ddl_job_id=self.ddl_job_id,
            ddl_schema_state=self.ddl_schema_state,
        )

    def rollback(self) -> bytes:
        """The Rollback."""
        return make_rollback(self.start_ts, self.key)


class StoreTransaction(Protocol):
    """The application's side of one transaction. All calls come from the thread that called `TransactionRunner.run`."""

    def prewrite(self) -> None:
        """Do all changes and take all locks; nothing is visible yet. Raising aborts."""
        ...

    def commit(self, commit_ts: Tso) -> None:
        """Make the changes visible, with the record of the outcome that the resolver reads, in one step."""
        ...

    def rollback(self) -> None:
        """Undo. Also called when `prewrite` raised."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedLatency:
    """Seconds by which P's answer came after the store's prewrite; quantiles are of the last 10,000 transactions."""

    count: int
    mean_s: float
    p50_s: float
    p99_s: float
    max_s: float


class LatencyMeter:
    """Collects seconds, for any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: deque[float] = deque(maxlen=_KEPT_SAMPLES)
        self._count = 0
        self._sum = self._max = 0.0

    def add(self, seconds: float) -> None:
        """Count one transaction."""
        with self._lock:
            self._samples.append(seconds)
            self._count += 1
            self._sum += seconds
            self._max = max(self._max, seconds)

    def read(self) -> AddedLatency:
        """What was collected so far; zeros when nothing was."""
        with self._lock:
            ordered = sorted(self._samples)
            count, total, longest = self._count, self._sum, self._max

        def quantile(share: float) -> float:
            return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0

        return AddedLatency(
            count=count,
            mean_s=total / count if count else 0.0,
            p50_s=quantile(0.5),
            p99_s=quantile(0.99),
            max_s=longest,
        )


class TransactionRunner:
    """Runs transactions of an application, from any number of threads."""

    def __init__(
        self,
        client: PumpClient,
        *,
        threads: int = 32,
        not_committed: tuple[type[BaseException], ...] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Take a client.

        Args:
            client: not closed by the runner.
            threads: prewrite binlogs that can be under way at once.
            not_committed: errors of `StoreTransaction.commit` that say for certain that nothing was committed. After
                any other error the outcome is unknown, so neither C nor Rollback is sent and the Pump asks.
            clock: time.
        """
        self._client = client
        self._not_committed = not_committed
        self._clock = clock
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="prewrite")
        self._added = LatencyMeter()

    @property
    def added_latency(self) -> AddedLatency:
        """What binlogs added to the transactions so far."""
        return self._added.read()

    def run(self, binlog: TransactionBinlog, store: StoreTransaction) -> Tso:
        """Run one transaction; returns its commit ts.

        Raises:
            BinlogError: no Pump took the P; the transaction is rolled back.
            Exception: whatever the store's prewrite raised (rolled back), or its commit (see ``not_committed``).
        """
        answer = self._pool.submit(self._send_prewrite, binlog)
        try:
            store.prewrite()
            prewritten = self._clock.monotonic()
            answered = answer.result()
            commit_ts = self._client.cluster.tso()
        except BaseException:
            self._abort(binlog, store, answer)
            raise
        self._added.add(max(0.0, answered - prewritten))
        try:
            store.commit(commit_ts)
        except self._not_committed:
            self._abort(binlog, store, answer)
            raise
        except BaseException:
            self._client.forget(binlog.start_ts)
            raise
        self._client.write_commit(binlog.commit(commit_ts), binlog.start_ts)
        return commit_ts

    def close(self) -> None:
        """Wait for prewrites that are under way."""
        self._pool.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _send_prewrite(self, binlog: TransactionBinlog) -> float:
        self._client.write_prewrite(binlog.prewrite(), binlog.start_ts)
        return self._clock.monotonic()

    def _abort(self, binlog: TransactionBinlog, store: StoreTransaction, answer: Future[float]) -> None:
        try:
            store.rollback()
        except Exception as error:  # noqa: BLE001 - what led here is raised; without a commit nothing can follow anyway
            log.warning("store_rollback_failed", start_ts=binlog.start_ts, error=str(error))
        # P may still be under way: its Rollback follows the answer, and nobody waits for it.
        answer.add_done_callback(lambda _: self._client.write_rollback(binlog.rollback(), binlog.start_ts))
