"""Kernels of a pull: what records are, whether they are good, and each commit with its prewrite merged in.

Records lie in one buffer; `at` is where a record's header begins, `room` how many bytes of it and of what follows are
there. What a kernel cannot take (damage, bytes of another writer) it marks `BAD`; the plain implementation in
`pump_service.store.reader` then says what is wrong with it, or takes it after all.
"""

# mypy: disable-error-code="arg-type, assignment, return-value"
# (inside kernels there is one kind of integer)

from __future__ import annotations

import numpy as np

from pumphouse.codec.crc import crc_more
from pumphouse.codec.jit import Bytes, Ints, kernel
from pumphouse.codec.raw import copy_bytes, load_u32, load_u64
from pumphouse.codec.wire import put_uvarint, read_field, read_uvarint, uvarint_bytes

BAD, PREWRITE, COMMIT = 0, 1, 2

_MAGIC = 0x823A56E8
_HEADER = 16
_MOST = 1 << 40  # no length above is believed


@kernel
def classify(data: Bytes, at: Ints, room: Ints, ts: Ints, kind: Bytes, start: Ints, size: Ints) -> None:
    """Kind, start ts and payload bytes of records that the index has under ``ts``.

    Looks at their first bytes only. Type and time must both fit: no flipped bit makes a commit look like a prewrite,
    since a commit is not indexed under its start ts; a record's checksum is looked at when it is used.
    """
    for row in range(len(at)):
        kind[row] = BAD
        start[row] = 0
        size[row] = 0
        pos = at[row]
        if room[row] < _HEADER or np.int64(load_u32(data, pos)) != _MAGIC:
            continue
        length = np.int64(load_u64(data, pos + 4))
        if length < 6 or length > _MOST:
            continue
        size[row] = length
        end = pos + min(_HEADER + length, room[row])
        pos += _HEADER
        if end - pos < 6 or data[pos] != 0x08 or data[pos + 1] > 2 or data[pos + 2] != 0x10:
            continue
        prewrite = data[pos + 1] == 0
        raw, pos = read_uvarint(data, pos + 3, end)
        if pos < 0:
            continue
        start[row] = np.int64(raw)
        if prewrite:
            if start[row] == ts[row]:
                kind[row] = PREWRITE
            continue
        if pos >= end or data[pos] != 0x18:
            continue
        raw, pos = read_uvarint(data, pos + 1, end)
        if pos > 0 and np.int64(raw) == ts[row]:
            kind[row] = COMMIT


@kernel
def is_good(data: Bytes, at: int, size: int) -> bool:
    """Whether the checksum of a whole record fits."""
    begin = at + _HEADER
    return crc_more(data, begin, begin + size, 0) == np.int64(load_u32(data, at + 12))


@kernel
def is_good_in_two(data: Bytes, begin: int, size: int, rest: Bytes, at: int) -> bool:
    """As `is_good` of a payload of which ``size`` bytes lie at ``begin`` and all others at ``rest[at:]``."""
    crc = crc_more(rest, at, len(rest), crc_more(data, begin, begin + size, 0))
    return crc == np.int64(load_u32(data, begin - 4))


@kernel
def tail_of(data: Bytes, pos: int, end: int) -> int:
    """Where the fields from 5 (``prewrite_value``) on begin; -1 when the bytes before are damaged.

    Only the bytes up to there need to be in the buffer.
    """
    while pos < end:
        begin = pos
        tag, _ = read_uvarint(data, pos, end)
        if tag >> np.uint64(3) >= np.uint64(5):
            return begin
        _, _, _, _, pos = read_field(data, pos, end)
        if pos < 0:
            return -1
    return end


@kernel
def job_of(data: Bytes, pos: int, end: int) -> int:
    """``ddl_job_id`` among the fields from 5 on, 0 when it is not there; -1 when the bytes are damaged."""
    while pos < end:
        number, wire, at, length, pos = read_field(data, pos, end)
        if pos < 0:
            return -1
        if number == 7 and wire == 0:
            raw, _ = read_uvarint(data, at, at + length)
            return np.int64(raw)
    return 0


@kernel
def measure(
    data: Bytes,
    commit_at: Ints,
    commit_size: Ints,
    prewrite_at: Ints,
    prewrite_size: Ints,
    start: Ints,
    head: Ints,
    tail_at: Ints,
    tail: Ints,
    job: Ints,
) -> int:
    """Check commits with their prewrites, all of whose bytes are there; returns how many from the first on are good.

    ``prewrite_at`` -1 = it has none, it is a fake. A merged binlog is ``head`` bytes of the commit's payload, then the
    ``tail`` bytes that lie at ``tail_at``.
    """
    for row in range(len(commit_at)):
        if not is_good(data, commit_at[row], commit_size[row]):
            return row
        begin = commit_at[row] + _HEADER
        end = begin + commit_size[row]
        own = tail_of(data, begin, end)
        if own < 0:
            return row
        if prewrite_at[row] < 0:
            head[row], tail_at[row], tail[row] = end - begin, end, 0
            job[row] = job_of(data, own, end)
            continue
        if not is_good(data, prewrite_at[row], prewrite_size[row]):
            return row
        head[row] = own - begin
        begin = prewrite_at[row] + _HEADER
        end = begin + prewrite_size[row]
        if end - begin < 4 or data[begin] != 0x08 or data[begin + 1] != 0 or data[begin + 2] != 0x10:
            return row
        raw, _ = read_uvarint(data, begin + 3, end)
        own = tail_of(data, begin, end)
        if np.int64(raw) != start[row] or own < 0:
            return row
        tail_at[row], tail[row] = own, end - own
        job[row] = job_of(data, own, end)
    return len(commit_at)


@kernel
def merge_all(data: Bytes, commit_at: Ints, head: Ints, tail_at: Ints, tail: Ints, offsets: Ints, out: Bytes) -> None:
    """Write each merged binlog to ``out`` from its offset on."""
    for row in range(len(commit_at)):
        to = offsets[row]
        copy_bytes(out, to, data, commit_at[row] + _HEADER, head[row])
        copy_bytes(out, to + head[row], data, tail_at[row], tail[row])


@kernel
def meta_size(start: int, commit: int) -> int:
    """Bytes of a Meta; proto3 leaves zeros out."""
    return (1 + uvarint_bytes(np.uint64(start)) if start else 0) + (
        1 + uvarint_bytes(np.uint64(commit)) if commit else 0
    )


@kernel
def entity_size(payload: int, start: int, commit: int) -> int:
    """Bytes of an Entity: an empty pos, the payload, the meta."""
    meta = meta_size(start, commit)
    return (
        2
        + (1 + uvarint_bytes(np.uint64(payload)) + payload if payload else 0)
        + 1
        + uvarint_bytes(np.uint64(meta))
        + meta
    )


@kernel
def message_offsets(payload_offsets: Ints, start: Ints, commit: Ints, out: Ints) -> None:
    """Where each PullBinlogResp begins with its gRPC prefix; one entry more, the end."""
    at = 0
    for row in range(len(start)):
        out[row] = at
        entity = entity_size(payload_offsets[row + 1] - payload_offsets[row], start[row], commit[row])
        at += 5 + 1 + uvarint_bytes(np.uint64(entity)) + entity
    out[len(start)] = at


@kernel
def encode_messages(
    payloads: Bytes, payload_offsets: Ints, start: Ints, commit: Ints, offsets: Ints, out: Bytes
) -> None:
    """GRPC messages of PullBinlogResp, each with its 5-byte prefix, one after the other."""
    for row in range(len(start)):
        at = offsets[row]
        size = offsets[row + 1] - at - 5
        out[at] = 0
        for byte in range(4):
            out[at + 1 + byte] = np.uint8(size >> (24 - 8 * byte) & 0xFF)
        payload = payload_offsets[row + 1] - payload_offsets[row]
        out[at + 5] = 0x0A
        at = put_uvarint(out, at + 6, np.uint64(entity_size(payload, start[row], commit[row])))
        out[at], out[at + 1] = 0x0A, 0
        at += 2
        if payload:
            out[at] = 0x12
            at = put_uvarint(out, at + 1, np.uint64(payload))
            copy_bytes(out, at, payloads, payload_offsets[row], payload)
            at += payload
        out[at] = 0x22
        at = put_uvarint(out, at + 1, np.uint64(meta_size(start[row], commit[row])))
        if start[row]:
            out[at] = 0x08
            at = put_uvarint(out, at + 1, np.uint64(start[row]))
        if commit[row]:
            out[at] = 0x10
            at = put_uvarint(out, at + 1, np.uint64(commit[row]))
