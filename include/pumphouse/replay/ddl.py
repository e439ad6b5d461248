"""A DDL of the stream: one statement on the target, when everything before it is committed."""

from __future__ import annotations

import structlog

from pumphouse.errors import DdlRefused
from pumphouse.loader.insert import loosely
from pumphouse.loader.target import StatementFailed, TargetConnection
from pumphouse.replay.change import Ddl
from pumphouse.schema.ident import quote

log = structlog.get_logger()

# What it makes is there (database, table, column, key), or what it drops is not.
_DONE_BEFORE = frozenset({1007, 1050, 1060, 1061, 1008, 1051, 1091})


def run_ddl(connection: TargetConnection, ddl: Ddl, *, safe: bool) -> None:
    """Run it; DdlRefused when the target does not take it.

    In safe mode one whose effect is there already is taken for done, as it may come twice.
    """
    try:
        with loosely(connection):
            if ddl.db:
                connection.execute(f"USE {quote(ddl.db)}")
            connection.execute(ddl.sql)
    except StatementFailed as error:
        if safe and error.code in _DONE_BEFORE:
            log.warning("ddl_done_before", server=connection.name, statement=ddl.sql[:500], code=error.code)
            return
        if error.condition:
            raise
        raise DdlRefused(
            f"target {connection.name} refused the DDL {ddl.sql[:500]}: {error.message}",
            hint="nothing behind it was applied: correct the target or the statement, and go on behind what was told",
            code=error.code,
            statement=ddl.sql,
        ) from error
