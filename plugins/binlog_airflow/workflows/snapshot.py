"""Extends the archive up to the end of the run's interval: one mapped task a Pump, one task that commits the window.

A run that is triggered by hand has no interval: it extends the archive up to now.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task

from binlog_airflow import tasks
from binlog_airflow.operators import PumphouseCommitOperator, PumphousePlanOperator, PumphousePullOperator
from binlog_airflow.retry import one_sentence
from binlog_airflow.served import CronDataIntervalTimetable
from binlog_airflow.workflows.names import Names


def make(names: Names) -> DAG:
    """Pumps -> archive."""
    with names.dag(
        "binlog_snapshot",
        __doc__,
        schedule=CronDataIntervalTimetable(names.cron("snapshot_cron"), timezone="UTC"),
        description="Archives what all Pumps have in commit order, one window a run.",
    ) as dag:

        @task
        @one_sentence
        def nodes(found: dict[str, Any]) -> list[str]:
            """Ids of the Pumps to pull."""
            return tasks.node_ids(found)

        plan = PumphousePlanOperator(task_id="plan", execution_timeout=timedelta(minutes=5)).output
        # The task is named by its Pump from its start on, not by a number.
        pull = PumphousePullOperator.partial(
            task_id="pull",
            plan=plan,
            execution_timeout=timedelta(hours=2),
            map_index_template="{{ task.pump_id }}",
        ).expand(pump_id=nodes(plan))
        PumphouseCommitOperator(
            task_id="commit",
            plan=plan,
            reports=pull.output,
            outlets=[names.assets.archive],
            execution_timeout=timedelta(hours=2),
        )
    return dag
