"""What every session of ours sets before its first statement: one list for sources, the history and targets.

A server has guards against the queries of others: a time limit, a row limit, a safe mode, transactions that only read.
In a session of ours each of them loses rows or stops a run, so none of them counts there. A variable that a server does
not have is left out; one that this user may not set, and that is not as it has to be, is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pymysql.connections import Connection
from pymysql.cursors import Cursor
from pymysql.err import MySQLError

from pumphouse.errors import ConfigError

# A limit that MariaDB reads with a sign, as that of a session's memory, takes half of it.
_MOST = (1 << 64) - 1

# By name, with the value as SHOW VARIABLES spells it. Of a MariaDB, a MySQL or a TiDB, as it comes.
_EVERYWHERE = {
    # Limits that end a statement or a session, or cut off rows.
    "max_execution_time": "0",
    "idle_transaction_timeout": "0",
    "idle_readonly_transaction_timeout": "0",
    "idle_write_transaction_timeout": "0",
    "sql_safe_updates": "OFF",
    "lock_wait_timeout": "86400",
    "sort_buffer_size": "2097152",
    # Long keys would be sorted by their beginnings alone.
    "max_sort_length": "16384",
    "sql_notes": "ON",
    # What a transaction is, and what ends one.
    "autocommit": "ON",
    "completion_type": "NO_CHAIN",
    "tx_read_only": "OFF",
    "transaction_read_only": "OFF",
    "innodb_snapshot_isolation": "OFF",
    # What is read: nothing that is late or elsewhere.
    "wsrep_dirty_reads": "OFF",
    "tidb_low_resolution_tso": "OFF",
    "tidb_enable_external_ts_read": "OFF",
    "tidb_replica_read": "leader",
    # What a statement means, and what texts look like.
    "sql_auto_is_null": "OFF",
    "sql_quote_show_create": "ON",
    "sql_if_exists": "OFF",
    "character_set_filesystem": "binary",
    "lc_messages": "en_US",
    "lc_time_names": "en_US",
    "group_concat_max_len": "1048576",
    "div_precision_increment": "4",
    "default_week_format": "0",
    "default_regex_flags": "",
    "block_encryption_mode": "aes-128-ecb",
    "alter_algorithm": "DEFAULT",
    "default_storage_engine": "InnoDB",
}
_LOADING = {
    # Else a TIMESTAMP gets a default and an ON UPDATE that nobody said. A MariaDB before 10.6.9 reads it at its start.
    "explicit_defaults_for_timestamp": "ON",
    # Longer than a unit's idle session lasts: whoever waits for one whose host has died gets its locks then.
    "innodb_lock_wait_timeout": "600",
    # A statement log cannot carry what we write at READ COMMITTED.
    "binlog_format": "ROW",
    # Locks are taken, and keys compared, when a statement asks for it.
    "tidb_txn_mode": "pessimistic",
    "tidb_dml_type": "standard",
    "tidb_batch_insert": "OFF",
    "tidb_batch_delete": "OFF",
}
# What a server may keep: nothing is wrong then, or it says itself what is.
_HOPED = {
    # A terabyte, where nobody says less.
    "max_tmp_session_space_usage": "0",
}
_WISHES = {
    # As many as a server keeps: what it says of each row of a batch is read. MySQL lets not everybody set it.
    "max_error_count": "65535",
    # A row that may become larger than a page of InnoDB: the source has it, and one that does is refused by itself.
    "innodb_strict_mode": "OFF",
    "sql_require_primary_key": "OFF",
    "sql_generate_invisible_primary_key": "OFF",
    "tidb_constraint_check_in_place_pessimistic": "ON",
    "allow_auto_random_explicit_insert": "ON",
    "tidb_allow_remove_auto_inc": "ON",
    "tidb_enable_list_partition": "ON",
    # Of what a unit deletes.
    "tidb_tmp_table_max_size": str(1 << 30),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What one kind of session sets.

    Args:
        sql_mode: no mode of the server's counts besides.
        isolation: of its transactions.
        more: variables with their values, beyond those of every session.
        wishes: the same, and a server may refuse them.
    """

    sql_mode: str
    isolation: str
    more: Mapping[str, str] = field(default_factory=dict)
    wishes: Mapping[str, str] = field(default_factory=dict)


# Strict, and nothing that changes a value on its way in: zero dates stay, 0 stays 0 in an AUTO_INCREMENT column. And no
# table of another engine than its statement says.
LOOSE_MODE = "NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION"
SQL_MODE = f"STRICT_TRANS_TABLES,{LOOSE_MODE}"

_WAITING = {"wait_timeout": "28800", "net_read_timeout": "600", "net_write_timeout": "600"}
DUMP = Session(
    sql_mode="ALLOW_INVALID_DATES",
    isolation="REPEATABLE READ",
    # A table that is locked for longer is tried again, by whoever can say what it waits for.
    more=_WAITING | {"lock_wait_timeout": "3"},
    # A node of a Galera cluster answers when it has what the others have committed.
    wishes={"wsrep_sync_wait": "1"},
)
# At READ COMMITTED a statement log would refuse its rows.
HISTORY = Session(sql_mode=SQL_MODE, isolation="REPEATABLE READ", more=_WAITING)
LOAD = Session(
    sql_mode=SQL_MODE,
    isolation="READ COMMITTED",
    # A source has rows that its constraints do not allow: it was told not to look, or looks at none when a CHECK comes.
    more=_LOADING | {"foreign_key_checks": "OFF", "check_constraint_checks": "OFF", "unique_checks": "ON"},
    wishes=_WISHES,
)

# On a server on which others work: it waits for nobody long, and constraints count.
FLASHBACK = Session(
    sql_mode=SQL_MODE,
    isolation="REPEATABLE READ",
    more=_LOADING
    | {"foreign_key_checks": "ON", "check_constraint_checks": "ON", "unique_checks": "ON"}
    | {"innodb_lock_wait_timeout": "10", "lock_wait_timeout": "10"},
    wishes=_WISHES,
)


def begin(connection: Connection[Any], session: Session, where: str, more: Mapping[str, str] | None = None) -> None:
    """Set a new session; ``where`` names the server, ``more`` are variables of this session alone.

    Raises:
        ConfigError: a variable has a value that we cannot work with, and the user may not set it.
        MySQLError: what the server says.
    """
    # Without these the list of variables itself could be cut short, or refused. One comment is a MariaDB's alone, one a
    # TiDB's.
    _run(
        connection,
        f"SET NAMES utf8mb4, time_zone = '+00:00', sql_mode = '{session.sql_mode}', sql_select_limit = {_MOST},"
        f" max_join_size = {_MOST}, sql_big_selects = 1"
        f" /*M!100400 , max_statement_time = 0, max_session_mem_used = {_MOST >> 1}, tmp_disk_table_size = {_MOST} */"
        " /*T! , max_execution_time = 0 */",
    )
    _run(connection, f"SET SESSION TRANSACTION ISOLATION LEVEL {session.isolation}")
    wanted = {**_EVERYWHERE, **session.more, **(more or {})}
    wishes = {**_HOPED, **session.wishes}
    found = variables(connection, [*wanted, *wishes])
    if found.get("log_bin") in {"OFF", "0"} or found.get("binlog_format") != "STATEMENT":
        wanted.pop("binlog_format", None)
    to_set = {name: value for name, value in wanted.items() if name in found and not _same(found[name], value)}
    hoped = {name: value for name, value in wishes.items() if name in found and not _same(found[name], value)}
    try:
        if to_set or hoped:
            _run(connection, _set({**to_set, **hoped}))
    except MySQLError as error:
        if not connection.open:
            raise
        _one_by_one(connection, to_set, hoped, found, where, error)


def variables(connection: Connection[Any], names: list[str]) -> dict[str, str]:
    """Those of the variables that the server has, and log_bin, as SHOW VARIABLES spells them for this session."""
    listed = ", ".join(f"'{name}'" for name in ["log_bin", *names])
    with connection.cursor(Cursor) as cursor:
        cursor.execute(f"SHOW SESSION VARIABLES WHERE Variable_name IN ({listed})")
        return {_text(name).lower(): _text(value) for name, value in cursor.fetchall()}


def _one_by_one(
    connection: Connection[Any],
    wanted: Mapping[str, str],
    hoped: Mapping[str, str],
    found: Mapping[str, str],
    where: str,
    first: MySQLError,
) -> None:
    """The same, where the server refuses one of them; ConfigError names those that it refuses."""
    refused = []
    for name, value in {**wanted, **hoped}.items():
        try:
            _run(connection, _set({name: value}))
        except MySQLError:
            if not connection.open:
                raise
            if name in wanted:
                refused.append(name)
    if refused:
        told = ", ".join(f"{name} is {found[name] or 'empty'}" for name in refused)
        raise ConfigError(
            f"{where}: {told} there, which no session of ours can work with, and the server does not let this user set"
            f" it: {first.args[-1]}",
            hint="on that server: "
            + "; ".join(f"SET GLOBAL {name} = {_value(wanted[name])}" for name in refused)
            + ", or where that is refused, in its configuration file; or give the user the right to set its sessions"
            " (MySQL: SESSION_VARIABLES_ADMIN; MariaDB: BINLOG ADMIN for binlog_format)",
            variables=refused,
        ) from first


def _run(connection: Connection[Any], statement: str) -> None:
    with connection.cursor(Cursor) as cursor:
        cursor.execute(statement)


def _set(values: Mapping[str, str]) -> str:
    return "SET " + ", ".join(f"{name} = {_value(value)}" for name, value in values.items())


def _value(value: str) -> str:
    return value if value.isdigit() else f"'{value}'"


def _same(found: str, wanted: str) -> bool:
    if not wanted.isdigit():
        return found.upper() == wanted.upper()
    try:
        return float(found) == float(wanted)
    except ValueError:
        return False


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
