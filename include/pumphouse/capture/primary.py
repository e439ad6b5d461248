"""Which server is the source: the one of [source], or one of `capture.hosts` that has taken its place.

A server is the source where it takes writes and replicates from no other one. Where there is none of that kind, or
more than one, nothing is read: a capture does not choose between two histories.
"""

from __future__ import annotations

from pymysql.err import MySQLError

from pumphouse.dump.source import execute, replicates, session, where
from pumphouse.errors import BinlogError, ConfigError, SourceFailed
from pumphouse.mysql import ServerConnection
from pumphouse.settings import CaptureSettings, SourceSettings


def candidates(source: SourceSettings, capture: CaptureSettings) -> list[SourceSettings]:
    """The servers that may be it; all of them are reached with what [source] says."""
    out = [source]
    for each in capture.hosts:
        host, _, port = each.rpartition(":")
        out.append(source.model_copy(update={"host": host.strip("[]"), "port": int(port), "unix_socket": ""}))
    return list({(each.host, each.port, each.unix_socket): each for each in out}.values())


def find_primary(source: SourceSettings, capture: CaptureSettings) -> SourceSettings:
    """The server that is the source now. With one alone, that one, whatever it is.

    Raises:
        SourceFailed: none is, or several are: the next look may find one.
        ConfigError: whether a server replicates may not be asked.
    """
    if not capture.hosts:
        return source
    found: list[SourceSettings] = []
    said: list[str] = []
    for each in candidates(source, capture):
        try:
            with session(each) as connection:
                why = not_primary(connection, each)
        except ConfigError:
            raise
        except BinlogError as error:
            why = error.message
        if why:
            said.append(why)
        else:
            found.append(each)
    if len(found) == 1:
        return found[0]
    if found:
        raise SourceFailed(
            f"{' and '.join(map(where, found))} all take writes: which one is the source is not known",
            hint="SET GLOBAL read_only = ON on each that is not the primary",
        )
    raise SourceFailed(f"no server is the source: {'; '.join(said)}", hint="promote one of them")


def not_primary(connection: ServerConnection, server: SourceSettings) -> str:
    """Why one of several servers is not the source; '' = it is."""
    if str(execute(connection, "SELECT @@global.read_only")[0][0]).upper() not in ("0", "OFF"):
        return f"{where(server)} is read only"
    try:
        return f"{where(server)} is a replica" if replicates(connection) else ""
    except MySQLError as error:
        raise ConfigError(
            f"whether {where(server)} replicates may not be asked: {error.args[-1]}",
            hint="grant REPLICATION CLIENT (MariaDB: REPLICA MONITOR) on *.* to the user",
        ) from error


def lacks(connection: ServerConnection, *, hosts: bool) -> str:
    """The variable that is OFF, so that what the server takes from others is in no binlog of it; '' = nothing is lost.

    ``hosts``: it may become a replica of another one at any time.
    """
    names = "'log_slave_updates', 'log_replica_updates', 'wsrep_on'"
    found = execute(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
    values = {str(name).lower(): str(value).upper() for name, value in found}
    name = "log_replica_updates" if "log_replica_updates" in values else "log_slave_updates"
    if values.get(name, "ON") == "ON":
        return ""
    if hosts or values.get("wsrep_on") == "ON":
        return name
    try:
        return name if replicates(connection) else ""
    except MySQLError:  # a MariaDB asks for a right of its own, and tells everybody how many run
        found = execute(connection, "SHOW GLOBAL STATUS LIKE 'Slaves_running'")
        return name if any(str(count) != "0" for _, count in found) else ""
