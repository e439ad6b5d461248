"""A captured source that fails over: two replicating servers, the primary killed, the other one promoted."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest

from pumphouse.capture.passed import waiter
from pumphouse.capture.primary import find_primary, lacks
from pumphouse.errors import BinlogError, SourceFailed, WindowHeld
from pumphouse.registry.base import CaptureState
from pumphouse.runs import restore
from tests.stack.local import CAPTURE
from tests.stack.mariadb import MariaDbServer
from tests.stack.ports import free_port
from tests.support import mariadb
from tests.support.capturedstack import CapturedStack, captured_stack
from tests.support.capturing import arguments, rows_of, run
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.row("Q1", "Q2"),
    pytest.mark.mariadb("each MySQL of the tests makes a CA of its own, all of one name: no file has those of two"),
]


class TwoServers(CapturedStack):
    """``source`` and its replica ``heir``; the history lies on ``notes``, which does not fail."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        for name, server_id in (("heir", 2), ("notes", 3)):
            self.databases[name] = MariaDbServer(
                self.directory / name,
                name=name,
                supervisor=self.supervisor,
                durable=True,
                arguments=arguments(server_id),
            )
        for name in ("source", "heir", "notes"):  # one user for all of them
            (self.directory / name).mkdir(parents=True)
            (self.directory / name / "identity").write_text(f"{free_port()} secret-of-all\n")

    def _history(self) -> str:
        notes = self.dsn("notes")
        return f"mysql://{notes.user}@{notes.host}:{notes.port}/history.jobs"

    def write_settings(self) -> None:
        """The heir may take the source's place."""
        self.settings["capture"]["hosts"] = [f"{self.dsn('heir').host}:{self.dsn('heir').port}"]
        super().write_settings()

    def replicate(self) -> None:
        """From now on the heir has what the source has."""
        source = self.databases["source"]
        with source.connect(autocommit=True) as connection:
            ((now,),) = rows_of(connection, "SELECT @@global.gtid_binlog_pos")
        self.on_heir(
            "RESET MASTER",
            f"SET GLOBAL gtid_slave_pos = '{now}'",
            f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {source.port}, MASTER_USER = 'root',"
            f" MASTER_PASSWORD = '{source.password}', MASTER_USE_GTID = slave_pos",
            "START SLAVE",
            "SET GLOBAL read_only = ON",
        )

    def on_heir(self, *statements: str) -> None:
        with self.databases["heir"].connect(autocommit=True) as connection:
            run(connection, *statements)

    def has(self, server: str, rows: int) -> bool:
        with self.databases[server].connect(autocommit=True) as connection:
            return rows_of(connection, "SELECT COUNT(*) FROM shop.a") == [(rows,)]

    def promote(self) -> None:
        """The source is dead: the heir takes its place."""
        self.on_heir("STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL read_only = OFF")
        self.databases["source"] = self.databases["heir"]


@contextmanager
def two_servers(directory: Path) -> Iterator[TwoServers]:
    stack = TwoServers(directory)
    try:
        stack.start_stores(s3=False)
        stack.start_pumps()
        stack.replicate()
        stack.run("CREATE DATABASE shop", "CREATE TABLE shop.a (id INT PRIMARY KEY)", "INSERT INTO shop.a VALUES (1)")
        stack.start_capture()
        stack.begin()
        yield stack
    except BaseException:
        print(stack.supervisor.tail(CAPTURE, 60))
        raise
    finally:
        stack.stop(timeout_s=0)


def wait_for(seen: Any, timeout_s: float = 120) -> None:
    until = time.monotonic() + timeout_s
    while not seen():
        assert time.monotonic() < until
        time.sleep(0.2)


def test_it_goes_on_at_the_server_that_was_promoted() -> None:
    with mariadb.directory_in_memory() as directory, two_servers(directory) as stack:
        stack.run(*(f"INSERT INTO shop.a VALUES ({number})" for number in range(2, 20)))
        wait_for(lambda: stack.has("heir", 19))
        stack.supervisor.kill("source")
        time.sleep(3)  # nobody is the source: it waits
        assert stack.supervisor.alive(CAPTURE)
        settings, port = stack.read_settings, stack.databases["heir"].port
        source = settings.source.model_copy(update={"port": port})
        hosts = (f"{settings.source.host}:{settings.source.port}", *settings.capture.hosts)
        passed = waiter(stack.cluster, source, settings.capture.model_copy(update={"hosts": hosts}))
        with pytest.raises(WindowHeld, match="is read only"):  # a dump does not read what may be behind
            passed(None)
        stack.promote()
        passed(None)  # it waits for a capture that is on its way there
        assert stack.capture_record().source.endswith(f":{port}")
        stack.run(
            "ALTER TABLE shop.a ADD COLUMN b INT", *(f"INSERT INTO shop.a VALUES ({each}, 1)" for each in range(20, 40))
        )
        stack.require_equal()
        assert stack.has("target", 39)
        stack.stop_capture()  # and it starts there, though [source] names another one
        stack.run("DELETE FROM shop.a WHERE id < 10")
        stack.start_capture()
        stack.require_equal()


def test_a_source_that_becomes_a_replica_and_goes_on_is_left_for_the_new_one() -> None:
    """Nobody is killed: its connection stays, and it logs what it takes."""
    with mariadb.directory_in_memory() as directory, two_servers(directory) as stack:
        stack.run(*(f"INSERT INTO shop.a VALUES ({number})" for number in range(2, 20)), "SET GLOBAL read_only = ON")
        wait_for(lambda: stack.has("heir", 19))
        before = stack.databases["source"]
        stack.promote()
        stack.run("INSERT INTO shop.a VALUES (20)")
        with before.connect(autocommit=True) as connection:
            heir = stack.databases["heir"]
            run(
                connection,
                f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {heir.port}, MASTER_USER = 'root',"
                f" MASTER_PASSWORD = '{heir.password}', MASTER_USE_GTID = current_pos",
                "START SLAVE",
            )
        wait_for(lambda: stack.capture_record().source.endswith(f":{heir.port}"), 30)
        assert stack.supervisor.alive(CAPTURE)
        stack.run("INSERT INTO shop.a VALUES (21)")
        stack.require_equal()
        assert stack.has("target", 21)


def test_a_replica_that_does_not_log_what_it_takes_is_not_captured() -> None:
    with (
        mariadb.directory_in_memory() as directory,
        captured_stack(directory, source=("--log-slave-updates=OFF",)) as stack,
        MariaDbServer(directory / "other", name="other", arguments=arguments(9)) as other,
    ):
        checked = stack.pumphouse("capture", "check")
        assert "log_slave_updates" not in checked.stdout, checked.stdout
        with other.connect(autocommit=True) as connection:
            run(connection, "RESET MASTER")  # its password is its own
        stack.run(
            "CREATE USER c@'127.0.0.1' IDENTIFIED BY 'c'",
            "GRANT REPLICATION SLAVE, BINLOG MONITOR, SELECT, SHOW VIEW ON *.* TO c@'127.0.0.1'",
            f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {other.port}, MASTER_USER = 'root',"
            f" MASTER_PASSWORD = '{other.password}', MASTER_USE_GTID = no",
            "START SLAVE",
        )
        wait_for(lambda: not stack.supervisor.alive(CAPTURE), 30)
        record = stack.capture_record()
        assert record.state is CaptureState.FAILED
        assert "log_slave_updates is OFF" in record.reason
        for words in ("check", "run"):
            refused = stack.pumphouse("capture", words)
            assert "log_slave_updates is OFF" in refused.stdout + refused.stderr
        # A user of a capture without hosts may not ask which server it replicates from.
        port = stack.databases["source"].port
        with pymysql.connect(host="127.0.0.1", port=port, user="c", password="c", autocommit=True) as connection:
            with pytest.raises(pymysql.MySQLError, match="privilege"):
                rows_of(connection, "SHOW SLAVE STATUS")
            assert lacks(connection, hosts=False) == "log_slave_updates"
            stack.run("STOP SLAVE", "RESET SLAVE ALL")
            assert lacks(connection, hosts=False) == ""
            assert lacks(connection, hosts=True) == "log_slave_updates"
        stack.start_capture()
        stack.run("CREATE DATABASE shop", "CREATE TABLE shop.a (id INT PRIMARY KEY)")
        stack.captured()


def test_what_the_dead_primary_prepared_is_committed_at_the_server_that_was_promoted() -> None:
    with mariadb.directory_in_memory() as directory, two_servers(directory) as stack:
        held = Path(stack.read_settings.capture.directory) / "prepared"
        for xid, number in (("'kept'", 2), ("'never'", 3), ("'lost'", 4)):
            before = set(held.iterdir())
            rows = f"INSERT INTO shop.a VALUES ({number})"
            stack.run(f"XA START {xid}", rows, f"XA END {xid}", f"XA PREPARE {xid}")
            stack.run(f"INSERT INTO shop.a VALUES (1{number})")
            stack.captured()
        (set(held.iterdir()) - before).pop().unlink()  # the heir's binlog has its rows
        wait_for(lambda: stack.has("heir", 4))
        stack.supervisor.kill("source")
        stack.promote()
        stack.run("XA COMMIT 'lost'", "XA ROLLBACK 'never'", "XA COMMIT 'kept'", "INSERT INTO shop.a VALUES (20)")
        stack.require_equal()
        assert stack.has("target", 7)
        assert list(held.iterdir()) == []


def test_where_none_or_two_take_writes_nothing_is_read() -> None:
    with mariadb.directory_in_memory() as directory, two_servers(directory) as stack:
        settings = stack.read_settings
        assert find_primary(settings.source, settings.capture).port == settings.source.port
        stack.on_heir("SET GLOBAL read_only = OFF")  # it is a replica all the same
        assert find_primary(settings.source, settings.capture).port == settings.source.port
        stack.on_heir("STOP SLAVE", "RESET SLAVE ALL")
        with pytest.raises(SourceFailed, match="all take writes"):
            find_primary(settings.source, settings.capture)
        stack.on_heir("SET GLOBAL read_only = ON")
        stack.run("SET GLOBAL read_only = ON")
        with pytest.raises(SourceFailed, match="no server is the source"):
            find_primary(settings.source, settings.capture)
        stack.stop_capture()
        stack.start_capture(until="source_not_reached")
        eventually(lambda: "is read only" in stack.capture_record().reason, what="it says what it waits for")
        stack.promote()
        stack.run("INSERT INTO shop.a VALUES (2)")
        stack.require_equal()
        record = stack.capture_record()
        assert record.reason == ""
        assert record.source.endswith(f":{stack.dsn('heir').port}")
        # Without a journal nobody knows anything: it is refused.
        stack.stop_capture()
        shutil.rmtree(Path(stack.read_settings.capture.directory))
        stack.on_heir("SET GLOBAL read_only = ON")
        refused = stack.pumphouse("capture", "run")
        assert "is read only" in refused.stderr, refused.stderr


@pytest.mark.parametrize("written", [0, 3], ids=["nothing is written there", "its numbers have passed"])
def test_what_only_the_dead_primary_had_is_named(written: int) -> None:
    with mariadb.directory_in_memory() as directory, two_servers(directory) as stack:
        wait_for(lambda: stack.has("heir", 1))
        stack.on_heir("STOP SLAVE")
        stack.run("INSERT INTO shop.a VALUES (2)")
        stack.captured()
        taken = stack.capture_record().gtid
        stack.supervisor.kill("source")
        stack.promote()
        stack.run(*(f"INSERT INTO shop.a VALUES ({each})" for each in range(100, 100 + written)))
        wait_for(lambda: not stack.supervisor.alive(CAPTURE))
        assert stack.capture_record().state is CaptureState.FAILED
        for _ in range(2):
            refused = stack.pumphouse("capture", "run")
            assert "SourceErrant" in refused.stderr, refused.stderr
            assert taken.rpartition(":")[0].rpartition("-")[0][:8] in refused.stderr
        assert "--anew" in refused.stderr
        stack.start_capture("--anew")
        stack.run("INSERT INTO shop.a VALUES (200)")
        stack.captured()
        stack.snapshot()
        with pytest.raises(BinlogError, match=r"shop\.a"):
            stack.load()
        stack.write_settings()  # [source] is the heir now
        assert stack.pumphouse("archive", "dump").returncode == 0
        stack.snapshot()
        restore.run(stack.read_settings, dry_run=False)
        assert stack.compared("restore").differences == []


def test_a_server_that_was_promoted_and_does_not_log_whole_rows_is_refused() -> None:
    with mariadb.directory_in_memory() as directory, two_servers(directory) as stack:
        wait_for(lambda: stack.has("heir", 1))
        stack.captured()
        stack.supervisor.kill("source")
        stack.on_heir("SET GLOBAL binlog_row_image = MINIMAL")
        stack.promote()
        wait_for(lambda: not stack.supervisor.alive(CAPTURE))
        assert "binlog_row_image is MINIMAL" in stack.capture_record().reason
        stack.on_heir("SET GLOBAL binlog_row_image = FULL")
        stack.run("INSERT INTO shop.a VALUES (2)")
        stack.start_capture()
        stack.require_equal()
