"""Calls that came whole, many at a time: a kernel walks over the frames of one socket read.

It takes calls whose header section is that of an earlier call of the connection, but for the timeout, and whose request
lies whole in one DATA frame that follows its HEADERS. WINDOW_UPDATEs may stand in front of the DATA, as gRPC core sends
them, and those of the connection anywhere. At the first frame that is anything else it stops; `protocol` and `incoming`
say in plain Python what that is, and take it from there.
"""

# mypy: disable-error-code="arg-type, assignment, return-value, no-any-return"
# (inside kernels there is one kind of integer)

from __future__ import annotations

import numpy as np

from pump_service.door.http2.frames import MAX_WINDOW
from pump_service.door.http2.table import MALFORMED, NO_TIMEOUT, Table, read_block, read_one
from pumphouse.codec.jit import Bytes, Ints, kernel, primitive

# Columns of the calls: stream ids, where the messages begin among all bytes that were taken, how long they are,
# timeouts in nanoseconds (`table.NO_TIMEOUT`), and what the peer takes of the answer beyond its initial window.
IDS, STARTS, SIZES, TIMEOUTS, CREDITS, COLUMNS = range(6)
# The kernel's table. What it is given: where the calls begin, the stream id that theirs are above, how many calls at
# most, bytes of a frame, of a message and of a header list at most, the initial window, and of earlier runs how many
# calls, and bytes from the first to the last of each.
# And what it says: where it stopped, bytes of DATA frames, the shortest timeout, what the peer takes more of the
# connection, why it stopped, and of the call where it did the size of its section, where it ends, what the peer takes
# more of the connection inside of it, or the fault.
AT, LAST, ROOM, FRAME_BYTES, LONGEST, LIST, WINDOW, CALLS, BYTES = range(9)
END, TAKEN, SOONEST, CREDIT, STOP, SECTION, NEXT, MORE, FAULT, TABLE = range(9, 19)
GIVEN = END
# Why it stopped: at a frame that is not for it; at a call whose header block it has read, and which has another
# section: its row stands behind those that were taken; at a header block that cannot be read.
FRAME, OTHER, BROKEN = range(3)
_LARGEST_ID = 0x7FFFFFFF
_DATA, _HEADERS, _WINDOW_UPDATE = 0, 1, 8


@primitive
def _be(data: Bytes, at: int, size: int) -> int:
    """A big-endian number."""
    value = np.int64(0)
    for byte in range(size):
        value = value << 8 | np.int64(data[at + byte])
    return value


@primitive
def _credit(data: Bytes, at: int, size: int) -> int:
    """What the WINDOW_UPDATE that lies here gives; 0 when there is none, or it gives nothing."""
    if size - at < 13 or data[at + 3] != _WINDOW_UPDATE or _be(data, at, 3) != 4:
        return 0
    return _be(data, at + 9, 4) & 0x7FFFFFFF


@kernel
def take_calls(  # noqa: C901, PLR0912, PLR0915 - one loop over frames
    data: Bytes, like: Bytes, arena: Bytes, entries: Ints, numbers: Ints, out: Bytes, wide: Ints, table: Ints
) -> int:
    """Calls behind those that the columns have; returns how many.

    ``data``: what was read. ``like``: the section that they have. ``arena``, ``entries``, ``numbers``: the peer's
    `Table`. ``out``: the section of `OTHER` (`table.scratch`). ``wide``: the columns. ``table``: as above.
    """
    at, last = table[AT], table[LAST]
    first, size = table[CALLS], len(data)
    row, shift = first, table[BYTES] - at
    room = min(first + table[ROOM], wide.shape[1])
    taken = connection = np.int64(0)
    soonest = np.int64(NO_TIMEOUT)
    stop, table[FAULT] = FRAME, 0
    while size - at >= 9:
        if data[at + 3] == _WINDOW_UPDATE:
            credit = _credit(data, at, size)
            if credit == 0 or _be(data, at + 5, 4) != 0:
                break
            connection += credit
            at += 13
            continue
        end = at + 9 + _be(data, at, 3)
        stream_id = _be(data, at + 5, 4)
        if row >= room or data[at + 3] != _HEADERS or data[at + 4] != 4:  # END_HEADERS alone
            break
        if end - at - 9 > table[FRAME_BYTES]:
            break
        if stream_id <= last or stream_id > _LARGEST_ID or stream_id & 1 == 0:
            break
        behind, own, others = end, np.int64(0), np.int64(0)
        while True:
            credit = _credit(data, behind, size)
            if credit == 0:
                break
            whose = _be(data, behind + 5, 4)
            if whose == stream_id:
                own += credit
            elif whose == 0:
                others += credit
            else:
                break
            behind += 13
        if size - behind < 14 or table[WINDOW] + own > MAX_WINDOW:
            break
        length = _be(data, behind + 10, 4)
        # DATA, END_STREAM alone, of one message that is not compressed.
        if data[behind + 3] != _DATA or data[behind + 4] != 1 or _be(data, behind + 5, 4) != stream_id:
            break
        if data[behind + 9] != 0 or _be(data, behind, 3) != length + 5:
            break
        if length > table[LONGEST] or length > size - behind - 14:
            break
        section, timeout, fault = read_block(data, at + 9, end, arena, entries, numbers, out, table[LIST])
        if fault:
            table[FAULT], stop = fault, BROKEN
            break
        wide[IDS, row], wide[STARTS, row], wide[SIZES, row] = stream_id, shift + behind + 14, length
        wide[TIMEOUTS, row], wide[CREDITS, row] = timeout, own
        same = section == len(like) and timeout != MALFORMED
        for byte in range(section if same else 0):
            if out[byte] != like[byte]:
                same = False
                break
        if not same:
            table[SECTION], table[NEXT], table[MORE], stop = section, behind + 14 + length, others, OTHER
            break
        if timeout != NO_TIMEOUT and (soonest == NO_TIMEOUT or timeout < soonest):
            soonest = timeout
        taken += length + 5
        connection += others
        row += 1
        last = stream_id
        at = behind + 14 + length
    table[END], table[TAKEN], table[SOONEST] = at, taken, soonest
    table[CREDIT], table[STOP] = connection, stop
    return row - first


def warm() -> None:
    """Load the kernels that read requests."""
    nothing, out, peer = np.frombuffer(b"", np.uint8), np.empty(0, np.uint8), Table()
    columns = np.empty((COLUMNS, 0), np.int64)
    take_calls(nothing, nothing, peer.arena, peer.entries, peer.numbers, out, columns, np.zeros(TABLE, np.int64))
    read_one(nothing, peer.arena, peer.entries, peer.numbers, out, 0)
