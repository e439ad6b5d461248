"""The shop's server, and how to ask it; its tables are in the database `shop`.

It is SHOP_HOST, SHOP_PORT, with root's password in SHOP_PASSWORD or in the file SHOP_PASSWORD_FILE.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants import FIELD_TYPE
from pymysql.converters import conversions
from pymysql.cursors import DictCursor

# As the text that the server prints.
TEXTS = {FIELD_TYPE.NEWDECIMAL, FIELD_TYPE.DATE, FIELD_TYPE.DATETIME, FIELD_TYPE.TIMESTAMP}

Row = dict[str, Any]


def server() -> Row:
    """Where the shop's server is, and who asks."""
    path = os.environ.get("SHOP_PASSWORD_FILE")
    return {
        "host": os.environ.get("SHOP_HOST", "127.0.0.1"),
        "port": int(os.environ.get("SHOP_PORT", "3306")),
        "user": "root",
        "password": Path(path).read_text().strip() if path else os.environ.get("SHOP_PASSWORD", ""),
    }


def connect() -> Connection[Any]:
    """A session on the shop's server: times in UTC, and locks on rows alone, not on what lies between them."""
    connection = pymysql.connect(
        **server(),
        charset="utf8mb4",
        cursorclass=DictCursor,
        conv={key: value for key, value in conversions.items() if key not in TEXTS},
        init_command="SET time_zone = '+00:00'",
    )
    query(connection, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    return connection


def query(connection: Connection[Any], sql: str, *values: Any) -> list[Row]:
    """Rows by column name."""
    with connection.cursor() as cursor:
        cursor.execute(sql, values or None)
        return list(cursor.fetchall())


def marks(row: Row) -> str:
    """Placeholders for the values of a row."""
    return ", ".join(["%s"] * len(row))


def make(file: str, first_rows: Iterable[tuple[str, list[Row]]]) -> None:
    """Run the statements of a file beside this one, and add rows, in one transaction."""
    with closing(connect()) as connection:
        for statement in (Path(__file__).parent / file).read_text().split(";"):
            query(connection, statement)
        for table, rows in first_rows:
            sql = f"INSERT IGNORE INTO shop.{table} ({', '.join(rows[0])}) VALUES ({marks(rows[0])})"
            with connection.cursor() as cursor:
                cursor.executemany(sql, [tuple(row.values()) for row in rows])
        connection.commit()
