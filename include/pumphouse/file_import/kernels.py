"""Kernels that read binlog files: frames, the events in them, and their values as row images of TiDB Binlog.

The reverse of `pumphouse.export.pbkernels` (docs/formats.md, "Files for Reparo"). Positions are absolute in ``data``.
"""

# mypy: disable-error-code="arg-type, assignment, return-value, operator, index, no-any-return"
# (inside kernels there is one kind of integer)

from __future__ import annotations

import numpy as np

from pumphouse.codec.crc import crc_more
from pumphouse.codec.jit import Bytes, Ints, kernel, primitive
from pumphouse.codec.raw import copy_bytes, load_u32, load_u64
from pumphouse.codec.wire import put_uvarint, put_varint, read_field, read_uvarint, read_varint, uvarint_bytes

MAGIC = np.uint32(0x1C1B0504)
HEAD_BYTES, TAIL_BYTES = 12, 4

# Why `scan` stopped: more bytes are needed; no magic; a checksum; a length above the limit; a payload that is none.
MORE, BAD_MAGIC, BAD_CRC, TOO_LARGE, BAD_PAYLOAD = range(5)
# What `scan` found: frames, position behind them, why it stopped, the length or the checksum that it is about.
S_COUNT, S_AT, S_WHY, S_SIZE, S_FIELDS = range(5)
DML, DDL = 0, 1

# Columns of events: transaction (its frame), digest of what tells its shape, kind, first column, columns, and where
# names of database and table lie.
E_TXN, E_SHAPE, E_OP, E_FIRST, E_COLUMNS, E_DB, E_DB_LEN, E_TABLE, E_TABLE_LEN, E_FIELDS = range(10)
# Columns of columns: name, type code, value and changed value (length -1: not there).
C_NAME, C_NAME_LEN, C_TP, C_OLD, C_OLD_LEN, C_NEW, C_NEW_LEN, C_FIELDS = range(8)
# State of `walk`: frame, position in it (0 = at its begin), end of the events under way (0 = none), events, columns.
W_FRAME, W_AT, W_END, W_EVENTS, W_COLUMNS, W_FIELDS = range(6)
DONE, FULL, DAMAGED = range(3)

# How a value is read.
SKIP, SIGNED, UNSIGNED, FLOAT, BYTES, DATE, DATETIME, ZONED, TIME, DECIMAL, JSON = range(11)
# Columns of plans, one row a column of a shape: how, id, what the type allows, place in the handle (-1 = in none).
P_OP, P_ID, P_ARGUMENT, P_KEY, P_FIELDS = range(5)
# Columns of shapes: first plan, table id, kind of handle, parts of the handle.
T_FIRST, T_TABLE, T_HANDLE, T_KEYS, T_FIELDS = range(5)
HIDDEN, INTEGER, COMMON = range(3)
# Columns of rows: transaction, table id, kind, begin, end in the images.
R_TXN, R_TABLE, R_OP, R_START, R_END, R_FIELDS = range(6)
INSERT, UPDATE, DELETE = 0, 1, 2
# Why a value was refused.
NO_VALUE, BAD_TYPE, BAD_TEXT, OUT_OF_RANGE, NO_TIME, TWO_TIMES, NO_KEY = range(-1, -8, -1)

# Bytes that one value takes beside its own, at most, in both lists, the handle and with its id.
VALUE_ROOM, EVENT_ROOM = 160, 64
_PRIME, _BASIS = np.uint64(0x100000001B3), np.uint64(0xCBF29CE484222325)
_SIGN = np.uint64(1 << 63)
_TAGS = np.array([0x12, 0x1A, 0x32], np.uint8)  # inserted_rows, updated_rows, deleted_rows
_CODES = np.array([0, 1, 4], np.uint8)  # of MutationType
_SIZES = np.array([0, 1, 1, 2, 2, 3, 3, 4, 4, 4], np.int64)  # bytes of so many digits
_POWERS = np.array([10**n for n in range(10)], np.int64)
AMBIGUOUS, GAP = 1 << 40, 1 << 41  # offsets of a zone


@kernel
def scan(
    data: Bytes, begin: int, end: int, most: int, starts: Ints, lengths: Ints, commits: Ints, kinds: Ints, found: Ints
) -> None:
    """Whole frames in ``data[begin:end]``, as many as there is room for: of each its payload, commit ts and kind."""
    at, count, why = begin, 0, MORE
    found[S_SIZE] = 0
    while count < len(starts) and at + HEAD_BYTES <= end:
        if load_u32(data, at) != MAGIC:
            why = BAD_MAGIC
            break
        size = load_u64(data, at + 4)
        if size > np.uint64(most):
            found[S_SIZE] = np.int64(min(size, np.uint64(1) << np.uint64(62)))
            why = TOO_LARGE
            break
        start = at + HEAD_BYTES
        stop = start + np.int64(size)
        found[S_SIZE] = stop + TAIL_BYTES - at
        if stop + TAIL_BYTES > end:
            break
        if crc_more(data, start, stop, 0) != np.int64(load_u32(data, stop)):
            why = BAD_CRC
            break
        kind, commit = _head(data, start, stop)
        if kind < 0:
            why = BAD_PAYLOAD
            break
        starts[count], lengths[count], commits[count], kinds[count] = start, stop - start, commit, kind
        count += 1
        at = stop + TAIL_BYTES
    found[S_COUNT], found[S_AT], found[S_WHY] = count, at, why


@kernel
def _head(data: Bytes, pos: int, end: int) -> tuple[int, int]:
    """Kind and commit ts of a payload; kind -1 where it has none, or one that is not known."""
    kind, commit = np.int64(-1), np.int64(-1)
    while pos < end and (kind < 0 or commit < 0):
        number, wire, at, _, pos = read_field(data, pos, end)
        if pos < 0:
            return -1, 0
        if number <= 2 and wire == 0:
            value, _ = read_uvarint(data, at, end)
            if value > np.uint64((1 << 63) - 1):
                return -1, 0
            if number == 1:
                kind = np.int64(value)
            else:
                commit = np.int64(value)
    if commit <= 0 or kind > DDL:
        return -1, 0
    return kind, commit


@primitive
def _mixed(digest: np.uint64, data: Bytes, at: int, size: int) -> np.uint64:
    for k in range(at, at + size):
        digest = (digest ^ np.uint64(data[k])) * _PRIME
    return (digest ^ np.uint64(0xFF)) * _PRIME


@kernel
def _column(data: Bytes, pos: int, end: int, out: Ints) -> bool:
    """One column of an event."""
    out[C_NAME_LEN], out[C_TP], out[C_OLD_LEN], out[C_NEW_LEN] = -1, -1, -1, -1
    while pos < end:
        number, wire, at, length, pos = read_field(data, pos, end)
        if pos < 0 or (1 <= number <= 5 and wire != 2):
            return False
        if number == 1:
            out[C_NAME], out[C_NAME_LEN] = at, length
        elif number == 2 and length == 1:
            out[C_TP] = data[at]
        elif number == 4:
            out[C_OLD], out[C_OLD_LEN] = at, length
        elif number == 5:
            out[C_NEW], out[C_NEW_LEN] = at, length
    return out[C_NAME_LEN] > 0 and out[C_TP] >= 0


@kernel
def _event(data: Bytes, pos: int, end: int, event: Ints, columns: Ints, first: int) -> int:
    """One event and its columns; how many of these, -1 = damaged, -2 = there is no room for them."""
    digest, count = _BASIS, 0
    event[E_DB_LEN], event[E_TABLE_LEN], event[E_OP] = -1, -1, -1
    while pos < end:
        number, wire, at, length, pos = read_field(data, pos, end)
        if pos < 0 or (number in (1, 2, 4) and wire != 2) or (number == 3 and wire != 0):
            return -1
        if number == 1:
            event[E_DB], event[E_DB_LEN] = at, length
        elif number == 2:
            event[E_TABLE], event[E_TABLE_LEN] = at, length
        elif number == 3:
            value, _ = read_uvarint(data, at, end)
            if value > np.uint64(DELETE):
                return -1
            event[E_OP] = np.int64(value)
        elif number == 4:
            if first + count >= len(columns):
                return -2
            column = columns[first + count]
            if not _column(data, at, at + length, column):
                return -1
            digest = _mixed(digest, data, column[C_NAME], column[C_NAME_LEN])
            digest = (digest ^ np.uint64(column[C_TP])) * _PRIME
            count += 1
    if event[E_DB_LEN] < 0 or event[E_TABLE_LEN] < 0 or event[E_OP] < 0:
        return -1
    digest = _mixed(digest, data, event[E_DB], event[E_DB_LEN])
    digest = _mixed(digest, data, event[E_TABLE], event[E_TABLE_LEN])
    event[E_SHAPE] = np.int64((digest ^ np.uint64(event[E_OP])) * _PRIME)
    event[E_FIRST], event[E_COLUMNS] = first, count
    return count


@kernel
def walk(data: Bytes, starts: Ints, lengths: Ints, events: Ints, columns: Ints, state: Ints) -> int:  # noqa: C901
    """Events of frames, from where ``state`` is on, until ``events`` or ``columns`` is full, which begin anew."""
    found, used = 0, 0
    state[W_EVENTS], state[W_COLUMNS] = 0, 0
    while state[W_FRAME] < len(starts):
        frame = state[W_FRAME]
        end = starts[frame] + lengths[frame]
        if state[W_AT] == 0:
            state[W_AT], state[W_END] = starts[frame], 0
        pos = state[W_AT]
        if state[W_END] == 0:
            if pos >= end:
                state[W_FRAME] += 1
                state[W_AT] = 0
                continue
            number, wire, at, length, behind = read_field(data, pos, end)
            if behind < 0 or (number == 3 and wire != 2):
                return DAMAGED
            state[W_AT] = behind
            if number == 3:
                state[W_AT], state[W_END] = at, at + length
            continue
        if pos >= state[W_END]:
            state[W_END] = 0
            continue
        number, wire, at, length, behind = read_field(data, pos, state[W_END])
        if behind < 0 or (number == 1 and wire != 2):
            return DAMAGED
        if number == 1:
            if found == len(events):
                return FULL
            count = _event(data, at, at + length, events[found], columns, used)
            if count == -1:
                return DAMAGED
            if count == -2:
                return FULL
            events[found, E_TXN] = frame
            found += 1
            used += count
            state[W_EVENTS], state[W_COLUMNS] = found, used
        state[W_AT] = behind
    return DONE


@primitive
def _same(data: Bytes, at: int, other: int, size: int) -> bool:
    for k in range(size):  # noqa: SIM110
        if data[at + k] != data[other + k]:
            return False
    return True


@kernel
def unlike(data: Bytes, events: Ints, columns: Ints, models: Ints, of: Ints) -> int:
    """The first event that is not of the shape of its model (an event too), whatever their digests say; -1 = none."""
    for at in range(len(events)):
        event, model = events[at], events[models[of[at]]]
        if (
            event[E_OP] != model[E_OP]
            or event[E_COLUMNS] != model[E_COLUMNS]
            or event[E_DB_LEN] != model[E_DB_LEN]
            or event[E_TABLE_LEN] != model[E_TABLE_LEN]
            or not _same(data, event[E_DB], model[E_DB], event[E_DB_LEN])
            or not _same(data, event[E_TABLE], model[E_TABLE], event[E_TABLE_LEN])
        ):
            return at
        for k in range(event[E_COLUMNS]):
            one, two = columns[event[E_FIRST] + k], columns[model[E_FIRST] + k]
            if (
                one[C_TP] != two[C_TP]
                or one[C_NAME_LEN] != two[C_NAME_LEN]
                or not _same(data, one[C_NAME], two[C_NAME], one[C_NAME_LEN])
            ):
                return at
    return -1


@primitive
def _digits(data: Bytes, at: int, end: int, most: int) -> tuple[int, int]:
    """A number of at most so many digits, and the position behind it; -1 where there is no digit."""
    value, begin = np.int64(0), at
    while at < end and at - begin < most and 48 <= data[at] <= 57:
        value = value * 10 + (data[at] - 48)
        at += 1
    return value, at if at > begin else -1


@kernel
def _clock(data: Bytes, at: int, end: int, hours: int, fsp: int) -> tuple[int, int]:
    """Seconds and microseconds of ``hh:mm:ss[.ffffff]`` that ends the text; -1, and why as the second."""
    hour, at = _digits(data, at, end, hours)
    if at < 0 or at >= end or data[at] != 58:
        return -1, BAD_TEXT
    minute, at = _digits(data, at + 1, end, 2)
    if at < 0 or at >= end or data[at] != 58:
        return -1, BAD_TEXT
    second, at = _digits(data, at + 1, end, 2)
    if at < 0 or minute > 59 or second > 59:
        return -1, BAD_TEXT
    micro = np.int64(0)
    if at < end:
        begin = at + 1
        micro, behind = _digits(data, begin, end, 6)
        if data[at] != 46 or behind != end:
            return -1, BAD_TEXT
        digits = behind - begin
        if digits > fsp:
            return -1, OUT_OF_RANGE
        micro *= _POWERS[6 - digits]
    return hour * 3600 + minute * 60 + second, micro


@primitive
def _packed(year: int, month: int, day: int, seconds: int, micro: int) -> np.uint64:
    clock = seconds // 3600 << 12 | seconds // 60 % 60 << 6 | seconds % 60
    return (np.uint64((year * 13 + month) << 5 | day) << np.uint64(17) | np.uint64(clock)) << np.uint64(24) | np.uint64(
        micro
    )


@primitive
def _days(year: int, month: int, day: int) -> int:
    """Days since 1970 (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms")."""
    if month <= 2:
        year -= 1
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


@primitive
def _date(days: int) -> tuple[int, int, int]:
    """Year, month and day of days since 1970 (as `_days`)."""
    shifted = days + 719_468
    era = shifted // 146_097
    of_era = shifted - era * 146_097
    year_of_era = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * of_year + 2) // 153
    month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    return year, month, of_year - (153 * shifted_month + 2) // 5 + 1


@kernel
def _put_moment(  # noqa: C901, PLR0911, PLR0912 - kept in one piece for speed
    data: Bytes, at: int, end: int, op: int, fsp: int, zone: Ints, out: Bytes, to: int
) -> int:
    """A date or date-time from its text."""
    year, pos = _digits(data, at, end, 4)
    if pos != at + 4 or pos >= end or data[pos] != 45:
        return BAD_TEXT
    month, pos = _digits(data, pos + 1, end, 2)
    if pos < 0 or pos >= end or data[pos] != 45:
        return BAD_TEXT
    day, pos = _digits(data, pos + 1, end, 2)
    if pos < 0 or month > 12 or day > 31:
        return BAD_TEXT
    seconds, micro = np.int64(0), np.int64(0)
    if op == DATE:
        if pos != end:
            return BAD_TEXT
    elif pos < end:  # else it is a default without a clock: midnight
        if data[pos] != 32:
            return BAD_TEXT
        seconds, micro = _clock(data, pos + 1, end, 2, fsp)
        if seconds < 0:
            return micro
        if seconds >= 86_400:
            return BAD_TEXT
    if op == ZONED and (year > 0 or month > 0 or day > 0):
        local = _days(year, month, day) * 86_400 + seconds
        low, high = 0, zone.shape[1]
        while high - low > 1:
            middle = (low + high) // 2
            if zone[0, middle] <= local:
                low = middle
            else:
                high = middle
        offset = zone[1, low]
        if offset == GAP:
            return NO_TIME
        if offset == AMBIGUOUS:
            return TWO_TIMES
        local -= offset
        seconds = local % 86_400
        year, month, day = _date(local // 86_400)
    out[to] = 0x09
    return put_uvarint(out, to + 1, _packed(year, month, day, seconds, micro))


@kernel
def _put_time(data: Bytes, at: int, end: int, fsp: int, out: Bytes, to: int) -> int:
    """A TIME from its text."""
    negative = at < end and data[at] == 45
    seconds, micro = _clock(data, at + negative, end, 7, fsp)
    if seconds < 0:
        return micro
    value = seconds * 1_000_000_000 + micro * 1000
    out[to] = 0x08
    return put_varint(out, to + 1, -value if negative else value)


@kernel
def _put_decimal(data: Bytes, at: int, end: int, shape: int, out: Bytes, to: int) -> int:
    """A DECIMAL from its text: groups of nine digits, the first and the last shorter (`pumphouse.codec.decimal`)."""
    precision, scale = shape >> 8, shape & 0xFF
    negative = at < end and data[at] == 45
    begin = at + negative
    dot = begin
    while dot < end and data[dot] != 46:
        dot += 1
    if dot == begin:
        return BAD_TEXT
    nonzero = False
    for k in range(begin, end):
        if k != dot:
            if not 48 <= data[k] <= 57:
                return BAD_TEXT
            nonzero |= data[k] != 48
    while begin < dot and data[begin] == 48:
        begin += 1
    whole, fraction = dot - begin, max(end - dot - 1, 0)
    if whole > precision - scale or fraction > scale:
        return OUT_OF_RANGE
    mask = np.uint8(0xFF) if negative and nonzero else np.uint8(0)
    out[to], out[to + 1], out[to + 2] = 0x06, np.uint8(precision), np.uint8(scale)
    to += 3
    first = to
    # Digits of the whole form, by their place: of the integer part from the right, of the fraction from the left.
    place, left, behind = begin - (precision - scale - whole), precision - scale, False
    while left > 0 or not behind:
        if left == 0:
            behind, left, place = True, scale, dot + 1
            continue
        width = min(left, 9) if behind else (left % 9 or 9)
        value = np.int64(0)
        for k in range(place, place + width):
            digit = data[k] - 48 if (k < end if behind else k >= begin) else 0
            value = value * 10 + digit
        for k in range(_SIZES[width] - 1, -1, -1):
            out[to] = np.uint8(value >> (8 * k) & 0xFF) ^ mask
            to += 1
        place += width
        left -= width
    out[first] ^= np.uint8(0x80)
    return to


@kernel
def _put_value(data: Bytes, at: int, size: int, plan: Ints, zone: Ints, out: Bytes, to: int) -> int:  # noqa: C901, PLR0911, PLR0912
    """The datum of a value in the form of rows; below 0: why there is none."""
    if size < 1:
        return NO_VALUE
    flag, op, end = data[at], plan[P_OP], at + size
    if flag == 0x00:
        if size != 1:
            return BAD_TYPE
        out[to] = 0x00
        return to + 1
    if op == JSON:
        copy_bytes(out, to, data, at, size)
        return to + size
    if op == SIGNED:
        if flag != 0x08:
            return BAD_TYPE
        _, pos = read_varint(data, at + 1, end)
    elif op == UNSIGNED:
        if flag != 0x09:
            return BAD_TYPE
        value, pos = read_uvarint(data, at + 1, end)
        if value > np.uint64(plan[P_ARGUMENT]):
            return OUT_OF_RANGE
    elif op == FLOAT:
        if flag != 0x05:
            return BAD_TYPE
        pos = at + 9
    else:
        if flag != 0x02:
            return BAD_TYPE
        length, pos = read_varint(data, at + 1, end)
        if pos < 0 or length < 0 or length != end - pos:
            return BAD_TYPE
        if op == DECIMAL:
            return _put_decimal(data, pos, end, plan[P_ARGUMENT], out, to)
        if op == TIME:
            return _put_time(data, pos, end, plan[P_ARGUMENT], out, to)
        if op != BYTES:
            return _put_moment(data, pos, end, op, plan[P_ARGUMENT], zone, out, to)
        pos = end
    if pos != end:
        return BAD_TYPE
    copy_bytes(out, to, data, at, size)
    return to + size


@primitive
def _as_duration(out: Bytes, begin: int, end: int) -> int:
    """A TIME has the form of keys in a handle: eight bytes that sort."""
    value, _ = read_varint(out, begin + 1, end)
    bits = np.uint64(value) ^ _SIGN
    out[begin] = 0x07
    for k in range(8):
        out[begin + 1 + k] = np.uint8(bits >> np.uint64(56 - 8 * k) & np.uint64(0xFF))
    return begin + 9


@kernel
def _put_handle(
    data: Bytes, columns: Ints, event: Ints, shape: Ints, plans: Ints, new: bool, zone: Ints, out: Bytes, to: int
) -> int:
    """The handle of an inserted row; below 0: why there is none."""
    if shape[T_HANDLE] == HIDDEN:
        out[to], out[to + 1] = 0x08, 0x00
        return to + 2
    for part in range(shape[T_KEYS]):
        for k in range(event[E_COLUMNS]):
            plan, column = plans[shape[T_FIRST] + k], columns[event[E_FIRST] + k]
            if plan[P_KEY] != part:
                continue
            begin = to
            at, size = (column[C_NEW], column[C_NEW_LEN]) if new else (column[C_OLD], column[C_OLD_LEN])
            to = _put_value(data, at, size, plan, zone, out, to)
            if to < 0:
                return to
            if out[begin] == 0x00:
                return NO_KEY
            if shape[T_HANDLE] == INTEGER and out[begin] == 0x09:  # as 64 signed bits
                value, _ = read_uvarint(out, begin + 1, to)
                out[begin] = 0x08
                to = put_varint(out, begin + 1, np.int64(value))
            elif plan[P_OP] == TIME:
                to = _as_duration(out, begin, to)
    return to


@kernel
def _put_list(
    data: Bytes, columns: Ints, event: Ints, shape: Ints, plans: Ints, new: bool, inserted: bool, zone: Ints,
    out: Bytes, to: int, failed: Ints,
) -> int:  # fmt: skip
    """Pairs of column id and value; of an inserted row without an integer handle. Below 0: why there is none."""
    begin = to
    for k in range(event[E_COLUMNS]):
        plan, column = plans[shape[T_FIRST] + k], columns[event[E_FIRST] + k]
        if plan[P_OP] == SKIP or (inserted and shape[T_HANDLE] == INTEGER and plan[P_KEY] >= 0):
            continue
        out[to] = 0x08
        to = put_varint(out, to + 1, plan[P_ID])
        at, size = (column[C_NEW], column[C_NEW_LEN]) if new else (column[C_OLD], column[C_OLD_LEN])
        to = _put_value(data, at, size, plan, zone, out, to)
        if to < 0:
            failed[1] = k
            return to
    if shape[T_HANDLE] == HIDDEN and not inserted:
        out[to], out[to + 1], out[to + 2], out[to + 3] = 0x08, 0x01, 0x08, 0x00
        to += 4
    if to == begin:
        out[to] = 0x00
        to += 1
    return to


@kernel
def _moves(data: Bytes, columns: Ints, event: Ints, shape: Ints, plans: Ints) -> bool:
    """Whether an update takes a row to another clustered key, which is a deleted and an inserted row there."""
    if shape[T_HANDLE] == HIDDEN:
        return False
    for k in range(event[E_COLUMNS]):
        column = columns[event[E_FIRST] + k]
        if plans[shape[T_FIRST] + k, P_KEY] < 0:
            continue
        size = column[C_OLD_LEN]
        if size != column[C_NEW_LEN] or not _same(data, column[C_OLD], column[C_NEW], max(size, 0)):
            return True
    return False


@kernel
def encode(
    data: Bytes, events: Ints, columns: Ints, of: Ints, shapes: Ints, plans: Ints, zone: Ints, out: Bytes, rows: Ints,
    failed: Ints,
) -> int:  # fmt: skip
    """Events as row images in ``out``, one or two ``rows`` each; how many rows, or below 0 why one is refused.

    ``of``: shape of each event. ``failed``: event and column (-1 = the handle) of what was refused.
    """
    count, to = 0, 0
    for at in range(len(events)):
        event, shape = events[at], shapes[of[at]]
        failed[0], failed[1] = at, -1
        op = event[E_OP]
        twice = op == UPDATE and _moves(data, columns, event, shape, plans)
        for turn in range(2 if twice else 1):
            kind = op if not twice else DELETE if turn == 0 else INSERT
            new = twice and turn == 1
            begin = to
            if kind == INSERT:
                to = _put_handle(data, columns, event, shape, plans, new, zone, out, to)
                if to < 0:
                    return to
            to = _put_list(data, columns, event, shape, plans, new, kind == INSERT, zone, out, to, failed)
            if to < 0:
                return to
            if kind == UPDATE:
                to = _put_list(data, columns, event, shape, plans, True, False, zone, out, to, failed)
                if to < 0:
                    return to
            row = rows[count]
            row[R_TXN], row[R_TABLE], row[R_OP] = event[E_TXN], shape[T_TABLE], kind
            row[R_START], row[R_END] = begin, to
            count += 1
    return count


@kernel
def lay_out(rows: Ints, runs: Ints) -> int:
    """Rows that follow each other in one transaction and table are one mutation.

    ``runs``, one a mutation: its first row, the one behind its last, its bytes without their length. Returns how many.
    """
    count, first = 0, 0
    while first < len(rows):
        stop, size = first, 1 + uvarint_bytes(np.uint64(rows[first, R_TABLE]))
        while (
            stop < len(rows) and rows[stop, R_TXN] == rows[first, R_TXN] and rows[stop, R_TABLE] == rows[first, R_TABLE]
        ):
            length = rows[stop, R_END] - rows[stop, R_START]
            size += 1 + uvarint_bytes(np.uint64(length)) + length + 2
            stop += 1
        runs[count, 0], runs[count, 1], runs[count, 2] = first, stop, size
        count += 1
        first = stop
    return count


@kernel
def put_mutations(images: Bytes, rows: Ints, runs: Ints, places: Ints, out: Bytes) -> None:
    """Write mutations where ``places`` says; each with its field and length."""
    for at in range(len(runs)):
        to = places[at]
        out[to] = 0x12
        to = put_uvarint(out, to + 1, np.uint64(runs[at, 2]))
        out[to] = 0x08
        to = put_uvarint(out, to + 1, np.uint64(rows[runs[at, 0], R_TABLE]))
        for k in range(runs[at, 0], runs[at, 1]):
            row = rows[k]
            length = row[R_END] - row[R_START]
            out[to] = _TAGS[row[R_OP]]
            to = put_uvarint(out, to + 1, np.uint64(length))
            copy_bytes(out, to, images, row[R_START], length)
            to += length
        for k in range(runs[at, 0], runs[at, 1]):
            out[to], out[to + 1] = 0x38, _CODES[rows[k, R_OP]]
            to += 2


@kernel
def binlog_bytes(commits: Ints, bodies: Ints, version: int, sizes: Ints) -> None:
    """Bytes of each Binlog whose mutations take ``bodies``."""
    for at in range(len(commits)):
        value = 1 + uvarint_bytes(np.uint64(version)) + bodies[at]
        stamps = 2 + uvarint_bytes(np.uint64(commits[at] - 1)) + uvarint_bytes(np.uint64(commits[at]))
        sizes[at] = 2 + stamps + 2 + 1 + uvarint_bytes(np.uint64(value)) + value + 4


@kernel
def put_heads(commits: Ints, bodies: Ints, version: int, starts: Ints, places: Ints, out: Bytes) -> None:
    """Write of each Binlog what stands around its mutations, as `pumphouse.codec.payload.merge` gives it."""
    for at in range(len(commits)):
        to = starts[at]
        out[to], out[to + 1], out[to + 2] = 0x08, 0x01, 0x10
        to = put_uvarint(out, to + 3, np.uint64(commits[at] - 1))
        out[to] = 0x18
        to = put_uvarint(out, to + 1, np.uint64(commits[at]))
        out[to], out[to + 1], out[to + 2] = 0x22, 0x00, 0x2A
        to = put_uvarint(out, to + 3, np.uint64(1 + uvarint_bytes(np.uint64(version)) + bodies[at]))
        out[to] = 0x08
        to = put_uvarint(out, to + 1, np.uint64(version))
        places[at] = to
        to += bodies[at]
        out[to], out[to + 1], out[to + 2], out[to + 3] = 0x38, 0x00, 0x40, 0x00


@kernel
def copy_runs(data: Bytes, ends: Ints, places: Ints, out: Bytes) -> None:
    """Pieces of ``data``, one behind the other, to their places."""
    begin = 0
    for at in range(len(ends)):
        copy_bytes(out, places[at], data, begin, ends[at] - begin)
        begin = ends[at]
