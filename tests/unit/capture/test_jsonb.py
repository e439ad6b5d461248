"""MySQL's binary JSON: the kernel against the reader of one document, over random documents in both forms of containers."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import numpy as np
import pytest

from pumphouse.capture.source import jsonb
from pumphouse.capture.source.jsontext import document_text
from pumphouse.codec.json import encode_json, json_text
from pumphouse.errors import CodecError

pytestmark = pytest.mark.row("Q1")


def _scalar(value: Any) -> tuple[int, bytes]:
    if value is None or isinstance(value, bool):
        return jsonb.LITERAL, bytes((0 if value is None else 2 - value,))
    if isinstance(value, float):
        return jsonb.DOUBLE, struct.pack("<d", value)
    if isinstance(value, str):
        raw, size, out = value.encode(), len(value.encode()), bytearray()
        while size >= 0x80:
            out.append(size & 0x7F | 0x80)
            size >>= 7
        return jsonb.STRING, bytes((*out, size)) + raw
    for kind, code in (
        (jsonb.INT16, "<h"),
        (jsonb.UINT16, "<H"),
        (jsonb.INT32, "<i"),
        (jsonb.UINT32, "<I"),
        (jsonb.INT64, "<q"),
    ):
        try:
            return kind, struct.pack(code, value)
        except struct.error:
            continue
    return jsonb.UINT64, struct.pack("<Q", value)


def _written(value: Any, large: bool) -> tuple[int, bytes]:
    """As MySQL's json_binary.cc does; names by length, then bytes."""
    if not isinstance(value, dict | list):
        return _scalar(value)
    names = (
        sorted((each.encode() for each in value), key=lambda each: (len(each), each)) if isinstance(value, dict) else []
    )
    values = [value[each.decode()] for each in names] if isinstance(value, dict) else value
    width, code = (4, "<I") if large else (2, "<H")
    head = 2 * width + len(names) * (width + 2)
    at = head + len(values) * (1 + width)
    entries, keys = b"", b""
    for name in names:
        entries += struct.pack(code + "H", at + len(keys), len(name))
        keys += name
    slots, bodies = b"", b""
    for each in values:
        kind, body = _written(each, large)
        if kind in (jsonb.LITERAL, jsonb.INT16, jsonb.UINT16) or (large and kind in (jsonb.INT32, jsonb.UINT32)):
            slots += bytes((kind,)) + body.ljust(
                width, b"\xff" if each is not True and isinstance(each, int) and each < 0 else b"\0"
            )
        else:
            slots += bytes((kind,)) + struct.pack(code, at + len(keys) + len(bodies))
            bodies += body
    size = at + len(keys) + len(bodies)
    kind = (
        (jsonb.LARGE_OBJECT if large else jsonb.SMALL_OBJECT)
        if isinstance(value, dict)
        else (jsonb.LARGE_ARRAY if large else jsonb.SMALL_ARRAY)
    )
    return kind, struct.pack(code, len(values)) + struct.pack(code, size) + entries + slots + keys + bodies


def _kernel(data: bytes) -> bytes | None:
    out = np.zeros(len(data) * 12 + 64, np.uint8)
    order, stack = np.zeros(4096, np.int32), np.zeros((jsonb.MAX_DEPTH, jsonb.LEVEL), np.int64)
    end = jsonb.put(np.frombuffer(data, np.uint8), 0, len(data), order, stack, out, 0, len(out))
    return None if end < 0 else out[:end].tobytes()


def _document(pick: random.Random, depth: int) -> Any:
    kind = pick.randrange(9 if depth else 6)
    if kind == 0:
        return pick.choice([None, True, False])
    if kind in (1, 2):
        return pick.choice(
            [0, 1, -1, 32767, -32768, 40000, 65536, -(1 << 31), 1 << 32, -(1 << 63), (1 << 63) - 1, (1 << 64) - 1]
        )
    if kind == 3:
        return pick.choice([0.5, -1e300, 1.0, 2.2250738585072014e-308])
    if kind in (4, 5):
        return "".join(pick.choice('aé漢🚰"\\\n') for _ in range(pick.choice([0, 1, 5, 127, 128, 300])))
    if kind < 8:
        return {
            "".join(pick.choice("abB_é") for _ in range(pick.randrange(6))): _document(pick, depth - 1)
            for _ in range(pick.randrange(7))
        }
    return [_document(pick, depth - 1) for _ in range(pick.randrange(7))]


@pytest.mark.parametrize("large", [False, True])
def test_every_document_is_as_its_text_is(large: bool) -> None:
    for seed in range(400):
        value = _document(random.Random(seed), 4)
        kind, body = _written(value, large)
        data = bytes((kind,)) + body
        wanted = encode_json(document_text(data))
        assert json.loads(json_text(wanted)) == value
        assert _kernel(data) == b"\x0a" + wanted, (seed, value)


def test_what_has_no_form_of_its_own_is_text_and_damage_is_refused() -> None:
    stamp = ((2024 * 13 + 2) << 22 | 29 << 17 | 1 << 12 | 2 << 6 | 3) << 24 | 456
    cases = {
        b"\x0f\x0c\x08" + struct.pack("<q", stamp): '"2024-02-29 01:02:03.000456"',
        b"\x0f\x0a\x08" + struct.pack("<q", (2024 * 13 + 2) << 46 | 29 << 41): '"2024-02-29"',
        b"\x0f\x0b\x08" + struct.pack("<q", -((12 << 12 | 34 << 6 | 56) << 24 | 7)): '"-12:34:56.000007"',
        b"\x0f\xf6\x04\x04\x02\x81\x05": "1.05",
        b"\x0f\xfc\x02hi": '"base64:type252:aGk="',
    }  # fmt: skip
    for data, text in cases.items():
        assert _kernel(data) is None
        assert document_text(data) == text
    whole = bytes((jsonb.SMALL_OBJECT,)) + _written({"a": [1, "two"], "bb": {"c": None}}, False)[1]
    for end in range(1, len(whole)):
        assert _kernel(whole[:end]) is None
    with pytest.raises(CodecError):
        document_text(whole[:6])


@pytest.mark.parametrize("kind", [jsonb.SMALL_ARRAY, jsonb.SMALL_OBJECT])
def test_a_document_whose_values_share_their_bytes_writes_nothing_behind_its_room(kind: int) -> None:
    """Every entry (or every name) points at the same long text: valid one by one, and far larger than its room."""
    count, long = 2000, 30_000
    text = bytes((long & 0x7F | 0x80, long >> 7 & 0x7F | 0x80, long >> 14)) + b"x" * long
    named = 4 * (kind == jsonb.SMALL_OBJECT)
    head = 4 + (3 + named) * count
    entries = struct.pack("<HH", head + 3, long) * count if named else b""
    values = (b"\x04\1\0" if named else b"\x0c" + struct.pack("<H", head)) * count
    body = struct.pack("<HH", count, head + len(text)) + entries + values + text
    data = bytes((kind,)) + body
    limit = 12 * len(data)
    out = np.full(limit + (128 << 20), 0x77, np.uint8)
    order, stack = np.zeros(4096, np.int32), np.zeros((jsonb.MAX_DEPTH, jsonb.LEVEL), np.int64)
    assert jsonb.put(np.frombuffer(data, np.uint8), 0, len(data), order, stack, out, 0, limit) < 0
    assert (out[limit:] == 0x77).all()
    with pytest.raises(CodecError, match="upon each other"):
        document_text(data)
