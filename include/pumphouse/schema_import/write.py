"""Jobs into the history table and, with a binlog each, into the stream.

The row in the history is the outcome of the DDL's transaction: P, commit ts, row, C. Whoever died in between left a P
that a Pump asks about; the resolver of the next import answers from the table. One import runs at a time, and it writes
rows over the connection that holds the lock: a row that is not there now, of another run, never comes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from pymysql.connections import Connection
from pymysql.constants import ER
from pymysql.err import IntegrityError, MySQLError

from pumphouse.client.pump_client import PumpClient
from pumphouse.client.resolver import PENDING, ROLLED_BACK, Outcome, ResolverServer, committed
from pumphouse.client.transaction import TransactionBinlog
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import SchemaError, WindowHeld
from pumphouse.model.node import NodeKind, NodeState
from pumphouse.model.table import Job
from pumphouse.model.tso import Tso
from pumphouse.registry.base import Cluster
from pumphouse.schema.history import MysqlTableSource
from pumphouse.schema.ident import qualified, quote
from pumphouse.schema_import.columns import Raw
from pumphouse.settings import TlsSettings

RESOLVER_ID = "pumphouse-schema-import"
KEY_PREFIX = b"pumphouse-schema-import/"
_LOCK = "pumphouse schema import"
# A Pump asks about a P some seconds after it came, and says within a heartbeat that it knows.
_SETTLE_S = 60.0


class HistoryTable:
    """The history on a server of MySQL's kind, held by one import."""

    def __init__(self, source: MysqlTableSource, connection: Connection[Any]) -> None:
        self.source = source
        self.connection = connection
        self._name = qualified(source.schema, source.table)

    @classmethod
    @contextmanager
    def open(cls, source: MysqlTableSource) -> Iterator[Self]:
        """Hold the history; SchemaError while another import does."""
        with source.session() as connection:
            table = cls(source, connection)
            if table.execute("SELECT GET_LOCK(%s, 5)", _LOCK) != [(1,)]:
                raise SchemaError(f"another import writes to {source.url}", hint="run it again when that has ended")
            yield table

    def execute(self, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Run one statement; its rows."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql, arguments)
            return list(cursor.fetchall())

    def exists(self) -> bool:
        """Whether the table is there."""
        return bool(
            self.execute(
                "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
                self.source.schema,
                self.source.table,
            )
        )

    def create(self) -> None:
        """Make database and table."""
        self.execute(f"CREATE DATABASE IF NOT EXISTS {quote(self.source.schema)}")
        self.execute(
            f"CREATE TABLE {self._name} (job_id BIGINT PRIMARY KEY, job LONGTEXT CHARACTER SET utf8mb4 NOT NULL)"
        )

    def jobs(self) -> list[Job]:
        """All jobs, by id; none where the table is not there."""
        if not self.exists():
            return []
        return [Job.from_json(row[0]) for row in self.execute(f"SELECT job FROM {self._name} ORDER BY job_id")]  # noqa: S608

    def add(self, raw: Raw) -> None:
        """Write one job; raising says for certain that it is not there only for IntegrityError."""
        self.execute(f"INSERT INTO {self._name} VALUES (%s, %s)", raw["id"], json.dumps(raw))  # noqa: S608


def add_jobs(history: HistoryTable, jobs: Sequence[Raw]) -> None:
    """Jobs that nobody has read binlogs beside: the archive begins with them."""
    for raw in jobs:
        history.add(raw)


def left_behind(cluster: Cluster) -> bool:
    """Whether an import ended without an answer for all that it wrote."""
    return any(each.resolver_id == RESOLVER_ID for each in cluster.resolvers())


class Stream:
    """Writes jobs with their binlogs; answers Pumps for as long as it is open."""

    def __init__(
        self, cluster: Cluster, history: HistoryTable, tls: TlsSettings, listen: str, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._cluster = cluster
        self._history = history
        self._clock = clock
        self._under_way: set[int] = set()
        self._left_by_another = left_behind(cluster)
        self._resolver = ResolverServer(cluster, RESOLVER_ID, [KEY_PREFIX], self._answer, addr=listen, tls=tls)
        try:
            self._client = PumpClient(cluster, tls=tls)
        except BaseException:
            self._resolver.close() if self._left_by_another else self._resolver.unregister()
            raise

    def settle(self) -> None:
        """Wait until no Pump has a question that a killed import left; WindowHeld."""
        if not self._left_by_another:
            return
        now = self._cluster.tso()
        until = self._clock.monotonic() + _SETTLE_S
        while behind := [
            node.node_id
            for node in self._cluster.nodes(NodeKind.PUMP)
            if node.state in (NodeState.ONLINE, NodeState.CLOSING) and node.max_commit_ts < now
        ]:
            if self._clock.monotonic() >= until:
                raise WindowHeld(
                    f"a killed import left a prewrite, and these Pumps have not asked for its outcome: {behind}",
                    hint="pumphouse pumps shows whether it runs; then run the import again",
                    holders=[],
                )
            self._clock.sleep(0.2)

    def put(self, raw: Raw) -> Tso:
        """One job and its binlog; returns its commit ts."""
        start_ts = self._cluster.tso()
        binlog = TransactionBinlog(
            start_ts=start_ts,
            key=KEY_PREFIX + f"{raw['id']}/{start_ts}".encode(),
            ddl_query=raw["query"].encode(),
            ddl_job_id=raw["id"],
            ddl_schema_state=raw["schema_state"],
        )
        self._under_way.add(start_ts)
        self._client.write_prewrite(binlog.prewrite(), start_ts)
        try:
            commit_ts = self._cluster.tso()
            raw["start_ts"] = int(start_ts)
            raw["binlog"]["FinishedTS"] = int(commit_ts)
            self._history.add(raw)
        except MySQLError as error:
            if isinstance(error, IntegrityError) and error.args[0] == ER.DUP_ENTRY:
                self._under_way.discard(start_ts)
                self._client.write_rollback(binlog.rollback(), start_ts)
                raise SchemaError(
                    f"the history has a job {raw['id']} already: something else writes there", job_id=raw["id"]
                ) from error
            self._client.forget(start_ts)  # whether the row is there is unknown: the next import answers
            raise
        self._client.write_commit(binlog.commit(commit_ts), start_ts)
        return commit_ts

    def _answer(self, start_ts: Tso, key: bytes, decide: bool) -> Outcome:
        del decide  # the lock decides: no other run can add the row
        job_id = int(key.removeprefix(KEY_PREFIX).partition(b"/")[0])
        job = self._history.source.job(job_id)
        if job is not None and int(job.raw.get("start_ts") or 0) == start_ts:
            return committed(Tso(job.finished_ts))
        return PENDING if start_ts in self._under_way else ROLLED_BACK

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        done = self._client.flush(30) and not self._client.stats.commits_lost and kind is None
        self._client.close()
        if done:
            self._resolver.unregister()
        else:
            self._resolver.close()  # its keys stay claimed: the next import answers
