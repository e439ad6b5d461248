"""Whether a server is one that must not be written to: the source, whatever its address is called."""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import structlog
from pymysql.constants import ER

from pumphouse import advice
from pumphouse.errors import AccessDenied, ConfigError, LoadError, TargetUnavailable, naming
from pumphouse.loader.rules import places_of_loads, routes_of
from pumphouse.loader.target import StatementFailed, TargetConnection
from pumphouse.mysql import DUMP, place
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.history import history_server
from pumphouse.settings import NamedTarget, SchemaSettings, ServerSettings, TargetSettings

log = structlog.get_logger()

_COMPARE_S = 5.0
_CORRECT: advice.Hint = ("correct host and port in ", advice.Section())
_NO_UUID = re.compile(r"^[0-]*$")
# What a server of the settings is called, its section, and where it is.
Known = tuple[str, str, ServerSettings]


def require_not_source(connection: TargetConnection, known: Iterable[Known], cluster_url: str) -> None:
    """LoadError when a target is the source; ConfigError where nobody can tell, as the source lets us not in."""
    for what, section, other in known:
        why, note = same_server(connection, other, section)
        if why:
            raise LoadError(
                f"target {connection.name} is {what} ({server_name(other)}): {why}. Nothing was changed",
                hint=_CORRECT,
                target=connection.name,
            )
        if note:
            log.warning("target_not_compared", server=connection.name, other=server_name(other), note=note)
    if is_cluster(connection, cluster_url):
        raise LoadError(
            f"target {connection.name} is a TiDB of the source's cluster {cluster_url}. Nothing was changed",
            hint=_CORRECT,
            target=connection.name,
        )


def require_no_target(server: ServerSettings, targets: Mapping[str, TargetSettings]) -> None:
    """ConfigError when what is read as the source is a server that loads or restores write to, by section."""
    for section, target in targets.items():
        try:
            connection = TargetConnection.open(target, timeout_s=_COMPARE_S, section=section)
        except (TargetUnavailable, ConfigError) as error:  # no load writes there either, as long as that is so
            log.warning("target_not_compared", server=section, other=server_name(server), note=error.message)
            why = "their addresses are the same" if places(target) & places(server) else ""
        else:
            with connection:
                why, _ = same_server(connection, server, "source")
        if why:
            raise ConfigError(
                f"{server_name(server)} is the server of [{section}], which loads or restores write to ({why}): it is "
                "not the source",
                hint=f"name the source in [source], or correct [{section}]",
            )


def sources(source: ServerSettings, history: SchemaSettings) -> Iterator[Known]:
    """Servers of the source that the settings name."""
    if source.host or source.unix_socket:
        yield "the source, [source]", "source", source
    server = history_server(history)
    if server is not None:
        yield "the source, the server of schema.history", "schema", server


def shared_with(
    mine: TargetConnection,
    other: NamedTarget,
    section: str,
    *,
    cluster_id: int,
    names: Sequence[str],
    databases: Sequence[str],
) -> tuple[str, str]:
    """Why another target's data lies where this one's goes ('' = it does not), and what could not be compared.

    Two targets may be on one server: each has its own schema for its state, and databases of its own by rules.

    Args:
        mine: the target that is written to.
        other: a target of loads, with its rules.
        section: the one of the settings that names it.
        cluster_id: of the archive that both are loaded from.
        names: every database that the source ever had.
        databases: what is dropped or made, as it is called there.
    """
    why, note = same_server(mine, other, section)
    if not why:
        return "", note
    theirs = {other.schema_name, *routes_of(other.rules).places(names)}
    with naming(advice.TARGET), TargetConnection.open(other, section=section) as connection:
        theirs |= {*places_of_loads(connection, cluster_id, names)}
    known = {each.casefold() for each in (mine.settings.schema_name, *databases)}
    both = sorted(each for each in theirs if each.casefold() in known)
    return (f"{why}, and {', '.join(both)} there is of both", "") if both else ("", "")


def server_name(settings: ServerSettings) -> str:
    """``HOST:PORT``, or the path of the socket: what somebody types who means this server."""
    return settings.unix_socket or f"{settings.host}:{settings.port}"


def same_server(mine: TargetConnection, other: ServerSettings, section: str) -> tuple[str, str]:
    """Why they are one server ('' = they are two), and what could not be compared.

    A lock that is taken through one connection and seen through the other is proof, whatever the addresses are called;
    server_uuid is MySQL's, and several nodes of one Galera or group replication cluster hold the same data.
    ConfigError where the other one answers and does not let us in.
    """
    if places(mine.settings) & places(other):
        return "their addresses are the same", ""
    try:
        plain = {name: value for name, value in dict(other).items() if name in TargetSettings.model_fields}
        # It is only asked, with the rights that a reader has.
        asked = TargetSettings.model_validate(plain)
        theirs = TargetConnection.open(asked, timeout_s=_COMPARE_S, session=DUMP, section=section)
    except AccessDenied as error:
        raise ConfigError(
            f"{place(other)} does not let us in, so nobody knows whether {mine.name} is the same server",
            hint=f"correct user and password of {server_name(other)} in the settings: {error.__cause__}",
        ) from error
    except ConfigError as error:
        raise ConfigError(
            f"{server_name(other)} cannot be asked, so nobody knows whether {mine.name} is the same server: "
            + error.message,
            hint=tuple(advice.for_target(part, advice.TARGET) for part in error.advice),
        ) from error
    except TargetUnavailable:
        return "", "it does not answer; only the addresses were compared"
    try:
        with theirs:
            found, known = _identity(mine), _identity(theirs)
            shared = [name for name, value in found.items() if value == known.get(name)]
            if shared:
                return f"both say {shared[0]} = {found[shared[0]]}", ""
            return ("a lock that is held on the one is held on the other", "") if _one_lock(mine, theirs) else ("", "")
    except (StatementFailed, TargetUnavailable) as error:
        return "", f"only the addresses were compared: {error.message}"


def places(server: ServerSettings) -> set[tuple[str, int]]:
    """Every (IP address, port) that the address stands for now, or the socket's real path; empty when it has none."""
    if server.unix_socket:
        return {(str(Path(server.unix_socket).resolve()), 0)}
    try:
        found = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {(str(each[4][0]), server.port) for each in found}


def _identity(connection: TargetConnection) -> dict[str, str]:
    """What no two servers with data of their own share: MySQL's server_uuid, the ids of clusters that share data."""
    rows = connection.query(
        "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('server_uuid', 'group_replication_group_name')"
    ) + connection.query("SHOW GLOBAL STATUS WHERE Variable_name = 'wsrep_cluster_state_uuid'")
    return {str(name): str(value) for name, value in rows if not _NO_UUID.match(str(value))}


def _one_lock(mine: TargetConnection, theirs: TargetConnection) -> bool:
    """Whether a lock that ours takes is seen there. Its name is nobody else's."""
    name = f"pumphouse-{secrets.token_hex(16)}"
    if mine.value("SELECT GET_LOCK(%s, 0)", (name,)) != 1:
        raise StatementFailed(f"{mine.name} gives no named lock", code=0, statement="GET_LOCK")
    try:
        return theirs.value("SELECT IS_USED_LOCK(%s)", (name,)) is not None
    except StatementFailed as error:
        if error.code != ER.SP_DOES_NOT_EXIST:
            raise
        # A TiDB before 7.1: what cannot be taken there is held.
        if theirs.value("SELECT GET_LOCK(%s, 0)", (name,)) != 1:
            return True
        theirs.value("SELECT RELEASE_LOCK(%s)", (name,))
        return False
    finally:
        mine.value("SELECT RELEASE_LOCK(%s)", (name,))


def is_cluster(connection: TargetConnection, url: str) -> bool:
    """Whether the target is a TiDB whose PD is the PD of ``cluster.url``."""
    scheme, _, rest = url.partition("://")
    if scheme != "pd" or Dialect.of_version(str(connection.value("SELECT VERSION()"))) is not Dialect.TIDB:
        return False
    rows = connection.query("SELECT INSTANCE FROM information_schema.CLUSTER_INFO WHERE TYPE = 'pd'")

    def resolved(text: str) -> set[tuple[str, int]]:
        parts = urlsplit(f"//{text.strip()}")
        return places(ServerSettings(host=parts.hostname or "", port=parts.port or 2379))

    wanted = {place for each in rest.split(",") for place in resolved(each)}
    return any(wanted & resolved(str(instance)) for (instance,) in rows)
