"""The door on real sockets: stock gRPC clients, TLS, and HTTP/1.1 on the same port."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import http.client
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import uvloop
from aiohttp import web

from pump_service.door.group import Refusal
from pump_service.door.http2 import frames
from pump_service.door.limits import Limits
from pump_service.door.server import Server
from pumphouse.errors import PeerRefused
from pumphouse.rpc.channel import open_channel
from pumphouse.rpc.status import abort_details
from pumphouse.rpc.tls import check_grpc_peer, client_ssl_context, server_ssl_context
from pumphouse.settings import TlsSettings
from tests.support.certs import Authority
from tests.support.doorkit import BOTH, DOWN, GROUP, UNARY, UP, Echo
from tests.support.waiting import eventually

Code = grpc.StatusCode


class Served(Echo):
    """Echo on a port, its loop in a thread of its own."""

    def __init__(self, tls: TlsSettings | None = None, limits: Limits | None = None) -> None:
        super().__init__()
        self.tls, self.limits = tls or TlsSettings(), limits or Limits()
        self.forever = False
        self.yielded = 0
        started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._main(started)))
        self._thread.start()
        started.result(60)

    async def _main(self, started: concurrent.futures.Future[None]) -> None:
        self.loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        listening = socket.create_server(("127.0.0.1", 0))
        self.addr = f"127.0.0.1:{listening.getsockname()[1]}"
        self.server = Server(
            listening, tls=server_ssl_context(self.tls), limits=self.limits,
            authorize=self._authorize if self.tls.cert_allowed_cn else None,
        )  # fmt: skip
        self.register(self.server)
        app = web.Application()
        app.router.add_get("/hello", self._hello)
        runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await runner.setup()
        self.server.serve_http1(runner.server)
        await self.server.start()
        started.set_result(None)
        await self._over.wait()
        await self.server.stop(0)
        await runner.cleanup()

    def _authorize(self, names: dict[str, list[bytes]], peer: str) -> Refusal | None:
        try:
            check_grpc_peer(names, self.tls, peer=peer)
        except PeerRefused as error:
            return Refusal(*abort_details(error))
        return None

    async def _hello(self, request: web.Request) -> web.Response:
        return web.Response(text=f"hello over {request.version.major}.{request.version.minor}")

    async def down(self, request: bytes, context: Any) -> AsyncIterator[Any]:
        if not self.forever:
            async for response in super().down(request, context):
                yield response
            return
        try:
            while True:
                self.yielded += 1
                yield request
        finally:
            self.cancelled += 1

    def call(self, work: Callable[[], Any]) -> Any:
        """Run on its loop."""

        async def run() -> Any:
            found = work()
            return await found if asyncio.iscoroutine(found) else found

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(60)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self._over.set)
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


@contextlib.contextmanager
def channel(served: Served, tls: TlsSettings | None = None) -> Iterator[grpc.Channel]:
    with open_channel(served.addr, tls) as opened:
        yield opened


def test_stock_clients_make_calls_of_all_kinds(served: Served) -> None:
    with channel(served) as c:
        assert c.unary_unary(UNARY)(b"one", timeout=60) == b"one"
        assert c.unary_unary(GROUP)(b"two") == b"two"
        assert list(c.unary_stream(DOWN)(b"x", timeout=60)) == [b"x"] * 4
        assert c.stream_unary(UP)(iter([b"a", b"b"]), timeout=60) == b"a|b"
        assert list(c.stream_stream(BOTH)(iter([b"a", b"", b"c"]))) == [b"a", b"", b"c"]


def test_many_calls_at_once_on_many_streams_and_connections(served: Served) -> None:
    with contextlib.ExitStack() as stack:
        channels = [stack.enter_context(channel(served)) for _ in range(3)]
        for path in (GROUP, UNARY):
            futures = [channels[n % 3].unary_unary(path).future(b"%d" % n, timeout=60 + n / 1000) for n in range(600)]
            assert [each.result() for each in futures] == [b"%d" % n for n in range(600)]
        streams = [channels[0].unary_stream(DOWN)(b"%d" % n, timeout=60) for n in range(64)]
        assert [list(each) for each in streams] == [[b"%d" % n] * 4 for n in range(64)]


@pytest.mark.parametrize("path", [GROUP, UNARY])
def test_big_messages_pass_both_ways(served: Served, path: str) -> None:
    big = bytes(range(256)) * (20 << 12)  # 20 MiB
    with channel(served) as c:
        assert c.unary_unary(path)(big, timeout=60) == big
        assert (
            c.unary_unary(path, request_serializer=None)(big[:70_000], compression=grpc.Compression.Gzip)
            == big[:70_000]
        )


def test_deadlines_and_cancellation_reach_the_handler(served: Served) -> None:
    served.hold = served.call(asyncio.Event)
    with channel(served) as c:
        with pytest.raises(grpc.RpcError) as refused:
            c.unary_unary(UNARY)(b"x", timeout=0.2)
        assert refused.value.code() is Code.DEADLINE_EXCEEDED
        call = c.unary_unary(UNARY).future(b"x", timeout=30)
        eventually(lambda: len(served.contexts) == 2)
        assert 20 < served.call(served.contexts[1].time_remaining) < 31
        call.cancel()
        eventually(lambda: served.cancelled == 2)
        served.forever = True
        stream = c.unary_stream(DOWN)(b"x", timeout=60)
        next(stream)
        stream.cancel()
        eventually(lambda: served.cancelled == 3)


def test_a_client_that_does_not_read_holds_its_stream_and_not_the_server(served: Served) -> None:
    served.forever = True
    message = bytes(100_000)
    # A client that probes opens its window by what it measures, to tens of megabytes on a busy machine.
    fixed = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 20)]
    with grpc.insecure_channel(served.addr, fixed) as c:
        stream = c.unary_stream(DOWN)(message, timeout=60)
        next(stream)

        def still() -> bool:
            before = served.yielded
            time.sleep(0.3)
            return served.yielded == before

        eventually(still, within_s=60)
        assert served.yielded < 100  # 10 MB: the client's window, and what the sockets hold
        assert c.unary_unary(GROUP)(b"others go on", timeout=60) == b"others go on"
        for _ in range(200):
            next(stream)
        stream.cancel()


def test_a_refusal_carries_text_and_details(served: Served) -> None:
    details = (("grpc-status-details-bin", b"\0\1\2"), ("note", "hi"))
    served.group = lambda requests, answer: answer([Refusal(Code.ABORTED, "100 % nö\n", details)] * len(requests))  # type: ignore[method-assign]
    served.call(lambda: served.register(served.server))
    with channel(served) as c, pytest.raises(grpc.RpcError) as refused:
        c.unary_unary(GROUP)(b"x")
    assert refused.value.code() is Code.ABORTED
    assert refused.value.details() == "100 % nö\n"
    assert tuple(refused.value.trailing_metadata()) == details
    with channel(served) as c, pytest.raises(grpc.RpcError) as refused:
        c.unary_unary("/no/where")(b"x")
    assert refused.value.code() is Code.UNIMPLEMENTED


def test_http1_is_served_on_the_same_port_however_its_bytes_come(served: Served) -> None:
    host, port = served.addr.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    for _ in range(2):  # one connection for both
        connection.request("GET", "/hello")
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"hello over 1.1")
    connection.close()
    with socket.create_connection((host, int(port)), timeout=60) as raw:
        for byte in b"PRI":
            raw.send(bytes([byte]))
            time.sleep(0.02)
        raw.sendall(b"VATE /hello HTTP/1.1\r\nhost: x\r\n\r\n")  # no method of ours, though it begins as the preface
        assert raw.recv(1000) == b""
    with socket.create_connection((host, int(port)), timeout=60) as raw:
        for byte in b"GET /hel":
            raw.send(bytes([byte]))
        raw.sendall(b"lo HTTP/1.1\r\nhost: x\r\n\r\n")
        assert raw.recv(1000).startswith(b"HTTP/1.1 200")
    with channel(served) as c:
        assert c.unary_unary(GROUP)(b"beside it") == b"beside it"


def test_connections_that_say_nothing_are_ended() -> None:
    made = Served(limits=Limits(sniff_s=0.2, keepalive_s=0.3, keepalive_timeout_s=0.3))
    try:
        host, port = made.addr.split(":")
        with socket.create_connection((host, int(port)), timeout=60) as silent:
            assert silent.recv(1) == b""
        with socket.create_connection((host, int(port)), timeout=60) as gone:
            gone.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            data = b""
            while chunk := gone.recv(4096):
                data += chunk
            assert b"keepaliv" in data  # asked, and given up
        with channel(made) as c:
            assert c.unary_unary(GROUP)(b"x") == b"x"
            time.sleep(2.5)
            assert c.unary_unary(GROUP)(b"an idle client that answers stays") == b"an idle client that answers stays"
    finally:
        made.close()


def test_a_server_that_stops_lets_calls_end_and_sends_clients_elsewhere(served: Served) -> None:
    served.hold = served.call(asyncio.Event)
    with channel(served) as c:
        call = c.unary_unary(UNARY).future(b"open", timeout=60)
        eventually(lambda: served.contexts)
        stopping = asyncio.run_coroutine_threadsafe(served.server.stop(10), served.loop)
        time.sleep(0.2)
        with pytest.raises(grpc.RpcError) as refused:
            c.unary_unary(GROUP)(b"new", timeout=2)
        assert refused.value.code() in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED)
        assert not call.done()
        served.call(lambda: served.hold.set())
        assert call.result() == b"open"
        stopping.result(60)


# ---- TLS


def test_tls_carries_both_protocols_by_alpn(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    made = Served(authority.settings("server"))
    client = TlsSettings(ca=authority.ca)
    try:
        with channel(made, client) as c:
            assert c.unary_unary(UNARY)(bytes(300_000), timeout=60) == bytes(300_000)
            assert list(c.unary_stream(DOWN)(b"x" * 50_000, timeout=60)) == [b"x" * 50_000] * 4
        host, port = made.addr.split(":")
        context = client_ssl_context(client)
        assert context is not None
        web_client = http.client.HTTPSConnection(host, int(port), context=context, timeout=60)
        web_client.request("GET", "/hello")
        assert web_client.getresponse().read() == b"hello over 1.1"
        web_client.close()
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection((host, int(port))) as raw,
            context.wrap_socket(raw, server_hostname=host) as wrapped,
        ):
            assert wrapped.selected_alpn_protocol() == "h2"  # gRPC's clients offer no other
        # But for those of programs whose TLS settings name both, as TiDB's do: they speak HTTP/2 all the same.
        context.set_alpn_protocols(["h2", "http/1.1"])
        with (
            socket.create_connection((host, int(port)), timeout=60) as raw,
            context.wrap_socket(raw, server_hostname=host) as wrapped,
        ):
            wrapped.sendall(frames.PREFACE + frames.settings({}))
            assert wrapped.recv(9)[3] == 4  # SETTINGS
        with channel(made) as c, pytest.raises(grpc.RpcError):
            c.unary_unary(UNARY)(b"plain text", timeout=2)
    finally:
        made.close()


def test_mutual_tls_lets_allowed_names_in_and_tells_the_others_so(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    made = Served(authority.settings("server", allowed=("tidb",)))
    try:
        with channel(made, authority.settings("tidb")) as c:
            assert c.unary_unary(UNARY)(b"x", timeout=60) == b"x"
            assert made.contexts[0].auth_context()["x509_common_name"] == [b"tidb"]
            assert b"localhost" in made.contexts[0].auth_context()["x509_subject_alternative_name"]
        for path in (GROUP, UNARY):
            with channel(made, authority.settings("stranger")) as c, pytest.raises(grpc.RpcError) as refused:
                c.unary_unary(path)(b"x", timeout=60)
            assert refused.value.code() is Code.PERMISSION_DENIED
            assert "stranger" in refused.value.details()
        with channel(made, TlsSettings(ca=authority.ca)) as c, pytest.raises(grpc.RpcError) as refused:
            c.unary_unary(UNARY)(b"no certificate", timeout=3)
        assert refused.value.code() in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED)
    finally:
        made.close()
