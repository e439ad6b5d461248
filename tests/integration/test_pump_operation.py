"""What a running Pump tells of itself: labels in its heartbeat, metrics to a Pushgateway; a socket beside the port."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from pumphouse.client.pump_client import PumpClient
from pumphouse.client.resolver import PENDING, Outcome, ResolverServer
from pumphouse.errors import BadBinlog
from pumphouse.proto.pump_pb2 import WriteBinlogReq
from pumphouse.proto.pump_pb2_grpc import PumpStub
from pumphouse.registry.file import FileCluster
from pumphouse.rpc.channel import open_channel
from pumphouse.rpc.tls import http_connection
from pumphouse.settings import TlsSettings
from tests.stack.ports import free_port
from tests.support.pumpserver import PumpServer, commit, prewrite, rollback
from tests.support.waiting import eventually


class Gateway:
    """A Pushgateway, as far as a client sees it."""

    def __init__(self, port: int = 0) -> None:
        self.pushed: list[tuple[str, str, str]] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.pushed.append((self.command, self.path, body.decode()))
                self.send_response(202)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.addr = f"127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    made = Gateway()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def pump(tmp_path_factory: pytest.TempPathFactory, gateway: Gateway) -> Iterator[PumpServer]:
    directory = tmp_path_factory.mktemp("pump")
    with PumpServer(
        directory,
        FileCluster(directory / "cluster"),
        labels="zone=a,rack=7",
        metrics_push_addr=gateway.addr,
        metrics_push_interval_s=0.1,
        socket=f"unix://{directory}/pump.sock",
        max_message_bytes=100_000,
    ) as server:
        yield server


@pytest.mark.row("P10", "C2")
def test_heartbeats_carry_the_labels_and_a_score(pump: PumpServer) -> None:
    assert pump.registered().label == {"zone": "a", "rack": "7"}
    assert 1 <= pump.registered().score <= 100
    before = pump.registered().update_ts
    eventually(lambda: pump.registered().update_ts > before)
    assert pump.registered().label == {"zone": "a", "rack": "7"}


@pytest.mark.row("P14")
def test_metrics_are_pushed_by_interval_under_the_go_pumps_job(pump: PumpServer, gateway: Gateway) -> None:
    pump.transaction()
    seen = len(gateway.pushed)
    eventually(lambda: len(gateway.pushed) > seen + 2)
    method, path, body = gateway.pushed[-1]
    assert (method, path) == ("POST", "/metrics/job/binlog/instance/pump-1")
    assert "binlog_pump_storage_max_commit_ts" in body
    assert 'binlog_pump_rpc_duration_seconds_count{label="succ",method="WriteBinlog"}' in body


@pytest.mark.row("P14")
def test_a_gateway_that_goes_away_is_logged_and_the_pump_goes_on(tmp_path: Path) -> None:
    gateway = Gateway()
    pump = PumpServer(
        tmp_path, FileCluster(tmp_path / "cluster"), metrics_push_addr=gateway.addr, metrics_push_interval_s=0.05
    )
    with pump.start():
        eventually(lambda: gateway.pushed)
        gateway.stop()
        eventually(lambda: "metrics_push_failed" in pump.log())
        pump.transaction()
        back = Gateway(int(gateway.addr.rpartition(":")[2]))
        try:
            eventually(lambda: back.pushed)
            eventually(lambda: "metrics_pushed_again" in pump.log())
            assert "binlog_pump_push_failures_total" in back.pushed[-1][2]
        finally:
            back.stop()
        assert pump.log().count("metrics_push_failed") == 1


@pytest.mark.row("O3")
def test_grpc_is_served_on_the_unix_socket_too(pump: PumpServer) -> None:
    eventually(lambda: pump.status().unresolved == 0, what="the commits before are in the index")
    with open_channel(f"unix:{pump.directory}/pump.sock") as channel:
        start_ts = pump.cluster.tso()
        PumpStub(channel).WriteBinlog(WriteBinlogReq(clusterID=pump.cluster_id, payload=prewrite(start_ts)), timeout=10)
    eventually(lambda: pump.status().unresolved == 1)
    pump.write(rollback(start_ts))


@pytest.mark.row("W4", "C1")
@pytest.mark.parametrize(
    ("transport", "options"), [("builtin", {}), ("grpcio", {}), ("builtin", {"advertise_addr": "::1:PORT"})]
)
def test_a_pump_on_ipv6_registers_what_clients_can_dial(tmp_path: Path, transport: str, options: dict) -> None:
    port = free_port()
    options = {name: value.replace("PORT", str(port)) for name, value in options.items()}
    server = PumpServer(tmp_path, FileCluster(tmp_path / "cluster"), transport=transport, **options)
    server.addr = f"[::1]:{port}"
    with server:
        assert server.registered().host == server.addr == f"[::1]:{port}"
        asked: list[int] = []

        def answer(start_ts: int, _key: bytes, _decide: bool) -> Outcome:
            asked.append(start_ts)
            return PENDING

        with (
            PumpClient(server.cluster) as client,
            ResolverServer(server.cluster, "app", [b"app/"], answer, addr="[::1]:0") as resolver,
        ):
            assert resolver.host.startswith("[::1]:")
            start_ts = server.cluster.tso()
            client.write_prewrite(prewrite(start_ts), start_ts)
            assert eventually(lambda: asked) == [start_ts]
            client.write_rollback(rollback(start_ts), start_ts)
        with closing(http_connection(server.http, TlsSettings(), 5.0)) as connection:
            connection.request("GET", "/status")
            assert connection.getresponse().status == 200


@pytest.mark.row("O3")
def test_a_request_over_the_limit_is_refused_as_there(pump: PumpServer) -> None:
    start_ts = pump.cluster.tso()
    pump.write(prewrite(start_ts, bytes(90_000)))
    pump.write(rollback(start_ts))
    with pytest.raises(grpc.RpcError) as error:
        pump.write(prewrite(pump.cluster.tso(), bytes(110_000)))
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "received message larger than max" in (error.value.details() or "")


@pytest.mark.row("C3", "P17")
def test_batches_of_the_client_reach_the_stream_also_past_a_small_limit_on_requests(pump: PumpServer) -> None:
    cluster = pump.cluster
    with PumpClient(cluster, write_timeout_s=10) as client:
        first = cluster.tso()
        stamps = [cluster.tso() for _ in range(300)]
        payloads = [(ts, prewrite(ts, bytes(1000))) for ts in stamps]
        assert client.write_prewrites(payloads[:60]) == [None] * 60  # one request
        too_large = (cluster.tso(), prewrite(1, bytes(110_000)))
        outcomes = client.write_prewrites([*payloads[60:], too_large])  # more than the Pump takes at once
        assert outcomes[:-1] == [None] * 240
        assert isinstance(outcomes[-1], BadBinlog)
        ends = [cluster.tso() for _ in stamps]
        client.write_commits([(ts, commit(ts, end)) for ts, end in zip(stamps, ends, strict=True)])
        assert client.flush(60)
    pulled = [binlog.start_ts for binlog in pump.pull_until(ends[-1], after=first)]
    assert [ts for ts in pulled if ts in set(stamps)] == stamps


@pytest.mark.row("P14")
def test_the_go_pumps_names_are_there(pump: PumpServer, gateway: Gateway) -> None:
    pump.gc()
    seen = len(gateway.pushed)
    eventually(lambda: len(gateway.pushed) > seen + 1)
    names = {line.split("{")[0].split(" ")[0] for line in gateway.pushed[-1][2].splitlines() if line[:1] != "#"}
    prefix = "binlog_pump_storage_"
    for name in ("gc_ts", "done_gc_ts", "deleted_kv_total", "storage_size_bytes", "max_commit_ts", "query_tikv_count",
                 "error_count"):  # fmt: skip
        assert prefix + name in names
    assert "binlog_pump_loss_binlog_count" in names
    assert "binlog_pump_rpc_duration_seconds_bucket" in names
