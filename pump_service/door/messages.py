"""Messages out of the DATA of one stream: prefix, length limit, gzip."""

from __future__ import annotations

import struct
import zlib

import grpc

from pump_service.door.group import Refusal

PREFIX = struct.Struct(">BI")
_Code = grpc.StatusCode


class Assembler:
    """Cuts messages from pieces; holds at most the one that is not complete yet."""

    __slots__ = ("_chunks", "_gzip", "_most", "held")

    def __init__(self, most: int, *, gzip: bool) -> None:
        self._most = most
        self._gzip = gzip
        self._chunks: list[bytes] = []
        self.held = 0

    def feed(self, data: bytes) -> list[bytes] | Refusal:
        """Complete messages, in order; a Refusal ends the call."""
        if self.held:
            self._chunks.append(data)
            self.held += len(data)
            if self.held < PREFIX.size:
                return []
            if len(self._chunks[0]) < PREFIX.size:
                self._chunks = [b"".join(self._chunks)]
            # The length is looked at before its bytes are waited for.
            refusal = self._check(self._chunks[0], 0)
            if refusal is not None:
                return refusal
            if self.held < PREFIX.size + PREFIX.unpack_from(self._chunks[0])[1]:
                return []
            data = b"".join(self._chunks)
            self._chunks = []
            self.held = 0
        return self._cut(data)

    def _cut(self, data: bytes) -> list[bytes] | Refusal:
        messages: list[bytes] = []
        at, size = 0, len(data)
        while size - at >= PREFIX.size:
            refusal = self._check(data, at)
            if refusal is not None:
                return refusal
            compressed, length = PREFIX.unpack_from(data, at)
            end = at + PREFIX.size + length
            if end > size:
                break
            message = data[at + PREFIX.size : end]
            if compressed:
                inflated = _inflate(message, self._most)
                if isinstance(inflated, Refusal):
                    return inflated
                message = inflated
            messages.append(message)
            at = end
        if at < size:
            self._chunks = [data[at:]]
            self.held = size - at
        return messages

    def _check(self, data: bytes, at: int) -> Refusal | None:
        compressed, length = PREFIX.unpack_from(data, at)
        if length > self._most:
            return _too_large(length, self._most)
        if compressed > 1 or (compressed and not self._gzip):
            return Refusal(_Code.INTERNAL, f"compression flag {compressed} without a grpc-encoding that says how")
        return None


def _too_large(size: int, most: int) -> Refusal:
    return Refusal(_Code.RESOURCE_EXHAUSTED, f"Received message larger than max ({size} vs. {most})")


def _inflate(data: bytes, most: int) -> bytes | Refusal:
    inflater = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        message = inflater.decompress(data, most + 1)
    except zlib.error as error:
        return Refusal(_Code.INTERNAL, f"gzip: {error}")
    if len(message) > most:
        return _too_large(len(message), most)
    if not inflater.eof or inflater.unused_data:
        return Refusal(_Code.INTERNAL, "gzip: a message that is cut short, or bytes behind it")
    return message
