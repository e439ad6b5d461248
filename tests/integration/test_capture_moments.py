"""Moments of a captured source: restored by a GTID, or by its own clock, a server is what the source's SELECT said then."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymysql.connections import Connection

from pumphouse.errors import UsageError
from pumphouse.parts import Parts
from tests.support import mariadb
from tests.support.capturedstack import CapturedStack, as_json, captured_stack
from tests.support.kind import is_mysql

pytestmark = [pytest.mark.timeout(900), pytest.mark.mysql, pytest.mark.row("Q4")]

Rows = dict[str, list[tuple[Any, ...]]]


class Writer:
    """An application of SQL alone; what its tables hold behind each GTID is noted."""

    def __init__(self, connection: Connection[Any], seed: int) -> None:
        self.connection, self.chance = connection, random.Random(seed)
        self.columns, self.number = 1, 0
        self.seen: list[tuple[str, Rows]] = []

    def commit(self, *statements: str, look: bool = True) -> str:
        """A transaction; its GTID."""
        self.number += 1
        with self.connection.cursor() as cursor:
            if is_mysql():
                gtid = f"3e11fa47-71ca-11e1-9e33-c80aa9429562:{self.number}"
                cursor.execute(f"SET gtid_next = '{gtid}'")
            cursor.execute("BEGIN" if len(statements) > 1 else "DO 0")
            for each in statements:
                cursor.execute(each)
            if len(statements) > 1:
                cursor.execute("COMMIT")
            if is_mysql():
                cursor.execute("SET gtid_next = 'AUTOMATIC'")
            else:
                cursor.execute("SELECT @@last_gtid")
                ((gtid,),) = cursor.fetchall()
        if look:
            self.seen.append((gtid, rows_of(self.connection)))
        return str(gtid)

    def work(self) -> None:
        """One of many kinds, which changes rows or the schema."""
        table, row = self.chance.choice("ab"), self.chance.randint(1, 40)
        kind = self.chance.random()
        if kind < 0.08:
            self.columns += 1
            self.commit(f"ALTER TABLE shop.a ADD COLUMN c{self.columns} INT NOT NULL DEFAULT {row}")
        elif kind < 0.5:
            self.commit(f"REPLACE INTO shop.{table} (id, v) VALUES ({row}, {self.chance.randint(0, 10**6)})")
        elif kind < 0.7:
            self.commit(
                f"INSERT INTO shop.a (v) VALUES ({row})",
                "UPDATE shop.b SET v = v + 1",
                f"DELETE FROM shop.b WHERE id = {row}",
            )
        else:
            self.commit(f"INSERT INTO shop.{table} (v) VALUES ({row}), ({row})")


def rows_of(connection: Connection[Any]) -> Rows:
    """What SELECT says; {} of a table that is not there."""
    with connection.cursor() as cursor:
        found: Rows = {}
        for table in "ab":
            cursor.execute(f"SELECT * FROM shop.{table} ORDER BY id")
            found[table] = list(cursor.fetchall())
        return found


def restored(stack: CapturedStack, *moment: str) -> Rows:
    """What the restored server has."""
    dsn = stack.dsn("restore")
    done = stack.pumphouse("restore", *moment, "--replace", f"{dsn.host}:{dsn.port}", "--json")
    assert done.returncode == 0, done.stderr
    with stack.databases["restore"].connect() as connection:
        return rows_of(connection)


def test_a_restore_to_a_gtid_is_what_the_source_had_there() -> None:
    with mariadb.directory_in_memory() as directory, captured_stack(directory, without=["shop.left_*"]) as stack:
        stack.run(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.a (id INT AUTO_INCREMENT PRIMARY KEY, v INT)",
            "CREATE TABLE shop.b (id INT AUTO_INCREMENT PRIMARY KEY, v INT)",
            "CREATE TABLE shop.left_out (id INT AUTO_INCREMENT PRIMARY KEY, v INT)",
        )
        stack.begin()
        with stack.source() as connection:
            writer = Writer(connection, seed=7)
            for _ in range(5):
                for _ in range(12):
                    writer.work()
                stack.captured()
                stack.snapshot()
            left_out = writer.commit("INSERT INTO shop.left_out (v) VALUES (1)", look=False)
            with connection.cursor() as cursor:
                cursor.execute("SELECT UTC_TIMESTAMP(6)")
                ((then,),) = cursor.fetchall()
            time.sleep(2.1)
            writer.work()
            with connection.cursor() as cursor:  # its time goes back: of a MariaDB in the binlog, too
                cursor.execute("SET timestamp = UNIX_TIMESTAMP() - 3600")
                writer.work()
                cursor.execute("SET timestamp = UNIX_TIMESTAMP() + 360000")  # and far ahead: no clock says that
                writer.work()
                cursor.execute("SET timestamp = DEFAULT")
            stack.stop_capture()  # what comes now is captured seconds later: that says nothing of when it was
            time.sleep(1.1)
            writer.work()
        stack.start_capture()
        stack.captured()
        stack.snapshot()

        *seen, last_of_then, later, _back, _ahead, last = writer.seen
        for gtid, rows in [*random.Random(11).sample(seen, 3), later, last]:
            assert restored(stack, "--to-gtid", gtid) == rows, gtid
        gtid, rows = last_of_then
        after = (then.replace(tzinfo=UTC) + timedelta(seconds=1)).isoformat()
        assert restored(stack, "--to-source-time", after) == rows
        assert restored(stack, "--to", f"before gtid {later[0]}") == rows

        done = stack.pumphouse("restore", "--to-gtid", left_out, "--dry-run")
        assert done.returncode != 0
        assert f"no window of the archive has {left_out}" in done.stderr
        assert f"the same state: gtid {gtid}" in done.stderr
        future = (datetime.now(UTC) + timedelta(minutes=1)).isoformat()
        done = stack.pumphouse("restore", "--to-source-time", future, "--dry-run")
        assert done.returncode != 0
        assert "is not known" in done.stderr

        shown = stack.pumphouse("restore", "--to-gtid", gtid, "--dry-run").stdout
        assert f"of the source: up to {gtid} " in shown
        assert f"its next one: {later[0]} " in shown
        planned = as_json(stack.pumphouse("restore", "--to", "latest", "--dry-run", "--json"))
        assert planned["source"]["gtid"] == last[0]
        at = datetime.fromisoformat(planned["source"]["time"])
        assert timedelta() <= datetime.now(UTC) - at < timedelta(minutes=10)
        found = as_json(stack.pumphouse("archive", "find", "--from", "1 day ago", "--json"))["found"]
        rows_found = {each["gtid"] for each in found if not each["action"]}
        assert {last[0], later[0]} <= rows_found <= {gtid for gtid, _ in writer.seen}


def test_a_number_that_the_source_gave_twice_is_two_moments() -> None:
    """The capture is killed, and begins anew after RESET MASTER; a GTID that only one of both times had is a moment."""
    with mariadb.directory_in_memory() as directory, captured_stack(directory) as stack:
        stack.run(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.a (id INT AUTO_INCREMENT PRIMARY KEY, v INT)",
            "CREATE TABLE shop.b (id INT AUTO_INCREMENT PRIMARY KEY, v INT)",
        )
        stack.begin()
        with stack.source() as connection:
            writer = Writer(connection, seed=3)
            for at in range(80):
                writer.commit("INSERT INTO shop.a (v) VALUES (1)")
                if at == 30:
                    stack.kill_capture()
                    stack.start_capture()
            stack.captured()
            stack.snapshot()
            with Parts(stack.read_settings) as parts:
                found = {gtid: parts.moment(f"gtid {gtid}").ts for gtid, _ in writer.seen}
            assert list(found.values()) == sorted(set(found.values()))
            stack.stop_capture()
            with connection.cursor() as cursor:
                cursor.execute("RESET BINARY LOGS AND GTIDS" if is_mysql() else "RESET MASTER")
            stack.start_capture("--anew")
            first, writer.number, writer.seen = len(writer.seen), 0, []
            for _ in range(40):
                writer.commit("INSERT INTO shop.b (v) VALUES (1)")
            stack.captured()
            stack.snapshot()
        with Parts(stack.read_settings) as parts:
            again = [gtid for gtid, _ in writer.seen if gtid in found]
            alone = [gtid for gtid in found if gtid not in dict(writer.seen)]
            assert len(again) > 5
            assert len(alone) >= first - 40
            for gtid in again[::8]:
                with pytest.raises(UsageError, match=rf"has given {gtid} 2 times.*{found[gtid]}"):
                    parts.moment(f"gtid {gtid}")
            for gtid in alone[::8]:
                assert parts.moment(f"gtid {gtid}").ts == found[gtid]
