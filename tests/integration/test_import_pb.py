"""Binlog files become an archive that has what their archive had: exported, imported, read and restored."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pumphouse.archive import layout
from pumphouse.archive.archive import Archive, clusters_at
from pumphouse.archive.losses import losses_of
from pumphouse.archive.manifest import AcceptedCommit, Declaration
from pumphouse.archive.verify import verify
from pumphouse.archive.view import read_view
from pumphouse.cli import cli
from pumphouse.codec import payload, row
from pumphouse.codec.columnar import DELETE, INSERT, UPDATE
from pumphouse.errors import ImportRefused, RestoreError, UsageError
from pumphouse.export.pbfiles import NOTES, Note, Origin, file_name
from pumphouse.export.pbframes import ddl_payload, framed
from pumphouse.export.run import export_pb
from pumphouse.file_import.run import Given, ImportReport, import_pb
from pumphouse.file_import.schema import DdlAt, FileDdl, FileSchema
from pumphouse.history.changes import Changed
from pumphouse.loader.report import silent
from pumphouse.model.binlog import MutationType
from pumphouse.model.table import TableInfo
from pumphouse.model.tso import MAX_TSO, Tso, compose
from pumphouse.objectstore.file import FileStore
from pumphouse.objectstore.open import open_store
from pumphouse.parts import Parts
from pumphouse.runs.history import told_changes
from pumphouse.settings import ArchiveSettings, Settings, TargetSettings
from tests.support import everytype, mariadb, pbmessages, rowreference
from tests.support.loading import restored
from tests.support.madearchive import MadeSource, column
from tests.support.motoserver import s3_server
from tests.support.recorded import DIRECTORY, Recorded, replayed, take_windows
from tests.tidb.chain import empty
from tests.tidb.contents import differences, target_contents

pytestmark = [
    pytest.mark.row("A6"),
    pytest.mark.timeout(900),
    # PyMySQL leaves the socket of each connection that fails: those before the shadow listens.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
START = compose(1_790_000_000_000)


def imported(files: Path, root: Path, **given: Any) -> ImportReport:
    """By the library."""
    more = {name: given.pop(name) for name in ("window_bytes", "most") if name in given}
    return import_pb(
        FileStore(files), FileStore(root), Given(**{"instead": {}, **given}), ArchiveSettings(root=f"file://{root}"),
        program="", tell=silent, **{"most": 1 << 20, **more},
    )  # fmt: skip


def archive_of(root: Path, report: ImportReport) -> Archive:
    archive = Archive(FileStore(root), report.cluster_id)
    assert [str(each) for each in verify(archive).problems] == []
    return archive


class Files:
    """A folder of files that is written by hand: frames with a tick between them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ts, self.number = folder, int(START), 0
        folder.mkdir()
        self.frames: list[bytes] = []

    def tick(self) -> int:
        self.ts += 1 << 18
        return self.ts

    def ddl(self, text: str, db: str = "") -> int:
        said = f"use `{db}`; {text};" if db else f"{text};"
        self.frames.append(framed(ddl_payload(self.tick(), said.encode())))
        return self.ts

    def txn(self, *events: Any) -> int:
        message = pbmessages.Binlog(tp=0, commit_ts=self.tick())
        message.dml_data.events.extend(events)
        self.frames.append(framed(message.SerializeToString()))
        return self.ts

    def end(self) -> Path:
        """End the file."""
        path = self.folder / file_name(self.number, START)
        path.write_bytes(b"".join(self.frames))
        self.frames, self.number = [], self.number + 1
        return path

    def noted(self, from_ts: int, to_ts: int) -> None:
        """End the file, as an export of (from_ts, to_ts] does."""
        number, path = self.number, self.end()
        data = path.read_bytes()
        note = Note(
            origin=Origin(cluster_id=7, archive_id="main"), number=number, name=path.name,
            digest=hashlib.sha256(data).hexdigest(), size=len(data), from_ts=Tso(from_ts), to_ts=Tso(to_ts),
            transactions=1, changes=1, ddls=1,
        )  # fmt: skip
        (self.folder / NOTES).mkdir(exist_ok=True)
        (self.folder / note.key).write_bytes(note.to_json())


def event(info: TableInfo, op: int, *values: dict[int, Any]) -> Any:
    encode: dict[int, Callable[..., bytes]] = {
        INSERT: row.encode_insert, UPDATE: row.encode_update, DELETE: row.encode_delete,
    }  # fmt: skip
    return pbmessages.event("every", info, info, op, encode[op](info, *values, handle=1))


def changes_of(archive: Archive) -> Iterator[tuple[str, MutationType, Any]]:
    """Every row change as the codec's reference reads it."""
    timeline = read_view(archive).timeline
    tables = {version.table.id: version.table for version in timeline.tables_at(MAX_TSO)}
    read = {0: rowreference.decode_insert, 1: rowreference.decode_update, 4: rowreference.decode_delete}
    for window in archive.read([each.key for each in archive.store.list(layout.WINDOWS)]):
        for segment in window.segments:
            for batch in archive.segment_batches(window, segment):
                for data in batch.column("payload").to_pylist():
                    for table_id, kind, image in rowreference.row_changes(payload.parse(data).prewrite_value):
                        yield tables[table_id].name, kind, read[int(kind)](tables[table_id], image)


@pytest.fixture(autouse=True)
def _sockets() -> Iterator[None]:
    """Those of the shadow's start go before another file's test."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def history() -> Iterator[TargetSettings]:
    """Has the DDL jobs."""
    with mariadb.in_memory() as settings:
        yield settings


@pytest.mark.mariadb("the recorded DDLs are those that a MariaDB takes as they are")
def test_a_real_history_comes_back_from_its_files_at_each_moment(
    history: TargetSettings, server: TargetSettings, tmp_path: Path
) -> None:
    recorded, files, root = Recorded.read(DIRECTORY / "seed-10.tar.xz"), tmp_path / "files", tmp_path / "imported"
    moments = list(recorded.moments.items())[:2]  # a RECOVER TABLE comes behind them
    with replayed(recorded, tmp_path, history=history, target=server) as settings:
        take_windows(recorded, settings)
        with Parts(settings) as parts:
            export_pb(parts.archive, FileStore(files), since=recorded.genesis, upto=moments[-1][0], file_bytes=20_000)
            report = imported(files, root, window_bytes=30_000)
            archive = archive_of(root, report)
            assert (report.after, report.upto, report.windows > 1) == (recorded.genesis, moments[-1][0], True)
            there = Settings.model_validate(
                {
                    "archive": {"root": f"file://{root}"}, "restore_target": server, "target": server,
                    "load": {"engine": "local"},
                }
            )  # fmt: skip
            for table in sorted({version.name for version in read_view(archive).timeline.tables_at(report.upto)}):
                if not moments[-1][1].get(".".join(table)):
                    continue
                told = [_told(each, ".".join(table), report) for each in (settings, there)]
                assert told[0] == told[1], table
    for moment, contents in moments:
        empty(server)
        restored(there, to=moment, dry_run=False)
        assert differences(contents, target_contents(server, contents)) == [], moment
    export_pb(archive, FileStore(tmp_path / "again"), since=report.after, upto=None, file_bytes=20_000)
    before, after = ({each.commit_ts: each for each in _rows(tmp_path / name)} for name in ("files", "again"))
    # An update that moves a clustered key is a delete and an insert then.
    moved = {ts for ts in before if before[ts] != after[ts]}
    assert before.keys() == after.keys()
    assert len(moved) <= 1
    assert not imported(files, root, window_bytes=30_000).windows


def _rows(folder: Path) -> list[Any]:
    return [each for each in pbmessages.binlogs(folder) if each.tp == 0]


def _told(settings: Settings, table: str, report: ImportReport) -> list[tuple[int, str]]:
    """Rows that went and came, by commit ts: an update that moves a clustered key is a delete and an insert."""
    found = []
    with told_changes(settings, table, since=report.after, upto=report.upto) as told:
        for each in told.found:
            if isinstance(each, Changed):
                # Generated ones are plain ones where a target cannot compute them as a TiDB does.
                kept = [column.name for column in each.form.version.table.public_columns if not column.generated]
                rows = (side.select(kept).to_pylist() for side in (each.old, each.new))
                sides = zip(each.commit_ts, each.op, *rows, strict=True)
                for ts, op, old, new in sides:
                    found += [(int(ts), f"- {old}")] if op != INSERT else []
                    found += [(int(ts), f"+ {new}")] if op != DELETE else []
    return sorted(found)


def test_every_type_and_key_has_the_values_that_the_files_say(tmp_path: Path) -> None:
    files = Files(tmp_path / "files")
    for text in everytype.TABLES:
        files.ddl(text)
    files.end()
    made = archive_of(tmp_path / "schema", imported(files.folder, tmp_path / "schema"))
    infos = [version.table for version in read_view(made).timeline.tables_at(MAX_TSO)]
    assert len(infos) == 5
    wanted: list[tuple[str, MutationType, Any]] = []
    for number in range(1, 34):
        for info in infos:
            values = everytype.row(info, number)
            generated = {column.id: 1 for column in info.public_columns if column.generated}
            files.txn(event(info, INSERT, values | generated))
            wanted.append((info.name, MutationType.INSERT, values))
            if number % 3 == 0:
                keys = {info.columns[part.offset].id for part in info.primary_key()}
                new = everytype.row(info, number + 1) | {each: values[each] for each in keys}
                files.txn(event(info, UPDATE, values | generated, new | generated))
                wanted.append((info.name, MutationType.UPDATE, (values, new)))
            if number % 5 == 0:
                files.txn(event(info, DELETE, values | generated))
                wanted.append((info.name, MutationType.DELETE_ROW, values))
        if number % 11 == 0:
            files.end()
    with pytest.raises(ImportRefused, match=r"every\.types\.ts is a TIMESTAMP") as refused:
        imported(files.folder, tmp_path / "root")
    assert "--time-zone" in refused.value.hint
    report = imported(files.folder, tmp_path / "root", time_zone="UTC", window_bytes=4000)
    assert report.windows == 3
    assert report.changes == len(wanted)
    found = list(changes_of(archive_of(tmp_path / "root", report)))
    generated_ids = {info.name: {c.id for c in info.columns if c.generated} for info in infos}

    def plain(name: str, values: Any) -> Any:
        if isinstance(values, tuple):
            return tuple(plain(name, each) for each in values)
        return {key: value for key, value in values.items() if key not in generated_ids[name]}

    def full(name: str, values: Any) -> Any:
        """What a row lacks is NULL."""
        if isinstance(values, tuple):
            return tuple(full(name, each) for each in values)
        return {key: _json(value) for key, value in values.items()}

    assert [(n, k, full(n, plain(n, v))) for n, k, v in found] == [(n, k, full(n, plain(n, v))) for n, k, v in wanted]


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) and value.startswith("{") else value


def test_what_the_files_lack_is_asked_for_and_what_nobody_knows_is_refused(tmp_path: Path) -> None:
    files = Files(tmp_path / "files")
    files.number = 4
    info = TableInfo.from_dict(_table())
    files.txn(event(info, INSERT, {1: 1, 2: b"one"}))
    added = files.ddl("ALTER TABLE t ADD COLUMN at DATETIME DEFAULT CURRENT_TIMESTAMP", "every")
    files.end()
    with pytest.raises(UsageError, match="those before it are not there") as asked:
        imported(files.folder, tmp_path / "root")
    assert "--schema" in asked.value.hint
    with pytest.raises(ImportRefused, match=r"no DDL in the files made every\.t"):
        imported(files.folder, tmp_path / "root", schema="CREATE DATABASE every;\n")
    assert not clusters_at(ArchiveSettings(root=f"file://{tmp_path / 'root'}"))  # nothing is begun
    schema = (
        "-- as it was\nCREATE DATABASE every;\nUSE every;\nCREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(64));\n"
    )
    with pytest.raises(ImportRefused, match=r"what rows of every\.t are behind it is not known") as refused:
        imported(files.folder, tmp_path / "root", schema=schema)
    assert f"--ddl {added}=" in refused.value.hint
    instead = {DdlAt(Tso(added)): "ALTER TABLE t ADD COLUMN at DATETIME DEFAULT '2026-01-01 00:00:00'"}
    report = imported(files.folder, tmp_path / "root", schema=schema, instead=instead)
    assert (report.changes, report.base) == (1, False)
    archive = archive_of(tmp_path / "root", report)
    ((name, kind, values),) = changes_of(archive)
    assert (name, kind, list(values.values())) == ("t", MutationType.INSERT, [1, b"one"])
    with pytest.raises(UsageError, match="begun with another schema"):
        imported(files.folder, tmp_path / "root", schema=schema, instead=instead, empty=True)
    whole = imported(files.folder, tmp_path / "empty", schema=schema, instead=instead, empty=True)
    assert whole.base
    # Other files with the same begin.
    files.number, files.ts = 4, int(START)
    files.txn(event(info, INSERT, {1: 1, 2: b"one"}))
    files.ddl("DROP TABLE t", "every")
    files.end()
    with pytest.raises(ImportRefused, match="not the files that it was begun with"):
        imported(files.folder, tmp_path / "root", schema=schema)


def _table() -> dict[str, Any]:
    from tests.support.madearchive import column, table_info

    return table_info(1, "t", [column(1, "id", flag=3), column(2, "name", 15)])


def _rows_of_one_table(folder: Path) -> Files:
    """3,000 rows in three files."""
    files = Files(folder)
    files.ddl("CREATE DATABASE every")
    files.ddl("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(64))", "every")
    info = TableInfo.from_dict(_table())
    for number in range(3000):
        files.txn(event(info, INSERT, {1: number, 2: b"x" * 60}))
        if number % 1000 == 999:
            files.end()
    return files


def _ids(archive: Archive) -> list[int]:
    return [values[1] for _, _, values in changes_of(archive)]


_CHILD = """
import sys
from pathlib import Path
from tests.integration.test_import_pb import imported
print(imported(Path(sys.argv[1]), Path(sys.argv[2]), window_bytes=20_000).windows)
"""


def _started(files: Files, root: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", _CHILD, str(files.folder), str(root)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))


def _windows(root: Path) -> int:
    return len(list(root.glob("*/windows/**/*.json")))


def test_a_command_that_is_killed_anywhere_goes_on_to_the_same_archive(tmp_path: Path) -> None:
    files, root = _rows_of_one_table(tmp_path / "files"), tmp_path / "root"
    words = [sys.executable, "-m", "pumphouse", "archive", "import", "--format", "pb", str(files.folder)]
    words += ["--archive", f"file://{root}"]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    while child.poll() is None and not list(root.glob("*/genesis.json")):
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    # One file of three, then the others.
    (files.folder / "kept").mkdir()
    later = sorted(files.folder.glob("binlog-*"))[1:]
    for path in later:
        path.rename(path.parent / "kept" / path.name)
    for _ in range(2):
        some, slow = _windows(root), _started(files, root)
        while slow.poll() is None and _windows(root) <= some:
            time.sleep(0.01)
        slow.send_signal(signal.SIGKILL)
        slow.communicate()
    assert _windows(root)
    first = imported(files.folder, root, window_bytes=20_000)
    for path in later:
        (path.parent / "kept" / path.name).rename(path)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "extended the archive" in done.stdout
    assert _ids(archive_of(root, first)) == list(range(3000))


def test_two_at_once_make_one_archive(tmp_path: Path) -> None:
    files, root = _rows_of_one_table(tmp_path / "files"), tmp_path / "root"
    ended = []
    for each in [_started(files, root) for _ in range(2)]:
        _, said = each.communicate()
        ended.append(each.returncode)
        assert not each.returncode or "ManifestConflict" in said, said
    assert 0 in ended
    report = imported(files.folder, root, window_bytes=20_000)
    assert not report.windows
    assert _ids(archive_of(root, report)) == list(range(3000))


def test_files_of_a_bucket_make_an_archive_that_every_command_reads(tmp_path: Path) -> None:
    files, root = _rows_of_one_table(tmp_path / "files"), tmp_path / "root"
    files.end()  # empty: its Drainer has just begun it
    with s3_server() as s3:
        settings = s3.archive_settings()
        store = open_store(settings)
        for path in files.folder.iterdir():
            store.put(path.name, path.read_bytes())
        env = os.environ | {
            "PUMPHOUSE_ARCHIVE__S3_ENDPOINT": settings.s3_endpoint or "",
            "PUMPHOUSE_ARCHIVE__S3_ACCESS_KEY": settings.s3_access_key or "",
            "PUMPHOUSE_ARCHIVE__S3_SECRET_KEY": settings.s3_secret_key.get_secret_value() if settings.s3_secret_key else "",
        }  # fmt: skip

        def told(*words: str) -> str:
            done = subprocess.run(
                [sys.executable, "-m", "pumphouse", *words], capture_output=True, text=True, check=False, env=env
            )
            assert done.returncode == 0, (words, done.stderr)
            return done.stdout

        said = json.loads(
            told("archive", "import", "--format", "pb", settings.root, "--archive", f"file://{root}", "--json")
        )
    assert (said["files"], said["changes"], said["base"]) == (4, 3000, True)
    where = ["--set", f"archive.root=file://{root}", "--set", f"archive.cluster_id={said['cluster_id']}"]
    assert "every.t" in told(*where, "archive", "find", "--from", str(said["after"]), "--table", "every.t")
    assert told(*where, "archive", "verify")
    assert told(*where, "archive", "ls")
    assert "CREATE TABLE" in told(*where, "schema", "show", "every.t", "--sql")
    assert _ids(
        archive_of(root, ImportReport(**{name: said[name] for name in ImportReport.__slots__ if name in said}))
    ) == list(range(3000))


def test_what_is_given_otherwise_than_at_first_is_refused(tmp_path: Path) -> None:
    files, root = Files(tmp_path / "files"), tmp_path / "root"
    files.ddl("CREATE DATABASE every")
    files.ddl("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(64))", "every")
    added = files.ddl("ALTER TABLE t ADD COLUMN at TIMESTAMP NULL", "every")
    files.end()
    imported(files.folder, root)
    files.ddl("CREATE TABLE u (id INT PRIMARY KEY)", "every")
    files.end()
    report = imported(files.folder, root, time_zone="Asia/Shanghai")
    with pytest.raises(UsageError, match=r"as of Asia/Shanghai, and not of UTC"):
        imported(files.folder, root, time_zone="UTC")
    assert not imported(files.folder, root, time_zone="Asia/Chongqing").windows  # the same by another name
    with pytest.raises(ImportRefused, match="the archive has another DDL"):
        imported(files.folder, root, instead={DdlAt(Tso(added)): ""})
    with pytest.raises(UsageError, match=f"--ddl {added + 1}: no DDL of the files was committed"):
        imported(files.folder, root, instead={DdlAt(Tso(added + 1)): ""})
    info = TableInfo.from_dict(_stamped())
    files.txn(event(info, INSERT, {1: 1, 2: b"one", 3: "2026-01-01 08:00:00"}))
    files.end()
    imported(files.folder, root)
    assert [values for _, _, values in changes_of(archive_of(root, report))] == [
        {1: 1, 2: b"one", 3: "2026-01-01 00:00:00"}
    ]


def _stamped() -> dict[str, Any]:
    from tests.support.madearchive import column, table_info

    return table_info(1, "t", [column(1, "id", flag=3), column(2, "name", 15), column(3, "at", 7)])


def test_a_ddl_of_several_jobs_just_behind_the_archives_end_is_refused_and_taken_in_one_run(tmp_path: Path) -> None:
    """`archive find` says where to end just before a TRUNCATE: one below its ts, where the import puts its DROP."""
    files, root = Files(tmp_path / "files"), tmp_path / "root"
    files.ddl("CREATE DATABASE every")
    files.ddl("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(64))", "every")
    end = files.ts + (1 << 18) - 1
    files.noted(START, end)
    assert imported(files.folder, root).upto == end
    assert files.ddl("TRUNCATE TABLE t", "every") == end + 1
    files.noted(end, files.ts)
    with pytest.raises(ImportRefused, match=f"becomes 2 jobs, and {end} to {end} is taken") as refused:
        imported(files.folder, root)
    assert "Import all files at once, into another place" in refused.value.hint
    report = imported(files.folder, tmp_path / "again")
    ddls = read_view(archive_of(tmp_path / "again", report)).timeline.ddls(Tso(end - 1), report.upto)
    assert [each.action.name for each in ddls] == ["DROP_TABLE", "CREATE_TABLE"]
    assert not imported(files.folder, tmp_path / "again").windows


def test_what_an_archive_lost_is_lost_in_the_one_that_its_files_make(server: TargetSettings, tmp_path: Path) -> None:
    source, files, root = MadeSource(tmp_path / "archive"), FileStore(tmp_path / "files"), tmp_path / "root"
    since = source.genesis()
    source.create_table("t", [column(1, "id", flag=3)])
    source.rewrite_job(lambda raw: raw.update(query="CREATE TABLE t (id INT PRIMARY KEY)"))
    with source.txn() as t:
        t.insert("t", id=1)
    lost = Declaration(
        node_id="pump-9", incarnation="i", from_ts=since, to_ts=Tso(source.ts), reason="its disk", who="me"
    )
    orphans = [
        AcceptedCommit(
            node_id="pump-8", start_ts=Tso(since + at), commit_ts=Tso(since + 9), kind=AcceptedCommit.ORPHAN,
            reason=f"orphan {at}", who="me",
        )
        for at in (1, 2)
    ]  # fmt: skip
    source.cut(declared=(lost,), accepted=tuple(orphans), binlog_skipped=True)
    middle = source.archive.end()
    exported = export_pb(source.archive, files, since=since, upto=None)
    given = {"schema": "CREATE DATABASE d;", "empty": True}
    first = imported(tmp_path / "files", root, **given)
    assert first.losses.declared[0] == lost
    assert [each.reason for each in first.losses.declared[1:]] == [
        f"orphan transaction {since + 1}: orphan 1; orphan transaction {since + 2}: orphan 2"
    ]
    assert first.losses.binlog_skipped == exported.losses.binlog_skipped
    with source.txn() as t:
        t.insert("t", id=2)
    source.cut()
    export_pb(source.archive, files, since=None, upto=None)
    report = imported(tmp_path / "files", root, **given)
    assert report.losses == first.losses
    archive = archive_of(root, report)
    assert report.base
    assert not losses_of(archive.windows(), after=middle, upto=report.upto)
    settings = Settings.model_validate(
        {"archive": {"root": f"file://{root}"}, "restore_target": server, "target": server, "load": {"engine": "local"}}
    )
    with pytest.raises(RestoreError, match="its disk"):
        restored(settings, to=report.upto, dry_run=False)
    restored(settings, to=report.upto, dry_run=False, accept_losses=True)


def test_an_import_that_was_killed_goes_on_with_files_that_know_of_another_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, root = MadeSource(tmp_path / "archive"), tmp_path / "root"
    since = source.genesis()
    source.create_table("t", [column(1, "id", flag=3)])
    source.rewrite_job(lambda raw: raw.update(query="CREATE TABLE t (id INT PRIMARY KEY)"))
    for at in (1, 2):  # two transactions of one commit ts, of which the second is known as lost only later
        with source.txn() as t:
            t.insert("t", id=at)
        orphan = AcceptedCommit(
            node_id="pump-8", start_ts=Tso(since + at), commit_ts=Tso(since + 9), kind=AcceptedCommit.ORPHAN,
            reason=f"orphan {at}", who="me",
        )  # fmt: skip
        source.cut(accepted=(orphan,))
        export_pb(source.archive, FileStore(tmp_path / f"files {at}"), since=since, upto=None)
    given = {"schema": "CREATE DATABASE d;", "empty": True}

    def killed(*_: object) -> None:
        raise KeyboardInterrupt  # behind the loss, before its window

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Archive, "publish", killed)
        imported(tmp_path / "files 1", root, **given)
    report = imported(tmp_path / "files 2", root, **given)
    archive = archive_of(root, report)
    (lost,) = losses_of(archive.windows(), after=since, upto=report.upto).declared
    assert (lost.to_ts, lost.reason) == (since + 9, f"orphan transaction {since + 1}: orphan 1")
    assert verify(archive).problems == []


def test_a_drainers_default_is_text_in_columns_of_every_kind(tmp_path: Path) -> None:
    """Of a column that the row lacks, as while it is being dropped: the schema has the default as text."""
    files = Files(tmp_path / "files")
    files.ddl("CREATE DATABASE every")
    wanted: list[tuple[str, int, bytes, Any]] = [
        ("INT", 3, b"-5", -5),
        ("INT", 3, b"+5", 5),
        ("BIGINT", 8, b"-9223372036854775808", -(1 << 63)),
        ("BIGINT UNSIGNED", 8, b"18446744073709551615", (1 << 64) - 1),
        ("DOUBLE", 5, b"-1.5e3", -1500.0),
        ("FLOAT", 4, b"0.1", 0.10000000149011612),
        ("YEAR", 13, b"2020", 2020),
        ("DATETIME", 12, b"2020-02-01", "2020-02-01 00:00:00"),
        ("DECIMAL(5,2)", 246, b"5", "5.00"),
    ]
    columns = ", ".join(f"c{at} {declared}" for at, (declared, *_) in enumerate(wanted))
    files.ddl(f"CREATE TABLE t (id INT PRIMARY KEY, {columns})", "every")
    integer = TableInfo.from_dict(_table()).columns[0]
    for number in range(2):
        row = [
            ("id", 3, number),
            *((f"c{at}", tp, text if number else None) for at, (_, tp, text, _) in enumerate(wanted)),
        ]
        own = [
            pbmessages.Column(name=name, tp=bytes([tp]), value=pbmessages.datum(integer, value)).SerializeToString()
            for name, tp, value in row
        ]
        files.txn(pbmessages.Event(schema_name="every", table_name="t", tp=0, row=own))
    files.end()
    report = imported(files.folder, tmp_path / "root")
    first, second = [list(values.values()) for _, _, values in changes_of(archive_of(tmp_path / "root", report))]
    assert first == [0, *(None for _ in wanted)]
    assert second == [1, *(value for *_, value in wanted)]


def test_each_ddl_of_a_batch_may_have_another_statement(tmp_path: Path) -> None:
    """A batch of tables is one DDL a table, all of one commit ts: one statement stands for one of them."""
    files = Files(tmp_path / "files")
    files.ddl("CREATE DATABASE every")
    ts = Tso(files.tick())
    for text in ("CREATE TABLE a (id INT PRIMARY KEY, v NO_TYPE)", "CREATE TABLE b (id INT PRIMARY KEY)"):
        files.frames.append(framed(ddl_payload(ts, f"use `every`; {text};".encode())))
    files.end()
    with pytest.raises(ImportRefused, match="CREATE TABLE a ") as refused:
        imported(files.folder, tmp_path / "root")
    assert f"--ddl {ts}#1=STATEMENT" in refused.value.hint
    for at in (DdlAt(ts), DdlAt(ts, 3)):
        with pytest.raises(UsageError, match=f"--ddl {at}: 2 DDLs of the files were committed at") as wrong:
            imported(files.folder, tmp_path / "root", instead={at: ""})
        assert f"{ts}#1, {ts}#2" in wrong.value.hint
    for statement, names in (("", ["b"]), ("CREATE TABLE every.a (id INT PRIMARY KEY)", ["a", "b"])):
        root = tmp_path / f"root{len(names)}"
        words = ["archive", "import", "--format", "pb", str(files.folder), "--archive", f"file://{root}", "--json"]
        done = CliRunner().invoke(cli, [*words, "--ddl", f"{ts}#1={statement}"])
        assert done.exit_code == 0, done.output
        archive = Archive(FileStore(root), json.loads(done.stdout)["cluster_id"])
        assert sorted(each.table.name for each in read_view(archive).timeline.tables_at(MAX_TSO)) == names


# As mariadb-dump --no-data --skip-triggers --databases writes it, without most comments.
_DUMPED = """\
/*M!999999\\- enable the sandbox mode */
-- MariaDB dump 10.19

/*!40101 SET NAMES utf8mb4 */;
/*!40014 SET @OLD_FOREIGN_KEY_CHECKS=@@FOREIGN_KEY_CHECKS, FOREIGN_KEY_CHECKS=0 */;
CREATE DATABASE /*!32312 IF NOT EXISTS*/ `dumped` /*!40100 DEFAULT CHARACTER SET latin1 COLLATE latin1_swedish_ci */;

USE `dumped`;

--
-- Table structure for table `a`
--

DROP TABLE IF EXISTS `a`;
CREATE TABLE `a` (
  `id` int(11) NOT NULL,
  PRIMARY KEY (`id`),
  CONSTRAINT `to_b` FOREIGN KEY (`id`) REFERENCES `b` (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci;
DROP TABLE IF EXISTS `b`;
CREATE TABLE `b` (
  `id` int(11) NOT NULL COMMENT ';',
  PRIMARY KEY (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci;
SET character_set_client = utf8mb4;
/*!50001 CREATE VIEW `v` AS SELECT
 NULL AS `id` */;
/*!50001 DROP VIEW IF EXISTS `v`*/;
/*!50001 CREATE ALGORITHM=UNDEFINED */
/*!50013 DEFINER=`root`@`localhost` SQL SECURITY DEFINER */
/*!50001 VIEW `v` AS select `b`.`id` AS `id` from `b` */;
/*!40014 SET FOREIGN_KEY_CHECKS=@OLD_FOREIGN_KEY_CHECKS */;

-- Dump completed
"""


def test_a_ddl_that_would_be_followed_wrongly_is_refused(tmp_path: Path) -> None:
    def ddl(text: str, db: str = "") -> FileDdl:
        said = f"use `{db}`; {text};" if db else f"{text};"
        return FileDdl(at=DdlAt(START), text=said.encode(), place="binlog-0000000000000000, byte 7")

    with FileSchema.start(tmp_path / "shadow", "", {}) as schema:
        schema.apply(ddl("CREATE DATABASE every"))
        schema.apply(ddl("CREATE TABLE `T` (id INT PRIMARY KEY)", "every"))
        for number, text in enumerate(
            (
                "CREATE TABLE ci{} (a CHAR(1)) COLLATE=utf8mb4_general_ci DEFAULT CHARSET=utf8mb4",
                "CREATE TABLE ci{} (a CHAR(1)) CHARSET=utf8mb4 COMMENT='x' COLLATE=utf8mb4_general_ci",
                "CREATE TABLE ci{} (a CHAR(1) CHARACTER SET utf8mb4 NOT NULL COLLATE utf8mb4_general_ci)",
            )
        ):
            schema.apply(ddl(text.format(number), "every"))
            assert schema.tables["every", f"ci{number}"].columns[0].type.collate == "utf8mb4_general_ci"
        schema.apply(ddl("CREATE DATABASE ci COLLATE utf8mb4_general_ci CHARACTER SET utf8mb4"))
        for text, why in (
            ("CREATE TABLE t (id INT)", "it names no database"),
            ("USE elsewhere;\nCREATE TABLE t (id INT);\n", "no DDL made the database elsewhere"),
        ):
            with pytest.raises(ImportRefused, match=f"--schema, statement .*{why}") as refused:
                schema.begin(text, START, "--schema")
            assert "behind CREATE DATABASE and USE" in refused.value.hint
        schema.begin(
            "CREATE DATABASE e; /* a; */ USE e; -- b;\nCREATE TABLE u (a INT COMMENT ';\n');", START, "--schema"
        )
        assert ("e", "u") in schema.tables
        schema.begin(_DUMPED, START, "--schema")
        assert {name for db, name in schema.tables if db == "dumped"} == {"a", "b"}
        for text, number in (
            ("'x' ALTER TABLE e.u ADD COLUMN y INT;\n", 1),
            ("SET NAMES utf8;\n`x` ALTER TABLE e.u ADD COLUMN y INT;\n", 2),
            ("123 foo;\n", 1),
            ("USE e\nALTER TABLE u ADD COLUMN y INT;\n", 1),
            ("SET NAMES utf8; ALTER TABL e.u ADD COLUMN role INT;\n", 2),
        ):
            with pytest.raises(ImportRefused, match=f"--schema, statement {number}: .* none that is known here"):
                schema.begin(text, START, "--schema")
        for text, db, why in (
            ("use e; ALTER TABLE u ADD COLUMN y INT", "", "is none that is known here"),
            ("SET @a = 1; ALTER TABLE u ADD COLUMN y INT", "e", "it is more than one statement"),
            ("RECOVER TABLE t", "every", "is none that is known here"),
            ("FLASHBACK TABLE t TO u", "every", "is none that is known here"),
            ("DROP TABLE IF EXISTS t", "every", "every.t is still there"),
            ("DROP TABLE t", "every", "every.t is still there"),
            ("DROP DATABASE IF EXISTS EVERY", "", "every is still there"),
            ("CREATE TABLE t (id INT)", "elsewhere", "no DDL made the database elsewhere"),
            ("ALTER TABLE `T` ADD COLUMN c TIMESTAMP DEFAULT '2026-01-01 00:00:00'", "every", "moments"),
        ):
            with pytest.raises(ImportRefused, match=f"binlog-0000000000000000, byte 7: .*{why}") as refused:
                schema.apply(ddl(text, db))
            assert f"--ddl {START}=" in refused.value.hint


def test_the_rest_of_a_drop_of_several_tables_takes_none_that_was_made_again(tmp_path: Path) -> None:
    """TiDB writes the statement once for each of its tables, and others may come between."""
    place, drop = "binlog-0000000000000000, byte 7", b"use `d`; DROP TABLE a, b;"

    def ddl(text: bytes, number: int) -> FileDdl:
        return FileDdl(at=DdlAt(Tso(START + number)), text=text, place=place)

    begin = (b"CREATE DATABASE d;", b"use `d`; CREATE TABLE a (id INT);", b"use `d`; CREATE TABLE b (id INT);", drop)
    for number, instead in enumerate(({}, {DdlAt(Tso(START + 5)): ""}, {DdlAt(Tso(START + 5)): "DROP TABLE d.a"})):
        with FileSchema.start(tmp_path / str(number), "", instead) as schema:
            for at, text in enumerate(begin):
                jobs = schema.apply(ddl(text, at))
            assert len(jobs) == 2
            schema.apply(ddl(begin[1], 4))
            if instead:
                schema.apply(ddl(drop, 5))
                assert (("d", "a") in schema.tables) is (instead[DdlAt(Tso(START + 5))] == "")
                continue
            with pytest.raises(ImportRefused, match=r"d\.a was made again .* is this the rest of it\?") as refused:
                schema.apply(ddl(drop, 5))
            assert f"--ddl {START + 5}=" in refused.value.hint
            assert ("d", "a") in schema.tables
    with FileSchema.start(tmp_path / "ordinary", "", {}) as schema:
        for at, text in enumerate((*begin, drop, *begin[1:], drop)):
            schema.apply(ddl(text, at))
        assert not schema.tables
