"""Sessions on the source: they read, in UTC, and hold no lock but the one that a table without a key needs."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from pymysql.connections import Connection
from pymysql.constants import ER
from pymysql.err import MySQLError, ProgrammingError

from pumphouse.errors import ConfigError, SourceFailed, SourceHeld
from pumphouse.loader.state import PARTS_SUFFIX, PARTS_TASK
from pumphouse.mysql import DUMP, ServerConnection, connect, denied, place
from pumphouse.schema.ident import qualified
from pumphouse.settings import ServerSettings

# What a DDL that is under way, or not in the history yet, makes of a query.
_CHANGED = {
    ER.BAD_FIELD_ERROR, ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR, ER.BAD_TABLE_ERROR,
    1412,  # the table definition has changed
}  # fmt: skip
# A statement that locks a table; those on accounts may have passwords.
_LOCKS = re.compile(
    r"\s*(?:ALTER|CREATE|DROP|LOCK|OPTIMIZE|RENAME|REPAIR|TRUNCATE)\b(?!\s+(?:USER|ROLE|SERVER)\b)", re.IGNORECASE
)
_SHOWN, _SHOWN_TEXT = 5, 80
_NO_RIGHT = {ER.SPECIFIC_ACCESS_DENIED_ERROR, ER.ACCESS_DENIED_ERROR}


class TableChanged(Exception):
    """The source's table is not the one that the history knows, for now."""


def where(settings: ServerSettings) -> str:
    """Address, without secrets."""
    return place(settings)


@contextmanager
def session(settings: ServerSettings, answer_s: int = 3600) -> Iterator[ServerConnection]:
    """A connection to the source; ConfigError, SourceFailed, SourceHeld, TableChanged.

    ``answer_s``: the longest that it is waited for an answer.
    """
    if not (settings.host or settings.unix_socket):
        raise ConfigError(
            "no source is known to read from",
            hint='name it in pumphouse.toml: [source] host = "…", port = 3306, user = "…" '
            "(in Airflow: the connection pumphouse_source)",
        )
    try:
        connection = connect(settings, DUMP, "source", program="pumphouse-dump", answer_s=answer_s)
    except (MySQLError, OSError) as error:
        raise SourceFailed(
            f"the source {where(settings)} does not answer: {error}",
            hint="is it running? check host, port or unix_socket in [source]",
            source=where(settings),
        ) from error
    try:
        yield connection
    except OSError as error:
        raise SourceFailed(f"the source {where(settings)} was lost: {error}", source=where(settings)) from error
    except MySQLError as error:
        code = error.args[0] if error.args else 0
        if code in _CHANGED:
            raise TableChanged(str(error.args[1])) from error
        if code == ER.LOCK_WAIT_TIMEOUT:
            raise SourceHeld(
                f"a table stays locked at the source {where(settings)}: {who_locks(connection)}", source=where(settings)
            ) from error
        refused = denied(error, settings, "source")
        if refused is not None:
            refused.advice = ("the user needs SELECT on every table, and LOCK TABLES for tables without a key",)
            raise refused from error
        raise SourceFailed(f"the source {where(settings)}: {error}", source=where(settings)) from error
    finally:
        connection.close()


def require_primary(connection: Connection[Any], settings: ServerSettings) -> None:
    """ConfigError where what is read may lag behind what was committed, or was loaded or restored.

    A replica or a target has a transaction later than its Pumps do: rows that are read "after" it would lack it.
    """
    try:
        replica = replicates(connection)
    except MySQLError:  # a MariaDB asks for a right of its own, and tells everybody how many run
        replica = any(str(count) != "0" for _, count in execute(connection, "SHOW GLOBAL STATUS LIKE 'Slaves_running'"))
    if replica:
        raise ConfigError(
            f"{where(settings)} is a replica: what its primary has committed may not be there yet",
            hint="name the primary in [source]; a primary that was a replica is one to the server, also stopped, until "
            "RESET REPLICA ALL (a MariaDB: RESET SLAVE ALL)",
        )
    # Whatever the schema is called there: what these tables are is known by their columns. A table's name by itself: a
    # MariaDB would open all tables else.
    having = [
        execute(
            connection,
            "SELECT table_schema FROM information_schema.columns"  # noqa: S608
            f" WHERE table_name = '{table}' AND column_name = '{column}'",
        )
        for table, column in (("checkpoint", "cluster_id"), ("fence", "holder"), ("applied", "bucket"))
    ]
    schemas = set.intersection(*({str(name) for (name,) in each} for each in having))
    for schema in sorted(name for name in schemas if not _is_of_parts(connection, name)):
        raise ConfigError(
            f"{where(settings)} has the schema {schema}, where loads and restores keep their state: it is a target of "
            "loads, not the source",
            hint=f"name the source in [source]; if this server has become the source, drop the schema {schema} there",
        )


def _is_of_parts(connection: Connection[Any], schema: str) -> bool:
    """Whether a state is that of restores of parts alone, which the source may have too, or is gone by now."""
    try:
        tasks = {str(task) for (task,) in execute(connection, f"SELECT task FROM {qualified(schema, 'checkpoint')}")}  # noqa: S608
    except MySQLError as error:
        if error.args and error.args[0] == ER.LOCK_WAIT_TIMEOUT:
            raise
        return bool(error.args) and error.args[0] in _CHANGED
    # One that has just begun has no checkpoint yet.
    return schema.endswith(PARTS_SUFFIX) and tasks <= {PARTS_TASK}


def require_binlogs(
    connection: Connection[Any], settings: ServerSettings, cluster: str, pumps: Collection[str]
) -> None:
    """ConfigError where the source is a TiDB whose writes do not reach the Pumps of that cluster.

    A dump of it would look whole, and lack whatever was written while it was taken and ever after.
    """
    if not is_tidb(connection):
        return
    silent = [where(settings)] if str(execute(connection, "SELECT @@log_bin")[0][0]) in {"0", "OFF"} else []
    with contextlib.suppress(MySQLError):  # the others can be asked by whom may see settings
        asked = execute(connection, "SHOW CONFIG WHERE TYPE = 'tidb' AND NAME = 'binlog.enable'")
        silent = [str(instance) for _, instance, _, value in asked if str(value) == "false"] or silent
    if silent:
        raise ConfigError(
            f"this TiDB writes no binlogs (binlog.enable is off at {', '.join(silent)}): what is written there reaches"
            " no Pump",
            hint="with the Pumps running, set enable = true in the section [binlog] of each tidb-server's configuration"
            " and restart it; then dump",
        )
    with contextlib.suppress(MySQLError):
        known = {str(row[0]) for row in execute(connection, "SHOW PUMP STATUS")}
        if known and known.isdisjoint(pumps):
            raise ConfigError(
                f"the TiDB {where(settings)} writes to the Pumps {', '.join(sorted(known))}, and {cluster} has "
                f"{', '.join(sorted(pumps)) or 'none'}: another cluster",
                hint="set cluster.url to the PD of that TiDB, as pd://HOST:2379; run Pumps and `archive init` with it",
            )


def replicates(connection: Connection[Any]) -> bool:
    """Whether a server is a replica; MySQLError where that may not be asked."""
    for statement in ("SHOW ALL SLAVES STATUS", "SHOW REPLICA STATUS", "SHOW SLAVE STATUS"):
        try:
            return bool(execute(connection, statement))
        except MySQLError as error:
            if error.args and error.args[0] in _NO_RIGHT:
                raise
            continue  # another server's word
    return False


def execute(connection: Connection[Any], statement: str) -> list[tuple[Any, ...]]:
    """Run one statement; its rows."""
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def who_locks(connection: Connection[Any]) -> str:
    """What a table may be locked by, in words: statements, and XA transactions that are prepared, with what ends them.

    As far as the user sees them: PROCESS, and on a MySQL XA_RECOVER_ADMIN, show those of others.
    """
    told: list[str] = []
    with contextlib.suppress(MySQLError, OSError):
        for number, _, _, _, _, seconds, _, text, *_ in execute(connection, "SHOW FULL PROCESSLIST"):
            if _LOCKS.match(str(text or "")):
                told.append(f"session {number} runs `{str(text)[:_SHOWN_TEXT]}` for {seconds} s")
    xids: list[str] = []
    with contextlib.suppress(MySQLError, OSError):
        xids = prepared_xids(connection)
    if xids:
        more = f" and {len(xids) - _SHOWN} more" if len(xids) > _SHOWN else ""
        told.append(
            f"XA transactions are prepared ({'; '.join(xids[:_SHOWN])}{more}): `XA COMMIT {xids[0]}` or `XA ROLLBACK "
            f"{xids[0]}` ends one that was left"
        )
    return "; ".join(told) or "SHOW PROCESSLIST has no statement that locks one, as far as this user sees"


def prepared_xids(connection: Connection[Any]) -> list[str]:
    """XA transactions that are prepared at the server, as XA COMMIT takes them."""
    try:
        return [_text(xid) for *_, xid in execute(connection, "XA RECOVER FORMAT='SQL'")]
    except ProgrammingError:  # a MySQL
        found = [(each[0], 2 + 2 * each[1], _text(each[3])) for each in execute(connection, "XA RECOVER CONVERT XID")]
        return [f"X'{xid[2:end]}',X'{xid[end:]}',{kind}" for kind, end, xid in found]


def _text(value: str | bytes) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def identity(connection: Connection[Any]) -> str:
    """What connections to one server have in common, and to two servers have not; '' of a TiDB: its servers are one."""
    if is_tidb(connection):
        return ""
    names = "'server_uuid', 'hostname', 'port', 'datadir', 'server_id'"
    found = execute(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
    values = {str(name).lower(): str(value) for name, value in found}
    parts = ("hostname", "port", "datadir", "server_id")
    return values.get("server_uuid") or ":".join(values.get(name, "") for name in parts)


def is_tidb(connection: Connection[Any]) -> bool:
    """Whether the server is a TiDB, which reads at any timestamp and whose LOCK TABLES locks nothing."""
    return "tidb" in str(execute(connection, "SELECT VERSION()")[0][0]).lower()
