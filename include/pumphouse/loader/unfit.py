"""Targets and tables into which no unit can be put exactly: not transactional, or with triggers that rows would fire.

Looked at when a plan begins, and when it goes on, before the first row; the engine of a table also before the first
unit of each session, because a statement of a rule may have made it. On a table without transactions, the rows of a
unit that was killed stay, and come again. The source has fired its triggers: what they wrote is in the binlogs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from pumphouse import advice
from pumphouse.errors import LoadError
from pumphouse.loader.grants import missing_privileges
from pumphouse.loader.rules import Rules
from pumphouse.loader.target import PACKET_BYTES, StatementFailed, TargetConnection
from pumphouse.loader.work import Work
from pumphouse.schema.actions import is_system
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.ident import qualified
from pumphouse.schema.timeline import Timeline

_NOT_TRANSACTIONAL = (
    "SELECT t.table_schema, t.table_name, t.engine FROM information_schema.tables t"
    " JOIN information_schema.engines e ON e.engine = t.engine"
    " WHERE COALESCE(e.transactions, 'NO') <> 'YES' AND t.table_schema = %s"
)
_ENGINE = "InnoDB"
_LEAST_PACKET = 4 * PACKET_BYTES


def require_engine(connection: TargetConnection) -> None:
    """LoadError where the server makes tables of another engine than it is told. Before any is made there."""
    forced = connection.query("SHOW VARIABLES LIKE 'enforce_storage_engine'")
    if forced and forced[0][1] and str(forced[0][1]).lower() != _ENGINE.lower():
        raise LoadError(
            f"target {connection.name} makes every table of the engine {forced[0][1]} (enforce_storage_engine)",
            hint=f"SET GLOBAL enforce_storage_engine = '{_ENGINE}' there, and in its configuration file; then run this "
            "again",
            target=connection.name,
        )


def of_the_server(connection: TargetConnection) -> list[tuple[str, str]]:
    """What of the server, and of no session, keeps tables and rows from being made there; each with its way out."""
    names = "'local_infile', 'innodb_default_row_format', 'max_allowed_packet'"
    found = {
        str(name).lower(): str(value)
        for name, value in connection.query(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
    }
    problems = []
    if found.get("local_infile") == "OFF" and connection.dialect is not Dialect.TIDB:
        problems.append(("local_infile is off there", "SET GLOBAL local_infile = ON"))
    row_format = found.get("innodb_default_row_format", "dynamic")
    if row_format != "dynamic":
        problems.append((
            f"innodb_default_row_format is {row_format} there, which has no room for long keys",
            "SET GLOBAL innodb_default_row_format = 'dynamic'",
        ))  # fmt: skip
    packet = int(found.get("max_allowed_packet", _LEAST_PACKET))
    if packet < _LEAST_PACKET:
        problems.append((
            f"max_allowed_packet is {packet} there, less than a packet of rows",
            f"SET GLOBAL max_allowed_packet = {16 * _LEAST_PACKET}",
        ))  # fmt: skip
    return [(what, f"{remedy}, and the same in its configuration file") for what, remedy in problems]


def require_state(connection: TargetConnection) -> None:
    """LoadError where a table of ours there has no transactions."""
    for db, name, engine in connection.query(_NOT_TRANSACTIONAL, (connection.settings.schema_name,)):
        raise LoadError(
            f"the table {db}.{name} of target {connection.name}, which keeps the state of the load, is of the engine "
            f"{engine}, which has no transactions",
            hint=(
                f"ALTER TABLE {qualified(db, name)} ENGINE={_ENGINE} there; if loads ran while it was so: ",
                advice.RESTORE_THIS,
            ),
            target=connection.name,
        )


def require_transactional(connection: TargetConnection, db: str, name: str) -> None:
    """LoadError where a table has no transactions; asked once in a session."""
    if (db, name) in connection.transactional:
        return
    for _, _, engine in connection.query(f"{_NOT_TRANSACTIONAL} AND t.table_name = %s", (db, name)):
        raise LoadError(
            f"the table {db}.{name} of target {connection.name} is of the engine {engine}, which has no "
            "transactions: the rows of a load that is killed would come twice",
            hint=(
                f"ALTER TABLE {qualified(db, name)} ENGINE={_ENGINE} there; then, if loads ran while it was so: ",
                advice.load(resync=f"{db}.{name}"),
            ),
            target=connection.name,
            table=f"{db}.{name}",
        )
    connection.transactional.add((db, name))


def require_fit(connection: TargetConnection, tables: Iterable[tuple[str, str]], firing: Collection[str] = ()) -> None:
    """LoadError names the first table, (database, name) there, that rows cannot be put into exactly.

    ``firing``: triggers that may fire, as ``database.trigger`` in lower case.
    """
    for db, name in tables:
        connection.transactional.discard((db, name))
        require_transactional(connection, db, name)
        found = [each for each in triggers_of(connection, db, name) if f"{db}.{each}".lower() not in firing]
        if found:
            names = [f"{db}.{each}" for each in found]
            drop = "; ".join(f"DROP TRIGGER {qualified(db, each)}" for each in found)
            raise LoadError(
                f"the table {db}.{name} of target {connection.name} has triggers that the rows of a load would fire "
                f"({', '.join(names)}): what the source's triggers wrote is in its binlogs already",
                hint=f"{drop}, and create them again when the target takes over; triggers that shall fire are named in "
                f"the setting load.triggers = {names}".replace("'", '"'),
                target=connection.name,
                table=f"{db}.{name}",
                triggers=names,
            )


def triggers_of(connection: TargetConnection, db: str, name: str) -> list[str]:
    """Names of the triggers of a table that this user may see."""
    rows = connection.query(
        "SELECT trigger_name FROM information_schema.triggers"
        " WHERE event_object_schema = %s AND event_object_table = %s ORDER BY 1",
        (db, name),
    )
    return [str(trigger) for (trigger,) in rows]


def unseen(connection: TargetConnection, databases: Iterable[str]) -> Iterator[str]:
    """A note on each database whose triggers this user may not see."""
    try:
        grants = [str(row[0]) for row in connection.query("SHOW GRANTS")]
    except StatementFailed:
        return
    for db in sorted(databases):
        if missing_privileges(grants, db, ("TRIGGER",)):
            yield (
                f"user {connection.settings.user} may not see triggers of {db} on the target, which rows of a load "
                "would fire: grant it TRIGGER there"
            )


def tables_of(work: Work, timeline: Timeline, rules: Rules) -> list[tuple[str, str]]:
    """(database, name) there of the tables that a plan puts rows into or changes, by each name that it meets."""
    plan = work.plan
    ids = work.tables | {id_ for event in work.events for id_ in event.table_ids}
    found = set()
    for table_id in {timeline.partitions.get(id_, id_) for id_ in ids}:
        versions = timeline.versions.get(table_id, ())
        ends = [*(version.commit_ts for version in versions[1:]), plan.to_ts + 1]
        for version, end in zip(versions, ends, strict=False):
            name = ".".join(version.name)
            met = version.commit_ts <= plan.to_ts and end > plan.from_ts and not version.dropped
            out = name in plan.skipped or version.table.is_view or is_system(version.db) or rules.leaves_out(version)
            if met and not out:
                found.add(rules.routes.table(*version.name))
    return sorted(found)
