"""Loads the archive into the downstream databases, in safe mode: each target by itself, where there are several."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from binlog_airflow.operators import PumphouseLoadOperator
from binlog_airflow.workflows.names import Names


def make(names: Names) -> DAG:
    """Archive -> targets."""
    targets = list(names.parsed("airflow", "targets").loaded)
    with names.dag(
        "binlog_load",
        __doc__,
        schedule=[names.assets.schema],
        description="Loads the archive's newest windows into the targets.",
    ) as dag:
        facts: dict[str, Any] = {
            "task_id": "load",
            "outlets": [names.assets.target],
            "execution_timeout": timedelta(hours=12),
            "map_index_template": "{{ task.conn_id }}",
        }
        if len(targets) == 1:
            PumphouseLoadOperator(conn_id=targets[0], **facts)
        else:
            PumphouseLoadOperator.partial(**facts).expand(conn_id=targets)
    return dag
