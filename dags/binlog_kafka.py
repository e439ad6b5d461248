"""Sends each new window of the archive to a topic of Kafka, every transaction once and in commit order."""

from __future__ import annotations

from binlog_airflow.factory import pumphouse_dags

pumphouse_dags(only=["binlog_kafka"])
