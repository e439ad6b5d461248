"""Comparing three million rows: `diff` of two tables on one server, and an archive's dump held against its source.

The baseline is CHECKSUM TABLE of both tables, or of the one, by one connection. `select_mb_per_s` is SELECT * of the same into nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil
from pymysql.cursors import SSCursor

from pumphouse.diff.compare import compare
from pumphouse.runs.proof import hold_against
from pumphouse.settings import TargetSettings
from tests.bench.dump import ROWS, begun, dsn_of, fill
from tests.bench.harness import Result, Sample, Watch
from tests.bench.load import server_pid
from tests.bench.pumps import pump
from tests.support import mariadb


def _run(server: TargetSettings, *statements: str) -> None:
    with dsn_of(server).connect(autocommit=True) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def _bytes(server: TargetSettings, tables: list[str]) -> int:
    """Of the rows as a client gets them."""
    with dsn_of(server).connect() as connection, connection.cursor() as cursor:
        found = 0
        for table in tables:
            cursor.execute(
                f"SELECT SUM(OCTET_LENGTH(CONCAT_WS(',', id, k, c, pad, amount, status, created, updated, name, flags, note))) FROM {table}"
            )
            found += int(cursor.fetchone()[0])
    return found


def _floors(server: TargetSettings, tables: list[str], size: int) -> tuple[float, float]:
    """MB/s of CHECKSUM TABLE, and of SELECT *."""
    with dsn_of(server).connect(cursorclass=SSCursor) as connection, connection.cursor() as cursor:
        began = time.perf_counter()
        cursor.execute(f"CHECKSUM TABLE {', '.join(tables)}")
        cursor.fetchall()
        between = time.perf_counter()
        for table in tables:
            cursor.execute(f"SELECT * FROM {table}")
            while cursor.fetchmany(1000):
                pass
        return size / 1e6 / (between - began), size / 1e6 / (time.perf_counter() - between)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _watched(server: TargetSettings, size: int, work: Callable[[], object]) -> Sample:
    process = psutil.Process(server_pid(server))
    before = sum(process.cpu_times()[:2])
    with Watch(tree=False) as watch:
        work()
    server_cpu = sum(process.cpu_times()[:2]) - before
    return watch.sample(size / 1e6, rows_per_s=ROWS / watch.seconds, server_cpu_s=server_cpu)


def _diff(work: Path, runs: int) -> Result:
    samples, floors = [], []
    tables = ["d.sbtest", "e.sbtest"]
    with mariadb.running(work / "db") as server:
        fill(server)
        _run(
            server,
            "CREATE DATABASE e",
            "CREATE TABLE e.sbtest LIKE d.sbtest",
            "INSERT INTO e.sbtest SELECT * FROM d.sbtest",
        )
        size = _bytes(server, tables)

        def equal(wanted: bool) -> None:
            report = compare(dsn_of(server), dsn_of(server), schemas={"d": "e"})
            if (report.equal, report.rows) != (wanted, ROWS):
                raise RuntimeError(f"{report.rows} rows were compared: {report.differences}")

        for _ in range(runs):
            sample = _watched(server, size, lambda: equal(True))
            floor = _floors(server, tables, size)
            _run(server, f"UPDATE e.sbtest SET k = k + 1 WHERE id = {ROWS // 2}")
            one = _watched(server, size, lambda: equal(False))
            _run(server, f"UPDATE e.sbtest SET k = k - 1 WHERE id = {ROWS // 2}")
            samples.append(sample)
            sample.extra |= {"select_mb_per_s": floor[1], "one_row_differs_s": one.seconds}
            floors.append(floor[0])
    return Result("diff_3m", "MB/s", samples, "CHECKSUM TABLE of both, MB/s", _median(floors))


def _proof(work: Path, runs: int) -> Result:
    samples, floors = [], []
    with mariadb.running(work / "db") as server, pump(work) as running:
        fill(server)
        size = _bytes(server, ["d.sbtest"])
        settings, dump = begun(work, server, running)
        dump()

        def equal() -> None:
            proof = hold_against(settings, TargetSettings(**dict(settings.source)), section="source")
            if not proof.equal or proof.rows != ROWS:
                raise RuntimeError(f"{proof.verdict}: {proof.rows} rows")

        for _ in range(runs):
            samples.append(_watched(server, size, equal))
            floor = _floors(server, ["d.sbtest"], size)
            samples[-1].extra["select_mb_per_s"] = floor[1]
            floors.append(floor[0])
    return Result("proof_3m", "MB/s", samples, "CHECKSUM TABLE, MB/s", _median(floors))


BENCHES: dict[str, Callable[[Path, int], Result]] = {"diff_3m": _diff, "proof_3m": _proof}
