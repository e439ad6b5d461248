"""Loading row changes of the sysbench workload into MariaDB, and into a TiDB where there is one: cold, by each engine, few rows changed often, the same again by force.

CPU and memory are those of the loader's process tree (Python, JVM, workers); the server's CPU is printed beside them.
The baseline is LOAD DATA LOCAL … REPLACE of the final rows as ready text, on one connection of the same server.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pymysql

from pumphouse.archive.archive import Archive
from pumphouse.model.tso import Tso
from pumphouse.registry.open import open_cluster
from pumphouse.settings import Settings, TargetSettings
from tests.bench.harness import Result, Sample, Watch
from tests.bench.sysbench import Workload, archive
from tests.stack.spark import SparkConnectServer
from tests.stack.supervisor import Supervisor
from tests.support import mariadb
from tests.support.madearchive import MadeSource
from tests.support.tidb import MISSING, UnistoreServer


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is loaded: transactions of ten changes, by which engine, again by force, of how many rows (0 = new ones).

    ``connect``: through a Spark Connect server that has run a load before. ``tidb``: into a TiDB, on its embedded store.
    ``mode``: of the load.
    """

    txns: int = 30_000
    engine: str = "spark"
    again: bool = False
    hot: int = 0
    connect: bool = False
    tidb: bool = False
    mode: str = "merge"

    @property
    def changes(self) -> int:
        """Row changes."""
        return self.txns * 10


def _make_archive(work: Path, case: Case) -> tuple[dict[str, str], Archive, Workload, Tso]:
    url = f"file://{work / 'cluster'}"
    source = MadeSource(work / "archive", open_cluster(url).cluster_id())
    (workload,), genesis = archive(source, case.txns, hot=case.hot)
    env = {
        "PUMPHOUSE_CLUSTER__URL": url,
        "PUMPHOUSE_ARCHIVE__ROOT": source.settings.root,
        "PUMPHOUSE_LOAD__ENGINE": case.engine,
        "PUMPHOUSE_LOAD__MODE": case.mode,
    }
    return env, source.archive, workload, genesis


def _load(env: dict[str, str], target: TargetSettings, server_pid: int, changes: int, repeat: int = 0) -> Sample:
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.load", str(repeat)],
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            **env,
            "PUMPHOUSE_TARGET__HOST": target.host,
            "PUMPHOUSE_TARGET__PORT": str(target.port),
            "PUMPHOUSE_TARGET__USER": target.user,
            "PUMPHOUSE_TARGET__UNIX_SOCKET": target.unix_socket,
            "PUMPHOUSE_TARGET__PASSWORD": target.password.get_secret_value(),
        },
    )
    server = psutil.Process(server_pid)
    before = sum(server.cpu_times()[:2])
    with Watch(child.pid) as watch:
        out, _ = child.communicate()
    if child.returncode:
        raise RuntimeError(f"the load failed with exit code {child.returncode}")
    said = json.loads(out.strip().splitlines()[-1])
    server_cpu = sum(server.cpu_times()[:2]) - before
    return watch.sample(
        changes,
        without_start_s=said["seconds"],
        server_cpu_s_per_100k=server_cpu / changes * 1e5,
        load_units=said["units"],
    )


@contextlib.contextmanager
def _target(directory: Path, *, tidb: bool) -> Iterator[tuple[TargetSettings, int]]:
    """A server that is empty, and its process."""
    if tidb:
        directory.mkdir()
        with UnistoreServer(directory) as server:
            pid = server.supervisor.pid("tidb")
            if pid is None:
                raise RuntimeError("the TiDB has ended")
            yield server.settings, pid
    else:
        with mariadb.running(directory) as target:
            yield target, server_pid(target)


def server_pid(target: TargetSettings) -> int:
    """The process of a MariaDB on this machine."""
    with pymysql.connect(
        host=target.host, port=target.port, user=target.user, unix_socket=target.unix_socket or None,
        password=target.password.get_secret_value(),
    ) as connection, connection.cursor() as cursor:  # fmt: skip
        cursor.execute("SELECT @@pid_file")
        return int(Path(cursor.fetchone()[0]).read_text())


def _floor(target: TargetSettings, rows: int = 50_000) -> float:
    text = io.BytesIO()
    for n in range(rows):
        text.write(b"%d\t5\t%b\t%b\t1.00\t1\t2026-01-01 10:00:00\t\\N\tname\t7\tnote\n" % (n, b"c" * 119, b"p" * 59))
    path = Path(f"/tmp/pumphouse-floor-{os.getpid()}")
    path.write_bytes(text.getvalue())
    try:
        with pymysql.connect(
            host=target.host, port=target.port, user=target.user, unix_socket=target.unix_socket or None,
            password=target.password.get_secret_value(), local_infile=True, autocommit=True,
        ) as connection, connection.cursor() as cursor:  # fmt: skip
            cursor.execute("CREATE DATABASE floor")
            cursor.execute("CREATE TABLE floor.t LIKE d.sbtest")
            began = time.perf_counter()
            cursor.execute(f"LOAD DATA LOCAL INFILE '{path}' REPLACE INTO TABLE floor.t CHARACTER SET binary")
            return rows / (time.perf_counter() - began)
    finally:
        path.unlink()


@contextlib.contextmanager
def _connect_server(directory: Path) -> Iterator[str]:
    """A Spark Connect server of two cores on this machine; its address."""
    supervisor = Supervisor(directory)
    server = SparkConnectServer(supervisor)
    server.start()
    try:
        yield server.url
    finally:
        supervisor.stop_all()


def _bench(work: Path, runs: int, *, name: str, case: Case) -> Result:
    env, _, workload, genesis = _make_archive(work, case)
    with contextlib.ExitStack() as stack:
        if case.connect:
            env["PUMPHOUSE_SPARK__MASTER"] = stack.enter_context(_connect_server(work / "connect"))
            with mariadb.running(work / "before") as target:
                _load(env, target, server_pid(target), case.changes)
        return _runs(work, runs, name, case, env, workload, genesis)


def _runs(
    work: Path, runs: int, name: str, case: Case, env: dict[str, str], workload: Workload, genesis: Tso
) -> Result:
    samples: list[Sample] = []
    floor = 0.0
    for n in range(runs):
        with _target(work / f"target{n}", tidb=case.tidb) as (target, pid):
            first = _load(env, target, pid, case.changes)
            samples.append(_load(env, target, pid, case.changes, repeat=int(genesis)) if case.again else first)
            _check(target, workload)
            floor = floor or _floor(target)
    return Result(name, "changes/s", samples, "LOAD DATA rows/s, one connection", floor)


def _check(target: TargetSettings, workload: Workload) -> None:
    with pymysql.connect(
        host=target.host, port=target.port, user=target.user, unix_socket=target.unix_socket or None,
        password=target.password.get_secret_value(),
    ) as connection, connection.cursor() as cursor:  # fmt: skip
        cursor.execute("SELECT COUNT(*) FROM d.sbtest")
        found = cursor.fetchone()[0]
    if found != workload.rows:
        raise RuntimeError(f"the target has {found} rows, the source {workload.rows}")


CASES = {
    "load_merge_300k_cold": Case(),
    "load_merge_300k_warm": Case(connect=True),
    "load_merge_300k_local": Case(engine="local"),
    "load_repeat_300k": Case(again=True),
    "load_merge_3m": Case(txns=300_000, engine="auto"),
    "load_merge_3m_spark": Case(txns=300_000),
    "load_replay_300k": Case(engine="local", mode="replay"),
    "load_merge_hot": Case(txns=300_000, engine="auto", hot=60_000),
    "load_tidb_300k": Case(engine="local", tidb=True),
}
# Name -> why it cannot run here.
SKIPPED = {name: MISSING for name, case in CASES.items() if case.tidb and MISSING}
BENCHES: dict[str, Callable[[Path, int], Result]] = {
    name: partial(_bench, name=name, case=case) for name, case in CASES.items() if name not in SKIPPED
}


def _child(repeat: int) -> dict[str, Any]:
    from pumphouse.runs import load

    report: dict[str, Any] = load.run(Settings.read(), repeat=Tso(repeat) if repeat else None).to_dict()
    return report


if __name__ == "__main__":
    print(json.dumps(_child(int(sys.argv[1]))))
