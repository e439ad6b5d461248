"""Kernels that find the row changes in Binlog payloads (the columnar side of ``payload.row_changes``)."""

# mypy: disable-error-code="arg-type, assignment, return-value"
# (inside kernels there is one kind of integer)

from __future__ import annotations

import numpy as np

from pumphouse.codec.jit import Bytes, Ints, kernel
from pumphouse.codec.wire import read_field, read_uvarint

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
def count_sequence(data: Bytes, pos: int, end: int) -> tuple[int, int, int]:
    """Of one TableMutation: reason (0 = fine), table id, entries of its sequence."""
    table_id = 0
    count = 0
    while pos < end:
        number, wire, at, length, pos = read_field(data, pos, end)
        if pos < 0:
            return BAD_BYTES, 0, 0
        if number == 1 and wire == 0:
            raw, _ = read_uvarint(data, at, at + length)
            table_id = np.int64(raw)
        elif number in (4, 5):
            return OBSOLETE, 0, 0
        elif number == 7 and wire == 0:
            count += 1
        elif number == 7 and wire == 2:
            for each in range(at, at + length):
                if data[each] < 0x80:
                    count += 1
    return 0, table_id, count


@kernel
def count_rows(data: Bytes, offsets: Ints, failed: Ints) -> int:
    """Row changes of all payloads; on damage ``failed`` gets reason and payload index."""
    total = 0
    for txn in range(len(offsets) - 1):
        pos, end = prewrite_value(data, offsets[txn], offsets[txn + 1])
        if pos < 0:
            failed[0], failed[1] = BAD_BYTES, txn
            return 0
        while pos < end:
            number, wire, at, length, pos = read_field(data, pos, end)
            if pos < 0:
                failed[0], failed[1] = BAD_BYTES, txn
                return 0
            if number == 2 and wire == 2:
                reason, _, count = count_sequence(data, at, at + length)
                if reason:
                    failed[0], failed[1] = reason, txn
                    return 0
                total += count
    return total


@kernel
def version_of(data: Bytes, pos: int, end: int) -> int:
    """Schema version of a prewrite value that :func:`count_rows` has checked."""
    version = 0
    while pos < end:
        number, wire, at, length, pos = read_field(data, pos, end)
        if number == 1 and wire == 0:
            raw, _ = read_uvarint(data, at, at + length)
            version = np.int64(raw)
    return version


@kernel
def fill_rows(
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
    failed: Ints,
) -> int:
    """Fill one entry a row change, in the order of ``sequence``; on damage ``failed`` gets reason and payload index."""
    row = 0
    for txn in range(len(offsets) - 1):
        first = row
        pos, end = prewrite_value(data, offsets[txn], offsets[txn + 1])
        version = version_of(data, pos, end)
        while pos < end:
            number, wire, start, length, pos = read_field(data, pos, end)
            if number != 2 or wire != 2:
                continue
            stop = start + length
            _, table_id, _ = count_sequence(data, start, stop)
            cursors[:] = start
            at = start
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
                        failed[0], failed[1] = BAD_TYPE, txn
                        return 0
                    row_start, row_len, cursors[op] = next_row(data, cursors[op], stop, field)
                    if cursors[op] < 0:
                        failed[0], failed[1] = NO_ROW, txn
                        return 0
                    txns[row] = txn
                    table_ids[row] = table_id
                    versions[row] = version
                    ops[row] = op
                    seqs[row] = row - first
                    starts[row] = row_start
                    lengths[row] = row_len
                    row += 1
    return row
