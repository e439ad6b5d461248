"""CRC-32 (zlib's) inside kernels, eight bytes a step: each event of a binlog ends with one."""

# mypy: disable-error-code="arg-type, assignment, return-value"
# (inside kernels there is one kind of integer)

from __future__ import annotations

import numpy as np

from pumphouse.codec.crc import tables
from pumphouse.codec.jit import Bytes, primitive
from pumphouse.codec.raw import load_u64

_POLYNOMIAL = 0xEDB88320
_ONES = np.uint32(0xFFFFFFFF)
_TABLE = tables(_POLYNOMIAL)


@primitive
def crc32(data: Bytes, start: int, end: int) -> np.uint32:
    """Checksum of ``data[start:end]``; `zlib.crc32` is the reference."""
    crc = _ONES
    at = start
    while at + 8 <= end:
        word = load_u64(data, at) ^ np.uint64(crc)
        crc = (
            _TABLE[7, word & np.uint64(0xFF)]
            ^ _TABLE[6, word >> np.uint64(8) & np.uint64(0xFF)]
            ^ _TABLE[5, word >> np.uint64(16) & np.uint64(0xFF)]
            ^ _TABLE[4, word >> np.uint64(24) & np.uint64(0xFF)]
            ^ _TABLE[3, word >> np.uint64(32) & np.uint64(0xFF)]
            ^ _TABLE[2, word >> np.uint64(40) & np.uint64(0xFF)]
            ^ _TABLE[1, word >> np.uint64(48) & np.uint64(0xFF)]
            ^ _TABLE[0, word >> np.uint64(56)]
        )
        at += 8
    while at < end:
        crc = _TABLE[0, (crc ^ np.uint32(data[at])) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
        at += 1
    return crc ^ _ONES
