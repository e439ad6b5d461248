"""Kernels that hash and rank key columns. The values are part of how rows are bucketed: they must never change."""

# mypy: disable-error-code="arg-type, assignment, return-value"
# (inside kernels there is one kind of integer)

from __future__ import annotations

import numpy as np

from pumphouse.codec.jit import Bytes, Ints, UInts, kernel

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_NULL = np.uint64(0x8BADF00D5EEDC0DE)


@kernel
def mix(value: np.uint64) -> np.uint64:
    """The finalizer of splitmix64."""
    value ^= value >> np.uint64(30)
    value *= np.uint64(0xBF58476D1CE4E5B9)
    value ^= value >> np.uint64(27)
    value *= np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@kernel
def hash_words(words: UInts, valid: Bytes, out: UInts) -> None:
    """Fold a column of 64-bit patterns into the rows' hashes."""
    for row in range(len(out)):
        word = words[row] if valid[row] else _NULL
        out[row] = mix((out[row] ^ mix(word)) + _GOLDEN)


@kernel
def hash_bytes(data: Bytes, offsets: Ints, valid: Bytes, out: UInts) -> None:
    """Fold a column of byte strings into the rows' hashes: length first, then eight little-endian bytes at a time."""
    for row in range(len(out)):
        if not valid[row]:
            out[row] = mix((out[row] ^ mix(_NULL)) + _GOLDEN)
            continue
        pos, end = offsets[row], offsets[row + 1]
        folded = mix(np.uint64(end - pos) + _GOLDEN)
        while pos < end:
            word = np.uint64(0)
            stop = min(pos + 8, end)
            for at in range(stop - 1, pos - 1, -1):
                word = word << np.uint64(8) | np.uint64(data[at])
            folded = mix((folded ^ word) + _GOLDEN)
            pos = stop
        out[row] = mix((out[row] ^ folded) + _GOLDEN)


@kernel
def prefixes(data: Bytes, offsets: Ints, out: UInts) -> None:
    """The first eight bytes of each string as a big-endian number; of a shorter one with zeros behind."""
    for row in range(len(out)):
        pos, end = offsets[row], offsets[row + 1]
        word = np.uint64(0)
        for at in range(pos, pos + 8):
            word = word << np.uint64(8)
            if at < end:
                word |= np.uint64(data[at])
        out[row] = word
