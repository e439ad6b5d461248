"""A DDL history without jobs, for archives that need none; and a TiDB's status API that knows of none, or of some."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

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


class _StatusApi(BaseHTTPRequestHandler):
    jobs: Callable[[], Iterable[Job]]

    def do_GET(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        start, limit = (int(asked.get(name, ["0"])[0]) for name in ("start_job_id", "limit"))
        found = sorted(
            (job.raw for job in type(self).jobs() if not start or job.id <= start), key=lambda job: -job["id"]
        )
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(found[: limit or None] or None).encode())

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def status_api(jobs: Callable[[], Iterable[Job]] = tuple) -> Iterator[str]:
    """URL of a TiDB's status API that knows of these jobs."""
    handler = type("_Handler", (_StatusApi,), {"jobs": staticmethod(jobs)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=partial(server.serve_forever, 0.01), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
