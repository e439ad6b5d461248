"""Verifies the archive, folds a base, copies, lets go of what retention does not keep, packs, deletes orphans."""

from __future__ import annotations

from binlog_airflow.factory import pumphouse_dags

pumphouse_dags(only=["binlog_maintenance"])
