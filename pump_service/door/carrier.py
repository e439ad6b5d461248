"""A connection as its calls and batches see it, and a server as its connections do.

`connection` and `server` are these; what lies below them imports this alone.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from pump_service.door.assembly import Assembly
from pump_service.door.deadlines import Deadlines
from pump_service.door.group import Answer, Refusal
from pump_service.door.limits import Limits
from pump_service.door.routes import Group, Head, Routes
from pump_service.door.runs import Runs
from pump_service.door.sender import Sender
from pump_service.door.stream import Stream
from pump_service.door.tls import AuthContext


class Collects(Protocol):
    """Calls of a group method that are collected (`batch`)."""

    lost: bool

    def add(self, stream: Stream, message: bytes) -> None:
        """A call with a stream of its own."""


class Host(Protocol):
    """A server."""

    limits: Limits
    routes: Routes
    deadlines: Deadlines
    assembly: Assembly
    runs: Runs
    feeders: int  # connections that bring requests in plenty
    paused: bool  # whoever takes the requests has no room

    def collect(self, batch: Any) -> None:
        """Hand a batch over with those that other connections bring."""

    def identify(self, transport: asyncio.BaseTransport) -> tuple[str, AuthContext]:
        """Peer as gRPC names it, and what its certificate says."""
        ...

    def lost(self, connection: Any) -> None:
        """A connection has ended."""


class Carrier(Protocol):
    """A connection."""

    closed: bool
    heard: float  # when the last bytes came
    peer: str
    auth_context: AuthContext
    limits: Limits
    deadlines: Deadlines
    sender: Sender
    lean: dict[int, Any]  # stream id -> batch, of calls without a stream of their own
    early_credit: dict[int, int]  # WINDOW_UPDATEs of such calls
    streams: dict[int, Stream]
    last_stream_id: int
    stream_window: int  # of a new stream
    going: bool  # GOAWAY is out
    refusal_of_all: Refusal | None  # the peer may not call anything

    @property
    def server(self) -> Host:
        """Whose it is."""
        ...

    def group(self, group: Group | None) -> Collects:
        """This turn's batch of a group method."""
        ...

    def open_call(self, stream_id: int, head: Head, timeout: float | None) -> Stream:
        """Begin a call that gets a stream of its own."""
        ...

    def answer(self, batch: Any, stream_id: int, answer: Answer) -> None:
        """Answer one call of a group, if it still wants an answer."""

    def answered(self) -> None:
        """A call has ended."""

    def refuse(self, stream: Stream, refusal: Refusal, *, begun: bool) -> None:
        """End a call's stream with a status instead of what it still had to send."""

    def stream_ended(self, stream: Stream) -> None:
        """The last frame of a response is out."""

    def drop(self, stream_id: int) -> None:
        """Forget a stream; its call is cancelled."""

    def brings(self) -> None:
        """Requests in plenty come this way."""

    def received(self, size: int) -> None:
        """Count bytes of DATA frames against the connection's window."""

    def acknowledged(self) -> None:
        """The peer has our SETTINGS."""

    def held(self, size: int) -> None:
        """Bytes that wait for a handler are not credited until it has taken them."""

    def credit(self, stream: Stream) -> None:
        """Let the peer send more on a stream."""

    def give(self, stream: Stream) -> None:
        """Credit for what was taken."""
