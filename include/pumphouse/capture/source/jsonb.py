"""Kernel that turns MySQL's binary JSON into TiDB's (docs/formats.md, "JSON").

MySQL's containers come in a small and a large form, hold short values in their entries, and sort names by length first;
TiDB's have one form and sort by bytes. What has no exact form of its own (dates, decimals, bytes) is left to Python.
"""

# mypy: disable-error-code="arg-type, assignment, return-value, operator, no-any-return"
# (inside kernels there is one kind of integer)

from __future__ import annotations

import numpy as np

from pumphouse.capture.source.walk import u16, u32
from pumphouse.codec.jit import Bytes, Int32s, Ints, kernel, primitive
from pumphouse.codec.raw import copy_bytes

SMALL_OBJECT, LARGE_OBJECT, SMALL_ARRAY, LARGE_ARRAY, LITERAL = range(5)
INT16, UINT16, INT32, UINT32, INT64, UINT64, DOUBLE, STRING = range(5, 13)
OPAQUE = 15
MAX_DEPTH = 101
# Of a level: where the container lies, its end, its form and kind, entries, the next one, its place among the sorted
# names, where TiDB's begins.
_AT, _END, _LARGE, _OBJECT, _COUNT, _NEXT, _ORDER, _OUT, LEVEL = range(9)
NONE = -1


@primitive
def _put_u32(out: Bytes, at: int, value: int) -> None:
    for byte in range(4):
        out[at + byte] = np.uint8(value >> (8 * byte) & 0xFF)


@primitive
def _put_u64(out: Bytes, at: int, value: int) -> int:
    for byte in range(8):
        out[at + byte] = np.uint8(value >> (8 * byte) & 0xFF)
    return at + 8


@primitive
def _number(data: Bytes, at: int, large: int) -> int:
    return u32(data, at) if large else u16(data, at)


@primitive
def _less(data: Bytes, container: int, large: int, one: int, other: int) -> bool:
    """Whether the name at one entry comes before another's, byte by byte."""
    width = 6 if large else 4
    head = container + (8 if large else 4)
    first, second = head + one * width, head + other * width
    low, high = container + _number(data, first, large), container + _number(data, second, large)
    a, b = u16(data, first + width - 2), u16(data, second + width - 2)
    for byte in range(min(a, b)):
        if data[low + byte] != data[high + byte]:
            return data[low + byte] < data[high + byte]
    return a < b


@kernel
def _sort(data: Bytes, container: int, large: int, count: int, order: Int32s, base: int) -> None:
    """Numbers of the entries in the order of their names (heap sort: no names make it slow)."""
    in_order = True
    for each in range(count):
        order[base + each] = each
        if each and in_order and not _less(data, container, large, each - 1, each):
            in_order = False
    if in_order:
        return
    start, end = count // 2, count
    while end > 1:
        if start > 0:
            start -= 1
        else:
            end -= 1
            order[base], order[base + end] = order[base + end], order[base]
        root = start
        while 2 * root + 1 < end:
            child = 2 * root + 1
            if child + 1 < end and _less(data, container, large, order[base + child], order[base + child + 1]):
                child += 1
            if not _less(data, container, large, order[base + root], order[base + child]):
                break
            order[base + root], order[base + child] = order[base + child], order[base + root]
            root = child


@kernel
def _open(
    data: Bytes, at: int, end: int, kind: int, order: Int32s, stack: Ints, depth: int, used: int, out: Bytes, to: int,
    limit: int,
) -> int:  # fmt: skip
    """Begin a container: its head, and all names; position behind, where the first value goes. -1 = not to be read."""
    large = 1 if kind in (LARGE_OBJECT, LARGE_ARRAY) else 0
    is_object = 1 if kind in (SMALL_OBJECT, LARGE_OBJECT) else 0
    head = 8 if large else 4
    if at + head > end:
        return NONE
    count, size = _number(data, at, large), _number(data, at + (4 if large else 2), large)
    named, valued = (6 if large else 4) * is_object, 5 if large else 3
    place = to + 8 + count * (11 if is_object else 5)
    if at + size > end or head + count * (named + valued) > size or used + count > len(order) or place > limit:
        return NONE
    level = stack[depth]
    level[_AT], level[_END], level[_LARGE], level[_OBJECT] = at, at + size, large, is_object
    level[_COUNT], level[_NEXT], level[_ORDER], level[_OUT] = count, 0, used, to
    _put_u32(out, to, count)
    entry = to + 8
    if not is_object:
        return place
    for each in range(count):
        name = at + head + each * named
        length = u16(data, name + named - 2)
        if _number(data, name, large) + length > size:
            return NONE
    _sort(data, at, large, count, order, used)
    for each in range(count):
        name = at + head + np.int64(order[used + each]) * named
        length = u16(data, name + named - 2)
        if place + length > limit:
            return NONE
        _put_u32(out, entry, place - to)
        out[entry + 4], out[entry + 5] = np.uint8(length & 0xFF), np.uint8(length >> 8)
        copy_bytes(out, place, data, at + _number(data, name, large), length)
        entry += 6
        place += length
    return place


@primitive
def _put_scalar(  # noqa: C901, PLR0911, PLR0912 - one a type
    data: Bytes, at: int, end: int, kind: int, out: Bytes, to: int, limit: int
) -> tuple[int, int]:
    """(TiDB's type, position behind its body); type 0: Python has to look at it."""
    if to + 8 > limit:
        return 0, to
    if kind in (INT16, INT32, INT64):
        size = 2 if kind == INT16 else 4 if kind == INT32 else 8
        if at + size > end:
            return 0, to
        value = np.int64(0)
        for byte in range(size):
            value |= np.int64(data[at + byte]) << (8 * byte)
        if size < 8 and data[at + size - 1] & 0x80:
            value -= np.int64(1) << (8 * size)
        return 0x09, _put_u64(out, to, value)
    if kind in (UINT16, UINT32, UINT64, DOUBLE):
        size = 2 if kind == UINT16 else 4 if kind == UINT32 else 8
        if at + size > end:
            return 0, to
        value = np.int64(0)
        for byte in range(size):
            value |= np.int64(data[at + byte]) << (8 * byte)
        # A number that is no double's and below 2^63 is a signed one in texts, and so everywhere.
        code = 0x0B if kind == DOUBLE else 0x0A if value < 0 else 0x09
        return code, _put_u64(out, to, value)
    if kind == STRING:
        length, shift = np.int64(0), 0
        while True:
            if at >= end or shift > 28:
                return 0, to
            byte = np.int64(data[at])
            length |= (byte & 0x7F) << shift
            at += 1
            shift += 7
            if byte < 0x80:
                break
        if at + length > end or to + 5 + length > limit:
            return 0, to
        rest = length
        while rest >= 0x80:
            out[to] = np.uint8(rest & 0x7F | 0x80)
            rest >>= 7
            to += 1
        out[to] = np.uint8(rest)
        copy_bytes(out, to + 1, data, at, length)
        return 0x0C, to + 1 + length
    return 0, to


@primitive
def _literal(value: int) -> int:
    """TiDB counts null, true, false from 0 as MySQL does."""
    return value if value in (0, 1, 2) else NONE


@kernel
def put(  # noqa: C901, PLR0911, PLR0912, PLR0915 - a walk without recursion
    data: Bytes, at: int, size: int, order: Int32s, stack: Ints, out: Bytes, to: int, limit: int
) -> int:
    """Write the datum of a document, not behind ``limit``; -1 where Python has to, or says what is wrong.

    Values of a damaged document may lie at the same place: then it becomes larger than any of its size.
    """
    end = at + size
    out[to] = 0x0A
    if size == 0:  # what NULL becomes in a column that was made NOT NULL: JSON's null
        out[to + 1], out[to + 2] = 0x04, 0
        return to + 3
    kind = np.int64(data[at])
    if kind == LITERAL:
        if size < 2 or _literal(np.int64(data[at + 1])) < 0:
            return NONE
        out[to + 1], out[to + 2] = 0x04, data[at + 1]
        return to + 3
    if kind > LARGE_ARRAY:
        code, behind = _put_scalar(data, at + 1, end, kind, out, to + 2, limit)
        out[to + 1] = code
        return behind if code else NONE
    out[to + 1] = 0x01 if kind <= LARGE_OBJECT else 0x03
    depth, used = 0, 0
    to = _open(data, at + 1, end, kind, order, stack, 0, 0, out, to + 2, limit)
    if to < 0:
        return NONE
    while depth >= 0:
        level = stack[depth]
        index = level[_NEXT]
        if index == level[_COUNT]:
            _put_u32(out, level[_OUT] + 4, to - level[_OUT])
            depth -= 1
            continue
        level[_NEXT] = index + 1
        container, large, is_object = level[_AT], level[_LARGE], level[_OBJECT]
        count = level[_COUNT]
        source = np.int64(order[level[_ORDER] + index]) if is_object else index
        named, valued = (6 if large else 4) * is_object, 5 if large else 3
        entry = container + (8 if large else 4) + count * named + source * valued
        slot = level[_OUT] + 8 + count * 6 * is_object + index * 5
        kind = np.int64(data[entry])
        if kind == LITERAL:
            value = _literal(_number(data, entry + 1, large))
            if value < 0:
                return NONE
            out[slot] = 0x04
            _put_u32(out, slot + 1, value)
            continue
        _put_u32(out, slot + 1, to - level[_OUT])
        inline = kind in (INT16, UINT16) or (large and kind in (INT32, UINT32))
        place = entry + 1 if inline else container + _number(data, entry + 1, large)
        if place > level[_END]:
            return NONE
        if kind > LARGE_ARRAY:
            code, to = _put_scalar(data, place, level[_END], kind, out, to, limit)
            if code == 0:
                return NONE
            out[slot] = code
            continue
        if depth + 1 >= MAX_DEPTH:
            return NONE
        out[slot] = 0x01 if kind <= LARGE_OBJECT else 0x03
        used = level[_ORDER] + (count if is_object else 0)
        behind = level[_END]
        depth += 1
        to = _open(data, place, behind, kind, order, stack, depth, used, out, to, limit)
        if to < 0:
            return NONE
    return to
