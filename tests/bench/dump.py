"""A base dump of three million rows beside `mariadb-dump` of the same rows on the same server, to /dev/null."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pumphouse.archive.archive import Archive
from pumphouse.archive.init import init_archive
from pumphouse.capture.passed import waiter
from pumphouse.dump.run import DumpReport, take_dump
from pumphouse.model.table import Job
from pumphouse.mysql.dsn import Dsn
from pumphouse.objectstore.open import open_store
from pumphouse.registry.open import open_cluster
from pumphouse.settings import ArchiveSettings, Settings, SourceSettings, TargetSettings
from tests.bench.harness import Result, Watch
from tests.bench.pumps import RunningPump, pump
from tests.bench.sysbench import table_json
from tests.support import mariadb
from tests.support.madearchive import MadeSource

ROWS = 3_000_000


class History:
    """The DDL jobs of one database with one table."""

    def __init__(self, work: Path) -> None:
        made, raw = MadeSource(work), table_json()
        made.create_table("sbtest", raw["cols"], index_info=raw["index_info"])
        self._jobs = [timed.job for timed in made.jobs]

    def job(self, job_id: int) -> Job | None:
        return next((job for job in self._jobs if job.id == job_id), None)

    def jobs(self, *, after_id: int = 0) -> Iterator[Job]:
        return (job for job in self._jobs if job.id > after_id)


def dsn_of(server: TargetSettings) -> Dsn:
    """Where its user gets in."""
    return Dsn(host=server.host, port=server.port, user=server.user, password=server.password.get_secret_value())


def begun(work: Path, server: TargetSettings, running: RunningPump) -> tuple[Settings, Callable[[], DumpReport]]:
    """A new archive in ``work`` of that server as its source; what takes a dump into it."""
    source = SourceSettings(host=server.host, port=server.port, user=server.user, password=server.password)
    cluster, history = open_cluster(running.cluster_url), History(work / "made")
    kept = ArchiveSettings(root=f"file://{work / 'archive'}", cluster_id=cluster.cluster_id())
    archive = Archive(open_store(kept), cluster.cluster_id())
    settings = Settings(archive=kept, source=source)
    init_archive(archive, cluster, history, settings=settings)
    return settings, lambda: take_dump(
        archive, cluster, history, settings, settle=waiter(cluster, settings.source, settings.capture)
    )


def fill(server: TargetSettings) -> None:
    """A table of so many rows, d.sbtest."""
    with dsn_of(server).connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE d")
        cursor.execute("USE d")
        cursor.execute(
            "CREATE TABLE sbtest (id BIGINT UNSIGNED NOT NULL PRIMARY KEY, k INT NOT NULL, c CHAR(120) NOT NULL,"
            " pad CHAR(60) NOT NULL, amount DECIMAL(12,2), status TINYINT UNSIGNED, created DATETIME,"
            " updated TIMESTAMP(3) NULL, name VARCHAR(64), flags INT UNSIGNED, note VARCHAR(255), KEY k (k))"
            " CHARSET utf8mb4 COLLATE utf8mb4_bin"
        )
        cursor.execute(
            "INSERT INTO sbtest SELECT seq, seq * 7919 % 1000003, REPEAT(MD5(seq), 3), MD5(seq + 1), seq / 100,"
            " seq % 200, '2024-01-01' + INTERVAL seq SECOND, '2024-02-01' + INTERVAL seq * 1000 MICROSECOND,"
            " CONCAT('name ', seq), seq * 3, IF(seq % 5, CONCAT('note of ', seq), NULL)"
            f" FROM seq_1_to_{ROWS}"
        )


def _mysqldump(server: TargetSettings) -> float:
    command = shutil.which("mariadb-dump") or "mysqldump"
    began = time.perf_counter()
    subprocess.run(
        [command, "--host", server.host, "--port", str(server.port), "--user", server.user, "--single-transaction",
         "--no-create-info", "d", "sbtest"],
        check=True, stdout=subprocess.DEVNULL, env={**os.environ, "MYSQL_PWD": server.password.get_secret_value()},
    )  # fmt: skip
    return ROWS / (time.perf_counter() - began)


def _dump(work: Path, runs: int) -> Result:
    samples, floors = [], []
    with mariadb.running(work / "db") as server:
        fill(server)
        for n in range(runs):
            each = work / str(n)
            each.mkdir()
            with pump(each) as running:
                _, dump = begun(each, server, running)
                with Watch() as watch:
                    report = dump()
                if report.rows != ROWS:
                    raise RuntimeError(f"{report.rows} of {ROWS} rows were dumped")
            samples.append(watch.sample(ROWS, mb_per_s=report.bytes / 1e6 / watch.seconds))
            floors.append(_mysqldump(server))
    return Result(
        "dump_3m", "rows/s", samples, "mariadb-dump of the same rows, rows/s", sorted(floors)[len(floors) // 2]
    )


BENCHES: dict[str, Callable[[Path, int], Result]] = {"dump_3m": _dump}
