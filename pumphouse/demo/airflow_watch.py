"""What the demo asks of Airflow while its DAGs run, and how it kills a load in the middle."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil
import pymysql

from include.model.tso import Tso
from pumphouse.stack.airflow_api import AirflowApi
from pumphouse.stack.dsn import Dsn
from pumphouse.stack.supervisor import StackError, Supervisor, descendants

SNAPSHOT, SCHEMA, LOAD, GC, RESTORE, APPLY = (
    "binlog_snapshot", "binlog_schema", "binlog_load", "pump_gc", "binlog_restore", "binlog_apply",
)  # fmt: skip
SCHEDULED = (SNAPSHOT, SCHEMA, LOAD, GC)


def failed_runs(api: AirflowApi) -> list[str]:
    """Runs that have failed, with the last lines of the log of the task that did."""
    runs = [(dag_id, run) for dag_id in (*SCHEDULED, RESTORE) for run in api.runs(dag_id)]
    failed = [(dag_id, run["dag_run_id"]) for dag_id, run in runs if run["state"] == "failed"]
    return [f"{dag_id} {run_id}: {failure(api, dag_id, run_id)}" for dag_id, run_id in failed]


def failure(api: AirflowApi, dag_id: str, run_id: str) -> str:
    """Why a run failed: the end of the log of its first failed task."""
    for task in api.tasks(dag_id, run_id):
        if task["state"] == "failed":
            log = api.log(dag_id, run_id, task["task_id"], task["try_number"], map_index=task["map_index"])
            return f"{task['task_id']}:\n" + "\n".join(log.splitlines()[-12:])
    return "no task failed"


def read_checkpoint(target: Dsn, task: str = "main") -> Tso:
    """How far a target is; 0 before its first load."""
    connection = target.connect(autocommit=True)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT ts FROM pumphouse.checkpoint WHERE task = %s", (task,))
            row = cursor.fetchone()
            return Tso(int(row[0])) if row else Tso(0)
    except pymysql.err.ProgrammingError:
        return Tso(0)
    finally:
        connection.close()


class LoadKiller(threading.Thread):
    """Kills the driver of a Spark load (``kill -9``), once units of it are applied and others are not."""

    def __init__(self, supervisor: Supervisor, api: AirflowApi, target: Dsn, told: Callable[[str], None]) -> None:
        super().__init__(name="load-killer", daemon=True)
        self._supervisor = supervisor
        self._api = api
        self._target = target
        self._told = told
        self._done = threading.Event()
        self.killed: dict[str, Any] | None = None

    def stop(self) -> None:
        """Give up."""
        self._done.set()
        self.join()

    def run(self) -> None:
        """Watch the target's plan and units."""
        while not self._done.wait(0.05):
            with suppress(pymysql.MySQLError, StackError, psutil.Error):
                if self._look():
                    return

    def _look(self) -> bool:
        connection = self._target.connect(autocommit=True)
        try:
            with connection.cursor() as cursor:
                while not self._done.is_set():
                    cursor.execute("SELECT task, number FROM pumphouse.plan WHERE state = 'open'")
                    plan = cursor.fetchone()
                    cursor.execute("SELECT COUNT(*) FROM pumphouse.applied")
                    applied = int((cursor.fetchone() or (0,))[0])
                    if plan and applied > 0:
                        if self._kill(applied):
                            return True
                        self._done.wait(0.2)
                    else:
                        self._done.wait(0.02)
        finally:
            connection.close()
        return False

    def _kill(self, applied: int) -> bool:
        for run in self._api.runs(LOAD):
            if run["state"] != "running":
                continue
            for task in self._api.tasks(LOAD, run["dag_run_id"]):
                # A task's process has the id of its instance in its title; other sessions (schema) go on.
                drivers = [pair for pair in spark_drivers(self._supervisor) if task["id"] in _title(pair[0])]
                if task["state"] == "running" and drivers:
                    for python, java in drivers:
                        python.kill()
                        with suppress(psutil.Error):
                            java.kill()
                    self.killed = {"run": run["dag_run_id"], "applied": applied, "at": time.time()}
                    self._told(f"killed the Spark load of {run['dag_run_id']} with {applied} units applied (kill -9)")
                    return True
        return False


def spark_drivers(supervisor: Supervisor) -> list[tuple[psutil.Process, psutil.Process]]:
    """(Python driver, JVM) of every Spark session under Airflow's scheduler."""
    found = []
    for process in descendants(supervisor, "airflow-scheduler"):
        with suppress(psutil.Error):
            if "java" in process.name():
                parent = process.parent()
                while parent is not None and "python" not in (parent.exe() or ""):
                    parent = parent.parent()
                if parent is not None:
                    found.append((parent, process))
    return found


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
