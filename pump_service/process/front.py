"""The two ways of serving a Pump's calls: stock grpcio with HTTP on a port of its own, or our door with both on one.

The servicers and the HTTP application are the same for both; `bind` takes the ports before anything else is done.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from typing import Any, Protocol

from aiohttp import web

from pump_service.api.rights import Caller, Rights
from pump_service.door.group import Refusal
from pump_service.door.limits import Limits
from pump_service.door.routes import Permit
from pump_service.door.server import Server
from pump_service.door.tls import AuthContext
from pump_service.process import descriptors, listen
from pumphouse.errors import ConfigError, PeerRefused
from pumphouse.model import address
from pumphouse.rpc.status import abort_details
from pumphouse.rpc.tls import check_grpc_peer, server_ssl_context
from pumphouse.settings import PumpSettings, TlsSettings


class Front(Protocol):
    """What the app needs of either."""

    # What generated code registers servicers with.
    server: Any
    # The same as our door, where it is one: for handlers that take groups.
    door: Server | None
    # host:port that are listened on.
    addr: str
    http_addr: str

    async def serve(self, application: web.Application) -> None:
        """Begin: calls, and the HTTP application."""

    async def stop(self, grace: float) -> None:
        """Take no new calls, wait for open ones. HTTP that is being served goes on."""

    async def close(self) -> None:
        """End what is left, whether it ever served or not."""


def bind(settings: PumpSettings, tls: TlsSettings, rights: Rights) -> Front:
    """Listen; ConfigError where that cannot be."""
    return _Door(settings, tls, rights) if settings.transport == "builtin" else _Grpcio(settings, tls, rights)


class _Grpcio:
    def __init__(self, settings: PumpSettings, tls: TlsSettings, rights: Rights) -> None:
        self._tls = tls
        self.door: Server | None = None
        self.server, port = listen.bind_grpc(
            settings.addr, tls, rights, socket_url=settings.socket, most_calls=settings.max_calls
        )
        host = listen.split_address(settings.addr)[0]
        self.addr = address.joined(host, port)
        self._listening = listen.bind_http(settings.http_addr or address.joined(host, 0))
        self.http_addr = _address(settings.http_addr or self.addr, self._listening)
        self._limits = _limits(settings)
        self._runner: listen.HttpPort | None = None

    async def serve(self, application: web.Application) -> None:
        await self.server.start()
        self._runner = await listen.serve_http(application, self._listening, self._tls, self._limits)

    async def stop(self, grace: float) -> None:
        await self.server.stop(grace)

    async def close(self) -> None:
        await self.server.stop(0)
        if self._runner is not None:
            await self._runner.cleanup()
        self._listening.close()


class _Door:
    def __init__(self, settings: PumpSettings, tls: TlsSettings, rights: Rights) -> None:
        self._tls = tls
        self._rights = rights
        with contextlib.ExitStack() as undo:
            listening = undo.enter_context(contextlib.closing(listen.bind_http(settings.addr)))
            self.addr = _address(settings.addr, listening)
            sockets = [listening]
            self._path = listen.socket_path(settings.socket) if settings.socket else ""
            if self._path:
                sockets.append(undo.enter_context(contextlib.closing(_bind_unix(self._path))))
            self._second: socket.socket | None = None
            self.http_addr = self.addr
            if settings.http_addr:
                self._second = undo.enter_context(contextlib.closing(listen.bind_http(settings.http_addr)))
                self.http_addr = _address(settings.http_addr, self._second)
            self.server = Server(
                *sockets,
                tls=server_ssl_context(tls),
                limits=_limits(settings),
                authorize=self._authorize if tls.enabled and tls.cert_allowed_cn else None,
                permit=self._permit,
            )
            undo.pop_all()
        self.door: Server | None = self.server
        self._runner: web.AppRunner | listen.HttpPort | None = None

    def _authorize(self, names: AuthContext, peer: str) -> Refusal | None:
        try:
            check_grpc_peer(names, self._tls, peer=peer)
        except PeerRefused as error:
            return Refusal(*abort_details(error))
        return None

    def _permit(self, peer: str) -> Permit:
        def refusal(path: str, authorization: bytes) -> Refusal | None:
            refused = self._rights.refusal(path, Caller(peer, authorization.decode("utf-8", "surrogateescape")))
            return None if refused is None else Refusal(*abort_details(refused))

        return refusal

    async def serve(self, application: web.Application) -> None:
        limits = self.server.limits
        if self._second is not None:
            self._runner = port = await listen.serve_http(application, self._second, self._tls, limits)
            http1 = port.serve
        else:
            self._runner, http1 = await listen.http_runner(application, limits)
        self.server.serve_http1(http1)
        await self.server.start()

    async def stop(self, grace: float) -> None:
        await self.server.stop(grace)

    async def close(self) -> None:
        await self.server.stop(0)
        if self._runner is not None:
            await self._runner.cleanup()
        if self._second is not None:
            self._second.close()
        if self._path:
            with contextlib.suppress(OSError):
                os.unlink(self._path)  # noqa: PTH108


def _limits(settings: PumpSettings) -> Limits:
    return Limits(
        connections=descriptors.connections(settings.max_connections),
        calls=settings.max_calls,
        message=settings.max_message_bytes,
        inflated=settings.incomplete_bytes,
        assembling=settings.incomplete_bytes,
        assembling_most=2 * settings.incomplete_bytes,
    )


def _address(asked: str, listening: socket.socket) -> str:
    return address.joined(listen.split_address(asked)[0], listening.getsockname()[1])


def _bind_unix(path: str) -> socket.socket:
    """A listening unix socket; what a process that is gone has left under its name is replaced."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        if _is_left_over(path):
            os.unlink(path)  # noqa: PTH108
        sock.bind(path)
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen on {path}: {error}", addr=path) from error
    return sock


def _is_left_over(path: str) -> bool:
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):  # noqa: PTH116
            return False
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(path)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False
