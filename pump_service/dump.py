"""A stored binlog in words, for `GET /debug/binlog/{ts}`. Never fails: what cannot be read is shown as bytes."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from include.proto.binlog_pb2 import Binlog, PrewriteValue

_LONGEST = 1 << 20


def describe(payload: bytes) -> str:
    """Fields of the binlog, then those of its prewrite value; at most 1 MiB of each."""
    try:
        message = Binlog.FromString(payload)
    except DecodeError as error:
        return f"no Binlog: {error}\n{payload[:_LONGEST].hex()}\n"
    value = message.prewrite_value
    message.ClearField("prewrite_value")
    text = f"binlog:\n{message}"
    if value:
        try:
            text += f"prewrite value ({len(value)} bytes):\n{str(PrewriteValue.FromString(value))[:_LONGEST]}"
        except DecodeError as error:
            text += f"prewrite value ({len(value)} bytes), {error}:\n{value[:_LONGEST].hex()}\n"
    return text
