"""Header blocks of requests (RFC 7541) and the dynamic table that they refer to, as kernels.

A client inserts something with nearly every call (grpc-go each ``grpc-timeout``), which moves what all other indices
mean. So the table is columns that the kernel of whole calls (`lean`) keeps up by itself, and every other block is read
over the same ones (`headers`).

A section is what a block says, as bytes: of each field the sizes of name and value (u32be each), name, value. The one
field that differs from call to call, ``grpc-timeout``, is left out of it and told as a number.
"""

# mypy: disable-error-code="arg-type, assignment, return-value, no-any-return"
# (inside kernels there is one kind of integer)

from __future__ import annotations

import numpy as np
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.table import HeaderTable
from numpy.typing import NDArray

from pumphouse.codec.jit import Bytes, Ints, kernel, primitive

TIMEOUT = b"grpc-timeout"
# Of timeouts in nanoseconds.
NO_TIMEOUT, MALFORMED = -1, -2
_LONGEST_S = 1e9

# SETTINGS_HEADER_TABLE_SIZE is the default one: we say no other. An entry counts 32 bytes more than it has.
MOST = 4096
ENTRIES = MOST // 32
# Entries are put one behind the other; the live ones move to the front when there is no room for one more.
_ARENA = 4 * MOST
# Rows of the entries' columns, and a table's numbers: live entries, their size as the RFC counts it, what it may be at
# most, the column of the newest, where the next one is put.
AT, NAME, VALUE = range(3)
COUNT, SIZE, LIMIT, NEWEST, END, NUMBERS = range(6)

# What is wrong with a block.
FAULTS = (
    "", "an index that the table does not have", "an integer of more than 32 bits, or without its end",
    "a string that is longer than its block", "no Huffman code", "a table size above the limit, or behind a field",
    "more than fits", "a header list of more than twice the limit",
)  # fmt: skip
_INDEX, _INTEGER, _STRING, _HUFFMAN, _UPDATE, _ROOM, TOO_LONG = range(1, len(FAULTS))


def _static() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The static table: all bytes, and the columns of its entries."""
    text, columns = b"", [(0, 0, 0)]
    for name, value in HeaderTable.STATIC_TABLE:
        columns.append((len(text), len(name), len(value)))
        text += name + value
    return np.frombuffer(text, np.uint8), np.array(columns, np.int64).T.copy()


def _tree() -> NDArray[np.int16]:
    """Huffman codes: node n goes on at ``[n, bit]``; a symbol is below 0, counted from -1."""
    nodes = [[0, 0]]
    for symbol, (code, length) in enumerate(zip(REQUEST_CODES, REQUEST_CODES_LENGTH, strict=True)):
        node = 0
        for bit in range(length - 1, 0, -1):
            side = code >> bit & 1
            if not nodes[node][side]:
                nodes.append([0, 0])
                nodes[node][side] = len(nodes) - 1
            node = nodes[node][side]
        nodes[node][code & 1] = -1 - symbol
    return np.array(nodes, np.int16)


_STATIC_TEXT, _STATIC = _static()
_STATICS = _STATIC.shape[1]
_TREE = _tree()
_END_OF_STRING = 256
_TIMEOUT = np.frombuffer(TIMEOUT, np.uint8)


class Table:
    """The dynamic table of one connection's peer."""

    __slots__ = ("arena", "entries", "numbers")

    def __init__(self) -> None:
        self.arena = np.empty(_ARENA, np.uint8)
        self.entries = np.zeros((3, ENTRIES), np.int64)
        self.numbers = np.zeros(NUMBERS, np.int64)
        self.numbers[LIMIT] = MOST


def scratch(block: int, section: int) -> NDArray[np.uint8]:
    """Room for the section of any block of up to ``block`` bytes, of which ``section`` are kept (RFC 9113, 6.5.2)."""
    # Of Huffman codes the shortest has 5 bits. One field is above the limit, and the next is read behind it.
    return np.empty(section + 2 * (block * 8 // 5 + MOST + 16), np.uint8)


@primitive
def _integer(data: Bytes, at: int, end: int, mask: int) -> tuple[int, int]:
    """An integer with a prefix of these bits (section 5.1), and where it ends; below 0 when it has none."""
    value = np.int64(data[at] & mask)
    at += 1
    if value < mask:
        return value, at
    shift = 0
    while at < end:
        byte = np.int64(data[at])
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 28:
            break
    return value, -1


@primitive
def _string(data: Bytes, at: int, end: int, out: Bytes, to: int) -> tuple[int, int, int]:  # noqa: PLR0911
    """Put a string literal (section 5.2) behind ``to``: where it ends there and in the block, and a fault."""
    if at >= end:
        return to, at, _STRING
    coded = data[at] & 0x80
    size, at = _integer(data, at, end, 0x7F)
    if at < 0:
        return to, at, _INTEGER
    if size > end - at:
        return to, at, _STRING
    if to + (size * 8 // 5 if coded else size) > len(out):
        return to, at, _ROOM
    stop = at + size
    if not coded:
        for byte in range(at, stop):
            out[to] = data[byte]
            to += 1
        return to, stop, 0
    node, depth, ones = np.int64(0), 0, True
    for byte in range(at, stop):
        bits = np.int64(data[byte])
        for shift in range(7, -1, -1):
            bit = bits >> shift & 1
            node = np.int64(_TREE[node, bit])
            depth += 1
            ones = ones and bit == 1
            if node < 0:
                if node == -1 - _END_OF_STRING:
                    return to, at, _HUFFMAN
                out[to] = -1 - node
                to += 1
                node, depth, ones = np.int64(0), 0, True
    return to, stop, 0 if depth < 8 and ones else _HUFFMAN


@primitive
def _evict(numbers: Ints, entries: Ints, room: int) -> None:
    """Forget the oldest entries until there is so much room."""
    while numbers[COUNT] and numbers[SIZE] + room > numbers[LIMIT]:
        oldest = (numbers[NEWEST] - numbers[COUNT] + 1) % ENTRIES
        numbers[SIZE] -= entries[NAME, oldest] + entries[VALUE, oldest] + 32
        numbers[COUNT] -= 1


@primitive
def _add(arena: Bytes, entries: Ints, numbers: Ints, text: Bytes, at: int, name: int, value: int) -> None:
    """Insert a field (section 4.4): one that is larger than the table empties it."""
    size = name + value
    _evict(numbers, entries, size + 32)
    if size + 32 > numbers[LIMIT]:
        return
    if numbers[END] + size > len(arena):
        # Oldest first, so that nothing is overwritten before it has moved.
        to = 0
        for back in range(numbers[COUNT] - 1, -1, -1):
            entry = (numbers[NEWEST] - back) % ENTRIES
            begin, length = entries[AT, entry], entries[NAME, entry] + entries[VALUE, entry]
            for byte in range(length):
                arena[to + byte] = arena[begin + byte]
            entries[AT, entry] = to
            to += length
        numbers[END] = to
    newest = (numbers[NEWEST] + 1) % ENTRIES
    begin = numbers[END]
    for byte in range(size):
        arena[begin + byte] = text[at + byte]
    entries[AT, newest], entries[NAME, newest], entries[VALUE, newest] = begin, name, value
    numbers[NEWEST], numbers[END] = newest, begin + size
    numbers[COUNT] += 1
    numbers[SIZE] += size + 32


@primitive
def _timeout_ns(text: Bytes, at: int, end: int) -> int:  # noqa: PLR0911 - each unit is a way out
    """Of the value of a ``grpc-timeout``: at most 8 digits and a unit."""
    digits = end - 1 - at
    if digits < 1 or digits > 8:
        return MALFORMED
    number = 0.0
    for place in range(at, end - 1):
        if text[place] < 0x30 or text[place] > 0x39:
            return MALFORMED
        number = number * 10 + (text[place] - 0x30)
    unit = text[end - 1]
    if unit == 0x48:  # H
        seconds = number * 3600.0
    elif unit == 0x4D:  # M
        seconds = number * 60.0
    elif unit == 0x53:  # S
        seconds = number
    elif unit == 0x6D:  # m
        return np.int64(number * 1e6)
    elif unit == 0x75:  # u
        return np.int64(number * 1e3)
    elif unit == 0x6E:  # n
        return np.int64(number)
    else:
        return MALFORMED
    return np.int64(min(seconds, _LONGEST_S) * 1e9)


@primitive
def _is_timeout(text: Bytes, at: int, size: int) -> bool:
    """Whether a name is that of a timeout."""
    if size != len(_TIMEOUT):
        return False
    for byte in range(size):  # noqa: SIM110 - kernels have no `all`
        if text[at + byte] != _TIMEOUT[byte]:
            return False
    return True


@primitive
def read_block(  # noqa: C901, PLR0911, PLR0912 - one loop over the representations of a field (section 6)
    data: Bytes, at: int, end: int, arena: Bytes, entries: Ints, numbers: Ints, out: Bytes, most: int,
) -> tuple[int, int, int]:  # fmt: skip
    """Read a block into ``out``: the size of its section, the timeout in nanoseconds, a fault of `FAULTS` or 0.

    ``most``: names, values and 32 a field that are kept; behind the first field that is above it only the table is
    kept up, for whoever asked to refuse the block. A byte may stand for all of the table, so twice as much is a fault.
    """
    size, timeout, left = 0, NO_TIMEOUT, most
    first = True
    while at < end:
        byte = data[at]
        indexed, inserts = byte & 0x80 != 0, byte & 0xC0 == 0x40
        if byte & 0xE0 == 0x20:
            limit, at = _integer(data, at, end, 0x1F)
            if at < 0 or not first or limit > MOST:
                return size, timeout, _UPDATE
            numbers[LIMIT] = limit
            _evict(numbers, entries, 0)
            continue
        first = False
        index, at = _integer(data, at, end, 0x7F if indexed else 0x3F if inserts else 0x0F)
        if at < 0:
            return size, timeout, _INTEGER
        begin = to = size + 8
        if to + MOST > len(out):
            return size, timeout, _ROOM
        name = value = 0
        if index == 0:
            if indexed:
                return size, timeout, _INDEX
            to, at, fault = _string(data, at, end, out, to)
            if fault:
                return size, timeout, fault
            name = to - begin
        elif index < _STATICS:
            start, name = _STATIC[AT, index], _STATIC[NAME, index]
            value = _STATIC[VALUE, index] if indexed else 0
            for each in range(name + value):
                out[to + each] = _STATIC_TEXT[start + each]
            to += name + value
        elif index < _STATICS + numbers[COUNT]:
            entry = (numbers[NEWEST] - (index - _STATICS)) % ENTRIES
            start, name = entries[AT, entry], entries[NAME, entry]
            value = entries[VALUE, entry] if indexed else 0
            for each in range(name + value):
                out[to + each] = arena[start + each]
            to += name + value
        else:
            return size, timeout, _INDEX
        if not indexed:
            to, at, fault = _string(data, at, end, out, to)
            if fault:
                return size, timeout, fault
            value = to - begin - name
            if inserts:
                _add(arena, entries, numbers, out, begin, name, value)
        if _is_timeout(out, begin, name):
            found = _timeout_ns(out, begin + name, to)
            timeout = found if timeout == NO_TIMEOUT else MALFORMED
        elif left >= 0:
            for each in range(4):
                out[size + each] = name >> 24 - 8 * each & 0xFF
                out[size + 4 + each] = value >> 24 - 8 * each & 0xFF
            size = to
        left -= name + value + 32
        if left < -most:
            return size, timeout, TOO_LONG
    return size, timeout, 0


@kernel
def read_one(data: Bytes, arena: Bytes, entries: Ints, numbers: Ints, out: Bytes, most: int) -> tuple[int, int, int]:
    """`read_block` of all of ``data``."""
    return read_block(data, 0, len(data), arena, entries, numbers, out, most)
