"""Objects of real archives against docs/formats.md: every field is of the type that it says, and every field is shown."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pumphouse.archive.archive import Archive
from pumphouse.archive.declare import accept, declare_lost
from pumphouse.archive.indexing import extend_index
from pumphouse.archive.init import init_archive
from pumphouse.archive.schema_store import rebuild
from pumphouse.archive.snapshot import run_snapshot
from pumphouse.codec import row
from pumphouse.export.run import export_pb
from pumphouse.model.node import NodeState
from pumphouse.model.table import Job, TableInfo
from pumphouse.model.tso import Tso
from pumphouse.objectstore.file import FileStore
from pumphouse.objectstore.open import open_store
from pumphouse.registry.file import FileCluster
from pumphouse.settings import ArchiveSettings, SchemaSettings, Settings
from tests.support import formats
from tests.support.madearchive import MadeSource, column, table_info
from tests.support.pullpump import PullPump

TABLE = TableInfo.from_dict(table_info(7, "t", [column(1, "id", flag=3)]))


class History:
    """Job history: one table, made before genesis; then what a test adds."""

    def __init__(self) -> None:
        database = {
            "id": 2,
            "db_name": {"O": "d", "L": "d"},
            "charset": "utf8mb4",
            "collate": "utf8mb4_bin",
            "state": 5,
        }
        self.found = {}
        self.add(3, 1, 0, DBInfo=database)
        self.add(5, 3, 7, TableInfo=TABLE.raw)

    def add(self, job_id: int, type_: int, table_id: int, **binlog: object) -> None:
        self.found[job_id] = {
            "id": job_id, "type": type_, "state": 6, "schema_state": 5, "schema_id": 2, "table_id": table_id,
            "schema_name": "d", "query": "ddl", "start_ts": 1, "binlog": {"SchemaVersion": job_id, "FinishedTS": 2, **binlog},
        }  # fmt: skip

    def job(self, job_id: int) -> Job | None:
        return Job.from_dict(self.found[job_id]) if job_id in self.found else None

    def jobs(self, *, after_id: int = 0) -> Iterator[Job]:
        return (Job.from_dict(data) for job_id, data in sorted(self.found.items()) if job_id > after_id)


class _StatusApi(BaseHTTPRequestHandler):
    """TiDB's status API, of which a window asks one thing."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"Skipped": true, "SkippedCommitterCounter": 3}')

    def log_message(self, *_: object) -> None:
        pass


class Dump:
    """Three rows."""

    def barrier(self) -> nullcontext[None]:
        return nullcontext()

    def tables(self) -> list[tuple[str, TableInfo]]:
        return [("d", TABLE)]

    def batches(self, table: TableInfo) -> Iterator[list[bytes]]:
        yield [row.encode_insert(table, {1: n}) for n in range(3)]


def _pending(pump: PullPump, kind: str) -> tuple[Tso, Tso]:
    flag = {"orphan": 1, "late": 2}[kind]
    commit_ts = pump.transaction(flag=flag)
    start_ts = Tso(next(start for commit, start, *_ in pump.binlogs if commit == commit_ts))
    pump.pending[start_ts, commit_ts] = kind
    return start_ts, commit_ts


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archive]:
    """An archive in which everything happened that can: dump, DDL, duplicates, late commit, Go Pump, loss, drained Pump."""
    folder = tmp_path_factory.mktemp("archive")
    cluster, history = FileCluster(folder / "cluster"), History()
    api = ThreadingHTTPServer(("127.0.0.1", 0), _StatusApi)
    threading.Thread(target=api.serve_forever, daemon=True).start()
    settings = Settings(
        archive=ArchiveSettings(root=f"file://{folder}/root", pull_timeout_s=10, poll_interval_s=0.05),
        history=SchemaSettings(history=f"http://127.0.0.1:{api.server_port}"),
    )
    made = Archive(open_store(settings.archive), cluster.cluster_id())
    pumps = [
        PullPump(cluster, "one").start(),
        PullPump(cluster, "two").start(),
        PullPump(cluster, "go", go=True).start(),
    ]
    one, two, go = pumps
    one.empty("two")
    old = PullPump(cluster, "old-go", go=True).start()
    old.register(NodeState.OFFLINE)
    old.stop()
    two.sync_log = False
    two.register(NodeState.ONLINE)

    def snapshot() -> None:
        run_snapshot(made, cluster, cluster.tso(), settings, history)

    try:
        init_archive(made, cluster, history, dump=Dump(), settings=settings)
        one.transaction(rows=3)
        two.put(*one.binlogs[-1])
        two.transaction(table=8)
        go.transaction()
        history.add(9, 5, 7, TableInfo=table_info(7, "t", [column(1, "id", flag=3), column(2, "b")]))
        one.ddl(9, b"alter table t add b int")
        snapshot()
        rebuild(made)
        start_ts, commit_ts = _pending(one, "late")
        accept(made, cluster, "one", start_ts, commit_ts, "seen in the logs", who="ops")
        snapshot()
        history.add(11, 6, 7, TableInfo=TABLE.raw)
        one.ddl(11, b"alter table t drop b")
        two.stop()
        two.register(NodeState.OFFLINE)
        declare_lost(made, cluster, "two", "disk died", who="ops")
        go.register(NodeState.CLOSING)
        snapshot()
        go.register(NodeState.OFFLINE)
        go.stop()
        snapshot()
        rebuild(made)
        yield made
    finally:
        for pump in pumps:
            pump.stop()
        api.shutdown()
        api.server_close()


def _objects(archive: Archive, prefix: str) -> list[dict[str, object]]:
    return [json.loads(archive.store.get(each.key)) for each in archive.store.list(prefix)]


@pytest.mark.row("A3", "O7")
def test_genesis_is_as_the_page_says(archive: Archive) -> None:
    shown = formats.Shown()
    shown.check("genesis", *_objects(archive, "genesis.json"))
    # A Pump of genesis was not pulled yet, and a dump has no DDL.
    never = {"/pumps/*/drained", "/pumps/*/lost", "/pumps/*/last/commit_ts", "/pumps/*/last/sha256", "/pumps/*/last"}
    assert set(shown.missing("genesis")) <= never


@pytest.mark.row("A1", "O7")
def test_manifests_are_as_the_page_says_and_show_every_field(archive: Archive) -> None:
    shown = formats.Shown()
    manifests = _objects(archive, "windows/")
    assert len(manifests) >= 4
    for each in manifests:
        shown.check("manifest", each)
    assert shown.missing("manifest") == []


@pytest.mark.row("A2", "O7")
def test_declarations_are_as_the_page_says(archive: Archive) -> None:
    shown = formats.Shown()
    for each in _objects(archive, "declared/"):
        shown.check({"declared-lost": "declared-lost", "accepted-commit": "accepted-commit"}[str(each["kind"])], each)
    settled = _objects(archive, "settled/")
    assert {each["kind"] for each in settled} == {"settled-commit"}
    for each in settled:
        shown.check("accepted-commit", each)
    assert shown.missing("declared-lost") == shown.missing("accepted-commit") == []


@pytest.mark.row("S1", "O7")
def test_schema_objects_are_as_the_page_says(archive: Archive) -> None:
    shown = formats.Shown()
    found = _objects(archive, "schema/parts/")
    assert len(found) == 2
    for each in found:
        shown.check("schema-parts", each)
        shown.check("schema-parts", each | {"sequences": [7], "views": [9]})
    assert shown.missing("schema-parts") == []
    files = [each.key for each in archive.store.list("schema/jobs/")]
    assert len(files) == 2
    for key in files:
        formats.check_columns("schema-jobs", pq.ParquetFile(pa.BufferReader(archive.store.get(key))).schema_arrow)


def test_the_hint_is_as_the_page_says(archive: Archive) -> None:
    formats.check("head", *_objects(archive, "HEAD"))


@pytest.mark.row("A1", "A3")
def test_segments_bases_and_jobs_have_the_columns_of_the_page(archive: Archive) -> None:
    extend_index(archive, size=1, newest=0)
    for prefix, name in (("segments/", "segment"), ("base/", "segment"), ("ddl/", "ddl"), ("index/", "index")):
        keys = [each.key for each in archive.store.list(prefix)]
        assert keys, prefix
        for key in keys:
            file = pq.ParquetFile(pa.BufferReader(archive.store.get(key)))
            formats.check_columns(name, file.schema_arrow)
            codecs = {
                file.metadata.row_group(group).column(at).compression
                for group in range(file.metadata.num_row_groups)
                for at in range(file.metadata.num_columns)
            }
            assert codecs <= {"ZSTD"}


def test_the_notes_and_frames_of_exported_files_are_as_the_page_says(tmp_path: Path) -> None:
    source = MadeSource(tmp_path / "archive")
    source.create_table("t", [column(1, "id", flag=3)])
    since = source.genesis()
    with source.txn() as t:
        t.insert("t", id=1)
    source.cut()
    (note,) = export_pb(source.archive, FileStore(tmp_path / "out"), since=since, upto=None, tables=["d.t"]).notes
    formats.check("pb-file", json.loads((tmp_path / "out" / note.key).read_bytes()))
    data = (tmp_path / "out" / note.name).read_bytes()
    found = formats.read("pb-frame", data)
    assert found["length"] == len(data) - 16
    assert data[-4:] == google_crc32c.value(data[12:-4]).to_bytes(4, "little")


def test_every_object_has_a_name_of_the_page(archive: Archive) -> None:
    page = formats.PAGE.read_text()
    for each in archive.store.list(""):
        folder = each.key.split("/")[0]
        assert f"| `{folder}" in page, each.key
