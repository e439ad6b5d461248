"""``schema import``: read a server, compare it with the history, write the jobs that are missing."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pymysql.connections import Connection

from pumphouse.dump.source import TableChanged, execute, require_primary, session, where
from pumphouse.errors import ConfigError, SchemaError, UsageError
from pumphouse.loader.apart import require_no_target
from pumphouse.model.node import NodeKind
from pumphouse.registry.base import Cluster
from pumphouse.schema.actions import Action, action_of
from pumphouse.schema.history import MysqlTableSource
from pumphouse.schema.ident import qualified, quote
from pumphouse.schema_import.changes import Asked, Known, Zone, plan_jobs
from pumphouse.schema_import.columns import Raw
from pumphouse.schema_import.read import read_schema
from pumphouse.schema_import.write import HistoryTable, Stream, add_jobs, left_behind
from pumphouse.settings import ServerSettings, TargetSettings, TlsSettings

# Two connections with the same answer are on one server; MySQL has server_uuid, MariaDB has not.
_IDENTITY = "SELECT @@hostname, @@port, @@datadir, @@server_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """``jobs`` as (id, type, statement); ``binlogs``: whether each got one; ``notes``: what jobs do not say.

    ``unlogged``: new tables that have rows already, which no binlog has.
    """

    source: str
    history: str
    jobs: tuple[tuple[int, str, str], ...]
    created: bool
    binlogs: bool
    notes: tuple[str, ...]
    dry_run: bool
    unlogged: tuple[str, ...] = ()


def import_schema(
    source: ServerSettings,
    history: MysqlTableSource,
    cluster: Cluster,
    asked: Asked,
    *,
    tls: TlsSettings,
    targets: Mapping[str, TargetSettings] | None = None,
    own: Collection[str] = (),
    listen: str = "127.0.0.1:0",
    dry_run: bool = False,
) -> ImportReport:
    """Bring the history to what the source has now.

    Jobs get binlogs as soon as somebody reads the cluster's: a consumer is registered, which `archive init` does before
    it takes the schema. Until then the history alone is enough. ``listen``: host:port where Pumps ask for outcomes.
    ``targets``: by section, servers that loads and restores write to; none of them is the source.
    ``own``: databases of restores of parts, in lower case, which are not imported.

    Raises:
        ConfigError: the server is a TiDB, a replica, or one that was loaded or restored; nothing was written then.
        SchemaError, UsageError: see `pumphouse.schema_import.changes`; nothing was written then.
        PumpUnavailable: a binlog is needed and no Pump takes one.
    """
    require_no_target(source, targets or {})
    with HistoryTable.open(history) as table:
        created = not table.exists()
        known = table.jobs()
        ours = table.execute(_IDENTITY)
        try:
            with session(source) as connection:
                require_primary(connection, source)
                if execute(connection, _IDENTITY) == ours:
                    asked = _without(asked, history.schema)
                found, dialect = read_schema(connection, asked.database, asked.skip, own)
                zone = _zone(connection)

                def fill(db: str, name: str, column: str) -> str | None:
                    return _fill(connection, db, name, column)

                jobs = plan_jobs(Known.of(known), found, asked, dialect=dialect, zone=zone, fill=fill)
                unlogged = [name for raw in jobs if (name := _marked(connection, raw))]
        except TableChanged as error:
            raise SchemaError(f"the schema changes under the import: {error}", hint="run it again") from error
        if asked.database and asked.database not in found.databases and not jobs:
            raise UsageError(
                f"there is no database {asked.database} on {where(source)}", hint="names are case-sensitive there"
            )
        binlogs = _consumed(cluster)
        if created and not dry_run:
            table.create()
        if not dry_run:
            _write(table, cluster, jobs, tls, listen, binlogs=binlogs)
    return ImportReport(
        source=where(source),
        history=history.url,
        jobs=tuple((raw["id"], action_of(raw["type"]).name, raw["query"]) for raw in jobs),
        created=created,
        binlogs=binlogs,
        notes=tuple(dict.fromkeys(note for note in found.notes if not note.startswith(f"{history.schema.lower()}: "))),
        dry_run=dry_run,
        unlogged=tuple(unlogged) if binlogs else (),
    )


def _marked(connection: Connection[Any], raw: Raw) -> str:
    """The name of a new table that has rows already, ``database.table``, which its job says from now on; else ''."""
    name = (raw["schema_name"], raw["table_name"])
    if raw["type"] != Action.CREATE_TABLE.value or not execute(connection, f"SELECT 1 FROM {qualified(*name)} LIMIT 1"):  # noqa: S608
        return ""
    raw["had_rows"] = True
    return ".".join(name)


def _write(
    table: HistoryTable, cluster: Cluster, jobs: list[Raw], tls: TlsSettings, listen: str, *, binlogs: bool
) -> None:
    if not binlogs:
        add_jobs(table, jobs)
        return
    if not jobs and not left_behind(cluster):
        return
    with Stream(cluster, table, tls, listen) as stream:
        stream.settle()
        for raw in jobs:
            stream.put(raw)


def _consumed(cluster: Cluster) -> bool:
    return any(not node.left for node in cluster.nodes(NodeKind.DRAINER))


def _without(asked: Asked, history: str) -> Asked:
    """On the history's own server its database is not imported."""
    if asked.database.lower() == history.lower():
        raise ConfigError(
            f"the database {asked.database} is that of the history table",
            hint="the history lies in a database of its own, or on another server",
        )
    return replace(asked, skip=asked.skip | {history.lower()})


def _zone(connection: Connection[Any]) -> Zone:
    ((name, host),) = execute(connection, "SELECT @@global.time_zone, @@system_time_zone")
    if str(name).upper() == "SYSTEM":
        return Zone() if str(host).upper() in {"UTC", "ETC/UTC"} else Zone(unknown=True)
    if match := re.fullmatch(r"([+-])(\d\d?):(\d\d)", str(name)):
        seconds = int(match[2]) * 3600 + int(match[3]) * 60
        return Zone(name="", offset=-seconds if match[1] == "-" else seconds)
    return Zone(name=str(name))


def _fill(connection: Connection[Any], db: str, name: str, column: str) -> str | None:
    """The one value of a column whose default is computed; None for NULL, and for a table without rows."""
    sql = f"SELECT DISTINCT CAST({quote(column)} AS CHAR) FROM {qualified(db, name)} LIMIT 2"  # noqa: S608
    values = execute(connection, sql)
    if len(values) > 1:
        raise SchemaError(
            f"{db}.{name}.{column} is new, its default is computed, and the rows have different values of it",
            hint="add the column without that default and import; then set the values by transactions with binlogs; "
            "then set the default",
        )
    return None if not values or values[0][0] is None else str(values[0][0])
