"""A gRPC server over HTTP/2 on asyncio, registered with as `grpc.aio.Server` is; HTTP/1.x on the same port.

It knows nothing of what it serves. Everything runs on the event loop that `start` was called on.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc
import structlog

from pump_service.door.assembly import Assembly
from pump_service.door.connection import Connection
from pump_service.door.deadlines import Deadlines
from pump_service.door.group import GroupHandler, Refusal
from pump_service.door.http1 import Http1
from pump_service.door.http2.batch import Batch
from pump_service.door.http2.runs import Runs
from pump_service.door.http2.streams import Tally
from pump_service.door.limits import DEFAULT_LIMITS, Limits
from pump_service.door.routes import Permit, Routes, everything
from pump_service.door.sniff import Sniffer
from pump_service.door.tls import AuthContext, auth_context, with_alpn
from pump_service.door.turn import Turn

log = structlog.get_logger()
_LOOK_S = 1.0
_STALLED = Refusal(
    grpc.StatusCode.UNAVAILABLE, "this request stood still while half of pump.max_calls were open: send it again"
)
_ENDED = Refusal(grpc.StatusCode.UNAVAILABLE, "the server has ended")


class Server:
    """Serves bound sockets.

    Args:
        listening: bound; `start` listens on them.
        tls: context of the port; None = plain text.
        limits: what peers may do.
        authorize: asked once a connection with the certificate's names and the peer; a Refusal answers all its calls.
        permit: asked once a connection with the peer; what it returns is asked for calls.
    """

    def __init__(
        self,
        *listening: socket.socket,
        tls: ssl.SSLContext | None = None,
        limits: Limits = DEFAULT_LIMITS,
        authorize: Callable[[AuthContext, str], Refusal | None] | None = None,
        permit: Callable[[str], Permit] = lambda _: everything,
    ) -> None:
        self._listening = listening
        self._tls = with_alpn(tls) if tls is not None else None
        self._authorize = authorize
        self._permit = permit
        self._http1: Http1 | None = None
        self.limits = limits
        self.routes = Routes(limits.header_list)
        loop = asyncio.get_running_loop()
        self.deadlines = Deadlines(loop)
        self.assembly = Assembly(limits, self.deadlines, loop.time)
        self._connections: set[Connection] = set()
        self._sniffers: dict[Sniffer, float] = {}  # since when, oldest first
        self._full_until = float("-inf")  # nobody is idle before then
        self._servers: list[asyncio.Server] = []
        self.tally = Tally(limits.calls)
        self.runs = Runs(limits)
        self.turn = Turn(loop, self.runs, self.deadlines)
        self.feeders = 0  # connections that bring requests in plenty
        self.paused = False  # whoever takes the requests has no room
        self._stopping = False
        self._empty = asyncio.Event()
        self._empty.set()
        self._keeper: asyncio.TimerHandle | None = None

    # ---- registration, as generated code does it -----------------------------------------------------------------

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Handlers that are asked for paths without a registered method."""
        self.routes.add_generic(generic_rpc_handlers)

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Any]) -> None:
        """Methods of a service: asyncio behaviors."""
        for name, handler in method_handlers.items():
            self.routes.add_method(f"/{service_name}/{name}", handler)

    def add_group_method(self, path: str, handler: GroupHandler) -> None:
        """A unary method whose calls are handled together; in place of a servicer's method of the same path."""
        self.routes.add_group(path, handler)

    def serve_http1(self, factory: Callable[[], asyncio.Protocol]) -> None:
        """Who serves connections that do not speak HTTP/2 (`aiohttp.web.Server` is such a factory)."""
        self._http1 = Http1(factory, self.limits)

    # ---- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Serve."""
        loop = asyncio.get_running_loop()
        timeout = self.limits.handshake_s if self._tls is not None else None
        for sock in self._listening:
            serve = loop.create_unix_server if sock.family == socket.AF_UNIX else loop.create_server
            self._servers.append(
                await serve(
                    lambda: Sniffer(self), sock=sock, ssl=self._tls, backlog=1024, ssl_handshake_timeout=timeout
                )
            )
        self._keeper = loop.call_later(_LOOK_S, self._keep_alive)

    async def stop(self, grace: float | None = None) -> None:
        """Take nothing new, wait up to ``grace`` seconds for open calls, end the others with UNAVAILABLE."""
        self._stopping = True
        for server in self._servers:
            server.close()
        for sock in self._listening:
            sock.close()
        for sniffer in list(self._sniffers):
            sniffer.abort()
        for connection in list(self._connections):
            connection.go_away()
        if grace and self._connections:
            await self._wait(grace)
        for connection in list(self._connections):
            connection.refuse_all(_ENDED)
        if self._connections:
            await self._wait(0.2)
        for connection in list(self._connections):
            connection.abort()
        await self._wait(1.0)
        if self._keeper is not None:
            self._keeper.cancel()
        self.deadlines.close()

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            pass

    def pause_reading(self) -> None:
        """Whoever takes the requests has no room until `resume_reading`.

        Connections that have brought any are not read, and others from when they do, so that each adds one
        read at most to those that are collected. Those that only pull, ask or speak HTTP/1 go on.
        """
        if not self.paused:
            self.paused = True
            self.assembly.pause()
            for connection in self._connections:
                if connection.feeds:
                    connection.pause("server")

    def resume_reading(self) -> None:
        """Read again."""
        if self.paused:
            self.paused = False
            self.assembly.resume()
            for connection in self._connections:
                connection.resume("server")

    # ---- connections ---------------------------------------------------------------------------------------------

    def admit(self, sniffer: Sniffer) -> bool:
        """A new connection; False when there are too many, and none of them is idle."""
        now = asyncio.get_running_loop().time()
        if self._stopping or (self._is_full() and not self._makes_room(now)):
            return False
        self._sniffers[sniffer] = now
        return True

    def _is_full(self) -> bool:
        http1 = len(self._http1.open) if self._http1 is not None else 0
        return len(self._connections) + len(self._sniffers) + http1 >= self.limits.connections

    def _makes_room(self, now: float) -> bool:
        """End a few of those that have been idle longest: their peers connect again when they have something to say.

        Who has not said what it speaks a second after it connected goes first.
        """
        silent, since = next(iter(self._sniffers.items()), (None, now))
        if silent is not None and since <= now - self.limits.silent_s:
            silent.abort()
            self.sniffed(silent)
            return True
        if now < self._full_until:
            return False
        before, few = now - self.limits.idle_s, max(self.limits.connections // 16, 1)
        idle = sorted((each for each in self._connections if each.is_idle(before)), key=lambda each: each.idle_since)
        for connection in idle[:few]:
            connection.go_away()  # and ends it, with the next turn of the loop
            self.lost(connection)
        if idle:
            log.info("idle_connections_ended", connections=len(idle[:few]), limit=self.limits.connections)
        else:
            self._full_until = now + _LOOK_S
            log.warning("too_many_connections", limit=self.limits.connections, setting="pump.max_connections")
        return bool(idle)

    def sniffed(self, sniffer: Sniffer) -> None:
        """A connection is known, or gone."""
        self._sniffers.pop(sniffer, None)

    def connect(self, transport: asyncio.Transport) -> Connection:
        """A connection that speaks HTTP/2."""
        peer, names = peer_of(transport), auth_context(transport)
        refusal = self._authorize(names, peer) if self._authorize is not None else None
        connection = Connection(self, transport, peer, names, refusal, self._permit(peer))
        self._connections.add(connection)
        self._empty.clear()
        return connection

    def http1(self) -> asyncio.Protocol | None:
        """Protocol of a connection that speaks HTTP/1.x."""
        return self._http1() if self._http1 is not None else None

    def hand_over(self, connection: Connection, batch: Batch) -> None:
        """Calls for a group's handler: with those that other connections bring, if there are any."""
        if self.feeders > 1:
            self.turn.add(connection, batch)
        else:
            self.turn.alone(connection, batch)

    def brings(self, connection: Connection) -> None:
        """Requests in plenty come from it."""
        self.feeders += 1
        if self.paused:
            connection.pause("server")

    def lost(self, connection: Connection) -> None:
        """A connection has ended."""
        if connection in self._connections:
            self._connections.discard(connection)
            self.feeders -= connection.feeds
            self.turn.lost()
        if not self._connections:
            self._empty.set()

    def _keep_alive(self) -> None:
        loop = asyncio.get_running_loop()
        for connection in list(self._connections):
            connection.keep_alive(loop.time())
            connection.look(loop.time())
        if self.tally.open > self.tally.most // 2 and not self.paused:
            for connection in list(self._connections):
                connection.refuse_stalled(loop.time() - self.limits.stalled_s, _STALLED)
        self._keeper = loop.call_later(_LOOK_S, self._keep_alive)


def peer_of(transport: asyncio.BaseTransport) -> str:
    """As gRPC names it."""
    name = transport.get_extra_info("peername")
    if not isinstance(name, tuple):
        # A TCP peer that has gone already has no name either, and is not on this machine for that.
        sock = transport.get_extra_info("socket")
        return f"unix:{name or ''}" if sock is not None and sock.family == socket.AF_UNIX else "gone:"
    return f"ipv6:[{name[0]}]:{name[1]}" if ":" in name[0] else f"ipv4:{name[0]}:{name[1]}"
