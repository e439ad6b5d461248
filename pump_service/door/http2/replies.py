"""Header blocks of responses (RFC 7541).

All fields are literals without indexing, so that no state is shared with the peer, but for the two blocks that every
successful unary call has: they are indexed with the first such answer and one or two bytes long afterwards.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable

from pump_service.door.group import Trailing

_TABLE = 4096
# What the two entries cost in the peer's table (section 4.1).
_NEEDED = len("content-type") + len("application/grpc") + 32 + len("grpc-status") + 1 + 32


def literal(name: bytes, value: bytes) -> bytes:
    """A field without indexing, new name, no Huffman."""
    return b"\x00" + _length(len(name), 0x7F) + name + _length(len(value), 0x7F) + value


def _length(n: int, mask: int) -> bytes:
    if n < mask:
        return bytes((n,))
    out = bytearray((mask,))
    n -= mask
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


_CONTENT = b"\x10application/grpc"
_STATUS = b"\x0bgrpc-status\x010"
_OK_200 = b"\x88"
HEADERS = _OK_200 + b"\x0f\x10" + _CONTENT  # name 31 of the static table, without indexing
TRAILERS = b"\x00" + _STATUS
_HEADERS_FIRST, _TRAILERS_FIRST = _OK_200 + b"\x5f" + _CONTENT, b"\x40" + _STATUS
_HEADERS_INDEXED, _TRAILERS_INDEXED = _OK_200 + b"\xbf", b"\xbe"


class ReplyBlocks:
    """Blocks of one connection; what it hands out must be sent, in order."""

    def __init__(self) -> None:
        self._indexed = False
        self._may_index = True
        self._size = _TABLE
        self._announce: int | None = None

    def table_size(self, size: int) -> None:
        """The peer's SETTINGS_HEADER_TABLE_SIZE: one that is smaller is confirmed in the next block (section 4.2)."""
        if size < self._size:
            self._size = self._announce = size
            if size < _NEEDED:
                self._indexed = self._may_index = False

    @property
    def settled(self) -> bool:
        """Whether `unary` gives the same blocks from now on."""
        return self._announce is None and (self._indexed or not self._may_index)

    def unary(self) -> tuple[bytes, bytes]:
        """Headers and trailers of a successful unary call."""
        if self._indexed:
            headers, trailers = _HEADERS_INDEXED, _TRAILERS_INDEXED
        elif self._may_index:
            headers, trailers = _HEADERS_FIRST, _TRAILERS_FIRST
            self._indexed = True
        else:
            headers, trailers = HEADERS, TRAILERS
        return self._begun(headers), trailers

    def headers(self, metadata: Trailing = ()) -> bytes:
        """Headers of a response."""
        return self._begun(HEADERS + fields(metadata))

    def trailers(self, code: int, text: str, metadata: Trailing) -> bytes:
        """Trailers of a response."""
        return self._begun(status(code, text, metadata))

    def only_trailers(self, code: int, text: str, metadata: Trailing) -> bytes:
        """Headers that are trailers as well: a call that ends without a message."""
        return self._begun(HEADERS + status(code, text, metadata))

    def plain(self, http_status: int) -> bytes:
        """Headers of an answer that is not gRPC: a text."""
        text = literal(b":status", b"%d" % http_status)
        return self._begun(text + literal(b"content-type", b"text/plain; charset=utf-8"))

    def _begun(self, block: bytes) -> bytes:
        if self._announce is None:
            return block
        size, self._announce = self._announce, None
        first = _length(size, 0x1F)
        return bytes((first[0] | 0x20,)) + first[1:] + block


def status(code: int, text: str, metadata: Trailing) -> bytes:
    """The fields that end a call."""
    block = literal(b"grpc-status", b"%d" % code)
    if text:
        block += literal(b"grpc-message", percent_encoded(text))
    return block + fields(metadata)


def fields(metadata: Iterable[tuple[str, str | bytes]]) -> bytes:
    """Metadata: values of ``-bin`` keys as base64 without padding."""
    out = b""
    for key, value in metadata:
        raw = value.encode() if isinstance(value, str) else value
        if key.endswith("-bin"):
            raw = base64.b64encode(raw).rstrip(b"=")
        out += literal(key.lower().encode("ascii"), raw)
    return out


def percent_encoded(text: str) -> bytes:
    """A ``grpc-message``: UTF-8, everything but printable ASCII and the percent sign itself as %XX."""
    raw = text.encode("utf-8", "surrogateescape")
    if raw.isascii() and text.isprintable() and b"%" not in raw:
        return raw
    return b"".join(bytes((b,)) if 0x20 <= b <= 0x7E and b != 0x25 else b"%%%02X" % b for b in raw)
