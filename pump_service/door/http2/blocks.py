"""Header blocks of HEADERS frames, which may go on in CONTINUATIONs (RFC 9113, sections 6.2 and 6.10)."""

from __future__ import annotations

from pump_service.door.http2 import frames
from pump_service.door.http2.floods import Bucket
from pump_service.door.http2.frames import ConnectionFault

_MOST_PARTS = 64


class Block:
    """A block, as far as it has come."""

    __slots__ = ("_parts", "end_stream", "on_itself", "size", "stream_id")

    def __init__(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1:
            raise ConnectionFault(frames.PROTOCOL_ERROR, f"HEADERS on stream {stream_id}")
        block = frames.without_padding(flags, payload)
        self.stream_id = stream_id
        self.end_stream = bool(flags & frames.END_STREAM)
        self.on_itself = False  # depends on its own stream: an error, but the block must be read all the same
        if flags & frames.PRIORITIZED:
            if len(block) < 5:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "HEADERS without its priority fields")
            self.on_itself = int.from_bytes(block[:4], "big") & 0x7FFFFFFF == stream_id
            block = block[5:]
        self._parts = [block]
        self.size = len(block)

    def go_on(self, payload: bytes, bucket: Bucket) -> None:
        """A CONTINUATION."""
        if not payload:
            bucket.take("empty CONTINUATION frames")
        self._parts.append(payload)
        self.size += len(payload)
        if len(self._parts) > _MOST_PARTS:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "a header block of too many parts")

    def joined(self) -> bytes:
        """All of it."""
        return b"".join(self._parts)
