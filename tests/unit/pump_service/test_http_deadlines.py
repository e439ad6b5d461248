"""HTTP/1 on a port of its own: who sends no whole request is not waited for, and the rest is served (row P12)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from pump_service.door.limits import Limits
from pump_service.process import descriptors, listen
from pumphouse.settings import TlsSettings
from tests.support.certs import Authority

pytestmark = pytest.mark.row("P12")
Talk = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


def served(limits: Limits, test: Callable[[Talk], Awaitable[None]], tls: TlsSettings | None = None) -> None:
    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    async def run() -> None:
        app = web.Application()
        app.router.add_get("/hello", hello)
        listening = socket.create_server(("127.0.0.1", 0))
        port = await listen.serve_http(app, listening, tls or TlsSettings(), limits)
        try:
            await test(lambda: asyncio.open_connection(*listening.getsockname()))
        finally:
            await port.cleanup()
            listening.close()

    asyncio.run(asyncio.wait_for(run(), 30))


@pytest.mark.parametrize("sent", [b"", b"GET /hello HTTP/1.1\r\nHost: x\r\nX-a: "])
def test_a_request_that_never_comes_to_its_end_ends_its_connection(sent: bytes) -> None:
    async def test(talk: Talk) -> None:
        reader, writer = await talk()
        writer.write(sent)
        slow = asyncio.create_task(reader.read())
        while not slow.done():
            writer.write(b"x" if sent else b"")  # each byte is no new beginning
            await asyncio.sleep(0.05)
        assert await slow == b""
        writer.close()

    served(Limits(http1_request_s=0.5), test)


def test_a_handshake_that_never_begins_ends_its_connection(tmp_path: Path) -> None:
    async def test(talk: Talk) -> None:
        reader, writer = await talk()
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()

    served(Limits(handshake_s=0.5), test, Authority(tmp_path).settings("pump"))


def test_too_many_connections_do_not_end_those_that_are_there() -> None:
    async def test(talk: Talk) -> None:
        reader, writer = await talk()
        writer.write(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in await reader.readuntil(b"hello")
        others = [await talk() for _ in range(3)]
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            others[-1][1].write(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
            await others[-1][0].readuntil(b"hello")
        writer.write(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in await reader.readuntil(b"hello")
        for _, each in [(reader, writer), *others]:
            each.close()

    served(Limits(http1_connections=2), test)


def test_connections_take_half_of_the_descriptors_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []
    limits = {"now": (1024, 4096)}
    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(descriptors.resource, "setrlimit", lambda _, new: given.append(new))
    with capture_logs() as logged:
        assert descriptors.connections(4096) == 2048
    assert given == [(4096, 4096)]
    assert [(each["connections"], each["wanted"]) for each in logged] == [(2048, 4096)]
    limits["now"] = (1024, descriptors.resource.RLIM_INFINITY)
    assert descriptors.connections(4096) == 4096
    assert given[-1] == (65536, descriptors.resource.RLIM_INFINITY)
    limits["now"] = (100_000, 100_000)
    assert descriptors.connections(4096) == 4096
    assert len(given) == 2
