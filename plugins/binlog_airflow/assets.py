"""The assets that join the DAGs. An event's ``extra`` says up to where it moved, as a TSO and as a clock time."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Asset

from binlog_airflow.xcom import clock_time

ARCHIVE = Asset(name="pumphouse_archive", uri="x-pumphouse://archive/main")
SCHEMA = Asset(name="pumphouse_schema", uri="x-pumphouse://schema/main")
KAFKA = Asset(name="pumphouse_kafka", uri="x-pumphouse://kafka/main")
TARGET = Asset(name="pumphouse_target", uri="x-pumphouse://target/main")


def moved(end: str | int, **facts: Any) -> dict[str, Any]:
    """The extra of an event: where its asset stands now, and what else there is to say, in small numbers and texts."""
    return {"end": str(end), "end_time": clock_time(int(end)), **facts}
