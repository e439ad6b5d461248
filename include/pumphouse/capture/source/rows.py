"""Kernel that turns the row images of rows events into table mutations of TiDB Binlog (docs/formats.md).

A mutation is made for each rows event: its rows, then the sequence of their kinds. An update that moves a row to
another clustered key becomes a deleted and an inserted row, as TiDB writes it. Values: MySQL's documentation
("Rows_event", the binary log's storage of DECIMAL, DATETIME2, TIME2 and TIMESTAMP2).
"""

# mypy: disable-error-code="arg-type, assignment, return-value, operator, index, no-any-return"
# (inside kernels there is one kind of integer)

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pumphouse.capture.source import jsonb
from pumphouse.capture.source.walk import u24, u32
from pumphouse.codec.jit import Bytes, Int32s, Ints, UInts, kernel, primitive
from pumphouse.codec.raw import copy_bytes
from pumphouse.codec.wire import put_uvarint, put_varint

# How a column's value is written.
(
    SKIP, SIGNED, UNSIGNED, YEAR, FLOAT, DOUBLE, DECIMAL, BITS, NUMBER, DATE, DATETIME, TIMESTAMP, TIME,
    OLD_DATETIME, OLD_TIMESTAMP, OLD_TIME, STRING, PADDED, MAPPED, JSON, HELPED,
) = range(21)  # fmt: skip

# Columns of `columns`, one row a column of a table: bytes of a value (0 = it has a length, in so many `PREFIX` bytes),
# how it is written, id, digits or length, begin in the table of characters, and what an image of n bytes may become at
# most: n * GROWTH + PLUS. DEFAULT: a NULL is written into inserted rows; LISTED: inserted rows have it in their list.
FIXED, PREFIX, OP, ID, ARGUMENT, MAP, GROWTH, PLUS, DEFAULT, LISTED, COLUMN_FIELDS = range(11)
# Columns of `targets`, one row a table: its first column, how many, table id, kind of handle, its first key part, how
# many.
FIRST, WIDTH, TABLE_ID, HANDLE, KEY_FIRST, KEYS, TARGET_FIELDS = range(7)
HIDDEN, INTEGER, COMMON = range(3)
# Columns of `keys`: column (of the table), characters of a prefix (-1 = the whole), spaces at the end count not.
KEY_COLUMN, KEY_LENGTH, KEY_TRIMMED, KEY_FIELDS = range(4)

# Why `encode` stopped.
DONE, FULL, DAMAGED, ABSENT, WANTED, BAD_TEXT, BAD_TIME = range(7)
# Of `state`: event, bytes of out, bytes that are needed, row, column, values that wait for help, patches used.
S_EVENT, S_OUT, S_NEED, S_ROW, S_COLUMN, S_WANTED, S_PATCH, STATES = range(8)

NULL, MISSING = -1, -2
_SIGN = np.uint64(1 << 63)
_INSERT, _UPDATE, _DELETE = 0, 1, 2
_TAGS = np.array([0x12, 0x1A, 0x32], np.uint8)  # inserted_rows, updated_rows, deleted_rows
_CODES = np.array([0, 1, 4], np.uint8)  # of MutationType
_SCALE = np.array([1, 10_000, 10_000, 100, 100, 1, 1], np.int64)  # of a fraction, by digits


# The map of characters, and a place each where a float's bits are seen as a number: of 32 and of 64 bits.
Tools = tuple[Int32s, NDArray[np.uint32], NDArray[np.float32], UInts, NDArray[np.float64]]
# Values that were asked for, in the order in which they are met: where they lie, where they end in the bytes, these.
Patches = tuple[Ints, Ints, Bytes]


@primitive
def _int_le(data: Bytes, at: int, size: int, signed: bool) -> int:
    value = np.int64(0)
    for byte in range(size):
        value |= np.int64(data[at + byte]) << (8 * byte)
    if signed and size < 8 and data[at + size - 1] & 0x80:
        value -= np.int64(1) << (8 * size)
    return value


@primitive
def _uint_be(data: Bytes, at: int, size: int) -> int:
    value = np.int64(0)
    for byte in range(size):
        value = value << 8 | np.int64(data[at + byte])
    return value


@primitive
def _packed(year: int, month: int, day: int, clock: int, micro: int) -> np.uint64:
    return (np.uint64((year * 13 + month) << 5 | day) << np.uint64(17) | np.uint64(clock)) << np.uint64(24) | np.uint64(
        micro
    )


@primitive
def _moment(seconds: int, micro: int) -> np.uint64:
    """Packed time in UTC of seconds since 1970 (days to civil: Howard Hinnant, "chrono-Compatible Low-Level Date")."""
    if seconds == 0 and micro == 0:
        return np.uint64(0)
    days, rest = seconds // 86_400, seconds % 86_400
    shifted = days + 719_468
    era = shifted // 146_097
    of_era = shifted - era * 146_097
    year_of_era = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * of_year + 2) // 153
    day = of_year - (153 * shifted_month + 2) // 5 + 1
    month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    return _packed(year, month, day, (rest // 3600) << 12 | (rest // 60 % 60) << 6 | rest % 60, micro)


@primitive
def _put_decimal(data: Bytes, at: int, size: int, shape: int, out: Bytes, to: int) -> int:
    """MySQL's bytes are TiDB's, behind precision and scale; but a zero has no sign there."""
    out[to] = 0x06
    out[to + 1] = np.uint8(shape >> 8)
    out[to + 2] = np.uint8(shape & 0xFF)
    negative_zero = data[at] == 0x7F
    if negative_zero:
        for byte in range(1, size):
            if data[at + byte] != 0xFF:
                negative_zero = False
                break
    for byte in range(size):
        out[to + 3 + byte] = data[at + byte] ^ np.uint8(0xFF) if negative_zero else data[at + byte]
    return to + 3 + size


@primitive
def _put_ordered(out: Bytes, to: int, bits: np.uint64) -> int:
    out[to] = 0x05
    bits = (~bits if bits & _SIGN else bits | _SIGN) if bits != _SIGN else _SIGN
    for byte in range(8):
        out[to + 1 + byte] = np.uint8(bits >> np.uint64(56 - 8 * byte) & np.uint64(0xFF))
    return to + 9


@primitive
def _put_string(data: Bytes, at: int, size: int, out: Bytes, to: int) -> int:
    out[to] = 0x02
    to = put_varint(out, to + 1, size)
    copy_bytes(out, to, data, at, size)
    return to + size


@kernel
def _put_mapped(data: Bytes, at: int, size: int, maps: Int32s, begin: int, out: Bytes, to: int) -> int:
    """Text of a character set of one or two bytes as UTF-8; -1 where a character is none.

    An entry of the map has the bytes of UTF-8 from the lowest on, and their number above them; -1: the byte leads one
    more, and the entry of both is 256 behind.
    """
    for writing in range(2):
        place, length, end = at, 0, at + size
        if writing:
            pass
        while place < end:
            entry = np.int64(maps[begin + np.int64(data[place])])
            place += 1
            if entry == -1:
                if place >= end:
                    return -1
                entry = np.int64(maps[begin + 256 + (np.int64(data[place - 1]) << 8 | np.int64(data[place]))])
                place += 1
            count = entry >> 24
            if count <= 0:
                return -1
            if writing:
                for byte in range(count):
                    out[to + length + byte] = np.uint8(entry >> (8 * byte) & 0xFF)
            length += count
        if not writing:
            out[to] = 0x02
            to = put_varint(out, to + 1, length)
        else:
            to += length
    return to


@primitive
def _put_time(data: Bytes, at: int, fsp: int, out: Bytes, to: int) -> int:
    """TIME2: a sign, hours, minutes, seconds and a fraction as one number, with an offset."""
    extra = (fsp + 1) // 2
    whole = _uint_be(data, at, 3 + extra) - (np.int64(0x800000) << (8 * extra))
    negative = whole < 0
    if negative:
        whole = -whole
    clock, fraction = whole >> (8 * extra), whole & ((np.int64(1) << (8 * extra)) - 1)
    seconds = (clock >> 12 & 0x3FF) * 3600 + (clock >> 6 & 63) * 60 + (clock & 63)
    value = seconds * 1_000_000_000 + fraction * _SCALE[fsp] * 1000
    out[to] = 0x08
    return put_varint(out, to + 1, -value if negative else value)


@kernel
def _put_old(data: Bytes, at: int, op: int, out: Bytes, to: int) -> int:
    """Times as they were before MySQL 5.6, and as MariaDB still may have them; -1 where they are none."""
    if op == OLD_TIME:
        value = _int_le(data, at, 3, True)
        negative = value < 0
        if negative:
            value = -value
        seconds = value // 10_000 * 3600 + value // 100 % 100 * 60 + value % 100
        out[to] = 0x08
        return put_varint(out, to + 1, (-seconds if negative else seconds) * 1_000_000_000)
    out[to] = 0x09
    if op == OLD_TIMESTAMP:
        return put_uvarint(out, to + 1, _moment(u32(data, at), 0))
    value = _int_le(data, at, 8, False)
    date, clock = value // 1_000_000, value % 1_000_000
    hour, minute, second = clock // 10_000, clock // 100 % 100, clock % 100
    if value < 0 or date > 99991231 or hour > 23 or minute > 59 or second > 59:
        return -1
    return put_uvarint(
        out,
        to + 1,
        _packed(date // 10_000, date // 100 % 100, date % 100, hour << 12 | minute << 6 | second, 0),
    )


@kernel
def _put_value(  # noqa: C901, PLR0911, PLR0912 - one a way of writing
    data: Bytes,
    at: int,
    size: int,
    column: Ints,
    tools: Tools,
    out: Bytes,
    to: int,
) -> int:
    """Write the datum of a value that is not NULL; -1 = a text, -2 = a time that is none."""
    maps, words, singles, longs, doubles = tools
    op = column[OP]
    if op == SIGNED:
        out[to] = 0x08
        return put_varint(out, to + 1, _int_le(data, at, size, True))
    if op == STRING:
        return _put_string(data, at, size, out, to)
    if op in (UNSIGNED, NUMBER):
        out[to] = 0x09
        return put_uvarint(out, to + 1, np.uint64(_int_le(data, at, size, False)))
    if op == DECIMAL:
        return _put_decimal(data, at, size, column[ARGUMENT], out, to)
    if op in (DATETIME, TIMESTAMP):
        fsp = column[ARGUMENT]
        extra = (fsp + 1) // 2
        out[to] = 0x09
        if op == DATETIME:
            whole = _uint_be(data, at, 5) - 0x8000000000
            if whole < 0:
                return -2
            micro = _uint_be(data, at + 5, extra) * _SCALE[fsp]
            return put_uvarint(out, to + 1, np.uint64(whole) << np.uint64(24) | np.uint64(micro))
        micro = _uint_be(data, at + 4, extra) * _SCALE[fsp]
        return put_uvarint(out, to + 1, _moment(_uint_be(data, at, 4), micro))
    if op == DATE:
        value = u24(data, at)
        out[to] = 0x09
        return put_uvarint(out, to + 1, _packed(value >> 9, value >> 5 & 15, value & 31, 0, 0))
    if op == TIME:
        return _put_time(data, at, column[ARGUMENT], out, to)
    if op == YEAR:
        out[to] = 0x08
        year = np.int64(data[at])
        return put_varint(out, to + 1, year + 1900 if year else 0)
    if op == FLOAT:
        words[0] = np.uint32(u32(data, at))
        doubles[0] = np.float64(singles[0])
        return _put_ordered(out, to, longs[0])
    if op == DOUBLE:
        return _put_ordered(out, to, np.uint64(_int_le(data, at, 8, False)))
    if op == BITS:
        out[to] = 0x09
        return put_uvarint(out, to + 1, np.uint64(_uint_be(data, at, size)))
    if op == PADDED:
        length = max(column[ARGUMENT], size)
        out[to] = 0x02
        to = put_varint(out, to + 1, length)
        copy_bytes(out, to, data, at, size)
        for byte in range(size, length):
            out[to + byte] = 0
        return to + length
    if op == MAPPED:
        return _put_mapped(data, at, size, maps, column[MAP], out, to)
    to = _put_old(data, at, op, out, to)
    return to if to >= 0 else -2


@primitive
def _lacking(data: Bytes, bitmap: int, columns: Ints, first: int, width: int) -> int:
    """The first column that an image lacks and that is wanted, -1 = none; ``width`` where it has no column at all.

    So an image has a byte at least, and every value that is read is there.
    """
    present = 0
    for column in range(width):
        if data[bitmap + (column >> 3)] >> (column & 7) & 1:
            present += 1
        elif columns[first + column, OP] != SKIP:
            return column
    return -1 if present else width


@primitive
def _locate(
    data: Bytes, bitmap: int, at: int, end: int, columns: Ints, first: int, width: int, places: Ints, sizes: Ints,
    shift: int, state: Ints,
) -> int:  # fmt: skip
    """Where each value of an image lies, and in ``state`` the bytes that rows may take; position behind it, or -1."""
    present = 0
    for column in range(width):
        present += data[bitmap + (column >> 3)] >> (column & 7) & 1
    nulls = at
    at += (present + 7) >> 3
    if at > end:
        return -1
    bit = 0
    for column in range(width):
        if not data[bitmap + (column >> 3)] >> (column & 7) & 1:
            places[shift + column] = MISSING
            continue
        null = data[nulls + (bit >> 3)] >> (bit & 7) & 1
        bit += 1
        if null:
            places[shift + column] = NULL
            continue
        size = columns[first + column, FIXED]
        if size == 0:
            prefix = columns[first + column, PREFIX]
            if at + prefix > end:
                return -1
            size = _int_le(data, at, prefix, False)
            at += prefix
        places[shift + column] = at
        sizes[shift + column] = size
        state[S_NEED] += size * columns[first + column, GROWTH] + columns[first + column, PLUS]
        at += size
        if at > end:
            return -1
    return at


@kernel
def _put_list(  # noqa: C901 - one pass over the columns
    data: Bytes, columns: Ints, target: Ints, places: Ints, sizes: Ints, shift: int, inserted: bool, tools: Tools,
    patched: Patches, wanted: Ints, order: Int32s, stack: Ints, out: Bytes, to: int, state: Ints,
) -> int:  # fmt: skip
    """Pairs of column id and value; of an inserted row without its handle's. -1: ``state[S_NEED]`` says why."""
    patch_at, patch_ends, patches = patched
    first = target[FIRST]
    begin = to
    for column in range(target[WIDTH]):
        info = columns[first + column]
        op = info[OP]
        if op == SKIP:
            continue
        place = places[shift + column]
        if inserted and ((place == NULL and not info[DEFAULT]) or not info[LISTED]):
            continue
        out[to] = 0x08
        to = put_varint(out, to + 1, info[ID])
        if place == NULL:
            out[to] = 0x00
            to += 1
            continue
        size = sizes[shift + column]
        if op >= JSON:
            patch = state[S_PATCH]
            known = patch < len(patch_at) and patch_at[patch] == place
            made = -1
            if known:
                low = patch_ends[patch - 1] if patch > 0 else 0
                length = patch_ends[patch] - low
                copy_bytes(out, to, patches, low, length)
                made = to + length
                state[S_PATCH] += 1
            elif op == JSON:
                made = jsonb.put(data, place, size, order, stack, out, to, to + size * info[GROWTH] + info[PLUS])
            if made < 0:
                if state[S_WANTED] < len(wanted):
                    wanted[state[S_WANTED], 0], wanted[state[S_WANTED], 1] = place, size
                    wanted[state[S_WANTED], 2], wanted[state[S_WANTED], 3] = state[S_EVENT], column
                state[S_WANTED] += 1
                made = to
            to = made
            continue
        to = _put_value(data, place, size, info, tools, out, to)
        if to < 0:
            state[S_COLUMN], state[S_NEED] = column, BAD_TEXT if to == -1 else BAD_TIME
            return -1
    if target[HANDLE] == HIDDEN and not inserted:
        out[to], out[to + 1], out[to + 2], out[to + 3] = 0x08, 0x01, 0x08, 0x00
        to += 4
    if to == begin:
        out[to] = 0x00
        to += 1
    return to


@primitive
def _prefix_end(data: Bytes, at: int, size: int, characters: int, text: bool) -> int:
    """Bytes of the first characters of an UTF-8 text, or of the first bytes."""
    if not text:
        return min(size, characters)
    place = 0
    while place < size and characters > 0:
        place += 1
        while place < size and data[at + place] & 0xC0 == 0x80:
            place += 1
        characters -= 1
    return place


@kernel
def _put_handle(
    data: Bytes, columns: Ints, target: Ints, keys: Ints, places: Ints, sizes: Ints, shift: int, tools: Tools,
    out: Bytes, to: int, state: Ints,
) -> int:  # fmt: skip
    """The handle of an inserted row; -1 as `_put_list`."""
    if target[HANDLE] == HIDDEN:
        out[to], out[to + 1] = 0x08, 0x00
        return to + 2
    for part in range(target[KEYS]):
        key = keys[target[KEY_FIRST] + part]
        column = key[KEY_COLUMN]
        info = columns[target[FIRST] + column]
        place, size = places[shift + column], sizes[shift + column]
        if place < 0:
            state[S_COLUMN], state[S_NEED] = column, ABSENT
            return -1
        if target[HANDLE] == INTEGER:
            out[to] = 0x08
            to = put_varint(out, to + 1, _int_le(data, place, size, info[OP] == SIGNED))
            continue
        begin = to
        to = _put_value(data, place, size, info, tools, out, to)
        if to < 0:
            state[S_COLUMN], state[S_NEED] = column, BAD_TEXT if to == -1 else BAD_TIME
            return -1
        if out[begin] == 0x08 and info[OP] in (TIME, OLD_TIME):
            to = _as_duration(out, begin)
        elif out[begin] == 0x02:
            to = _as_key(out, begin, to, key[KEY_LENGTH], key[KEY_TRIMMED])
    return to


@primitive
def _as_duration(out: Bytes, begin: int) -> int:
    """A TIME has the form of keys in a handle: eight bytes that sort."""
    value, shift, at = np.uint64(0), np.uint64(0), begin + 1
    while True:
        byte = np.uint64(out[at])
        value |= (byte & np.uint64(0x7F)) << shift
        at += 1
        shift += np.uint64(7)
        if byte < 0x80:
            break
    bits = (value >> np.uint64(1) ^ (np.uint64(0) - (value & np.uint64(1)))) ^ _SIGN
    out[begin] = 0x07
    for each in range(8):
        out[begin + 1 + each] = np.uint8(bits >> np.uint64(56 - 8 * each) & np.uint64(0xFF))
    return begin + 9


@primitive
def _as_key(out: Bytes, begin: int, end: int, length: int, trimmed: int) -> int:
    """A string of a handle: the prefix that the key has of it, without the spaces that count not."""
    at = begin + 1
    while out[at] >= 0x80:
        at += 1
    at += 1
    size = end - at
    if length >= 0:
        size = _prefix_end(out, at, size, length, trimmed != 0)
    while trimmed and size > 0 and out[at + size - 1] == 0x20:
        size -= 1
    to = put_varint(out, begin + 1, size)
    for byte in range(size):
        out[to + byte] = out[at + byte]
    return to + size


@primitive
def _moved(data: Bytes, target: Ints, keys: Ints, places: Ints, sizes: Ints, shift: int) -> bool:
    """Whether an update gives the row another clustered key."""
    if target[HANDLE] == HIDDEN:
        return False
    for part in range(target[KEYS]):
        column = keys[target[KEY_FIRST] + part, KEY_COLUMN]
        old, new, size = places[column], places[shift + column], sizes[column]
        if old < 0 or new < 0 or size != sizes[shift + column]:
            return True
        for byte in range(size):
            if data[old + byte] != data[new + byte]:
                return True
    return False


@primitive
def _close(out: Bytes, tag: int, begin: int, body: int, end: int) -> int:
    """Tag and length in front of bytes that were written behind room for them; position behind it."""
    size = end - body
    out[begin] = tag
    to = put_uvarint(out, begin + 1, np.uint64(size))
    if to != body:
        for byte in range(size):
            out[to + byte] = out[body + byte]
    return to + size


@primitive
def _close_mutation(out: Bytes, begin: int, body: int, end: int, rows: int, kind: int) -> int:
    """Add the sequence, and close; nothing where there are no rows."""
    if rows == 0:
        return begin
    for _ in range(rows):
        out[end] = 0x38
        out[end + 1] = _CODES[kind]
        end += 2
    return _close(out, 0x12, begin, body, end)


@primitive
def _open_mutation(out: Bytes, begin: int, table_id: int) -> int:
    """Position behind the table id; the body begins at ``begin + 6``."""
    out[begin + 6] = 0x08
    return put_uvarint(out, begin + 7, np.uint64(table_id))


@kernel
def encode(  # noqa: C901, PLR0912, PLR0915 - one pass over events, rows and columns
    data: Bytes,
    events: Ints,
    last: int,
    targets: Ints,
    columns: Ints,
    keys: Ints,
    tools: Tools,
    scratch: Ints,
    widest: int,
    patched: Patches,
    wanted: Ints,
    order: Int32s,
    stack: Ints,
    out: Bytes,
    ends: Ints,
    counts: Ints,
    state: Ints,
) -> int:
    """Write the mutations of events ``state[S_EVENT]`` to ``last``; why it stopped.

    ``events``: (table, kind, bitmaps, start, end) by event, ``targets`` by table (width 0: it is left out). ``ends``
    becomes where each event's mutations end in ``out``, ``counts`` how many changes it has. After FULL it goes on with
    a larger ``out``; after WANTED it has to begin anew, with the values of ``wanted`` as patches.
    """
    places, sizes = scratch[0], scratch[1]
    while state[S_EVENT] < last:
        event = state[S_EVENT]
        target = targets[events[0, event]]
        kind = events[1, event]
        width = target[WIDTH]
        begin = state[S_OUT]
        patch, asked = state[S_PATCH], state[S_WANTED]
        at, end, bitmap = events[3, event], events[4, event], events[2, event]
        rows, count = 0, 0
        if width:
            if begin + 32 > len(out):
                state[S_NEED] = begin + 32
                return FULL
            second = bitmap + ((width + 7) >> 3)
            for half in range(2 if kind == _UPDATE else 1):
                lacks = _lacking(data, second if half else bitmap, columns, target[FIRST], width)
                if lacks >= 0:
                    state[S_COLUMN], state[S_ROW] = lacks, 0
                    return ABSENT if lacks < width else DAMAGED
            to = _open_mutation(out, begin, target[TABLE_ID])
            mutation = begin
            while at < end:
                # Beside the values: the sequence, what a row that moves adds, the NULLs of two images with their ids.
                state[S_NEED] = to + 2 * rows + 128 + 24 * width
                at = _locate(data, bitmap, at, end, columns, target[FIRST], width, places, sizes, 0, state)
                if at >= 0 and kind == _UPDATE:
                    at = _locate(data, second, at, end, columns, target[FIRST], width, places, sizes, widest, state)
                state[S_ROW] = count
                if at < 0:
                    return DAMAGED
                if state[S_PATCH] < len(patched[0]):
                    state[S_NEED] += len(patched[2])
                if state[S_NEED] > len(out):
                    state[S_PATCH], state[S_WANTED] = patch, asked
                    return FULL
                moved = kind == _UPDATE and _moved(data, target, keys, places, sizes, widest)
                for half in range(2 if moved else 1):
                    what = kind
                    if moved:
                        # The mutation so far ends: rows of other kinds follow.
                        what = _DELETE if half == 0 else _INSERT
                        mutation = _close_mutation(out, mutation, mutation + 6, to, rows, kind)
                        rows = 0
                        to = _open_mutation(out, mutation, target[TABLE_ID])
                    body = to + 6
                    fill = body
                    shift = widest if moved and half == 1 else 0
                    if what == _INSERT:
                        fill = _put_handle(
                            data, columns, target, keys, places, sizes, shift, tools, out, fill, state,
                        )  # fmt: skip
                    if fill >= 0:
                        fill = _put_list(
                            data, columns, target, places, sizes, shift, what == _INSERT, tools, patched, wanted, order,
                            stack, out, fill, state,
                        )  # fmt: skip
                    if fill >= 0 and what == _UPDATE:
                        fill = _put_list(
                            data, columns, target, places, sizes, widest, False, tools,
                            patched, wanted, order, stack, out, fill, state,
                        )  # fmt: skip
                    if fill < 0:
                        return state[S_NEED]
                    to = _close(out, _TAGS[what], to, body, fill)
                    if moved:
                        mutation = _close_mutation(out, mutation, mutation + 6, to, 1, what)
                        to = _open_mutation(out, mutation, target[TABLE_ID])
                    else:
                        rows += 1
                    count += 1
            state[S_OUT] = _close_mutation(out, mutation, mutation + 6, to, rows, kind)
        ends[event] = state[S_OUT]
        counts[event] = count
        state[S_EVENT] += 1
    return WANTED if state[S_WANTED] else DONE
