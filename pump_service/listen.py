"""Sockets and servers of the two ports. TLS, mutual TLS and allowed names are the same on both (row W6)."""

from __future__ import annotations

import errno
import inspect
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from aiohttp import web

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


def bind_grpc(addr: str, tls: TlsSettings, *, socket_url: str = "") -> tuple[grpc.aio.Server, int]:
    """A server that is bound but does not serve yet, and its port.

    Args:
        addr: ``host:port``.
        tls: certificates.
        socket_url: a unix socket to listen on too; '' for none.
    """
    interceptors = [_AllowedNames(tls)] if tls.enabled and tls.cert_allowed_cn else []
    options = dict(SERVER_OPTIONS) | {
        "grpc.max_concurrent_streams": _STREAMS,
        "grpc.http.overload_protection": 0,  # it would refuse calls at random near the limit
    }
    server = grpc.aio.server(options=tuple(options.items()), interceptors=interceptors)
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


async def serve_http(application: web.Application, listening: socket.socket, tls: TlsSettings) -> web.AppRunner:
    """Serve; end it with ``cleanup()``."""
    runner = web.AppRunner(application, access_log=None, handle_signals=False)
    await runner.setup()
    await web.SockSite(runner, listening, ssl_context=server_ssl_context(tls)).start()
    return runner


class _AllowedNames(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses calls whose client certificate carries none of the allowed names."""

    def __init__(self, tls: TlsSettings) -> None:
        self._tls = tls

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the handler; an interceptor itself does not see the certificate."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        if handler.response_streaming:
            name = "stream_stream" if handler.request_streaming else "unary_stream"
            behavior = getattr(handler, name)
            # One that writes by itself is awaited like a unary one.
            wrap = self._unary if inspect.iscoroutinefunction(behavior) else self._stream
            return handler._replace(**{name: wrap(behavior)})
        name = "stream_unary" if handler.request_streaming else "unary_unary"
        return handler._replace(**{name: self._unary(getattr(handler, name))})

    async def _check(self, context: Context) -> None:
        try:
            check_grpc_peer(context.auth_context(), self._tls, peer=context.peer())
        except PeerRefused as error:
            await context.abort(*abort_details(error))

    def _unary(self, behavior: Callable[[Any, Context], Awaitable[Any]]) -> Callable[[Any, Context], Awaitable[Any]]:
        async def checked(request: Any, context: Context) -> Any:
            await self._check(context)
            return await behavior(request, context)

        return checked

    def _stream(
        self, behavior: Callable[[Any, Context], AsyncIterator[Any]]
    ) -> Callable[[Any, Context], AsyncIterator[Any]]:
        async def checked(request: Any, context: Context) -> AsyncIterator[Any]:
            await self._check(context)
            async for message in behavior(request, context):
                yield message

        return checked
