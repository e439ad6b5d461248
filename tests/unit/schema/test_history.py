"""DDL jobs from TiDB's status API, page by page."""

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
from pydantic import SecretStr

from pumphouse.errors import ConfigError, HistoryUnavailable, SchemaError
from pumphouse.schema.history import MysqlTableSource, TidbStatusSource, open_history
from pumphouse.settings import SchemaSettings
from tests.support.schemajobs import Source, int_col


class Status(BaseHTTPRequestHandler):
    """``/ddl/history`` as TiDB answers: newest first when a parameter is given, from `start_job_id` downwards."""

    jobs: ClassVar[list[dict[str, Any]]] = []
    inclusive = True
    broken = b""
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        parts = urlsplit(self.path)
        query = {k: int(v[0]) for k, v in parse_qs(parts.query).items()}
        rows = sorted(self.jobs, key=lambda j: -j["id"])
        start = query.get("start_job_id")
        if start:
            rows = [r for r in rows if (r["id"] <= start if self.inclusive else r["id"] < start)]
        body = self.broken or json.dumps(rows[: query["limit"]] or None, indent=1).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def status() -> Iterator[str]:
    source = Source()
    source.create_db("d")
    for n in range(25):
        source.create(f"d.t{n}", [int_col("a")])
    Status.jobs, Status.inclusive, Status.broken, Status.asked = [t.job.raw for t in source.jobs], True, b"", []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Status)
    threading.Thread(target=partial(server.serve_forever, 0.01), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.mark.row("S1")
@pytest.mark.parametrize("inclusive", [True, False])
@pytest.mark.parametrize("page", [2, 7, 26, 100])
def test_pages_are_put_together_whatever_a_page_begins_with(status: str, page: int, inclusive: bool) -> None:
    ids = sorted(j["id"] for j in Status.jobs)
    Status.inclusive = inclusive
    if not inclusive:
        page = max(page, 3)
    source = TidbStatusSource(status, page=page)
    assert [j.id for j in source.jobs()] == ids
    assert [j.id for j in source.jobs(after_id=ids[20])] == ids[21:]
    assert list(source.jobs(after_id=ids[-1])) == []


@pytest.mark.row("S1")
def test_only_what_is_new_is_read(status: str) -> None:
    ids = sorted(j["id"] for j in Status.jobs)
    list(TidbStatusSource(status, page=5).jobs(after_id=ids[-3]))
    assert len(Status.asked) == 1


@pytest.mark.row("S1")
def test_one_job_by_id_or_not_yet(status: str) -> None:
    source = TidbStatusSource(status)
    wanted = Status.jobs[7]
    found = source.job(wanted["id"])
    assert found is not None
    assert found.raw == wanted
    assert source.job(wanted["id"] + 10_000) is None
    Status.jobs = []
    assert source.job(wanted["id"]) is None
    assert list(source.jobs()) == []


def test_a_source_that_does_not_answer_is_worth_another_try(status: str) -> None:
    Status.broken = b"<html>"
    with pytest.raises(SchemaError, match="JSON"):
        TidbStatusSource(status).job(1)
    with pytest.raises(HistoryUnavailable) as caught:
        TidbStatusSource("http://127.0.0.1:1").job(1)
    assert caught.value.retryable


def test_the_setting_names_the_source() -> None:
    assert open_history(SchemaSettings()) is None
    assert isinstance(open_history(SchemaSettings(history="http://tidb:10080")), TidbStatusSource)
    table = open_history(
        SchemaSettings(history="mysql://me%40x@db:3307/src.ddl_history", history_password=SecretStr("geheim"))
    )
    assert isinstance(table, MysqlTableSource)
    assert table.url == "mysql://me@x@db:3307/src.ddl_history"
    for bad in ("ftp://x", "mysql://root@db:3306/nothing", "tidb:10080"):
        with pytest.raises(ConfigError):
            open_history(SchemaSettings(history=bad))
