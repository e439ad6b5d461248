"""Bytes of the value log <-> records; pure. The bytes are those of the Go Pump (docs/formats.md, "Value log").

    file   = record* [footer]
    record = magic u32le 0x823A56E8 | length u64le | CRC-32C of the payload u32le | payload
    footer = max ts i64le | magic u32le 0x123AB922

The checksum does not cover the length, so a length is believed only as far as the file reaches.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import google_crc32c

from pumphouse.errors import BadRecord

RECORD_MAGIC = 0x823A56E8
RECORD_MAGIC_BYTES = RECORD_MAGIC.to_bytes(4, "little")
FOOTER_MAGIC = 0x123AB922
FOOTER_MAGIC_BYTES = FOOTER_MAGIC.to_bytes(4, "little")
HEADER_BYTES = 16
FOOTER_BYTES = 12
PREWRITE_BEGIN = b"\x08\x00\x10"  # of a prewrite's payload: type, and the tag of its start ts
# The Go Pump writes a footer at close only from this size on; smaller files are scanned at open.
FOOTER_AT_CLOSE_FROM = 51_200

_HEADER = struct.Struct("<IQI")
_FOOTER = struct.Struct("<qI")

crc32c = google_crc32c.value
pack_header = _HEADER.pack


class Header(NamedTuple):
    """Record header."""

    magic: int
    length: int
    checksum: int


class Meta(NamedTuple):
    """What the store reads of a payload (a serialized ``binlog.Binlog``)."""

    tp: int
    start_ts: int
    commit_ts: int
    prewrite_key: bytes


def encode_record(payload: bytes) -> bytes:
    """One whole record."""
    return pack_header(RECORD_MAGIC, len(payload), crc32c(payload)) + payload


def encode_footer(max_ts: int) -> bytes:
    """The footer of a finished file."""
    return _FOOTER.pack(max_ts, FOOTER_MAGIC)


def decode_header(data: bytes, offset: int = 0) -> Header:
    """Header at an offset; 16 bytes must be there."""
    return Header._make(_HEADER.unpack_from(data, offset))


def decode_footer(data: bytes) -> int | None:
    """Max ts of a footer of 12 bytes, or None when these are no footer."""
    if len(data) != FOOTER_BYTES:
        return None
    max_ts, magic = _FOOTER.unpack(data)
    return int(max_ts) if magic == FOOTER_MAGIC else None


def storage_ts(tp: int, start_ts: int, commit_ts: int) -> int:
    """Key of a binlog in the index: start ts of a prewrite, else commit ts (0 for a rollback)."""
    return start_ts if tp == 0 else commit_ts


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = data[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    shift = 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError("varint")


def varint(value: int) -> bytes:
    """A number from 0 on as protobuf writes it."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def read_meta(payload: bytes) -> Meta:
    """Type, timestamps and key of a payload, without parsing the rest.

    Fields come in ascending order, as every protobuf writer puts them, so reading stops at field 5. Raises BadRecord
    when the bytes are no message.
    """
    tp = start_ts = commit_ts = 0
    key = b""
    at, end = 0, len(payload)
    try:
        while at < end:
            tag, at = _varint(payload, at)
            if tag == 0x08:
                tp, at = _varint(payload, at)
            elif tag == 0x10:
                start_ts, at = _varint(payload, at)
            elif tag == 0x18:
                commit_ts, at = _varint(payload, at)
            elif tag == 0x22:
                size, at = _varint(payload, at)
                key = payload[at : at + size]
                at += size
            else:
                break
        whole = at <= end
    except IndexError:
        whole = False
    if not whole:
        raise BadRecord("a payload of the value log is no Binlog message", reason="cut field")
    return Meta(tp, _signed(start_ts), _signed(commit_ts), key)


def tail_offset(payload: bytes) -> int:
    """Where the fields from 5 (``prewrite_value``) on begin; the payload's length when there are none."""
    at, end = 0, len(payload)
    while at < end:
        begin = at
        tag, at = _varint(payload, at)
        if tag >> 3 >= 5:
            return begin
        value, at = _varint(payload, at)
        if tag & 7 == 2:
            at += value
    return end


def ddl_job_id(payload: bytes) -> int:
    """``ddl_job_id`` of a Binlog, found by jumping over the fields before it."""
    at, end = 0, len(payload)
    while at < end:
        tag, at = _varint(payload, at)
        value, at = _varint(payload, at)
        if tag == 0x38:
            return _signed(value)
        if tag & 7 == 2:
            at += value
    return 0


def is_same_content(one: bytes, other: bytes) -> bool:
    """Whether two prewrites are one that was sent twice: equal from field 5 (``prewrite_value``) on."""
    return one[tail_offset(one) :] == other[tail_offset(other) :]


def merge(prewrite: bytes, commit: bytes) -> bytes:
    """The binlog that pullers see: the commit's own fields 1 to 4, then the prewrite's fields from 5 on.

    Byte-identical with the Go Pump and with `pumphouse.codec.payload.merge`, which set these fields of the commit and
    serialize again: both payloads carry their fields in ascending order.
    """
    return commit[: tail_offset(commit)] + prewrite[tail_offset(prewrite) :]
