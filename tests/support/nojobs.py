"""A DDL history without jobs, for archives that need none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pumphouse.model.table import Job


class NoJobHistory:
    """`pumphouse.schema.history.JobSource`."""

    def job(self, job_id: int) -> Job | None:
        """None."""
        del job_id

    def jobs(self, *, after_id: int = 0) -> Iterator[Job]:
        """Nothing."""
        del after_id
        return iter(())


class _NoJobs(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"null")

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def status_api() -> Iterator[str]:
    """URL of a TiDB's status API that knows of no jobs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _NoJobs)
    threading.Thread(target=partial(server.serve_forever, 0.01), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
