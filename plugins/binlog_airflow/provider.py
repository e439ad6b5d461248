"""What Airflow asks a provider package: its connection types and their forms."""

from __future__ import annotations

from typing import Any

_TEXT = {"type": ["string", "null"]}


def get_provider_info() -> dict[str, Any]:
    """Entry point ``apache_airflow_provider``."""
    return {
        "package-name": "pumphouse",
        "name": "Pumphouse",
        "description": "Batch replication and point-in-time restore for TiDB Binlog.",
        "connection-types": [
            {
                "hook-class-name": "binlog_airflow.hooks.ArchiveHook",
                "hook-name": "Pumphouse archive",
                "connection-type": "pumphouse_archive",
                "conn-fields": {
                    "root": {"label": "Root (s3://bucket/prefix or file:///dir)", "schema": _TEXT},
                    "archive_id": {"label": "Archive id", "schema": _TEXT},
                    "s3_endpoint": {"label": "S3 endpoint (empty = AWS)", "schema": _TEXT},
                    "s3_region": {"label": "S3 region", "schema": _TEXT},
                },
            },
            {
                "hook-class-name": "binlog_airflow.hooks.ClusterHook",
                "hook-name": "Pumphouse cluster",
                "connection-type": "pumphouse_cluster",
                "conn-fields": {
                    "url": {"label": "Cluster (pd://…, etcd://… or file:///dir)", "schema": _TEXT},
                    "history": {"label": "DDL history (http://tidb:10080 or mysql://…)", "schema": _TEXT},
                    "tls_ca": {"label": "CA file", "schema": _TEXT},
                    "tls_cert": {"label": "Certificate file", "schema": _TEXT},
                    "tls_key": {"label": "Key file", "schema": _TEXT},
                },
            },
            {
                "hook-class-name": "binlog_airflow.hooks.DownstreamHook",
                "hook-name": "Pumphouse downstream",
                "connection-type": "pumphouse_downstream",
                "conn-fields": {
                    "task": {"label": "Task (key of the checkpoint)", "schema": _TEXT},
                    "schema_name": {"label": "Schema of our tables on the target", "schema": _TEXT},
                    "tls_ca": {"label": "CA file of the server", "schema": _TEXT},
                },
            },
        ],
    }
