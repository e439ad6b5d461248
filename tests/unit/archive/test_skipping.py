import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from pumphouse.archive.skipping import binlog_skipped
from pumphouse.settings import TlsSettings


@pytest.fixture
def tidb():
    class Handler(BaseHTTPRequestHandler):
        answer = b"{}"

        def do_GET(self):
            assert self.path == "/binlog/recover?op=status"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.answer)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Handler, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.row("A2")
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (json.dumps({"Skipped": True, "SkippedCommitterCounter": 2}), True),
        (json.dumps({"Skipped": False, "SkippedCommitterCounter": 0}), False),
        ("[]", None),
        ("no json", None),
    ],
)
def test_a_tidb_that_skips_binlogs_is_asked_and_believed(tidb, answer, says):
    handler, url = tidb
    handler.answer = answer.encode()
    assert binlog_skipped(url, TlsSettings()) is says


def test_nobody_is_asked_where_no_status_api_is_known():
    for url in ("", "mysql://root@127.0.0.1:1/a.b", "http://127.0.0.1:9"):
        assert binlog_skipped(url, TlsSettings()) is None


@pytest.mark.row("A2")
def test_the_manifest_says_that_binlogs_were_skipped(world, monkeypatch):
    world.pump()
    world.init()
    monkeypatch.setattr("pumphouse.archive.commit.binlog_skipped", lambda *_: True)
    assert world.snapshot()[0].binlog_skipped is True
    assert world.archive.windows()[0].binlog_skipped is True
