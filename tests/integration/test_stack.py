"""The parts of the local stack start, answer and end."""

from pathlib import Path

import psutil
import pymysql
import pytest

from pumphouse.stack.mariadb import MariaDbServer
from pumphouse.stack.supervisor import Supervisor, tagged


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
