"""What a peer has done to a stream, as the protocol tells it. Calls that came whole are no events but a `batch`."""

from __future__ import annotations

from dataclasses import dataclass

from pump_service.door.http2.streams import Stream
from pump_service.door.routes import Head


@dataclass(slots=True)
class Opened:
    """A call has begun."""

    stream: Stream
    head: Head
    timeout: float | None  # in seconds


@dataclass(slots=True)
class Received:
    """Bytes of a request."""

    stream: Stream
    data: bytes


@dataclass(slots=True)
class Ended:
    """The request is complete."""

    stream: Stream


@dataclass(slots=True)
class Cancelled:
    """Nobody wants an answer any more: by RST_STREAM of the peer, or of ours for what it did."""

    stream: Stream


@dataclass(slots=True)
class Failed:
    """The peer has broken the protocol: GOAWAY is among what is to be written, and the connection ends."""

    code: int
    reason: str


Event = Opened | Received | Ended | Cancelled | Failed
