"""Tries a restore: the tables of a random moment are built on a server, proved against the archive, and dropped again.

It runs by the setting `airflow.drill_cron`, or by hand. The task `clean` drops what is left, however the drill ended.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Param

from binlog_airflow import tasks
from binlog_airflow.operators import PumphouseDrillOperator, PumphouseOperator, run_of
from binlog_airflow.workflows.names import Names

if TYPE_CHECKING:
    from airflow.sdk import Context


class CleanOperator(PumphouseOperator):
    """Drops what a drill that was killed has left; returns the seed of the next one, which a retry of it keeps."""

    def work(self, context: Context) -> Any:
        """On the server that the form names."""
        tasks.clean_drill(str(context["params"]["into"]), run_of(context), self.here)
        return tasks.drill_seed(context["params"]["seed"])


def make(names: Names) -> DAG:
    """Archive -> a server -> nothing."""
    settings = names.parsed("airflow", "drill")
    with names.dag(
        "binlog_drill",
        __doc__,
        schedule=names.cron("drill_cron") or None,
        description="Tries a restore, proves it, throws it away.",
        params={
            "into": Param(
                settings.drill.into,
                type="string",
                title="Server",
                description="restore_target, target, or NAME of [targets.NAME]; the setting drill.into",
            ),
            "whole": Param(
                settings.drill.whole,
                type="boolean",
                title="Everything",
                description="restore all that the source had, onto an empty server for drills; the setting drill.whole",
            ),
            "at": Param(
                None,
                type=["null", "string"],
                title="Moment",
                description="a TIME as for pumphouse restore; empty: one is drawn",
            ),
            "seed": Param(
                None, type=["null", "integer"], minimum=0, title="Seed", description="draw what this number drew before"
            ),
        },
    ) as dag:
        prepare = CleanOperator(task_id="prepare", execution_timeout=timedelta(hours=1))
        drill = PumphouseDrillOperator(
            task_id="drill",
            into="{{ params.into }}",
            at="{{ params.at or '' }}",
            whole="{{ params.whole }}",
            seed=prepare.output,
            execution_timeout=timedelta(hours=24),
        )
        clean = CleanOperator(task_id="clean", execution_timeout=timedelta(hours=1))
        drill >> clean.as_teardown(setups=prepare)
    return dag
