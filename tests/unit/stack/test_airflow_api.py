"""The client of Airflow's API where Airflow is slow: what is repeated, and what a repeated call must not do twice."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.stack.airflow_api import AirflowApi
from tests.stack.supervisor import StackError

RUNS = "/api/v2/dags/binlog_load/dagRuns"


class SlowAirflow(ThreadingHTTPServer):
    """Makes what it is asked to make, and does not answer the first ``mute`` of these calls in time."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.mute = 0
        self.broken = 0
        self.posts = 0
        self.made: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: SlowAirflow

    def do_GET(self) -> None:
        self._answer(200, {"backfills": [{"id": 7, "dag_run_conf": {"stop": "1"}}, {"id": 9, "dag_run_conf": {}}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/auth/token":
            self._answer(201, {"access_token": "t"})
            return
        airflow = self.server
        airflow.posts += 1
        if airflow.broken:
            airflow.broken -= 1
            self._answer(500, {"detail": "database is locked"})
            return
        key = body.get("dag_run_id") or body["dag_id"]
        if key in airflow.made:
            self._answer(409, {"detail": "exists"})
            return
        airflow.made.append(key)
        if airflow.mute:
            airflow.mute -= 1
            time.sleep(1.5)
        self._answer(200, {"dag_run_id": key, "id": 7})

    def _answer(self, code: int, body: Any) -> None:
        text = json.dumps(body).encode()
        with suppress(OSError):
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    def log_message(self, *arguments: Any) -> None:
        """Nothing on the terminal."""


@pytest.fixture
def airflow() -> Iterator[SlowAirflow]:
    server = SlowAirflow()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.row("O1")
def test_a_run_whose_start_is_not_answered_in_time_is_started_once(airflow: SlowAirflow) -> None:
    airflow.mute = 1
    run_id = AirflowApi(airflow.url, "admin", "x", timeout_s=0.5).trigger("binlog_load")
    assert airflow.made == [run_id]
    assert airflow.posts == 2


def test_a_backfill_that_is_not_answered_in_time_is_made_once(airflow: SlowAirflow) -> None:
    airflow.mute = 1
    assert AirflowApi(airflow.url, "admin", "x", timeout_s=0.5).backfill("binlog_apply", "a", "b", {"stop": "1"}) == 7
    assert airflow.made == ["binlog_apply"]


def test_a_backfill_of_somebody_else_is_not_taken_for_ours(airflow: SlowAirflow) -> None:
    airflow.broken = 1
    airflow.made.append("binlog_apply")
    with pytest.raises(StackError, match="another backfill"):
        AirflowApi(airflow.url, "admin", "x").backfill("binlog_apply", "a", "b", {"stop": "2"})


def test_a_locked_database_is_asked_again(airflow: SlowAirflow) -> None:
    airflow.broken = 2
    run_id = AirflowApi(airflow.url, "admin", "x").trigger("binlog_load")
    assert airflow.made == [run_id]


def test_what_exists_before_the_first_call_is_refused(airflow: SlowAirflow) -> None:
    airflow.made.append("binlog_apply")
    with pytest.raises(StackError, match="409"):
        AirflowApi(airflow.url, "admin", "x").backfill("binlog_apply", "a", "b", {})
    assert airflow.posts == 1
