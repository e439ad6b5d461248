"""XA transactions of a captured source: their rows are there from XA COMMIT on, at its place, and after any loss."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from pumphouse.capture import journal
from pumphouse.capture.prepared import read_again
from pumphouse.capture.source.gtid import GtidSet
from pumphouse.capture.source.model import Transaction
from pumphouse.capture.source.session import position_now
from pumphouse.dump.source import prepared_xids
from pumphouse.errors import SourcePurged
from pumphouse.registry.base import CaptureState
from tests.stack.local import CAPTURE
from tests.stack.pumps import CLI
from tests.support import mariadb
from tests.support.capturedstack import CapturedStack, captured_stack
from tests.support.capturing import read, rows_of, run, source
from tests.support.kind import is_mysql
from tests.support.waiting import eventually

pytestmark = [pytest.mark.timeout(900), pytest.mark.mysql, pytest.mark.row("Q1", "Q2", "Q4")]

BYTES = "X'00ff27',X'5c',7"
GROUP_BYTES = 1 << 18


def prepare(stack: CapturedStack, xid: str, *statements: str) -> None:
    """An XA transaction that is prepared; its session has ended."""
    stack.run(f"XA START {xid}", *statements, f"XA END {xid}", f"XA PREPARE {xid}")


def end(stack: CapturedStack, how: str, xid: str) -> None:
    """In another session; the server may not know yet that the one that prepared has ended."""

    refused = []

    def done() -> bool:
        try:
            stack.run(f"XA {how} {xid}")
        except Exception as error:
            assert "XAER" in str(error)
            refused.append(str(error))
            return False
        return True

    try:
        eventually(done)
    except AssertionError:
        with stack.source() as connection:
            there = rows_of(connection, "XA RECOVER")
        raise AssertionError(f"XA {how} {xid}: {sorted(set(refused))}; XA RECOVER: {there}") from None


def begun(stack: CapturedStack) -> None:
    """Before the capture begins."""
    stack.run(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.t (id INT PRIMARY KEY, a VARCHAR(40))",
        "CREATE TABLE shop.left_out (id INT PRIMARY KEY)",
        "INSERT INTO shop.t VALUES (1, 'begin')",
    )


def begun_with_one(stack: CapturedStack) -> None:
    """And one is prepared."""
    begun(stack)
    rows = "INSERT INTO shop.t VALUES (2, 'prepared before')", "UPDATE shop.t SET a = 'x' WHERE id = 1"
    prepare(stack, "'before'", *rows)
    stack.run("FLUSH BINARY LOGS", "INSERT INTO shop.t VALUES (3, 'then')")


@contextmanager
def a_stack(prepared: Callable[[CapturedStack], None] = begun) -> Iterator[CapturedStack]:
    with (
        mariadb.directory_in_memory() as directory,
        captured_stack(directory, prepare=prepared, group_bytes=GROUP_BYTES) as made,
    ):
        made.begin()
        yield made


@pytest.fixture(scope="module")
def stack() -> Iterator[CapturedStack]:
    with a_stack(begun_with_one) as made:
        end(made, "COMMIT", "'before'")
        yield made


def loaded(stack: CapturedStack) -> set[int]:
    """Ids that the target has, once it equals the source."""
    stack.require_equal()
    with stack.databases["target"].connect() as connection:
        return {number for (number,) in rows_of(connection, "SELECT id FROM shop.t")}


def files(stack: CapturedStack) -> list[str]:
    return [each.name for each in (Path(stack.read_settings.capture.directory) / "prepared").iterdir()]


def test_what_was_prepared_before_the_capture_and_its_dump_is_read_from_the_binlog_at_its_commit(
    stack: CapturedStack,
) -> None:
    assert 2 in loaded(stack)
    assert "prepared_rows_looked_for" in stack.supervisor.tail(CAPTURE, 1000)


def test_they_count_in_the_order_of_their_commits(stack: CapturedStack) -> None:
    prepare(stack, "'first'", "INSERT INTO shop.t VALUES (10, 'first')")
    prepare(
        stack,
        BYTES,
        "INSERT INTO shop.t VALUES (11, 'bytes')",
        "SAVEPOINT s",
        "DELETE FROM shop.t WHERE id = 11",
        "ROLLBACK TO s",
    )
    prepare(stack, "'never'", "INSERT INTO shop.t VALUES (12, 'never')", "DELETE FROM shop.t WHERE id = 1")
    assert not {10, 11, 12} & loaded(stack)  # and nothing waits for those that are open
    assert files(stack)
    end(stack, "ROLLBACK", "'never'")
    end(stack, "COMMIT", BYTES)
    assert loaded(stack) & {1, 10, 11, 12} == {1, 11}
    stack.run("UPDATE shop.t SET a = 'later' WHERE id = 11")
    end(stack, "COMMIT", "'first'")
    stack.run("XA START 'one'", "INSERT INTO shop.t VALUES (13, 'one')", "XA END 'one'", "XA COMMIT 'one' ONE PHASE")
    prepare(stack, "'first'", "DELETE FROM shop.t WHERE id = 10")  # a name that was used
    end(stack, "COMMIT", "'first'")
    assert loaded(stack) & {10, 11, 12, 13} == {11, 13}
    assert files(stack) == []


def test_one_that_is_larger_than_a_group_is_whole(stack: CapturedStack) -> None:
    many = "INSERT INTO shop.t WITH RECURSIVE s AS (SELECT 1000 n UNION ALL SELECT n + 1 FROM s WHERE n < 1900) SELECT n, 'many' FROM s"
    more = [f"UPDATE shop.t SET a = REPEAT('{letter}', 40) WHERE a <> 'begin'" for letter in "abcdefgh" * 2]
    prepare(stack, "'large'", many, *more)
    stack.captured()
    assert sum(each.stat().st_size for each in (stack.directory / "c" / "prepared").iterdir()) > 4 * GROUP_BYTES
    stack.kill_capture()
    stack.start_capture()
    end(stack, "COMMIT", "'large'")
    assert len(loaded(stack)) > 900


def test_commits_that_come_at_once_are_published_by_their_bytes(stack: CapturedStack) -> None:
    xids = [f"'at once {number}'" for number in range(6)]
    numbers = "WITH RECURSIVE s AS (SELECT 1 n UNION ALL SELECT n + 1 FROM s WHERE n < 70)"
    for number, xid in enumerate(xids, 1):
        rows = f"SELECT {number}0000 + 100 * a.n + b.n, REPEAT('m', 40) FROM s a JOIN s b"
        prepare(stack, xid, f"INSERT INTO shop.t {numbers} {rows}")
    stack.captured()
    stack.stop_capture()
    before = decided(stack)
    for xid in xids:
        end(stack, "COMMIT", xid)
    stack.start_capture()
    stack.captured()
    counts = decided(stack)[len(before) :]
    assert sum(counts) == len(xids)
    assert max(counts) <= 2
    assert len(loaded(stack)) > 6 * 70 * 70


def decided(stack: CapturedStack) -> list[int]:
    """How many transactions each decision has."""
    files = sorted((stack.directory / "c" / "journal").glob("*.log"))
    heads = [head for each in files for head, _ in journal._records(each, each.read_bytes(), torn=True)]
    return [head["count"] for head in heads if head.get("count")]


def test_a_dump_locks_no_table_without_a_key_that_one_has_written_to(stack: CapturedStack) -> None:
    stack.run("CREATE TABLE shop.keyless (id INT)", "INSERT INTO shop.keyless VALUES (1)")
    prepare(stack, "'keyless'", "INSERT INTO shop.keyless VALUES (2)")
    if is_mysql():  # which waits for the lock of the table's definition alone
        stack.settings["dump"] = {"lock_wait_s": 1}
        stack.write_settings()
    try:
        with dumping(stack, "--table", "shop.keyless") as said:
            slowest = 0.0

            def told() -> bool:
                nonlocal slowest
                began = time.monotonic()
                stack.run("INSERT INTO shop.keyless VALUES (3)")
                slowest = max(slowest, time.monotonic() - began)
                return "left no moment to lock it" in said()

            eventually(told, within_s=30)
            with stack.source() as connection:
                assert all(f"`XA COMMIT {xid}`" in said() for xid in prepared_xids(connection))
            assert slowest < 10
            end(stack, "COMMIT", "'keyless'")
        assert loaded(stack)
    finally:
        stack.run("DROP TABLE shop.keyless")


@contextmanager
def waiting_ddl(stack: CapturedStack) -> Iterator[tuple[str, Callable[[], None]]]:
    """An application's DDL waits for what was prepared and left, and whoever uses the table for it; xid, what ends it."""
    stack.run("CREATE TABLE shop.waits (id INT PRIMARY KEY)", "INSERT INTO shop.waits VALUES (1)")
    prepare(stack, "'left'", "INSERT INTO shop.waits VALUES (2)")
    with stack.source("shop") as changing, stack.source() as asking, ThreadPoolExecutor(1) as pool:
        rows_of(changing, "SET lock_wait_timeout = 200, innodb_lock_wait_timeout = 200")
        ddl = pool.submit(rows_of, changing, "ALTER TABLE waits ADD COLUMN c INT")
        eventually(lambda: any("ADD COLUMN c" in str(row) for row in rows_of(asking, "SHOW PROCESSLIST")))
        (xid,) = prepared_xids(asking)

        def let_go() -> None:
            assert not ddl.done()
            end(stack, "COMMIT", "'left'")

        yield xid, let_go
        ddl.result(60)
    stack.run("DROP TABLE shop.waits")


def test_a_dump_says_which_ddl_and_which_transaction_it_waits_for(stack: CapturedStack) -> None:
    with waiting_ddl(stack) as (xid, let_go), dumping(stack) as said:
        eventually(lambda: "runs `ALTER TABLE waits ADD COLUMN c INT` for" in said(), within_s=60)
        assert f"`XA COMMIT {xid}` or `XA ROLLBACK {xid}` ends one" in said()
        let_go()
    stack.require_equal()


def test_a_capture_that_begins_while_a_table_is_locked_says_so_and_waits(stack: CapturedStack) -> None:
    if is_mysql():
        # A MariaDB alone leaves it out of information_schema, so that there is something to wait for.
        pytest.skip("a MySQL lists a table that is locked")
    stack.kill_capture()
    stack.lose_journal()
    with waiting_ddl(stack) as (_, let_go):
        stack.start_capture(until="runs `ALTER TABLE waits ADD COLUMN c INT` for")
        let_go()
    stack.require_equal()


@contextmanager
def dumping(stack: CapturedStack, *words: str) -> Iterator[Callable[[], str]]:
    """A dump that ends well, around the block; what it has said."""
    said = stack.directory / "dump.log"
    with said.open("w") as file:
        dump = subprocess.Popen([*CLI, "--config", str(stack.config), "archive", "dump", *words], stderr=file)
    try:
        yield said.read_text
        assert dump.wait(120) == 0, said.read_text()
    finally:
        dump.kill()
        dump.wait()


def test_after_a_kill_a_restart_of_the_source_and_a_purge_it_has_the_rows(stack: CapturedStack) -> None:
    prepare(stack, "'kept'", "INSERT INTO shop.t VALUES (20, 'kept')")
    stack.captured()
    stack.kill_capture()
    prepare(stack, "'unread'", "INSERT INTO shop.t VALUES (21, 'unread')")
    stack.kill_source()
    stack.databases["source"].start()
    with stack.source() as connection:
        there = [row[3] for row in rows_of(connection, "XA RECOVER")]
    if is_mysql() and "unread" not in there:  # taken back by the server itself (docs/limits.md)
        prepare(stack, "'unread'", "INSERT INTO shop.t VALUES (21, 'unread')")
    end(stack, "COMMIT", "'unread'")
    stack.start_capture()
    stack.captured()
    purge(stack)
    stack.kill_capture()
    stack.start_capture()
    end(stack, "COMMIT", "'kept'")
    assert loaded(stack) & {20, 21} == {20, 21}


# What a capture's process does besides: it dies by `kill -9` at a step.
DEADLY = """
import os, signal, sys
from pumphouse import cli
from pumphouse.capture import prepared
from pumphouse.capture.journal import Journal
from pumphouse.client.pump_client import PumpClient

config, step = sys.argv[1:]

def deadly(owner, name, what, counts=lambda *_: True):
    original = getattr(owner, name)
    def call(*arguments, **named):
        reached = step.removesuffix(" done") == what and counts(*arguments)
        if reached and step == what:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = original(*arguments, **named)
        if reached:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer
    setattr(owner, name, call)

deadly(prepared, "write_atomic", "rows")
deadly(Journal, "append", "decision", lambda _, decided, mark: len(decided))
deadly(Journal, "append", "mark", lambda _, decided, mark: not len(decided) and mark.prepared)
deadly(PumpClient, "write_commits", "commits", lambda _, commits: commits)
deadly(prepared.Prepared, "tidy", "end", lambda held: held._files - {each.file for each in held.places.values()})
sys.argv = ["pumphouse", "--config", config, "capture", "run"]
cli.main()
"""


def caught_up(stack: CapturedStack, process: subprocess.Popen[bytes]) -> None:
    """It has passed what the source has now, or is dead."""
    with stack.source() as connection:
        wanted = position_now(connection).gtids

    def passed() -> bool:
        return GtidSet.parse(stack.capture_record().gtid, wanted.flavor).covers(wanted)

    eventually(lambda: process.poll() is not None or passed(), within_s=120)


STEPS = ("rows", "rows done", "mark", "mark done", "decision", "decision done", "commits", "end", "end done")


@pytest.mark.row("Q2")
@pytest.mark.parametrize(
    "steps",
    [("rows done", "mark done", "decision done"), pytest.param(STEPS, marks=pytest.mark.slow)],
    ids=["what was just written", "every step"],
)
def test_killed_at_a_step_it_has_each_once(stack: CapturedStack, steps: tuple[str, ...]) -> None:
    stack.captured()
    stack.stop_capture()
    stack.run("DELETE FROM shop.t WHERE id BETWEEN 100 AND 299")
    xids = ["X'00',X'01',2"]
    prepare(stack, xids[-1], "INSERT INTO shop.t VALUES (100, 'first')")
    for number, step in enumerate(steps):
        process = subprocess.Popen([sys.executable, "-c", DEADLY, str(stack.config), step])
        try:
            caught_up(stack, process)
            xids.append(f"X'{number:04x}',X'',1")
            prepare(stack, xids[-1], f"INSERT INTO shop.t VALUES ({101 + number}, '{step}')")
            prepare(stack, "'no'", f"INSERT INTO shop.t VALUES ({201 + number}, '{step}')")
            caught_up(stack, process)
            end(stack, "ROLLBACK", "'no'")
            end(stack, "COMMIT", xids.pop(0))
            assert process.wait(120) == -signal.SIGKILL, step
        finally:
            process.kill()
            process.wait()
    stack.start_capture()
    assert {each for each in loaded(stack) if 100 <= each < 300} == set(range(100, 100 + len(steps)))
    end(stack, "COMMIT", xids.pop())
    assert 100 + len(steps) in loaded(stack)
    assert files(stack) == []


@pytest.mark.slow
def test_without_the_directory_its_rows_are_found_in_the_binlog(stack: CapturedStack) -> None:
    prepare(stack, "'found'", "INSERT INTO shop.t VALUES (30, 'old')")
    end(stack, "ROLLBACK", "'found'")
    prepare(stack, "'found'", "INSERT INTO shop.t VALUES (31, 'found')")
    prepare(stack, "'rolled'", "INSERT INTO shop.t VALUES (32, 'rolled back')")
    stack.run("FLUSH BINARY LOGS", "INSERT INTO shop.t VALUES (33, 'between')", "FLUSH BINARY LOGS")
    stack.captured()
    stack.kill_capture()
    stack.lose_journal()
    end(stack, "COMMIT", "'found'")
    end(stack, "ROLLBACK", "'rolled'")
    prepare(stack, "'found'", "DELETE FROM shop.t WHERE id = 31")  # of the same name, behind the commit
    stack.start_capture()
    assert loaded(stack) & {30, 31, 32, 33} == {31, 33}
    end(stack, "COMMIT", "'found'")
    assert 31 not in loaded(stack)


def purge(stack: CapturedStack) -> None:
    """All binlogs of the source but the one that it writes; a replica that has left may hold one for a moment."""
    with stack.source() as connection:
        rows_of(connection, "FLUSH BINARY LOGS")

        def alone() -> bool:
            newest = rows_of(connection, "SHOW BINARY LOGS")[-1][0]
            rows_of(connection, f"PURGE BINARY LOGS TO '{newest}'")
            return len(rows_of(connection, "SHOW BINARY LOGS")) == 1

        eventually(alone, within_s=60, what="purged")


@pytest.mark.slow
def test_what_becomes_left_out_while_it_is_prepared_is_left_out() -> None:
    with a_stack() as stack:
        prepare(stack, "'out'", "INSERT INTO shop.left_out VALUES (1)", "INSERT INTO shop.t VALUES (40, 'in')")
        stack.captured()
        stack.stop_capture()
        stack.settings["capture"]["without"] = ["shop.left_out"]
        stack.write_settings()
        stack.start_capture()
        end(stack, "COMMIT", "'out'")
        stack.captured()
        stack.snapshot()
        stack.load()
        with stack.databases["target"].connect() as connection:
            assert rows_of(connection, "SELECT id FROM shop.t WHERE id = 40") == [(40,)]
            assert "left_out" not in {name for (name,) in rows_of(connection, "SHOW TABLES FROM shop")}


def test_rows_that_nobody_has_any_more_are_named_and_never_skipped() -> None:
    with a_stack() as stack:
        prepare(stack, "'gone'", "INSERT INTO shop.t VALUES (50, 'gone')")
        stack.run("INSERT INTO shop.t VALUES (51, 'between')")
        stack.captured()
        stack.stop_capture()
        shutil.rmtree(stack.directory / "c" / "prepared")
        purge(stack)
        stack.start_capture()
        end(stack, "COMMIT", "'gone'")
        stack.run("INSERT INTO shop.t VALUES (52, 'behind')")
        eventually(lambda: not stack.supervisor.alive(CAPTURE), within_s=60)
        record = stack.capture_record()
        assert record.state is CaptureState.FAILED
        assert "commits the XA transaction X'676f6e65',X'',1" in record.reason
        refused = stack.pumphouse("capture", "run")
        assert "says which rows it prepared" in refused.stderr
        assert "--anew" in refused.stderr
        stack.snapshot()
        stack.load()
        with stack.databases["target"].connect() as connection:
            assert rows_of(connection, "SELECT id FROM shop.t WHERE id >= 50") == [(51,)]


def test_a_commit_without_its_prepare_takes_no_earlier_one_of_that_name(tmp_path: Path) -> None:
    """Where the binlog has a prepare that has ended, and not the one that the commit is of."""
    with source(tmp_path) as server, server.connect(autocommit=True) as connection:
        run(connection, "CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)")
        start = position_now(connection)
        run(
            connection, "XA START 'x'", "INSERT INTO shop.t VALUES (1)", "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'"
        )
        run(connection, "INSERT INTO shop.t VALUES (2)")
        _, first, later = read(server, start).transactions
        settings = mariadb.as_source(server.dsn.server)

        def rows(_group: object, transaction: Transaction) -> bytes:
            return str(transaction.last - transaction.first).encode()

        assert read_again(settings, "X'78',X'',1", first, rows, threading.Event()) == b"1"
        with pytest.raises(SourcePurged, match="commits the XA transaction X'78'"):
            read_again(settings, "X'78',X'',1", later, rows, threading.Event())
