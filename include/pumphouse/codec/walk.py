"""Kernels that find the row changes in Binlog payloads."""

# mypy: disable-error-code="arg-type, assignment, return-value"
# (inside kernels there is one kind of integer)

from __future__ import annotations

import numpy as np

from pumphouse.codec.jit import Bytes, Ints, kernel, primitive
from pumphouse.codec.raw import prefetch
from pumphouse.codec.wire import read_field, read_uvarint

# How far ahead of a payload's begin bytes are asked for.
AHEAD_BYTES = 16 << 10

BAD_BYTES, BAD_TYPE, OBSOLETE, NO_ROW = 1, 2, 3, 4
REASONS = {
    BAD_BYTES: "the bytes do not parse",
    BAD_TYPE: "unknown mutation type",
    OBSOLETE: "an obsolete field is used",
    NO_ROW: "a sequence entry has no row",
}


@kernel
def prewrite_value(data: Bytes, pos: int, end: int) -> tuple[int, int]:
    """Start and end of a Binlog's prewrite value (the last one counts); (0, 0) without, (-1, -1) when damaged."""
    start, stop = 0, 0
    while pos < end:
        number, wire, at, length, pos = read_field(data, pos, end)
        if pos < 0 or (number == 5 and wire != 2):
            return -1, -1
        if number == 5:
            start, stop = at, at + length
    return start, stop


@primitive
def _mutation_problem(data: Bytes, pos: int, end: int) -> int:
    """Reason why the rows of one TableMutation cannot be read, 0 = they can."""
    inserted, updated, deleted = 0, 0, 0  # rows that no entry of the sequence has used
    while pos < end:
        number, wire, at, length, pos = read_field(data, pos, end)
        if pos < 0:
            return BAD_BYTES
        if number in (4, 5):
            return OBSOLETE
        if number == 7 and (wire in (0, 2)):
            stop = at + length
            while at < stop:
                raw, at = read_uvarint(data, at, stop)
                if at < 0 or (raw > 1 and raw != 4):
                    return BAD_TYPE
                inserted -= raw == 0
                updated -= raw == 1
                deleted -= raw == 4
        elif wire == 2:
            inserted += number == 2
            updated += number == 3
            deleted += number == 6
    return NO_ROW if min(inserted, updated, deleted) < 0 else 0


@primitive
def value_problem(data: Bytes, pos: int, end: int) -> int:
    """Reason why `fill_rows` would not read a prewrite value, 0 = it would; one pass that looks at no image."""
    while pos < end:
        number, wire, at, length, pos = read_field(data, pos, end)
        if pos < 0:
            return BAD_BYTES
        if number == 2 and wire == 2:
            found = _mutation_problem(data, at, at + length)
            if found:
                return found
    return 0


@kernel
def payload_problem(data: Bytes, pos: int, end: int) -> int:
    """As `value_problem`, of the prewrite value in a Binlog."""
    start, stop = prewrite_value(data, pos, end)
    return BAD_BYTES if start < 0 else value_problem(data, start, stop)


@kernel
def next_row(data: Bytes, pos: int, end: int, wanted: int) -> tuple[int, int, int]:
    """Start and length of the next bytes field with this number, and the position behind it; -1 when there is none."""
    while pos < end:
        number, wire, at, length, pos = read_field(data, pos, end)
        if pos < 0:
            return 0, 0, -1
        if number == wanted and wire == 2:
            return at, length, pos
    return 0, 0, -1


@kernel
def survey(data: Bytes, pos: int, end: int, firsts: Ints) -> tuple[int, int, int]:
    """Of one TableMutation: reason (0 = fine), table id, entries of its sequence.

    ``firsts`` gets where the first row of each kind (inserted, updated, deleted) and the sequence begin, or ``end``.
    """
    table_id = 0
    count = 0
    firsts[:] = end
    while pos < end:
        field = pos
        number, wire, at, length, pos = read_field(data, pos, end)
        if pos < 0:
            return BAD_BYTES, 0, 0
        if number in (2, 3):
            firsts[number - 2] = min(firsts[number - 2], field)
        elif number == 6:
            firsts[2] = min(firsts[2], field)
        elif number == 1 and wire == 0:
            raw, _ = read_uvarint(data, at, at + length)
            table_id = np.int64(raw)
        elif number in (4, 5):
            return OBSOLETE, 0, 0
        elif number == 7:
            firsts[3] = min(firsts[3], field)
            if wire == 0:
                count += 1
            elif wire == 2:
                for each in range(at, at + length):
                    if data[each] < 0x80:
                        count += 1
    return 0, table_id, count


@kernel
def version_of(data: Bytes, pos: int, end: int) -> tuple[int, bool]:
    """Schema version of a prewrite value, and whether its fields can be read."""
    version = 0
    while pos < end:
        number, wire, at, length, pos = read_field(data, pos, end)
        if pos < 0:
            return 0, False
        if number == 1 and wire == 0:
            raw, _ = read_uvarint(data, at, at + length)
            version = np.int64(raw)
    return version, True


@kernel
def fill_rows(  # noqa: C901, PLR0912, PLR0915 - one pass over a payload, kept in one piece for speed
    data: Bytes,
    offsets: Ints,
    txns: Ints,
    table_ids: Ints,
    versions: Ints,
    ops: Bytes,
    seqs: Ints,
    starts: Ints,
    lengths: Ints,
    cursors: Ints,
    state: Ints,
    failed: Ints,
) -> None:
    """Fill one entry a row change, in the order of ``sequence``, as long as there is room.

    ``state``: the payload to go on with, entries so far, and in the end the room that the next payload needs at least;
    0 when there is none. On damage ``failed`` gets reason and payload index.
    """
    row = state[1]
    ahead = offsets[state[0]]
    for txn in range(state[0], len(offsets) - 1):
        first = row
        # From length to length each line would be waited for.
        ahead = max(ahead, offsets[txn])
        stop = min(offsets[txn] + AHEAD_BYTES, len(data))
        while ahead < stop:
            prefetch(data, ahead)
            ahead += 64
        state[0], state[1], state[2] = txn, first, 0
        failed[1] = txn
        pos, end = prewrite_value(data, offsets[txn], offsets[txn + 1])
        version, readable = version_of(data, pos, end)
        if pos < 0 or not readable:
            failed[0] = BAD_BYTES
            return
        while pos < end:
            number, wire, start, length, pos = read_field(data, pos, end)
            if number != 2 or wire != 2:
                continue
            stop = start + length
            # What it finds is read again at once, while it is in the processor's cache.
            failed[0], table_id, count = survey(data, start, stop, cursors)
            if failed[0]:
                return
            if row + count > len(txns):
                state[2] = row + count - first
                return
            at = cursors[3]
            while at < stop:
                number, wire, entry, length, at = read_field(data, at, stop)
                if number != 7 or (wire not in (0, 2)):
                    continue
                entries_end = entry + length
                while entry < entries_end:
                    raw, entry = read_uvarint(data, entry, entries_end)
                    op = 0
                    field = 2
                    if raw == 1:
                        op, field = 1, 3
                    elif raw == 4:
                        op, field = 2, 6
                    if entry < 0 or (op == 0 and raw != 0):
                        failed[0] = BAD_TYPE
                        return
                    row_start, row_len, cursors[op] = next_row(data, cursors[op], stop, field)
                    if cursors[op] < 0:
                        failed[0] = NO_ROW
                        return
                    txns[row] = txn
                    table_ids[row] = table_id
                    versions[row] = version
                    ops[row] = op
                    seqs[row] = row - first
                    starts[row] = row_start
                    lengths[row] = row_len
                    row += 1
    state[1], state[2] = row, 0
