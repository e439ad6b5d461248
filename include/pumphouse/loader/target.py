"""One connection to a target, with the fixed session, and the tables that we keep there (docs/formats.md).

Nothing here reconnects: what a session holds (GET_LOCK, a transaction, a temporary table) ends with it, and the caller
must know. Used by one thread at a time.
"""

# Names in statements are quoted by pumphouse.schema.ident; values go as parameters.

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pymysql.constants import COMMAND, ER
from pymysql.cursors import SSCursor
from pymysql.err import MySQLError, OperationalError
from pymysql.protocol import LoadLocalPacketWrapper, OKPacketWrapper

from pumphouse.errors import LoadError, TargetUnavailable
from pumphouse.loader.conditions import condition_of, is_of_a_row
from pumphouse.mysql import LOAD, NO_RIGHT, ServerConnection, Session, connect, place
from pumphouse.mysql.connection import named_in
from pumphouse.once import once
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.ident import qualified, quote
from pumphouse.settings import TargetSettings

# What a unit holds is let go of when its host loses power: the server hears nothing of it.
IDLE = {"wait_timeout": "300", "net_read_timeout": "300", "net_write_timeout": "300"}
# The owner's connection waits for hours while units work, and holds no lock of a table meanwhile.
OWNER_IDLE = {"wait_timeout": "2147483", "net_read_timeout": "3600", "net_write_timeout": "3600"}
# How long a session that ends waits for the server to take its locks back.
_LEAVING_S = 5.0
# Of these the server says that the transaction is gone and may be tried again.
_RETRYABLE = {
    ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT,
    # TiDB: another transaction was first, the schema changed meanwhile, PD or TiKV did not answer in time.
    8002, 8022, 8027, 8028, 9001, 9002, 9003, 9004, 9005, 9007,
}  # fmt: skip
# TiDB: the transaction, or what it needs in memory, is above a limit.
_TOO_LARGE = {8004, 8175}
# No such database, table, column: of no row's making.
NO_SUCH = frozenset({1049, 1146, 1054})
# An expression has what the server lacks, or does not allow there: a function, a collation, a character set, a syntax.
NO_SUCH_EXPRESSION = frozenset(
    {1064, 1115, 1235, 1253, 1267, 1270, 1271, 1273, 1305, 1582, *range(1900, 1913), *range(3102, 3110)}
)
# No row's fault: the server takes no LOAD DATA LOCAL (MariaDB; MySQL 8; older ones).
_NO_LOCAL = {4166, 3948, 1148}
_LOST = {2006, 2013, 2014, 2055, ER.CON_COUNT_ERROR, ER.SERVER_SHUTDOWN, 1927, 1317}
_LOCAL_NAME = b"pumphouse"
PACKET_BYTES = 1 << 20
_STREAM_ROWS = 10_000

# ``{s}`` is the quoted schema. One row of `fence` is the target's; everything else is keyed by task.
TABLES = {
    "fence": """CREATE TABLE IF NOT EXISTS {s}.`fence` (
  id TINYINT UNSIGNED NOT NULL PRIMARY KEY COMMENT 'always 1: the fence belongs to the target',
  number BIGINT UNSIGNED NOT NULL COMMENT 'raised by every new owner, every plan begun and every plan closed',
  run VARCHAR(255) NOT NULL COMMENT 'run that owns the target now, or owned it last',
  holder VARCHAR(255) NOT NULL COMMENT 'user, host and process of that run',
  connection_id BIGINT UNSIGNED NOT NULL COMMENT 'its connection, which holds the GET_LOCK',
  since TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin""",
    "checkpoint": """CREATE TABLE IF NOT EXISTS {s}.`checkpoint` (
  task VARCHAR(64) NOT NULL PRIMARY KEY,
  ts BIGINT UNSIGNED NOT NULL COMMENT 'every transaction with commit ts <= this is in the target, none above it',
  state VARCHAR(16) NOT NULL COMMENT 'ready, incomplete (only a restore clears it) or inconsistent (the same)',
  reason TEXT NOT NULL,
  cluster_id BIGINT UNSIGNED NOT NULL COMMENT 'cluster whose archive is loaded',
  plan_number BIGINT UNSIGNED NOT NULL COMMENT 'largest plan number given out',
  updated_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin""",
    "plan": """CREATE TABLE IF NOT EXISTS {s}.`plan` (
  task VARCHAR(64) NOT NULL,
  number BIGINT UNSIGNED NOT NULL,
  from_ts BIGINT UNSIGNED NOT NULL,
  to_ts BIGINT UNSIGNED NOT NULL,
  mode VARCHAR(16) NOT NULL COMMENT 'base, merge, replay or repeat',
  spec LONGTEXT NOT NULL COMMENT 'JSON: how units are made, see include/pumphouse/loader/plan.py',
  digest CHAR(64) NOT NULL COMMENT 'SHA-256 of from_ts, to_ts, mode and spec',
  state VARCHAR(16) NOT NULL COMMENT 'open or closed',
  PRIMARY KEY (task, number)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin""",
    "applied": """CREATE TABLE IF NOT EXISTS {s}.`applied` (
  task VARCHAR(64) NOT NULL,
  plan BIGINT UNSIGNED NOT NULL,
  epoch INT UNSIGNED NOT NULL,
  phase TINYINT UNSIGNED NOT NULL COMMENT '0 deletes, 1 inserts',
  table_id BIGINT NOT NULL,
  bucket INT UNSIGNED NOT NULL,
  row_count BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (task, plan, epoch, phase, table_id, bucket)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin""",
    "step": """CREATE TABLE IF NOT EXISTS {s}.`step` (
  task VARCHAR(64) NOT NULL,
  number INT UNSIGNED NOT NULL COMMENT 'place among the steps that were written down together',
  kind VARCHAR(16) NOT NULL COMMENT 'reset, build, apply, foreign_keys, ready or bring_back',
  what TEXT NOT NULL COMMENT 'for people',
  digest CHAR(64) NOT NULL COMMENT 'SHA-256 of all of them: a run that plans others begins anew',
  state VARCHAR(16) NOT NULL COMMENT 'planned or done',
  notes LONGTEXT NOT NULL COMMENT 'JSON: what the step left out, for the report',
  updated_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
  PRIMARY KEY (task, number)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin""",
    "ddl": """CREATE TABLE IF NOT EXISTS {s}.`ddl` (
  task VARCHAR(64) NOT NULL,
  commit_ts BIGINT UNSIGNED NOT NULL COMMENT 'of the DDL binlog',
  job_id BIGINT NOT NULL,
  step INT UNSIGNED NOT NULL COMMENT 'place among the statements of this DDL',
  statement LONGTEXT NOT NULL COMMENT 'JSON: the statement and how it can be settled, see pumphouse/schema/render.py',
  state VARCHAR(16) NOT NULL COMMENT 'planned, intent or done',
  looks LONGTEXT NULL COMMENT 'JSON: what the statement''s objects looked like before it',
  fence BIGINT UNSIGNED NOT NULL COMMENT 'owner that wrote this row last',
  updated_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
  PRIMARY KEY (task, commit_ts, job_id, step)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin""",
    "rule": """CREATE TABLE IF NOT EXISTS {s}.`rule` (
  task VARCHAR(64) NOT NULL,
  subject VARCHAR(255) NOT NULL COMMENT 'ddl or txn <commit ts>, table <name or pattern>, route <name> to <name>',
  ts BIGINT UNSIGNED NOT NULL COMMENT 'commit ts of the DDL; checkpoint from which on the table is left out',
  rule LONGTEXT NOT NULL COMMENT 'JSON: as in the setting load.rules',
  who VARCHAR(255) NOT NULL COMMENT 'user and host of the run that used it first',
  why TEXT NOT NULL,
  used_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  ended_at TIMESTAMP(6) NULL COMMENT 'since when it is history: the table was brought back, or the target restored',
  PRIMARY KEY (task, subject, ts)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin""",
    "failed": """CREATE TABLE IF NOT EXISTS {s}.`failed` (
  task VARCHAR(64) NOT NULL PRIMARY KEY,
  failed_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  error VARCHAR(64) NOT NULL COMMENT 'class of the error',
  message TEXT NOT NULL,
  hint TEXT NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin""",
}


class RetryUnit(LoadError):
    """The server ended the transaction in favour of another one; nothing of it is left."""

    retryable = True


@dataclass(frozen=True, slots=True)
class Loaded:
    """Answer to a LOAD DATA or an INSERT: rows inserted plus rows removed for them, and warnings."""

    affected: int
    warnings: int


class StatementFailed(LoadError):
    """The server refused a statement, and said ``text``.

    ``condition``: for its own state, and not for what the statement says.
    """

    code: int | None = None
    text: str = ""
    statement: str | None = None
    condition: bool | None = None

    @property
    def of_a_row(self) -> bool:
        """Whether it did so for the data in it."""
        return is_of_a_row(self.code or 0, self.message)

    @property
    def of_the_server(self) -> bool:
        """Whether it did so for its own state, and not for want of a right: another time it may take the statement."""
        return bool(self.condition) and self.code not in NO_RIGHT


class NotNow(StatementFailed):
    """It did so because it is full, read-only or at a limit: a later try may help."""

    retryable = True


class TargetConnection:
    """A session of ours. Transactions are explicit (`transaction`); outside them each statement commits itself."""

    def __init__(self, settings: TargetSettings, connection: ServerConnection) -> None:
        self.settings = settings
        self._connection = connection
        self._closed = False
        self._owner = False
        # Tables, (database, name), whose engine was looked at in this session (`pumphouse.loader.unfit`).
        self.transactional: set[tuple[str, str]] = set()
        # Asked for: the greeting has no room for the 64 bits of a TiDB's.
        with self._translate("SELECT CONNECTION_ID()"), connection.making_sense():
            ((self.connection_id, version),) = self.query("SELECT CONNECTION_ID(), VERSION()")
        self.dialect = Dialect.of_version(str(version))

    @classmethod
    def open(
        cls,
        settings: TargetSettings,
        *,
        owner: bool = False,
        timeout_s: float | None = None,
        session: Session = LOAD,
        section: str = "target",
    ) -> Self:
        """Connect and fix the session; TargetUnavailable names the address, AccessDenied what it says of the user.

        Args:
            settings: the server.
            owner: the connection that will hold the GET_LOCK; it may idle for as long as a load takes.
            timeout_s: seconds that the server may take for each answer; None = as long as it likes, once it let us in.
            session: what it sets; what it does not set need not be as a load wants it.
            section: the one of the settings that names the server, for errors.
        """
        where = address(settings)
        try:
            connection = connect(
                settings,
                session,
                section,
                more=OWNER_IDLE if owner else IDLE,
                sends_rows=True,
                connect_s=timeout_s or 10,
                answer_s=timeout_s,
            )
        except (MySQLError, OSError) as error:
            code = error.args[0] if isinstance(error, MySQLError) and error.args else 0
            found = condition_of(code, str(error))
            raise TargetUnavailable(
                f"target {where} {'takes no session now' if found else 'does not answer'}: {error}",
                hint=found.remedy if found else (_CHECK, named_in(section)),
                target=where,
            ) from error
        target = cls(settings, connection)
        target._owner = owner
        return target

    @property
    def name(self) -> str:
        """Address, without secrets."""
        return address(self.settings)

    @property
    def schema(self) -> str:
        """Quoted name of the schema with our tables."""
        return quote(self.settings.schema_name)

    def table(self, name: str) -> str:
        """Quoted, qualified name of one of our tables."""
        return qualified(self.settings.schema_name, name)

    def create_tables(self, *names: str) -> None:
        """Make the schema and our tables (or some) where they are missing; LoadError where it is somebody else's."""
        # Looked up first: CREATE … IF NOT EXISTS leaves a warning and takes a metadata lock.
        found = set(self.query(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = %s",
            (self.settings.schema_name,),
        ))  # fmt: skip
        have = sorted({name for name, _ in found})
        if not have:
            self.execute(f"CREATE DATABASE IF NOT EXISTS {self.schema} DEFAULT CHARACTER SET utf8mb4")
        elif ("fence", "holder") not in found:  # the first that is made
            raise LoadError(
                f"the database {self.settings.schema_name!r} of target {self.name} is not for the state of a load: it "
                f"has tables of its own ({', '.join(have[:5])}). Nothing was changed",
                hint="set schema_name of the target to a name that no other database there has (pumphouse is usual)",
                target=self.name,
            )
        for name in names or TABLES:
            if name not in have:
                self.execute(TABLES[name].format(s=self.schema))

    def has_table(self, name: str) -> bool:
        """Whether one of our tables is there: a target may be new, or of a release that did not have it."""
        found = self.value(
            "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
            (self.settings.schema_name, name),
        )
        return found is not None

    def execute(self, statement: str, args: Sequence[Any] | None = None) -> int:
        """Run one statement; returns the affected rows."""
        with self._translate(statement), self._connection.cursor() as cursor:
            return int(cursor.execute(statement, args))

    def query(self, statement: str, args: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Run one query; returns all rows."""
        with self._translate(statement), self._connection.cursor() as cursor:
            cursor.execute(statement, args)
            return list(cursor.fetchall())

    def stream(self, statement: str) -> Iterator[tuple[tuple[Any, ...], ...]]:
        """Run one query; yields its rows some at a time. No other statement before the last of them."""
        with self._translate(statement), self._connection.cursor(SSCursor) as cursor, self._connection.making_sense():
            cursor.execute(statement)
            while some := cursor.fetchmany(_STREAM_ROWS):
                yield tuple(some)

    def value(self, statement: str, args: Sequence[Any] | None = None) -> Any:
        """First column of the first row, or None."""
        rows = self.query(statement, args)
        return rows[0][0] if rows else None

    def columns_there(self, table: tuple[str, str]) -> dict[str, bool] | None:
        """Columns of a table (database, name), in lower case and in order, and whether the server computes them.

        None = no table.
        """
        rows = self.query(
            "SELECT column_name, COALESCE(generation_expression, '') <> '' FROM information_schema.columns"
            " WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
            table,
        )
        return {str(name).lower(): bool(computed) for name, computed in rows} or None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit at the end; roll back when the body raises."""
        self.execute("BEGIN")
        try:
            yield
        except BaseException:
            # On a lost connection the server rolls back by itself.
            with contextlib.suppress(LoadError):
                self.execute("ROLLBACK")
            raise
        self.execute("COMMIT")

    def load_local(self, statement: str, data: Iterable[bytes | memoryview]) -> Loaded:
        """``LOAD DATA LOCAL INFILE 'pumphouse' …`` with the bytes from memory.

        PyMySQL reads a file whose name the *server* chooses; here nothing but ``data`` is ever sent.
        """
        connection: Any = self._connection
        with self._translate(statement):
            with self._connection.making_sense():
                connection._execute_command(COMMAND.COM_QUERY, statement)  # noqa: SLF001
                first = connection._read_packet()  # noqa: SLF001
                asked = LoadLocalPacketWrapper(first).filename
            if asked != _LOCAL_NAME:
                self.close()
                raise LoadError(f"the server asked for file {asked!r}: the connection is closed", target=self.name)
            try:
                for part in data:
                    view = memoryview(part)
                    for at in range(0, len(view), PACKET_BYTES):
                        self._connection.write_rows(view[at : at + PACKET_BYTES])
            except BaseException:  # amid the rows, a server takes whatever comes next for rows: a ROLLBACK too
                connection._force_close()  # noqa: SLF001
                raise
            connection.write_packet(b"")
            with self._connection.making_sense():
                answer = OKPacketWrapper(connection._read_packet())  # noqa: SLF001
                return Loaded(affected=int(answer.affected_rows), warnings=int(answer.warning_count))

    @once
    def max_packet(self) -> int:
        """Bytes of a statement that the server takes."""
        return int(self.value("SELECT @@max_allowed_packet"))

    def insert(self, statement: bytes) -> Loaded:
        """An INSERT with its values in it."""
        with self._translate(statement[:200].decode(errors="backslashreplace")):
            affected = self._connection.query(statement)
            result: Any = self._connection._result  # type: ignore[attr-defined]  # noqa: SLF001
            return Loaded(affected=int(affected), warnings=int(result.warning_count))

    def warnings(self) -> list[tuple[str, int, str]]:
        """Warnings of the last statement: level, code, text."""
        return [(str(level), int(code), str(text)) for level, code, text in self.query("SHOW WARNINGS")]

    def close(self) -> None:
        """End the session; more than once is no error."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(MySQLError, OSError):
                self._connection.close()

    def leave(self) -> None:
        """Give the GET_LOCK back and end the session.

        A server notices a close some time later: until then the next run would find the target taken.
        """
        if not self._closed:
            # A server that is cut off keeps nobody from ending.
            self._connection._read_timeout = _LEAVING_S  # type: ignore[attr-defined]  # noqa: SLF001
            with contextlib.suppress(LoadError):
                self.query("SELECT RELEASE_ALL_LOCKS()")
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Whoever is interrupted may be within a statement, and waits for nothing.
        if self._owner and (kind is None or issubclass(kind, Exception)):
            self.leave()
        else:
            self.close()

    @contextlib.contextmanager
    def _translate(self, statement: str) -> Iterator[None]:
        try:
            yield
        except MySQLError as error:
            code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
            if code in _RETRYABLE:
                raise RetryUnit(f"target {self.name}: {error}", target=self.name) from error
            if code in _TOO_LARGE:
                raise LoadError(
                    f"target {self.name}: one unit is too large for a transaction there: {error}",
                    hint="raise performance.txn-total-size-limit (and tidb_mem_quota_query) of that TiDB, or lower "
                    "load.unit_bytes or load.max_plan_bytes",
                    target=self.name,
                ) from error
            if code in _NO_LOCAL and self.dialect is not Dialect.TIDB:
                raise LoadError(
                    f"target {self.name} takes no rows: local_infile is off there",
                    hint="SET GLOBAL local_infile = ON there, and in its configuration file; then run this again",
                    target=self.name,
                ) from error
            if code in _LOST or not self._connection.open:
                raise TargetUnavailable(
                    f"target {self.name} dropped the connection: {error}", hint=_AGAIN, target=self.name
                ) from error
            text = error.args[1] if isinstance(error, OperationalError) or len(error.args) > 1 else str(error)
            found = condition_of(code, str(text))
            kind = NotNow if found is not None and found.passes else StatementFailed
            raise kind(
                f"target {self.name} refused: {text} [{code}] in {statement[:200]}",
                hint="" if found is None else f"{found.remedy}; then run this again",
                code=code,
                text=str(text),
                statement=statement[:2000],
                condition=found is not None,
            ) from error
        except OSError as error:
            raise TargetUnavailable(
                f"target {self.name} dropped the connection: {error}", hint=_AGAIN, target=self.name
            ) from error


_CHECK = "is it running? check host, port or unix_socket in "
_AGAIN = "run the same again: it goes on where it was"


def address(settings: TargetSettings) -> str:
    """``user@host:port`` or ``user@socket``."""
    return place(settings)


def has_checkpoints(connection: TargetConnection) -> bool:
    """Whether there is a table of checkpoints: the first load makes it."""
    found = connection.query(
        "SELECT 1 FROM information_schema.columns WHERE table_schema = %s AND table_name = 'checkpoint'"
        " AND column_name = 'cluster_id'",
        (connection.settings.schema_name,),
    )
    return bool(found)
