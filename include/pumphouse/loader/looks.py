"""What the objects of a DDL look like on a server, and what that says of a statement that may have run (row L6).

A look is worth something on the server that it was taken on: InnoDB's table ids and the text of SHOW CREATE are another
server's after a failover, and an upgrade changes the text. So each look says its server, and its names beside the text.
"""

# Names in statements are quoted by pumphouse.schema.ident; values go as parameters.
# ruff: noqa: S608

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Sequence
from enum import Enum, auto
from typing import Any

import structlog

from pumphouse.errors import TargetUnavailable
from pumphouse.loader.fence import gone
from pumphouse.loader.target import StatementFailed, TargetConnection
from pumphouse.once import once
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.ident import qualified, quote
from pumphouse.schema.render import Statement

log = structlog.get_logger()

# One object: show (digest of SHOW CREATE), engine (its table ids), names, server. Null = not there, or not known.
Look = dict[str, Any]

_AUTO_INCREMENT = re.compile(r" AUTO_INCREMENT=\d+| /\*T!\[auto_rand_base\].*?\*/")
_NO_DATABASE, _NO_TABLE, _NO_COLUMN = 1049, 1146, 1054
_MISSING_ENGINE_VIEW = {1109, 1227, 1142, 1044}
# What tells two servers apart, copies of one and its replicas too; not every server has each of them.
_WHO = "'server_uuid', 'server_uid', 'server_id', 'hostname', 'port', 'datadir'"
# MySQL gives tables without a primary key this column where it is told to, which replicas may be and their source not.
_HIDDEN_KEY = "my_row_id"
# Of a table: its columns in order, its keys, constraints and partitions. They are the same on each server that has it.
_NAMES = tuple(
    f"SELECT {what} WHERE table_schema = %s AND table_name = %s {rest}"
    for what, rest in (
        ("'column', column_name FROM information_schema.columns", "ORDER BY ordinal_position"),
        ("'key', index_name, seq_in_index, column_name FROM information_schema.statistics", "ORDER BY 2, 3"),
        (
            "'constraint', constraint_name FROM information_schema.table_constraints",
            "AND constraint_type IN ('FOREIGN KEY', 'CHECK') ORDER BY 2",
        ),
        (
            "'partition', partition_name FROM information_schema.partitions",
            "AND partition_name IS NOT NULL ORDER BY 2",
        ),
    )
)


class Verdict(Enum):
    """What two looks say of the statement between them."""

    RAN = auto()
    DID_NOT = auto()
    AGAIN = auto()  # whether it ran or not: it may run now
    UNCERTAIN = auto()


def settle(statement: Statement, before: Sequence[Look], now: Sequence[Look]) -> Verdict:
    """Whether a statement ran between two looks at its objects (pure).

    On one server other looks say that it ran. On another one only what no server changes by itself counts: whether the
    objects are there, and their names. Each statement that leaves all names as they are may run again, except where
    rows move by it (``engine_only``).
    """
    pairs = list(zip(before, now, strict=True))
    if any(
        (look["show"] is None) != (name in statement.gone) for name, look in zip(statement.objects, now, strict=True)
    ):
        return Verdict.DID_NOT
    here = all(a.get("server") == b["server"] for a, b in pairs)
    known = here and all(look["engine"] is not None for look in (*before, *now))
    if here and any(a["show"] != b["show"] for a, b in pairs):
        return Verdict.RAN
    if known:
        return Verdict.RAN if any(a["engine"] != b["engine"] for a, b in pairs) else Verdict.DID_NOT
    if not (here or statement.repeatable):
        if any("names" not in a for a, _ in pairs):  # of an earlier release, which did not say where it looked
            return Verdict.UNCERTAIN
        if any(a["names"] != b["names"] for a, b in pairs):
            return Verdict.RAN
    return Verdict.UNCERTAIN if statement.engine_only and not statement.repeatable else Verdict.AGAIN


class Looks:
    """Looks at objects through one connection, and so on one server."""

    def __init__(self, connection: TargetConnection) -> None:
        self._connection = connection

    def of(self, statement: Statement) -> list[Look]:
        """The looks of every object of a statement."""
        return [
            {
                "show": self.show(db, name),
                "engine": self._engine(db, name),
                "names": self._names(db, name),
                "server": self.server,
            }
            for db, name in statement.objects
        ]

    @once
    def server(self) -> str:
        """Digest that a replica, a copy of the data directory, a restored backup and another version do not share.

        Of a TiDB, whose servers share one cluster: that of the cluster. Our fence table is part of it: the engine's id
        and the time it was made at are of this place, and its text is what this version makes of a table.
        """
        connection = self._connection
        own = (connection.settings.schema_name, "fence")
        said: list[Any] = [connection.value("SELECT VERSION()"), self._engine(*own), self.show(*own)]
        said += connection.query(
            "SELECT CAST(create_time AS CHAR) FROM information_schema.tables"
            " WHERE table_schema = %s AND table_name = %s",
            own,
        )
        if connection.dialect is not Dialect.TIDB:
            said += connection.query(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({_WHO})")
        return hashlib.sha256(json.dumps(said, default=str).encode()).hexdigest()

    def show(self, db: str, name: str) -> str | None:
        """Digest of the object's definition as the server says it; None when it is not there."""
        what = f"TABLE {qualified(db, name)}" if name else f"DATABASE {quote(db)}"
        try:
            rows = self._connection.query(f"SHOW CREATE {what}")
        except StatementFailed as error:
            if error.code in {_NO_DATABASE, _NO_TABLE}:
                return None
            raise
        text = _AUTO_INCREMENT.sub("", str(rows[0][1]))
        return hashlib.sha256(text.encode()).hexdigest()

    def let_end(self, statement: Statement) -> None:
        """A TiDB goes on with a DDL whose session has gone: wait until it is there, or not, as its session would."""
        told = False
        while self._connection.dialect is Dialect.TIDB and self._connection.value(
            "SELECT 1 FROM information_schema.ddl_jobs WHERE query = %s AND state NOT IN"
            " ('done', 'synced', 'cancelled', 'rollback done') LIMIT 1",
            (statement.sql,),
        ):
            if not told:
                log.info("ddl_runs_still", server=self._connection.name, statement=statement.sql[:200])
            told = True
            time.sleep(0.2)

    def _names(self, db: str, name: str) -> str | None:
        """Digest of the names in a table; None for what is none, or is not there."""
        rows = [row for query in _NAMES if name for row in self._connection.query(query, (db, name))]
        said = [[str(each) for each in row] for row in rows if _HIDDEN_KEY not in row]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest() if said else None

    def _engine(self, db: str, name: str) -> list[list[Any]] | None:
        """(name, table id) of the engine's tables behind it, partitions too; None when that cannot be known."""
        if not name:
            return []
        if self._connection.dialect is Dialect.TIDB:
            return self._tidb_ids(db, name)
        path = _file_name(db, name)
        if path is None:
            return None
        view = "INNODB_SYS_TABLES" if self._connection.dialect is Dialect.MARIADB else "INNODB_TABLES"
        try:
            rows = self._connection.query(
                f"SELECT NAME, TABLE_ID FROM information_schema.{view}"
                " WHERE NAME = %s OR LEFT(NAME, %s) = %s ORDER BY 1",
                (path, len(path) + 3, f"{path}#P#"),
            )
        except StatementFailed as error:
            if error.code in _MISSING_ENGINE_VIEW:
                return None
            raise
        return [[str(found), int(table_id)] for found, table_id in rows]

    def _tidb_ids(self, db: str, name: str) -> list[list[Any]] | None:
        found: list[list[Any]] = []
        for what, view in (("table", "tables"), ("partition", "partitions")):
            try:
                rows = self._connection.query(
                    f"SELECT {what}_name, tidb_{what}_id FROM information_schema.{view}"
                    f" WHERE table_schema = %s AND table_name = %s AND tidb_{what}_id IS NOT NULL ORDER BY 1",
                    (db, name),
                )
            except StatementFailed as error:
                if error.code == _NO_COLUMN:
                    return None
                raise
            found += [[str(each), int(id_)] for each, id_ in rows]
        return found


def require_server(connection: TargetConnection, server: str) -> None:
    """TargetUnavailable where a session is on another server than the one that owns the target (`Looks.server`).

    The fence is replicated: alone, it would let rows in there, before a DDL that only the other one gets.
    FenceLost where there is none any more.
    """
    looks = Looks(connection)
    if looks.server != server:
        if looks.show(connection.settings.schema_name, "fence") is None:
            raise gone(connection)
        raise TargetUnavailable(
            f"target {connection.name} is another server now than the one that this load began on",
            hint="a failover: run this again. Is there a proxy in between, let it send all sessions of a load to one "
            "server",
            target=connection.name,
        )


def _file_name(db: str, name: str) -> str | None:
    """InnoDB's name of a table: other characters as @ and four hex digits. None where the server's rule is not that."""
    if not (db + name).isascii():
        return None
    return "/".join(re.sub(r"[^0-9A-Za-z_]", lambda found: f"@{ord(found.group()):04x}", part) for part in (db, name))
