"""The shadow: an empty server of the source's kind and version that runs its DDL, a child of the capture (row Q3).

It listens on a socket of its own directory alone, which nobody else may enter. It has no rows and no binlog, and keeps
nothing: each start makes it anew from the stored schema. It ends with its parent, however that ends.

A table is here as it is on the source, or not at all: then it is left out, and one of `Shadow.unfollowed`. So a
statement that needs the form of such a table, as LIKE or EXCHANGE PARTITION do, does not run here either.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import re
import shutil
import signal
import subprocess
import time
import zoneinfo
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog
from pymysql.constants import CR, ER
from pymysql.err import MySQLError

from pumphouse.capture.schemas import Made, ServerKind, StoredSchema, read_objects, server_kind
from pumphouse.capture.source.charsets import PLAIN
from pumphouse.capture.source.gtid import Flavor
from pumphouse.capture.source.model import Query
from pumphouse.capture.source.session import character_sets
from pumphouse.capture.statements import Name, unencrypted
from pumphouse.durable import PRIVATE_DIR, make_dirs
from pumphouse.errors import CaptureRefused, ConfigError, SourceFailed
from pumphouse.mysql import DUMP, ServerConnection, connect
from pumphouse.schema.ident import qualified
from pumphouse.settings import ServerSettings

log = structlog.get_logger()

START_S = 120.0
_LONGEST_WAIT_S = str(365 * 86_400)  # nobody but a DDL speaks to it, and servers take no longer one
_LONGEST_SOCKET = 100  # the kernel's limit for the path of a unix socket, with room for the name
_PROGRAMS = {Flavor.MARIADB: ("mariadbd", "mysqld"), Flavor.MYSQL: ("mysqld",)}
_PLACES = ("/usr/sbin", "/usr/libexec", "/usr/local/sbin", "/opt/mysql/bin")
# sql_mode: no DATA DIRECTORY of another machine, and no engine in place of one that is not there.
_NO_DIRECTORIES, _NO_OTHER_ENGINE = 1 << 7, 1 << 30
# MariaDB's OPTION_EXPLICIT_DEF_TIMESTAMP among the flags of a query event, and the first version that has it there.
_EXPLICIT_DEFAULTS, _SAYS_EXPLICIT = 1 << 24, (10, 8)
_NO_FOREIGN_KEYS, _NO_UNIQUE, _AUTO_IS_NULL = 1 << 26, 1 << 27, 1 << 14
# The users that a view or a routine is run as: it cannot be read where there is no such user.
_DEFINER = re.compile(rb"DEFINER\s*=\s*((?:`[^`]*`|'[^']*'|[\w.]+)\s*@\s*(?:`[^`]*`|'[^']*'|[\w.%]+))", re.IGNORECASE)
# Of a CREATE TABLE … SELECT, as a MySQL writes it: the rows follow in the transaction, and none is begun here.
_WITH_ROWS = re.compile(rb"\s+START\s+TRANSACTION\s*$", re.IGNORECASE)
# As both servers write a CREATE TABLE of a SELECT, or LIKE a temporary one: in UTF-8, whatever the session's set is.
_GENERATED = re.compile(
    rb"CREATE (?:OR REPLACE )?TABLE (?:IF NOT EXISTS )?(?:`(?:[^`]|``)+`\.)?`(?:[^`]|``)+` \(\n  [`A-Z]"
)
LOST = {CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST}
_SIGNED = re.compile(r"([+-]?)(\d\d?):(\d\d)")
# Every table and view as it was printed: nothing of a server's wishes counts.
_AS_PRINTED = (
    "SET SESSION sql_mode = 'ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO,NO_DIR_IN_CREATE', foreign_key_checks = 0,"
    " unique_checks = 0, time_zone = '+00:00'"
)


def flavor_of(version: str) -> Flavor:
    """Whose server it is, by its version."""
    return Flavor.MARIADB if "mariadb" in version.lower() else Flavor.MYSQL


def series(version: str) -> str:
    """``10.11``, ``8.4``: servers of one series read statements alike."""
    return ".".join(version.split("-", maxsplit=1)[0].split(".")[:2])


def require_followed(was: ServerKind, now: ServerKind) -> None:
    """ConfigError where names and positions of a server mean nothing on the one that is the source now."""
    names = "lower_case_table_names"
    if flavor_of(was.version) is not flavor_of(now.version) or was.lower_case_table_names != now.lower_case_table_names:
        raise ConfigError(
            f"the source is {now.version} with {names} = {now.lower_case_table_names}, and what was captured is of "
            f"{was.version} with {names} = {was.lower_case_table_names}",
            hint="is it the right server? `pumphouse capture run --anew` begins there anew (docs/capture.md)",
        )


class Shadow:
    """The server, while it runs."""

    def __init__(self, process: subprocess.Popen[bytes], settings: ServerSettings, kind: ServerKind) -> None:
        self._process = process
        self._settings = settings
        self.kind = kind
        self.flavor = flavor_of(kind.version)
        self._statements = self._connect()
        self._reading = self._connect()
        self._reading.query("SET SESSION foreign_key_checks = 0")  # a table goes, whatever refers to it
        self._charsets = character_sets(self._reading)
        self._collations = _collations(self._reading)
        self.unfollowed: set[tuple[str, ...]] = set()

    @classmethod
    def start(
        cls,
        directory: Path,
        schema: StoredSchema,
        program: str = "",
        without: Callable[[str, str], bool] = lambda _db, _name: False,
    ) -> Shadow:
        """Make and start the server, and make the schema there.

        Args:
            directory: emptied, and used as long as the server runs.
            schema: what is made there.
            program: the server's program; '' = the one of the source's kind on this machine.
            without: whether a table is left out: where it cannot be made, the shadow does without it.

        Raises:
            ConfigError: there is no such program, it does not start, or it is of another kind or version.
        """
        shutil.rmtree(directory, ignore_errors=True)
        make_dirs(directory / "files", PRIVATE_DIR)
        socket = directory.absolute() / "s"
        if len(str(socket)) > _LONGEST_SOCKET:
            raise ConfigError(
                f"the path {socket} is too long for a socket", hint="choose a shorter path for capture.directory"
            )
        path = _program(program, flavor_of(schema.server.version))
        process = _run_server(path, directory.absolute(), socket, schema.server)
        settings = ServerSettings(host="", unix_socket=str(socket), user="root")
        try:
            _wait(process, settings, directory)
            shadow = cls(process, settings, schema.server)
        except BaseException:
            process.kill()
            process.wait()
            raise
        try:
            shadow._check(path)
            shadow.unfollowed |= shadow._folded(schema.unfollowed)
            shadow._make(schema.objects, without)
        except BaseException:
            shadow.close()
            raise
        return shadow

    def decoded(self, query: Query) -> str:
        """A statement's text, whatever its session's character set: the server knows them all."""
        if query.text.isascii():
            return query.text.decode()
        charset = self._written_in(query)
        if charset in PLAIN:
            return query.text.decode("utf-8", "replace")
        with self._reading.cursor() as cursor:
            cursor.execute(f"SELECT CONVERT(_{charset} X'{query.text.hex()}' USING utf8mb4)")
            return str(cursor.fetchall()[0][0])

    def _written_in(self, query: Query) -> str:
        """The character set of its text."""
        if _GENERATED.match(query.text):
            with suppress(UnicodeDecodeError):
                query.text.decode()
                return "utf8mb4"
        return self._charsets.get(query.client_collation, "utf8mb4")

    def run(self, query: Query, text: str, *, gone: Iterable[tuple[str, ...]] = ()) -> None:
        """Run one statement of the source as it ran there; ``gone``: what a DROP TABLE or DROP DATABASE names.

        Raises:
            CaptureRefused: it ended otherwise than on the source.
        """
        if self.lost(gone):  # a MySQL drops all of its tables, or none
            self._drop(gone)
            return
        connection = self._statements
        try:
            for statement in self._context(query):
                connection.query(statement)
            self._let_in(query.text)
            self._enter(query.schema)
            connection.query(_WITH_ROWS.sub(b"", query.text))
        except MySQLError as error:
            if not self.alive or error.args[0] in LOST:
                raise SourceFailed(f"the shadow has ended under {text[:200]!r}", hint="its log: shadow/log") from error
            if error.args[0] == ER.BAD_TABLE_ERROR and gone and self.flavor is Flavor.MARIADB:
                return  # MariaDB writes DROP TABLE a, missing as it was: a is gone, here as there
            if error.args[0] == query.error:
                return  # it ended there as here
            why = str(error.args[-1])
            if error.args[0] == ER.NO_SUCH_TABLE and self.unfollowed:
                why += f" (left out, and so not on the shadow: {', '.join(map('.'.join, sorted(self.unfollowed)[:5]))})"
            raise CaptureRefused(
                f"the shadow does not take what the source took: {why}; the statement is {text[:500]!r}",
                hint="is the shadow of the source's very version (capture.shadow)? `pumphouse capture run --anew` goes "
                "on behind the statement (docs/capture.md)",
            ) from error
        if query.error:
            raise CaptureRefused(
                f"the shadow takes what ended with error {query.error} on the source; the statement is {text[:500]!r}",
                hint="`pumphouse capture run --anew` goes on behind the statement (docs/capture.md)",
            )

    def lost(self, names: Iterable[tuple[str, ...]]) -> list[str]:
        """Those of ``names`` that are on the source, and not here."""
        return sorted(".".join(name) for name in self._folded(names) & self.unfollowed)

    def settle(self, names: Iterable[Name], ended: Iterable[tuple[str, ...]], *, taken: bool) -> None:
        """Say what became of a statement's left-out tables.

        Args:
            names: the tables that it is about; where it was not taken, all of them are left out.
            ended: those that are no more, or are here again; a database is a name of one part.
            taken: whether the statement ran here. If not, what is left of its tables is not followed.
        """
        about, over = self._folded(names), self._folded(ended)
        marked = self.unfollowed if taken else self.unfollowed | about
        self.unfollowed = {each for each in marked if each not in over and each[:1] not in over}
        self._drop(about & self.unfollowed if taken else about)

    def require_reads_as(self, source: ServerKind) -> None:
        """ConfigError where the source is no more of the version that its statements are run in."""
        require_followed(self.kind, source)
        if series(source.version) != series(self.kind.version):
            raise ConfigError(
                f"the source is {source.version} now, and the shadow is of {self.kind.version}: they may read a "
                "statement differently",
                hint="start the capture again: it makes the shadow of the source's version, whose server program must "
                "be on this machine (capture.shadow)",
            )

    @property
    def connection(self) -> ServerConnection:
        """For whoever reads the schema, in UTC."""
        return self._reading

    def stored(self) -> StoredSchema:
        """The whole schema as it is now."""
        return StoredSchema(
            server=self.kind, objects=read_objects(self._reading), unfollowed=frozenset(self.unfollowed)
        )

    def zone(self, query: Query) -> str:
        """Name or offset of a statement's time zone; '' = the host's, which is not UTC and not known."""
        zone = query.time_zone or self.kind.time_zone
        if zone.upper() != "SYSTEM":
            return zone
        return "+00:00" if self.kind.system_is_utc else ""

    def offset(self, query: Query) -> str:
        """Offset from UTC of a statement's time zone at its time, as ``+02:00``; '' = not known."""
        zone = self.zone(query)
        if not zone:
            return ""
        if match := _SIGNED.fullmatch(zone):
            return f"{match[1] or '+'}{int(match[2]):02d}:{match[3]}"
        try:
            at = dt.datetime.fromtimestamp(query.seconds, zoneinfo.ZoneInfo(zone))
        except (zoneinfo.ZoneInfoNotFoundError, ValueError):
            raise CaptureRefused(f"this machine does not know the time zone {zone!r} of a statement") from None
        minutes = round((at.utcoffset() or dt.timedelta()).total_seconds() / 60)
        return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it: it has nothing to lose."""
        for connection in (self._statements, self._reading):
            with suppress(MySQLError, OSError):
                connection.close()
        self._process.kill()
        self._process.wait()

    # -- inside

    def _folded(self, names: Iterable[tuple[str, ...]]) -> set[tuple[str, ...]]:
        """Names as the source tells them apart."""
        folds = self.kind.lower_case_table_names != 0
        return {tuple(part.lower() if folds else part for part in name) for name in names}

    def _drop(self, names: Iterable[tuple[str, ...]]) -> None:
        for db, table in names:
            self._reading.query(f"DROP TABLE IF EXISTS {qualified(db, table)}")

    def _connect(self) -> ServerConnection:
        return connect(
            self._settings, DUMP, "capture", more={"wait_timeout": _LONGEST_WAIT_S}, program="pumphouse-shadow"
        )

    def _check(self, program: Path) -> None:
        found = server_kind(self._reading)
        if (flavor_of(found.version), series(found.version)) != (self.flavor, series(self.kind.version)):
            raise ConfigError(
                f"{program} is {found.version}, and the source was {self.kind.version} when it was last looked at: "
                "they may read a statement differently",
                hint="install the source's version on this machine, and name its server program in capture.shadow",
            )

    def _make(self, objects: tuple[Made, ...], without: Callable[[str, str], bool]) -> None:
        connection = self._connect()
        try:
            connection.query(_AS_PRINTED)
            if self.flavor is Flavor.MARIADB:
                connection.query("SET SESSION innodb_strict_mode = 0, explicit_defaults_for_timestamp = 1")
            if self._collations:  # a character set without a collation has the one that it always had
                connection.query("SET SESSION character_set_collations = ''")
            views = [each for each in objects if each.kind == "view"]
            for each in objects:
                name = each.database, each.name
                if each.kind == "view" or self.lost([name]):
                    continue
                try:
                    self._make_one(connection, each)
                except CaptureRefused as error:
                    if each.kind == "database" or not without(*name):
                        raise
                    self.unfollowed |= self._folded([name])
                    log.warning("left_out_table_not_followed", reason=error.message)
            while views:
                left = [each for each in views if not self._try_one(connection, each)]
                if len(left) == len(views):
                    log.warning("views_left_out", views=[f"{each.database}.{each.name}" for each in left])
                    break
                views = left
        finally:
            connection.close()

    def _enter(self, database: str) -> None:
        """Choose the default database. A statement that makes or drops it has it too, and needs it not."""
        try:
            self._statements.select_db(database or "mysql")
        except MySQLError as error:
            if error.args[0] != ER.BAD_DB_ERROR:
                raise
            self._statements.select_db("mysql")

    def _let_in(self, sql: bytes) -> None:
        """Make the user that a statement names as its definer."""
        match = _DEFINER.search(sql)
        if match is not None:
            who = match[1].decode("utf-8", "replace")
            self._reading.query(f"CREATE USER IF NOT EXISTS {who}")
            self._reading.query(f"GRANT ALL ON *.* TO {who}")

    def _make_one(self, connection: ServerConnection, made: Made) -> None:
        try:
            if made.kind != "database":
                connection.select_db(made.database)
            connection.query(unencrypted(made.sql).encode("utf-8", "surrogateescape"))
        except MySQLError as error:
            raise CaptureRefused(
                f"the shadow cannot make {made.kind} {made.database}{made.name and '.'}{made.name}: {error.args[-1]}",
                hint="is the shadow of the source's very version, with its plugins (capture.shadow)?",
            ) from error

    def _try_one(self, connection: ServerConnection, made: Made) -> bool:
        sql = made.sql.encode("utf-8", "surrogateescape")
        try:
            self._let_in(sql)
            connection.select_db(made.database)
            connection.query(sql)
        except MySQLError:
            return False
        return True

    def _context(self, query: Query) -> list[str]:
        """What the statement was run with, as the servers' own binlog tools say it."""
        values: dict[str, Any] = {
            "timestamp": f"{query.seconds}.{query.micros:06d}",
            "time_zone": repr(self.offset(query) or "+00:00"),
        }
        values["sql_mode"] = (query.sql_mode or 0) | _NO_DIRECTORIES | _NO_OTHER_ENGINE
        # A MariaDB takes no id but that of a default collation.
        values["character_set_client"] = self._written_in(query)
        ids = {
            "collation_connection": query.connection_collation,
            "collation_server": query.server_collation,
        }
        values |= {name: number for name, number in ids.items() if number}
        if query.flags is not None:
            # A key may refer to a table that is not here.
            values["foreign_key_checks"] = int(not query.flags & _NO_FOREIGN_KEYS and not self.unfollowed)
            values["unique_checks"] = int(not query.flags & _NO_UNIQUE)
            values["sql_auto_is_null"] = int(bool(query.flags & _AUTO_IS_NULL))
        values["explicit_defaults_for_timestamp"] = int(self._explicit_defaults(query))
        if query.lc_time_names:
            values["lc_time_names"] = query.lc_time_names
        if query.utf8mb4_collation and self.flavor is Flavor.MYSQL:
            values["default_collation_for_utf8mb4"] = query.utf8mb4_collation
        if self._collations:
            pairs = query.charset_collations
            named = [f"{self._charsets[of]}={self._collations[collation]}" for of, collation in pairs]
            values["character_set_collations"] = f"'{','.join(named)}'"
        return ["SET " + ", ".join(f"@@session.{name} = {value}" for name, value in values.items())]

    def _explicit_defaults(self, query: Query) -> bool:
        if query.explicit_defaults is not None:
            return query.explicit_defaults
        major, minor = (int(part) for part in series(self.kind.version).split("."))
        if self.flavor is Flavor.MARIADB and query.flags is not None and (major, minor) >= _SAYS_EXPLICIT:
            return bool(query.flags & _EXPLICIT_DEFAULTS)
        return self.kind.explicit_defaults


def _program(named: str, flavor: Flavor) -> Path:
    for name in (named,) if named else _PROGRAMS[flavor]:
        found = shutil.which(name) or next((f"{place}/{name}" for place in _PLACES if Path(place, name).exists()), None)
        if found is not None:
            return Path(found)
    raise ConfigError(
        f"there is no {named or _PROGRAMS[flavor][0]} on this machine for the shadow server",
        hint="install the source's server package (the program is enough, it need not be started), or name a program "
        "in capture.shadow",
    )


def kind_of_program(named: str) -> ServerKind:
    """What a server that is started from a program would be, in UTC and with TiDB's defaults; '' = a MariaDB's."""
    path = _program(named, Flavor.MARIADB)
    said = subprocess.run([str(path), "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"\bVer (\S+)", said)
    if found is None:
        raise ConfigError(
            f"{path} does not say which version it is", hint="name a server's program: mariadbd or mysqld"
        )
    return ServerKind(
        version=found[1], lower_case_table_names=0, character_set="utf8mb4", collation="utf8mb4_bin",
        time_zone="SYSTEM", system_is_utc=False, explicit_defaults=True,
    )  # fmt: skip


def _run_server(program: Path, directory: Path, socket: Path, kind: ServerKind) -> subprocess.Popen[bytes]:
    data, mariadb = directory / "data", flavor_of(kind.version) is Flavor.MARIADB
    # A server that starts takes the temporary tables in its tmpdir for its own, and deletes them: this one has its own.
    user = [f"--user={directory.owner()}", f"--tmpdir={directory}"]
    options = [
        f"--datadir={data}", f"--socket={socket}", f"--pid-file={directory / 'pid'}",
        f"--log-error={directory / 'log'}", "--skip-networking", "--skip-log-bin", "--innodb-buffer-pool-size=16M",
        "--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=OFF", "--performance-schema=0",
        "--key-buffer-size=64K", "--table-open-cache=64", "--max-connections=10",
        f"--secure-file-priv={directory / 'files'}", "--loose-skip-symbolic-links", "--local-infile=0",
        f"--lower-case-table-names={kind.lower_case_table_names}", f"--character-set-server={kind.character_set}",
        f"--collation-server={kind.collation}",
    ]  # fmt: skip
    with (directory / "made").open("wb") as out:
        if mariadb:
            options += ["--innodb-log-file-size=4M", "--aria-pagecache-buffer-size=128K", "--innodb-strict-mode=0"]
            install = shutil.which("mariadb-install-db") or shutil.which("mysql_install_db")
            if install is None:
                raise ConfigError("there is no mariadb-install-db on this machine", hint="it comes with the server")
            make = [install, "--no-defaults", f"--datadir={data}", "--skip-test-db", "--skip-log-bin",
                    "--auth-root-authentication-method=normal", *user]  # fmt: skip
        else:
            options += ["--mysqlx=OFF", "--innodb-redo-log-capacity=8M", "--innodb-strict-mode=0"]
            make = [str(program), "--no-defaults", "--initialize-insecure", f"--datadir={data}", *user,
                    f"--lower-case-table-names={kind.lower_case_table_names}"]  # fmt: skip
        made = subprocess.run(make, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, check=False)
    if made.returncode:
        said = (directory / "made").read_text(errors="replace")[:500]
        raise ConfigError(f"the shadow server's data directory cannot be made: {said.strip()}")
    libc = ctypes.CDLL(None, use_errno=True)

    def end_with_parent() -> None:
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # of the terminal: it is for the capture

    return subprocess.Popen(
        [str(program), "--no-defaults", *options, *user],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=end_with_parent,  # noqa: PLW1509 - started before any thread
        start_new_session=True,
    )


def _wait(process: subprocess.Popen[bytes], settings: ServerSettings, directory: Path) -> None:
    until = time.monotonic() + START_S
    while True:
        try:
            if not Path(settings.unix_socket).exists():
                raise FileNotFoundError(f"{settings.unix_socket} is not there")
            connect(settings, DUMP, "capture", program="pumphouse-shadow").close()
        except (MySQLError, OSError) as error:
            log_file = directory / "log"
            if process.poll() is not None or time.monotonic() > until:
                said = log_file.read_text(errors="replace")[-800:] if log_file.exists() else str(error)
                raise ConfigError(f"the shadow server does not start: {said.strip()}") from error
            time.sleep(0.05)
        else:
            return


def _collations(connection: ServerConnection) -> dict[int, str]:
    """Id -> name, where a session says what a character set has by default (MariaDB 11.2); else nothing."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW SESSION VARIABLES LIKE 'character_set_collations'")
        if not cursor.fetchall():
            return {}
        view = "information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"
        cursor.execute(f"SELECT ID, FULL_COLLATION_NAME FROM {view} WHERE ID IS NOT NULL")  # noqa: S608
        return {int(number): str(name) for number, name in cursor.fetchall()}


def zone_offset_s(offset: str) -> int:
    """Seconds of ``+02:00``."""
    sign, hours, minutes = offset[:1], offset[1:3], offset[4:6]
    return (-1 if sign == "-" else 1) * (int(hours) * 3600 + int(minutes) * 60)
