"""Global values of a server's variables that its sessions begin with: which there are, and which values they take."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pymysql.connections import Connection
from pymysql.err import MySQLError

# Sizes of buffers: their largest value is memory that this machine does not have.
_MEMORY = re.compile(r"size|buffer|length|mem|packet|alloc|limit|max_len")
# By what a server of MySQL's kind calls a list that only it knows.
_NAMED = {
    "character_set": "SELECT CHARACTER_SET_NAME FROM information_schema.CHARACTER_SETS ORDER BY 1",
    "collation": "SELECT COLLATION_NAME FROM information_schema.COLLATIONS WHERE COLLATION_NAME LIKE '%%_bin' ORDER BY 1",
    "storage_engine": "SELECT ENGINE FROM information_schema.ENGINES WHERE SUPPORT IN ('YES', 'DEFAULT') ORDER BY 1",
    "time_zone": "SELECT '+13:00' UNION SELECT '-09:30'",
    "lc_": "SELECT 'de_DE' UNION SELECT 'ja_JP' UNION SELECT 'ar_AE'",
}


def of_server(connection: Connection[Any]) -> dict[str, list[str]]:
    """Each variable of sessions that has a global value, with its other values as SQL."""
    mariadb = "MariaDB" in str(_rows(connection, "SELECT VERSION()")[0][0])
    found = _of_mariadb(connection) if mariadb else _of_mysql(connection)
    return {name: values for name, each in found if (values := list(dict.fromkeys(each)))}


def _of_mariadb(connection: Connection[Any]) -> Iterator[tuple[str, list[str]]]:
    rows = _rows(
        connection,
        "SELECT LOWER(VARIABLE_NAME), GLOBAL_VALUE, VARIABLE_TYPE, ENUM_VALUE_LIST, NUMERIC_MIN_VALUE, NUMERIC_MAX_VALUE"
        " FROM information_schema.SYSTEM_VARIABLES WHERE VARIABLE_SCOPE = 'SESSION' AND READ_ONLY = 'NO' ORDER BY 1",
    )
    for name, now, kind, listed, least, most in rows:
        words = str(listed or "").split(",")
        if kind == "BOOLEAN":
            values = ["OFF" if now == "ON" else "ON"]
        elif kind == "ENUM" and listed:
            values = [f"'{word}'" for word in words if word != now]
        elif kind == "SET":
            values = ["''", *(f"'{word}'" for word in words if word != now)]
        elif kind == "FLAGSET":
            flags = [word for word in words if word != "default"]
            values = [f"'{','.join(f'{flag}={state}' for flag in flags)}'" for state in ("off", "on")]
        elif least is not None:
            values = _numbers(name, str(now), str(least), str(most))
        else:
            values = _named(connection, name, str(now))
        yield str(name), values


def _of_mysql(connection: Connection[Any]) -> Iterator[tuple[str, list[str]]]:
    rows = _rows(
        connection,
        "SELECT g.VARIABLE_NAME, g.VARIABLE_VALUE, i.MIN_VALUE, i.MAX_VALUE FROM performance_schema.global_variables g"
        " JOIN performance_schema.session_variables s ON s.VARIABLE_NAME = g.VARIABLE_NAME"
        " JOIN performance_schema.variables_info i ON i.VARIABLE_NAME = g.VARIABLE_NAME ORDER BY 1",
    )
    for name, now, least, most in rows:
        if now in {"ON", "OFF"}:
            yield str(name), ["OFF" if now == "ON" else "ON"]
        elif str(most) not in {"", "0"}:
            yield str(name), _numbers(str(name), str(now), str(least), str(most))
        else:  # an enumeration takes its numbers, and the server says of the others that there are none
            yield str(name), _named(connection, str(name), str(now)) or [str(number) for number in range(6)]


def _numbers(name: str, now: str, least: str, most: str) -> list[str]:
    values = [least, "1"] if float(least) <= 0 else [least]
    values += [] if _MEMORY.search(name) else [most]
    return [value for value in values if value != now]


def _named(connection: Connection[Any], name: str, now: str) -> list[str]:
    for part, query in _NAMED.items():
        if part in name:
            return [f"'{value}'" for (value,) in _rows(connection, query) if value != now][:8]
    return []


class Globals:
    """Sets global values on servers, and puts them back."""

    def __init__(self, *servers: Connection[Any]) -> None:
        self._servers = servers
        self._before: list[tuple[Connection[Any], str, Any]] = []

    def set(self, values: Mapping[str, str]) -> list[str]:
        """Set them everywhere; the names of those that a server did not take."""
        refused = []
        for name, value in values.items():
            for server in self._servers:
                try:
                    before = _rows(server, f"SELECT @@global.{name}")[0][0]
                    _rows(server, f"SET GLOBAL {name} = {value}")
                except MySQLError:
                    refused.append(name)
                else:
                    self._before.append((server, name, before))
        return list(dict.fromkeys(refused))

    def reset(self) -> None:
        """As they were."""
        for server, name, before in reversed(self._before):
            with server.cursor() as cursor:
                cursor.execute(f"SET GLOBAL {name} = %s", (before,))
        self._before.clear()


def _rows(connection: Connection[Any], statement: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement.replace("%%", "%"))
        return list(cursor.fetchall())
