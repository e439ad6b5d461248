"""Who keeps a statement of ours waiting for a row lock: named, or ended, while it waits.

The server tells who waits for whom only while one waits, and a waiting connection cannot ask; so a second one does.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import structlog

from pumphouse.errors import LoadError, TargetBusy
from pumphouse.loader.target import RetryUnit, StatementFailed, TargetConnection
from pumphouse.schema.dialect import Dialect

log = structlog.get_logger()

# A unit that is under way lets go by itself in that time, as a rule.
_GRACE_S = 1.0
_UNKNOWN_THREAD = 1094
_WHY = "it holds the fence"
# MariaDB, and MySQL before 8.0; MySQL from 8.0; TiDB. All need the privilege PROCESS.
_QUERIES = (
    """SELECT p.id, p.user, p.host, UNIX_TIMESTAMP() - UNIX_TIMESTAMP(b.trx_started)
  FROM information_schema.innodb_lock_waits w
  JOIN information_schema.innodb_trx r ON r.trx_id = w.requesting_trx_id
  JOIN information_schema.innodb_trx b ON b.trx_id = w.blocking_trx_id
  JOIN information_schema.processlist p ON p.id = b.trx_mysql_thread_id
 WHERE r.trx_mysql_thread_id = %s""",
    """SELECT p.id, p.user, p.host, UNIX_TIMESTAMP() - UNIX_TIMESTAMP(b.trx_started)
  FROM performance_schema.data_lock_waits w
  JOIN information_schema.innodb_trx r ON r.trx_id = w.requesting_engine_transaction_id
  JOIN information_schema.innodb_trx b ON b.trx_id = w.blocking_engine_transaction_id
  JOIN information_schema.processlist p ON p.id = b.trx_mysql_thread_id
 WHERE r.trx_mysql_thread_id = %s""",
    """SELECT p.id, p.user, p.host, UNIX_TIMESTAMP() - UNIX_TIMESTAMP(b.start_time)
  FROM information_schema.data_lock_waits w
  JOIN information_schema.tidb_trx r ON r.id = w.trx_id
  JOIN information_schema.tidb_trx b ON b.id = w.current_holding_trx_id
  JOIN information_schema.processlist p ON p.id = b.session_id
 WHERE r.session_id = %s""",
)


@dataclass(frozen=True, slots=True)
class Blocker:
    """A session whose transaction holds a lock that another waits for."""

    connection_id: int
    user: str
    host: str
    seconds: int

    def __str__(self) -> str:
        return f"connection {self.connection_id} of {self.user} from {self.host}, in a transaction for {self.seconds} s"


def blockers_of(connection: TargetConnection, waiting: int) -> list[Blocker]:
    """Sessions that keep connection ``waiting`` from a row lock now; [] where the server does not tell us."""
    for query in _QUERIES:
        try:
            rows = connection.query(query, (waiting,))
        except StatementFailed:
            continue
        return sorted({Blocker(int(i), str(u), str(h), int(s)) for i, u, h, s in rows}, key=lambda b: b.connection_id)
    return []


def _sessions(found: list[Blocker]) -> set[int]:
    return {blocker.connection_id for blocker in found}


def _shown(found: list[Blocker]) -> str:
    return "; ".join(map(str, found))


@contextlib.contextmanager
def watching(connection: TargetConnection, *, end: bool) -> Iterator[None]:
    """While the block waits for the fence: find who holds it; with ``end`` kill those sessions.

    TargetBusy names them when the wait times out.
    """
    watch = _Watch(connection, end=end)
    watch.start()
    try:
        yield
    except RetryUnit as error:
        watch.stop()
        raise TargetBusy(
            f"target {connection.name} is held by what an earlier run left: {watch.shown()}",
            hint="the server ends a session whose host has died after 300 s; --take-over ends it at once, or KILL does",
            target=connection.name,
            holder=watch.shown(),
        ) from error
    finally:
        watch.stop()


class _Watch:
    def __init__(self, connection: TargetConnection, *, end: bool) -> None:
        self._settings = connection.settings
        self._waiting = connection.connection_id
        self._end = end
        self._done = threading.Event()
        self._seen: list[Blocker] = []
        self._thread = threading.Thread(target=self._run, name="fence-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def shown(self) -> str:
        hidden = "a session that the server does not show to us (privilege PROCESS; a MySQL's performance_schema)"
        return _shown(self._seen) or hidden

    def _run(self) -> None:
        if self._done.wait(_GRACE_S):
            return
        # What goes wrong here must not end the wait itself: it ends by itself, only later.
        with contextlib.suppress(LoadError), TargetConnection.open(self._settings) as asking:
            while True:
                found = blockers_of(asking, self._waiting)
                if not self._end and _sessions(found) - _sessions(self._seen):
                    log.warning("waiting_for_session", server=asking.name, session=_shown(found), why=_WHY)
                self._seen = found or self._seen
                for blocker in found if self._end else ():
                    self._kill(asking, blocker)
                if self._done.wait(0.5):
                    return

    def _kill(self, asking: TargetConnection, blocker: Blocker) -> None:
        log.warning("session_ended", server=asking.name, session=str(blocker), why=_WHY)
        try:
            asking.execute(f"KILL {'TIDB ' if asking.dialect is Dialect.TIDB else ''}{blocker.connection_id}")
        except StatementFailed as error:
            if error.code != _UNKNOWN_THREAD:
                raise
