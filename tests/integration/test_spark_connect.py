"""Loads by a Spark Connect server of our own: one session an hour, one daemon, and none that stays for ever."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from pyspark.errors.exceptions.connect import PythonException, SparkConnectException, SparkConnectGrpcException

from pumphouse.errors import SparkUnavailable
from pumphouse.settings import SparkSettings
from spark_tasks.session import build_session, naming_loss
from tests.stack.spark import SparkConnectServer
from tests.stack.supervisor import Supervisor
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(900)
CODE = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "include")])}
# Which session this was, all in one hour, and which daemon had its workers; `release`: and the server ends the session.
_LOOK = """
import json, sys
from types import SimpleNamespace
from spark_tasks import session as made
made.time = SimpleNamespace(time=lambda: 1e9)
from pumphouse.settings import SparkSettings
from spark_tasks.session import build_session

def daemon(batches):
    import os
    import pyarrow as pa
    for _ in batches:
        yield pa.RecordBatch.from_pylist([{"pid": os.getppid()}])

session = build_session("look", SparkSettings(master=sys.argv[1]))
(row,) = session.range(0, 1, 1, 1).mapInArrow(daemon, "pid long").collect()
if sys.argv[2] == "release":
    session.client.release_session()
print(json.dumps([session.session_id, row.pid]))
session.stop()
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, quick_jvms: str) -> Iterator[str]:
    del quick_jvms
    directory = tmp_path_factory.mktemp("connect")
    # A worker that is left idle for another task would stay for a minute, and keep its daemon from its end.
    config = directory / "pumphouse.toml"
    config.write_text('[spark.conf]\n"spark.python.worker.reuse" = "false"\n')
    supervisor = Supervisor(directory / "run")
    server = SparkConnectServer(supervisor, master="local[1]")
    server.start(config)
    yield server.url
    supervisor.stop_all(timeout_s=0)


def look(url: str, then: str = "stop") -> Any:
    done = subprocess.run(
        [sys.executable, "-c", _LOOK, url, then], env=os.environ | CODE, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-9000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.row("O4")
def test_loads_of_an_hour_share_a_session_and_its_daemon_until_the_server_ends_it(url: str) -> None:
    first = look(url)
    assert look(url) == first
    daemon = psutil.Process(first[1])
    eventually(lambda: not daemon.children())
    daemon.terminate()
    daemon.wait(60)
    again = look(url, "release")
    assert again[0] == first[0]
    assert again[1] != first[1], "Spark starts another daemon where one has ended"
    after = look(url)
    assert after[0] != first[0]
    assert look(url) != after  # each of its own: the server does not begin the shared one again
    named = str(uuid.uuid4())
    assert look(f"{url}/;session_id={named}")[0] == named


@pytest.mark.row("O4")
def test_a_server_that_was_lost_is_named_and_may_be_tried_again_and_an_error_of_ours_stays_what_it_is() -> None:
    settings = SparkSettings(master="sc://127.0.0.1:1/;use_ssl=true")
    closed = SparkConnectException(errorClass="NO_ACTIVE_SESSION", messageParameters={})
    # As of a server that was killed during a call, and was back before the client gave up.
    began = "[RESPONSE_ALREADY_RECEIVED] INVALID_HANDLE.SESSION_NOT_FOUND on the server"
    gone = SparkConnectGrpcException("Connection refused", grpc_status_code=grpc.StatusCode.UNAVAILABLE)
    for error in (closed, SparkConnectGrpcException(began), gone):
        with (
            pytest.raises(SparkUnavailable, match=r"server sc://127\.0\.0\.1:1 was lost: ") as lost,
            naming_loss(settings),
        ):
            raise error
        assert lost.value.retryable
        with pytest.raises(type(error)), naming_loss(SparkSettings(master="spark://127.0.0.1:1")):
            raise error
    with pytest.raises(PythonException), naming_loss(settings):
        raise PythonException("KeyError: 'a bug'")


def test_a_server_that_does_not_answer_is_named_at_once() -> None:
    with pytest.raises(SparkUnavailable, match=r"sc://127\.0\.0\.1:1 does not answer.*connect_server"):
        build_session("look", SparkSettings(master="sc://127.0.0.1:1/;use_ssl=true"))


@pytest.mark.row("O4")
@pytest.mark.parametrize("session", ["default", "7c5c2a4c-6a5f-4d4e-9d0e-6b9f8f6f3c11"])
def test_the_daemon_of_a_connect_session_ends_when_it_has_had_no_worker_for_a_while(session: str) -> None:
    """Spark leaves it alone for good (SPARK-54055). That of an application stays, and one that has a worker."""
    code = "from spark_tasks import daemon; daemon._Idle.EVERY_S, daemon._Idle.ROUNDS = 0.1, 3; daemon.main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "pyspark.worker"],
        env=os.environ | CODE | {"SPARK_JOB_ARTIFACT_UUID": session, "PYTHON_WORKER_FACTORY_SECRET": "-"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        port = int.from_bytes(process.stdout.read(4), "big")
        with socket.create_connection(("127.0.0.1", port)) as worker:
            assert len(worker.recv(4)) == 4  # its pid
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(2)
        if session == "default":
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(2)
            process.terminate()
        assert process.wait(60) == 1
