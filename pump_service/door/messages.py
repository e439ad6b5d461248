"""Messages out of the DATA of one stream: prefix, length limit, gzip."""

from __future__ import annotations

import struct
import zlib

import grpc

from pump_service.door.group import Refusal

PREFIX = struct.Struct(">BI")
_Code = grpc.StatusCode
STEP = 1 << 20  # inflated bytes at once: a millisecond or two
_LARGEST = (1 << 32) - 1
_SLICE = 64 << 10  # compressed bytes at once: what zlib has not used it copies


class Assembler:
    """Cuts messages from pieces; holds at most the one that is not complete yet.

    A compressed message that is large is inflated step by step: while `inflating`, `inflate` is to be called, and what
    is fed meanwhile waits.
    """

    __slots__ = ("_chunks", "_gzip", "_inflated_most", "_inflation", "_most", "held")

    def __init__(self, most: int, *, gzip: bool, inflated: int | None = None) -> None:
        """``most``: bytes of a message; ``inflated``: of one that is compressed, which costs its peer a thousandth."""
        self._most = most
        self._inflated_most = most if inflated is None else min(most, inflated)
        self._gzip = gzip
        self._chunks: list[bytes] = []
        self._inflation: _Inflation | None = None
        self.held = 0  # bytes that are no message yet

    @property
    def inflating(self) -> bool:
        """Whether `inflate` has something to do."""
        return self._inflation is not None

    @property
    def missing(self) -> int:
        """Bytes of the message that is not complete yet, as far as that is known."""
        first = self._chunks[0] if self._chunks else b""
        return PREFIX.size + (PREFIX.unpack_from(first)[1] if len(first) >= PREFIX.size else _LARGEST) - self.held

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return self.held + (self._inflation.size if self._inflation is not None else 0)

    def drop(self) -> None:
        """Nobody wants what is held."""
        self._chunks, self._inflation, self.held = [], None, 0

    def inflate(self) -> list[bytes] | Refusal:
        """One step; complete messages or a Refusal as `feed` gives them."""
        assert self._inflation is not None  # noqa: S101 - the caller has looked
        done = self._inflation.step()
        if isinstance(done, Refusal):
            return done
        if done is None:
            return []
        self._inflation = None
        data, self._chunks, self.held = b"".join(self._chunks), [], 0
        rest = self._cut(data)
        return rest if isinstance(rest, Refusal) else [done, *rest]

    def feed(self, data: bytes) -> list[bytes] | Refusal:
        """Complete messages, in order; a Refusal ends the call."""
        if self._inflation is not None:
            self._chunks.append(data)
            self.held += len(data)
            return []
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
        inflated = 0
        while size - at >= PREFIX.size:
            refusal = self._check(data, at)
            if refusal is not None:
                return refusal
            compressed, length = PREFIX.unpack_from(data, at)
            end = at + PREFIX.size + length
            if end > size:
                break
            message = data[at + PREFIX.size : end]
            at = end
            if compressed:
                inflation = _Inflation(message, self._inflated_most)
                done = inflation.step() if inflated < STEP else None
                if isinstance(done, Refusal):
                    return done
                if done is None:
                    self._inflation = inflation
                    break
                message = done
                inflated += len(done)
            messages.append(message)
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
    # As grpc-go says it: TiDB looks for these words, and takes what it does not know for a critical error.
    return Refusal(_Code.RESOURCE_EXHAUSTED, f"grpc: received message larger than max ({size} vs. {most})")


class _Inflation:
    """A compressed message on its way to `most` bytes at most."""

    def __init__(self, data: bytes, most: int) -> None:
        # What zlib has taken goes: of a message that hardly shrinks there is never more than one in memory.
        self._left = [data[at : at + _SLICE] for at in range(0, len(data), _SLICE)][::-1]
        self._left_bytes = len(data)
        self._most = most
        self._inflater = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        self._parts: list[bytes] = []
        self._inflated = 0

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return self._left_bytes + self._inflated

    def step(self) -> bytes | Refusal | None:
        """Inflate up to `STEP` bytes; the message when it is complete, None when there is more to do."""
        inflater, left = self._inflater, min(STEP, self._most + 1 - self._inflated)
        while left > 0:
            given = inflater.unconsumed_tail
            if not given and self._left:
                given = self._left.pop()
                self._left_bytes -= len(given)
            try:
                part = inflater.decompress(given, left)
            except zlib.error as error:
                return Refusal(_Code.INTERNAL, f"gzip: {error}")
            self._parts.append(part)
            self._inflated += len(part)
            left -= len(part)
            if inflater.eof or (not part and not given):
                break
        if self._inflated > self._most:
            return _too_large(self._inflated, self._most)
        if inflater.eof:
            if inflater.unused_data or self._left:
                return Refusal(_Code.INTERNAL, "gzip: bytes behind a message")
            return b"".join(self._parts)
        if left > 0:  # nothing came and nothing is left
            return Refusal(_Code.INTERNAL, "gzip: a message that is cut short")
        return None
