"""Connections that speak HTTP/1: how many at once, and how long a peer may leave an answer unread.

Who serves them (aiohttp) ends one whose next request is not complete in time. It waits without end for a peer that
reads nothing, and it counts nobody: that is done here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from pump_service.door.limits import Limits

Factory = Callable[[], asyncio.Protocol]


class Http1:
    """Makes the protocol of each connection, as a factory does."""

    def __init__(self, serve: Factory, limits: Limits) -> None:
        self._serve = serve
        self.limits = limits
        self.open: set[_Guarded] = set()

    def __call__(self) -> asyncio.Protocol:
        """Protocol of a new connection."""
        return _Guarded(self, self._serve())


class _Guarded(asyncio.Protocol):
    """Hands on what the transport says."""

    def __init__(self, all_: Http1, inner: asyncio.Protocol) -> None:
        self._all = all_
        self._inner = inner
        self._transport: asyncio.Transport | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Serve, or end it at once where there are too many."""
        self._transport = cast("asyncio.Transport", transport)
        if len(self._all.open) >= self._all.limits.http1_connections:
            self._transport.abort()
            return
        self._all.open.add(self)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        if self in self._all.open:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """The peer has sent everything."""
        return self._inner.eof_received() if self in self._all.open else None

    def pause_writing(self) -> None:
        """The peer does not read: for so long and no longer."""
        if self in self._all.open and self._transport is not None:
            loop = asyncio.get_running_loop()
            self._unread = loop.call_later(self._all.limits.http1_unread_s, self._transport.abort)
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """It does again."""
        self._forget()
        if self in self._all.open:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        self._forget()
        if self in self._all.open:
            self._all.open.discard(self)
            self._inner.connection_lost(exc)

    def _forget(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
