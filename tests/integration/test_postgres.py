"""Airflow's database in the local stack: a real PostgreSQL, never as root, in directories that are closed to others."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from sqlalchemy.engine import make_url

from tests.stack.postgres import PostgresServer
from tests.stack.supervisor import Supervisor


def _connect(server: PostgresServer) -> Any:
    url = make_url(server.url)
    return psycopg.connect(host=url.query["host"], user=url.username, dbname=url.database, autocommit=True)


@pytest.mark.parametrize("depth", [0, 4], ids=["socket beside the data", "too deep for a socket"])
def test_it_keeps_its_data_over_a_kill_and_serves_on_no_port(tmp_path: Path, depth: int) -> None:
    tmp_path.chmod(0o700)
    directory = tmp_path.joinpath(*["a-directory-with-a-long-name"] * depth)
    supervisor = Supervisor(tmp_path / "run")
    server = PostgresServer(directory, supervisor=supervisor)
    try:
        server.start()
        with closing(_connect(server)) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 7 AS n")
        pid = supervisor.pid("postgres")
        process = psutil.Process(pid)
        if os.geteuid() == 0:
            assert process.uids().real != 0
        assert process.net_connections("tcp") == []
        others = process.children()
        supervisor.kill("postgres")
        psutil.wait_procs(others, timeout=20)

        again = PostgresServer(directory, supervisor=supervisor).start()
        assert again.url == server.url
        with closing(_connect(again)) as connection:
            assert connection.execute("SELECT n FROM kept").fetchall() == [(7,)]
        attached = PostgresServer(directory, supervisor=supervisor)
        assert attached.attach()
        assert attached.url == server.url
        again.stop()
        assert not attached.attach()
    finally:
        supervisor.stop_all()
