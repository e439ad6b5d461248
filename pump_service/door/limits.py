"""What the door allows its peers; every number bounds memory or time."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bytes and seconds; the defaults are the product's."""

    connections: int = 4096  # of all kinds; one more takes the place of one that has been idle for `idle_s`
    idle_s: float = 10.0
    silent_s: float = 1.0  # the same of one that has said nothing yet
    http1_connections: int = 256
    http1_request_s: float = 60.0  # from the last answer to the end of the next request's headers
    http1_unread_s: float = 20.0  # an answer that the peer does not read
    streams: int = 1024  # of one connection at once
    calls: int = 8192  # of all connections: those that have a stream of their own, and so memory
    message: int = (1 << 31) - 1
    inflated: int = 256 * MIB  # a message that is compressed: it costs its peer a thousandth
    # Bytes of requests that are not complete yet, over all connections and beside the oldest, before the others wait;
    # and how many there may be (`assembly`).
    assembling: int = 256 * MIB
    assembling_most: int = 512 * MIB
    stalled_s: float = 10.0  # in which each of them brings a quarter of a window while others wait
    stream_window: int = MIB  # what a peer may send ahead on one stream
    connection_window: int = 8 * MIB
    frame: int = 16 * KIB  # SETTINGS_MAX_FRAME_SIZE
    header_block: int = 32 * KIB  # compressed
    header_list: int = 32 * KIB  # section 6.5.2: names, values and 32 for each field
    write_buffer: int = 512 * KIB  # waiting in the transport: above it nothing is read or streamed any more
    stream_ahead: int = 256 * KIB  # response bytes of one stream that wait for the peer's window
    sniff_s: float = 10.0
    handshake_s: float = 10.0
    keepalive_s: float = 60.0  # a peer that is silent for so long is asked
    keepalive_timeout_s: float = 20.0  # and given up when it does not answer
    # Frames that cost a peer nothing (PING, SETTINGS, empty DATA, PRIORITY, RST_STREAM of an open call): a bucket. One
    # PING behind each answer is free.
    idle_frames: int = 2000
    idle_frames_per_s: float = 1000.0


DEFAULT_LIMITS = Limits()
