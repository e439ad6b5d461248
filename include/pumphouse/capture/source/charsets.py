"""Character sets of a source's columns: which are UTF-8 already, and maps of those that are not.

TiDB Binlog has texts in UTF-8. The maps are MySQL's own: its latin1 is Windows-1252 with five more characters. A test
holds them against what servers make of every code.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from pumphouse.codec.jit import Int32s, frozen

# Bytes that go through as they are.
PLAIN = frozenset({"utf8mb4", "utf8mb3", "utf8", "binary"})
# A server keeps bytes above 127 in an ascii column too: they are no text, and are refused by name.
MAPPED = frozenset({"ascii", "latin1", "gbk"})
KNOWN = PLAIN | MAPPED
_LEADS = -1
# Codes of MySQL's gbk that Python's gbk has otherwise or not at all.
_GBK = {0xA1A4: "\u00b7", 0xA1AA: "\u2014"}


@cache
def character_map(charset: str) -> Int32s:
    """How bytes become UTF-8, as `rows` reads it: bytes from the lowest on, their number above, -1 = leads another."""
    if charset == "latin1":
        return frozen(np.array([_entry(_latin1(byte)) for byte in range(256)], np.int32))
    if charset == "ascii":
        return frozen(np.array([_entry(chr(byte)) for byte in range(128)] + [0] * 128, np.int32))
    out = np.zeros(256 + (1 << 16), np.int32)
    out[:128] = [_entry(chr(byte)) for byte in range(128)]
    for lead in range(0x81, 0xFF):
        out[lead] = _LEADS
        for trail in range(0x40, 0xFF):
            code = lead << 8 | trail
            try:
                text = _GBK.get(code) or bytes((lead, trail)).decode("gbk")
            except UnicodeDecodeError:
                continue
            out[256 + code] = _entry(text)
    return frozen(out)


def _latin1(byte: int) -> str:
    return bytes((byte,)).decode("cp1252") if byte not in (0x81, 0x8D, 0x8F, 0x90, 0x9D) else chr(byte)


def _entry(text: str) -> int:
    data = text.encode()
    return len(data) << 24 | int.from_bytes(data, "little")


def decoded(data: bytes, charset: str) -> str:
    """A name in a column's character set, such as an element of an ENUM."""
    if charset == "latin1":
        return "".join(map(_latin1, data))
    return data.decode("gbk" if charset == "gbk" else "utf-8", "replace")
