"""Restores by the command: three million rows of a dump, as many changes of windows, and one table of a hundred.

CPU and memory are those of the command's process tree; the server's CPU is printed beside them. The baseline of the
dump is LOAD DATA of the same rows, in the order of their keys, by four connections of the same server, as many as the
restore has; that of the windows is one connection's; that of one table is all hundred of them. The server of the dump
has a buffer pool that holds the table, as a server in production has; `restore_base_3m_128MB` is the same without.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil

from pumphouse.settings import ArchiveSettings, TargetSettings
from tests.bench.dump import ROWS, begun, dsn_of, fill
from tests.bench.harness import Result, Sample, Watch
from tests.bench.load import server_pid
from tests.bench.pumps import pump
from tests.bench.sysbench import archive
from tests.support import mariadb
from tests.support.madearchive import MadeSource

_CONNECTIONS = 4
_TABLES = 100
_TXNS = ROWS // 10


def _restore(archive: ArchiveSettings, target: TargetSettings, units: int, *words: str, connections: int = 2) -> Sample:
    """The whole command, with the start of its interpreter."""
    env = {
        "PUMPHOUSE_LOAD__CONNECTIONS": str(connections),
        "PUMPHOUSE_ARCHIVE__ROOT": archive.root,
        "PUMPHOUSE_ARCHIVE__CLUSTER_ID": str(archive.cluster_id),
        "PUMPHOUSE_RESTORE_TARGET__HOST": target.host,
        "PUMPHOUSE_RESTORE_TARGET__PORT": str(target.port),
        "PUMPHOUSE_RESTORE_TARGET__USER": target.user,
        "PUMPHOUSE_RESTORE_TARGET__PASSWORD": target.password.get_secret_value(),
    }
    server = psutil.Process(server_pid(target))
    before = sum(server.cpu_times()[:2])
    child = subprocess.Popen(
        [sys.executable, "-m", "pumphouse", "restore", "--to", "latest", "--json", *words],
        stdout=subprocess.PIPE, text=True, env={**os.environ, **env},
    )  # fmt: skip
    with Watch(child.pid) as watch:
        out, _ = child.communicate()
    if child.returncode:
        raise RuntimeError(f"the restore failed with exit code {child.returncode}")
    json.loads(out)
    return watch.sample(units, server_cpu_s=sum(server.cpu_times()[:2]) - before)


def _count(server: TargetSettings, table: str) -> int:
    with dsn_of(server).connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT COUNT(*) FROM {table}")
        return int(cursor.fetchone()[0])


def _texts(server: TargetSettings, directory: Path, table: str, parts: int) -> list[Path]:
    """The rows of a table as files for LOAD DATA, each a range of keys, in order."""
    found = []
    with dsn_of(server).connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT MAX(id) FROM {table}")
        step = int(cursor.fetchone()[0]) // parts + 1
        for part in range(parts):
            found.append(directory / f"part{part}")
            cursor.execute(
                f"SELECT * INTO OUTFILE '{found[-1]}' FROM {table}"
                f" WHERE id > {part * step} AND id <= {(part + 1) * step} ORDER BY id"
            )
    return found


def _floor(server: TargetSettings, table: str, texts: list[Path], rows: int) -> float:
    """Rows a second of LOAD DATA, one connection for each file. The table goes: the buffer pool is for the rows."""
    with dsn_of(server).connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE floor")
        cursor.execute(f"CREATE TABLE floor.t LIKE {table}")
        cursor.execute(f"DROP TABLE {table}")

    def load(text: Path) -> None:
        with dsn_of(server).connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"LOAD DATA INFILE '{text}' INTO TABLE floor.t CHARACTER SET binary")

    began = time.perf_counter()
    with ThreadPoolExecutor(len(texts)) as pool:
        list(pool.map(load, texts))
    seconds = time.perf_counter() - began
    if (there := _count(server, "floor.t")) != rows:
        raise RuntimeError(f"LOAD DATA brought {there} of {rows} rows")
    return rows / seconds


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _restored(
    work: Path, runs: int, name: str, kept: ArchiveSettings, rows: int, units: int, parts: int, pool: str = "128M"
) -> Result:
    """A whole restore of d.sbtest onto an empty server, for each run, and LOAD DATA onto that server, empty again."""
    samples, floors = [], []
    for n in range(runs):
        with mariadb.server_in(work / f"target{n}", arguments=(f"--innodb-buffer-pool-size={pool}",)) as server:
            target = mariadb.settings_of(server)
            samples.append(_restore(kept, target, units, connections=max(parts, 2)))
            if (there := _count(target, "d.sbtest")) != rows:
                raise RuntimeError(f"{there} of {rows} rows were restored")
            texts = work / f"texts{n}"
            texts.mkdir(mode=0o777)
            floors.append(_floor(target, "d.sbtest", _texts(target, texts, "d.sbtest", parts), rows))
            samples[-1].extra["times_load_data"] = samples[-1].seconds * floors[-1] / rows
    said = "one connection" if parts == 1 else f"{parts} connections"
    return Result(name, "changes/s", samples, f"LOAD DATA rows/s, {said}", _median(floors))


def _base(work: Path, runs: int, *, name: str, pool: str) -> Result:
    with mariadb.running(work / "db") as server, pump(work) as running:
        fill(server)
        settings, dump = begun(work, server, running)
        dump()
    return _restored(work, runs, name, settings.archive, ROWS, ROWS, _CONNECTIONS, pool)


def _windows(work: Path, runs: int) -> Result:
    made = MadeSource(work / "archive")
    (workload,), _ = archive(made, _TXNS)
    return _restored(work, runs, "restore_windows_3m", made.settings, workload.rows, ROWS, 1)


def _one_table(work: Path, runs: int) -> Result:
    made = MadeSource(work / "archive")
    every, _ = archive(made, _TXNS, tables=[f"t{n}" for n in range(_TABLES)])
    samples, whole = [], []
    for n in range(runs):
        with mariadb.running(work / f"target{n}") as target:
            whole.append(_restore(made.settings, target, ROWS).seconds)
            words = ("--table", "d.t50", "--as", "d.again")
            samples.append(_restore(made.settings, target, ROWS // _TABLES, *words))
            if (there := _count(target, "d.again")) != every[50].rows:
                raise RuntimeError(f"{there} of {every[50].rows} rows were restored")
    return Result("restore_one_table", "changes/s", samples, "all tables, changes/s", ROWS / _median(whole))


BENCHES: dict[str, Callable[[Path, int], Result]] = {
    "restore_base_3m": partial(_base, name="restore_base_3m", pool="1G"),
    "restore_base_3m_128MB": partial(_base, name="restore_base_3m_128MB", pool="128M"),
    "restore_windows_3m": _windows,
    "restore_one_table": _one_table,
}
