"""What others wrote is read or refused by name: every parser, on damaged and on malicious input, raises nothing of Python's.

DDL jobs are in test_job_types.py. `make test` plays a sample; `make campaign` plays each parser for PUMPHOUSE_FUZZ_S seconds.
"""

from __future__ import annotations

import json
import os
import random
import re
import struct
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pump_service.command import go_options
from pumphouse.archive import document
from pumphouse.archive.base import Base, BaseBegun, BaseChunk
from pumphouse.archive.declare import read_declared, read_settled
from pumphouse.archive.genesis import Genesis
from pumphouse.archive.head import Head
from pumphouse.archive.manifest import Manifest
from pumphouse.capture.source.encode import encode
from pumphouse.capture.source.gtid import Flavor, GtidSet
from pumphouse.capture.source.model import Group, Position
from pumphouse.capture.source.stream import Reader
from pumphouse.capture.source.target import Target
from pumphouse.capture.statements import meaning
from pumphouse.codec import row
from pumphouse.codec.columnar import DELETE, INSERT, UPDATE, decode_images, walk
from pumphouse.codec.layout import RowLayout
from pumphouse.codec.payload import PrewriteValueBuilder, make_commit, make_prewrite, merge
from pumphouse.errors import BadManifest, BinlogError, ColumnMismatch
from pumphouse.export.kafkatopic import Position as TopicPosition
from pumphouse.export.pbframes import ddl_payload, framed
from pumphouse.file_import.files import Source
from pumphouse.file_import.rows import RowReader, runs_of, zone_table
from pumphouse.file_import.run import _ddl_text
from pumphouse.file_import.schema import dropped, parted
from pumphouse.model import tso
from pumphouse.model.moment import parse_time
from pumphouse.model.node import NodeStatus
from pumphouse.model.table import ColumnFlag, MysqlType, TableInfo
from pumphouse.objectstore.file import FileStore
from pumphouse.registry.captures import from_json as read_capture
from pumphouse.registry.resolvers import read as read_resolver
from pumphouse.schema.rename import parse_rename
from pumphouse.settings import Settings
from tests.property.test_job_types import changed
from tests.support import capturing, pbmessages, rowreference
from tests.support.rowgen import column, field, table
from tests.unit.archive.test_every_byte import Small

ROUNDS = 150


def broken(rng: random.Random, data: bytes) -> bytes:
    """Bytes with a few of them others, gone or more."""
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 6])):
        luck, at = rng.random(), rng.randrange(len(out) + 1)
        if out and luck < 0.6:
            out[at % len(out)] = rng.randrange(256)
        elif out and luck < 0.8:
            del out[at % len(out)]
        else:
            out.insert(at, rng.randrange(256))
    return bytes(out) if rng.random() < 0.9 else bytes(out)[: rng.randrange(len(out) + 1)]


def document_of(rng: random.Random, data: bytes) -> bytes:
    """A JSON text, mostly well-formed, whose digest fits again: what a writer with a fault would leave."""
    if rng.random() < 0.2:
        return broken(rng, data)
    value = json.loads(data)
    left_out = ("kind", "format_version", "sha256")
    other = changed(rng, {name: each for name, each in value.items() if name not in left_out})
    if "kind" in value and isinstance(other, dict):
        with suppress(UnicodeEncodeError):
            return document.dump(value["kind"], other)
    return json.dumps(other).encode()


def text_of(rng: random.Random, data: bytes) -> bytes:
    """A text with characters that mean something to its readers."""
    out = list(data.decode())
    for _ in range(rng.choice([1, 1, 2, 5])):
        at, new = rng.randrange(len(out) + 1), rng.choice("0123456789-:TZ+. ,./\\W٠²\x00\u2028e\"[]{}=\n#'`")
        if out and rng.random() < 0.4:
            out[at % len(out)] = new
        elif out and rng.random() < 0.3:
            del out[at % len(out)]
        else:
            out.insert(at, new)
    return "".join(out).encode("utf-8", "surrogatepass")


@cache
def archive_objects(folder: Path) -> dict[str, bytes]:
    small = Small(folder)
    for pump in small.world.pumps:
        pump.stop()
    return {name: data for name, data in small.objects.items() if data.startswith(b"{")}


def read_document(name: str, data: bytes) -> object:
    if name == "HEAD":
        return Head.from_json(data)
    if name == "genesis.json":
        return Genesis.from_json(name, data)
    if name.startswith("windows/"):
        return Manifest.from_json(name, data)
    if name.startswith("declared/"):
        return read_declared(name, data)
    if name.startswith("settled/"):
        return read_settled(name, data)
    if name.startswith("schema/"):
        return None  # a pointer: the parts prove themselves (tests/unit/archive/test_every_byte.py)
    reader = BaseBegun if name.endswith("begun.json") else BaseChunk if re.search(r"/\d{8}\.json$", name) else None
    if reader is not None:
        return reader.from_json(name, data)
    return Base.from_json(name, data, cluster_id=0, genesis="") if name.endswith("base.json") else None


PRIMARY = int(ColumnFlag.PRI_KEY | ColumnFlag.NOT_NULL)
INFO = table(
    [
        column(1, 0, field(MysqlType.LONG, PRIMARY)), column(2, 1, field(MysqlType.VARCHAR, 0, 20, -1, "utf8mb4")),
        column(3, 2, field(MysqlType.TINY, 32)), column(4, 3, field(MysqlType.NEWDECIMAL, 0, 30, 10)),
        column(5, 4, field(MysqlType.DATETIME, 0, 26, 6)), column(6, 5, field(MysqlType.JSON)),
        column(7, 6, field(MysqlType.DOUBLE)), column(8, 7, field(MysqlType.BIT, 0, 64)),
    ],
    pk_is_handle=True,
)  # fmt: skip
LAYOUT = RowLayout.of(INFO, INFO)
ROW = row.encode_delete(INFO, {1: 7, 2: b"alice", 3: 30})
SLOW = {INSERT: rowreference.decode_insert, DELETE: rowreference.decode_delete, UPDATE: rowreference.decode_update}


def row_of(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.6:
        return broken(rng, data)
    flags = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0xFA, 0xFF]
    size = (0, 1, 2, 8, 9, 10, 20)
    return b"".join(
        b"\x08" + bytes([2 * rng.randrange(1, 10), rng.choice(flags)]) + rng.randbytes(rng.choice(size))
        for _ in range(rng.randrange(1, 9))
    )


def decode_row(kind: int, data: bytes) -> None:
    """By the kernel and by the reference: the kernel takes what the reference takes.

    It takes a little more: it passes over the value of a column that nobody asks for without reading it.
    """
    taken = []
    for decode in (
        lambda: decode_images(
            np.frombuffer(data, np.uint8), np.array([0]), np.array([len(data)], np.int64), kind, LAYOUT
        ),
        lambda: SLOW[kind](INFO, data),
    ):
        try:
            decode()
            taken.append(True)
        except BinlogError:
            taken.append(False)
    assert taken != [False, True], (kind, data.hex())


def payload() -> bytes:
    value = PrewriteValueBuilder(5)
    value.insert(7, ROW)
    return merge(make_prewrite(5, b"k", value.build()), make_commit(5, 6, b"k"))


SETTINGS = b"""[cluster]
url = "file:///x"
[pump]
addr = "127.0.0.1:1"
retention_s = 5
[load]
[[load.rules]]
do = "skip"
ddl = 5
why = "x"
[targets.a]
host = "h"
user = "u"
[tls]
cert_allowed_cn = ["a"]
ca = "x"
"""
GO_SETTINGS = b"""addr = "127.0.0.1:8250"
gc = 7
pd-urls = "http://127.0.0.1:2379"
[security]
ssl-ca = ""
[storage]
sync-log = true
stop-write-at-available-space = "10 gib"
"""
NODE = NodeStatus.from_json(
    b'{"nodeId":"a","host":"h:1","state":"online","isAlive":true,"score":3,"label":{"a":"b"},"maxCommitTS":5,"updateTS":6}'
)
TIMES = [
    b"2026-11-21T07:30:00Z", b"2026-W47-6", b"470592258683437056", b"now", b"9999-12-31T23:59:59-23:59",
    b"2026-10-25 04:30 Europe/Berlin", b"yesterday 14:00:01.5 +01:00", b"1 hour and 30 minutes ago", b"before DDL 137",
    b"gtid 0-1-1234", b"before GTID 3e11fa47-71ca-11e1-9e33-c80aa9429562:23", b"source time yesterday 14:00",
]  # fmt: skip


def packets(data: bytes) -> list[bytes]:
    """Of a recorded socket, each with its head."""
    out, at = [], 0
    while at < len(data):
        size = 4 + int.from_bytes(data[at : at + 3], "little")
        out.append(data[at : at + size])
        at += size
    return out


def binlog_of(rng: random.Random, data: bytes) -> bytes:
    """A server's events, one or two of them others, with checksums that fit: what another release might send."""
    some = packets(data)
    for _ in range(rng.choice([1, 1, 2])):
        at = rng.randrange(len(some))
        event = bytearray(some[at][5:-4])
        for _ in range(rng.choice([1, 1, 2, 5])):
            if not event:
                break
            place = rng.randrange(len(event))
            if rng.random() < 0.8:
                event[place] = rng.choice([0, 1, 2, 127, 128, 255, rng.randrange(256)])
            elif rng.random() < 0.5:
                del event[place]
            else:
                event.insert(place, rng.randrange(256))
        if event and rng.random() < 0.1:
            del event[rng.randrange(len(event)) :]
        body = b"\0" + event + struct.pack("<I", zlib.crc32(event))
        some[at] = len(body).to_bytes(3, "little") + some[at][3:4] + body
    return b"".join(some)


class Recorded:
    """A source's binlog as a capture reads it: events, then the rows of the table that is known."""

    def __init__(self, name: str) -> None:
        found = capturing.recorded(name)
        self.data, self._flavor = found["data"], Flavor(found["flavor"])
        self._start = Position(gtids=GtidSet.parse(found["start"], self._flavor))
        self._info = TableInfo.from_dict(found["table"])
        self._charsets = {int(number): name for number, name in found["charsets"].items()}

    def read(self, data: bytes) -> None:
        reader = Reader(self._flavor, self._start, summed=True)
        while data:
            room = reader.room()
            part, data = data[: len(room)], data[len(room) :]
            room[: len(part)] = part
            refused = reader.took(len(part))
            for group in reader.groups(8 << 20):
                if isinstance(group, Group):
                    self._encode(group)
            if refused is not None:
                return

    def _encode(self, group: Group) -> None:
        targets = []
        for each in group.tables:
            try:
                targets.append(Target.of(each, self._info, self._charsets))
            except ColumnMismatch:
                targets.append(None)
        # Of a table that has changed by a DDL amid the group the capture takes the rows before it.
        for transaction in group.transactions:
            done = encode(group, targets, transaction.first, transaction.last)
            walk(pa.array([_prewrite(done.prewrite_value(transaction.first, transaction.last, 7))], pa.large_binary()))


def _prewrite(value: bytes) -> bytes:
    return merge(make_prewrite(5, b"k", value), make_commit(5, 6, b"k"))


def frames_of(rng: random.Random, data: bytes) -> bytes:
    """Frames of a Drainer with other payloads, whose checksums fit."""
    out = [bytearray(each) for each in pbmessages.payloads(data)]
    one = rng.choice(out)
    one[:] = broken(rng, bytes(one))
    return b"".join(map(framed, map(bytes, out)))


def files(folder: Path) -> Callable[[bytes], None]:
    """Reads a folder with one file as an import does, up to the rows of segments."""
    path = folder / "binlog-0000000000000000-20261121073000"

    def read(raw: bytes) -> None:
        path.write_bytes(raw)
        rows = RowReader(zone_table("Asia/Shanghai"))
        rows.renew({("d", INFO.name): INFO}, 7)
        for block in Source.of(FileStore(folder)).blocks(1 << 20):
            for first, last, ddl in runs_of(block):
                if ddl:
                    text = parted(_ddl_text(block, first))[1].decode("utf-8", "replace")
                    dropped(text, "d")
                else:
                    rows.payloads(block, first, last)

    return read


def drained() -> bytes:
    """A file of a Drainer: changes of each kind, and a DDL."""
    some = {1: 7, 2: b"alice", 3: 30, 4: "-1.5", 5: "2024-02-29 01:02:03.5", 6: '{"a": [1, 2.5]}', 7: 0.5, 8: 5}
    payloads = []
    for at, (op, image) in enumerate([
        (INSERT, row.encode_insert(INFO, some)), (UPDATE, row.encode_update(INFO, some, some | {3: None})),
        (DELETE, row.encode_delete(INFO, some)),
    ]):  # fmt: skip
        message = pbmessages.Binlog(tp=0, commit_ts=(10 + at) << 18)
        message.dml_data.events.append(pbmessages.event("d", INFO, INFO, op, image))
        payloads.append(message.SerializeToString())
    return b"".join(map(framed, [*payloads, ddl_payload(20 << 18, b"use `d`; DROP TABLE IF EXISTS `a`, d.`b`;")]))


STATEMENTS = [
    b"ALTER TABLE `a`.`b` RENAME COLUMN x TO y, ADD COLUMN (c INT COMMENT 'it''s')", b"ALTER TABLE a DROP PARTITION p1",
    b"RENAME TABLE IF EXISTS a WAIT 5 TO b, c.d TO e.f", b"DROP TABLE IF EXISTS a, `b`.c /* x */",
    b"CREATE OR REPLACE TABLE a LIKE b", b"/*!40000 TRUNCATE TABLE a */", b"DROP DATABASE IF EXISTS d",
    b"SET STATEMENT max_statement_time=1 FOR DROP DATABASE d",
]  # fmt: skip
GTIDS = [(b"0-1-5,1-2-18446744073709551615", Flavor.MARIADB),
         (b"3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:11-18,3e11fa47-71ca-11e1-9e33-c80aa9429563:7", Flavor.MYSQL)]  # fmt: skip
CAPTURE = b"""{"format_version":1,"id":"a","source":"h:1","server":"x","owner":"o","host":"h","state":"running","reason":"",
"heartbeat":1.0,"gtid":"0-1-1","moment":1.0,"lag_s":0.1,"transactions":5,"start_ts":1,"commit_ts":2,"anew":false}"""
TOPIC = b"""{"format_version":1,"cluster_id":7,"archive_id":"a","tables":["d.t"],"table_ids":[5],"begin":1,"upto":2}"""


def position_of(raw: bytes) -> None:
    with suppress(ValueError, LookupError, TypeError):  # as said; its caller names the message
        TopicPosition.from_json(raw)


Mutate = Callable[[random.Random, bytes], bytes]
Case = tuple[bytes, Callable[[bytes], object]]


def _cases(name: str, folder: Path) -> tuple[list[Case], Mutate]:
    """(seeds with their parsers, how input is made of a seed)."""
    if name == "archive documents":
        objects = archive_objects(folder / "archive")
        return [(data, lambda raw, at=at: read_document(at, raw)) for at, data in objects.items()], document_of
    if name == "registry":
        resolver = b'{"format_version":1,"id":"a","host":"h:1","prefixes":["00"],"heartbeat":1.0}'
        return [
            (json.dumps(NODE.to_dict()).encode(), NodeStatus.from_json), (resolver, lambda raw: read_resolver("a", raw)),
            (CAPTURE, lambda raw: read_capture(raw, "a")), (TOPIC, position_of),
        ], document_of  # fmt: skip
    if name == "binlogs of a source":
        return [((each := Recorded(kind)).data, each.read) for kind in ("mariadb", "mysql")], binlog_of
    if name == "binlog files":
        return [(drained(), files(folder))], frames_of
    if name == "statements of a source":
        read = [(text, lambda raw: meaning(raw.decode("utf-8", "replace"), "d")) for text in STATEMENTS]
        return [*read, *((text, lambda raw, f=f: GtidSet.parse(raw.decode(), f)) for text, f in GTIDS)], text_of
    if name == "RENAME statements":
        return [(b'RENAME TABLE "a" TO `b``c`, /* x */ `to` TO d.`e`', lambda raw: parse_rename(raw.decode()))], text_of
    if name == "rows":
        return [(ROW * (1 + (kind == UPDATE)), lambda raw, kind=kind: decode_row(kind, raw)) for kind in SLOW], row_of
    if name == "payloads":
        return [(payload(), lambda raw: walk(pa.array([raw], pa.large_binary())))], broken
    if name == "times":
        now = lambda: tso.compose(1_790_000_000_000)  # noqa: E731
        find = lambda _kind, what: tso.Tso(len(what))  # noqa: E731
        return [(text, lambda raw: str(parse_time(raw.decode(), now, find=find))) for text in TIMES], text_of
    assert name == "settings"

    def ours(raw: bytes) -> None:
        (folder / "a.toml").write_bytes(raw)
        Settings.read(folder / "a.toml")

    def go(raw: bytes) -> None:
        (folder / "b.toml").write_bytes(raw)
        go_options.read_file(folder / "b.toml")

    return [(SETTINGS, ours), (GO_SETTINGS, go)], text_of


PARSERS = [
    "archive documents", "registry", "RENAME statements", "rows", "payloads", "times", "settings",
    "binlogs of a source", "binlog files", "statements of a source",
]  # fmt: skip


def play(name: str, folder: Path, seed: int, more: Callable[[int], bool]) -> int:
    """Rounds that were played; AssertionError with the input of the first that raised anything but an error of ours."""
    rng = random.Random(seed)
    cases, mutate = _cases(name, folder)
    for data, read in cases:
        with suppress(BadManifest):  # a base of another archive; everything else that it is made of is fine
            read(data)
    done = 0
    while more(done):
        data, read = rng.choice(cases)
        raw = mutate(rng, data)
        try:
            read(raw)
        except BinlogError:
            pass
        except UnicodeDecodeError:
            assert name in ("RENAME statements", "times"), raw  # callers have a text already
        except Exception as error:
            raise AssertionError(f"{name}, seed {seed}, round {done}: {error!r} on {raw[:2000]!r}") from error
        done += 1
    return done


@pytest.mark.row("O7", "W2", "S1")
@pytest.mark.parametrize("name", PARSERS)
def test_what_others_wrote_is_read_or_refused_by_name(name: str, tmp_path: Path) -> None:
    play(name, tmp_path, 1, lambda done: done < ROUNDS)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", PARSERS)
def test_parsers_for_long(name: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    seed = int(os.environ.get("PUMPHOUSE_SEED", time.time_ns()))
    until = time.monotonic() + float(os.environ.get("PUMPHOUSE_FUZZ_S", "900"))
    record_property("seed", seed)
    record_property("rounds", play(name, tmp_path, seed, lambda _: time.monotonic() < until))
