"""CRC-32C inside kernels: the processor's own instruction where it has one (x86-64 with SSE 4.2), else tables.

The processor's takes eight bytes in three cycles, so a record is checked faster than it is copied. `crc32c` of
google_crc32c is the reference.
"""

# mypy: disable-error-code="arg-type, assignment, return-value, no-untyped-def, no-untyped-call, misc"
# (inside kernels there is one kind of integer; numba's extension interface has no types)

from __future__ import annotations

import platform
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from pumphouse.codec.jit import Bytes, kernel, primitive
from pumphouse.codec.raw import load_u64

_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected
_INVERT = np.uint64(0xFFFFFFFF)


def _has_instruction() -> bool:
    features: dict[str, bool] = dict(llvm.get_host_cpu_features())
    return platform.machine() in ("x86_64", "AMD64") and bool(features.get("sse4.2"))


def tables(polynomial: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """(8, 256): what a byte does to the sum when 0 to 7 bytes follow it; of a reflected polynomial."""
    table = np.zeros((8, 256), dtype=np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (polynomial if value & 1 else 0)
        table[0, byte] = value
    for row in range(1, 8):
        table[row] = table[row - 1] >> np.uint32(8) ^ table[0][table[row - 1] & 0xFF]
    return table


_TABLE = tables(_POLYNOMIAL)


def _instruction(name: str, bits: int) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def step(_typing: Any, crc: Any, word: Any) -> Any:
        del crc, word
        kind = types.uint64 if bits == 64 else types.uint32
        narrow = types.uint64 if bits == 64 else types.uint8

        def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            wide = ir.IntType(bits if bits == 64 else 32)
            small = ir.IntType(bits)
            function = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(wide, [wide, small]), f"llvm.x86.sse42.crc32.{name}"
            )
            return builder.call(function, args)

        return kind(kind, narrow), codegen

    return step


@primitive
def crc_by_table(data: Bytes, start: int, stop: int, crc: int) -> int:
    """As `crc_more`, on any processor."""
    value = np.uint64(crc) ^ _INVERT
    at = np.int64(start)
    low = np.uint64(0xFF)
    while at + 8 <= stop:
        word = load_u64(data, at) ^ value
        value = np.uint64(
            _TABLE[7, word & low]
            ^ _TABLE[6, (word >> np.uint64(8)) & low]
            ^ _TABLE[5, (word >> np.uint64(16)) & low]
            ^ _TABLE[4, (word >> np.uint64(24)) & low]
            ^ _TABLE[3, (word >> np.uint64(32)) & low]
            ^ _TABLE[2, (word >> np.uint64(40)) & low]
            ^ _TABLE[1, (word >> np.uint64(48)) & low]
            ^ _TABLE[0, word >> np.uint64(56)]
        )
        at += 8
    while at < stop:
        value = np.uint64(_TABLE[0, (value ^ np.uint64(data[at])) & low]) ^ (value >> np.uint64(8))
        at += 1
    return np.int64(value ^ _INVERT)


if _has_instruction():
    _step64 = _instruction("64.64", 64)
    _step8 = _instruction("32.8", 8)

    @primitive
    def crc_more(data: Bytes, start: int, stop: int, crc: int) -> int:
        """The sum goes on over data[start:stop]; ``crc`` is 0 or what it gave before."""
        value = np.uint64(crc) ^ _INVERT
        at = np.int64(start)
        while at + 8 <= stop:
            value = _step64(value, load_u64(data, at))
            at += 8
        last = np.uint32(value)
        while at < stop:
            last = _step8(last, data[at])
            at += 1
        return np.int64(np.uint64(last) ^ _INVERT)

else:
    crc_more = crc_by_table


@kernel
def crc32c_of(data: Bytes, start: int, stop: int, crc: int) -> int:
    """CRC-32C of data[start:stop], for callers outside kernels; ``crc`` goes on from an earlier part, else 0."""
    return crc_more(data, start, stop, crc)
