"""A proxy before a real S3 server that does to requests what networks and busy servers do."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

import pytest

from pumphouse.settings import ArchiveSettings

_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_SLOW_S = 0.03
_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


class Fault(StrEnum):
    """What becomes of a request."""

    BUSY = "503 SlowDown, and nothing is done"
    SLOW = "it takes a while"
    UNANSWERED = "it is carried out, and the connection ends without an answer"
    TORN = "the connection ends amid the request, and nothing is done"
    CUT = "the connection ends amid the answer's body"


Decide = Callable[[str, str], Fault | None]


class FaultyS3:
    """``with FaultyS3(endpoint) as proxy: proxy.before(settings)``; what becomes of requests says ``decide``."""

    def __init__(self, endpoint: str) -> None:
        self._upstream = urlsplit(endpoint).netloc
        self._lock = threading.Lock()
        self._decide: Decide = lambda _method, _path: None
        self.requests: list[str] = []
        self.faults = 0
        proxy = self

        class Handler(_Handler):
            of = proxy

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """A client that went away."""

        self._server = Server(("127.0.0.1", 0), Handler)

    def before(self, settings: ArchiveSettings) -> ArchiveSettings:
        """The same archive through the proxy."""
        return settings.model_copy(update={"s3_endpoint": f"http://127.0.0.1:{self._server.server_port}"})

    def fault(self, method: str, path: str) -> Fault | None:
        """Of the next request."""
        with self._lock:
            self.requests.append(f"{method} {path}")
            found = self._decide(method, path)
            self.faults += found is not None
            return found

    @contextmanager
    def doing(self, decide: Decide) -> Iterator[None]:
        """Faults while the block runs."""
        with self._lock:
            self.requests, self.faults, self._decide = [], 0, decide
        try:
            yield
        finally:
            with self._lock:
                self._decide = lambda _method, _path: None

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, list[Any], bytes]:
        """The server's own."""
        connection = http.client.HTTPConnection(self._upstream, timeout=60)
        try:
            connection.request(method, path, body=body, headers=headers)
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            connection.close()

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    of: FaultyS3

    def _any(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        fault = self.of.fault(self.command, self.path)
        if fault is Fault.TORN:
            self.rfile.read(length // 2)
            self.close_connection = True
            return
        body = self.rfile.read(length)
        if fault is Fault.BUSY:
            self._send(503, [("Content-Type", "application/xml")], _SLOW_DOWN, len(_SLOW_DOWN))
            return
        if fault is Fault.SLOW:
            time.sleep(_SLOW_S)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in {"connection", "expect"}}
        status, answered, content = self.of.answer(self.command, self.path, headers, body)
        if fault is Fault.UNANSWERED or (fault is Fault.CUT and self.command != "GET"):
            self.close_connection = True
            return
        if self.command == "HEAD":
            length = int({name.lower(): value for name, value in answered}.get("content-length", 0))
            self._send(status, answered, b"", length)
            return
        sent = content[: len(content) // 2] if fault is Fault.CUT else content
        self._send(status, answered, sent, len(content))
        self.close_connection = self.close_connection or fault is Fault.CUT

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _any  # noqa: N815

    def _send(self, status: int, headers: list[Any], content: bytes, length: int) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in _HOP | {"server", "date"}:
                self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def from_the(number: int, fault: Fault) -> Decide:
    """Every request from this one on."""
    seen = 0

    def decide(_method: str, _path: str) -> Fault | None:
        nonlocal seen
        seen += 1
        return fault if seen > number else None

    return decide


def now_and_then(seed: int, share: float = 0.15) -> Decide:
    """So many requests, by chance, in every way; the same one no more than twice on end, as the SDK tries four times."""
    rng = random.Random(seed)
    on_end: dict[str, int] = {}

    def decide(method: str, path: str) -> Fault | None:
        asked = f"{method} {path}"
        if on_end.get(asked, 0) >= 2 or rng.random() >= share:
            on_end.pop(asked, None)
            return None
        on_end[asked] = on_end.get(asked, 0) + 1
        return rng.choice(list(Fault))

    return decide


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK waits next to nothing before it tries again."""

    class Clock:
        def __getattr__(self, name: str) -> Any:
            return getattr(time, name)

        def sleep(self, seconds: float) -> None:
            time.sleep(min(seconds, 0.005))

    monkeypatch.setattr("botocore.endpoint.time", Clock())
