"""Pulled binlogs as gRPC messages: one Arrow frame (docs/formats.md, "PullBatches"), or one message a binlog.

Both are made of a batch's columns at once. The payloads are copied once, into messages of one binlog each; into a frame
not at all (`arrow`).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import numpy as np

from pump_service.door.group import Messages
from pump_service.store import gather
from pump_service.store.batch import Binlogs

_FRAME_FIELD = b"\x0a"  # PullBatchesResponse.frame
_PREFIX_BYTES = 5
_SMALL = 64 << 10  # smaller pieces of a message are joined to their neighbours


def frame_message(binlogs: Binlogs, beside: bytes) -> Messages:
    """One PullBatchesResponse. ``beside``: its other fields, which come behind the frame, serialized."""
    if not len(binlogs):
        return Messages((_prefix(len(beside)) + beside,), 1)
    # 25 MB, which a Pump without an archive does not need.
    from pump_service.api.arrow import stream_of

    frame = stream_of(binlogs)
    head = _FRAME_FIELD + _varint(frame.size)
    prefix = _prefix(len(head) + frame.size + len(beside))
    return Messages(_joined((prefix, head, *frame.pieces, beside)), 1)


def _joined(pieces: Iterable[Any]) -> tuple[bytes | memoryview, ...]:
    """The same bytes in few pieces, of which the large ones are not copied."""
    found: list[bytes | memoryview] = []
    for small, group in groupby(pieces, lambda piece: len(piece) < _SMALL):
        some = list(group)
        found += [b"".join(some)] if small else map(memoryview, some)
    return tuple(found)


def binlog_messages(binlogs: Binlogs) -> Messages:
    """One PullBinlogResp a binlog, as the Go Pump sends them: pos is there and empty, checksum is not."""
    columns = binlogs.offsets, binlogs.start_ts, binlogs.commit_ts
    offsets = np.empty(len(binlogs) + 1, np.int64)
    gather.message_offsets(*columns, offsets)
    out = np.empty(int(offsets[-1]), np.uint8)
    gather.encode_messages(binlogs.data, *columns, offsets, out)
    return Messages((out.data,), len(binlogs))


def split(messages: Messages) -> list[bytes]:
    """The messages one by one, without prefixes, for a server that takes only such."""
    found = []
    (first, *more) = messages.pieces
    view = memoryview(b"".join(messages.pieces) if more else first)
    at = 0
    while at < len(view):
        size = int.from_bytes(view[at + 1 : at + _PREFIX_BYTES], "big")
        at += _PREFIX_BYTES
        found.append(bytes(view[at : at + size]))
        at += size
    return found


def _prefix(size: int) -> bytes:
    """GRPC's prefix of a message: not compressed, its length."""
    return b"\0" + size.to_bytes(_PREFIX_BYTES - 1, "big")


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
