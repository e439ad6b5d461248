"""A real scheduler drives the apply DAG over intervals by `airflow backfill create`, onto a restored target (row R1)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from pumphouse.loader.target import TargetConnection
from pumphouse.model import tso
from pumphouse.registry.open import open_cluster
from pumphouse.runs import restore
from pumphouse.settings import Settings, TargetSettings
from pumphouse.stack.airflow import AirflowServer, connection_variables
from pumphouse.stack.supervisor import Supervisor
from tests.support import mariadb
from tests.support.madearchive import MadeSource, column, target_rows

pytestmark = [pytest.mark.row("R1", "O1"), pytest.mark.timeout(600)]
_MINUTE = 60_000


class World:
    """An archive of four one-minute windows, a target restored to the end of the first, and a running Airflow."""

    def __init__(self, work: Path, target: TargetSettings, supervisor: Supervisor) -> None:
        url = f"file://{work / 'cluster'}"
        self.source = MadeSource(work / "archive", open_cluster(url).cluster_id())
        self.target = target
        self.moments = self._write()
        env = {
            "PUMPHOUSE_CLUSTER__URL": url,
            "PUMPHOUSE_ARCHIVE__ROOT": self.source.settings.root,
            "PUMPHOUSE_LOAD__ENGINE": "local",
            "PUMPHOUSE_AIRFLOW__APPLY_CRON": "* * * * *",
        }
        self.settings = Settings.read(
            overrides={"cluster.url": url, "archive.root": self.source.settings.root, "load.engine": "local"}
        )
        connections = {
            "pumphouse_archive": {"conn_type": "pumphouse_archive", "extra": {"root": self.source.settings.root}},
            "pumphouse_cluster": {"conn_type": "pumphouse_cluster", "extra": {"url": url}},
            "pumphouse_restore": {
                "conn_type": "pumphouse_downstream",
                "host": target.host,
                "port": target.port,
                "login": target.user,
                "password": target.password.get_secret_value(),
                "extra": {"task": "main"},
            },
        }
        self.airflow = AirflowServer(
            work / "airflow",
            supervisor,
            environment={**env, **connection_variables(connections)},
            parts=("api-server", "scheduler", "dag-processor"),
        )
        self.airflow.start()
        self.api = self.airflow.api()
        self.api.wait_for_dags({"binlog_apply"})

    def _write(self) -> list[int]:
        source = self.source
        # Windows end at full minutes, as those of a scheduled snapshot do.
        source.ts = tso.compose(tso.physical_ms(source.ts) // _MINUTE * _MINUTE)
        source.create_table("t", [column(1, "id", flag=3), column(2, "v")])
        with source.txn() as txn:
            txn.insert("t", id=1, v=1)
        source.genesis()
        moments = []
        self.states: dict[int, Any] = {}
        for minute in range(1, 5):
            edge = tso.compose((tso.physical_ms(source.ts) // _MINUTE + 1) * _MINUTE)
            with source.txn() as txn:
                txn.insert("t", id=10 * minute, v=minute)
                txn.update("t", 1, v=minute)
            if minute == 3:
                source.add_column("t", column(3, "w", default="7", origin_default="7"))
            self.states[source.ts] = source.snapshot()
            with source.txn() as txn:
                txn.insert("t", id=10 * minute + 1, v=-minute)
            self.last = source.ts
            source.ts = edge - (10 << 18)
            source.cut()
            moments.append(edge)
        return moments

    def command(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "airflow", *args],
            env={**os.environ, **self.airflow.variables()},
            cwd=self.airflow.home,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def backfill(self, first: int, last: int, conf: dict[str, Any]) -> list[dict[str, Any]]:
        """Intervals that begin from the minute `first` to `last`; returns the runs that are new or ran again."""
        before = self.runs()
        # Nothing of it runs before all of it is there.
        self.api.unpause("binlog_apply", paused=True)
        done = self._create(
            before,
            "backfill", "create", "--dag-id", "binlog_apply", "--from-date", _iso(first), "--to-date", _iso(last),
            "--dag-run-conf", json.dumps(conf), "--max-active-runs", "1",
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        self.api.unpause("binlog_apply")
        return self.ended(before)

    def runs(self) -> dict[str, Any]:
        """When each run of the DAG ended, by its id."""
        return {r["dag_run_id"]: r.get("end_date") for r in self.api.runs("binlog_apply")}

    def _create(self, before: dict[str, Any], *args: str) -> subprocess.CompletedProcess[str]:
        """Airflow allows one backfill a DAG, and takes a moment to notice that the one before has ended.

        On SQLite its command ends with a locked database when the scheduler writes at the same time, and leaves the half
        of a backfill: that is taken back.
        """
        limit = time.monotonic() + 120
        while True:
            done = self.command(*args)
            locked = "database is locked" in done.stderr + done.stdout
            if not (locked or "AlreadyRunningBackfill" in done.stderr) or time.monotonic() > limit:
                return done
            if locked:
                self._take_back(before)

    def _take_back(self, before: dict[str, Any]) -> None:
        for each in self.api.call("GET", "/backfills?dag_id=binlog_apply&limit=100")["backfills"]:
            if each["completed_at"] is None:
                self.api.call("PUT", f"/backfills/{each['id']}/cancel")
        for run_id in self.runs().keys() - before.keys():
            self.api.call("DELETE", f"/dags/binlog_apply/dagRuns/{quote(run_id)}")

    def again(self, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Run them once more. (Reprocessing by the backfill command locks itself out on Airflow's SQLite.)"""
        before = self.runs()
        for run in sorted(runs, key=lambda r: str(r["logical_date"])):
            self.api.call(
                "POST", f"/dags/binlog_apply/dagRuns/{quote(run['dag_run_id'])}/clear", {"dry_run": False}, again=True
            )
        return self.ended(before)

    def ended(self, before: dict[str, Any]) -> list[dict[str, Any]]:
        limit = time.monotonic() + 180
        while time.monotonic() < limit:
            found = [r for r in self.api.runs("binlog_apply") if r["run_type"] == "backfill"]
            runs = [r for r in found if before.get(r["dag_run_id"]) != r.get("end_date")]
            if runs and all(r["state"] in ("success", "failed") for r in found):
                return runs
            time.sleep(0.5)
        raise AssertionError(f"the backfill did not end: {self.api.runs('binlog_apply')}")

    def checkpoint(self) -> int:
        with TargetConnection.open(self.target) as connection:
            return int(connection.query("SELECT ts FROM pumphouse.checkpoint WHERE task = 'main'")[0][0])

    def rows(self) -> Any:
        with TargetConnection.open(self.target) as connection:
            return target_rows(connection)


def _iso(ts: int) -> str:
    return tso.to_datetime(ts).isoformat()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    work = tmp_path_factory.mktemp("backfill")
    supervisor = Supervisor(work / "run")
    try:
        with mariadb.running(work / "mariadb") as target:
            yield World(work, target, supervisor)
    finally:
        supervisor.stop_all()


def test_a_backfill_applies_interval_by_interval_cuts_the_last_at_the_stop_and_needs_a_target(world: World) -> None:
    minutes = world.moments
    first_end = tso.Tso(minutes[0])
    restore.run(world.settings, target=world.target, to=first_end, dry_run=False)
    world.api.unpause("binlog_apply")

    # A gap is refused: the intervals before this one are left out.
    runs = world.backfill(minutes[2], minutes[2], {"target": "pumphouse_restore"})
    assert [r["state"] for r in runs] == ["failed"]
    assert world.checkpoint() == first_end

    stop = sorted(world.states)[2]
    assert minutes[1] < stop < minutes[2], "in the middle of the third window"
    runs = world.backfill(minutes[0], minutes[1], {"target": "pumphouse_restore", "stop": str(stop)})
    assert [r["state"] for r in runs] == ["success"] * 2
    assert world.checkpoint() == stop
    assert world.rows() == world.states[stop]

    # Once more changes nothing.
    again = world.again(runs)
    assert [r["state"] for r in again] == ["success"] * 2
    assert world.checkpoint() == stop
    assert world.rows() == world.states[stop]

    # A run without a target in its conf does nothing.
    two_days = timedelta(days=2).total_seconds() * 1000
    earlier = tso.compose(int(tso.physical_ms(minutes[0]) - two_days))
    idle = world.backfill(earlier, earlier, {})
    assert [r["state"] for r in idle] == ["success"]
    assert [t["state"] for t in world.api.tasks("binlog_apply", idle[0]["dag_run_id"])] == ["skipped"]
    assert world.checkpoint() == stop
