"""Serialized write requests, of one message or of many, -> the records that are in them.

What is not as every writer puts it (an unknown field, fields in another order, another cluster) is left to protobuf.
"""

# mypy: disable-error-code="arg-type, assignment, return-value"
# (inside kernels there is one kind of integer)

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pump_service.store.parse import OTHER, Columns, minimal_uvarint, parse_one
from pump_service.store.records import Records
from pumphouse.codec.jit import Bytes, Ints, UInts, frozen, kernel, primitive
from pumphouse.codec.walk import payload_problem

# What a kernel says of all payloads together: the fields of `Intake`, and the bytes of all.
OTHERS, LATEST, PREWRITES, PROBES, UNREADABLE, BYTES, _FACTS = range(7)


@dataclass(slots=True, eq=False)  # not frozen: that sets each field by a call, and there is one of these a group
class Intake:
    """The payloads of requests, where they lie in them, and what decides whether all may be taken as they are."""

    records: Records
    others: int  # payloads, or requests, that are left to protobuf
    latest: int  # largest timestamp
    prewrites: int
    probes: int  # both times 0: nothing is to be stored
    unreadable: int  # prewrites whose rows nobody could read


@primitive
def _one(
    data: Bytes, begin: int, end: int, row: int, narrow: Bytes, wide: Ints, facts: Ints
) -> None:  # fmt: skip
    """Parse one payload and add it to the facts."""
    verdict = parse_one(data, begin, end, row, narrow, wide)
    narrow[0, row] = verdict
    if verdict == OTHER:
        facts[OTHERS] += 1
        return
    facts[BYTES] += end - begin
    facts[LATEST] = max(facts[LATEST], wide[0, row], wide[1, row])
    if narrow[1, row] == 0:
        facts[PREWRITES] += 1
        facts[UNREADABLE] += payload_problem(data, begin, end) != 0
    if wide[0, row] == 0 and wide[1, row] == 0:
        facts[PROBES] += 1


@kernel
def walk_group(
    data: Bytes, begins: Ints, lengths: Ints, cluster: np.uint64, starts: Ints, sizes: Ints, narrow: Bytes, wide: Ints,
    facts: Ints,
) -> None:  # fmt: skip
    """``binlog.WriteBinlogReq`` messages, wherever they lie."""
    for row in range(len(lengths)):
        pos = begins[row]
        end = pos + lengths[row]
        narrow[0, row] = OTHER
        found = np.uint64(0)
        if pos < end and data[pos] == 0x08:
            found, pos = minimal_uvarint(data, pos + 1, end)
        if pos < 0 or pos >= end or found != cluster or data[pos] != 0x12:
            facts[OTHERS] += 1
            continue
        size, pos = minimal_uvarint(data, pos + 1, end)
        if pos < 0 or size != np.uint64(end - pos):
            facts[OTHERS] += 1
            continue
        starts[row], sizes[row] = pos, end - pos
        _one(data, pos, end, row, narrow, wide, facts)


@kernel
def walk_batch(data: Bytes, pos: int, starts: Ints, sizes: Ints, narrow: Bytes, wide: Ints, facts: Ints) -> int:
    """The payloads of a ``WriteBinlogsRequest`` from ``pos`` on; how many, or -1 when there is anything else.

    With no room in ``starts`` they are only counted.
    """
    end = len(data)
    room = len(starts)
    row = np.int64(0)
    while pos < end:
        if data[pos] != 0x1A:
            return -1
        size, pos = minimal_uvarint(data, pos + 1, end)
        if pos < 0 or size > np.uint64(end - pos):
            return -1
        stop = pos + np.int64(size)
        if room:
            starts[row], sizes[row] = pos, stop - pos
            _one(data, pos, stop, row, narrow, wide, facts)
        pos = stop
        row += 1
    return row


@kernel
def batch_head(data: Bytes, head: UInts) -> int:
    """Cluster id and batch id of a ``WriteBinlogsRequest``; where its payloads begin, or -1."""
    pos, end = 0, len(data)
    for field in range(2):
        if pos < end and data[pos] == (field + 1) << 3:
            head[field], pos = minimal_uvarint(data, pos + 1, end)
            if pos < 0:
                return -1
    return pos


def _room(n: int) -> tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """Arrays to fill: starts and sizes, narrow and wide columns, facts."""
    wide = np.zeros((7, n), np.int64)
    return wide[:2], np.zeros((3, n), np.uint8), wide[2:], np.zeros(_FACTS, np.int64)


def read_group(data: Bytes, begins: NDArray[np.int64], lengths: NDArray[np.int64], cluster_id: int) -> Intake:
    """Serialized ``WriteBinlogReq`` messages, one payload each: message i is ``data[begins[i] :][: lengths[i]]``."""
    places, narrow, wide, facts = _room(len(begins))
    walk_group(data, begins, lengths, np.uint64(cluster_id), places[0], places[1], narrow, wide, facts)
    return _made(data, places, narrow, wide, facts)


def read_batch(request: bytes) -> tuple[int, int, Intake] | None:
    """Cluster id, batch id and payloads of a serialized ``WriteBinlogsRequest``; None = it is left to protobuf."""
    data = np.frombuffer(request, np.uint8)
    head = np.zeros(2, np.uint64)
    begin = int(batch_head(data, head))
    if begin < 0:
        return None
    places, narrow, wide, facts = _room(0)
    count = int(walk_batch(data, begin, places[0], places[1], narrow, wide, facts))
    if count < 0:
        return None
    if count:
        places, narrow, wide, facts = _room(count)
        walk_batch(data, begin, places[0], places[1], narrow, wide, facts)
    return int(head[0]), int(head[1]), _made(data, places, narrow, wide, facts)


def _made(
    data: Bytes,
    places: NDArray[np.int64],
    narrow: NDArray[np.uint8],
    wide: NDArray[np.int64],
    facts: NDArray[np.int64],
) -> Intake:
    *found, size = facts.tolist()
    return Intake(Records(frozen(data), places[0], places[1], Columns(*narrow, *wide), size), *found)
