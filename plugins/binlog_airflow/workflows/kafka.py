"""Sends each new window of the archive to a topic of Kafka, every transaction once and in commit order.

It follows the archive if `airflow.kafka` is true. Trigger it by hand the first time, with the moment that the topic
begins at. The brokers are those of the connection `pumphouse_kafka`, or of the section `kafka` of the settings.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Param

from binlog_airflow import tasks
from binlog_airflow.hooks import KAFKA
from binlog_airflow.operators import PumphouseKafkaOperator
from binlog_airflow.workflows.names import Names

if TYPE_CHECKING:
    from airflow.sdk import Context


class SendOperator(PumphouseKafkaOperator):
    """What the run's form says."""

    def work(self, context: Context) -> Any:
        """From where the topic stands to the archive's end."""
        form = tasks.form_of(context)
        self.since, self.anew = form["from"] or None, form["anew"]
        return super().work(context)


def make(names: Names) -> DAG:
    """Archive -> Kafka."""
    with names.dag(
        "binlog_kafka",
        __doc__,
        schedule=[names.assets.schema] if names.parsed("airflow").airflow.kafka else None,
        description="Sends new windows of the archive to Kafka.",
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
                description="begin at From whatever the topic has: what lies between is missing from it then, or is "
                "there twice",
            ),
        },
    ) as dag:
        SendOperator(
            task_id="send",
            kafka_conn_id=f"{names.prefix}{KAFKA}",
            outlets=[names.assets.kafka],
            execution_timeout=timedelta(hours=12),
        )
    return dag
