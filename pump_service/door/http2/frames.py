"""HTTP/2 frames (RFC 9113, sections 4 and 6): numbers, and the bytes of the frames that a server sends.

A frame is 9 bytes (length u24be, type, flags, stream id u31be) and its payload.
"""

from __future__ import annotations

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

# Types.
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

# Flags.
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITIZED = 0x20

# Settings.
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = (
    range(1, 7)
)

# Error codes (section 7).
NO_ERROR = 0x0
PROTOCOL_ERROR = 0x1
INTERNAL_ERROR = 0x2
FLOW_CONTROL_ERROR = 0x3
STREAM_CLOSED = 0x5
FRAME_SIZE_ERROR = 0x6
REFUSED_STREAM = 0x7
CANCEL = 0x8
COMPRESSION_ERROR = 0x9
ENHANCE_YOUR_CALM = 0xB

MAX_WINDOW = (1 << 31) - 1
DEFAULT_WINDOW = 65_535
DEFAULT_FRAME = 16_384
LARGEST_FRAME = (1 << 24) - 1

# Length and type in one word: two fields instead of three, and one test for both.
HEAD = struct.Struct(">IBI")
_U32 = struct.Struct(">I")
_SETTING = struct.Struct(">HI")
_GOAWAY = struct.Struct(">II")


class ConnectionFault(Exception):
    """The connection must end with GOAWAY and this error code (section 5.4.1)."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class StreamFault(Exception):
    """One stream must end with RST_STREAM and this error code (section 5.4.2)."""

    def __init__(self, stream_id: int, code: int, text: str) -> None:
        super().__init__(text)
        self.stream_id = stream_id
        self.code = code
        self.text = text


class Rest:
    """Bytes of a frame that is not complete yet."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._need = 0  # bytes until there is something to read
        self.size = 0

    def joined(self, data: bytes) -> bytes:
        """What is to be read with ``data``, which follows; nothing until there is enough."""
        if not self._parts:
            return data
        self._parts.append(data)
        self.size += len(data)
        if self.size < self._need:
            return b""
        data = b"".join(self._parts)
        self._parts.clear()
        self.size = 0
        return data

    def keep(self, rest: bytes, need: int) -> None:
        """What is left of a read, of which there must be ``need`` bytes, 0 = as many as the frame has."""
        self._parts.append(rest)
        self.size = len(rest)
        self._need = need or HEAD.size
        if not need and len(rest) >= HEAD.size:
            self._need += HEAD.unpack_from(rest)[0] >> 8


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Bytes of one frame."""
    return HEAD.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def settings(values: dict[int, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*item) for item in values.items()))


def parse_settings(payload: bytes) -> list[tuple[int, int]]:
    """Identifier and value of each setting, in order; the length is a multiple of 6."""
    return list(_SETTING.iter_unpack(payload))


def window_update(stream_id: int, increment: int) -> bytes:
    """A WINDOW_UPDATE frame; stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream_id, _U32.pack(increment))


def rst_stream(stream_id: int, code: int) -> bytes:
    """A RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream_id, _U32.pack(code))


def goaway(last_stream_id: int, code: int, text: str = "") -> bytes:
    """A GOAWAY frame; the text is for whoever reads a trace."""
    return frame(GOAWAY, 0, 0, _GOAWAY.pack(last_stream_id, code) + text.encode()[:200])


def header_frames(stream_id: int, block: bytes, flags: int, most: int) -> bytes:
    """A HEADERS frame, and CONTINUATIONs where the block is longer than ``most`` bytes."""
    if len(block) <= most:
        return frame(HEADERS, flags | END_HEADERS, stream_id, block)
    parts = [frame(HEADERS, flags, stream_id, block[:most])]
    for at in range(most, len(block), most):
        last = at + most >= len(block)
        parts.append(frame(CONTINUATION, END_HEADERS if last else 0, stream_id, block[at : at + most]))
    return b"".join(parts)


def without_padding(flags: int, payload: bytes) -> bytes:
    """Payload of a DATA or HEADERS frame without its padding (section 6.1)."""
    if not flags & PADDED:
        return payload
    if not payload:
        raise ConnectionFault(FRAME_SIZE_ERROR, "a padded frame without a pad length")
    if payload[0] >= len(payload):
        raise ConnectionFault(PROTOCOL_ERROR, "padding is longer than its frame")
    return payload[1 : len(payload) - payload[0]]
