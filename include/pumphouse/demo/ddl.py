"""DDL on the source, as a TiDB does it: MariaDB's statement, a job with its TableInfo, the DDL's binlogs, the history.

Every kind of DDL is a step (`pumphouse.demo.statements`); `DdlEngine.run` carries one out inside the writers' barrier.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pumphouse.client.pump_client import PumpClient
from pumphouse.client.transaction import TransactionBinlog
from pumphouse.demo.catalog import Catalog
from pumphouse.demo.columns import Raw
from pumphouse.demo.gate import Gate
from pumphouse.demo.store import HISTORY, SourceStore, prewrite_key
from pumphouse.model.binlog import SchemaState
from pumphouse.model.table import JobState
from pumphouse.model.tso import Tso
from pumphouse.mysql.dsn import Dsn
from pumphouse.registry.base import Cluster
from pumphouse.schema.actions import Action
from pumphouse.schema.ident import quote

_PUBLIC = SchemaState.PUBLIC.value


@dataclass(slots=True, kw_only=True)
class Change:
    """What one DDL does. ``sql`` runs on MariaDB; the other fields go into the job and the catalog."""

    action: Action
    query: str
    sql: list[str]
    db: str
    table: str = ""
    schema_id: int = 0
    table_id: int = 0
    info: Raw | None = None
    db_info: Raw | None = None
    infos: list[Raw] | None = None
    raw_args: Any = None
    reorg: bool = False
    sub_jobs: list[Raw] | None = None
    schema_state: int = _PUBLIC
    state: JobState = JobState.SYNCED
    versions: int = 1
    tables: dict[tuple[str, str], Raw | None] = field(default_factory=dict)
    """What the catalog holds afterwards; None = gone."""
    dbs: dict[str, Raw | None] = field(default_factory=dict)
    delete_only: Raw | None = None
    """DROP COLUMN: the TableInfo of its first binlog, in which the column is delete-only."""


Step = Callable[[Catalog], Change]


class DdlEngine:
    """Runs DDLs one at a time; ``client`` None = before there are Pumps (history only)."""

    def __init__(
        self,
        *,
        directory: Path,
        source: Dsn,
        cluster: Cluster,
        client: PumpClient | None,
        history_delay_s: float = 0.05,
    ) -> None:
        self.path = directory / "catalog.json"
        self.gate = Gate(directory)
        self.cluster = cluster
        self.client = client
        self.delay_s = history_delay_s
        self._connection = source.connect(autocommit=True)
        self._store = SourceStore(source)
        self._turn = os.open(directory / "ddl", os.O_RDWR | os.O_CREAT, 0o600)

    def close(self) -> None:
        """Release the connections."""
        self._connection.close()
        self._store.close()
        self.gate.close()
        os.close(self._turn)

    def run(self, step: Step, *, pause_s: float = 0.0) -> Raw:
        """Carry out one DDL; returns its job. ``pause_s`` lies between the two binlogs of a DROP COLUMN."""
        fcntl.flock(self._turn, fcntl.LOCK_EX)  # waits for a dump of genesis that is being read
        try:
            return self._run(step, pause_s)
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)

    def _run(self, step: Step, pause_s: float) -> Raw:
        with self.gate.exclusive():
            catalog = Catalog.load(self.path)
            change = step(catalog)
            job_id = catalog.take_id()
            if change.delete_only is not None:
                # From here on the column takes no values, neither in MariaDB nor in row images.
                self._binlogs(change, job_id, SchemaState.DELETE_ONLY.value, change.sql)
                catalog.schema_version += 2
                catalog.tables[change.db, change.table] = change.delete_only
                catalog.save(self.path)
        if change.delete_only is not None:
            time.sleep(pause_s)
        with self.gate.exclusive():
            catalog.schema_version += change.versions
            final = change.schema_state
            sql = [] if change.delete_only is not None else change.sql
            start_ts, commit_ts = self._binlogs(change, job_id, final, sql)
            job = self._job(catalog, change, job_id, start_ts)
            for key, raw in change.tables.items():
                if raw is None:
                    catalog.tables.pop(key, None)
                else:
                    catalog.tables[key] = {**raw, "update_timestamp": start_ts}
            for name, raw in change.dbs.items():
                if raw is None:
                    catalog.dbs.pop(name, None)
                else:
                    catalog.dbs[name] = raw
            catalog.jobs += 1
            catalog.save(self.path)
        del commit_ts
        # As in TiDB: the job reaches the history after its binlog, and FinishedTS is later than the commit ts.
        time.sleep(self.delay_s if self.client is not None else 0)
        job["binlog"]["FinishedTS"] = self.cluster.tso()
        with self._connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {HISTORY} VALUES (%s, %s)", (job_id, json.dumps(job)))  # noqa: S608
        return job

    def _binlogs(self, change: Change, job_id: int, state: int, sql: list[str]) -> tuple[Tso, Tso]:
        start_ts = self.cluster.tso()
        binlog = TransactionBinlog(
            start_ts=start_ts,
            key=prewrite_key(start_ts),
            ddl_query=f"{change.query};".encode(),
            ddl_job_id=job_id,
            ddl_schema_state=state,
        )
        if self.client is not None:
            self.client.write_prewrite(binlog.prewrite(), start_ts)
        commit_ts = self.cluster.tso()
        # The outcome first: MariaDB commits DDL by itself, and a Pump that asks in between must not roll it back.
        self._store.record(start_ts, commit_ts)
        with self._connection.cursor() as cursor:
            if change.action not in (Action.CREATE_SCHEMA, Action.DROP_SCHEMA):
                cursor.execute(f"USE {quote(change.db)}")
            for statement in sql:
                cursor.execute(statement)
        if self.client is not None:
            self.client.write_commit(binlog.commit(commit_ts), start_ts)
        return start_ts, commit_ts

    def _job(self, catalog: Catalog, change: Change, job_id: int, start_ts: Tso) -> Raw:
        info = None if change.info is None else {**change.info, "update_timestamp": start_ts}
        reorg = {
            "sql_mode": 1436549152,
            "warnings": {},
            "warnings_count": {},
            "location": {"name": "UTC", "offset": 0},
            "reorg_tp": 3 if change.sub_jobs else 0,
            "is_dist_reorg": False,
        }
        multi = None if change.sub_jobs is None else {"sub_jobs": change.sub_jobs, "revertible": False}
        return {
            "id": job_id,
            "type": change.action.value,
            "schema_id": change.schema_id,
            "table_id": change.table_id,
            "schema_name": change.db,
            "table_name": change.table,
            "state": change.state.value,
            "warning": None,
            "err": None,
            "err_count": 0,
            "row_count": 0,
            "raw_args": change.raw_args,
            "schema_state": change.schema_state,
            "snapshot_ver": 0,
            "real_start_ts": start_ts,
            "start_ts": start_ts - 786_432,
            "dependency_id": 0,
            "query": change.query,
            "binlog": {
                "SchemaVersion": catalog.schema_version,
                "DBInfo": change.db_info,
                "TableInfo": info,
                "FinishedTS": 0,
                "MultipleTableInfos": change.infos,
            },
            "version": 1,
            "reorg_meta": reorg if change.reorg else None,
            "multi_schema_info": multi,
            "priority": 0,
            "seq_num": catalog.jobs + 1,
        }
