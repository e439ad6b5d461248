"""Tries a restore: the tables of a random moment are built on a server, proved against the archive, and dropped again.

It runs by the setting `airflow.drill_cron`, or by hand. The task `clean` drops what is left, however the drill ended.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Param, dag, get_current_context, task

from binlog_airflow import tasks
from binlog_airflow.retry import default_args, one_sentence
from pumphouse.settings import Settings

_SETTINGS = Settings.read_only("airflow", "drill")


@dag(
    schedule=_SETTINGS.airflow.drill_cron or None,
    description="Tries a restore, proves it, throws it away.",
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=default_args(),
    params={
        "into": Param(
            _SETTINGS.drill.into,
            type="string",
            title="Server",
            description="restore_target, target, or NAME of [targets.NAME]; the setting drill.into",
        ),
        "whole": Param(
            _SETTINGS.drill.whole,
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
    tags=["pumphouse"],
    doc_md=__doc__,
)
def binlog_drill() -> None:
    """Archive -> a server -> nothing."""

    @task(execution_timeout=timedelta(hours=1))
    @one_sentence
    def prepare() -> int:
        """Drop what a drill that was killed has left; choose the seed, which a retry of the drill keeps."""
        context = get_current_context()
        tasks.clean_drill(str(context["params"]["into"]), context["run_id"])
        return tasks.drill_seed(context["params"]["seed"])

    @task(execution_timeout=timedelta(hours=24))
    @one_sentence
    def drill(seed: int) -> dict[str, Any]:
        """Restore, prove, drop; the proof is the XCom `proven`, whatever it found."""
        context = get_current_context()
        params = context["params"]
        done, proof = tasks.drill_server(
            str(params["into"]), params["at"], seed, context["run_id"], whole=bool(params["whole"])
        )
        context["ti"].xcom_push("proven", proof)
        tasks.require_equal(proof)
        return done

    @task(execution_timeout=timedelta(hours=1))
    @one_sentence
    def clean() -> None:
        """Drop what is left."""
        context = get_current_context()
        tasks.clean_drill(str(context["params"]["into"]), context["run_id"])

    prepared = prepare()
    done = drill(prepared)
    done >> clean().as_teardown(setups=prepared)


binlog_drill()
