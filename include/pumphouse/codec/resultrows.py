"""Rows of a MySQL text result set as they come over the wire, into one buffer a column.

A packet is three bytes of length, one of sequence and the payload; a row's payload is one length-encoded string a
column, 0xFB for NULL (MySQL documentation, "Text Resultset Row").
"""

from __future__ import annotations

from pumphouse.codec.jit import Bytes, Ints, kernel

MORE, END, ERROR, LARGE, DAMAGED = 0, 1, 2, 3, 4
_HEADER = 4


@kernel
def _length(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """(length, where the bytes begin) of a length-encoded string; length -1 = NULL, -2 = it does not fit."""
    if at >= end:
        return -2, at
    first = int(data[at])
    if first < 0xFB:
        return first, at + 1
    if first == 0xFB:
        return -1, at + 1
    width = 2 if first == 0xFC else 3 if first == 0xFD else 8
    if first == 0xFF or at + 1 + width > end:
        return -2, at
    size = 0
    for byte in range(width):
        size |= int(data[at + 1 + byte]) << (8 * byte)
    return size, at + 1 + width


@kernel
def scan(data: Bytes, start: int, end: int, sizes: Ints, found: Ints) -> None:
    """Count the whole rows in ``data[start:end]`` and their bytes by column.

    ``sizes`` (one a column) is added to. ``found`` becomes (rows, position behind them, why it stopped: MORE, the END
    packet, an ERROR packet, a LARGE one that goes on in the next, DAMAGED).
    """
    at, rows, why = start, 0, MORE
    while at + _HEADER <= end:
        size = int(data[at]) | int(data[at + 1]) << 8 | int(data[at + 2]) << 16
        body = at + _HEADER
        if size == 0xFFFFFF:
            why = LARGE
            break
        if body + size > end:
            break
        if size and data[body] == 0xFF:
            why = ERROR
            break
        if size and data[body] == 0xFE and size < 9:
            why = END
            break
        place = body
        for column in range(len(sizes)):
            length, place = _length(data, place, body + size)
            if length < -1 or place + max(length, 0) > body + size:
                why = DAMAGED
                break
            if length > 0:
                sizes[column] += length
                place += length
        if why == DAMAGED:
            break
        rows += 1
        at = body + size
    found[0], found[1], found[2] = rows, at, why


@kernel
def copy(data: Bytes, start: int, rows: int, places: Ints, offsets: Ints, out: Bytes, valid: Bytes) -> None:
    """Copy the values of ``rows`` rows that `scan` has counted.

    ``places``: where each column's bytes begin in ``out``. ``offsets`` (flat, columns x (rows + 1), from 0 in each
    column) and ``valid`` (flat, columns x rows) are filled.
    """
    columns = len(places)
    for column in range(columns):
        offsets[column * (rows + 1)] = 0
    at = start
    for row in range(rows):
        size = int(data[at]) | int(data[at + 1]) << 8 | int(data[at + 2]) << 16
        place, end = at + _HEADER, at + _HEADER + size
        for column in range(columns):
            length, place = _length(data, place, end)
            valid[column * rows + row] = length >= 0
            length = max(length, 0)
            used = offsets[column * (rows + 1) + row]
            target = places[column] + used
            for byte in range(length):
                out[target + byte] = data[place + byte]
            offsets[column * (rows + 1) + row + 1] = used + length
            place += length
        at = end
