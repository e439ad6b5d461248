"""Dumps the source while it is written to: every moment behind the dump can then be restored.

Trigger it by hand, at any time; the source is the connection `pumphouse_source`. A try that was killed is gone on with
by the next one.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from binlog_airflow.operators import PumphouseDumpOperator
from binlog_airflow.workflows.names import Names


def make(names: Names) -> DAG:
    """Source -> a base in the archive."""
    with names.dag(
        "binlog_dump",
        __doc__,
        schedule=None,
        description="Dumps the source; started by hand.",
        params={
            "tables": Param(
                None,
                type=["null", "array"],
                items={"type": "string"},
                title="Tables",
                description="database.table or database.*, one a line: only these are read, and the rest is taken "
                "over from the newest dump; empty: everything",
            ),
        },
    ) as dag:
        # A DagParam in a template field keeps Airflow 3.1 from reading the DAG.
        PumphouseDumpOperator(
            task_id="dump",
            tables="{{ (params.tables or []) | join('\n') }}",
            outlets=[names.assets.archive],
            execution_timeout=timedelta(hours=24),
        )
    return dag
