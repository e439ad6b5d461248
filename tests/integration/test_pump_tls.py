"""TLS and mutual TLS on both ports of a Pump (row W6)."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import grpc
import pytest

from pumphouse.client.admin import ask_state, trigger_gc
from pumphouse.client.pump_client import PumpClient
from pumphouse.client.resolver import PENDING, Outcome, ResolverServer, committed
from pumphouse.errors import PumpError, PumpUnavailable
from pumphouse.model.node import NodeState
from pumphouse.model.tso import Tso
from pumphouse.proto import pumphouse_pb2 as v1
from pumphouse.proto.pump_pb2 import WriteBinlogReq
from pumphouse.proto.pump_pb2_grpc import PumpStub
from pumphouse.proto.pumphouse_pb2_grpc import PumpBatchStub
from pumphouse.registry.file import FileCluster
from pumphouse.rpc.channel import open_channel
from pumphouse.rpc.tls import client_ssl_context
from pumphouse.settings import TlsSettings
from tests.support.certs import Authority
from tests.support.pumpserver import PumpServer, prewrite

pytestmark = pytest.mark.row("W6")


@pytest.fixture(scope="module", params=["grpcio", "builtin"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def directory(transport: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def authority(directory: Path) -> Authority:
    return Authority(directory / "ca")


@pytest.fixture(scope="module")
def cluster(directory: Path) -> FileCluster:
    return FileCluster(directory / "cluster")


@pytest.fixture(scope="module")
def mutual(transport: str, directory: Path, cluster: FileCluster, authority: Authority) -> Iterator[PumpServer]:
    server = authority.settings("pump", allowed=("tidb", "pump"))
    client = authority.settings("tidb")
    with PumpServer(directory, cluster, tls=server, client_tls=client, transport=transport) as pump:
        yield pump


def probe(pump: PumpServer, tls: TlsSettings | None) -> None:
    with open_channel(pump.addr, tls) as channel:
        PumpStub(channel).WriteBinlog(WriteBinlogReq(clusterID=pump.cluster_id), timeout=3)


def get(pump: PumpServer, path: str, tls: TlsSettings, method: str = "GET") -> str:
    with urlopen(
        Request(f"https://{pump.http}{path}", method=method), context=client_ssl_context(tls), timeout=5
    ) as page:
        return page.read().decode()


def page_as_a_browser_gets_it(addr: str, path: str, tls: TlsSettings) -> tuple[str | None, bytes]:
    """The protocol taken of the two that curl, Prometheus and browsers offer, and the answer over HTTP/1.1."""
    context = client_ssl_context(tls)
    assert context is not None
    context.set_alpn_protocols(["h2", "http/1.1"])
    host, port = addr.rsplit(":", 1)
    with (
        socket.create_connection((host, int(port)), timeout=5) as raw,
        context.wrap_socket(raw, server_hostname=host) as wrapped,
    ):
        wrapped.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        return wrapped.selected_alpn_protocol(), b"".join(iter(lambda: wrapped.recv(65536), b""))


@pytest.mark.parametrize("allowed", [(), ("tidb",)], ids=["tls", "mutual tls"])
def test_who_offers_http2_and_http1_gets_the_pages_of_the_pumps_one_port(
    tmp_path: Path, authority: Authority, allowed: tuple[str, ...]
) -> None:
    client = authority.settings("tidb") if allowed else TlsSettings(ca=authority.ca)
    server = authority.settings("pump", allowed=allowed)
    cluster = FileCluster(tmp_path / "cluster")
    with PumpServer(tmp_path, cluster, tls=server, client_tls=client, transport="builtin") as pump:
        for path, says in (("/metrics", b"binlog_pump"), ("/status", b"pump-1")):
            protocol, answer = page_as_a_browser_gets_it(pump.addr, path, client)
            assert protocol == "http/1.1"
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert says in answer
        pump.transaction(b"gRPC goes on")


def test_with_tls_alone_a_client_needs_the_ca_and_no_certificate(tmp_path: Path, authority: Authority) -> None:
    cluster = FileCluster(tmp_path / "cluster")
    client = TlsSettings(ca=authority.ca)
    with PumpServer(tmp_path, cluster, tls=authority.settings("pump"), client_tls=client) as pump:
        _, commit_ts = pump.transaction(b"secret")
        assert pump.pull_until(commit_ts)[0].prewrite_value == b"secret"
        assert pump.pull_batches(until=commit_ts)
        assert '"pump-1"' in get(pump, "/status", client)
        with pytest.raises(grpc.RpcError):
            probe(pump, None)  # plain text
        with pytest.raises(grpc.RpcError):
            probe(pump, TlsSettings(ca=Authority(tmp_path / "other").ca))
        with pytest.raises((URLError, ConnectionError)):
            urlopen(f"http://{pump.http}/status", timeout=5)


def test_a_pump_with_the_key_of_another_certificate_ends_with_2_and_names_the_settings(
    tmp_path: Path, authority: Authority, transport: str
) -> None:
    mixed = authority.settings("pump").model_copy(update={"key": authority.settings("other").key})
    pump = PumpServer(tmp_path, FileCluster(tmp_path / "cluster"), tls=mixed, transport=transport)
    code, said = pump.refuse_to_start()
    assert code == 2
    (line,) = said.splitlines()
    assert line.startswith("pumphouse: tls.cert (")
    assert "and tls.key (" in line


def test_mutual_tls_lets_allowed_names_in_on_both_ports(mutual: PumpServer, authority: Authority) -> None:
    start_ts, commit_ts = mutual.transaction(b"secret")
    assert mutual.pull_until(commit_ts, after=start_ts)[0].prewrite_value == b"secret"
    assert mutual.status().state == "online"
    assert "binlog_pump" in get(mutual, "/metrics", authority.settings("tidb"))


def test_mutual_tls_refuses_a_client_without_certificate_on_both_ports(
    mutual: PumpServer, authority: Authority
) -> None:
    bare = TlsSettings(ca=authority.ca)
    with pytest.raises(grpc.RpcError):
        probe(mutual, bare)
    with pytest.raises((URLError, ssl.SSLError, ConnectionError)):
        get(mutual, "/metrics", bare)


@pytest.mark.parametrize("trusted", [False, True], ids=["plain text", "another CA"])
def test_a_state_asked_for_without_the_right_tls_names_the_settings(
    tmp_path: Path, mutual: PumpServer, cluster: FileCluster, trusted: bool
) -> None:
    tls = Authority(tmp_path / "other").settings("tidb") if trusted else TlsSettings()
    with pytest.raises(PumpUnavailable, match=r"do both sides speak TLS\? Check the settings tls\.ca"):
        ask_state(cluster, "pump-1", "pause", tls=tls)
    assert mutual.registered().state is NodeState.ONLINE


def test_mutual_tls_refuses_another_ca_on_both_ports(tmp_path: Path, mutual: PumpServer, authority: Authority) -> None:
    foreign = Authority(tmp_path / "foreign").settings("tidb")
    mixed = TlsSettings(ca=authority.ca, cert=foreign.cert, key=foreign.key)
    with pytest.raises(grpc.RpcError):
        probe(mutual, mixed)
    with pytest.raises((URLError, ssl.SSLError, ConnectionError)):
        get(mutual, "/metrics", mixed)


def test_a_name_that_is_not_allowed_is_refused_on_every_call_of_both_ports(
    mutual: PumpServer, authority: Authority
) -> None:
    stranger = authority.settings("stranger")
    with open_channel(mutual.addr, stranger) as channel:
        unary, batch = PumpStub(channel), PumpBatchStub(channel)
        calls = [
            lambda: unary.WriteBinlog(WriteBinlogReq(clusterID=mutual.cluster_id, payload=prewrite(1)), timeout=5),
            lambda: next(batch.PullBatches(v1.PullBatchesRequest(cluster_id=mutual.cluster_id), timeout=5)),
            lambda: next(batch.WriteBinlogs(iter([v1.WriteBinlogsRequest(cluster_id=mutual.cluster_id)]), timeout=5)),
            lambda: batch.Status(v1.StatusRequest(cluster_id=mutual.cluster_id), timeout=5),
        ]
        for one in calls:
            with pytest.raises(grpc.RpcError) as refused:
                one()
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert "stranger" in refused.value.details()
    for path, method in (("/metrics", "GET"), ("/status", "GET"), ("/state/pump-1/close", "PUT"), ("/nothing", "GET")):
        with pytest.raises(HTTPError) as error:
            get(mutual, path, stranger, method)
        error.value.close()
        assert error.value.code == 403
    assert mutual.registered().state is NodeState.ONLINE
    assert mutual.status().unresolved == 0


def test_the_client_the_resolver_and_the_operators_calls_work_over_mutual_tls(
    mutual: PumpServer, cluster: FileCluster, authority: Authority
) -> None:
    tidb = authority.settings("tidb")
    resolver = authority.settings("resolver", allowed=("pump",))
    outcomes: dict[int, Tso] = {}

    def answer(start_ts: Tso, key: bytes, decide: bool) -> Outcome:
        return committed(outcomes[start_ts]) if start_ts in outcomes else PENDING

    with (
        ResolverServer(cluster, "app", [b"app/"], answer, tls=resolver),
        PumpClient(cluster, tls=tidb) as client,
    ):
        start_ts = cluster.tso()
        client.write_prewrite(prewrite(start_ts, b"rows"), start_ts)
        outcomes[start_ts] = cluster.tso()
        (found,) = mutual.pull_until(outcomes[start_ts], after=start_ts)
        assert found.prewrite_value == b"rows"
    mutual.consumer(0)
    (report,) = trigger_gc(cluster, tls=tidb)
    assert report.started
    with pytest.raises(PumpError, match="invalide action"):
        ask_state(cluster, "pump-1", "explode", tls=tidb)  # type: ignore[arg-type]
