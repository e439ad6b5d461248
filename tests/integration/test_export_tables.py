"""Tables at a moment as CSV and Parquet: DuckDB, pandas and pyarrow read what the source had then, and nothing mixes."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from pumphouse.client import ResolverServer
from pumphouse.client.resolver import PENDING
from pumphouse.errors import StoreUnavailable, UnknownTable, UsageError
from pumphouse.history.files import FileFormat, TablesReport, export_tables
from pumphouse.model.table import MysqlType
from pumphouse.model.tso import Tso
from pumphouse.objectstore.base import ObjectStore
from pumphouse.objectstore.file import FileStore
from pumphouse.registry.file import FileCluster
from pumphouse.settings import LoadSettings
from tests.integration.test_base_readable import _ODD
from tests.integration.test_schema_import_stream import _Server, config_of, run, write_rows
from tests.support import everytype, formats, mariadb
from tests.support.madearchive import MadeSource, column
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
        with pytest.raises(AssertionError, match=r"every\.odd\.000000000\.csv already"):
            run("archive", "export", "--format", "csv", "--table", "every.odd", "--at", str(moment), "csv")
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
    made.cut()
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
    shown = formats.Shown()
    for name in ("d.t", "d.none", "d.odd%2Ename%2Ft"):
        note = json.loads((out / f"{name}.json").read_bytes())
        shown.check("table-export", note)
        for each in note["files"]:
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
    store = FileStore(tmp_path / "out")
    store.put("d.t.000000007.csv", b"somebody's")
    with pytest.raises(UsageError, match=r"has d\.t\.000000007\.csv already"):
        exported(source, store, FileFormat.PARQUET, "d.none", "d.t")
    assert [each.key for each in store.list("")] == ["d.t.000000007.csv"]
    store.delete("d.t.000000007.csv")
    exported(source, store, FileFormat.CSV, "d.t")
    with pytest.raises(UsageError, match=r"d\.t was exported there"):
        exported(source, store, FileFormat.CSV, "d.t")
    with pytest.raises(UnknownTable, match=r"no table d\.x"):
        exported(source, store, FileFormat.CSV, "d.none", "d.x")
    with pytest.raises(UsageError, match="the archive covers"):
        exported(source, store, FileFormat.CSV, "d.none", at=Tso(source.archive.end() + 1))
    assert not [each.key for each in store.list("d.none")]


def test_of_two_exports_at_once_one_writes(tmp_path: Path, source: MadeSource, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path / "out")
    put = store.put_if_absent

    def other_first(key: str, data: bytes) -> None:
        put(key, b"of the other")
        put(key, data)

    monkeypatch.setattr(store, "put_if_absent", other_first)
    with pytest.raises(UsageError, match=r"d\.t\.json already.*is under way"):
        exported(source, store, FileFormat.CSV, "d.t")
    assert [each.key for each in store.list("")] == ["d.t.json"]


def test_an_export_that_fails_takes_its_files_away_and_one_that_is_killed_says_so(
    tmp_path: Path, source: MadeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path / "out")
    put_file, seen = store.put_file, list[str]()

    def failing(error: BaseException) -> None:
        def put(key: str, path: Path, *, move: bool = False) -> None:
            put_file(key, path, move=move)
            seen.append(key)
            if len(seen) == 2:
                raise error

        seen.clear()
        monkeypatch.setattr(store, "put_file", put)

    failing(StoreUnavailable("it does not answer"))
    with pytest.raises(StoreUnavailable):
        exported(source, store, FileFormat.CSV, "d.t", file_bytes=300_000)
    assert list(store.list("")) == []
    failing(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        exported(source, store, FileFormat.CSV, "d.t", file_bytes=300_000)
    note = json.loads(store.get("d.t.json"))
    formats.check("table-export", note)
    assert note["files"] is None
    with pytest.raises(UsageError, match="was killed"):
        exported(source, store, FileFormat.CSV, "d.t", file_bytes=300_000)
