"""Tables at a moment as CSV and Parquet: DuckDB, pandas and pyarrow read what the source had then, and nothing mixes."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from pumphouse.archive.document import dump
from pumphouse.client import ResolverServer
from pumphouse.client.resolver import PENDING
from pumphouse.errors import ManifestConflict, StoreError, UnknownTable, UsageError
from pumphouse.history.files import ExportedTable, FileFormat, TablesReport, export_tables
from pumphouse.model.table import MysqlType
from pumphouse.model.tso import Tso
from pumphouse.objectstore.base import ObjectStore
from pumphouse.objectstore.file import FileStore
from pumphouse.objectstore.open import open_store
from pumphouse.registry.file import FileCluster
from pumphouse.settings import LoadSettings
from tests.integration.test_base_readable import _ODD
from tests.integration.test_schema_import_stream import _Server, config_of, run, write_rows
from tests.support import everytype, formats, mariadb
from tests.support.bases import folded
from tests.support.madearchive import MadeSource, column
from tests.support.motoserver import s3_server
from tests.support.pumpserver import PumpServer

pytestmark = pytest.mark.row("A6")
TABLES = ("types", "composite", "keyless", "words", "ranges", "odd")


@pytest.mark.mariadb("zero dates in a column without a default, and what a wrong ENUM becomes")
@pytest.mark.timeout(300)
def test_others_read_every_type_as_the_source_had_it_at_the_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FileCluster(tmp_path / "cluster")
    with mariadb.directory_in_memory() as directory, mariadb.server_in(directory / "source") as source:
        (tmp_path / "pumphouse.toml").write_text(config_of(tmp_path, source=source))
        monkeypatch.chdir(tmp_path)
        server = _Server(source)
        server.sql("SET time_zone = '+00:00'", *everytype.TABLES, *_ODD)
        with PumpServer(tmp_path, cluster), ResolverServer(cluster, "app", [b"app/"], lambda *_: PENDING):
            run("schema", "import")
            run("archive", "init")
            write_rows(cluster, source, seed=1)
            run("archive", "dump")
            write_rows(cluster, source, seed=2)
            moment = cluster.tso()
            expected = {table: rows_of(server, table) for table in TABLES}
            write_rows(cluster, source, seed=3)
            run("snapshot")
        for form in ("parquet", "csv"):
            done = json.loads(run("archive", "export", "--format", form, "--table", "EVERY.*", "--at", str(moment),
                                  "--json", form))  # fmt: skip
            assert {each["name"] for each in done["tables"]} == {f"every.{table}" for table in TABLES}
    for table in TABLES:
        assert expected[table].total() > 40
        parquet, csv = f"{tmp_path}/parquet/every.{table}.*.parquet", f"{tmp_path}/csv/every.{table}.*.csv"
        for read, files in ((by_duckdb, parquet), (by_pandas, parquet), (csv_by_duckdb, csv), (csv_by_pyarrow, csv)):
            assert read(files) == expected[table], (read, table)
    with duckdb.connect() as duck:
        odd = duck.execute(f"SELECT _exact FROM '{tmp_path}/parquet/every.odd.*.parquet' WHERE id = 1").fetchall()
    assert odd == [({"d": "0000-00-00", "t": "2020-00-01 00:00:00"},)]


def rows_of(server: _Server, table: str) -> Counter[tuple[str | None, ...]]:
    """Rows of a table, of the columns that a binlog has."""
    found = server.query(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = 'every' AND "
        f"table_name = '{table}' AND extra NOT LIKE '%GENERATED%' ORDER BY ordinal_position"
    )
    how = {"bit": "`{}` + 0", "float": "`{}` + 0e0", "time": "CAST(`{}` AS CHAR)"}
    names = ", ".join(how.get(kind, "`{}`").format(name) for name, kind in found)
    return Counter(tuple(map(said, row)) for row in server.query(f"SELECT {names} FROM every.{table}"))


def said(value: Any) -> str | None:
    """Equal values in equal words, whoever has read them."""
    if value is None or value is pd.NA or value is pd.NaT:
        return None
    if isinstance(value, dt.datetime):
        return said(f"{value:%Y-%m-%d %H:%M:%S.%f}")
    if isinstance(value, bytes | bytearray):
        return f"0x{value.hex()}"
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    text = str(value)
    if re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+", text):
        return text.rstrip("0").rstrip(".")
    if re.fullmatch(r"-?\d+(\.\d+)?e\+\d+", text):
        return said(float(text))
    return json.dumps(json.loads(text), sort_keys=True) if text.startswith("{") else text


def by_duckdb(files: str) -> Counter[tuple[str | None, ...]]:
    with duckdb.connect() as duck:
        duck.execute("SET TimeZone = 'UTC'")
        found = duck.execute(f"SELECT * FROM '{files}'").fetchall()
    return Counter(told(row[:-1], names_of(files), row[-1] or {}) for row in found)


def by_pandas(files: str) -> Counter[tuple[str | None, ...]]:
    frame = pd.concat([pd.read_parquet(each, dtype_backend="pyarrow") for each in paths(files)]).astype(object)
    exact = [{} if each is None or each is pd.NA else dict(each) for each in frame.pop("_exact")]
    rows = frame.itertuples(index=False, name=None)
    return Counter(told(row, list(frame), odd) for row, odd in zip(rows, exact, strict=True))


def told(row: Iterable[Any], names: list[str], exact: dict[str, str]) -> tuple[str | None, ...]:
    return tuple(said(exact.get(name, value)) for name, value in zip(names, row, strict=True))


def csv_by_duckdb(files: str) -> Counter[tuple[str | None, ...]]:
    with duckdb.connect() as duck:
        read = f"read_csv('{files}', all_varchar = true, allow_quoted_nulls = false)"
        return Counter(tuple(map(said, row)) for row in duck.execute(f"SELECT * FROM {read}").fetchall())


def csv_by_pyarrow(files: str) -> Counter[tuple[str | None, ...]]:
    names = names_of(files.replace("csv", "parquet"))
    how = pa.csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    lines = pa.csv.ParseOptions(newlines_in_values=True)
    tables = [pa.csv.read_csv(each, convert_options=how, parse_options=lines) for each in paths(files)]
    return Counter(tuple(map(said, row.values())) for row in pa.concat_tables(tables).to_pylist())


def names_of(files: str) -> list[str]:
    return [name for name in pq.read_schema(paths(files)[0]).names if name != "_exact"]


def paths(files: str) -> list[Path]:
    return sorted(Path(files).parent.glob(Path(files).name))


@pytest.fixture
def source(tmp_path: Path) -> MadeSource:
    """An archive with a table of 120 rows of 40 kB, one without rows, and one of an odd name."""
    made = MadeSource(tmp_path / "archive")
    for name in ("t", "none", "odd.name/t"):
        made.create_table(name, [column(1, "id", flag=3), column(2, "v", MysqlType.VARCHAR, flen=60000)])
    made.genesis()
    with made.txn() as t:
        for number in range(120):
            t.insert("t", id=number, v=random.Random(number).randbytes(20_000).hex().encode())
        t.insert("odd.name/t", id=1, v=b"\xff")
    made.cut(binlog_skipped=True)
    return made


def exported(source: MadeSource, store: ObjectStore, form: FileFormat, *tables: str, **more: Any) -> TablesReport:
    return export_tables(
        source.archive, store, form, at=more.pop("at", None), tables=tables, archive_settings=source.settings,
        load=LoadSettings(unit_bytes=1 << 17), **more,
    )  # fmt: skip


@pytest.mark.parametrize("form", list(FileFormat))
def test_a_table_becomes_several_files_by_size_and_each_note_lists_its_own(
    tmp_path: Path, source: MadeSource, form: FileFormat
) -> None:
    out = tmp_path / "out"
    done = exported(source, FileStore(out), form, "d.*", file_bytes=300_000)
    files = {each.name: len(each.files) for each in done.tables}
    assert files["d.t"] > 2
    assert (files["d.none"], files["d.odd.name/t"]) == (1, 1)
    assert {each.name: each.rows for each in done.tables} == {"d.none": 0, "d.odd.name/t": 1, "d.t": 120}
    assert len(done.losses.binlog_skipped) == 1
    shown = formats.Shown()
    for name in ("d.t", "d.none", "d.odd%2Ename%2Ft"):
        note = json.loads((out / f"{name}.json").read_bytes())
        shown.check("table-export", note)
        assert [line.split(": (")[0] for line in note["losses"]] == ["binlogs skipped by TiDB"]
        for each in note["files"]:
            shown.check("table-file", json.loads((out / f"{each['name']}.json").read_bytes()))
            data = (out / each["name"]).read_bytes()
            assert (hashlib.sha256(data).hexdigest(), len(data)) == (each["digest"], each["size"])
    read = "read_parquet" if form is FileFormat.PARQUET else "read_csv"
    with duckdb.connect() as duck:
        found = duck.execute(f"SELECT id, v FROM {read}('{out}/d.t.*.{form}') ORDER BY id").fetchall()
        assert duck.execute(f"SELECT * FROM {read}('{out}/d.none.*.{form}')").fetchall() == []
        text = "" if form is FileFormat.PARQUET else ", all_varchar = true"
        odd = duck.execute(f"SELECT * FROM {read}('{out}/d.odd%2Ename%2Ft.*.{form}'{text})").fetchall()
    assert odd == ([(1, None, {"v": "0xff"})] if form is FileFormat.PARQUET else [("1", "0xff")])
    assert found == [(number, random.Random(number).randbytes(20_000).hex()) for number in range(120)]


def test_what_is_there_is_never_mixed_with_an_export(tmp_path: Path, source: MadeSource) -> None:
    store, first = FileStore(tmp_path / "out"), source.archive.end()
    store.put("d.t.000000007.csv", b"somebody's")
    with pytest.raises(UsageError, match=r"has d\.t\.000000007\.csv already"):
        exported(source, store, FileFormat.PARQUET, "d.none", "d.t")
    assert [each.key for each in store.list("")] == ["d.t.000000007.csv"]
    store.delete("d.t.000000007.csv")
    exported(source, store, FileFormat.CSV, "d.t")
    made = objects(tmp_path / "out")
    with source.txn() as t:
        t.insert("t", id=1000, v=b"later")
    source.cut()
    for how, form in (
        ({"at": first}, FileFormat.PARQUET),
        ({}, FileFormat.CSV),
        ({"at": first, "file_bytes": 7}, FileFormat.CSV),
    ):
        with pytest.raises(UsageError, match=r"has an export of d\.t already.* all csv files") as refused:
            exported(source, store, form, "d.none", "d.t", **how)
        assert (f"--at {first} goes on" in str(refused.value.hint)) == (not how)
    with pytest.raises(UnknownTable, match=r"no table d\.x"):
        exported(source, store, FileFormat.CSV, "d.none", "d.x", at=first)
    with pytest.raises(UsageError, match="the archive covers"):
        exported(source, store, FileFormat.CSV, "d.none", at=Tso(source.archive.end() + 1))
    assert objects(tmp_path / "out") == made


def test_what_is_missing_of_an_export_is_put_and_nothing_else(tmp_path: Path, source: MadeSource) -> None:
    store, out = FileStore(tmp_path / "out"), tmp_path / "out"
    done = exported(source, store, FileFormat.CSV, "d.*", file_bytes=300_000)
    made, inodes = objects(out), {path.name: path.stat().st_ino for path in out.iterdir()}
    assert exported(source, store, FileFormat.CSV, "d.*", file_bytes=300_000) == done
    assert {path.name: path.stat().st_ino for path in out.iterdir()} == inodes
    (out / "d.t.000000001.csv").unlink()
    (out / "d.t.000000002.csv").write_bytes(b"a part")
    assert exported(source, store, FileFormat.CSV, "d.*", file_bytes=300_000) == done
    assert objects(out) == made
    assert (out / "d.t.000000000.csv").stat().st_ino == inodes["d.t.000000000.csv"]


def test_a_file_of_somebody_else_is_neither_overwritten_nor_taken_for_one_of_the_table(
    tmp_path: Path, source: MadeSource
) -> None:
    store, out = FileStore(tmp_path / "out"), tmp_path / "out"
    exported(source, store, FileFormat.CSV, "d.t", file_bytes=300_000)
    begun = ExportedTable.from_json("d.t.json", store.get("d.t.json")).begun
    store.put("d.t.000000999.csv", b"somebody's")
    with pytest.raises(UsageError, match=r"has d\.t\.000000999\.csv, which is none of"):
        exported(source, store, FileFormat.CSV, "d.t", file_bytes=300_000)
    for each in list(store.list("")):
        store.delete(each.key)
    store.put("d.t.json", begun.to_json())  # killed before its first file
    store.put("d.t.000000001.csv", b"somebody's")
    made = objects(out)
    with pytest.raises(UsageError, match=r"has d\.t\.000000001\.csv, which is none of"):
        exported(source, store, FileFormat.CSV, "d.none", "d.t", file_bytes=300_000)
    assert objects(out) == made


def test_files_that_go_while_others_are_written_are_listed_by_no_note(
    tmp_path: Path, source: MadeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path / "out")
    put_file = store.put_file

    def one_goes(key: str, path: Path) -> None:
        put_file(key, path)
        if key == "d.t.000000002.csv":
            store.delete("d.t.000000000.csv")

    monkeypatch.setattr(store, "put_file", one_goes)
    with pytest.raises(StoreError, match="were taken away"):
        exported(source, store, FileFormat.CSV, "d.t", file_bytes=300_000)
    assert ExportedTable.from_json("d.t.json", store.get("d.t.json")).files is None


def test_of_two_exports_at_once_one_goes_on_with_the_others(
    tmp_path: Path, source: MadeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported(source, FileStore(tmp_path / "whole"), FileFormat.CSV, "d.t", file_bytes=300_000)
    store = FileStore(tmp_path / "out")
    put_file, others = store.put_file, list[TablesReport]()

    def other_first(key: str, path: Path) -> None:
        if not others:  # it has put a note without a file
            others.append(exported(source, FileStore(tmp_path / "out"), FileFormat.CSV, "d.t", file_bytes=300_000))
        put_file(key, path)

    monkeypatch.setattr(store, "put_file", other_first)
    assert exported(source, store, FileFormat.CSV, "d.t", file_bytes=300_000) == others[0]
    assert objects(tmp_path / "out") == objects(tmp_path / "whole")

    store = FileStore(tmp_path / "cut otherwise")
    put = store.put_if_absent

    def cut_otherwise(key: str, data: bytes) -> None:
        note = ExportedTable.from_json(key, data)
        put(key, replace(note, cut=replace(note.cut, buckets=note.cut.buckets + 1)).to_json())
        put(key, data)

    monkeypatch.setattr(store, "put_if_absent", cut_otherwise)
    with pytest.raises(ManifestConflict, match=r"another export of d\.t"):
        exported(source, store, FileFormat.CSV, "d.t")
    assert list(objects(tmp_path / "cut otherwise")) == ["d.t.json"]


def test_a_file_that_would_get_other_bytes_is_not_put(tmp_path: Path, source: MadeSource) -> None:
    store = FileStore(tmp_path / "out")
    exported(source, store, FileFormat.CSV, "d.t", file_bytes=300_000)
    note = ExportedTable.from_json("d.t.json", store.get("d.t.json"))
    assert note.files is not None
    of = asdict(note.files[1])
    store.put(f"{of['name']}.json", dump("table file", {**of, "digest": "0" * 64}))
    store.delete(of["name"])
    with pytest.raises(StoreError, match=r"d\.t\.000000001\.csv .* would get other bytes"):
        exported(source, store, FileFormat.CSV, "d.t", file_bytes=300_000)
    assert of["name"] not in objects(tmp_path / "out")


ROWS = 60_000


@pytest.fixture
def large(tmp_path: Path) -> MadeSource:
    """Tables of several parts each: with a key, and without one, where some rows stand more than once."""
    made, rng = MadeSource(tmp_path / "archive"), random.Random(5)
    made.create_table("keyed", [column(1, "id", flag=3), column(2, "v", MysqlType.VARCHAR, flen=600)])
    made.create_table("keyless", [column(1, "a"), column(2, "v", MysqlType.VARCHAR, flen=600)], pk_is_handle=False)
    made.genesis()
    for begin in range(0, ROWS, 5000):
        with made.txn() as t:
            for number in range(begin, begin + 5000):
                t.insert("keyed", id=number, v=rng.randbytes(30).hex().encode())
                if number % 3 == 0:
                    for _ in range(1 + (number % 9 == 0)):
                        t.insert("keyless", a=number % 7000, v=random.Random(number // 2).randbytes(50).hex().encode())
        made.cut()
    return made


@pytest.mark.timeout(600)
@pytest.mark.parametrize("form", list(FileFormat))
def test_a_command_that_is_killed_anywhere_is_run_again_and_ends_with_the_same_files(
    tmp_path: Path, large: MadeSource, form: FileFormat
) -> None:
    at, rng = large.archive.end(), random.Random(str(form))
    command(large, form, at, tmp_path / "whole").wait()
    wanted, killed = objects(tmp_path / "whole"), 0
    notes = {name: json.loads(wanted[f"d.{name}.json"]) for name in ("keyed", "keyless")}
    assert min(note["cut"]["buckets"] for note in notes.values()) > 1, notes
    assert len(notes["keyed"]["files"]) > 1
    assert notes["keyed"]["cut"]["ranges"]
    for number in range(2):
        out = tmp_path / f"out{number}"
        for _ in range(2):
            child, last = command(large, form, at, out), rng.randint(2, len(wanted) - 1)
            while child.poll() is None and len(objects(out)) < last:
                time.sleep(0.001)
            child.send_signal(signal.SIGKILL)
            killed += child.wait() == -signal.SIGKILL
            for table in ("keyed", "keyless"):
                if (files := json.loads((out / f"d.{table}.json").read_bytes())["files"]) is not None:
                    assert {each["name"]: wanted[each["name"]] for each in files}.items() <= objects(out).items()
        if number == 1:  # from now on, the rows are read from elsewhere
            folded(large, at, load=LoadSettings(unit_bytes=1 << 17))
        assert command(large, form, at, out, unit_bytes=1 << 20).wait() == 0
        assert objects(out) == wanted
    assert killed > 1


def command(
    source: MadeSource, form: FileFormat, at: Tso, out: Path, unit_bytes: int = 1 << 19
) -> subprocess.Popen[bytes]:
    env = {
        "PUMPHOUSE_ARCHIVE__ROOT": source.settings.root, "PUMPHOUSE_ARCHIVE__CLUSTER_ID": str(source.cluster_id),
        "PUMPHOUSE_LOAD__UNIT_BYTES": str(unit_bytes),
    }  # fmt: skip
    words = ("archive", "export", "--format", form, "--table", "d.*", "--at", str(at), "--file-mib", "1", str(out))
    return subprocess.Popen([sys.executable, "-m", "pumphouse", *words], env={**os.environ, **env})


def objects(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("[!.]*")}


def test_in_a_bucket_what_is_missing_is_put_and_a_file_of_somebody_else_is_refused(source: MadeSource) -> None:
    with s3_server() as server:
        store = open_store(server.archive_settings())
        done = exported(source, store, FileFormat.PARQUET, "d.*", file_bytes=300_000)
        made = {each.key: store.get(each.key) for each in store.list("")}
        store.delete("d.t.000000001.parquet")
        store.put("d.t.000000002.parquet", b"a part")
        assert exported(source, store, FileFormat.PARQUET, "d.*", file_bytes=300_000) == done
        assert {each.key: store.get(each.key) for each in store.list("")} == made
        store.put("d.t.000000999.parquet", b"somebody's")
        with pytest.raises(UsageError, match=r"which is none of"):
            exported(source, store, FileFormat.PARQUET, "d.*", file_bytes=300_000)
