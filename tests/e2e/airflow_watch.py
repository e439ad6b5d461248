"""What the demo asks of Airflow while its DAGs run."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Any

import psutil
import pymysql

from pumphouse.model.tso import Tso
from pumphouse.mysql.dsn import Dsn
from tests.stack.airflow_api import AirflowApi
from tests.stack.supervisor import Supervisor, descendants

SNAPSHOT, SCHEMA, LOAD, GC, RESTORE, APPLY = (
    "binlog_snapshot", "binlog_schema", "binlog_load", "pump_gc", "binlog_restore", "binlog_apply",
)  # fmt: skip
YES = "Approve"
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


def scheduled_windows(api: AirflowApi) -> int:
    """How many scheduled runs have committed a window."""
    runs = [run for run in api.runs(SNAPSHOT) if run["run_type"] == "scheduled" and run["state"] == "success"]
    return sum(api.result(SNAPSHOT, run["dag_run_id"], "commit") is not None for run in runs)


def span(run: dict[str, Any]) -> tuple[float, float]:
    """When an ended run began and ended, in seconds since the epoch."""
    began, ended = (datetime.fromisoformat(run[name]).timestamp() for name in ("start_date", "end_date"))
    return began, ended


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


def task_process(supervisor: Supervisor, task_id: str) -> psutil.Process | None:
    """The process in which Airflow runs a try of a task; it has the id of the task instance in its title."""
    for process in descendants(supervisor, "airflow-scheduler"):
        with suppress(psutil.Error):
            if " ".join(process.cmdline()).strip() == f"airflow worker -- {task_id}":
                return process
    return None
