"""Decimals of the datum codec: precision byte, scale byte, groups of nine digits in big-endian bytes.

Zero is never negative. Text keeps exactly the scale's fractional digits.
"""

from __future__ import annotations

import re

from pumphouse.codec.number import truncated
from pumphouse.errors import CodecError

MAX_PRECISION = 65
MAX_SCALE = 30
DIGITS = 9
# Bytes that 0..9 digits take.
SIZES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_TEXT = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d+))?\Z")


def binary_size(precision: int, scale: int) -> int:
    """Bytes of a decimal behind its two prefix bytes."""
    whole = precision - scale
    return whole // DIGITS * 4 + SIZES[whole % DIGITS] + scale // DIGITS * 4 + SIZES[scale % DIGITS]


def check_shape(precision: int, scale: int, pos: int) -> None:
    """Refuse a precision and scale that no DECIMAL has."""
    if not 1 <= precision <= MAX_PRECISION or not 0 <= scale <= min(MAX_SCALE, precision):
        raise CodecError(f"a decimal at offset {pos} has precision {precision} and scale {scale}", offset=pos)


def _digits(text: str, scale: int) -> tuple[bool, int]:
    """Sign and the integer of ``text * 10**scale``, rounded half away from zero."""
    match = _TEXT.match(text.strip())
    if match is None or not (match[2] or match[3]):
        raise CodecError(f"{text!r} is no decimal")
    fraction = match[3] or ""
    value = int((match[2] or "") + fraction)
    shift = scale - len(fraction) + int(match[4] or 0)
    if shift >= 0:
        value *= 10**shift
    else:
        value = (value + 5 * 10 ** (-shift - 1)) // 10**-shift
    return match[1] == "-" and value != 0, value


def encode_decimal(text: str, precision: int, scale: int) -> bytes:
    """Both prefix bytes and the binary form of ``text`` as DECIMAL(precision, scale).

    Raises:
        CodecError: not a number, or more integer digits than the column has.
    """
    check_shape(precision, scale, 0)
    negative, value = _digits(text, scale)
    digits = str(value).zfill(precision)
    if len(digits) > precision:
        raise CodecError(f"{text} does not fit into DECIMAL({precision},{scale})")
    whole, fraction = digits[: precision - scale], digits[precision - scale :]
    lead = len(whole) % DIGITS
    groups = [whole[:lead]] if lead else []
    groups += [whole[at : at + DIGITS] for at in range(lead, len(whole), DIGITS)]
    groups += [fraction[at : at + DIGITS] for at in range(0, len(fraction), DIGITS)]
    out = bytearray().join(int(g).to_bytes(SIZES[len(g)], "big") for g in groups)
    if negative:
        out = bytearray(byte ^ 0xFF for byte in out)
    out[0] ^= 0x80
    return bytes((precision, scale)) + bytes(out)


def read_decimal(data: bytes, pos: int) -> tuple[str, int]:
    """Text of a decimal and the position behind it."""
    if pos + 2 > len(data):
        raise truncated("a decimal", pos)
    precision, scale = data[pos], data[pos + 1]
    check_shape(precision, scale, pos)
    start = pos + 2
    end = start + binary_size(precision, scale)
    if end > len(data):
        raise truncated("a decimal", pos)
    raw = bytearray(data[start:end])
    negative = not raw[0] & 0x80
    raw[0] ^= 0x80
    if negative:
        raw = bytearray(byte ^ 0xFF for byte in raw)
    at = 0
    digits = []
    whole = precision - scale
    widths = [whole % DIGITS] + [DIGITS] * (whole // DIGITS) + [DIGITS] * (scale // DIGITS) + [scale % DIGITS]
    for width in widths:
        size = SIZES[width]
        value = int.from_bytes(raw[at : at + size], "big")
        if value >= 10**width:
            raise CodecError(f"a decimal at offset {pos} has a group above {width} digits", offset=pos)
        digits.append(str(value).zfill(width) if width else "")
        at += size
    joined = "".join(digits)
    text = joined[:whole].lstrip("0") or "0"
    if scale:
        text += "." + joined[whole:]
    return ("-" if negative and joined.strip("0") else "") + text, end
