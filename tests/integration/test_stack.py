"""The parts of the local stack start, answer and end."""

import subprocess
from pathlib import Path

import psutil
import pymysql
import pytest

from pumphouse.model.node import NodeKind, NodeState
from pumphouse.registry.open import open_cluster
from tests.stack.local import LocalStack
from tests.stack.mariadb import MariaDbServer
from tests.stack.pumps import PumpProcess
from tests.stack.s3 import S3Server
from tests.stack.supervisor import StackError, Supervisor, tagged


def test_a_command_of_a_stack_that_was_ended_says_what_starts_it(tmp_path: Path) -> None:
    stack = LocalStack(tmp_path / "a b" / "up", store="file")
    stack.write_command("says", ["-c", "print('here')"], {})
    stack.write_command("alone", ["-c", "print('here')"], {}, alone=True)

    def said(name: str) -> tuple[int, str, str]:
        ended = subprocess.run([stack.directory / "bin" / name], check=False, capture_output=True, text=True)
        return ended.returncode, ended.stdout, ended.stderr

    nothing = f"nothing of {stack.directory} runs: `make up` starts it\n"
    assert said("says") == (1, "", nothing)
    assert said("alone") == (0, "here\n", nothing)
    stack.supervisor.start("part", ["sleep", "60"])
    assert said("says") == said("alone") == (0, "here\n", "")
    stack.stop()
    assert said("says") == (1, "", nothing)


def test_mariadb_keeps_data_and_address_over_a_restart_and_ends(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "run")
    server = MariaDbServer(
        tmp_path / "a rather long directory name that makes a socket path too long for the system" / "db",
        supervisor=supervisor,
    )
    with server:
        connection = server.connect(autocommit=True)
        with connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE d")
            cursor.execute("CREATE TABLE d.t (a INT PRIMARY KEY)")
            cursor.execute("INSERT INTO d.t VALUES (7)")
        connection.close()
        with pytest.raises(pymysql.err.OperationalError):
            pymysql.connect(host="127.0.0.1", port=server.port, user="root", password="")
        pid = supervisor.pid("mariadb")
        assert pid is not None
    assert not psutil.pid_exists(pid)
    again = MariaDbServer(server.directory, supervisor=supervisor)
    with again:
        assert (again.port, again.password) == (server.port, server.password)
        connection = again.connect()
        with connection.cursor() as cursor:
            cursor.execute("SELECT a FROM d.t")
            assert cursor.fetchall() == ((7,),)
        connection.close()
    assert tagged(supervisor.tag) == []


def test_the_s3_server_has_its_bucket_and_ends(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "run")
    with S3Server(supervisor) as server:
        client = server.client()
        client.put_object(Bucket=server.bucket, Key="a", Body=b"x", IfNoneMatch="*")
        with pytest.raises(client.exceptions.ClientError, match="PreconditionFailed"):
            client.put_object(Bucket=server.bucket, Key="a", Body=b"y", IfNoneMatch="*")
        client.close()
    assert tagged(supervisor.tag) == []


def test_a_killed_pump_comes_back_on_its_address_with_its_data(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "run")
    url = f"file://{tmp_path}/cluster"
    pump = PumpProcess(
        supervisor,
        node_id="p1",
        data_dir=tmp_path / "p1",
        cluster_url=url,
        settings={"stop_write_at_available_bytes": 0},
    )
    try:
        pump.start()
        before = pump.addr
        pump.kill()
        assert pump.pid is None
        pump.start()
        assert pump.addr == before
        cluster = open_cluster(url)
        status = cluster.node(NodeKind.PUMP, "p1")
        assert status is not None
        assert status.extra is not None
        assert status.extra.start_count == 2
        pump.stop()
        stopped = cluster.node(NodeKind.PUMP, "p1")
        assert stopped is not None
        assert stopped.state == NodeState.PAUSED
        cluster.close()
    finally:
        supervisor.stop_all()
    assert tagged(supervisor.tag) == []


def test_two_commands_do_not_meet_in_one_directory(tmp_path: Path) -> None:
    one, other = LocalStack(tmp_path), LocalStack(tmp_path)
    one.lock()
    with pytest.raises(StackError, match="another command"):
        other.lock()
    one.unlock()
    other.lock()
    other.unlock()
