"""A captured source that has no GTID yet: a new server, or one behind RESET MASTER (rows Q2, Q4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from pumphouse.capture.passed import require_goes_on
from pumphouse.capture.source.gtid import Flavor, GtidSet
from pumphouse.capture.source.model import Position
from pumphouse.errors import SourceErrant
from tests.stack.local import CAPTURE
from tests.stack.mariadb import MariaDbServer
from tests.support import capturing, mariadb
from tests.support.capturedstack import CapturedStack, captured_stack
from tests.support.kind import is_mysql
from tests.support.waiting import eventually

pytestmark = [pytest.mark.timeout(900), pytest.mark.mysql, pytest.mark.row("Q2", "Q4")]


class Apart(CapturedStack):
    """The history, which the capture writes to, is on a server of its own."""

    history_server = "books"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.databases["books"] = MariaDbServer(directory / "books", name="books", supervisor=self.supervisor)


def test_a_source_without_a_gtid_is_followed_by_the_first_one_that_it_gives() -> None:
    def reset(stack: CapturedStack) -> None:
        stack.run("CREATE DATABASE shop", "CREATE TABLE shop.a (id INT PRIMARY KEY)", "INSERT INTO shop.a VALUES (1)")
        stack.run("RESET BINARY LOGS AND GTIDS" if is_mysql() else "RESET MASTER")

    with (
        mariadb.directory_in_memory() as directory,
        captured_stack(directory, made=Apart(directory), prepare=reset) as stack,
    ):
        stack.begin()  # it has passed all that there is

        def beaten() -> bool:
            files = (stack.directory / "c" / "journal").glob("*.log")
            return any(b'"binlog.0' in each.read_bytes() for each in files)

        eventually(beaten, what="a heartbeat has said where it is", within_s=30)
        with stack.source() as connection:
            found = capturing.rows_of(connection, "SELECT ID, COMMAND FROM information_schema.PROCESSLIST")
            for number in (int(number) for number, command in found if "Binlog Dump" in str(command)):
                capturing.end(connection, number)
        eventually(lambda: "source_lost" in stack.supervisor.tail(CAPTURE, 20), within_s=30)
        stack.run("INSERT INTO shop.a VALUES (2)", "INSERT INTO shop.a VALUES (3)")
        stack.captured(timeout_s=30)
        stack.kill_capture()
        stack.start_capture()
        stack.run("ALTER TABLE shop.a ADD b INT", "INSERT INTO shop.a VALUES (4, 4)")
        stack.require_equal()
        assert stack.capture_record().transactions == 4


def test_what_the_heir_of_a_source_without_a_gtid_has_is_not_taken_for_new() -> None:
    flavor = Flavor.MYSQL if is_mysql() else Flavor.MARIADB
    nothing = Position(gtids=GtidSet.parse("", flavor), file="binlog.000001", offset=400)
    with mariadb.directory_in_memory() as directory, capturing.source(directory) as server:
        with server.connect(autocommit=True) as connection:
            capturing.run(connection, "CREATE DATABASE shop")
        settings = mariadb.settings_of(server)
        there = require_goes_on(settings, nothing, "")
        with pytest.raises(SourceErrant, match="whether they are new is not known"):
            require_goes_on(settings, nothing, "another server")
        with server.connect(autocommit=True) as connection:
            capturing.run(connection, "RESET BINARY LOGS AND GTIDS" if is_mysql() else "RESET MASTER")
        assert require_goes_on(settings, nothing, "another server") == there


@pytest.mark.mariadb("a MySQL's set of GTIDs has holes")
def test_a_number_that_does_not_ascend_is_refused_also_where_the_mode_was_lost_behind_the_start() -> None:
    with mariadb.directory_in_memory() as directory, captured_stack(directory) as stack:
        stack.begin()
        stack.run("CREATE DATABASE shop", "CREATE TABLE shop.a (id INT PRIMARY KEY)", "INSERT INTO shop.a VALUES (1)")
        stack.captured()
        with stack.source() as connection:
            capturing.run(connection, "SET GLOBAL gtid_strict_mode = OFF", "SET SESSION gtid_seq_no = 2",
                          "INSERT INTO shop.a VALUES (2)")  # fmt: skip
        eventually(
            lambda: "its number does not ascend" in stack.supervisor.tail(CAPTURE, 20), within_s=30, what="it ends"
        )


@pytest.mark.row("L5")
def test_a_default_that_calls_a_function_goes_with_its_column_beside_a_new_one() -> None:
    made = "CREATE TABLE shop.{} (id INT PRIMARY KEY, q VARCHAR(40) NULL, w VARCHAR(40) DEFAULT (uuid()))"
    renames = "RENAME COLUMN w TO u" if is_mysql() else "CHANGE COLUMN w u VARCHAR(40) DEFAULT (uuid())"
    with mariadb.directory_in_memory() as directory, captured_stack(directory) as stack:
        stack.begin()
        stack.run("CREATE DATABASE shop", *(made.format(name) for name in "abc"),
                  "INSERT INTO shop.a (id) VALUES (1)", "INSERT INTO shop.b (id) VALUES (1)",
                  f"ALTER TABLE shop.a {renames}, ADD COLUMN w INT DEFAULT 4",
                  "ALTER TABLE shop.b ALTER COLUMN q SET DEFAULT (uuid()), ADD COLUMN x INT DEFAULT 4",
                  f"ALTER TABLE shop.c {renames}, ADD COLUMN x INT NOT NULL FIRST")  # fmt: skip
        for table in "ab":
            stack.run(f"INSERT INTO shop.{table} (id) VALUES (2)")
        stack.require_equal()
