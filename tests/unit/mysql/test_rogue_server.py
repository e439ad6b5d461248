"""Whoever answers at a server's address: it gets no password in clear text and no file, and no bare Python error."""

from __future__ import annotations

import random
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import SecretStr
from pymysql.err import MySQLError

from pumphouse.diff.compare import compare
from pumphouse.dump.source import execute, session
from pumphouse.errors import BinlogError, ConfigError, HistoryUnavailable, SourceFailed, TargetUnavailable
from pumphouse.loader.target import TargetConnection
from pumphouse.mysql.connection import ServerConnection
from pumphouse.mysql.dsn import Dsn
from pumphouse.schema.history import open_history
from pumphouse.settings import SchemaSettings, SourceSettings, TargetSettings
from tests.support.certs import Authority
from tests.support.rogue import OK, Rogue, text_rows

pytestmark = pytest.mark.row("W6")

PASSWORD = "hünter2"


def into_target(port: int) -> None:
    with TargetConnection.open(
        TargetSettings(host="127.0.0.1", port=port, user="root", password=SecretStr(PASSWORD)), timeout_s=3
    ) as connection:
        connection.query("SELECT number FROM `p`.`fence`")
        list(connection.stream("SELECT 1 FROM `p`.`fence`"))
        connection.load_local("LOAD DATA LOCAL INFILE 'pumphouse' INTO TABLE t", [b"1\n"])


def into_source(port: int) -> None:
    with session(SourceSettings(host="127.0.0.1", port=port, user="root", password=SecretStr(PASSWORD))) as connection:
        execute(connection, "SELECT VERSION()")


def into_history(port: int) -> None:
    settings = SchemaSettings(history=f"mysql://root@127.0.0.1:{port}/d.t", history_password=SecretStr(PASSWORD))
    source = open_history(settings)
    assert source is not None
    source.job(1)


def into_diff(port: int) -> None:
    dsn = Dsn(port=port, password=PASSWORD)
    compare(dsn, dsn)


DOORS: dict[Callable[[int], None], type[Exception]] = {
    into_target: TargetUnavailable,
    into_source: SourceFailed,
    into_history: HistoryUnavailable,
    into_diff: MySQLError,
}
doors = pytest.mark.parametrize("door", DOORS)
SALT = b"12345678901234567890\x00"


@doors
@pytest.mark.parametrize(
    "asks",
    [
        [b"\xfemysql_clear_password\x00"],
        [b"\xfesha256_password\x00" + SALT],
        [b"\xfecaching_sha2_password\x00" + SALT, b"\x01\x04"],
        [b"\xfemysql_old_password\x00" + SALT],
        [b"\xfedialog\x00\x02Password: "],
    ],
    ids=lambda asks: asks[0].split(b"\x00")[0][1:].decode(),
)
def test_no_password_goes_to_whoever_asks_for_it(door: Callable[[int], None], asks: list[bytes]) -> None:
    rogue = Rogue(asks=asks)
    with rogue.serving() as port, pytest.raises(ConfigError, match=r"asks for the password itself.*tls_ca"):
        door(port)
    assert PASSWORD.encode() not in b"".join(rogue.received)
    assert not {b"\x01", b"\x02"} & set(rogue.received), "nor is it encrypted with a key that a stranger gives"


@pytest.mark.parametrize("plugin", [b"sha256_password", b"caching_sha2_password"])
def test_tls_with_nobodys_certificate_proves_nothing(plugin: bytes, tmp_path: Path) -> None:
    rogue = Rogue(asks=[b"\x01\x04"], plugin=plugin, certificate=Authority(tmp_path / "ca").leaf("rogue"))
    with rogue.serving() as port, pytest.raises(BinlogError):
        into_target(port)
    assert PASSWORD.encode() not in b"".join(rogue.received)


def test_a_certificate_of_our_ca_proves_it(tmp_path: Path) -> None:
    """The rogue has one here: so it is the server, and gets what the plugin asks for."""
    authority = Authority(tmp_path / "ca")
    server = Rogue(asks=[b"\xfemysql_clear_password\x00"], certificate=authority.leaf("server"))
    history = {"history_password": SecretStr(PASSWORD), "history_tls_ca": authority.ca}
    with server.serving() as port, pytest.raises(HistoryUnavailable):
        source = open_history(
            SchemaSettings.model_validate({"history": f"mysql://root@127.0.0.1:{port}/d.t", **history})
        )
        assert source is not None
        source.job(1)
    assert PASSWORD.encode() + b"\x00" in server.received


def test_a_server_without_tls_is_not_taken_where_tls_is_asked_for(tmp_path: Path) -> None:
    rogue = Rogue()
    history = SchemaSettings(history="", history_password=SecretStr(PASSWORD), history_tls_ca=Authority(tmp_path).ca)
    with rogue.serving() as port, pytest.raises(HistoryUnavailable, match=r"SSL|TLS"):
        source = open_history(history.model_copy(update={"history": f"mysql://root@127.0.0.1:{port}/d.t"}))
        assert source is not None
        source.job(1)
    assert rogue.received == []


@doors
@pytest.mark.parametrize("before", range(2, 6))
def test_a_file_is_given_to_nobody(door: Callable[[int], None], before: int, tmp_path: Path) -> None:
    """At each statement in turn, also at the one that does send rows."""
    secret = tmp_path / "secret"
    secret.write_text("top secret\n")
    asked = 0

    def answer(statement: bytes) -> list[bytes]:
        nonlocal asked
        asked += 1
        if asked >= before:
            return [b"\xfb" + str(secret).encode()]
        return polite(statement)

    rogue = Rogue(answer=answer)
    with rogue.serving() as port, pytest.raises((BinlogError, MySQLError)) as refused:
        door(port)
    assert isinstance(refused.value, (DOORS[door], BinlogError))
    assert b"top secret" not in b"".join(rogue.received)


def polite(statement: bytes) -> list[bytes]:
    """As a server answers that has nothing to hide."""
    if statement.startswith(b"SHOW SESSION VARIABLES"):
        return text_rows(("log_bin", "OFF"))
    if statement.startswith(b"SELECT CONNECTION_ID()"):
        return text_rows(("7", "10.11.14-MariaDB"))
    return text_rows(("1",)) if statement.startswith((b"SELECT", b"SHOW")) else [OK]


@doors
@pytest.mark.parametrize("seed", range(25))
def test_an_answer_that_makes_no_sense_is_an_error_of_ours(door: Callable[[int], None], seed: int) -> None:
    chance = random.Random(seed)
    senseless: list[Callable[[bytes], list[bytes]]] = [
        lambda _: [OK],
        lambda _: [b""],
        lambda _: [bytes(chance.randrange(256) for _ in range(chance.randrange(1, 40)))],
        lambda _: [bytes([chance.choice([0, 1, 0xFE, 0xFF, 0xFC, 0xFB])]) + bytes(chance.randrange(1, 40))],
        lambda _: text_rows(("x", "y", "z")),
        lambda _: [b"\x02", *text_rows(("a",))[1:]],
        lambda _: [*text_rows(("a", "b"))[:-1], b"\x05a"],
    ]
    spoilt = chance.choice(senseless)
    polite_ones = chance.randrange(2, 5)

    def answer(statement: bytes) -> list[bytes]:
        nonlocal polite_ones
        polite_ones -= 1
        rogue.goes = polite_ones < 0
        return spoilt(statement) if rogue.goes else polite(statement)

    rogue = Rogue(answer=answer)
    with rogue.serving() as port, pytest.raises((BinlogError, MySQLError)):
        door(port)


def test_where_nothing_is_verified_no_connection_reads_what_the_machine_trusts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: pytest.fail("20 ms at each connection"))
    one, other = (ServerConnection("target", host="127.0.0.1", defer_connect=True) for _ in range(2))
    assert one.ctx is other.ctx
    assert (one.ctx.verify_mode, one.ctx.check_hostname) == (ssl.CERT_NONE, False)


def test_one_that_takes_connections_and_says_nothing_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever time its answers to statements may take."""
    monkeypatch.setattr("pumphouse.mysql.connection._LOGIN_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(SourceFailed, match="does not answer"):
        into_source(listener.getsockname()[1])
