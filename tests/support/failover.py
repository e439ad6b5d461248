"""Two MariaDB servers that replicate, of which the one that replicates can take the other one's place.

Their InnoDB table ids differ, and so does what they say for SHOW CREATE, as after a seed by a dump and an upgrade.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from pymysql.err import MySQLError

from pumphouse.settings import TargetSettings
from tests.stack.mariadb import MariaDbServer
from tests.support import mariadb
from tests.support.waiting import eventually

_BINLOG = ("--log-bin=bin", "--log-slave-updates", "--binlog-format=ROW", "--relay-log=relay", "--skip-slave-start")


class ReplicatingPair:
    """``primary`` is written to, ``standby`` has what it wrote, a moment later."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._numbers = directory, itertools.count(1)
        self.primary = self._server()
        self.standby = self._server()
        self._follow(self.standby, self.primary)

    @property
    def settings(self) -> TargetSettings:
        """Of the one that is the target now."""
        return mariadb.settings_of(self.primary)

    def promote(self) -> None:
        """The standby takes over with all that the primary had, which becomes its standby; sessions there are ended."""
        with closing(_session(self.primary)) as old, closing(_session(self.standby)) as new:
            _end_others(old)
            self._catch_up(old, new)
            _run(new, "STOP SLAVE", "RESET SLAVE ALL")
            _run(old, f"SET GLOBAL gtid_slave_pos = '{_one(old, 'SELECT @@gtid_current_pos')}'")
        self.primary, self.standby = self.standby, self.primary
        self._follow(self.standby, self.primary)

    def hold(self) -> None:
        """The standby takes nothing more: what the primary writes from now on is lost with it."""
        with closing(_session(self.primary)) as old, closing(_session(self.standby)) as new:
            self._catch_up(old, new)
            _run(new, "STOP SLAVE")

    def lose(self) -> None:
        """The standby takes over with what it has; the primary is gone, and a new server becomes the standby."""
        with closing(_session(self.standby)) as new:
            _run(new, "STOP SLAVE", "RESET SLAVE ALL")
        gone, self.primary = self.primary, self.standby
        gone.stop()
        shutil.rmtree(gone.directory)
        self.standby = self._server()
        self._follow(self.standby, self.primary)

    def stop(self) -> None:
        """End both."""
        self.primary.stop()
        self.standby.stop()

    def _server(self) -> MariaDbServer:
        number = next(self._numbers)
        arguments = (*_BINLOG, f"--server-id={number}")
        server = MariaDbServer(self._directory / f"server{number}", arguments=arguments).start()
        with closing(_session(server)) as session:
            _run(session, f"SET GLOBAL sql_quote_show_create = {number % 2}")
            # Ids are given out in turn.
            _run(session, *["CREATE DATABASE x", "CREATE TABLE x.x (a INT)", "DROP DATABASE x"] * number)
            _run(session, "RESET MASTER")  # its password is its own
        return server

    def _follow(self, server: MariaDbServer, of: MariaDbServer) -> None:
        with closing(_session(server)) as session:
            _run(
                session,
                f"CHANGE MASTER TO master_host = '127.0.0.1', master_port = {of.port}, master_user = 'root',"
                f" master_password = '{of.password}', master_use_gtid = slave_pos",
                "START SLAVE",
            )

    def _catch_up(self, old: Any, new: Any) -> None:
        assert _one(new, f"SELECT MASTER_GTID_WAIT('{_one(old, 'SELECT @@gtid_binlog_pos')}', 60)") == 0


def _end_others(session: Any) -> None:
    """What a killed client left may be at a statement still: nothing is written here any more."""

    def gone() -> bool:
        mine = "user = 'root' AND command <> 'Binlog Dump' AND id <> CONNECTION_ID()"
        with session.cursor() as cursor:
            cursor.execute(f"SELECT id FROM information_schema.processlist WHERE {mine}")
            found = [id_ for (id_,) in cursor.fetchall()]
            for id_ in found:
                with suppress(MySQLError):  # it has gone
                    cursor.execute(f"KILL {id_}")
            return not found

    eventually(gone)


@contextmanager
def replicating(directory: Path) -> Iterator[ReplicatingPair]:
    """A pair as long as the block lasts."""
    pair = ReplicatingPair(directory)
    try:
        yield pair
    finally:
        pair.stop()


def _session(server: MariaDbServer) -> Any:
    return server.connect(autocommit=True)


def _run(session: Any, *statements: str) -> None:
    with session.cursor() as cursor:
        for each in statements:
            cursor.execute(each)


def _one(session: Any, query: str) -> Any:
    with session.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()[0]
