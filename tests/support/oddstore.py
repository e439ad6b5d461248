"""An S3 server that keeps objects and answers every conditional put as it is told: a status, a body, no more."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from pydantic import SecretStr

from pumphouse.settings import ArchiveSettings

MISSING = b"<Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>"


class OddStore:
    """``with OddStore(501, b"<html>…") as server:``; ``also``: plain puts are answered so too."""

    def __init__(self, status: int, body: bytes, *, also: bool = False) -> None:
        objects: dict[str, bytes] = {}

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PUT(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                if also or self.headers["If-None-Match"]:
                    return self._answer(status, body)
                objects[self.path] = data
                return self._answer(200, b"")

            def do_GET(self) -> None:
                found = objects.get(self.path)
                self._answer(404, MISSING) if found is None else self._answer(200, found)

            def do_DELETE(self) -> None:
                self._answer(status, body) if also else self._answer(204, b"")

            def _answer(self, code: int, content: bytes) -> None:
                self.send_response(code)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def settings(self) -> ArchiveSettings:
        return ArchiveSettings(
            root="s3://bucket/archive",
            s3_endpoint=f"http://127.0.0.1:{self._server.server_port}",
            s3_access_key="k",
            s3_secret_key=SecretStr("s"),
        )

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
