"""A stored binlog in words, for `GET /debug/binlog/{ts}`. Never fails: what cannot be read is shown as bytes.

A binlog may have 1.9 GiB: it stays where it is, the text is bounded, and of what does not fit into it numbers and sizes
are said, as comments of the text format.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.text_encoding import CEscape

from pump_service.api.fields import Field, Fields, Source
from pumphouse.proto.binlog_pb2 import Binlog, PrewriteValue

# Characters in all; what is said of the rest comes on top.
_LONGEST = 256 << 10
# A byte takes up to four characters, and one value leaves room for the next.
_SHARE = 8
# A prewrite value is not shown where it is found.
_EACH = 16
# A value of which no more can be shown is not begun.
_LEAST = 1 << 10
_VARINT, _BYTES = 0, 2
# Descriptors have one type for each implementation of protobuf.
_BINLOG: Any = Binlog.DESCRIPTOR
_PREWRITE: Any = PrewriteValue.DESCRIPTOR
_VALUE = _BINLOG.fields_by_name["prewrite_value"].number


class _Page:
    """Lines, and how much room is left for more."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.left = _LONGEST
        self.whole = True

    def add(self, line: str) -> None:
        self.lines.append(line)
        self.left -= len(line) + 1

    def note(self, line: str) -> None:
        """What is said beside the text, and is not cut."""
        self.lines.append(line)


def describe(source: Source, where: str = "") -> str:
    """Fields of the binlog, then those of its prewrite value.

    ``where``: how to get at the whole, said where this is not all of it.
    """
    page, fields = _Page(), Fields(source)
    page.add("binlog:")
    value = _message(page, fields, (0, source.size), _BINLOG, stop=page.left // 2)
    if value is not None:
        page.add(f"prewrite value ({value.length} bytes):")
        _message(page, fields, (value.at, value.at + value.length), _PREWRITE)
    if not page.whole and where:
        page.note(f"# the whole of it: {where}")
    return "\n".join(page.lines) + "\n"


def _message(
    page: _Page, fields: Fields, span: tuple[int, int], kind: Any, *, stop: int = 0, indent: str = ""
) -> Field | None:
    """Fields while more than ``stop`` is left of the page, then what the others are. A binlog's value is given back."""
    value = None
    at, end = span
    while at < end and page.left > stop:
        field = fields.field(at, end)
        if field is None:
            _damage(page, fields, at, end, indent)
            return value
        if kind is _BINLOG and (field.number, field.wire) == (_VALUE, _BYTES):
            value = field  # the last one counts
            page.left -= _EACH  # so that many of them come to an end too
        elif not _field(page, fields, field, kind.fields_by_number.get(field.number), stop, indent):
            break
        at = field.after
    if at < end:
        _rest(page, fields, at, end, kind, indent)
    return value


def _field(page: _Page, fields: Fields, field: Field, known: Any, stop: int, indent: str) -> bool:
    """Show one; False, and nothing is shown, when there is no room for it."""
    name = str(field.number) if known is None else known.name
    if field.wire == _VARINT:
        page.add(f"{indent}{name}: {_number(fields.bytes(field.at, field.length), known)}")
    elif field.wire != _BYTES:
        page.add(f"{indent}{name}: 0x{fields.bytes(field.at, field.length)[::-1].hex()}")
    elif known is not None and known.message_type is not None:
        page.add(f"{indent}{name} {{")
        # Half of what is left, so that the next one is seen too.
        half = stop + (page.left - stop) // 2
        _message(page, fields, (field.at, field.after), known.message_type, stop=half, indent=indent + "  ")
        page.add(f"{indent}}}")
    else:
        shown = min(field.length, (page.left - stop) // _SHARE)
        if shown < min(field.length, _LEAST):
            return False
        text = CEscape(fields.bytes(field.at, shown), as_utf8=False)
        cut = ""
        if shown < field.length:
            page.whole = False
            cut = f"  # the first {shown:,} of {field.length:,} bytes"
        page.add(f'{indent}{name}: "{text}"{cut}')
    return True


def _number(varint: bytes, known: Any) -> str:
    value = 0
    for place, byte in enumerate(varint):
        value |= (byte & 0x7F) << 7 * place
    if value >= 1 << 63:
        value -= 1 << 64
    if known is not None and known.enum_type is not None and value in known.enum_type.values_by_number:
        return str(known.enum_type.values_by_number[value].name)
    return str(value)


def _rest(page: _Page, fields: Fields, at: int, end: int, kind: Any, indent: str) -> None:
    """Say what is in a message that is not shown."""
    page.whole = False
    tally = fields.tally(at, end)
    found = [
        f"{count:,} {kind.fields_by_number[number].name if number in kind.fields_by_number else 'unknown'} "
        f"({size:,} bytes)"
        for number, (count, size) in enumerate(zip(tally.counts.tolist(), tally.sizes.tolist(), strict=True))
        if count
    ]
    page.note(f"{indent}# not shown, for its size: {', '.join(found) or f'{end - at:,} bytes'}")
    if tally.damaged_at >= 0:
        _damage(page, fields, tally.damaged_at, end, indent)


def _damage(page: _Page, fields: Fields, at: int, end: int, indent: str) -> None:
    shown = min(end - at, max(page.left, _LONGEST // 64) // _SHARE)
    page.whole = page.whole and shown == end - at
    cut = f", of which these are the first {shown:,}" if shown < end - at else ""
    page.add(f"{indent}# {end - at:,} bytes do not parse{cut}:")
    page.add(f"{indent}# {fields.bytes(at, shown).hex()}")
