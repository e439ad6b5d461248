"""S3 servers: moto in this process's own thread, on a free loopback port; and one that the environment names."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from typing import Any, Self

import boto3
from pydantic import SecretStr

from pumphouse.settings import ArchiveSettings
from tests.stack.s3 import new_server


class S3Server:
    """Each `archive_settings` call names a bucket of its own; they go with the server."""

    def __init__(self, endpoint: str = "", access_key: str = "test", secret_key: str = "test") -> None:
        self.endpoint, self._access_key, self._secret_key = endpoint, access_key, secret_key
        self._buckets: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        bucket = boto3.session.Session().resource("s3", **self._access())
        for name in self._buckets:
            bucket.Bucket(name).objects.all().delete()
            bucket.Bucket(name).delete()

    def _access(self) -> dict[str, str]:
        return {
            "endpoint_url": self.endpoint,
            "region_name": "us-east-1",
            "aws_access_key_id": self._access_key,
            "aws_secret_access_key": self._secret_key,
        }

    def client(self) -> Any:
        return boto3.session.Session().client("s3", **self._access())

    def archive_settings(self, **changes: Any) -> ArchiveSettings:
        if "root" not in changes:
            bucket = f"pumphouse-test-{secrets.token_hex(4)}"
            self.client().create_bucket(Bucket=bucket)
            self._buckets.append(bucket)
            changes["root"] = f"s3://{bucket}/archive"
        return ArchiveSettings(
            s3_endpoint=self.endpoint,
            s3_access_key=self._access_key,
            s3_secret_key=SecretStr(self._secret_key),
            **changes,
        )


class MotoServer(S3Server):
    """``with MotoServer() as server:``"""

    def __enter__(self) -> Self:
        self._server = new_server(0)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        # A line for each request would bury what a failing test says.
        logging.getLogger("werkzeug").setLevel(logging.WARNING)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def s3_server() -> S3Server:
    """That of ``S3_ENDPOINT`` (with ``S3_ACCESS_KEY`` and ``S3_SECRET_KEY``) where it is set, else moto."""
    endpoint = os.environ.get("S3_ENDPOINT")
    if not endpoint:
        return MotoServer()
    return S3Server(endpoint, os.environ.get("S3_ACCESS_KEY", ""), os.environ.get("S3_SECRET_KEY", ""))
