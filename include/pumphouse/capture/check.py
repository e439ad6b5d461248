"""What a source must have set so that its binlog says everything, and the statement to type for what is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from pymysql.err import MySQLError

from pumphouse.capture.ddl import other_engines
from pumphouse.capture.keys import acting_keys, writes_actions
from pumphouse.capture.primary import lacks
from pumphouse.capture.source.fit import unfit
from pumphouse.capture.source.gtid import Flavor
from pumphouse.capture.source.session import flavor_of, semi_sync_says
from pumphouse.dump.source import execute
from pumphouse.errors import SchemaError
from pumphouse.loader.grants import missing_privileges
from pumphouse.model.address import machine_of
from pumphouse.model.node import NodeState, NodeStatus
from pumphouse.mysql import ServerConnection
from pumphouse.schema.actions import is_system
from pumphouse.schema_import.read import read_schema
from pumphouse.settings import CaptureSettings

_ENGINES = {"innodb", "rocksdb"}
_GTID_MODES = ("OFF", "OFF_PERMISSIVE", "ON_PERMISSIVE", "ON")
_SHORT_RETENTION_S = 86_400
_WITHOUT = '[capture] without = ["database.table"]'


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing about the source. ``wrong``: a capture does not start; ``type``: what to type there, '' = nothing."""

    wrong: bool
    text: str
    type: str = ""


def check_source(
    connection: ServerConnection, settings: CaptureSettings, own: frozenset[str], *, schema: bool = True
) -> list[Line]:
    """Look at the server; what is wrong first. ``own``: databases that are not captured, in lower case.

    ``schema``: also at every table, which takes as long as there are many.
    """
    flavor = flavor_of(connection)
    lines = [*_variables(connection, flavor), *_replication(connection, settings), *_privileges(connection, flavor)]
    lines += [*_engines(connection, settings, own), *_keys(connection, flavor, settings, own)]
    if settings.semi_sync:
        lines += _semi_sync(connection, flavor)
    if schema:
        lines += _tables(connection, settings, own)
    return sorted(lines, key=lambda line: not line.wrong)


def check_hosts(pumps: Iterable[NodeStatus], copies: int) -> list[Line]:
    """Whether there are hosts for so many copies; a capture that runs waits for one that is away."""
    hosts = sorted({machine_of(each.host) for each in pumps if each.state is NodeState.ONLINE})
    if len(hosts) >= copies:
        return []
    return [
        Line(
            wrong=True,
            text=f"copies = {copies}, and Pumps are online on {len(hosts)} hosts ({', '.join(hosts) or 'none'}): "
            "nothing can be captured",
            type="start a Pump on another host (`pumphouse pump run`); a host is what stands before the port in the "
            "HOST of `pumphouse pumps`",
        )
    ]


def _variables(connection: ServerConnection, flavor: Flavor) -> Iterator[Line]:
    found = {str(name).lower(): str(value) for name, value in execute(connection, "SHOW GLOBAL VARIABLES")}
    if found.get("log_bin", "OFF").upper() not in ("ON", "1"):
        yield Line(
            wrong=True,
            text="log_bin is OFF: the server writes no binlog",
            type="in the server's configuration: [mysqld] log_bin, server_id = 1; then restart it",
        )
        return
    if found.get("time_zone") == "SYSTEM" and found.get("system_time_zone", "").upper() not in ("UTC", "ETC/UTC"):
        yield Line(
            wrong=False,
            text="time_zone is SYSTEM, and the host is not in UTC: a DDL that depends on the zone makes its table a "
            "new one, or stops the capture",
            type="SET GLOBAL time_zone to a name or an offset; and the same in its configuration",
        )
    if found.get("default_storage_engine", "InnoDB").lower() not in _ENGINES:
        yield Line(
            wrong=True,
            text=f"default_storage_engine is {found['default_storage_engine']}: a CREATE TABLE does not say its engine",
            type="SET GLOBAL default_storage_engine = InnoDB; and the same in its configuration",
        )
    wanted = {"binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_row_metadata": "FULL"}
    if flavor is Flavor.MYSQL:
        wanted |= {"binlog_row_value_options": "", "gtid_mode": "ON"}
    else:  # a position says what was read; an ALTER is in the binlog before anybody knows how it ends
        wanted |= {"gtid_strict_mode": "ON", "binlog_alter_two_phase": "OFF"}
    of_sessions = "; sessions that are open keep the old value: restart the application"
    for name, value in wanted.items():
        is_now = found.get(name)
        if is_now is None and name != "binlog_row_metadata":
            continue
        if is_now is None:
            yield Line(
                wrong=True,
                text=f"the server has no {name}: its binlog does not name columns",
                type="MariaDB 10.5 or MySQL 8.0 and later have it",
            )
        elif is_now.upper() != value:
            yield Line(
                wrong=True,
                text=f"{name} is {is_now or 'empty'}, it must be {value or 'empty'}",
                type=f"{_typed(name, is_now, value)}; and the same in its configuration"
                + of_sessions * (name not in ("gtid_mode", "gtid_strict_mode")),
            )
    keeps = _keeps_s(found)
    if keeps is not None and keeps < _SHORT_RETENTION_S:
        yield Line(
            wrong=False,
            text=f"binlogs are kept for {keeps / 3600:.1f} hours: a capture that is down for longer has a gap",
            type="SET GLOBAL binlog_expire_logs_seconds = 259200",
        )


def _typed(name: str, is_now: str, value: str) -> str:
    """The statements that set a variable. A MySQL takes gtid_mode step by step."""
    if name != "gtid_mode":
        return f"SET GLOBAL {name} = '{value}'"
    steps = _GTID_MODES[_GTID_MODES.index(is_now.upper()) + 1 :]
    return "; ".join(
        ["SET GLOBAL enforce_gtid_consistency = ON", *(f"SET GLOBAL gtid_mode = {step}" for step in steps)]
    )


def _keeps_s(found: dict[str, str]) -> float | None:
    """Seconds that binlogs are kept; None = for ever, or nobody knows."""
    seconds = float(found.get("binlog_expire_logs_seconds") or 0)
    days = float(found.get("expire_logs_days") or 0)
    return seconds or days * 86_400 or None


def _replication(connection: ServerConnection, settings: CaptureSettings) -> Iterator[Line]:
    rows: list[tuple[object, ...]] = []
    for statement in ("SHOW MASTER STATUS", "SHOW BINARY LOG STATUS"):
        try:
            rows = execute(connection, statement)
            break
        except MySQLError:
            continue
    for name, value in zip(("binlog_do_db", "binlog_ignore_db"), rows[0][2:4] if rows else (), strict=False):
        if value:
            yield Line(
                wrong=True,
                text=f"{name} is {value}: the binlog lacks databases, or statements of them",
                type=f"take {name} out of the server's configuration and restart it; leave tables out with [capture] "
                "without",
            )
    if name := lacks(connection, hosts=bool(settings.hosts)):
        yield Line(
            wrong=True,
            text=f"{name} is OFF, and the server is, or may become, a replica: what it takes from another server is "
            "in no binlog of it",
            type=f"in the server's configuration: [mysqld] {name} = ON; then restart it",
        )
    ((server_id,),) = execute(connection, "SELECT @@global.server_id")
    if server_id == settings.server_id:
        yield Line(
            wrong=True,
            text=f"the source has the server id {server_id}, as this capture",
            type="[capture] server_id = another number",
        )


def _semi_sync(connection: ServerConnection, flavor: Flavor) -> Iterator[Line]:
    found = semi_sync_says(connection, "")
    side = "rpl_semi_sync_" + ("master" if flavor is Flavor.MARIADB or "wait_for_slave_count" in found else "source")
    if not found:
        yield Line(
            wrong=True,
            text="the source has no semi-sync: its commits wait for nobody",
            type="INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'; then look again",
        )
        return
    if found.get("enabled") not in ("ON", "1"):
        yield Line(
            wrong=True,
            text=f"{side}_enabled is OFF: commits of the source wait for nobody",
            type=f"SET GLOBAL {side}_enabled = ON; and the same in its configuration",
        )
    if found.get("wait_point", "AFTER_SYNC") != "AFTER_SYNC":
        yield Line(
            wrong=False,
            text=f"{side}_wait_point is {found['wait_point']}: others see a row before the Pumps have it",
            type=f"SET GLOBAL {side}_wait_point = AFTER_SYNC; and the same in its configuration",
        )
    if found.get("wait_no_slave", found.get("wait_no_replica", "ON")) not in ("ON", "1"):
        yield Line(
            wrong=False,
            text=f"{side}_wait_no_* is OFF: while the capture is away, commits of the source do not wait",
            type=f"SET GLOBAL {side}_wait_no_slave = ON (MySQL: _wait_no_replica); and the same in its configuration",
        )
    yield Line(
        wrong=False,
        text=f"after {int(found.get('timeout', 0)) / 1000:g} s without an answer the source goes on, and does not wait "
        "until the capture has caught up",
        type=f"SET GLOBAL {side}_timeout = milliseconds; as long as the application may stand still",
    )


def _privileges(connection: ServerConnection, flavor: Flavor) -> Iterator[Line]:
    grants = [str(row[0]) for row in execute(connection, "SHOW GRANTS")]
    everywhere = [line for line in grants if " ON *.* TO " in line]
    monitor = "BINLOG MONITOR" if flavor is Flavor.MARIADB else "REPLICATION CLIENT"
    needed = ["REPLICATION SLAVE", monitor, "SELECT", "SHOW VIEW"]
    if missing := missing_privileges(everywhere, "", needed):
        names = ", ".join(sorted(missing))
        yield Line(wrong=True, text=f"the user lacks {names}", type=f"GRANT {names} ON *.* TO the user of [source]")


def _engines(connection: ServerConnection, settings: CaptureSettings, own: frozenset[str]) -> Iterator[Line]:
    def without(db: str, table: str) -> bool:
        return db.lower() in own or settings.leaves_out(db, table)

    for name, engine in other_engines(connection, without):
        yield Line(
            wrong=True,
            text=f"{name}: its engine {engine} keeps no rows, or is not transactional",
            type='ALTER TABLE … ENGINE = InnoDB; or leave the table out: [capture] without = ["database.table"]',
        )


def _keys(
    connection: ServerConnection, flavor: Flavor, settings: CaptureSettings, own: frozenset[str]
) -> Iterator[Line]:
    for key in () if writes_actions(connection, flavor) else acting_keys(connection, own, settings.leaves_out):
        lost = f"; behind these statements an error: {key.lost}" if key.lost else ""
        statements = [f"{each};" for each in key.instead()]
        yield Line(
            wrong=True,
            text=f"{key}: the rows that this foreign key changes are in no binlog{lost}",
            type="\n".join([*statements, f"or leave {'.'.join(key.child)} out: {_WITHOUT}"]),
        )


def _tables(connection: ServerConnection, settings: CaptureSettings, own: frozenset[str]) -> Iterator[Line]:
    leaves_out = settings.leaves_out
    for place, why in _unfit(connection, own, leaves_out):
        yield Line(
            wrong=True,
            text=f"{place}: {why}",
            type='change it on the source; or leave the table out: [capture] without = ["database.table"]',
        )
    skip = {*own, *(name for name in _names(connection, leaves_out))}
    try:
        found, _ = read_schema(connection, "", skip)
    except SchemaError as error:
        yield Line(
            wrong=True,
            text=error.message,
            type='change it on the source; or leave the tables out: [capture] without = ["database.table"]',
        )
        return
    for note in dict.fromkeys(found.notes):
        if "needs binlogs" in note or "need binlogs" in note:
            continue  # said of clients that write binlogs themselves: a binlog has what triggers do
        yield Line(wrong=False, text=note)


def _unfit(
    connection: ServerConnection, own: frozenset[str], leaves_out: Callable[[str, str], bool]
) -> Iterator[tuple[str, str]]:
    """Columns whose values the binlog does not have as they are, and why."""
    names = ("table_schema", "table_name", "column_name", "data_type", "column_type", "character_set_name")
    for row in execute(connection, f"SELECT {', '.join(names)} FROM information_schema.COLUMNS"):  # noqa: S608
        column = {name: "" if value is None else str(value) for name, value in zip(names, row, strict=True)}
        db, table = column["table_schema"], column["table_name"]
        if is_system(db) or db.lower() in own or leaves_out(db, table):
            continue
        if why := unfit(column):
            yield f"{db}.{table}.{column['column_name']}", why


def _names(connection: ServerConnection, leaves_out: Callable[[str, str], bool]) -> Iterator[str]:
    for db, name in execute(connection, "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES"):
        if leaves_out(str(db), str(name)):
            yield f"{db}.{name}".lower()
