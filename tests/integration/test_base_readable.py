"""Bases of rows of every type: DuckDB, pandas and Spark read them as they are, and a restore gets every value back."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest

from pumphouse.client import ResolverServer, tables
from pumphouse.client.resolver import PENDING
from pumphouse.diff.compare import compare
from pumphouse.model.table import TableInfo
from pumphouse.registry.file import FileCluster
from pumphouse.settings import SparkSettings
from spark_tasks.session import build_session
from tests.integration.test_schema_import_stream import _Server, config_of, run, write_rows
from tests.support import everytype, mariadb
from tests.support.pumpserver import PumpServer

NAMES = ["id", "ti", "bi", "f", "dc", "dc0", "da", "dt6", "ts", "tm", "y", "vc", "bin", "en", "st", "bt", "js"]
_ODD = (
    "SET sql_mode = ''",
    "CREATE TABLE every.odd (id INT PRIMARY KEY, d DATE, t DATETIME, e ENUM('a','b'), tm TIME)",
    "INSERT INTO every.odd VALUES (1, '0000-00-00', '2020-00-01 00:00:00', 'wrong', '-838:59:59')",
    "INSERT INTO every.odd VALUES (2, '2024-02-29', '2024-02-29 23:59:59', 'b', '01:02:03')",
)


def files_of(root: Path, base: dict[str, Any], table: str) -> list[str]:
    """Paths of the Parquet files of a table of a base."""
    found = next(each for each in base["tables"] if each["table"] == table)
    return [str(root / segment["key"]) for segment in found["segments"]]


@pytest.mark.row("A5", "R1")
@pytest.mark.mariadb("zero dates in a column without a default, and what a wrong ENUM becomes")
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("quick_jvms")
def test_a_folded_base_of_every_type_is_read_by_others_and_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FileCluster(tmp_path / "cluster")
    with (
        mariadb.directory_in_memory() as directory,
        mariadb.server_in(directory / "source") as source,
        mariadb.server_in(directory / "target") as target,
    ):
        (tmp_path / "pumphouse.toml").write_text(config_of(tmp_path, source=source, restore_target=target))
        monkeypatch.chdir(tmp_path)
        server = _Server(source)
        server.sql(*everytype.TABLES, *_ODD)
        with PumpServer(tmp_path, cluster), ResolverServer(cluster, "app", [b"app/"], lambda *_: PENDING):
            run("schema", "import")
            run("archive", "init")
            write_rows(cluster, source, seed=1)
            run("archive", "dump")
            write_rows(cluster, source, seed=2)
            run("snapshot")
        planned = json.loads(run("archive", "base", "--dry-run", "--json"))
        assert not planned["made"]
        done = json.loads(run("archive", "base", "--at", "latest", "--json"))
        assert done["made"]
        assert "nothing to do" in run("archive", "base")
        assert f"folded base {done['ts']}" in run("archive", "ls")
        run("archive", "verify")
        run("restore", "--to", "latest", "--replace", f"127.0.0.1:{target.port}")
        info = tables(f"mysql://root@127.0.0.1:{source.port}/history.jobs", source.password)["every", "types"]
        report = compare(source.dsn, target.dsn, ignore={"history", "pumphouse"})
        assert report.differences == []
    root = tmp_path / "archive" / str(cluster.cluster_id())
    base = json.loads((root / done["key"]).read_text())
    types, odd = files_of(root, base, "types"), files_of(root, base, "odd")
    expected = [expected_of(info, number) for number in (*range(1000, 1040), *range(2000, 2040))]
    assert read_by_duckdb(types) == expected
    assert read_by_pandas(types) == expected
    assert odd_of(odd) == [
        (1, None, "0000-00-00", None, "2020-00-01 00:00:00", "", "-838:59:59"),
        (2, dt.date(2024, 2, 29), None, dt.datetime(2024, 2, 29, 23, 59, 59), None, "b", "01:02:03"),
    ]
    assert read_by_spark(types) == expected


def expected_of(info: TableInfo, number: int) -> dict[str, Any]:
    """A row of `everytype` as every tool should have it, with times as text."""
    values = {column.name: everytype.row(info, number)[column.id] for column in info.columns}
    found = {name: values[name] for name in ("id", "ti", "bi", "f", "dc0", "da", "tm", "y", "bt")}
    elements = {column.name: column.type.elems for column in info.columns}
    found["vc"] = None if values["vc"] is None else values["vc"].decode()
    found["bin"] = values["bin"]
    found["dc"] = None if values["dc"] is None else Decimal(values["dc"])
    found["dt6"], found["ts"] = values["dt6"], values["ts"] and f"{values['ts']}000"
    found["en"] = None if values["en"] is None else elements["en"][values["en"] - 1]
    bits = values["st"]
    found["st"] = None if bits is None else ",".join(n for at, n in enumerate(elements["st"]) if bits >> at & 1)
    found["js"] = None if values["js"] is None else json.loads(values["js"])
    return {name: found[name] for name in NAMES}


def told(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a tool: dates and times as text, bytes as bytes, JSON as it reads."""
    said = dict(row)
    said["da"] = None if row["da"] is None else str(row["da"])
    for name in ("dt6", "ts"):
        said[name] = None if row[name] is None else f"{row[name]:%Y-%m-%d %H:%M:%S.%f}"
    said["bin"] = None if row["bin"] is None else bytes(row["bin"])
    said["js"] = None if row["js"] is None else json.loads(row["js"])
    return said


def read_by_duckdb(files: list[str]) -> list[dict[str, Any]]:
    """Rows, and the types that it gives them."""
    with duckdb.connect() as duck:
        duck.execute("SET TimeZone = 'UTC'")
        rows = duck.execute(f"SELECT {', '.join(NAMES)} FROM read_parquet({files}) ORDER BY id").fetchall()
        types = duck.execute(f"SELECT column_name, column_type FROM (DESCRIBE SELECT * FROM read_parquet({files}))")
        kinds = dict(types.fetchall())
    assert kinds["dc"] == "DECIMAL(30,10)"
    assert [kinds[name] for name in ("en", "st", "vc", "dc0", "js", "tm")] == ["VARCHAR"] * 6
    assert [kinds[name] for name in ("da", "dt6", "ts")] == ["DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE"]
    assert [kinds[name] for name in ("bin", "id", "bi", "y")] == ["BLOB", "UBIGINT", "BIGINT", "BIGINT"]
    return [told(dict(zip(NAMES, row, strict=True))) for row in rows]


def odd_of(files: list[str]) -> list[tuple[Any, ...]]:
    """What no date holds stands beside a NULL."""
    with duckdb.connect() as duck:
        names = "id, d, d__exact, t, t__exact, e, tm"
        return duck.execute(f"SELECT {names} FROM read_parquet({files}) WHERE id < 3 ORDER BY id").fetchall()


def read_by_pandas(files: list[str]) -> list[dict[str, Any]]:
    """Rows of a frame, with None for what is not there."""
    frame = pd.concat([pd.read_parquet(each, dtype_backend="pyarrow") for each in files]).sort_values("id")
    assert str(frame["dt6"].dtype) == "timestamp[us][pyarrow]"
    rows = frame[NAMES].astype(object).where(frame[NAMES].notna(), None).to_dict("records")
    return [told(row) for row in rows]


def read_by_spark(files: list[str]) -> list[dict[str, Any]]:
    """Rows of a data frame."""
    session = build_session("bases", SparkSettings(shuffle_partitions=2))
    try:
        frame = session.read.parquet(*files)
        kinds = dict(frame.dtypes)
        rows = [row.asDict() for row in frame.select(*NAMES).orderBy("id").collect()]
    finally:
        session.stop()
    assert (kinds["dc"], kinds["en"], kinds["da"], kinds["dt6"], kinds["ts"]) == (
        "decimal(30,10)", "string", "date", "timestamp_ntz", "timestamp",
    )  # fmt: skip
    for row in rows:
        row["id"] = int(row["id"])  # of 64 bits without a sign
        row["bt"] = None if row["bt"] is None else int(row["bt"])
    return [told(row) for row in rows]
