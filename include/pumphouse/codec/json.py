r"""Binary JSON of the datum codec, both ways (docs/formats.md, "JSON").

A value is a type code and a body. Containers hold offsets from their own count field; object keys are sorted bytewise.
Text has TiDB's form: ``", "`` and ``": "`` between parts, shortest doubles, ``\ufffd`` for each byte that is no UTF-8.
The binary form holds 64-bit integers and doubles, and each name once. A text that says more than that is refused: a
MariaDB keeps the text, so that a binlog would have another value than its server.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections import Counter
from decimal import Decimal, InvalidOperation
from typing import Any, Never

from pumphouse.codec.number import SIGN, append_uvarint, read_uvarint, truncated
from pumphouse.codec.time import duration_text
from pumphouse.errors import CodecError

OBJECT, ARRAY, LITERAL, INT64, UINT64, DOUBLE, STRING = 0x01, 0x03, 0x04, 0x09, 0x0A, 0x0B, 0x0C
OPAQUE, DATE, DATETIME, TIMESTAMP, TIME = 0x0D, 0x0E, 0x0F, 0x10, 0x11
MAX_DEPTH = 100  # TiDB refuses deeper documents
_DIGITS = 17
_AS_TEXT = "write a large number as a JSON string, or make the column a text"

_LITERALS = {None: 0, True: 1, False: 2}
_LITERAL_TEXT = ("null", "true", "false")
_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")
_U64 = struct.Struct("<Q")
_F64 = struct.Struct("<d")
_KEY = struct.Struct("<IH")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED = re.compile('["\\\\\x00-\x1f\u2028\u2029\udc80-\udcff]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


class _Number(str):
    """Text of a JSON number, kept until its type is chosen."""

    __slots__ = ()


def _no_constant(text: str) -> Any:
    raise CodecError(f"{text} is no JSON")


def _refuse(what: str, hint: str = _AS_TEXT) -> Never:
    raise CodecError(f"a binlog cannot hold {what}", hint=hint)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        name, times = Counter(name for name, _ in pairs).most_common(1)[0]
        what = f"a JSON object that has the name {name[:40]!r} {times} times"
        _refuse(what, "write each name once, or make the column a text")
    return found


def encode_json(text: str | bytes) -> bytes:
    """Type code and body of a JSON text.

    Raises:
        CodecError: it does not parse, is nested too deep, or has what the binary form cannot hold: a number that is no
            64-bit integer and no double, a name that an object has twice, half of a surrogate pair.
    """
    try:
        value = json.loads(
            text, parse_float=_Number, parse_int=_Number, parse_constant=_no_constant, object_pairs_hook=_object
        )
    except (ValueError, RecursionError) as error:
        raise CodecError(f"{text[:60]!r} is no JSON: {error}") from error
    code, body = _encode(value, 1)
    return bytes((code,)) + body


def _utf8(text: str) -> bytes:
    if lone := _LONE_SURROGATE.search(text):
        _refuse(f"the JSON escape \\u{ord(lone[0]):04x}, which is half of a character")
    return text.encode()


def _is_double(text: str, number: float) -> bool:
    """Whether a number's text is its double, rounded to the digits that it has: 17 of them tell all doubles apart.

    Or the shortest one that is read as it, which beside a power of two may end otherwise.
    """
    try:
        exact = Decimal(text)
    except InvalidOperation:
        return False
    digits = len("".join(map(str, exact.as_tuple().digits)).strip("0")) or 1
    return digits <= _DIGITS and exact in (Decimal(f"{number:.{digits - 1}e}"), Decimal(repr(number)))


def _encode_number(text: str) -> tuple[int, bytes]:
    if not set(text) & set(".eE"):
        value = int(text)
        if -SIGN <= value < SIGN:
            return INT64, _I64.pack(value)
        if 0 <= value < 2 * SIGN:
            return UINT64, _U64.pack(value)
    number = float(text)
    if not _is_double(text, number):
        _refuse(f"the JSON number {text[:40]}, which is no 64-bit integer and no double")
    return DOUBLE, _F64.pack(number)


def _encode(value: Any, depth: int) -> tuple[int, bytes]:
    if depth > MAX_DEPTH + 1:
        raise CodecError(f"a JSON document is nested more than {MAX_DEPTH} deep")
    if isinstance(value, _Number):
        return _encode_number(value)
    if isinstance(value, str):
        data = _utf8(value)
        out = bytearray()
        append_uvarint(out, len(data))
        return STRING, bytes(out + data)
    if isinstance(value, list):
        return ARRAY, _encode_container([], value, depth)
    if isinstance(value, dict):
        pairs = sorted({_utf8(k): v for k, v in value.items()}.items())
        return OBJECT, _encode_container([k for k, _ in pairs], [v for _, v in pairs], depth)
    return LITERAL, bytes((_LITERALS[value],))


def _encode_container(keys: list[bytes], values: list[Any], depth: int) -> bytes:
    head = 8 + len(keys) * 6
    at = head + len(values) * 5 + sum(map(len, keys))
    key_at = head + len(values) * 5
    key_entries, entries, bodies = bytearray(), bytearray(), bytearray()
    for key in keys:
        if len(key) > 0xFFFF:
            raise CodecError(f"a JSON key has {len(key)} bytes, at most 65535 are possible")
        key_entries += _KEY.pack(key_at, len(key))
        key_at += len(key)
    for value in values:
        code, body = _encode(value, depth + 1)
        entries.append(code)
        if code == LITERAL:
            entries += body + b"\0\0\0"
            continue
        entries += _U32.pack(at + len(bodies))
        bodies += body
    size = at + len(bodies)
    return _U32.pack(len(values)) + _U32.pack(size) + key_entries + entries + b"".join(keys) + bodies


def json_size(data: bytes, pos: int) -> int:
    """Bytes of a whole value (type code and body) at ``pos``, without looking into containers."""
    if pos >= len(data):
        raise truncated("a JSON value", pos)
    code, body = data[pos], pos + 1
    if code == LITERAL:
        size = 2
    elif code in (OBJECT, ARRAY):
        if body + 8 > len(data):
            raise truncated("a JSON value", pos)
        size = 1 + max(_U32.unpack_from(data, body + 4)[0], 8)
    elif code in (INT64, UINT64, DOUBLE, DATE, DATETIME, TIMESTAMP):
        size = 9
    elif code == TIME:
        size = 13
    elif code in (STRING, OPAQUE):
        length, at = read_uvarint(data, body + (code == OPAQUE))
        size = at - pos + length
    else:
        raise CodecError(f"a JSON value at offset {pos} has the unknown type code {code:#x}", offset=pos)
    if pos + size > len(data):
        raise truncated("a JSON value", pos)
    return size


def json_text(data: bytes, *, doubles: bool = False) -> str:
    """Text of one value: type code and body, nothing behind it.

    ``doubles``: one without a fraction is written as ``3e+0``, so that it is read as a double again.
    """
    if not data or json_size(data, 0) != len(data):
        raise CodecError("a JSON value does not fill its bytes")
    printer = _Printer(data, doubles)
    printer.value(data[0], 1, len(data), 1)
    return "".join(printer.out)


def quote(raw: bytes) -> str:
    """A JSON string of TiDB's form."""
    return '"' + _ESCAPED.sub(_escape, raw.decode("utf-8", "surrogateescape")) + '"'


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    # surrogateescape turns each byte that is no UTF-8 into one such code unit
    return _SHORT.get(char) or ("\\ufffd" if "\udc80" <= char <= "\udcff" else f"\\u{ord(char):04x}")


def double_text(value: float) -> str:
    """Shortest text that reads back; exponent form below 1e-6 and from 1e21 on."""
    if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124
        raise CodecError(f"{value} is no JSON number")
    mantissa, _, exponent = f"{abs(value)!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    sign = "-" if str(value).startswith("-") else ""
    if not digits:
        return sign + "0"
    if abs(value) < 1e-6 or abs(value) >= 1e21:
        power = point - 1
        return f"{sign}{digits[0]}{'.' if len(digits) > 1 else ''}{digits[1:]}e{'-' if power < 0 else '+'}{abs(power)}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if point >= len(digits):
        return sign + digits.ljust(point, "0")
    return f"{sign}{digits[:point]}.{digits[point:]}"


class _Printer:
    """Prints one value. Damaged offsets may alias, so what is printed must not use more bytes than there are."""

    def __init__(self, data: bytes, doubles: bool) -> None:
        self.data, self.doubles = data, doubles
        self.out: list[str] = []
        self.budget = len(data)

    def need(self, pos: int, size: int, end: int) -> None:
        """Check that ``size`` bytes at ``pos`` lie before ``end`` and were not all used already."""
        self.budget -= size
        if pos < 0 or pos + size > end or self.budget < 0:
            raise truncated("a JSON value", pos)

    def value(self, code: int, pos: int, end: int, depth: int) -> None:
        """Append the text of the body at ``pos``; nothing at or behind ``end`` belongs to it."""
        if code in (OBJECT, ARRAY):
            self.container(code, pos, end, depth)
        elif code in (STRING, OPAQUE):
            length, at = read_uvarint(self.data, pos + (code == OPAQUE))
            self.need(at, length, end)
            raw = bytes(self.data[at : at + length])
            text = f'"base64:type{self.data[pos]}:{base64.b64encode(raw).decode()}"' if code == OPAQUE else quote(raw)
            self.out.append(text)
        elif code in _SIZES:
            self.need(pos, _SIZES[code], end)
            text = _scalar_text(code, self.data, pos)
            self.out.append(f"{text}e+0" if self.doubles and code == DOUBLE and text.lstrip("-").isdigit() else text)
        else:
            raise CodecError(f"a JSON value has the unknown type code {code:#x}", offset=pos)

    def container(self, code: int, pos: int, end: int, depth: int) -> None:
        """Append the text of an object or array."""
        data, out = self.data, self.out
        if depth > MAX_DEPTH + 1:
            raise CodecError(f"a JSON document is nested more than {MAX_DEPTH} deep", offset=pos)
        self.need(pos, 8, end)
        count, size = struct.unpack_from("<II", data, pos)
        if size < 8 or pos + size > end:
            raise truncated("a JSON value", pos)
        end = pos + size
        entries = pos + 8 + (6 * count if code == OBJECT else 0)
        self.need(pos + 8, entries - pos - 8 + 5 * count, end)
        out.append("{" if code == OBJECT else "[")
        for index in range(count):
            if index:
                out.append(", ")
            if code == OBJECT:
                key_at, key_len = _KEY.unpack_from(data, pos + 8 + 6 * index)
                self.need(pos + key_at, key_len, end)
                out += (quote(bytes(data[pos + key_at : pos + key_at + key_len])), ": ")
            entry = entries + 5 * index
            child = data[entry]
            if child == LITERAL:
                out.append(_literal_text(data[entry + 1], entry))
            else:
                self.value(child, pos + _U32.unpack_from(data, entry + 1)[0], end, depth + 1)
        out.append("}" if code == OBJECT else "]")


_SIZES = {LITERAL: 1, INT64: 8, UINT64: 8, DOUBLE: 8, DATE: 8, DATETIME: 8, TIMESTAMP: 8, TIME: 12}


def _literal_text(code: int, pos: int) -> str:
    if code > 2:
        raise CodecError(f"unknown JSON literal {code}", offset=pos)
    return _LITERAL_TEXT[code]


def _scalar_text(code: int, data: bytes, pos: int) -> str:  # noqa: PLR0911 - one a type
    if code == LITERAL:
        return _literal_text(data[pos], pos)
    if code == INT64:
        return str(_I64.unpack_from(data, pos)[0])
    if code == DOUBLE:
        return double_text(_F64.unpack_from(data, pos)[0])
    if code == TIME:
        return f'"{duration_text(_I64.unpack_from(data, pos)[0], 6)}"'
    bits: int = _U64.unpack_from(data, pos)[0]
    if code == UINT64:
        return str(bits)
    year, month, day = bits >> 50, bits >> 46 & 15, bits >> 41 & 31
    date = f"{year:04d}-{month:02d}-{day:02d}"
    if code == DATE:
        return f'"{date}"'
    clock = f"{bits >> 36 & 31:02d}:{bits >> 30 & 63:02d}:{bits >> 24 & 63:02d}.{bits >> 4 & 0xFFFFF:06d}"
    return f'"{date} {clock}"'
