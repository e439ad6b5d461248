"""Sockets and servers of the two ports. TLS, mutual TLS and allowed names are the same on both (row W6).

Who may do what is the table's (`pump_service.api.rights`); here it is asked for stock gRPC.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from aiohttp import web

from pump_service.api.rights import Rights, caller_of
from pump_service.door.http1 import Factory, Http1
from pump_service.door.limits import Limits
from pumphouse.errors import ConfigError, PeerRefused
from pumphouse.model import address
from pumphouse.rpc.channel import SERVER_OPTIONS
from pumphouse.rpc.status import abort_details
from pumphouse.rpc.tls import check_grpc_peer, server_credentials, server_ssl_context
from pumphouse.settings import TlsSettings

Context = grpc.aio.ServicerContext[Any, Any]
# Calls of one connection at once; further ones wait with their caller. Without it their requests are in our memory,
# however many wait for the disk. As `pump_service.door.limits` has it.
_STREAMS = 1024
_IN_USE = "is another Pump running? `ss -ltnp` shows who listens (of others' processes to root only)"


def split_address(addr: str) -> tuple[str, int]:
    """Host and port of ``host:port``; ConfigError otherwise. Port 0 picks a free one."""
    host, sep, port = addr.rpartition(":")
    if not sep or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{addr!r} is no address", hint="host:port", addr=addr)
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - an empty host means all, as for the Go Pump


def socket_path(url: str) -> str:
    """Path of ``unix:///path``, or of a bare one as the Go Pump takes it; ConfigError otherwise."""
    scheme, sep, rest = url.partition(":")
    path = ("/" + rest.lstrip("/") if scheme == "unix" else "") if sep else url
    if "/" not in path:
        raise ConfigError(f"bad Socket addr format: {url}", hint="as in unix:///run/pump.sock", addr=url)
    return path


def bind_grpc(
    addr: str, tls: TlsSettings, rights: Rights, *, socket_url: str = "", most_calls: int | None = None
) -> tuple[grpc.aio.Server, int]:
    """A server that is bound but does not serve yet, and its port.

    Args:
        addr: ``host:port``.
        tls: certificates.
        rights: who may call what.
        socket_url: a unix socket to listen on too; '' for none.
        most_calls: of all connections at once; None = any number.
    """
    options = dict(SERVER_OPTIONS) | {
        "grpc.max_concurrent_streams": _STREAMS,
        "grpc.http.overload_protection": 0,  # it would refuse calls at random near the limit
    }
    server = grpc.aio.server(
        options=tuple(options.items()), interceptors=[_Asks(tls, rights)], maximum_concurrent_rpcs=most_calls
    )
    host, port = split_address(addr)
    target = address.joined(host, port)
    credentials = server_credentials(tls)
    try:
        if credentials is not None:
            bound = server.add_secure_port(target, credentials)
        else:
            bound = server.add_insecure_port(target)
    except RuntimeError as error:
        raise ConfigError(f"cannot listen on {addr}: {error}", hint=_IN_USE, addr=addr) from error
    if socket_url:
        target = f"unix:{socket_path(socket_url)}"
        try:
            if credentials is not None:
                server.add_secure_port(target, credentials)
            else:
                server.add_insecure_port(target)
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {socket_url}: {error}", addr=socket_url) from error
    return server, bound


def bind_http(addr: str) -> socket.socket:
    """A listening socket; connections wait until somebody serves it."""
    host, port = split_address(addr)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=64)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {addr}: {error}", hint=_IN_USE if error.errno == errno.EADDRINUSE else "", addr=addr
        ) from error


async def http_runner(application: web.Application, limits: Limits) -> tuple[web.AppRunner, Factory]:
    """What serves HTTP/1, and the protocol of a connection."""
    # The time begins with the connection and with each answer, and ends with the headers of the next request.
    runner = web.AppRunner(application, access_log=None, handle_signals=False, keepalive_timeout=limits.http1_request_s)
    await runner.setup()
    assert runner.server is not None  # noqa: S101 - made by setup()
    return runner, runner.server


@dataclass(frozen=True, slots=True)
class HttpPort:
    """HTTP on a port of its own."""

    runner: web.AppRunner
    serve: Factory
    server: asyncio.Server

    async def cleanup(self) -> None:
        """End it."""
        self.server.close()
        await self.runner.cleanup()


async def serve_http(
    application: web.Application, listening: socket.socket, tls: TlsSettings, limits: Limits
) -> HttpPort:
    """Serve; end it with ``cleanup()``."""
    runner, serve = await http_runner(application, limits)
    context = server_ssl_context(tls)
    server = await asyncio.get_running_loop().create_server(
        Http1(serve, limits), sock=listening, ssl=context, ssl_handshake_timeout=limits.handshake_s if context else None
    )
    return HttpPort(runner, serve, server)


class _Asks(grpc.aio.ServerInterceptor):
    """Refuses calls whose certificate carries none of the allowed names, and operators' calls without a proof."""

    def __init__(self, tls: TlsSettings, rights: Rights) -> None:
        self._tls = tls
        self._rights = rights

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the handler; an interceptor itself sees neither the certificate nor the peer."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or (not self._tls.cert_allowed_cn and self._rights.is_open(method)):
            return handler
        if handler.response_streaming:
            name = "stream_stream" if handler.request_streaming else "unary_stream"
            behavior = getattr(handler, name)
            # One that writes by itself is awaited like a unary one.
            wrap = self._unary if inspect.iscoroutinefunction(behavior) else self._stream
            return handler._replace(**{name: wrap(behavior, method)})
        name = "stream_unary" if handler.request_streaming else "unary_unary"
        return handler._replace(**{name: self._unary(getattr(handler, name), method)})

    async def _check(self, context: Context, method: str) -> None:
        try:
            check_grpc_peer(context.auth_context(), self._tls, peer=context.peer())
            if (refused := self._rights.refusal(method, caller_of(context))) is not None:
                raise refused
        except PeerRefused as error:
            await context.abort(*abort_details(error))

    def _unary(
        self, behavior: Callable[[Any, Context], Awaitable[Any]], method: str
    ) -> Callable[[Any, Context], Awaitable[Any]]:
        async def checked(request: Any, context: Context) -> Any:
            await self._check(context, method)
            return await behavior(request, context)

        return checked

    def _stream(
        self, behavior: Callable[[Any, Context], AsyncIterator[Any]], method: str
    ) -> Callable[[Any, Context], AsyncIterator[Any]]:
        async def checked(request: Any, context: Context) -> AsyncIterator[Any]:
            await self._check(context, method)
            async for message in behavior(request, context):
                yield message

        return checked
