"""A session on the source as a replica's: its handshake, the request for the binlog, and the answers to semi-sync.

PyMySQL's connection does login and TLS; what is sent behind them, and what comes, is ours: MySQL's documentation of
COM_REGISTER_SLAVE, COM_BINLOG_DUMP and COM_BINLOG_DUMP_GTID; MariaDB Knowledge Base, "Replication Protocol".
"""

from __future__ import annotations

import select
import ssl
import struct
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Never

from pymysql.connections import Connection
from pymysql.err import MySQLError
from pymysql.protocol import MysqlPacket

from pumphouse.capture.source.gtid import Flavor, GtidSet
from pumphouse.capture.source.model import Position
from pumphouse.errors import BinlogError, CaptureRefused, ConfigError, SourceErrant, SourceFailed, SourcePurged
from pumphouse.mysql import DUMP, ServerConnection, connect, denied, place
from pumphouse.settings import ServerSettings

_REGISTER, _DUMP, _DUMP_GTID = 0x15, 0x12, 0x1E
_ACKNOWLEDGE = 0xEF
# "Error reading binlog": the words say which.
_READING = 1236
_GONE = ("purged", "could not find first log", "missing the gtid", "too old", "could not find gtid state")
_STRANGE = ("more gtids", "not in the master's binlog", "not in the source's binlog", "impossible position")
_POLL_S = 0.5
_SILENCES = 4
# Groups of a MariaDB that are in its binlog at once, and not shown: the locks between the steps of a commit are taken
# one before the other is given up, and one group is written while one waits (MYSQL_BIN_LOG::trx_group_commit_leader).
_GROUPS = 2
_STEP_S = 0.1


def flavor_of(connection: Connection[Any]) -> Flavor:
    """Whose server it is; ConfigError for a TiDB, which writes to Pumps itself."""
    version = str(_value(connection, "SELECT VERSION()")).lower()
    if "tidb" in version:
        raise ConfigError(
            "the server is a TiDB, which has no row binlog of MySQL's",
            hint="set binlog.enable = true there: it writes to the Pumps itself",
        )
    return Flavor.MARIADB if "mariadb" in version else Flavor.MYSQL


def position_now(connection: Connection[Any]) -> Position:
    """Where the source's binlog ends at this moment.

    Raises:
        ConfigError: it writes none.
    """
    flavor = flavor_of(connection)
    if flavor is Flavor.MARIADB:
        gtids = str(_value(connection, "SELECT @@global.gtid_binlog_pos") or "")
    else:
        gtids = str(_value(connection, "SELECT @@global.gtid_executed") or "")
    found: Any = None
    for statement in ("SHOW BINARY LOG STATUS", "SHOW MASTER STATUS"):
        with suppress(MySQLError), connection.cursor() as cursor:
            cursor.execute(statement)
            found = cursor.fetchone()
            break
    if not found:
        raise ConfigError(
            "the source writes no binlog, or does not let us ask for its end",
            hint="set log_bin there, and grant REPLICATION CLIENT (MariaDB: BINLOG MONITOR) to the user",
        )
    return Position(gtids=GtidSet.parse(gtids, flavor), file=str(found[0]), offset=int(found[1]))


def hides(connection: Connection[Any]) -> Callable[[], bool]:
    """Look where the binlog ends; then, whenever it is asked, whether some of that is not yet shown to readers.

    A transaction is in the binlog, and is sent to whoever reads that, before it is committed in the engine: in between
    it waits for semi-sync replicas, for the disk, or for those before it. A MySQL names what is under way. A MariaDB
    says up to where it has committed, in the binlog's order; whenever it begins a file, all of it too soon: what waits
    for replicas then is known by number alone, or has passed once the groups that were under way have committed.
    """
    if flavor_of(connection) is Flavor.MYSQL:
        owned = _owned(connection)
        return lambda: not owned.isdisjoint(_owned(connection))
    _, _, before = _shown(connection)
    end = position_now(connection)

    def hidden() -> bool:
        file, offset, groups = _shown(connection)
        if (len(file), file, offset) < (len(end.file), end.file, end.offset):
            with connection.cursor() as cursor:
                cursor.execute("SELECT BINLOG_GTID_POS(%s, %s)", (file, offset))
                if not GtidSet.parse(str(cursor.fetchall()[0][0] or ""), Flavor.MARIADB).covers(end.gtids):
                    return True
        if groups >= before + _GROUPS or semi_sync_says(connection, "status", "STATUS").get("status") != "ON":
            return False
        # Between two of its steps a group waits for nothing: if there is one, it waits again soon, or has committed.
        time.sleep(_STEP_S)
        waiting = semi_sync_says(connection, "wait_sessions", "STATUS")["wait_sessions"]
        return waiting != "0" or _shown(connection)[2] != groups

    return hidden


def _shown(connection: Connection[Any]) -> tuple[str, int, int]:
    """Up to where (file, offset) a MariaDB says that it has committed, and how many groups it has."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'binlog_%'")
        found = {str(name).lower(): str(value) for name, value in cursor.fetchall()}
    return found["binlog_snapshot_file"], int(found["binlog_snapshot_position"]), int(found["binlog_group_commits"])


def _owned(connection: Connection[Any]) -> set[str]:
    """GTIDs of a MySQL's transactions that are under way, with their threads: ``uuid:5#12:6#14,uuid:tag:1#3``."""
    servers = str(_value(connection, "SELECT @@global.gtid_owned") or "").split(",")
    named = (server.strip().split(":") for server in servers)
    return {f"{name}:{each}" for name, *numbers in named for each in numbers if "#" in each}


def character_sets(connection: Connection[Any]) -> dict[int, str]:
    """Id of a collation -> its character set, as the server has them."""
    # MariaDB's newer collations are of several character sets, and this view alone has an id for each of the pairs.
    for view in ("COLLATION_CHARACTER_SET_APPLICABILITY", "COLLATIONS"):
        with suppress(MySQLError), connection.cursor() as cursor:
            cursor.execute(f"SELECT ID, CHARACTER_SET_NAME FROM information_schema.{view} WHERE ID IS NOT NULL")  # noqa: S608
            return {int(number): str(name) for number, name in cursor.fetchall()}
    raise ConfigError("the source does not say which collations it has", hint="is it a MariaDB or a MySQL?")


def semi_sync_says(connection: Connection[Any], what: str, kind: str = "VARIABLES") -> dict[str, str]:
    """What a server has set for semi-sync, or its state; names without their beginning. Empty: it has no semi-sync."""
    with connection.cursor() as cursor:
        cursor.execute(f"SHOW GLOBAL {kind} LIKE 'rpl_semi_sync_%{what}'")
        found = {str(name).lower(): str(value).upper() for name, value in cursor.fetchall()}
    sides = ("rpl_semi_sync_master_", "rpl_semi_sync_source_")
    return {name.removeprefix(side): value for name, value in found.items() for side in sides if name.startswith(side)}


def _value(connection: Connection[Any], sql: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        row = cursor.fetchone()
    return row[0] if row else None


class Session:
    """One connection on which the source sends its binlog."""

    def __init__(self, server: ServerSettings, connection: ServerConnection, heartbeat_s: float) -> None:
        self._server = server
        self._connection = connection
        self._silence_s = max(heartbeat_s * _SILENCES, 10.0)
        self.flavor = flavor_of(connection)
        self._turn = threading.Lock()
        self.summed = False

    @classmethod
    def open(
        cls,
        server: ServerSettings,
        start: Position,
        *,
        section: str,
        server_id: int,
        heartbeat_s: float,
        semi_sync: bool = False,
    ) -> Session:
        """Connect, and ask for everything behind a position.

        Args:
            server: the source.
            start: behind it; without GTIDs its file and offset count.
            section: of the settings, for messages.
            server_id: a number that no other replica of the source has.
            heartbeat_s: after so long without anything new the source says so.
            semi_sync: commits of the source wait until they are acknowledged.

        Raises:
            AccessDenied, ConfigError: the user may not do this, or the source is none.
            SourceFailed: it does not answer.
        """
        try:
            connection = connect(server, DUMP, section, program="pumphouse-capture", answer_s=60)
        except (MySQLError, OSError) as error:
            raise SourceFailed(
                f"the source {place(server)} does not answer: {error}",
                hint=f"is it running? check host, port or unix_socket in [{section}]",
                source=place(server),
            ) from error
        try:
            made = cls(server, connection, heartbeat_s)
            made._begin(start, server_id, heartbeat_s, semi_sync=semi_sync)
        except MySQLError as error:
            connection.close()
            refused = denied(error, server, section)
            if refused is not None:
                refused.advice = ("grant REPLICATION SLAVE and REPLICATION CLIENT on *.* to the user",)
                raise refused from error
            raise SourceFailed(f"the source {place(server)}: {error}", source=place(server)) from error
        except OSError as error:
            connection.close()
            raise SourceFailed(f"the source {place(server)} was lost: {error}", source=place(server)) from error
        except BaseException:
            connection.close()
            raise
        return made

    def _begin(self, start: Position, server_id: int, heartbeat_s: float, *, semi_sync: bool) -> None:
        checks = str(_value(self._connection, "SELECT @@global.binlog_checksum") or "NONE").upper()
        self.summed = checks == "CRC32"
        period = int(heartbeat_s * 1e9)
        name = uuid.uuid5(uuid.NAMESPACE_OID, f"pumphouse-{server_id}")
        wanted = [
            f"@master_binlog_checksum = '{checks}', @source_binlog_checksum = '{checks}'",
            f"@master_heartbeat_period = {period}, @source_heartbeat_period = {period}",
            f"@slave_uuid = '{name}', @replica_uuid = '{name}'",
        ]
        if semi_sync:
            self._require_semi_sync()
            wanted.append("@rpl_semi_sync_slave = 1, @rpl_semi_sync_replica = 1")
        by_gtid = bool(start.gtids) or not start.file
        if self.flavor is Flavor.MARIADB:
            wanted.append("@mariadb_slave_capability = 4")
            if by_gtid:
                wanted.append(f"@slave_connect_state = '{start.gtids}', @slave_gtid_strict_mode = 1")
        for each in wanted:
            with self._connection.cursor() as cursor:
                cursor.execute(f"SET {each}")
        self._register(server_id)
        if by_gtid and self.flavor is Flavor.MYSQL:
            gtids = start.gtids.encoded()
            body = struct.pack("<HIIQI", 0x04, server_id, 0, 4, len(gtids)) + gtids
            self._send(_DUMP_GTID, body)
        elif by_gtid:
            self._send(_DUMP, struct.pack("<IHI", 4, 0, server_id))
        else:
            self._send(_DUMP, struct.pack("<IHI", start.offset, 0, server_id) + start.file.encode())

    def _require_semi_sync(self) -> None:
        if semi_sync_says(self._connection, "enabled").get("enabled") not in ("ON", "1"):
            raise ConfigError(
                f"the source {place(self._server)} waits for no semi-sync replica",
                hint="there: SET GLOBAL rpl_semi_sync_master_enabled = ON (MySQL 8.0.26+: install the plugin"
                " rpl_semi_sync_source and set rpl_semi_sync_source_enabled); or set semi_sync = false",
            )

    def _register(self, server_id: int) -> None:
        # Without a name, a user and a password: they would be shown to whoever lists the replicas.
        self._send(_REGISTER, struct.pack("<I3xHII", server_id, 0, 0, 0))
        session: Any = self._connection
        session._read_packet()  # noqa: SLF001

    def _send(self, command: int, body: bytes) -> None:
        session: Any = self._connection
        session._execute_command(command, body)  # noqa: SLF001

    def read_into(self, room: memoryview) -> int | None:
        """Bytes that have come; 0 = none for half a second, None = the source has ended the connection.

        Raises:
            SourceFailed: the connection is lost.
        """
        session: Any = self._connection
        sock = session._sock  # noqa: SLF001
        try:
            if not (isinstance(sock, ssl.SSLSocket) and sock.pending()):
                # Not select, which ends at descriptor 1,024.
                waiting = select.poll()
                waiting.register(sock, select.POLLIN)
                if not waiting.poll(_POLL_S * 1000):
                    return 0
            # TLS is no stream that one thread may read while another one writes.
            with self._turn:
                return sock.recv_into(room) or None
        except TimeoutError:
            return 0
        except (OSError, ValueError, AttributeError) as error:
            raise self.lost(error) from error

    @property
    def silence_s(self) -> float:
        """After so long without a byte the source is gone."""
        return self._silence_s

    def acknowledge(self, file: str, offset: int) -> None:
        """Say that everything up to there is safe. Any thread.

        Raises:
            SourceFailed: the connection is gone.
        """
        session: Any = self._connection
        body = bytes((_ACKNOWLEDGE,)) + struct.pack("<Q", offset) + file.encode()
        try:
            with self._turn:
                session._sock.sendall(struct.pack("<I", len(body)) + body)  # noqa: SLF001
        except (OSError, AttributeError) as error:
            raise self.lost(error) from error

    def lost(self, why: object) -> SourceFailed:
        """The error for a connection that ended."""
        return SourceFailed(f"the source {place(self._server)} was lost: {why}", source=place(self._server))

    def refuse(self, packet: bytes, position: Position) -> Never:
        """Raise what an error packet says.

        Raises:
            SourcePurged, SourceErrant, SourceFailed, CaptureRefused: by its code and its words.
        """
        try:
            MysqlPacket(packet, "utf8mb4").raise_for_error()
        except MySQLError as error:
            raise self._meant(error, position) from error
        raise self.lost("it sent an error that makes no sense")

    def _meant(self, error: MySQLError, position: Position) -> BinlogError:
        code, text = (error.args[0], str(error.args[-1])) if error.args else (0, str(error))
        words = text.lower()
        where = f"the source {place(self._server)}"
        if code == _READING and any(each in words for each in _STRANGE):
            return SourceErrant(
                f"{where} does not know the position {position}: {text}",
                hint="is it the server that was captured, or a replica that was promised as its heir? If transactions"
                " were lost there, take a new dump: `pumphouse archive dump`",
                position=str(position),
            )
        if code == _READING and any(each in words for each in _GONE):
            return SourcePurged(
                f"{where} has deleted binlogs behind the position {position}: {text}",
                hint="what was in them is lost to the archive: declare the gap and take a new dump with"
                " `pumphouse archive dump`; keep binlogs longer (binlog_expire_logs_seconds)",
                position=str(position),
            )
        if code == _READING and "slave with the same" in words:
            return CaptureRefused(
                f"{where} ended the session: {text}",
                hint="another replica, or another capture, has this server id: give each its own",
            )
        return SourceFailed(f"{where} ended the session: {text}", source=place(self._server))

    def close(self) -> None:
        """End the connection."""
        session: Any = self._connection
        session._force_close()  # noqa: SLF001
