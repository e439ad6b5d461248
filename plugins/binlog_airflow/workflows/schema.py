"""Rebuilds the schema timeline from the DDL jobs of new windows."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from binlog_airflow.operators import PumphouseSchemaOperator
from binlog_airflow.workflows.names import Names


def make(names: Names) -> DAG:
    """Archive -> schema timeline."""
    with names.dag(
        "binlog_schema",
        __doc__,
        schedule=[names.assets.archive],
        description="Rebuilds the schema timeline from DDL history.",
    ) as dag:
        PumphouseSchemaOperator(task_id="rebuild", outlets=[names.assets.schema], execution_timeout=timedelta(hours=1))
    return dag
