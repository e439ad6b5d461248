"""A small source in memory that writes an archive: tables, transactions and DDL, as TiDB and the snapshot would.

The model keeps the rows as they should be at any moment, so that a target can be compared with it.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from pumphouse.archive import layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.ddl import ArchivedJob, write_jobs
from pumphouse.archive.genesis import BaseTable, Genesis
from pumphouse.archive.manifest import Manifest, PumpEntry, SegmentEntry
from pumphouse.archive.segment import SegmentWriter
from pumphouse.codec import payload, row
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import Job, MysqlType, TableInfo
from pumphouse.model.tso import Tso, compose
from pumphouse.objectstore.open import open_store
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import TimedJob, genesis_jobs
from pumphouse.settings import ArchiveSettings

CLUSTER_ID = 77
START = compose(1_790_000_000_000)


def column(id_: int, name: str, tp: int = MysqlType.LONG, **more: Any) -> dict[str, Any]:
    """ColumnInfo JSON. ``flag``, ``flen``, ``decimal``, ``charset``, ``default``… as keywords."""
    text = tp in {MysqlType.VARCHAR, MysqlType.STRING, MysqlType.BLOB, MysqlType.LONG_BLOB}
    binary = not text or more.pop("binary", False)
    lengths = {MysqlType.LONG: 11, MysqlType.LONGLONG: 20, MysqlType.VARCHAR: 64}
    kind = {
        "Tp": int(tp),
        "Flag": more.pop("flag", 0),
        "Flen": more.pop("flen", lengths.get(MysqlType(tp), -1)),
        "Decimal": more.pop("decimal", -1 if text else 0),
        "Charset": "binary" if binary else "utf8mb4",
        "Collate": "binary" if binary else more.pop("collate", "utf8mb4_bin"),
        "Elems": more.pop("elems", None),
    }
    return {"id": id_, "name": {"O": name, "L": name.lower()}, "offset": id_ - 1, "type": kind, "state": 5, **more}


def index(
    id_: int, name: str, *columns: tuple[str, int], unique: bool = False, primary: bool = False
) -> dict[str, Any]:
    """IndexInfo JSON; columns as (name, offset)."""
    return {
        "id": id_,
        "idx_name": {"O": name, "L": name.lower()},
        "tbl_name": {"O": "", "L": ""},
        "idx_cols": [{"name": {"O": n, "L": n.lower()}, "offset": at, "length": -1} for n, at in columns],
        "state": 5,
        "is_unique": unique,
        "is_primary": primary,
    }


def table_info(id_: int, name: str, columns: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """TableInfo JSON, as a TiDB writes it, or ``imported``; pk_is_handle unless told otherwise."""
    tidb = {} if more.pop("imported", False) else {"ShardRowIDBits": 0}
    return {
        "id": id_,
        **tidb,
        "name": {"O": name, "L": name.lower()},
        "charset": "utf8mb4",
        "collate": "utf8mb4_bin",
        "cols": [{**c, "offset": at} for at, c in enumerate(columns)],
        "index_info": more.pop("index_info", None),
        "state": 5,
        "pk_is_handle": more.pop("pk_is_handle", True),
        **more,
    }


@dataclass
class Txn:
    """Row changes of one transaction, seen at once by the model."""

    source: MadeSource
    builder: payload.PrewriteValueBuilder

    def insert(self, table: str, **values: Any) -> int:
        """Insert a row; returns its handle."""
        held = self.source.tables[table]
        info = held.info
        by_id = {c.id: values.get(c.name) for c in info.public_columns}
        if info.pk_is_handle:
            handle = next(int(by_id[c.id]) for c in info.columns if c.type.flag & 2)
        else:
            held.last_handle += 1
            handle = held.last_handle
        self.builder.insert(written_as(info), row.encode_insert(info, by_id, handle=handle))
        assert handle not in held.rows
        held.rows[handle] = by_id
        return handle

    def update(self, table: str, handle: int, **values: Any) -> None:
        """Change columns of a row; a changed integer key is a delete and an insert, as TiDB writes it."""
        held = self.source.tables[table]
        old = held.rows[handle]
        new = old | {c.id: values[c.name] for c in held.info.public_columns if c.name in values}
        pk = [c.id for c in held.info.columns if c.type.flag & 2]
        if held.info.pk_is_handle and old[pk[0]] != new[pk[0]]:
            self.delete(table, handle)
            self.insert(table, **{c.name: new[c.id] for c in held.info.public_columns})
            return
        self.builder.update(written_as(held.info), row.encode_update(held.info, old, new, handle=handle))
        held.rows[handle] = new

    def delete(self, table: str, handle: int) -> None:
        """Delete a row."""
        held = self.source.tables[table]
        self.builder.delete(written_as(held.info), row.encode_delete(held.info, held.rows.pop(handle), handle=handle))


def written_as(info: TableInfo) -> int:
    """Table id in binlogs: that of a partition where there are any (of the last one: which it is says nothing)."""
    return (info.id, *info.partition_ids)[-1]


@dataclass
class Held:
    """A table of the model."""

    info: TableInfo
    rows: dict[int, dict[int, Any]] = field(default_factory=dict)
    last_handle: int = 0


@dataclass
class _Event:
    commit_ts: int
    start_ts: int
    payload: bytes
    job: Job | None = None
    query: bytes = b""  # of a DDL binlog without a job


class MadeSource:
    """The source and its archive (``file://``), in one database ``d``."""

    def __init__(self, root: Path, cluster_id: int = CLUSTER_ID) -> None:
        self.root = root
        self.settings = ArchiveSettings(root=f"file://{root}")
        self.cluster_id = cluster_id
        self.archive = Archive(open_store(self.settings), cluster_id)
        self.tables: dict[str, Held] = {}
        self.ts = int(START)
        self.key = b"k"  # of the transactions from now on; b"" = their Pump writes the commit
        self.schema_version = 0
        self.jobs: list[TimedJob] = []
        self.events: list[_Event] = []
        self._job_id = 100
        self.table_id = 200
        self.previous: tuple[Tso, str] | None = None
        self.ddl(1, 0, "CREATE DATABASE `d`", DBInfo={"id": 2, "db_name": {"O": "d", "L": "d"}, "charset": "utf8mb4",
                                                          "collate": "utf8mb4_bin", "state": 5})  # fmt: skip

    def begin_anew(self) -> None:
        """Another source and archive in the place of these."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.__init__(self.root, self.cluster_id)  # type: ignore[misc]

    # -- what the source does

    def tick(self, milliseconds: int = 10) -> int:
        """A later timestamp."""
        self.ts += milliseconds << 18
        return self.ts

    def create_database(self, name: str) -> None:
        """CREATE DATABASE."""
        info = {"id": 9, "db_name": {"O": name, "L": name.lower()}, "charset": "utf8mb4", "collate": "utf8mb4_bin",
                "state": 5}  # fmt: skip
        self.ddl(1, 0, f"CREATE DATABASE `{name}`", DBInfo=info)

    def drop_database(self) -> None:
        """DROP DATABASE, with all of its tables."""
        info = {"id": 2, "db_name": {"O": "d", "L": "d"}, "charset": "utf8mb4", "collate": "utf8mb4_bin", "state": 0}
        self.ddl(2, 0, "DROP DATABASE `d`", DBInfo=info)
        self.tables.clear()

    def create_table(self, name: str, columns: list[dict[str, Any]], **more: Any) -> int:
        """CREATE TABLE."""
        self.table_id += 1
        info = table_info(self.table_id, name, columns, **more)
        self.ddl(3, self.table_id, f"CREATE TABLE `{name}`", TableInfo=info)
        self.tables[name] = Held(TableInfo.from_dict(info))
        return self.table_id

    def add_column(self, table: str, new: dict[str, Any]) -> None:
        """ADD COLUMN at the end; rows get the origin default."""
        held = self.tables[table]
        raw = copy.deepcopy(held.info.raw)
        raw["cols"].append({**new, "offset": len(raw["cols"])})
        self.alter(table, 5, raw)
        default = new.get("origin_default")
        if default is not None:
            default = int(default) if new["type"]["Tp"] in {1, 2, 3, 8, 9} else default.encode()
        for values in held.rows.values():
            values[new["id"]] = default

    def drop_indexes(self, table: str) -> None:
        """DROP INDEX of all of them."""
        raw = copy.deepcopy(self.tables[table].info.raw)
        raw["index_info"] = None
        self.alter(table, 8, raw)

    def drop_column(self, table: str, name: str) -> None:
        """DROP COLUMN."""
        held = self.tables[table]
        raw = copy.deepcopy(held.info.raw)
        gone = next(c for c in raw["cols"] if c["name"]["O"] == name)
        raw["cols"].remove(gone)
        raw["cols"] = [{**c, "offset": at} for at, c in enumerate(raw["cols"])]
        self.alter(table, 6, raw)
        for values in held.rows.values():
            values.pop(gone["id"], None)

    def rename_table(self, table: str, to: str) -> None:
        """RENAME TABLE."""
        raw = {**self.tables[table].info.raw, "name": {"O": to, "L": to.lower()}}
        self.alter(table, 14, raw)
        self.tables[to] = self.tables.pop(table)

    def truncate(self, table: str) -> None:
        """TRUNCATE: the table gets a new id."""
        held = self.tables[table]
        self.table_id += 1
        raw = {**held.info.raw, "id": self.table_id}
        self.ddl(11, held.info.id, f"TRUNCATE TABLE `{table}`", TableInfo=raw)
        self.tables[table] = Held(TableInfo.from_dict(raw))

    def drop_table(self, table: str) -> None:
        """DROP TABLE."""
        info = self.tables.pop(table).info
        self.ddl(4, info.id, f"DROP TABLE `{table}`", TableInfo=info.raw)

    def recover_table(self, name: str, held: Held) -> None:
        """RECOVER or FLASHBACK TABLE: what `tables` had of one that was dropped."""
        raw = {**held.info.raw, "name": {"O": name, "L": name.lower()}}
        self.ddl(25, held.info.id, f"FLASHBACK TABLE `{name}`", TableInfo=raw)
        self.tables[name] = Held(TableInfo.from_dict(raw), held.rows)

    def txn(self, *, schema_version: int | None = None) -> _OpenTxn:
        """``with source.txn() as t: t.insert(…)``: committed at the end of the block."""
        return _OpenTxn(self, schema_version)

    def commit(self, start_ts: int, value: bytes, *, at: int | None = None) -> int:
        """Put a transaction's payload into the log; returns its commit ts."""
        commit_ts = at or self.tick()
        p = payload.make_prewrite(start_ts, self.key, value)
        merged = payload.merge(p, payload.make_commit(start_ts, commit_ts, self.key or None))
        self.events.append(_Event(commit_ts, start_ts, merged))
        return commit_ts

    def alter(self, table: str, type_: int, raw: dict[str, Any]) -> None:
        """A job that leaves the table as ``raw`` says; the rows keep their values."""
        held = self.tables[table]
        self.ddl(type_, held.info.id, f"ALTER TABLE `{table}`", TableInfo=raw)
        held.info = TableInfo.from_dict(raw)

    def setval(self, sequence: str, value: int) -> None:
        """A server took a range of a sequence up to ``value``: a DDL binlog, and no job."""
        self._job_id += 1
        query = f"SELECT SETVAL(`d`.`{sequence}`, {value})".encode()
        start_ts, commit_ts = self.tick(), self.tick()
        ddl = {"ddl_query": query, "ddl_job_id": self._job_id}
        p = payload.make_prewrite(start_ts, b"m", **ddl)
        merged = payload.merge(p, payload.make_commit(start_ts, commit_ts, b"m", **ddl))
        self.events.append(_Event(commit_ts, start_ts, merged, query=query))

    def ddl(self, type_: int, table_id: int, query: str, **binlog: Any) -> None:
        self.schema_version += 1
        self._job_id += 1
        start_ts, commit_ts = self.tick(), self.tick()
        data = {
            "id": self._job_id,
            "type": type_,
            "schema_id": 2,
            "table_id": table_id,
            "schema_name": "d",
            "table_name": "",
            "state": 6,
            "schema_state": 5,
            "query": query,
            "binlog": {"SchemaVersion": self.schema_version, "FinishedTS": self.tick(), **binlog},
        }
        self._add_job(Job.from_json(json.dumps(data)), start_ts, commit_ts)

    def take_job(self, job: Job) -> None:
        """A job that was made elsewhere, as the next DDL."""
        self.schema_version = job.schema_version
        self._add_job(job, self.tick(), self.tick())

    def _add_job(self, job: Job, start_ts: int, commit_ts: int) -> None:
        self.jobs.append(TimedJob(Tso(commit_ts), job))
        ddl = {"ddl_query": job.query.encode(), "ddl_job_id": job.id}
        p = payload.make_prewrite(start_ts, b"m", **ddl)
        merged = payload.merge(p, payload.make_commit(start_ts, commit_ts, b"m", **ddl))
        self.events.append(_Event(commit_ts, start_ts, merged, job))

    def rewrite_job(self, change: Callable[[dict[str, Any]], None]) -> Job:
        """The newest DDL's job, saying something else."""
        raw = copy.deepcopy(self.jobs[-1].job.raw)
        change(raw)
        job = Job.from_dict(raw)
        self.jobs[-1] = dataclasses.replace(self.jobs[-1], job=job)
        self.events[-1].job = job
        return job

    # -- what the archive gets

    def genesis(self, *, base: bool = True) -> Tso:
        """Begin the archive now: the schema, and the rows where ``base``."""
        at = Tso(self.tick())
        attempt = layout.attempt_id()
        store = self.archive.store
        ddl = write_jobs(
            store, layout.genesis_ddl_key(attempt), [ArchivedJob.of_history(e.job) for e in self.events if e.job]
        )
        tables = tuple(self._base(at, name, attempt) for name in self.tables) if base else None
        genesis = Genesis(
            cluster_id=self.cluster_id,
            archive_id="main",
            attempt=attempt,
            ts=at,
            schema_version=self.schema_version,
            pumps=self.pumps_at(at),
            ddl=ddl,
            base=tables,
        )
        store.put_if_absent(layout.GENESIS, genesis.to_json())
        self.archive.write_head(None)
        stored = Genesis.from_json(layout.GENESIS, genesis.to_json())
        self.previous = (at, stored.sha256)
        self.events = []
        self._before_genesis = list(self.jobs)
        self.jobs = []
        return at

    def _base(self, at: Tso, name: str, attempt: str) -> BaseTable:
        held = self.tables[name]
        with SegmentWriter(self.archive.store, lambda n: layout.base_key(at, "d", name, attempt, n), "base") as writer:
            if held.rows:
                builder = payload.PrewriteValueBuilder(self.schema_version)
                for handle, values in held.rows.items():
                    builder.insert(held.info.id, row.encode_insert(held.info, values, handle=handle))
                p = payload.make_prewrite(at, b"k", builder.build())
                merged = payload.merge(p, payload.make_commit(at, at, b"k"))
                writer.add(_batch([_Event(int(at), int(at), merged)]))
            segments = tuple(writer.finish())
        return BaseTable(db="d", table=name, table_id=held.info.id, rows=len(held.rows), segments=segments)

    def cut(self, *, pumps: int = 2, **more: Any) -> Tso:
        """Archive everything since the last cut as one window; the transactions are dealt out to so many Pumps.

        ``more``: fields of the manifest.
        """
        assert self.previous is not None
        start = self.previous[0]
        end = Tso(self.tick())
        attempt = layout.attempt_id()
        segments = []
        for pump in range(pumps):
            events = sorted(self.events[pump::pumps], key=lambda e: (e.commit_ts, e.start_ts))
            node = f"pump-{pump}"
            with SegmentWriter(
                self.archive.store, lambda n, node=node: layout.segment_key(start, end, node, attempt, n), node
            ) as writer:
                if events:
                    writer.add(_batch(events))
                segments += writer.finish()
        return self._publish(end, attempt, segments, **more)

    def cut_of(self, values: Iterable[bytes], count: int) -> Tso:
        """Archive one window of so many transactions with these payloads, of one Pump; few are in memory at once."""
        assert self.previous is not None
        assert not self.events
        start = self.previous[0]
        end = Tso(self.ts + ((3 * count + 10) << 18))
        attempt = layout.attempt_id()
        with SegmentWriter(
            self.archive.store, lambda n: layout.segment_key(start, end, "pump-0", attempt, n), "pump-0"
        ) as writer:
            for some in _batched(values, 500):
                for value in some:
                    self.commit(self.tick(1), value, at=self.tick(1))
                writer.add(_batch(self.events))
                self.events = []
            segments = writer.finish()
        self.ts = int(end)
        return self._publish(end, attempt, segments)

    def _publish(self, end: Tso, attempt: str, segments: Sequence[SegmentEntry], **more: Any) -> Tso:
        assert self.previous is not None
        start, digest = self.previous
        jobs = [
            ArchivedJob(
                commit_ts=Tso(e.commit_ts), start_ts=Tso(e.start_ts), job_id=e.job.id if e.job else 1, schema_state=5,
                query=e.job.query.encode() if e.job else e.query, job=json.dumps(e.job.raw) if e.job else None,
            )
            for e in self.events if e.job or e.query
        ]  # fmt: skip
        manifest = Manifest(
            cluster_id=self.cluster_id,
            attempt=attempt,
            start=start,
            planned_end=end,
            end=end,
            fence=Tso(end + 1),
            previous=digest,
            pumps=self.pumps_at(end),
            segments=tuple(segments),
            ddl=write_jobs(self.archive.store, layout.ddl_key(start, end, attempt), jobs) if jobs else None,
        )
        stored = self.archive.publish(dataclasses.replace(manifest, **more))
        self.previous = (end, stored.sha256)
        self.events = []
        return end

    def timeline(self) -> Timeline:
        """Folded from every job."""
        genesis = self.archive.genesis()
        return Timeline.empty().fold([*genesis_jobs([t.job for t in self._before_genesis], genesis.ts), *self.jobs])

    def snapshot(self) -> dict[str, Counter[tuple[Any, ...]]]:
        """Rows of every table now, as multisets of tuples in column order."""
        return {
            name: Counter(tuple(values.get(c.id) for c in held.info.public_columns) for values in held.rows.values())
            for name, held in self.tables.items()
        }

    def pumps_at(self, reached: Tso) -> tuple[PumpEntry, ...]:
        """Drained and taken out of the registry: they hold no window."""
        return tuple(
            PumpEntry(node_id=f"pump-{n}", incarnation="i", start_count=1, state="gone", reached=reached, drained=True)
            for n in range(2)
        )


class _OpenTxn:
    def __init__(self, source: MadeSource, schema_version: int | None) -> None:
        self._source = source
        self._txn = Txn(source, payload.PrewriteValueBuilder(schema_version or source.schema_version))
        self._start_ts = source.tick()
        self.commit_ts = 0

    def __enter__(self) -> Txn:
        return self._txn

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.commit_ts = self._source.commit(self._start_ts, self._txn.builder.build())


def _batched(values: Iterable[bytes], size: int) -> Iterator[list[bytes]]:
    """So many at a time."""
    left = iter(values)
    while some := list(itertools.islice(left, size)):
        yield some


def _batch(events: list[_Event]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "commit_ts": pa.array([e.commit_ts for e in events], pa.int64()),
            "start_ts": pa.array([e.start_ts for e in events], pa.int64()),
            "ddl_job_id": pa.array([e.job.id if e.job else int(bool(e.query)) for e in events], pa.int64()),
            "ddl_query": pa.array(
                [e.job.query.encode() if e.job else e.query or None for e in events], pa.large_binary()
            ),
            "payload": pa.array([e.payload for e in events], pa.large_binary()),
        }
    )


def target_rows(connection: TargetConnection, db: str = "d") -> dict[str, Counter[tuple[Any, ...]]]:
    """Rows of every table of a database on a target, text as bytes, in the form of `MadeSource.snapshot`."""
    found = {}
    for (name,) in connection.query(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND table_type = 'BASE TABLE'", (db,)
    ):
        rows = connection.query(f"SELECT * FROM `{db}`.`{name}`")
        found[name] = Counter(tuple(v.encode() if isinstance(v, str) else v for v in r) for r in rows)
    return found


class Churn:
    """A workload of every awkward kind over tables t (a key), k (no key) and u (a unique key whose values move)."""

    def __init__(self, source: MadeSource, seed: int = 1) -> None:
        self.source = source
        self.rng = random.Random(seed)
        source.create_table(
            "t", [column(1, "id", flag=3), column(2, "name", MysqlType.VARCHAR), column(3, "n", MysqlType.LONGLONG)]
        )
        source.create_table("k", [column(1, "a"), column(2, "b", MysqlType.VARCHAR)], pk_is_handle=False)
        source.create_table(
            "u",
            [column(1, "id", flag=3), column(2, "u", MysqlType.VARCHAR)],
            index_info=[index(1, "uu", ("u", 1), unique=True)],
        )

    def fill(self) -> None:
        """Rows to begin with."""
        with self.source.txn() as t:
            for i in range(60):
                t.insert("t", id=i, name=b"x%d" % i, n=i)
            for i in range(20):
                t.insert("k", a=i % 3, b=None if i % 2 else b"bb")
            for i in range(10):
                t.insert("u", id=i, u=b"u%d" % i)

    def work(self, transactions: int) -> None:
        """Insert, update, move keys, delete; add and take equal rows; swap unique values between two rows."""
        rng, tables = self.rng, self.source.tables
        for _ in range(transactions):
            with self.source.txn() as t:
                for _ in range(3):
                    ids = list(tables["t"].rows)
                    choice = rng.random()
                    if choice < 0.4 or len(ids) < 5:
                        new = max(ids, default=0) + 1
                        t.insert("t", id=new, name=b"new%d\t\\" % new, n=None)
                    elif choice < 0.7:
                        t.update("t", rng.choice(ids), name=b"upd", n=rng.randrange(1 << 60))
                    elif choice < 0.8:
                        t.update("t", rng.choice(ids), id=max(ids) + 1)
                    else:
                        t.delete("t", rng.choice(ids))
                t.insert("k", a=rng.randrange(3), b=rng.choice([None, b"bb", b"BB ", b"c\\"]))
                if rng.random() < 0.6:
                    t.delete("k", rng.choice(list(tables["k"].rows)))
                if rng.random() < 0.6 and tables["k"].rows:
                    t.update("k", rng.choice(list(tables["k"].rows)), b=b"zz")
                a, b = rng.sample(sorted(tables["u"].rows), 2)
                ua, ub = tables["u"].rows[a][2], tables["u"].rows[b][2]
                t.update("u", a, u=b"between")
                t.update("u", b, u=ua)
                t.update("u", a, u=ub)
