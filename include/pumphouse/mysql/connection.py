"""PyMySQL's connection to a server that may be anybody: it gets no password in clear text, no file, and no trust.

What a server answers is read by PyMySQL, which takes it for granted: a wrong length, a status where rows belong or a
request for a file ends in an IndexError or a RuntimeError. `ServerConnection` makes a MySQLError of each, so whoever
calls translates one kind of error.
"""

from __future__ import annotations

import contextlib
import functools
import re
import ssl
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pymysql.connections import Connection
from pymysql.constants import CLIENT, CR, ER
from pymysql.err import MySQLError, OperationalError

from pumphouse import advice
from pumphouse.errors import AccessDenied, BinlogError, ConfigError
from pumphouse.mysql.session import Session, begin
from pumphouse.settings import ServerSettings

if TYPE_CHECKING:
    _Connection = Connection[Any]
else:
    _Connection = Connection  # generic in its stubs alone

# For each answer until the session is set; whoever answers a greeting by nothing holds nobody.
_LOGIN_S = 60.0
# What the first answer of a server may name and gets no more than a digest for.
_CHALLENGES = {"", "mysql_native_password", "caching_sha2_password", "client_ed25519"}
# A digest of a few bits: as good as the password.
_BROKEN = b"mysql_old_password"
# How sha256_password and caching_sha2_password ask for the key that the password is to be encrypted with.
_KEY_REQUESTS = {b"\x01", b"\x02"}
# A question: it is answered with rows, and with one at least where no table is asked.
_ASKS = re.compile(rb"\s*(?:SHOW|SELECT)\b(?!.*\bINTO\b)", re.IGNORECASE | re.DOTALL)
_ASKS_ONE = re.compile(rb"\s*SELECT\b(?!.*\b(?:FROM|INTO)\b)", re.IGNORECASE | re.DOTALL)

# User, password, host or account: another try finds the same.
_NOT_LET_IN = {1045, 1129, 1130, 1251, 1698, 1820, 1862, 2059, 3118, 4151}
# On a database, a table, a column, a routine, or of the server as a whole.
NO_RIGHT = frozenset({1044, 1142, 1143, 1227, 1370, 1410})


class NoSense(OperationalError):
    """The server's answer is none that MySQL's protocol knows at this place; the connection is closed."""


def place(server: ServerSettings) -> str:
    """``user@host:port`` or ``user@socket``: a server's address, without secrets."""
    return f"{server.user}@{server.unix_socket or f'{server.host}:{server.port}'}"


def connect(
    server: ServerSettings,
    session: Session,
    section: str,
    *,
    more: Mapping[str, str] | None = None,
    program: str = "pumphouse",
    sends_rows: bool = False,
    connect_s: float = 10.0,
    answer_s: float | None = None,
    **options: Any,
) -> ServerConnection:
    """Connect, and set the session.

    Args:
        server: where.
        session: what is set.
        section: the section of the settings that names it, for messages.
        more: variables of this session alone.
        program: what the server lists us as.
        sends_rows: LOAD DATA LOCAL is spoken of; who sends one answers the server himself.
        connect_s: seconds for the connection.
        answer_s: seconds for each answer; None = as long as it likes.
        options: more for PyMySQL.

    Raises:
        AccessDenied: the server does not let this user in.
        ConfigError: a file of TLS is missing or is none; or the server wants the password itself, and nothing proves
            that it is the right server; or a variable is not as we need it, and cannot be set.
        MySQLError, OSError: as PyMySQL says it.
    """
    try:
        connection = ServerConnection(
            section,
            host=server.host or None,
            port=server.port,
            user=server.user,
            password=server.password.get_secret_value().encode(),
            unix_socket=server.unix_socket or None,
            ssl=tls_context(server, section),
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=connect_s,
            read_timeout=min(answer_s or _LOGIN_S, _LOGIN_S),
            write_timeout=min(answer_s or _LOGIN_S, _LOGIN_S),
            client_flag=CLIENT.LOCAL_FILES if sends_rows else 0,
            program_name=program,
            **options,
        )
    except MySQLError as error:
        raise denied(error, server, section) or error from error
    try:
        with connection.making_sense():
            begin(connection, session, f"{section} {place(server)}", more)
        me: Any = connection
        me._read_timeout = me._write_timeout = answer_s  # noqa: SLF001
    except BaseException:
        connection.close()
        raise
    return connection


def named_in(section: str) -> advice.Section:
    """What names a server; ``target`` is the one of the run."""
    return advice.Section(advice.THIS if section == advice.TARGET else section)


def denied(error: MySQLError, server: ServerSettings, section: str) -> AccessDenied | None:
    """The error that says so where a server does not let the user in or lacks a right for it; None of other ones."""
    code = error.args[0] if error.args else 0
    if code not in _NOT_LET_IN | NO_RIGHT:
        return None
    named: advice.Hint = ("check user and password in ", named_in(section))
    if section == "schema":
        named = ("check schema.history, and schema.history_password",)
    right = code in NO_RIGHT
    return AccessDenied(
        f"{place(server)} of [{section}] does not let us {'do this' if right else 'in'}: {error.args[-1]}",
        hint="grant that to the user" if right else named,
        server=place(server),
    )


class SharedTlsConnection(_Connection):
    """PyMySQL's; where no CA is set, TLS trusts whoever answers, and all connections share what they need for it."""

    def _create_ssl_ctx(self, given: Any) -> ssl.SSLContext:
        # For nothing, PyMySQL would read all certificates that this machine trusts: 20 ms of CPU at each connection.
        return super()._create_ssl_ctx(given) if given else _trusting()  # type: ignore[misc]


@functools.cache
def _trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class ServerConnection(SharedTlsConnection):
    """PyMySQL's, for a server that is not trusted. ``section``: where the settings name it."""

    def __init__(self, section: str, **options: Any) -> None:
        self._section = section
        self._greeting = True
        super().__init__(**options)

    def connect(self, sock: Any = None) -> None:
        """Connect; while it lasts, nothing is written that gives the password away."""
        self._greeting = True
        with self.making_sense():
            super().connect(sock)
        self._greeting = False

    def query(self, sql: str | bytes, unbuffered: bool = False) -> int:
        """Run a statement: what asks gets rows, and a question to the server alone gets one."""
        with self.making_sense():
            affected = super().query(sql, unbuffered)
            text = sql.encode() if isinstance(sql, str) else sql
            result: Any = self._result  # type: ignore[attr-defined]
            if _ASKS.match(text) and not result.field_count:
                raise ValueError(f"a status and no rows for {text[:60]!r}")
            if _ASKS_ONE.match(text) and not (unbuffered or result.rows):
                raise ValueError(f"no row for {text[:60]!r}")
            if _ASKS.match(text) and not unbuffered and result.warning_count:
                self._require_all_of(result)
            return affected

    def _require_all_of(self, result: Any) -> None:
        """A MariaDB leaves tables that are locked out of information_schema, and warns: that is an error here."""
        me: Any = self
        super().query("SHOW WARNINGS")
        warnings, me._result = me._result.rows, result  # noqa: SLF001
        for _, code, message in warnings:
            if int(code) == ER.LOCK_WAIT_TIMEOUT:
                raise OperationalError(ER.LOCK_WAIT_TIMEOUT, message)

    def write_packet(self, payload: Any) -> None:
        """Send a packet; ConfigError for one that would give the password to whoever answers."""
        me: Any = self
        # First what costs nothing: rows and statements are packets too.
        told = self._greeting and me.password and bytes(payload) in {me.password, me.password + b"\0", *_KEY_REQUESTS}
        if told and not self._private():
            self._refuse()
        super().write_packet(payload)

    def write_rows(self, data: memoryview) -> None:
        """Send a packet of what a LOAD DATA LOCAL reads, as it lies: PyMySQL would copy all of it twice."""
        me: Any = self
        me._write_bytes((len(data) | me._next_seq_id << 24).to_bytes(4, "little"))  # noqa: SLF001
        me._write_bytes(data)  # noqa: SLF001
        me._next_seq_id = (me._next_seq_id + 1) % 256  # noqa: SLF001

    @contextlib.contextmanager
    def making_sense(self) -> Iterator[None]:
        """Around what reads answers: whatever PyMySQL stumbles over is a MySQLError, and ends the connection."""
        try:
            yield
        except (MySQLError, OSError, BinlogError):
            raise
        except Exception as error:
            me: Any = self
            me._force_close()  # noqa: SLF001
            if getattr(me, "_result", None) is not None:
                me._result.unbuffered_active = False  # noqa: SLF001 -- nobody reads the rest of it
            what = f"an answer that makes no sense: {type(error).__name__}: {error}"
            if isinstance(error, RuntimeError) and "LOAD_LOCAL" in str(error):
                what = "it asked for a file of this machine, which nobody had offered; it got none"
            raise NoSense(CR.CR_MALFORMED_PACKET, what) from error

    def _get_server_information(self) -> None:
        super()._get_server_information()  # type: ignore[misc]
        me: Any = self
        if self._proves() and not me.unix_socket and not me.server_capabilities & CLIENT.SSL:
            # Not every PyMySQL says so.
            raise OperationalError(CR.CR_SSL_CONNECTION_ERROR, "the server offers no TLS, which tls_ca asks for")
        if me._auth_plugin_name not in _CHALLENGES and not self._proves():  # noqa: SLF001
            # It may ask again for what it really wants, and is refused then.
            me._auth_plugin_name = "mysql_native_password"  # noqa: SLF001

    def _process_auth(self, plugin_name: bytes, *answer: Any) -> Any:
        if plugin_name == _BROKEN and not self._private():
            self._refuse()
        return super()._process_auth(plugin_name, *answer)  # type: ignore[misc]

    @property
    def _secure(self) -> bool:
        """Whether PyMySQL may send the password as it is. It asks this, and believes any TLS."""
        return self._private()

    @_secure.setter
    def _secure(self, _: bool) -> None:
        pass

    def _proves(self) -> bool:
        """Whether whoever answers has to prove that it is the server: by a certificate, or a socket of this machine."""
        me: Any = self
        return bool(me.unix_socket or (me.ssl and me.ctx.verify_mode == ssl.CERT_REQUIRED))

    def _private(self) -> bool:
        """Whether it has proved it by now."""
        me: Any = self
        return bool(me.unix_socket) or (self._proves() and isinstance(me._sock, ssl.SSLSocket))  # noqa: SLF001

    def _refuse(self) -> None:
        me: Any = self
        where, prefix = f"{me.host}:{me.port}", _prefix(self._section)
        raise ConfigError(
            f"{where} asks for the password itself, and nothing proves that it is the server of [{self._section}]: it "
            "did not get it",
            hint=f"set {prefix}tls_ca in [{self._section}]; for a MySQL that made its certificate itself, to its "
            f"data directory's ca.pem, with {prefix}tls_check_name = false",
            server=where,
        )


def _prefix(section: str) -> str:
    """Of the names of settings: schema.history has its server's beside its own."""
    return "history_" if section == "schema" else ""


def tls_context(server: ServerSettings, section: str) -> ssl.SSLContext | None:
    """TLS that checks the server's certificate, and its name unless that is unsaid; None where no CA is set.

    Raises:
        ConfigError: the file of the CA is missing or is none.
    """
    if server.tls_ca is None:
        return None
    name = f"{_prefix(section)}tls_ca of [{section}]"
    if not server.tls_ca.is_file():
        raise ConfigError(
            f"{name}: there is no file {server.tls_ca}",
            hint="correct the path in the settings",
            path=str(server.tls_ca),
        )
    try:
        context = ssl.create_default_context(cafile=str(server.tls_ca))
    except OSError as error:
        raise ConfigError(
            f"{name} cannot be used: {server.tls_ca}: {error}",
            hint="name the PEM file with the certificate of the server's CA",
            path=str(server.tls_ca),
        ) from error
    context.check_hostname = server.tls_check_name
    # MySQL's own certificates leave out what this asks for.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
