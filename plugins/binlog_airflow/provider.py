"""What Airflow asks a provider package: its connection types and their forms."""

from __future__ import annotations

from typing import Any

_TEXT = {"type": ["string", "null"]}


def _connection(name: str, **fields: str) -> dict[str, Any]:
    """A connection type with the labels of its extra fields; the hook is named after it."""
    return {
        "hook-class-name": f"binlog_airflow.hooks.{name.capitalize()}Hook",
        "hook-name": f"Pumphouse {name}",
        "connection-type": f"pumphouse_{name}",
        "conn-fields": {field: {"label": label, "schema": _TEXT} for field, label in fields.items()},
    }


def get_provider_info() -> dict[str, Any]:
    """Entry point ``apache_airflow_provider``."""
    return {
        "package-name": "pumphouse",
        "name": "Pumphouse",
        "description": "Batch replication and point-in-time restore for TiDB Binlog.",
        "connection-types": [
            _connection(
                "archive",
                root="Root (s3://bucket/prefix or file:///dir)",
                archive_id="Archive id",
                s3_endpoint="S3 endpoint (empty = AWS)",
                s3_region="S3 region",
                s3_encryption="Encryption at rest (AES256, aws:kms; empty = the bucket's)",
                s3_kms_key="Key of KMS",
                s3_object_lock="true = the bucket has Object Lock",
                s3_base_class="Storage class of dumps and bases (empty = STANDARD)",
                copy_root="Root of the copy (another connection, with _copy behind this name, has its keys)",
            ),
            _connection(
                "cluster",
                url="Cluster (pd://…, etcd://… or file:///dir)",
                user="User of etcd",
                password="Password of that user",  # noqa: S106 - a label
                history="DDL history (http://tidb:10080 or mysql://…)",
                history_tls_ca="CA file of a mysql:// history",
                history_tls_check_name="false = its certificate need not name the host",
                tls_ca="CA file",
                tls_cert="Certificate file",
                tls_key="Key file",
                operator_token="Operators' token (docs/security.md)",  # noqa: S106 - a label
            ),
            _connection(
                "downstream",
                task="Task (key of the checkpoint)",
                schema_name="Schema of our tables on the target",
                tls_ca="CA file of the server",
                tls_check_name="false = its certificate need not name the host",
            ),
            _connection(
                "kafka",
                bootstrap_servers="Brokers (host:port[,…])",
                topic="Topic (empty = <cluster id>_obinlog)",
                tables="Tables (shop.*, audit.log; empty = all)",
                security_protocol="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL",
                sasl_mechanism="PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512",
                tls_ca="CA file of the brokers",
                tls_cert="Certificate file",
                tls_key="Key file",
            ),
            _connection(
                "source",
                tls_ca="CA file of the server",
                tls_check_name="false = its certificate need not name the host",
            ),
        ],
    }
