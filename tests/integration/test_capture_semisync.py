"""A capture that acknowledges as a semi-sync replica: a commit of the source returns once the Pumps have it (row Q5)."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

import psutil
import pymysql
import pytest

from pumphouse.capture.lease import Lease
from pumphouse.registry.base import CaptureState
from pumphouse.runs import restore
from tests.stack.local import CAPTURE
from tests.stack.mariadb import MariaDbServer
from tests.support import capturing, mariadb
from tests.support.capturedstack import CapturedStack, SemiSyncStack, as_json, captured_stack
from tests.support.capturing import rows_of
from tests.support.waiting import eventually

pytestmark = [pytest.mark.timeout(600), pytest.mark.row("Q5")]
_HIDDEN_MS = 15_000


@contextmanager
def running(directory: Path, *, timeout_ms: int = 600_000) -> Iterator[SemiSyncStack]:
    stack = SemiSyncStack(directory)
    with captured_stack(directory, made=stack, prepare=lambda _: stack.set_source(timeout_ms)):
        stack.run("CREATE DATABASE shop", "CREATE TABLE shop.a (id INT PRIMARY KEY)", "INSERT INTO shop.a VALUES (0)")
        stack.begin()
        yield stack


def test_a_commit_returns_once_the_pumps_have_it_and_a_lost_source_takes_none_of_them_along() -> None:
    with mariadb.directory_in_memory() as directory, running(directory) as stack:
        assert stack.waits() is not False
        done = threading.Event()

        def commit() -> None:
            stack.run("INSERT INTO shop.a VALUES (1)")
            done.set()

        writer = threading.Thread(target=commit)
        with stack.pumps_stand_still():
            writer.start()
            assert not done.wait(5), "it did not wait for the Pumps"
            with stack.source() as other:  # nobody sees it yet
                assert rows_of(other, "SELECT id FROM shop.a") == [(0,)]
                # What was read and is on no Pump is not said to be safe by a new connection.
                ((dump,),) = rows_of(
                    other, "SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND = 'Binlog Dump'"
                )
                other.query(f"KILL {dump}")
                assert not done.wait(6), "it did not wait for the Pumps"
        assert done.wait(60), "it waits for ever"
        writer.join()

        # DDL, and many sessions; then the server and its disk are gone.
        answered: set[int] = {0, 1}

        def write(first: int) -> None:
            with suppress(pymysql.MySQLError), stack.source() as connection, connection.cursor() as cursor:
                for number in range(first, first + 100_000):
                    cursor.execute(f"INSERT INTO shop.a (id) VALUES ({number})")
                    answered.add(number)

        stack.run("ALTER TABLE shop.a ADD COLUMN b INT DEFAULT 7")
        writers = [threading.Thread(target=write, args=(1_000_000 * n,)) for n in range(1, 5)]
        for each in writers:
            each.start()
        eventually(lambda: len(answered) > 80, what="sessions commit", within_s=120)
        stack.supervisor.kill("source")
        shutil.rmtree(stack.databases["source"].data_dir)
        for each in writers:
            each.join()
        wanted = set(answered)
        # Pumps ask the capture for what they have of broken tries: it answers without its source, whenever it began.
        stack.supervisor.kill(CAPTURE)
        stack.start_capture(until="source_not_reached")
        eventually(lambda: "does not answer" in stack.capture_record().reason, what="it says what it waits for")
        stack.snapshot()
        stack.stop_capture()
        assert (stack.capture_record().state, stack.capture_record().reason) == (CaptureState.STOPPED, "")
        # Another process has it: this one ends, although it waits for its source.
        stack.start_capture(until="source_not_reached")
        Lease.take(stack.cluster, "main", source="", server="", dead=stack.capture_record().owner).release(None)
        eventually(lambda: not stack.supervisor.alive(CAPTURE), what="it ends", within_s=30)
        assert "CaptureFenced" in stack.supervisor.tail(CAPTURE, 20)
        restore.run(stack.read_settings, dry_run=False)
        with stack.databases["restore"].connect() as connection:
            found = dict(rows_of(connection, "SELECT * FROM shop.a"))
        assert wanted - set(found) == set()
        assert set(found.values()) == {7}
        # At most what each session had under way.
        assert len(set(found) - wanted) <= len(writers)


@pytest.mark.parametrize("size", [1, 9000], ids=["row", "full"])
def test_a_dump_waits_for_what_is_captured_and_not_yet_shown_by_its_source(size: int) -> None:
    with mariadb.directory_in_memory() as directory, ExitStack() as held:
        stack = SemiSyncStack(directory)
        relay = held.enter_context(OneWay(stack.databases["source"]))

        def through_relay(_: CapturedStack) -> None:
            stack.set_source(_HIDDEN_MS)
            text = stack.config.read_text()
            stack.config.write_text(text.replace(f"port = {relay.server.dsn.port}", f"port = {relay.port}"))

        held.enter_context(captured_stack(directory, made=stack, prepare=through_relay))
        stack.write_settings()  # whoever reads them from now on goes to the source itself
        stack.run("CREATE DATABASE shop", "CREATE TABLE shop.a (id INT PRIMARY KEY, b TEXT)")
        stack.run("INSERT INTO shop.a VALUES (0, '')", "SET GLOBAL max_binlog_size = 4096")
        eventually(lambda: stack.waits() is True, what="the source waits", within_s=90)
        stack.captured()
        before = stack.capture_record().transactions
        relay.mute()  # the capture goes on reading, and the source does not hear it
        writer = threading.Thread(target=stack.run, args=(f"INSERT INTO shop.a VALUES (1, REPEAT('b', {size}))",))
        began = time.monotonic()
        writer.start()
        eventually(lambda: stack.capture_record().transactions > before, what="it is captured", within_s=60)
        with stack.source() as other:
            assert rows_of(other, "SELECT id FROM shop.a") == [(0,)], "it was shown too soon for this test"
        done = stack.pumphouse("archive", "init", "--dump")
        assert done.returncode == 0, done.stderr
        took = time.monotonic() - began
        writer.join()
        stack.require_equal()
        assert took > _HIDDEN_MS / 1000


class OneWay:
    """A relay to a server. Once it is muted, what comes to the server on older connections is lost, and nothing else."""

    def __init__(self, server: MariaDbServer) -> None:
        self.server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._epoch = 0

    def mute(self) -> None:
        self._epoch += 1

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self.server.dsn.port))
                began = self._epoch
                for one, other, muted in ((client, server, True), (server, client, False)):
                    threading.Thread(
                        target=self._copy, args=(one, other, began if muted else None), daemon=True
                    ).start()

    def _copy(self, one: socket.socket, other: socket.socket, began: int | None) -> None:
        with suppress(OSError), one, other:
            while data := one.recv(1 << 16):
                if began is None or began == self._epoch:
                    other.sendall(data)


def test_a_source_that_goes_on_by_itself_is_told_and_waits_again_once_it_can() -> None:
    with mariadb.directory_in_memory() as directory, running(directory, timeout_ms=1500) as stack:
        eventually(lambda: stack.waits() is True, what="the source waits", within_s=60)
        with stack.pumps_stand_still():
            began = time.monotonic()
            stack.run("INSERT INTO shop.a VALUES (1)")
            assert 1 < time.monotonic() - began < 30
            eventually(lambda: stack.waits() is False, what="the fallback is seen", within_s=60)
            (shown,) = as_json(stack.pumphouse("capture", "status", "--json"))
            assert shown["semi_sync"] is False
            assert "do not wait for it" in stack.pumphouse("status").stdout
        eventually(lambda: stack.waits() is True, what="the source waits again", within_s=90)
        stack.require_equal()
        # Both were killed, and the capture is started first.
        stack.supervisor.kill(CAPTURE)
        stack.supervisor.kill("source")
        stack.start_capture(until="source_not_reached")
        source = stack.databases["source"]
        source.arguments = (*source.arguments, "--rpl-semi-sync-master-enabled=ON")
        source.start()
        stack.run("INSERT INTO shop.a VALUES (2)")
        stack.require_equal()


def test_a_capture_that_connects_again_does_not_wait_for_a_ddl_that_waits_for_it() -> None:
    with mariadb.directory_in_memory() as directory, running(directory) as stack:
        done = threading.Event()

        def alter() -> None:
            stack.run("ALTER TABLE shop.a ADD COLUMN b INT")
            done.set()

        writer, capture = threading.Thread(target=alter), psutil.Process(stack.supervisor.pid(CAPTURE))
        capture.suspend()
        writer.start()
        assert not done.wait(3), "it did not wait for the capture"
        with stack.source() as other:
            for (dump,) in rows_of(
                other, "SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND = 'Binlog Dump'"
            ):
                capturing.end(other, dump)
        capture.resume()
        assert done.wait(60), "each waits for the other"
        writer.join()


def test_what_is_not_set_for_it_is_said(tmp_path: Path) -> None:
    with captured_stack(tmp_path) as stack:
        stack.stop_capture()
        asked = ("--set", "capture.semi_sync=true")
        refused = stack.pumphouse(*asked, "capture", "run")
        assert "schema.history is on the source" in refused.stderr, refused.stderr
    stack = SemiSyncStack(tmp_path / "other")
    try:
        stack.start_stores(s3=False)
        stack.set_source(2000)
        said = {line["text"]: line for line in as_json(stack.pumphouse("capture", "check", "--json"))}
        assert [text for text, line in said.items() if line["wrong"]] == []
        assert any("after 2 s without an answer the source goes on" in text for text in said)
        stack.run(
            "SET GLOBAL rpl_semi_sync_master_enabled = OFF, GLOBAL rpl_semi_sync_master_wait_point = AFTER_COMMIT"
        )
        lines = as_json(stack.pumphouse("capture", "check", "--json"))
        assert [line["text"].split(":")[0] for line in lines if line["wrong"]] == [
            "rpl_semi_sync_master_enabled is OFF"
        ]
        assert any("wait_point is AFTER_COMMIT" in line["text"] for line in lines)
    finally:
        stack.stop(timeout_s=0)
