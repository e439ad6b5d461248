"""An S3 server (moto) in this process's own thread, on a free loopback port."""

from __future__ import annotations

import logging
import secrets
from typing import Any, Self

import boto3
from pydantic import SecretStr

from pumphouse.settings import ArchiveSettings


class MotoServer:
    """``with MotoServer() as server:``; each `archive_settings` call names a bucket of its own."""

    def __enter__(self) -> Self:
        from moto.server import ThreadedMotoServer

        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        # A line for each request would bury what a failing test says.
        logging.getLogger("werkzeug").setLevel(logging.WARNING)
        host, port = self._server.get_host_and_port()
        self.endpoint = f"http://{host}:{port}"
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.stop()

    def client(self) -> Any:
        return boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )

    def archive_settings(self, **changes: Any) -> ArchiveSettings:
        if "root" not in changes:
            bucket = f"bucket-{secrets.token_hex(4)}"
            self.client().create_bucket(Bucket=bucket)
            changes["root"] = f"s3://{bucket}/archive"
        return ArchiveSettings(
            s3_endpoint=self.endpoint, s3_access_key="test", s3_secret_key=SecretStr("test"), **changes
        )
