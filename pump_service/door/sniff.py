"""The first bytes of a connection say who serves it: HTTP/2 begins with its preface, HTTP/1.x with a method."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol, cast

from pump_service.door.http2 import frames
from pump_service.door.limits import Limits

# With any other beginning the Go Pump ends a connection too.
_METHODS = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"TRACE ", b"CONNECT ")
_KNOWN = (frames.PREFACE, *_METHODS)


class Gate(Protocol):
    """A server as connections see it that are not known yet."""

    limits: Limits

    def admit(self, sniffer: Any) -> bool:
        """Whether one more is taken."""
        ...

    def sniffed(self, sniffer: Any) -> None:
        """A connection is known, or gone."""

    def connect(self, transport: asyncio.Transport) -> Any:
        """Protocol of a connection that speaks HTTP/2."""

    def http1(self) -> asyncio.Protocol | None:
        """Protocol of a connection that speaks HTTP/1.x."""
        ...


class Sniffer(asyncio.Protocol):
    """Protocol of a connection until it is known which one it speaks; has `Limits.sniff_s` to find out."""

    def __init__(self, server: Gate) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._bytes = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first bytes."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass
        if not self._server.admit(self):
            self._transport.abort()
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._server.limits.sniff_s, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        """Hand the connection over as soon as its first bytes are clear."""
        self._bytes += data
        start = self._bytes[: len(frames.PREFACE)]
        if start == frames.PREFACE:
            self._to_http2()
        elif start.startswith(_METHODS):
            self._to_http1()
        elif not any(known.startswith(start) for known in _KNOWN):
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """It ended before it said anything."""
        del exc
        self._known()

    def abort(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()

    def _known(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._server.sniffed(self)

    def _to_http2(self) -> None:
        self._known()
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        connection = self._server.connect(transport)
        transport.set_protocol(connection)
        connection.begin()
        connection.data_received(self._bytes)

    def _to_http1(self) -> None:
        self._known()
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        protocol = self._server.http1()
        if protocol is None:
            transport.close()
            return
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(self._bytes)
