"""The door's kernels in plain Python, over the tables of the `hpack` library: what they must agree with.

The library's words for what is wrong with a block are others: `one_fault` has one for all.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import hpack
import numpy as np
import pytest
from hpack.exceptions import HPACKError

from pump_service.door.http2 import frames, headers, lean, runs
from pump_service.door.http2.table import MALFORMED, NO_TIMEOUT, TIMEOUT

_UNITS_NS = {"H": 3600e9, "M": 60e9, "S": 1e9, "m": 1e6, "u": 1e3, "n": 1}


def timeout_ns(value: bytes) -> int:
    """Of a ``grpc-timeout``: at most 8 digits and a unit."""
    text = value.decode("latin-1")
    if not (1 <= len(text) - 1 <= 8 and text.isascii() and text[:-1].isdigit() and text[-1] in _UNITS_NS):
        return MALFORMED
    return int(min(int(text[:-1]) * _UNITS_NS[text[-1]], 1e18))


def one_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong with a block is said the same way, whatever it is."""
    monkeypatch.setattr(headers, "FAULTS", ("", *["wrong"] * 10))


class PlainTables:
    """Stands for `table.read_one` and `lean.take_calls`."""

    def __init__(self) -> None:
        self._decoders: dict[
            int, tuple[hpack.Decoder, Any]
        ] = {}  # by the arena, which is kept so that it stays its own

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing goes through a kernel from here on."""
        monkeypatch.setattr(headers, "read_one", self.read_one)
        monkeypatch.setattr(runs, "take_calls", self.take_calls)

    def read_one(self, data: Any, arena: Any, entries: Any, numbers: Any, out: Any, most: int) -> tuple[int, int, int]:
        """As the kernel, of which the numbers of faults are another matter."""
        del entries, numbers
        decoder, _ = self._decoders.setdefault(id(arena), (hpack.Decoder(max_header_list_size=1 << 30), arena))
        try:
            fields = decoder.decode(data.tobytes(), raw=True)
        except (HPACKError, IndexError):
            return 0, NO_TIMEOUT, 1
        section, timeout, left = b"", NO_TIMEOUT, most
        for name, value in fields:
            if name == TIMEOUT:
                timeout = timeout_ns(bytes(value)) if timeout == NO_TIMEOUT else MALFORMED
            elif left >= 0:
                section += struct.pack(">II", len(name), len(value)) + name + value
            left -= len(name) + len(value) + 32
        out[: len(section)] = np.frombuffer(section, np.uint8)
        return len(section), timeout, 0

    def take_calls(
        self, data: Any, like: Any, arena: Any, entries: Any, numbers: Any, out: Any, wide: Any, table: Any
    ) -> int:
        """As the kernel."""
        raw, at, last = data.tobytes(), int(table[lean.AT]), int(table[lean.LAST])
        first, taken, credit = int(table[lean.CALLS]), 0, 0
        row, soonest, shift = first, NO_TIMEOUT, int(table[lean.BYTES]) - at
        table[lean.STOP] = lean.FRAME
        table[lean.FAULT] = 0
        while True:
            found = list(_frames(raw, at, int(table[lean.FRAME_BYTES])))
            while found and _gives(found[0]) and found[0][2] == 0:
                credit += _gives(found[0])
                at = found.pop(0)[4]
            if not found or row - first >= table[lean.ROOM] or row >= wide.shape[1]:
                break
            kind, flags, stream_id, block, _ = found[0]
            if (
                (kind, flags) != (frames.HEADERS, frames.END_HEADERS)
                or not last < stream_id < 1 << 31
                or not stream_id & 1
            ):
                break
            between = []
            for each in found[1:]:
                if not _gives(each) or each[2] not in (0, stream_id):
                    break
                between.append(each)
            own = sum(_gives(each) for each in between if each[2] == stream_id)
            more = sum(_gives(each) for each in between if each[2] == 0)
            rest = found[1 + len(between) :]
            if not rest or own + table[lean.WINDOW] > frames.MAX_WINDOW:
                break
            kind, flags, whose, body, behind = rest[0]
            size = len(body) - 5
            if (
                (kind, flags, whose) != (frames.DATA, frames.END_STREAM, stream_id)
                or size < 0
                or size > table[lean.LONGEST]
            ):
                break
            if body[:5] != b"\0" + size.to_bytes(4, "big"):
                break
            head = np.frombuffer(block, np.uint8)
            section, timeout, fault = self.read_one(head, arena, entries, numbers, out, int(table[lean.LIST]))
            if fault:
                table[lean.STOP], table[lean.FAULT] = lean.BROKEN, fault
                break
            wide[:, row] = stream_id, shift + behind - size, size, timeout, own
            if out[:section].tobytes() != like.tobytes() or timeout == MALFORMED:
                table[[lean.STOP, lean.SECTION, lean.NEXT, lean.MORE]] = lean.OTHER, section, behind, more
                break
            if timeout != NO_TIMEOUT:
                soonest = timeout if soonest == NO_TIMEOUT else min(soonest, timeout)
            taken, credit, row, last, at = taken + size + 5, credit + more, row + 1, stream_id, behind
        table[[lean.END, lean.TAKEN, lean.SOONEST, lean.CREDIT]] = at, taken, soonest, credit
        return row - first


def _frames(raw: bytes, at: int, most: int) -> Iterator[tuple[int, int, int, bytes, int]]:
    """The next frames that are whole: type, flags, stream id, payload, where it ends."""
    for _ in range(8):
        if len(raw) - at < 9:
            return
        word, flags, stream_id = frames.HEAD.unpack_from(raw, at)
        end = at + 9 + (word >> 8)
        if end > len(raw) or word >> 8 > most:
            return
        yield word & 0xFF, flags, stream_id, raw[at + 9 : end], end
        at = end


def _gives(each: tuple[int, int, int, bytes, int]) -> int:
    """What a WINDOW_UPDATE gives; 0 = it is none, or gives nothing."""
    kind, _, _, payload, _ = each
    if kind != frames.WINDOW_UPDATE or len(payload) != 4:
        return 0
    return int.from_bytes(payload, "big") & 0x7FFFFFFF
