"""Header blocks of requests (RFC 7541), quick where clients repeat themselves.

Three ways, over one dynamic table (that of an `hpack.Decoder`), so that they can follow each other on one connection:

1. A block that has been seen since the table changed last is looked up by its bytes.
2. Such a block followed by a literal ``grpc-timeout``, which is new with every call, costs that one literal.
3. Everything else is read field by field. Blocks that begin with a table size update go to the library; Huffman
   strings, the table and its eviction are the library's everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import hpack
from hpack.exceptions import HPACKError, OversizedHeaderListError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from pump_service.door.http2.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, ConnectionFault

Field = tuple[bytes, bytes]
Fields = tuple[Field, ...]
H = TypeVar("H")

TIMEOUT = b"grpc-timeout"
TIMEOUT_LITERAL = b"\x00\x0c" + TIMEOUT  # without indexing, new name
_STATIC: tuple[Field, ...] = ((b"", b""), *HeaderTable.STATIC_TABLE)  # indices begin at 1
_DYNAMIC = len(_STATIC)
_UNIT_S = {ord("H"): 3600.0, ord("M"): 60.0, ord("S"): 1.0, ord("m"): 1e-3, ord("u"): 1e-6, ord("n"): 1e-9}
_KEPT = 256  # blocks and heads of a connection; a client uses a handful
_LARGEST_KEPT = 2048
MALFORMED = -1.0


def timeout_s(value: bytes) -> float:
    """Seconds of a ``grpc-timeout``: at most 8 digits and a unit; MALFORMED otherwise."""
    digits = value[:-1]
    if len(digits) > 8 or not digits.isdigit():
        return MALFORMED
    unit = _UNIT_S.get(value[-1])
    return MALFORMED if unit is None else int(digits) * unit


class HeaderReader(Generic[H]):
    """Reads the request header blocks of one connection.

    Args:
        make: what a request's fields (without grpc-timeout) mean; called once for equal fields, the result is shared.
        max_list: RFC 9113, 6.5.2. The library's way ends the connection above it; the others give `make` the fields up
            to the one that is too much (a byte may stand for 4 KiB of the table), for it to refuse.
    """

    def __init__(self, make: Callable[[Fields], H], max_list: int) -> None:
        self._make = make
        self._max_list = max_list
        self._decoder = hpack.Decoder(max_header_list_size=max_list)
        self._table = self._decoder.header_table
        self._dynamic = self._table.dynamic_entries
        # Valid while the table stays as it is; callers look here themselves before they call `read`.
        self.blocks: dict[bytes, tuple[H, float | None]] = {}
        self._heads: dict[Fields, H] = {}

    def read(self, block: bytes) -> tuple[H, float | None]:
        """Meaning and timeout in seconds (None = none, MALFORMED = nonsense) of a request's block."""
        at = block.find(TIMEOUT_LITERAL)
        if at > 0:
            known = self.blocks.get(block[:at])  # a whole block: what follows begins at a field
            if known is not None and known[1] is None:
                start = at + len(TIMEOUT_LITERAL) + 1
                # One length byte below 127, not Huffman; the literal ends the block.
                if start <= len(block) and block[start - 1] == len(block) - start < 0x7F:
                    return known[0], timeout_s(block[start:])
        fields, changed, last = self._read(block)
        timeouts = [timeout_s(value) for name, value in fields if name == TIMEOUT]
        timeout = None if not timeouts else timeouts[0] if len(timeouts) == 1 else MALFORMED
        if timeouts:
            fields = tuple(field for field in fields if field[0] != TIMEOUT)
        head = self._heads.get(fields)
        if head is None:
            head = self._make(fields)
            if len(block) <= _LARGEST_KEPT:
                if len(self._heads) >= _KEPT:
                    self._heads.clear()
                self._heads[fields] = head
        if not changed and len(block) <= _LARGEST_KEPT:
            self._keep(block, last, head, timeout, len(timeouts))
        return head, timeout

    def _keep(self, block: bytes, last: int, head: H, timeout: float | None, timeouts: int) -> None:
        if len(self.blocks) >= _KEPT:
            self.blocks.clear()
        if not block.startswith(TIMEOUT_LITERAL, last):
            self.blocks[block] = head, timeout
        elif timeouts == 1:
            self.blocks[block[:last]] = head, None  # what comes before the timeout is the same in the next call

    def repeated(self, block: bytes) -> bytes | None:
        """What of a block that was read may come again byte for byte: all of it but a ``grpc-timeout`` at its end."""
        at = block.find(TIMEOUT_LITERAL)
        base = block[:at] if at > 0 else block
        known = self.blocks.get(base)
        return base if known is not None and known[1] is None else None

    def fields(self, block: bytes) -> Fields:
        """Fields of any block: trailers, and blocks of streams that are gone, which still move the table."""
        return self._read(block)[0]

    def _read(self, block: bytes) -> tuple[Fields, bool, int]:
        """Fields, whether the table changed, and where the last field begins."""
        try:
            if block and block[0] & 0xE0 == 0x20:
                self.blocks.clear()
                return tuple((bytes(n), bytes(v)) for n, v in self._decoder.decode(block, raw=True)), True, 0
            return self._walk(block)
        except OversizedHeaderListError as error:
            raise ConnectionFault(ENHANCE_YOUR_CALM, f"header list: {error}") from error
        except (HPACKError, IndexError, UnicodeError) as error:
            raise ConnectionFault(COMPRESSION_ERROR, f"header block: {error}") from error

    def _walk(self, block: bytes) -> tuple[Fields, bool, int]:  # noqa: PLR0912 - one loop: calls cost more
        dynamic = self._dynamic
        fields: list[Field] = []
        changed = False
        left = self._max_list
        at = last = 0
        while at < len(block):
            byte = block[at]
            last = at
            at += 1
            if byte & 0x80:  # indexed
                index = byte & 0x7F
                if index == 0x7F:
                    index, at = _integer(block, at, 0x7F)
                field = self._entry(index) if index < _DYNAMIC else dynamic[index - _DYNAMIC]
                if left >= 0:
                    fields.append(field)
                    left -= len(field[0]) + len(field[1]) + 32
                continue
            if byte & 0x40:
                index, mask = byte & 0x3F, 0x3F
            elif byte & 0x20:
                raise HPACKError("a table size update after a field")
            else:  # without indexing, or never
                index, mask = byte & 0x0F, 0x0F
            if index == mask:
                index, at = _integer(block, at, mask)
            if index:
                name = (self._entry(index) if index < _DYNAMIC else dynamic[index - _DYNAMIC])[0]
            else:
                name, at = _string(block, at)
            value, at = _string(block, at)
            if byte & 0x40:
                self._table.add(name, value)
                if not changed:
                    changed = True
                    self.blocks.clear()
            if left >= 0:  # above the limit only the table is kept up
                fields.append((name, value))
                left -= len(name) + len(value) + 32
        return tuple(fields), changed, last

    @staticmethod
    def _entry(index: int) -> Field:
        if index == 0:
            raise HPACKError("index 0")
        return _STATIC[index]


def _integer(block: bytes, at: int, value: int) -> tuple[int, int]:
    """Continuation of an integer whose prefix was all ones (section 5.1), and where it ends."""
    shift = 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7
        if shift > 28:
            raise HPACKError("an integer of more than 32 bits")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    """A string literal (section 5.2) and where it ends."""
    byte = block[at]
    size = byte & 0x7F
    at += 1
    if size == 0x7F:
        size, at = _integer(block, at, 0x7F)
    end = at + size
    if end > len(block):
        raise HPACKError("a string is longer than its block")
    text = block[at:end]
    return (decode_huffman(text) if byte & 0x80 else text), end
