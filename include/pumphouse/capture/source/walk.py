"""Kernels that walk over what a source sends: packets -> events -> transactions and their rows events, as columns.

Formats: MySQL's documentation of the binlog and of COM_BINLOG_DUMP; MariaDB Knowledge Base, "Replication Protocol". A
packet is three bytes of length, one of sequence, a status byte (with semi-sync two more) and an event: a header of 19
bytes (u32 time, u8 type, u32 server id, u32 size, u32 end in the file, u16 flags), a body and, where the format
description says so, a CRC-32.
"""

# mypy: disable-error-code="arg-type, assignment, return-value, call-overload, operator, no-any-return"
# (inside kernels there is one kind of integer)

from __future__ import annotations

import numpy as np

from pumphouse.capture.source import codes
from pumphouse.capture.source.crc import crc32
from pumphouse.codec.jit import Bytes, Ints, UInts, kernel, primitive
from pumphouse.codec.raw import load_u64

# Why `packets` stopped.
MORE, FULL, END, ERROR, DAMAGED, CHECKSUM, FORMAT = range(7)
# What it says: events found, position behind them, why it stopped, the event that is to be acknowledged (-1 = none).
FOUND = 4

# Why `transactions` stopped.
DONE, ROOM, NEW_TABLE, STATEMENT, OTHER, UNKNOWN_TABLE, NO_TRANSACTION, UNFINISHED, BROKEN = range(9)

# Of `transactions`' state: what it is in (`OUTSIDE`, `OPENED`: a GTID, `BEGUN`), how many tables are open.
STATE_IN, STATE_OPEN, STATES = 0, 1, 2
OUTSIDE, OPENED, BEGUN = 0, 1, 2

# Columns of a transaction: where its GTID event is (-1 = in an earlier group), end of its last event in the data,
# end in the source's file, its first rows event, the one behind its last, whether it is whole; time, server id, and
# of MariaDB's GTID number, domain, flags; of MySQL's number, where the UUID is, microseconds.
T_AT, T_END, T_FILE_END, T_FIRST, T_LAST, T_WHOLE, T_SECONDS, T_SERVER, T_NUMBER, T_DOMAIN, T_FLAGS, T_MICROS = range(
    12
)
T_COLUMNS = 12

STANDALONE, PREPARED_XA, COMPLETED_XA = 1, 64, 128

# Columns of a rows event (`model.RowsEvents`).
R_TABLE, R_KIND, R_BITMAPS, R_START, R_END, R_FLAGS = range(6)
R_COLUMNS = 6

# Tables that are known: slots of a hash table (open addressing, a power of two, -1 = free), then by index hashes, where
# the definitions begin (and the next ones), their bytes, and how many columns they have.
Definitions = tuple[Ints, UInts, Ints, Bytes, Ints]

_BEGIN = np.frombuffer(b"BEGIN", np.uint8)
_COMMIT = np.frombuffer(b"COMMIT", np.uint8)
_HASH = np.uint64(0x9E3779B97F4A7C15)


@primitive
def u16(data: Bytes, at: int) -> int:
    """Two bytes, little endian."""
    return np.int64(data[at]) | np.int64(data[at + 1]) << 8


@primitive
def u24(data: Bytes, at: int) -> int:
    """Three bytes, little endian."""
    return u16(data, at) | np.int64(data[at + 2]) << 16


@primitive
def u32(data: Bytes, at: int) -> int:
    """Four bytes, little endian."""
    return u24(data, at) | np.int64(data[at + 3]) << 24


@primitive
def u48(data: Bytes, at: int) -> int:
    """Six bytes, little endian."""
    return u32(data, at) | u16(data, at + 4) << 32


@primitive
def u56(data: Bytes, at: int) -> int:
    """Seven bytes, little endian."""
    return u48(data, at) | np.int64(data[at + 6]) << 48


@primitive
def lenenc(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """(a length-encoded integer, position behind it); the position is -1 where it does not fit."""
    if at >= end:
        return 0, -1
    first = np.int64(data[at])
    if first < 0xFB:
        return first, at + 1
    width = 2 if first == 0xFC else 3 if first == 0xFD else 8
    if first in (0xFB, 0xFF) or at + 1 + width > end:
        return 0, -1
    value = np.int64(0)
    for byte in range(width):
        value |= np.int64(data[at + 1 + byte]) << (8 * byte)
    return (value, at + 1 + width) if value >= 0 else (0, -1)


@primitive
def _joined(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """(payload bytes, position behind) of an event in several packets, joined in place; (-1, -1): not all is there."""
    total, place = 0, at
    while True:
        if place + 4 > end:
            return -1, -1
        size = u24(data, place)
        if place + 4 + size > end:
            return -1, -1
        total += size
        place += 4 + size
        if size < 0xFFFFFF:
            break
    behind = place
    place, to = at, at + 4
    while True:
        size = u24(data, place) if place > at else 0xFFFFFF
        following = place + 4 + size
        # The header of the next packet is read before bytes are moved over it.
        if place > at:
            for byte in range(size):
                data[to + byte] = data[place + 4 + byte]
        to += size
        if size < 0xFFFFFF:
            return total, behind
        place = following


@kernel
def packets(  # noqa: C901, PLR0912, PLR0915 - one pass over what a socket read brought
    data: Bytes,
    at: int,
    end: int,
    summed: bool,
    acknowledging: bool,
    begins: Ints,
    sizes: Ints,
    types: Ints,
    found: Ints,
) -> None:
    """Find the events of whole packets in ``data[at:end]``.

    It stops behind a format description, behind what was compressed, and before a rotation behind an event to be
    acknowledged.
    ``begins``, ``sizes`` (header included, checksum not) and ``types`` get one entry an event. ``found`` becomes
    (events, position behind them, why it stopped, index of the last event to be acknowledged or -1).
    """
    count, why, asked = 0, MORE, -1
    head = 3 if acknowledging else 1
    while at + 4 <= end:
        if count == len(begins):
            why = FULL
            break
        size = u24(data, at)
        behind = at + 4 + size
        if size == 0xFFFFFF:
            size, behind = _joined(data, at, end)
            if size < 0:
                break
        if behind > end:
            break
        begin = at + 4
        if size == 0:
            why = DAMAGED
            break
        if data[begin] != 0:
            why = END if data[begin] == 0xFE and size < 9 else ERROR if data[begin] == 0xFF else DAMAGED
            break
        if size < head + codes.HEADER or (acknowledging and data[begin + 1] != 0xEF):
            why = DAMAGED
            break
        wanted = acknowledging and data[begin + 2] == 1
        begin += head
        length = size - head
        if u32(data, begin + 9) != length:
            why = DAMAGED
            break
        kind = np.int64(data[begin + 4])
        if kind == codes.ROTATE and asked >= 0:
            why = FULL  # the one to be acknowledged is of the file before it
            break
        with_sum = summed or kind == codes.FORMAT
        if with_sum:
            length -= 4
            if length < codes.HEADER:
                why = DAMAGED
                break
        # A format description has its sum only where its own events have: the byte before it says so.
        checked = with_sum and (kind != codes.FORMAT or data[begin + length - 1] == 1)
        if checked and np.int64(crc32(data, begin, begin + length)) != u32(data, begin + length):
            why = CHECKSUM
            break
        begins[count], sizes[count], types[count] = begin, length, kind
        if wanted:
            asked = count
        count += 1
        at = behind
        if kind == codes.FORMAT:
            why = FORMAT
            break
        if kind in codes.COMPRESSED:
            why = FULL  # what it becomes may be a thousand times as large: it is counted before the next
            break
    found[0], found[1], found[2], found[3] = count, at, why, asked


@kernel
def plain_events(data: Bytes, begins: Ints, sizes: Ints, types: Ints) -> int:
    """Events one behind the other, without packets and checksums: how many; -1 = damaged, -2 = no room."""
    at, end, count = 0, len(data), 0
    while at < end:
        if count == len(begins):
            return -2
        if at + codes.HEADER > end:
            return -1
        size = u32(data, at + 9)
        if size < codes.HEADER or at + size > end:
            return -1
        begins[count], sizes[count], types[count] = at, size, data[at + 4]
        count += 1
        at += size
    return count


@primitive
def hash_of(data: Bytes, at: int, end: int) -> np.uint64:
    """64 bits of a definition; equal ones are compared whole."""
    value = np.uint64(end - at)
    while at + 8 <= end:
        value = (value ^ load_u64(data, at)) * _HASH
        value ^= value >> np.uint64(29)
        at += 8
    while at < end:
        value = (value ^ np.uint64(data[at])) * _HASH
        at += 1
    return value ^ value >> np.uint64(32)


@kernel
def definition_hash(data: Bytes, at: int, end: int) -> np.uint64:
    """`hash_of`, for who keeps the definitions."""
    return hash_of(data, at, end)


@primitive
def _known(data: Bytes, at: int, end: int, definitions: Definitions) -> int:
    """Index of a definition that is known, -1 = it is not."""
    slots, hashes, places, kept, _ = definitions
    value = hash_of(data, at, end)
    mask = np.uint64(len(slots) - 1)
    slot = np.int64(value & mask)
    while slots[slot] >= 0:
        index = slots[slot]
        begin = places[index]
        if hashes[index] == value and places[index + 1] - begin == end - at:
            same = True
            for byte in range(end - at):
                if kept[begin + byte] != data[at + byte]:
                    same = False
                    break
            if same:
                return index
        slot = np.int64(np.uint64(slot + 1) & mask)
    return -1


@primitive
def _text_of(data: Bytes, begin: int, end: int) -> int:
    """Where the statement of a query event begins, -1 = damaged."""
    body = begin + codes.HEADER
    if body + 13 > end:
        return -1
    at = body + 13 + u16(data, body + 11) + np.int64(data[body + 8]) + 1
    return at if at <= end else -1


@primitive
def _is(data: Bytes, at: int, end: int, word: Bytes) -> bool:
    same = end - at == len(word)
    for byte in range(len(word) if same else 0):
        same = same and data[at + byte] == word[byte]
    return same


@primitive
def _open_transaction(
    data: Bytes, base: int, begin: int, size: int, kind: int, state: Ints, txns: Ints, at: int, first: int
) -> bool:
    """Begin a transaction by its GTID event; False = the event is damaged."""
    body, end = begin + codes.HEADER, begin + size
    for column in range(T_COLUMNS):
        txns[at, column] = 0
    txns[at, T_AT] = base + begin
    txns[at, T_FIRST] = first
    txns[at, T_SECONDS] = u32(data, begin)
    txns[at, T_SERVER] = u32(data, begin + 5)
    if kind == codes.MARIADB_GTID:
        if body + 13 > end:
            return False
        txns[at, T_NUMBER] = u32(data, body) | u32(data, body + 4) << 32
        txns[at, T_DOMAIN] = u32(data, body + 8)
        flags = np.int64(data[body + 12])
        txns[at, T_FLAGS] = flags
        state[STATE_IN] = OPENED if flags & STANDALONE else BEGUN
    else:
        if body + 25 > end:
            return False
        txns[at, T_NUMBER] = u32(data, body + 17) | u32(data, body + 21) << 32
        # Behind the number: a type, two numbers of logical clocks, then when it was committed here and at its origin.
        if body + 49 <= end and data[body + 25] == 2:
            here = u56(data, body + 42)
            micros = here & 0x7FFFFFFFFFFFFF
            if here >> 55 and body + 56 <= end:
                micros = u56(data, body + 49)
            txns[at, T_MICROS] = micros
        state[STATE_IN] = OPENED
    state[STATE_OPEN] = 0
    return True


@primitive
def _rows_event(
    data: Bytes, base: int, begin: int, end: int, kind: int, ids: Ints, indices: Ints, opened: int, widths: Ints,
    out: Ints, at: int,
) -> int:  # fmt: skip
    """Note a rows event: 1 = noted, 0 = it has no rows, -1 = its table is unknown, -2 = damaged."""
    second = kind >= codes.WRITE_V2
    place = begin + codes.HEADER
    if place + 8 + 2 * second > end:
        return -2
    number, flags = u48(data, place), u16(data, place + 6)
    place += 8
    if second:
        place += u16(data, place)
    found = -1
    for index in range(opened - 1, -1, -1):
        if ids[index] == number:
            found = indices[index]
            break
    width, place = lenenc(data, place, end)
    if place < 0 or width > 8 * (end - place):
        return -2
    what = kind - (codes.WRITE_V2 if second else codes.WRITE_V1)
    maps = (width + 7) // 8 * (2 if what == 1 else 1)
    if found < 0:
        # It may only say that the statement ends. A table may have such a number too, once so many were opened.
        dummy = number in (0xFFFFFF, 0xFFFFFFFFFFFF) and flags & 1 and place + maps == end
        return 0 if dummy else -1
    if width != widths[found] or place + maps > end:
        return -2
    out[at, R_TABLE] = found
    out[at, R_KIND] = what
    out[at, R_BITMAPS] = base + place
    out[at, R_START] = base + place + maps
    out[at, R_END] = base + end
    out[at, R_FLAGS] = flags
    return 1


@kernel
def transactions(  # noqa: C901, PLR0912, PLR0915 - one pass over what a socket read brought
    data: Bytes,
    base: int,
    begins: Ints,
    sizes: Ints,
    types: Ints,
    counts: Ints,
    state: Ints,
    ids: Ints,
    indices: Ints,
    definitions: Definitions,
    txns: Ints,
    rows: Ints,
) -> int:
    """Put events together to transactions, from event ``counts[0]`` to ``counts[1]``; why it stopped.

    ``counts``: [event, events, transactions, rows events]; the first says where it stopped, the last two grow. While
    one is under way its row in ``txns`` is the one at ``counts[2]``. What is not common stops it, for a closer look.
    ``base`` is added to all positions that are written.
    """
    at, count, noted = counts[0], counts[2], counts[3]
    why = DONE
    while at < counts[1]:
        begin, size, kind = begins[at], sizes[at], types[at]
        end = begin + size
        inside = state[STATE_IN]
        if kind in (codes.MARIADB_GTID, codes.GTID, codes.ANONYMOUS_GTID):
            if inside != OUTSIDE:
                why = UNFINISHED
                break
            if count >= len(txns):
                why = ROOM
                break
            if not _open_transaction(data, base, begin, size, kind, state, txns, count, noted):
                why = BROKEN
                break
        elif kind == codes.TABLE_MAP:
            if inside == OUTSIDE:
                why = NO_TRANSACTION
                break
            body = begin + codes.HEADER
            if body + 8 > end:
                why = BROKEN
                break
            index = _known(data, body + 8, end, definitions)
            if index < 0:
                why = NEW_TABLE
                break
            number = u48(data, body)
            opened = state[STATE_OPEN]
            place = opened
            for each in range(opened):
                if ids[each] == number:
                    place = each
                    break
            if place == len(ids):
                why = ROOM
                break
            ids[place], indices[place] = number, index
            state[STATE_OPEN] = max(opened, place + 1)
        elif codes.WRITE_V1 <= kind <= codes.DELETE_V1 or codes.WRITE_V2 <= kind <= codes.DELETE_V2:
            if inside == OUTSIDE:
                why = NO_TRANSACTION
                break
            if noted >= len(rows):
                why = ROOM
                break
            got = _rows_event(
                data, base, begin, end, kind, ids, indices, state[STATE_OPEN], definitions[4], rows, noted
            )
            if got < 0:
                why = UNKNOWN_TABLE if got == -1 else BROKEN
                break
            noted += got
        elif kind == codes.XID:
            if inside == OUTSIDE:
                why = NO_TRANSACTION
                break
            txns[count, T_WHOLE] = 1
        elif kind == codes.QUERY:
            text = _text_of(data, begin, end)
            if text < 0:
                why = BROKEN
                break
            if inside == BEGUN and _is(data, text, end, _COMMIT):
                txns[count, T_WHOLE] = 1
            elif inside != OUTSIDE and _is(data, text, end, _BEGIN):
                state[STATE_IN] = BEGUN
            else:
                why = STATEMENT
                break
        elif kind not in (
            codes.ANNOTATE_ROWS, codes.ROWS_QUERY, codes.CHECKPOINT, codes.GTID_LIST, codes.PREVIOUS_GTIDS, codes.STOP,
            codes.TRANSACTION_CONTEXT, codes.VIEW_CHANGE, codes.IGNORABLE,
        ):  # fmt: skip
            why = OTHER
            break
        if state[STATE_IN] != OUTSIDE:
            txns[count, T_END] = base + end
            txns[count, T_FILE_END] = u32(data, begin + 13)
            txns[count, T_LAST] = noted
            if txns[count, T_WHOLE]:
                state[STATE_IN] = OUTSIDE
                count += 1
        at += 1
    counts[0], counts[2], counts[3] = at, count, noted
    return why
