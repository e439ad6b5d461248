"""Calls that came whole, many at a time: a kernel walks over HEADERS and DATA of one socket read.

It takes calls whose header block is, byte for byte, one that this connection has had before, perhaps with a literal
``grpc-timeout`` behind it, and whose request lies whole in the one DATA frame that follows. At the first frame that is
anything else it stops; `connection` and `headers` say in plain Python what such a call is, and take it from there.
"""

# mypy: disable-error-code="arg-type, assignment, return-value, no-any-return"
# (inside kernels there is one kind of integer)

from __future__ import annotations

import numpy as np

from pump_service.door.http2.headers import TIMEOUT_LITERAL
from pumphouse.codec.jit import Bytes, Ints, kernel, primitive

# Columns of the calls: stream ids, where the messages begin among all bytes that were taken, how long they are, and
# timeouts in nanoseconds, NO_TIMEOUT where there is none.
IDS, STARTS, SIZES, TIMEOUTS, COLUMNS = range(5)
NO_TIMEOUT = -1
# The kernel's table. What it is given: where the calls begin, the stream id that theirs are above, how many calls at
# most, bytes of a message at most, and of earlier runs how many calls, and bytes from the first to the last of each.
# And what it says: where it stopped, bytes of DATA frames, the shortest timeout or NO_TIMEOUT.
AT, LAST, ROOM, MOST, CALLS, BYTES, END, TAKEN, SOONEST, TABLE = range(10)
GIVEN = END
# A call without a header block and message: the heads of both frames, and the message's prefix.
SHORTEST = 9 + 9 + 5
_LITERAL = np.frombuffer(TIMEOUT_LITERAL, np.uint8)
_LARGEST_ID = 0x7FFFFFFF
_FOREVER_S = 1e9


@primitive
def _be(data: Bytes, at: int, size: int) -> int:
    """A big-endian number."""
    value = np.int64(0)
    for byte in range(size):
        value = value << 8 | np.int64(data[at + byte])
    return value


@primitive
def timeout_of(data: Bytes, at: int, end: int) -> float:  # noqa: PLR0911 - each is a kind of nonsense
    """Seconds of the one ``grpc-timeout`` literal that lies here; below 0 when it is anything else."""
    value = at + len(_LITERAL) + 1
    digits = end - 1 - value
    if digits < 1 or digits > 8 or data[value - 1] != end - value:
        return -1.0
    for byte in range(len(_LITERAL)):
        if data[at + byte] != _LITERAL[byte]:
            return -1.0
    number = np.int64(0)
    for place in range(value, end - 1):
        if data[place] < 0x30 or data[place] > 0x39:
            return -1.0
        number = number * 10 + np.int64(data[place]) - 0x30
    unit = data[end - 1]
    if unit == 0x48:
        return number * 3600.0
    if unit == 0x4D:
        return number * 60.0
    if unit == 0x53:
        return number * 1.0
    if unit == 0x6D:
        return number * 1e-3
    if unit == 0x75:
        return number * 1e-6
    if unit == 0x6E:
        return number * 1e-9
    return -1.0


@kernel
def take_calls(data: Bytes, block: Bytes, wide: Ints, table: Ints) -> int:
    """Calls behind those that the columns have; returns how many.

    ``data``: what was read. ``block``: the header block that they have. ``wide``: the columns. ``table``: as above.
    """
    at, last, most = table[AT], table[LAST], table[MOST]
    first, size = table[CALLS], len(data)
    row, shift = first, table[BYTES] - at
    stop = min(first + table[ROOM], wide.shape[1])
    taken = 0
    soonest = np.inf
    while row < stop and size - at >= SHORTEST + len(block):
        stream_id = _be(data, at + 5, 4)
        begin = at + 9
        end = begin + _be(data, at, 3)
        if data[at + 3] != 1 or data[at + 4] != 4 or size - end < 14:  # HEADERS, END_HEADERS alone
            break
        if stream_id <= last or stream_id > _LARGEST_ID or stream_id & 1 == 0:
            break
        behind = begin + len(block)
        if end < behind:
            break
        same = True
        for byte in range(len(block)):
            if data[begin + byte] != block[byte]:
                same = False
                break
        if not same:
            break
        timeout = np.inf
        if end > behind:
            timeout = timeout_of(data, behind, end)
            if timeout < 0:
                break
        length = _be(data, end + 10, 4)
        # DATA, END_STREAM alone, of one message that is not compressed.
        if data[end + 3] != 0 or data[end + 4] != 1 or _be(data, end + 5, 4) != stream_id or data[end + 9] != 0:
            break
        if _be(data, end, 3) != length + 5 or length > most or length > size - end - 14:
            break
        wide[IDS, row], wide[STARTS, row], wide[SIZES, row] = stream_id, shift + end + 14, length
        wide[TIMEOUTS, row] = NO_TIMEOUT if timeout == np.inf else np.int64(min(timeout, _FOREVER_S) * 1e9)
        soonest = min(soonest, timeout)
        taken += length + 5
        row += 1
        last = stream_id
        at = end + 14 + length
    table[END], table[TAKEN] = at, taken
    table[SOONEST] = NO_TIMEOUT if soonest == np.inf else np.int64(min(soonest, _FOREVER_S) * 1e9)
    return row - first


def warm() -> None:
    """Load the kernel."""
    nothing = np.frombuffer(b"", np.uint8)
    take_calls(nothing, nothing, np.empty((COLUMNS, 0), np.int64), np.zeros(TABLE, np.int64))
