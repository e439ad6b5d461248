"""A capture from a MariaDB's binlog to fsynced Pumps: the workload of transactions of ten row changes, one large UPDATE,
commits that wait for it, and how far it is behind.

Beside it the server's own tool reads the same binlog over the same protocol into files, and does nothing else with it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.harness import Result, Watch
from tests.stack.local import CAPTURE
from tests.support.capturedstack import CapturedStack, SemiSyncStack, captured_stack

TRANSACTIONS = 60_000
COMMITS = 2_000
WRITERS, RATE, PACED_S, PROBE_S = 4, 5_000, 30, 0.05
LARGE = 2_000_000
_QUANTILES: dict[str, Callable[[list[float]], float]] = {
    "p50": lambda seconds: seconds[len(seconds) // 2],
    "p99": lambda seconds: seconds[len(seconds) * 99 // 100],
}
CHANGES = 10 * TRANSACTIONS  # five inserts, three updates, two deletes
_TABLE = (
    "CREATE TABLE d.sbtest (id BIGINT UNSIGNED NOT NULL PRIMARY KEY, k INT NOT NULL, c CHAR(120) NOT NULL,"
    " pad CHAR(60) NOT NULL, amount DECIMAL(12,2), status TINYINT UNSIGNED, created DATETIME,"
    " updated TIMESTAMP(3) NULL, name VARCHAR(64), flags INT UNSIGNED, note VARCHAR(255), KEY k (k))"
    " CHARSET utf8mb4 COLLATE utf8mb4_bin"
)
_WRITE = (
    "CREATE PROCEDURE d.workload(first INT, amount INT) BEGIN DECLARE n INT DEFAULT first;"
    " WHILE n < first + amount DO START TRANSACTION;"
    " INSERT INTO d.sbtest SELECT n * 5 + seq, n % 1003, REPEAT(MD5(n), 3), MD5(seq), n / 100, n % 200, '2024-01-01',"
    " NOW(3), CONCAT('name ', n), n, IF(n % 5, CONCAT('note of ', n), NULL) FROM seq_0_to_4;"
    " UPDATE d.sbtest SET k = k + 1, note = 'changed' WHERE id BETWEEN n * 5 AND n * 5 + 2;"
    " DELETE FROM d.sbtest WHERE id BETWEEN n * 5 + 3 AND n * 5 + 4; COMMIT; SET n = n + 1; END WHILE; END"
)


def _raw(stack: CapturedStack, work: Path, changes: int = CHANGES) -> float:
    """Row changes a second of the tool that only copies."""
    tool = shutil.which("mariadb-binlog") or "mysqlbinlog"
    dsn = stack.dsn("source")
    with stack.source() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        first = str(cursor.fetchall()[0][0])
    work.mkdir()
    began = time.perf_counter()
    subprocess.run(
        [tool, "--read-from-remote-server", "--raw", "--to-last-log", f"--result-file={work}/", f"--host={dsn.host}",
         f"--port={dsn.port}", f"--user={dsn.user}", f"--password={dsn.password}", first],
        check=True,
    )  # fmt: skip
    return changes / (time.perf_counter() - began)


def _run(work: Path, runs: int) -> Result:
    samples, floors = [], []
    for n in range(runs):
        with captured_stack(work / str(n)) as stack:
            stack.run("CREATE DATABASE d", _TABLE, _WRITE, "INSERT INTO d.sbtest (id, k, c, pad) VALUES (1, 1, '', '')")
            stack.captured()  # with everything compiled
            stack.stop_capture()
            stack.run("DELETE FROM d.sbtest", f"CALL d.workload(1, {TRANSACTIONS})")
            stack.start_capture()
            pid = stack.supervisor.pid(CAPTURE)
            with Watch(pid) as watch:
                stack.captured(timeout_s=600)
            # The cluster is told of it every two seconds; the last decision is the journal's last write.
            journal = stack.read_settings.capture.directory / "journal"
            watch.seconds -= time.time() - max(each.stat().st_mtime for each in journal.iterdir())
            samples.append(watch.sample(CHANGES, transactions_per_s=TRANSACTIONS / watch.seconds))
            floors.append(_raw(stack, work / f"raw-{n}"))
    floor = sorted(floors)[len(floors) // 2]
    return Result(
        "capture_run", "row changes/s", samples, "mariadb-binlog --raw of the same binlog, row changes/s", floor
    )


def _large(work: Path, runs: int) -> Result:
    """One UPDATE of many rows."""
    samples, floors = [], []
    for n in range(runs):
        with captured_stack(work / f"large-{n}") as stack:
            stack.run("CREATE DATABASE d", "CREATE TABLE d.big (id INT PRIMARY KEY, k INT, pad CHAR(60))")
            stack.run("INSERT INTO d.big VALUES (0, 0, '')", "UPDATE d.big SET k = 1")
            stack.captured()  # with everything compiled
            stack.stop_capture()
            for first in range(0, LARGE, 50_000):
                last = min(first + 50_000, LARGE)
                stack.run(f"INSERT INTO d.big SELECT seq, seq % 997, MD5(seq) FROM d.seq_{first + 1}_to_{last}")
            stack.start_capture()
            stack.captured(timeout_s=600)
            stack.stop_capture()
            stack.run("UPDATE d.big SET k = k + 1", "FLUSH BINARY LOGS")
            stack.start_capture()
            with Watch(stack.supervisor.pid(CAPTURE)) as watch:
                stack.captured(timeout_s=600)
            samples.append(watch.sample(LARGE))
            floors.append(_raw(stack, work / f"raw-large-{n}", 2 * LARGE))
    floor = sorted(floors)[len(floors) // 2]
    name = "mariadb-binlog --raw of that and of the rows' INSERT, row changes/s"
    return Result("capture_large", "row changes/s", samples, name, floor)


def _semi_sync(work: Path, runs: int) -> Result:
    """Commits of one session, one after the other, with the source waiting for the Pumps and without."""
    samples, plain = [], []
    for n in range(runs):
        stack = SemiSyncStack(work / f"semi-sync-{n}")
        with captured_stack(stack.directory, made=stack, prepare=lambda _, stack=stack: stack.set_source(600_000)):
            stack.run("CREATE DATABASE d", "CREATE TABLE d.t (id BIGINT AUTO_INCREMENT PRIMARY KEY, pad CHAR(120))")
            pid = stack.supervisor.pid(CAPTURE)
            _commits(stack, 100)  # with everything compiled
            with Watch(pid) as watch:
                waiting = _commits(stack, COMMITS)
            stack.run("SET GLOBAL rpl_semi_sync_master_enabled = OFF")
            alone = _commits(stack, COMMITS)
            extra = {f"{name}_ms": 1000 * at(waiting) for name, at in _QUANTILES.items()}
            extra |= {f"added_{name}_ms": 1000 * (at(waiting) - at(alone)) for name, at in _QUANTILES.items()}
            samples.append(watch.sample(COMMITS, **extra))
            plain.append(COMMITS / sum(alone))
    floor = sorted(plain)[len(plain) // 2]
    return Result("capture_semi_sync", "commits/s", samples, "the same commits without semi-sync, commits/s", floor)


_PACED = (
    "CREATE PROCEDURE d.paced(writer INT, amount INT, apart DOUBLE) BEGIN DECLARE n INT DEFAULT 0;"
    " DECLARE began DOUBLE DEFAULT UNIX_TIMESTAMP(SYSDATE(6));"
    " WHILE n < amount DO INSERT INTO d.t (writer, pad) VALUES (writer, REPEAT('x', 120)); SET n = n + 1;"
    " IF n % 20 = 0 THEN DO SLEEP(GREATEST(0, began + n * apart - UNIX_TIMESTAMP(SYSDATE(6)))); END IF;"
    " END WHILE; END"
)


def _lag(work: Path, runs: int) -> Result:
    """Seconds from a commit's answer until Pumps have it and it is decided: of probes amid writers, and of a large UPDATE."""
    samples = []
    for n in range(runs):
        with captured_stack(work / f"lag-{n}") as stack:
            stack.run(
                "CREATE DATABASE d", "CREATE TABLE d.t (id BIGINT AUTO_INCREMENT PRIMARY KEY, writer INT, pad CHAR(120))",
                "CREATE TABLE d.big (id INT PRIMARY KEY, k INT, pad CHAR(60))", _PACED, "CALL d.paced(0, 100, 0)",
            )  # fmt: skip
            for first in range(0, LARGE, 50_000):
                stack.run(
                    f"INSERT INTO d.big SELECT seq, seq % 997, MD5(seq) FROM d.seq_{first + 1}_to_{first + 50_000}"
                )
            stack.captured(timeout_s=600)
            amount = RATE * PACED_S // WRITERS
            calls = [f"CALL d.paced({each}, {amount}, {WRITERS / RATE})" for each in range(WRITERS)]
            writers = [threading.Thread(target=stack.run, args=(call,)) for call in calls]
            with Watch(stack.supervisor.pid(CAPTURE)) as watch:
                for each in writers:
                    each.start()
                seconds = []
                while any(each.is_alive() for each in writers):
                    seconds.append(_behind(stack, "INSERT INTO d.t (pad) VALUES ('probe')"))
                    time.sleep(PROBE_S)
            paced = {f"{name}_ms": 1000 * at(sorted(seconds)) for name, at in _QUANTILES.items()}
            large = _behind(stack, "UPDATE d.big SET k = k + 1")
            samples.append(watch.sample(WRITERS * amount, **paced, update_of_2m_rows_s=large))
    return Result("capture_lag", "transactions/s", samples, "the rate that the writers are held to", RATE)


def _behind(stack: CapturedStack, statement: str) -> float:
    """Seconds from the answer to a transaction until the journal has it."""
    with stack.source() as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        answered = time.perf_counter()
        cursor.execute("SELECT @@last_gtid")
        wanted = int(str(cursor.fetchall()[0][0]).rpartition("-")[2])
    folder = stack.read_settings.capture.directory / "journal"
    while True:
        with max(folder.iterdir()).open("rb") as file:
            file.seek(-min(1 << 16, file.seek(0, os.SEEK_END)), os.SEEK_END)
            decided = re.findall(rb'"gtid": ?"0-1-([0-9]+)"', file.read())
        if decided and int(decided[-1]) >= wanted:
            return time.perf_counter() - answered
        time.sleep(0.005)


def _commits(stack: CapturedStack, count: int) -> list[float]:
    """Seconds of each, in ascending order."""
    seconds = []
    with stack.source() as connection, connection.cursor() as cursor:
        for _ in range(count):
            began = time.perf_counter()
            cursor.execute("INSERT INTO d.t (pad) VALUES (REPEAT('x', 120))")
            seconds.append(time.perf_counter() - began)
    return sorted(seconds)


BENCHES: dict[str, Callable[[Path, int], Result]] = {
    "capture_run": _run,
    "capture_large": _large,
    "capture_semi_sync": _semi_sync,
    "capture_lag": _lag,
}
