"""Events that are not common, from their bytes: statements, steps of XA, compressed ones, rotations.

Bodies come without header and checksum. What does not fit its length is damaged: `CorruptionError`.
"""

from __future__ import annotations

import re
import uuid
import zlib
from collections.abc import Callable
from typing import Any, NoReturn

from pumphouse.capture.source.model import Query, Xa, XaStep
from pumphouse.errors import CaptureRefused, CorruptionError

# A compressed event may say that it becomes larger than the server's largest.
MAX_EVENT_BYTES = (1 << 30) + (64 << 20)
_XA = re.compile(r"XA\s+(START|BEGIN|END|PREPARE|COMMIT|ROLLBACK)\s+(.*)\Z", re.IGNORECASE | re.DOTALL)

_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
# Fields of a GTID event with a tag.
_T_UUID, _T_NUMBER, _T_TAG, _T_COMMITTED, _T_SEQUENCE, _T_HERE, _T_ORIGIN = range(1, 8)
_T_TICKET = 11  # the last one
_XID = re.compile(r"X'([0-9a-f]*)'\s*,\s*X'([0-9a-f]*)'\s*,\s*(\d+)\s*\Z", re.IGNORECASE)


class Fields:
    """Reads fields of a body one after the other."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._what = what
        self.at = 0

    def take(self, size: int) -> bytes:
        """The next bytes."""
        if size < 0 or self.at + size > len(self._data):
            raise damaged(f"{self._what} ends in the middle")
        self.at += size
        return self._data[self.at - size : self.at]

    def number(self, size: int) -> int:
        """A little-endian number."""
        return int.from_bytes(self.take(size), "little")

    def lenenc(self) -> int:
        """A length-encoded number."""
        first = self.number(1)
        if first < 0xFB:
            return first
        if first not in (0xFC, 0xFD, 0xFE):
            raise damaged(f"{self._what} has a bad length")
        return self.number({0xFC: 2, 0xFD: 3, 0xFE: 8}[first])

    def varint(self) -> int:
        """A number as MySQL's serialization has it: the first byte's lowest ones say how many bytes follow."""
        first = self.number(1)
        more = ((first + 1) & ~first).bit_length() - 1
        high = self.number(more)
        return high if more > 7 else (high << 8 | first) >> more + 1

    def signed(self) -> int:
        """The same, of a number with a sign, which is the lowest bit."""
        value = self.varint()
        return -(value >> 1) - 1 if value & 1 else value >> 1

    def counted(self) -> bytes:
        """Bytes behind their length-encoded length."""
        return self.take(self.lenenc())

    def rest(self) -> bytes:
        """Whatever is left."""
        return self.take(len(self._data) - self.at)

    @property
    def left(self) -> int:
        """Bytes that are left."""
        return len(self._data) - self.at


def tagged(body: bytes) -> tuple[str, int, int]:
    """Of a MySQL's GTID event with a tag: ``uuid:tag``, number, and the microsecond of the commit at its origin.

    MySQL's libs/mysql/serialization: fields in the order of their numbers, each behind its own; a later version has
    more of them, and says from which one on a reader may skip them.

    Raises:
        CaptureRefused: it has fields that count and are not known.
        CorruptionError: it makes no sense.
    """
    fields = Fields(body, "a GTID event with a tag")
    version, size, last = fields.varint(), fields.varint(), fields.varint()
    if version != 1 or last > _T_TICKET:
        raise CaptureRefused("the binlog has a GTID event of a later MySQL", hint="a later release may read it")
    if not fields.at <= size <= len(body):
        raise damaged("a GTID event with a tag ends in the middle")
    name, tag, number, micros, known = "", "", 0, 0, -1
    while fields.at < size:
        field = fields.varint()
        if field <= known:
            raise damaged("a GTID event with a tag has a field twice")
        known = field
        if field == _T_UUID:
            name = str(uuid.UUID(bytes=bytes(_byte(fields.varint()) for _ in range(16))))
        elif field == _T_NUMBER:
            number = fields.signed()
        elif field == _T_TAG:
            tag = fields.take(fields.varint()).decode("ascii", "replace")
        elif field in (_T_COMMITTED, _T_SEQUENCE):
            fields.signed()
        elif field in (_T_HERE, _T_ORIGIN):  # the second one is there where it is another one
            micros = fields.varint()
        elif field <= _T_TICKET:
            fields.varint()
        else:
            break
    if not (name and 0 < number < 1 << 63 and micros < 1 << 55 and _TAG.fullmatch(tag)):
        raise damaged("a GTID event with a tag lacks it, its server or its number")
    return f"{name}:{tag}", number, micros


def _byte(value: int) -> int:
    if value > 0xFF:
        raise damaged("a GTID event with a tag names no server")
    return value


def damaged(what: str) -> CorruptionError:
    """The error for bytes that make no sense."""
    return CorruptionError(
        f"the source's binlog is damaged: {what}",
        hint="look at it with `mysqlbinlog --verify-binlog-checksum` (`mariadb-binlog`) on the source",
        reason=what,
    )


def rotation(body: bytes) -> tuple[str, int]:
    """(name of the file that follows, where in it)."""
    fields = Fields(body, "a rotate event")
    at = fields.number(8)
    return fields.rest().rstrip(b"\0").decode("utf-8", "replace"), at


def heartbeat(body: bytes, *, second: bool) -> tuple[str, int | None]:
    """(file, offset) of a heartbeat; the offset of the first form is in the event's header: None."""
    if not second:
        return body.decode("utf-8", "replace"), None
    fields, file, at = Fields(body, "a heartbeat"), "", None
    while fields.left:
        kind = fields.lenenc()
        if kind == 0:
            break
        value = fields.counted()
        if kind == 1:
            file = value.decode("utf-8", "replace")
        elif kind == 2:
            at = Fields(value, "a heartbeat").lenenc()
    return file, at


def query(body: bytes, seconds: int, before: int, *, compressed: bool = False) -> Query:
    """A statement with its status variables (MySQL's Query_event; codes from 128 on are MariaDB's)."""
    fields = Fields(body, "a statement")
    fields.take(8)
    name_size, error, status_size = fields.number(1), fields.number(2), fields.number(2)
    status = _status(Fields(fields.take(status_size), "a statement's context"))
    schema = fields.take(name_size).decode("utf-8", "surrogateescape")
    fields.take(1)
    text = fields.rest()
    return Query(
        text=inflated(text) if compressed else text,
        schema=schema,
        before=before,
        seconds=seconds,
        error=error,
        **status,
    )


def _status(fields: Fields) -> dict[str, Any]:
    found: dict[str, Any] = {}
    while fields.left:
        code = fields.number(1)
        read = _STATUS.get(code)
        if read is None:
            return found | {"unknown": code}  # its length is unknown, so nothing behind it can be read
        found |= read(fields) or {}
    return found


def _charsets(fields: Fields) -> dict[str, Any]:
    client, connection, server = (fields.number(2) for _ in range(3))
    return {"client_collation": client, "connection_collation": connection, "server_collation": server}


def _updated(fields: Fields) -> None:
    count = fields.number(1)
    for _ in range(0 if count == 254 else count):
        while fields.number(1):
            pass


def _skip(size: int) -> Callable[[Fields], None]:
    def read(fields: Fields) -> None:
        fields.take(size)

    return read


def _text(fields: Fields) -> str:
    return fields.take(fields.number(1)).decode("utf-8", "replace")


def _catalog(fields: Fields) -> None:
    _text(fields)
    fields.take(1)


def _invoker(fields: Fields) -> None:
    _text(fields)
    _text(fields)


def _two_phase(_fields: Fields) -> NoReturn:
    """MariaDB's Q_GTID_FLAGS3: the statement is one of START, COMMIT and ROLLBACK of an ALTER, with equal texts."""
    raise CaptureRefused(
        "the binlog has an ALTER in two phases: it may be of one that the source rolled back",
        hint="on the source: SET GLOBAL binlog_alter_two_phase = OFF, and in no session ON; begin behind it, with a new"
        " `pumphouse archive dump`",
    )


def _set_collations(fields: Fields) -> dict[str, Any]:
    count = fields.number(1)
    return {"charset_collations": tuple((fields.number(2), fields.number(2)) for _ in range(count))}


_STATUS: dict[int, Callable[[Fields], dict[str, Any] | None]] = {
    0: lambda f: {"flags": f.number(4)},
    1: lambda f: {"sql_mode": f.number(8)},
    2: _catalog,
    3: lambda f: {"auto_increment": (f.number(2), f.number(2))},
    4: _charsets,
    5: lambda f: {"time_zone": _text(f)},
    6: lambda f: {} if f.take(f.number(1)) else None,
    7: lambda f: {"lc_time_names": f.number(2)},
    8: lambda f: {"database_collation": f.number(2)},
    9: _skip(8),
    10: _skip(4),
    11: _invoker,
    12: _updated,
    13: lambda f: {"micros": f.number(3)},
    16: lambda f: {"explicit_defaults": bool(f.number(1))},
    17: _skip(8),
    18: lambda f: {"utf8mb4_collation": f.number(2)},
    19: _skip(1),
    20: _skip(1),
    128: lambda f: {"micros": f.number(3)},
    129: _skip(8),
    130: _two_phase,
    131: _set_collations,
}


def xa_statement(text: str) -> tuple[str, str] | None:
    """(word in lower case, xid) of an XA statement as the server writes it; None = it is none."""
    match = _XA.match(text.strip())
    if match is None:
        return None
    named = _XID.match(match[2])
    return match[1].lower(), _xid(named[1], named[2], int(named[3])) if named else match[2].strip()


def _xid(first: str, second: str, form: int) -> str:
    return f"X'{first.lower()}',X'{second.lower()}',{form}"


def xa_prepare(body: bytes) -> Xa | None:
    """The step that XA_PREPARE_LOG_EVENT says; None = in one phase: the transaction is committed."""
    fields = Fields(body, "an XA prepare")
    one_phase = fields.number(1)
    if one_phase:
        return None
    form, first, second = fields.number(4), fields.number(4), fields.number(4)
    parts = fields.take(first), fields.take(second)
    return Xa(XaStep.PREPARE, _xid(parts[0].hex(), parts[1].hex(), form))


def inflated(data: bytes) -> bytes:
    """What MariaDB compressed: a byte (0x80, algorithm, width of the length), length in big endian, zlib's bytes."""
    if not data or not data[0] & 0x80 or data[0] & 0x70:
        raise damaged("a compressed event has an unknown header")
    width = data[0] & 7
    size = int.from_bytes(data[1 : 1 + width], "big")
    if size > MAX_EVENT_BYTES:
        raise damaged(f"a compressed event says that it has {size} bytes")
    unpacker = zlib.decompressobj()
    try:
        out = unpacker.decompress(data[1 + width :], size + 1)
    except zlib.error as error:
        raise damaged(f"a compressed event cannot be read: {error}") from error
    if len(out) != size or not unpacker.eof:
        raise damaged(f"a compressed event has {len(out)} bytes or more and not {size}, or ends in the middle")
    return out


def unpacked(body: bytes) -> bytes:
    """The events in a MySQL's TRANSACTION_PAYLOAD (zstd, or as they are)."""
    fields = Fields(body, "a compressed transaction")
    size, kind, plain = 0, -1, -1
    while (code := fields.lenenc()) != 0:
        value = Fields(fields.counted(), "a compressed transaction")
        if code == 1:
            size = value.lenenc()
        elif code == 2:
            kind = value.lenenc()
        elif code == 3:
            plain = value.lenenc()
    data = fields.take(size)
    if kind == 255:
        return data
    if kind != 0 or plain < 0:
        raise damaged(f"a compressed transaction is of the unknown kind {kind}, or does not say its size")
    if plain > MAX_EVENT_BYTES:
        raise CaptureRefused(
            f"the binlog has a compressed transaction of {plain} bytes: more than {MAX_EVENT_BYTES} are not unpacked",
            hint="on the source: SET GLOBAL binlog_transaction_compression = OFF, and in no session ON, or smaller"
            " transactions; begin behind it, with a new `pumphouse archive dump`",
        )
    import pyarrow as pa  # 30 MB, for sources that compress alone

    try:
        out: bytes = pa.Codec("zstd").decompress(data, decompressed_size=plain, asbytes=True)
    except (pa.ArrowException, OSError) as error:
        raise damaged(f"a compressed transaction cannot be read: {error}") from error
    return out
