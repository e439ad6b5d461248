"""A process of the demo's application: several threads that change the source. ``python -m pumphouse.demo.writer``.

Ends on SIGTERM after the transactions under way; its counts are in ``<directory>/writers/<name>.json``.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql
import structlog
from pymysql.connections import Connection

from pumphouse.client.transaction import TransactionBinlog, TransactionRunner
from pumphouse.codec.datum import Value
from pumphouse.demo.actions import act, big_document
from pumphouse.demo.gate import Gate
from pumphouse.demo.keys import KnownKeys
from pumphouse.demo.rows import SourceTable, connect
from pumphouse.demo.store import prewrite_key
from pumphouse.demo.tables import Tables
from pumphouse.demo.transaction import PlannedRollback, SourceTransaction
from pumphouse.demo.trouble import TroubledClient
from pumphouse.demo.values import ValueMaker
from pumphouse.durable import create_exclusive, write_atomic
from pumphouse.errors import BinlogError
from pumphouse.log import configure_logging
from pumphouse.mysql.dsn import Dsn
from pumphouse.registry.open import open_cluster

log = structlog.get_logger()

# Serial numbers that one thread may use; keys of different threads never meet.
RANGE = 10_000_000
# While this file is there, a process makes so many transactions a second at most.
SLOW, SLOW_RATE = "slow", 10.0


class Pace:
    """Spreads transactions over time; 0 = as fast as it goes."""

    def __init__(self) -> None:
        self._next = time.monotonic()

    def wait(self, per_second: float, stop: threading.Event) -> None:
        """Wait for the next turn; what was missed is made up for, at most two seconds of it."""
        if not per_second:
            return
        now = time.monotonic()
        self._next = max(self._next + 1 / per_second, now - 2.0)
        if self._next > now:
            stop.wait(self._next - now)


class WriterThread(threading.Thread):
    """Runs transactions until told to stop."""

    def __init__(self, process: WriterProcess, number: int) -> None:
        super().__init__(name=f"writer-{number}", daemon=True)
        self._process = process
        self.number = number
        self.rng = random.Random(process.seed * 1000 + number)  # noqa: S311 - no secret
        self.values = ValueMaker(self.rng, number * RANGE)
        self.keys = KnownKeys(number, self.rng)
        self.tables = Tables(process.directory / "catalog.json")
        self.counts: Counter[str] = Counter()
        self.error: BaseException | None = None

    def run(self) -> None:
        """The loop."""
        gate = Gate(self._process.directory)
        connection = connect(self._process.source)
        pace = Pace()
        try:
            while not self._process.stop.is_set():
                pace.wait(self._process.rate / self._process.threads, self._process.stop)
                with gate.shared():
                    self.tables.refresh()
                    self._transaction(connection)
        except BaseException as error:
            log.exception("writer_thread_failed", number=self.number)
            self.error = error
            self._process.stop.set()
        finally:
            connection.close()
            gate.close()

    def _transaction(self, connection: Connection[Any]) -> None:
        process = self._process
        start_ts = process.client.cluster.tso()
        transaction = SourceTransaction(connection, start_ts, self.tables.version)
        try:
            self._fill(transaction)
            if not transaction.rows:
                connection.rollback()
                self.counts["empty"] += 1
                return
            binlog = TransactionBinlog(
                start_ts=start_ts, key=prewrite_key(start_ts), prewrite_value=transaction.prewrite_value()
            )
            transaction.roll_back = self.rng.random() < process.rollbacks
        except pymysql.err.OperationalError as error:
            # Deadlock or lock wait while reading: nothing is written anywhere yet.
            connection.rollback()
            self.counts[f"source error {error.args[0]}"] += 1
            return
        try:
            process.runner.run(binlog, transaction)
        except PlannedRollback:
            self.counts["rolled back"] += 1
        except pymysql.err.IntegrityError as error:
            # A Pump asked with the power to roll back, and its marker was faster than our status row.
            self.counts["decided by a Pump" if "PRIMARY" in str(error.args) else "duplicate key"] += 1
        except pymysql.err.OperationalError as error:
            self.counts[f"source error {error.args[0]}"] += 1
        except BinlogError as error:
            log.warning("transaction_aborted", start_ts=start_ts, error=str(error))
            self.counts["no Pump"] += 1
            process.stop.wait(0.2)
        else:
            self.counts["transactions"] += 1
            self.counts["rows"] += transaction.rows
            for table, key in transaction.removed:
                self.keys.remove(table, key)
            for table, key in transaction.added:
                self.keys.add(table, key)

    def _fill(self, transaction: SourceTransaction) -> None:
        if self.rng.random() < self._process.documents:
            big_document(transaction, self)
            return
        count = 1 if self.rng.random() < 0.65 else 2
        chosen = self.rng.choices(self.tables.choices, self.tables.weights, k=count)
        # One order of tables for all threads: fewer deadlocks.
        for table in sorted({table.info.id: table for table in chosen}.values(), key=lambda t: t.info.id):
            act(transaction, self, table)

    def known(self, transaction: SourceTransaction, table: SourceTable, count: int) -> list[dict[int, Value]]:
        """Some of our own rows, locked."""
        return transaction.lock_keys(table, self.keys.sample(table, count))


class WriterProcess:
    """All threads and what they share."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.directory: Path = options.directory
        self.name: str = options.name
        self.source = Dsn.of_environment("PUMPHOUSE_DEMO_SOURCE")
        self.seed: int = options.seed
        self.threads: int = options.threads
        self.rate: float = options.rate
        self.rollbacks: float = options.rollbacks
        self.documents: float = options.documents
        self.stop = threading.Event()
        self.cluster = open_cluster(options.cluster)
        self.client = TroubledClient(
            self.cluster, lost=options.lost, twice=options.twice, seed=self.seed, write_timeout_s=5.0
        )
        self.runner = TransactionRunner(self.client, threads=self.threads, not_committed=(pymysql.err.IntegrityError,))

    def run(self) -> int:
        """Run until SIGTERM; 1 when a thread failed."""
        first = claim_numbers(self.directory, self.threads)
        threads = [WriterThread(self, first + number) for number in range(self.threads)]
        for thread in threads:
            with _preloaded(thread, self.source):
                thread.start()
        while not self.stop.wait(0.5):
            self._report(threads)
            if (self.directory / SLOW).exists():
                self.rate = min(self.rate or SLOW_RATE, SLOW_RATE)
        for thread in threads:
            thread.join()
        self.runner.close()
        self.client.close()
        self._report(threads)
        self.cluster.close()
        return int(any(thread.error is not None for thread in threads))

    def _report(self, threads: list[WriterThread]) -> None:
        total: Counter[str] = Counter()
        for thread in threads:
            total += thread.counts
        latency, stats = self.runner.added_latency, self.client.stats
        body = {
            **total,
            "lost commits": self.client.lost_on_purpose,
            "stored twice": self.client.stored_twice,
            "prewrite retries": stats.prewrite_retries,
            "added_ms_p50": round(latency.p50_s * 1000, 2),
            "added_ms_p99": round(latency.p99_s * 1000, 2),
        }
        path = self.directory / "writers" / f"{self.name}.json"
        path.parent.mkdir(exist_ok=True)
        write_atomic(path, json.dumps(body).encode())


@contextmanager
def _preloaded(thread: WriterThread, source: Dsn) -> Iterator[None]:
    """Tell a thread which of the rows that were there before are its own."""
    connection = connect(source)
    try:
        thread.tables.refresh()
        for table in thread.tables.choices:
            if table.key:
                names = ", ".join(f"`{column.name}`" for column in table.key)
                with connection.cursor() as cursor:
                    cursor.execute(f"SELECT {names} FROM {table.name} LIMIT 20000")  # noqa: S608
                    thread.keys.adopt(table, cursor.fetchall())
    finally:
        connection.close()
    yield


def claim_numbers(directory: Path, count: int) -> int:
    """The first of ``count`` thread numbers that nobody had before, also not before a restart."""
    claims = directory / "numbers"
    claims.mkdir(parents=True, exist_ok=True)
    first = 1
    while True:
        try:
            for number in range(first, first + count):
                create_exclusive(claims / str(number), b"")
        except FileExistsError:
            first = 1 + max(int(path.name) for path in claims.iterdir() if path.name.isdigit())
        else:
            return first


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--threads", type=int, default=3)
    parser.add_argument("--rate", type=float, default=0.0, help="transactions a second of the process; 0 = no limit")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rollbacks", type=float, default=0.03)
    parser.add_argument("--lost", type=float, default=0.01)
    parser.add_argument("--twice", type=float, default=0.01)
    parser.add_argument("--documents", type=float, default=0.001)
    options = parser.parse_args()
    configure_logging("info")
    process = WriterProcess(options)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.stop.set())
    return process.run()


if __name__ == "__main__":
    raise SystemExit(main())
