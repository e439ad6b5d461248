"""What a copy of the source lacks, as the text that the source shows: read with each dump, and never run.

A dump never fails for want of any of it: what its user may not see is named, and what may have a password. What is
locked is asked for again.
"""

# Identifiers and literals are quoted by pumphouse.schema.ident.
# ruff: noqa: S608

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Any

from pymysql.connections import Connection
from pymysql.constants import ER
from pymysql.err import MySQLError

from pumphouse.archive.objects import SourceObject
from pumphouse.dump.source import execute
from pumphouse.loader.grants import hidden
from pumphouse.schema.actions import is_system
from pumphouse.schema.ident import literal, qualified, quote

_ROUTINES = "SELECT ROUTINE_SCHEMA, ROUTINE_NAME FROM information_schema.ROUTINES WHERE ROUTINE_TYPE"
# Kind -> where information_schema lists such ones, and which columns of SHOW CREATE have the text and, of the session
# that made it, what the text depends on.
_SHOWN: dict[str, tuple[str, int, dict[str, int]]] = {
    "function": (f"{_ROUTINES} = 'FUNCTION'", 2, {"sql_mode": 1, "collation_connection": 4}),
    "procedure": (f"{_ROUTINES} = 'PROCEDURE'", 2, {"sql_mode": 1, "collation_connection": 4}),
    "view": ("SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.VIEWS", 1, {"collation_connection": 3}),
    "trigger": (
        "SELECT TRIGGER_SCHEMA, TRIGGER_NAME FROM information_schema.TRIGGERS",
        2, {"sql_mode": 1, "collation_connection": 4},
    ),
    "event": (
        "SELECT EVENT_SCHEMA, EVENT_NAME FROM information_schema.EVENTS",
        3, {"sql_mode": 1, "time_zone": 2, "collation_connection": 5},
    ),
}  # fmt: skip
# Every server has its own.
_SERVERS_OWN = frozenset({"mysql.sys", "mysql.session", "mysql.infoschema", "mariadb.sys", "root", "PUBLIC", ""})
# Behind these words a text may have a password or its hash; a column of such a name has a dot or a quote before it.
_SECRET = re.compile(r"(?<![.`\w])(?:IDENTIFIED|\w*PASSWORD)\b(?!`)", re.IGNORECASE)
_NAME = r"`(?:[^`]|``)*`|'(?:[^']|'')*'"
# How a MariaDB shows the hash of the password, in the grants on every database.
_IDENTIFIED = re.compile(rf" TO (?:{_NAME})@(?:{_NAME}) IDENTIFIED (?:BY|VIA|WITH) ", re.IGNORECASE)
_CONDITIONS = (
    "SELECT User, Host FROM mysql.user WHERE ssl_type <> ''"
    " OR max_questions + max_updates + max_connections + max_user_connections > 0 ORDER BY 1, 2"
)
# Codes of the client: the session is lost.
_OF_THE_CLIENT = range(2000, 3000)


def read_objects(connection: Connection[Any], ours: Collection[str]) -> tuple[list[SourceObject], list[str]]:
    """What is kept of it, and what not, in words.

    Args:
        connection: to the source.
        ours: databases that are none of the source, in lower case.
    """
    reader = _Reader(connection, ours)
    return [*reader.foreign_keys(), *reader.shown(), *reader.users()], reader.unseen


class _Reader:
    def __init__(self, connection: Connection[Any], ours: Collection[str]) -> None:
        self._connection = connection
        self.unseen: list[str] = []
        version = str(execute(connection, "SELECT VERSION()")[0][0]).lower()
        self._is_mariadb, self._is_tidb = "mariadb" in version, "tidb" in version
        names = self._ask("databases", "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA")
        self._databases = {name for (name,) in names if not is_system(name) and name.lower() not in ours}
        grants = [line for (line,) in self._ask("privileges", "SHOW GRANTS")]
        for db in sorted(self._databases):
            self.unseen += hidden(grants, db)

    def foreign_keys(self) -> Iterator[SourceObject]:
        keys: dict[tuple[str, ...], list[tuple[str, str]]] = defaultdict(list)
        for *key, column, there in self._ask(
            "foreign keys",
            "SELECT k.TABLE_SCHEMA, k.TABLE_NAME, k.CONSTRAINT_NAME, k.REFERENCED_TABLE_SCHEMA,"
            " k.REFERENCED_TABLE_NAME, r.UPDATE_RULE, r.DELETE_RULE, k.COLUMN_NAME, k.REFERENCED_COLUMN_NAME"
            " FROM information_schema.KEY_COLUMN_USAGE k JOIN information_schema.REFERENTIAL_CONSTRAINTS r"
            " ON r.CONSTRAINT_SCHEMA = k.CONSTRAINT_SCHEMA AND r.TABLE_NAME = k.TABLE_NAME"
            " AND r.CONSTRAINT_NAME = k.CONSTRAINT_NAME WHERE k.REFERENCED_TABLE_NAME IS NOT NULL"
            " ORDER BY 1, 2, 3, k.ORDINAL_POSITION",
        ):
            keys[tuple(key)].append((column, there))
        for (db, table, name, to_db, to, update, delete), columns in keys.items():
            if db in self._databases:
                here, referenced = (", ".join(quote(each[at]) for each in columns) for at in (0, 1))
                sql = (
                    f"ALTER TABLE {qualified(db, table)} ADD CONSTRAINT {quote(name)} FOREIGN KEY ({here})"
                    f" REFERENCES {qualified(to_db, to)} ({referenced}) ON UPDATE {update} ON DELETE {delete}"
                )
                yield SourceObject(kind="foreign key", name=f"{db}.{table}.{name}", sql=(sql,))

    def shown(self) -> Iterator[SourceObject]:
        """What SHOW CREATE shows."""
        for kind, (listed, text_at, settings) in _SHOWN.items():
            for db, name in sorted(self._ask(f"{kind}s", listed)):
                if db not in self._databases:
                    continue
                what = f"{kind} {db}.{name}"
                for row in self._ask(what, f"SHOW CREATE {kind.upper()} {qualified(db, name)}"):
                    text = row[text_at]
                    if not text:
                        self.unseen.append(f"{what}: the user may not see its text")
                    elif _SECRET.search(text):
                        self.unseen.append(f"{what}: its text may have a password: it says IDENTIFIED or PASSWORD")
                    else:
                        made = [f"SET {key} = {literal(row[at])}" for key, at in settings.items()]
                        yield SourceObject(kind=kind, name=f"{db}.{name}", sql=(f"USE {quote(db)}", *made, text))
        for db, name in sorted(self._ask("packages", f"{_ROUTINES} LIKE 'PACKAGE%'")):
            if db in self._databases:
                self.unseen.append(f"package {db}.{name}: no dump keeps packages")

    def users(self) -> Iterator[SourceObject]:
        """Accounts and roles and what they may do; no password, and each is locked where somebody makes it."""
        is_role = "is_role" if self._is_mariadb else "'N'"
        accounts = self._ask("users", f"SELECT User, Host, {is_role} FROM mysql.user ORDER BY 3 DESC, 1, 2")
        for user, host, role in accounts:
            if user in _SERVERS_OWN:
                continue
            account = literal(user) if role == "Y" else f"{literal(user)}@{literal(host)}"
            made = f"CREATE ROLE IF NOT EXISTS {account}"
            made = made if role == "Y" else f"CREATE USER IF NOT EXISTS {account} ACCOUNT LOCK"
            lines = [line for (line,) in self._ask(f"privileges of {account}", f"SHOW GRANTS FOR {account}")]
            sql = [made]
            for line in lines:
                if _IDENTIFIED.search(line):
                    sql += self._everywhere(account, f"'{user}'@'{host}'")
                elif line.startswith("GRANT PROXY "):
                    self.unseen.append(f"a right that not everybody can give: {line}")
                else:
                    sql.append(line)
            yield SourceObject(kind="user", name=user if role == "Y" else f"{user}@{host}", sql=tuple(sql))
        if not self._is_tidb:
            for user, host in self._ask("conditions of users", _CONDITIONS):
                if user not in _SERVERS_OWN:
                    self.unseen.append(f"conditions of user {user}@{host}: what it has under REQUIRE, and its limits")

    def _everywhere(self, account: str, grantee: str) -> list[str]:
        """What an account may do on every database."""
        found = self._ask(
            f"privileges of {account}",
            "SELECT PRIVILEGE_TYPE, IS_GRANTABLE FROM information_schema.USER_PRIVILEGES"
            f" WHERE GRANTEE = {literal(grantee)}",
        )
        given = sorted(right for right, _ in found if right != "USAGE")
        grantable = " WITH GRANT OPTION" if any(each == "YES" for _, each in found) else ""
        return [f"GRANT {', '.join(given)} ON *.* TO {account}{grantable}"] if given else []

    def _ask(self, what: str, statement: str) -> list[tuple[str, ...]]:
        """Rows as text; what the server refuses is unseen."""
        try:
            rows = execute(self._connection, statement)
        except MySQLError as error:
            if not error.args or error.args[0] in _OF_THE_CLIENT or error.args[0] == ER.LOCK_WAIT_TIMEOUT:
                raise
            if error.args[0] != ER.NONEXISTING_GRANT:  # an account without any
                self.unseen.append(f"{what}: {error.args[-1]}")
            return []
        return [tuple(_text(value) for value in row) for row in rows]


def _text(value: Any) -> str:
    """Names and texts; a server may send either as bytes."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return "" if value is None else str(value)
