"""TLS and mutual TLS of gRPC and HTTP, with certificates made for the test."""

from __future__ import annotations

import http.client
import http.server
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from pumphouse.errors import ConfigError, PeerRefused, PumpUnavailable
from pumphouse.proto import pump_pb2, pump_pb2_grpc
from pumphouse.rpc.channel import SERVER_OPTIONS, open_channel
from pumphouse.rpc.status import abort_details, from_rpc_error
from pumphouse.rpc.tls import (
    channel_credentials,
    check_grpc_peer,
    check_http_peer,
    client_ssl_context,
    server_credentials,
    server_ssl_context,
)
from pumphouse.settings import TlsSettings
from tests.support.certs import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("other-ca"))


def settings(authority: Authority, name: str | None, allowed: tuple[str, ...] = ()) -> TlsSettings:
    if name is None:
        return TlsSettings(ca=authority.ca)
    certificate, key = authority.leaf(name)
    return TlsSettings(ca=authority.ca, cert=certificate, key=key, cert_allowed_cn=allowed)


class Checking(pump_pb2_grpc.PumpServicer):
    def __init__(self, tls: TlsSettings) -> None:
        self.tls = tls

    def WriteBinlog(self, request, context):
        try:
            check_grpc_peer(context.auth_context(), self.tls, peer=context.peer())
        except PeerRefused as error:
            code, details, metadata = abort_details(error)
            context.set_trailing_metadata(metadata)
            context.abort(code, details)
        return pump_pb2.WriteBinlogResp()


def ask(server_tls: TlsSettings, client_tls: TlsSettings) -> None:
    server = grpc.server(ThreadPoolExecutor(2), options=SERVER_OPTIONS)
    pump_pb2_grpc.add_PumpServicer_to_server(Checking(server_tls), server)
    credentials = server_credentials(server_tls)
    port = (
        server.add_secure_port("127.0.0.1:0", credentials) if credentials else server.add_insecure_port("127.0.0.1:0")
    )
    server.start()
    try:
        with open_channel(f"127.0.0.1:{port}", client_tls) as channel:
            pump_pb2_grpc.PumpStub(channel).WriteBinlog(pump_pb2.WriteBinlogReq(), timeout=3)
    except grpc.RpcError as error:
        raise from_rpc_error(error) from error
    finally:
        server.stop(0).wait()


@pytest.mark.row("W6")
def test_grpc_is_encrypted_for_clients_that_trust_the_ca(authority):
    ask(settings(authority, "pump"), settings(authority, None))


@pytest.mark.row("W6")
def test_grpc_refuses_who_does_not_speak_tls_or_trusts_another_ca(authority, other_authority):
    # Each time the settings to look at are named.
    asked = r"do both sides speak TLS\? Check the settings tls\.ca, tls\.cert and tls\.key"
    with pytest.raises(PumpUnavailable, match=asked):
        ask(settings(authority, "pump"), TlsSettings())
    with pytest.raises(PumpUnavailable, match=asked):
        ask(settings(authority, "pump"), settings(other_authority, None))
    with pytest.raises(PumpUnavailable, match=asked):
        ask(TlsSettings(), settings(authority, None))


def test_a_pump_that_is_down_is_no_question_of_tls():
    with pytest.raises(grpc.RpcError) as down, open_channel("127.0.0.1:1") as channel:
        pump_pb2_grpc.PumpStub(channel).WriteBinlog(pump_pb2.WriteBinlogReq(), timeout=3)
    found = from_rpc_error(down.value)
    assert isinstance(found, PumpUnavailable)
    assert found.hint == ""


@pytest.mark.row("W6")
def test_mutual_tls_takes_only_clients_with_an_allowed_name(authority, other_authority):
    server = settings(authority, "pump", allowed=("tidb", "drainer"))
    ask(server, settings(authority, "tidb"))
    with pytest.raises(PeerRefused, match="'stranger'"):
        ask(server, settings(authority, "stranger"))
    with pytest.raises(PumpUnavailable):
        ask(server, settings(authority, None))
    forged, key = other_authority.leaf("tidb")
    with pytest.raises(PumpUnavailable):
        ask(server, TlsSettings(ca=authority.ca, cert=forged, key=key))


def fetch(server_tls: TlsSettings, client_tls: TlsSettings) -> int:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            try:
                check_http_peer(self.connection.getpeercert(), server_tls)
            except PeerRefused:
                self.send_response(403)
            else:
                self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    class Server(http.server.HTTPServer):
        def handle_error(self, request, client_address):
            pass  # refused hand-shakes

    server = Server(("127.0.0.1", 0), Handler)
    server.socket = server_ssl_context(server_tls).wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    connection = http.client.HTTPSConnection(
        "127.0.0.1", server.server_address[1], timeout=3, context=client_ssl_context(client_tls)
    )
    try:
        connection.request("GET", "/")
        return connection.getresponse().status
    finally:
        connection.close()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.row("W6")
def test_http_takes_the_same_certificates(authority, other_authority):
    open_to_all = settings(authority, "pump")
    assert fetch(open_to_all, settings(authority, None)) == 200
    with pytest.raises(ssl.SSLError):
        fetch(open_to_all, settings(other_authority, None))
    closed = settings(authority, "pump", allowed=("tidb",))
    assert fetch(closed, settings(authority, "tidb")) == 200
    assert fetch(closed, settings(authority, "stranger")) == 403
    with pytest.raises(OSError):
        fetch(closed, settings(authority, None))


@pytest.mark.row("W6")
def test_without_a_ca_nothing_is_encrypted():
    nothing = TlsSettings()
    assert server_credentials(nothing) is None
    assert channel_credentials(nothing) is None
    assert server_ssl_context(nothing) is None
    assert client_ssl_context(nothing) is None
    check_grpc_peer({}, nothing)
    check_http_peer(None, nothing)


@pytest.mark.row("W6")
def test_half_of_the_settings_is_an_error_that_names_the_rest(authority, tmp_path):
    certificate, _ = authority.leaf("x")
    with pytest.raises(ConfigError, match=r"tls\.key is missing"):
        server_credentials(TlsSettings(ca=authority.ca, cert=certificate))
    with pytest.raises(ConfigError, match=r"tls\.cert is missing|tls\.key is missing"):
        server_credentials(TlsSettings(ca=authority.ca))
    with pytest.raises(ConfigError, match="there is no file"):
        channel_credentials(TlsSettings(ca=tmp_path / "nothing.pem"))


@pytest.mark.row("W6")
@pytest.mark.parametrize("make", [server_credentials, channel_credentials, server_ssl_context, client_ssl_context])
def test_files_that_cannot_be_used_name_their_settings(authority, tmp_path, make):
    certificate, key = authority.leaf("x")
    _, other = authority.leaf("y")
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("nothing")
    pair = r"tls\.cert \(.*x\.pem\) and tls\.key \(.*\) cannot be used together"
    for wrong in (other, garbage):
        with pytest.raises(ConfigError, match=pair):
            make(TlsSettings(ca=authority.ca, cert=certificate, key=wrong))
    with pytest.raises(ConfigError, match=r"tls\.ca \(.*garbage.pem\) cannot be used"):
        make(TlsSettings(ca=garbage, cert=certificate, key=key))
    with pytest.raises(ConfigError, match=r"tls\.key: there is no file"):
        make(TlsSettings(ca=authority.ca, cert=certificate, key=tmp_path / "gone.key"))
    assert make(TlsSettings(ca=authority.ca, cert=certificate, key=key)) is not None
