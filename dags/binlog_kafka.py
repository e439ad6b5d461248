"""Sends each new window of the archive to a topic of Kafka, every transaction once and in commit order.

It follows the archive if `airflow.kafka` is true. Trigger it by hand the first time, with the moment that the topic
begins at. The brokers are those of the connection `pumphouse_kafka`, or of the section `kafka` of the settings.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Param, dag, get_current_context, task

from binlog_airflow import assets, tasks
from binlog_airflow.retry import default_args, one_sentence
from pumphouse.settings import Settings


@dag(
    schedule=[assets.SCHEMA] if Settings.read_only("airflow").airflow.kafka else None,
    description="Sends new windows of the archive to Kafka.",
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=default_args(),
    params={
        "from": Param(
            None,
            type=["null", "string"],
            title="From",
            description="moment or TSO that an empty topic begins at; empty: where the topic stands",
        ),
        "anew": Param(
            default=False,
            type="boolean",
            title="Begin anew",
            description="begin at From whatever the topic has: what lies between is missing from it then, or is there "
            "twice",
        ),
    },
    tags=["pumphouse"],
    doc_md=__doc__,
)
def binlog_kafka() -> None:
    """Archive -> Kafka."""

    @task(outlets=[assets.KAFKA], execution_timeout=timedelta(hours=12))
    @one_sentence
    def send(*, outlet_events: Any = None) -> dict[str, Any]:
        """From where the topic stands to the archive's end."""
        form = tasks.form_of(get_current_context())
        done = tasks.send_to_kafka(form["from"], anew=form["anew"])
        outlet_events[assets.KAFKA].extra = assets.moved(done["to_ts"], topic=done["topic"], messages=done["messages"])
        return done

    send()


binlog_kafka()
