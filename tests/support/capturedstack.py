"""A captured source in tests: a server with a row binlog, Pumps, and `pumphouse capture run` as a process."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from pymysql.connections import Connection

from pumphouse.archive.init import init_archive
from pumphouse.archive.snapshot import run_snapshot
from pumphouse.diff.compare import DiffReport, compare
from pumphouse.durable import write_atomic
from pumphouse.parts import Parts
from pumphouse.registry.captures import is_live
from pumphouse.runs import load
from pumphouse.settings import Settings
from tests.stack.local import CAPTURE, SMALL, LocalStack
from tests.stack.mariadb import MariaDbServer
from tests.support import forked
from tests.support.capturing import arguments as binlog
from tests.support.kind import is_mysql
from tests.support.mysql import MySqlServer, mysqld


class CapturedStack(LocalStack):
    """The local stack whose source writes a row binlog, which a capture follows; with ``--server mysql`` a MySQL's."""

    def __init__(self, directory: Path, *, source: tuple[str, ...] = (), **settings: Any) -> None:
        values = copy.deepcopy(SMALL)
        values["pump"]["gen_binlog_interval_s"] = 0.3
        values["load"] = {"connections": 2, "engine": "local"}
        values["capture"] = {"directory": str(directory / "c"), **settings}
        super().__init__(directory, store="file", settings=values, popen=forked.popen)
        # A server that is not durable has in its binlog, after a kill, what it has lost.
        made = MySqlServer if is_mysql() else MariaDbServer
        self.databases["source"] = made(
            self.directory / "source",
            name="source",
            supervisor=self.supervisor,
            durable=True,
            arguments=(*binlog(), *source),
        )
        if is_mysql():
            values["capture"]["shadow"] = str(mysqld(self.directory / "mysqld"))

    def write_settings(self) -> None:
        """A MySQL is reached by TLS."""
        super().write_settings()
        text = self.config.read_text()
        for section, server, names in (
            ("source", "source", "tls_"),
            ("target", "target", "tls_"),
            ("restore_target", "restore", "tls_"),
            ("schema", self.history_server, "history_tls_"),
        ):
            if ca := self.dsn(server).tls_ca:
                more = f"{names}ca = {json.dumps(ca)}\n{names}check_name = false\n"
                text = text.replace(f"[{section}]\n", f"[{section}]\n{more}")
        write_atomic(self.config, text.encode(), mode=0o600)

    # The capture

    def stop_capture(self) -> None:
        """As a service manager does."""
        self.supervisor.stop(CAPTURE, timeout_s=60)

    def lose_journal(self) -> None:
        """The disk of a capture that was killed is gone; once nobody holds its lease any more."""
        shutil.rmtree(Path(self.read_settings.capture.directory))
        while is_live(self.capture_record(), time.time()):
            time.sleep(0.5)

    def pumphouse(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command with the stack's settings."""
        return forked.run(["--config", str(self.config), *words], timeout=300)

    # Around it

    @property
    def read_settings(self) -> Settings:
        """The settings file."""
        return Settings.read(self.config)

    def begin(self) -> None:
        """The archive, with a dump of what is there."""
        done = self.pumphouse("archive", "init", "--dump")
        assert done.returncode == 0, done.stderr

    def init(self) -> None:
        """The archive without a dump."""
        settings = self.read_settings
        with Parts(settings) as parts:
            init_archive(parts.archive, parts.cluster, parts.history, settings=settings)

    def snapshot(self) -> None:
        """The archive reaches what is captured now."""
        settings = self.read_settings
        with Parts(settings) as parts:
            run_snapshot(parts.archive, parts.cluster, parts.cluster.tso(), settings, parts.history)

    def load(self) -> None:
        """The target reaches the archive's end."""
        load.run(self.read_settings)

    def compared(self, other: str = "target") -> DiffReport:
        """Source and target, rows and tables."""
        return compare(self.dsn("source"), self.dsn(other), ignore=("history",))

    def require_equal(self) -> None:
        """Capture, archive and load what is there, and compare."""
        self.captured()
        self.snapshot()
        self.load()
        assert self.compared().differences == []

    def run(self, *statements: str, db: str = "") -> None:
        """Statements on the source, each a transaction."""
        with self.source(db) as connection, connection.cursor() as cursor:
            for each in statements:
                cursor.execute(each)

    def kill_source(self) -> None:
        """By `kill -9`, once its engine has written what it answered: a MySQL may take back its latest XA statements (docs/limits.md)."""
        if is_mysql():
            self.run("FLUSH LOCAL ENGINE LOGS")
        self.supervisor.kill(self.databases["source"].name)

    def source(self, db: str = "", *, autocommit: bool = True) -> Connection[Any]:
        """A connection to the source."""
        return self.databases["source"].connect(autocommit=autocommit, **({"database": db} if db else {}))


class SemiSyncStack(CapturedStack):
    """The history is on a server of its own: the source may be lost."""

    history_server = "books"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, semi_sync=True)
        self.databases["books"] = MariaDbServer(directory / "books", name="books", supervisor=self.supervisor)

    def set_source(self, timeout_ms: int) -> None:
        """Its commits wait from now on."""
        self.run(
            f"SET GLOBAL rpl_semi_sync_master_timeout = {timeout_ms}, GLOBAL rpl_semi_sync_master_wait_point = AFTER_SYNC",
            "SET GLOBAL rpl_semi_sync_master_enabled = ON",
        )

    @contextmanager
    def pumps_stand_still(self) -> Iterator[None]:
        """They take nothing, and lose nothing."""
        processes = [psutil.Process(self.supervisor.pid(pump.node_id)) for pump in self.pumps]
        for each in processes:
            each.suspend()
        try:
            yield
        finally:
            for each in processes:
                each.resume()

    def waits(self) -> Any:
        """What the capture says of the source."""
        return self.capture_record().semi_sync


@contextmanager
def captured_stack(
    directory: Path,
    *,
    prepare: Callable[[CapturedStack], None] | None = None,
    made: CapturedStack | None = None,
    **settings: Any,
) -> Iterator[CapturedStack]:
    """A stack (``made``, or one of these settings) whose source, Pumps and capture run; ``prepare`` comes before it."""
    stack = made or CapturedStack(directory, **settings)
    try:
        stack.start_stores(s3=False)
        stack.start_pumps()
        if prepare is not None:
            prepare(stack)
        stack.start_capture()
        yield stack
    except BaseException:
        print(stack.supervisor.tail(CAPTURE, 60))
        raise
    finally:
        stack.stop(timeout_s=0)


def as_json(done: subprocess.CompletedProcess[str]) -> Any:
    """What a command printed."""
    return json.loads(done.stdout)
