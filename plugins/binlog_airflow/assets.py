"""The assets that join the DAGs. An event's ``extra`` says which window moved it."""

from __future__ import annotations

from airflow.sdk import Asset

ARCHIVE = Asset(name="pumphouse_archive", uri="x-pumphouse://archive/main")
SCHEMA = Asset(name="pumphouse_schema", uri="x-pumphouse://schema/main")
TARGET = Asset(name="pumphouse_target", uri="x-pumphouse://target/main")
