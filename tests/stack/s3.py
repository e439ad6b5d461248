"""An S3 server of our own: moto on a free loopback port. It keeps objects in memory, so it lives as long as the run."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tests.stack.ports import free_port, listening
from tests.stack.supervisor import StackError, Supervisor

if TYPE_CHECKING:
    from werkzeug.serving import BaseWSGIServer

BUCKET = "pumphouse"
REGION = "us-east-1"
ACCESS_KEY = "pumphouse"
SECRET_KEY = "not-a-secret"


class S3Server:
    """One moto server with one bucket; as a context manager it starts and stops."""

    def __init__(self, supervisor: Supervisor, *, name: str = "s3", bucket: str = BUCKET) -> None:
        self.supervisor = supervisor
        self.name = name
        self.bucket = bucket
        self.port = 0

    @property
    def endpoint(self) -> str:
        """Address for ``archive.s3_endpoint``."""
        return f"http://127.0.0.1:{self.port}"

    def settings(self, prefix: str = "archive") -> dict[str, str]:
        """The ``[archive]`` settings of an archive on this server."""
        return {
            "root": f"s3://{self.bucket}/{prefix}",
            "s3_endpoint": self.endpoint,
            "s3_region": REGION,
            "s3_access_key": ACCESS_KEY,
            "s3_secret_key": SECRET_KEY,
        }

    def client(self) -> Any:
        """A boto3 client."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )

    def start(self) -> Self:
        """Start, wait until it listens, make the bucket."""
        for attempt in range(5):
            self.port = free_port()
            self.supervisor.start(self.name, [sys.executable, "-W", "ignore", "-m", "tests.stack.s3", str(self.port)])
            try:
                self.supervisor.wait_until(self.name, lambda: listening(self.port), timeout_s=180)
                break
            except StackError:
                if attempt == 4 or "in use" not in self.supervisor.tail(self.name).lower():
                    raise
        self.client().create_bucket(Bucket=self.bucket)
        return self

    def stop(self) -> None:
        """End it; what it held is gone."""
        self.supervisor.stop(self.name, timeout_s=2)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def new_server(port: int) -> BaseWSGIServer:
    """Moto, which checks a conditional put and carries it out in two steps: one PUT at a time. ``port`` 0: a free one."""
    from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    moto = DomainDispatcherApplication(create_backend_app)
    turn = threading.Lock()

    def application(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "PUT":
            return moto(environ, start)  # type: ignore[no-any-return]
        with turn:
            return list(moto(environ, start))

    return make_server("127.0.0.1", port, application, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    new_server(int(sys.argv[1])).serve_forever()
