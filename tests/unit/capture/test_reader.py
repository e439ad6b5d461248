"""Recorded bytes of both servers' sockets: whole, cut anywhere, damaged anywhere."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pumphouse.capture.source import codes, stream, tablemap
from pumphouse.capture.source.gtid import Flavor, GtidSet
from pumphouse.capture.source.model import Group, Kind, Position, Transaction, XaStep
from pumphouse.capture.source.statements import Word, word_of
from pumphouse.capture.source.stream import Reader
from pumphouse.capture.source.target import Target
from pumphouse.errors import BinlogError, CaptureRefused, ColumnMismatch, CorruptionError, UsageError
from pumphouse.model.table import TableInfo
from tests.support import capturing

pytestmark = pytest.mark.row("Q1")

ONE = {
    "id": 1, "a": b"one", "b": "-1.500", "c": "2024-02-29 01:02:03.456", "d": "-12:34:56.789000",
    "e": '{"a": [1, 2.5, null], "b": {"c": "ü"}}', "f": 2, "g": b"\1\0\0\0", "h": -0.25, "i": "2024-01-01 00:00:00.25",
    "j": 5, "k": "é".encode(),
}  # fmt: skip
LARGE = dict.fromkeys(ONE, None) | {"id": 4_000_000_000, "a": b""}
TWO = ONE | {"a": b"two", "d": "838:59:59.000000"}
EXPECTED = [
    ("t", Kind.INSERT, None, ONE),
    ("t", Kind.INSERT, None, LARGE),
    ("t", Kind.UPDATE, ONE, TWO),
    ("t", Kind.DELETE, TWO, None),
    ("t", Kind.INSERT, None, TWO | {"id": 2}),
    ("t", Kind.INSERT, None, dict.fromkeys(ONE, None) | {"id": 3, "a": b"xa"}),
]


class _Recording:
    def __init__(self, name: str) -> None:
        found = capturing.recorded(name)
        self.flavor = Flavor(found["flavor"])
        self.start = Position(gtids=GtidSet.parse(found["start"], self.flavor))
        self.data: bytes = found["data"]
        self.info = TableInfo.from_dict(found["table"])
        self.charsets = {int(number): name for number, name in found["charsets"].items()}

    def read(self, data: bytes, sizes: Any = None, group_bytes: int = 8 << 20) -> list[Group]:
        reader, groups, at = Reader(self.flavor, self.start, summed=True), [], 0
        while at < len(data):
            part = data[at : at + (next(sizes) if sizes else len(data))]
            reader.room()[: len(part)] = part
            assert reader.took(len(part)) is None
            groups += [each for each in reader.groups(group_bytes) if isinstance(each, Group)]
            at += len(part)
        return groups

    def changes(self, groups: list[Group]) -> list[capturing.Change]:
        """Those of the table as it was before its last DDL."""
        out: list[capturing.Change] = []
        for group in groups:
            last = next(
                (each.first for each in group.transactions for query in each.queries if b"ALTER" in query.text), None
            )
            out += capturing.changes([_until(group, last)], {("shop", "t"): self.info}, self.charsets)
            if last is not None:
                break
        return out


def _until(group: Group, last: int | None) -> Group:
    if last is None:
        return group
    kept = tuple(
        each for each in group.transactions if each.last <= last and not any(b"ALTER" in q.text for q in each.queries)
    )
    used = {int(each) for each in group.events.table[:last]}
    events = type(group.events)(
        **{name: getattr(group.events, name)[:last] for name in ("table", "kind", "bitmaps", "start", "end", "flags")}
    )
    tables = tuple(each for at, each in enumerate(group.tables) if at in used) if used else ()
    return Group(data=group.data, tables=tables, events=events, transactions=kept, end=group.end)


@pytest.fixture(params=["mariadb", "mysql"])
def recording(request: pytest.FixtureRequest) -> _Recording:
    return _Recording(request.param)


def _told(groups: list[Group]) -> list[tuple[Any, ...]]:
    """Transactions, whatever groups and parts they came in."""
    out: list[list[Any]] = []
    for each in (each for group in groups for each in group.transactions):
        if each.part == 0:
            out.append([each.gtid, each.micros, each.server_id, 0, [], None])
        out[-1][3] += each.last - each.first
        out[-1][4] += [query.text for query in each.queries]
        out[-1][5] = each.xa
    return [tuple(map(repr, each)) for each in out]


def test_rows_steps_and_statements_come_in_order(recording: _Recording) -> None:
    groups = recording.read(recording.data)
    assert recording.changes(groups) == EXPECTED
    found: list[Transaction] = [each for group in groups for each in group.transactions]
    assert [each.xa.step for each in found if each.xa] == [XaStep.PREPARE, XaStep.COMMIT]
    assert [query.text[:5] for each in found for query in each.queries] == [b"CREAT", b"ALTER"]
    gtids = recording.start.gtids.plus(*(each.gtid for each in found))
    assert groups[-1].end == Position(gtids=gtids, file="binlog.000002", offset=found[-1].end)
    position = recording.start
    for each in found:
        position = position.after(each)
    assert position == groups[-1].end


@pytest.mark.parametrize("seed", range(6))
def test_it_does_not_matter_where_reads_end_and_groups_are_cut(recording: _Recording, seed: int) -> None:
    pick = random.Random(seed)
    whole = recording.read(recording.data)
    most = (1, 7, 100, 1000, 3000, 40)[seed]
    sizes = iter(lambda: pick.randint(1, most), None)
    groups = recording.read(recording.data, sizes, group_bytes=1 if seed % 2 else 8 << 20)
    assert _told(groups) == _told(whole)
    assert groups[-1].end == whole[-1].end
    if seed % 2 == 0:
        assert recording.changes(groups) == EXPECTED


def test_damage_is_never_taken_for_data(recording: _Recording) -> None:
    """A byte that is not what the server sent: refused, or everything before it and then nothing more."""
    pick, whole = random.Random(1), _told(recording.read(recording.data))
    refused = 0
    for _ in range(400):
        at = pick.randrange(len(recording.data))
        data = bytearray(recording.data)
        data[at] ^= 1 << pick.randrange(8)
        try:
            found = _told(recording.read(bytes(data)))
        except (BinlogError, AssertionError):
            refused += 1
            continue
        assert found == whole[: len(found)]
    assert refused > 350


def _packets(data: bytes) -> Iterator[bytearray]:
    at = 0
    while at < len(data):
        size = 4 + int.from_bytes(data[at : at + 3], "little")
        yield bytearray(data[at : at + size])
        at += size


def _summed(packet: bytearray) -> bytes:
    return bytes(packet[:-4]) + struct.pack("<I", zlib.crc32(packet[5:-4]))


def _patched(data: bytes, change: Callable[[bytearray, int], object]) -> bytes:
    """With every event changed that is wanted (its packet, its type), and a checksum that is right."""
    out = []
    for packet in _packets(data):
        change(packet, packet[_KIND])
        out.append(bytes(packet) if packet[_KIND] == codes.FORMAT else _summed(packet))
    return b"".join(out)


_KIND, _BODY = 5 + 4, 5 + codes.HEADER
_ROWS = (*range(codes.WRITE_V1, codes.DELETE_V1 + 1), *range(codes.WRITE_V2, codes.DELETE_V2 + 1))


def _width_at(packet: bytearray, kind: int) -> int:
    at = _BODY + 8
    return at + (int.from_bytes(packet[at : at + 2], "little") if kind >= codes.WRITE_V2 else 0)


@pytest.mark.parametrize("number", [0xFFFFFF, 0xFFFFFFFFFFFF])
def test_a_table_may_have_the_number_that_ends_a_statement(recording: _Recording, number: int) -> None:
    def numbered(packet: bytearray, kind: int) -> None:
        if kind == codes.TABLE_MAP or kind in _ROWS or kind in codes.ROWS_COMPRESSED:
            packet[_BODY : _BODY + 6] = number.to_bytes(6, "little")

    def unnamed(packet: bytearray, kind: int) -> None:
        if kind in _ROWS:
            packet[_BODY : _BODY + 6] = number.to_bytes(6, "little")

    assert recording.changes(recording.read(_patched(recording.data, numbered))) == EXPECTED
    with pytest.raises(CorruptionError, match="rows of a table that it has not named"):
        recording.read(_patched(recording.data, unnamed))


def test_a_transaction_has_the_number_that_its_server_gave_it_or_is_damaged(recording: _Recording) -> None:
    at = {Flavor.MARIADB: (codes.MARIADB_GTID, _BODY), Flavor.MYSQL: (codes.GTID, _BODY + 17)}[recording.flavor]

    def numbered(packet: bytearray, kind: int) -> None:
        if kind == at[0]:
            packet[at[1] : at[1] + 8] = bytes([255] * 8)

    changed = _patched(recording.data, numbered)
    if recording.flavor is Flavor.MYSQL:  # its numbers have a sign
        with pytest.raises(CorruptionError, match="of the number -1"):
            recording.read(changed)
        return
    groups = recording.read(changed)
    assert str(groups[-1].end.gtids).endswith(f"-{(1 << 64) - 1}")


@pytest.mark.parametrize("width", [9, 8, 13, 250])
def test_rows_of_another_width_than_their_tables_are_damaged(recording: _Recording, width: int) -> None:
    def narrowed(packet: bytearray, kind: int) -> None:
        if kind in _ROWS:
            packet[_width_at(packet, kind)] = width

    with pytest.raises(CorruptionError):
        recording.read(_patched(recording.data, narrowed))


def test_a_statement_that_is_not_known_whole_is_refused(recording: _Recording) -> None:
    def strange(packet: bytearray, kind: int) -> None:
        if kind == codes.QUERY:
            packet[_BODY + 13] = 140

    with pytest.raises(CaptureRefused, match="the unknown status variable 140: CREATE TABLE"):
        recording.read(_patched(recording.data, strange))


def test_images_without_any_column_are_refused(recording: _Recording) -> None:
    def emptied(packet: bytearray, kind: int) -> None:
        if kind in _ROWS:
            at = _width_at(packet, kind)
            packet[at + 1 : at + 3] = b"\0\0"

    with pytest.raises(CaptureRefused, match="lacks the column id"):
        recording.changes(recording.read(_patched(recording.data, emptied)))


def test_what_a_source_forgot_is_followed_by_a_part_0() -> None:
    recording = _Recording("mysql")
    packets = list(_packets(recording.data))
    gtids = [at for at, each in enumerate(packets) if each[_KIND] == codes.GTID]
    told = next(each for each in packets if each[_KIND] == codes.FORMAT)
    told = told.copy()
    told[5 + 71 : 5 + 75] = b"\1\0\0\0"  # created: the server was started
    cut = b"".join(packets[gtids[1] : gtids[2] - 1])  # without its end
    reader, found = Reader(recording.flavor, recording.start, summed=True), []
    for data in (b"".join(packets[: gtids[1]]), cut, _summed(told) + b"".join(packets[gtids[2] : gtids[3]])):
        reader.room()[: len(data)] = data
        reader.took(len(data))
        for group in reader.groups(1):
            assert isinstance(group, Group)
            found += [(each.part, each.final, each.last - each.first) for each in group.transactions]
    assert found == [(0, True, 0), (0, False, 1), (0, True, 2)]


def test_one_that_goes_out_in_parts_is_whole_where_the_source_forgot_the_one_behind_it(recording: _Recording) -> None:
    packets = list(_packets(recording.data))
    kinds = (codes.GTID, codes.MARIADB_GTID)
    gtids = [at for at, each in enumerate(packets) if each[_KIND] in kinds]
    told = next(each for each in packets if each[_KIND] == codes.FORMAT).copy()
    told[5 + 71 : 5 + 75] = b"\1\0\0\0"  # created: the server was started
    end = gtids[2] - 1
    behind = [*packets[end : gtids[2] + 3], _summed(told), *packets[gtids[4] : gtids[5]]]
    reader, found = Reader(recording.flavor, recording.start, summed=True), []
    for some in (packets[: gtids[1]], packets[gtids[1] : end], behind):
        data = b"".join(some)
        reader.room()[: len(data)] = data
        reader.took(len(data))
        for group in reader.groups(1):
            assert isinstance(group, Group)
            found += [(each.gtid, each.part, each.final, each.last - each.first) for each in group.transactions]
    names = [each.gtid for group in recording.read(recording.data) for each in group.transactions]
    assert [each[:3] for each in found] == [
        (names[0], 0, True),
        (names[1], 0, False),
        (names[1], 1, True),
        (names[4], 0, True),
    ]
    assert found[1][3] == 1


@pytest.mark.row("Q5")
def test_what_a_source_waits_for_is_of_the_file_before_a_rotation_that_comes_with_it() -> None:
    recording = _Recording("mysql")
    packets = list(_packets(recording.data))
    gtids = [at for at, each in enumerate(packets) if each[_KIND] == codes.GTID]
    first, last = packets[: gtids[1]], packets[gtids[1] - 1]
    end = int.from_bytes(last[5 + 13 : 5 + 17], "little")
    body = (4).to_bytes(8, "little") + b"binlog.000099"
    size = codes.HEADER + len(body) + 4
    head = struct.pack("<IBIIIH", 0, codes.ROTATE, 1, size, end + size, 0)
    rotation = _summed(bytearray((size + 1).to_bytes(3, "little") + b"\0\0" + head + body + bytes(4)))

    def asking(packet: bytes, *, wanted: bool) -> bytes:
        return (len(packet) - 2).to_bytes(3, "little") + packet[3:5] + bytes((0xEF, wanted)) + packet[5:]

    data = b"".join(asking(bytes(each), wanted=each is last) for each in first) + asking(rotation, wanted=False)
    reader = Reader(recording.flavor, recording.start, summed=True, semi_sync=True)
    reader.room()[: len(data)] = data
    assert reader.took(len(data)) is None
    (group,) = (each for each in reader.groups(1 << 20) if isinstance(each, Group))
    assert group.end.offset == end
    assert group.acknowledge == (group.end.file, end)
    assert group.end.file != "binlog.000099"


def test_few_definitions_and_few_decompressed_bytes_are_kept(
    recording: _Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = recording.read(recording.data)
    assert len(whole[-1].tables) == 2
    monkeypatch.setattr(stream, "_DEFINITIONS", 0)
    reader, groups = Reader(recording.flavor, recording.start, summed=True, aside_bytes=1), []
    for packet in _packets(recording.data):
        reader.room()[: len(packet)] = packet
        reader.took(len(packet))
        groups += [each for each in reader.groups(8 << 20) if isinstance(each, Group)]
        while reader.behind:
            reader.took(0)
            groups += [each for each in reader.groups(8 << 20) if isinstance(each, Group)]
    assert max(len(each.tables) for each in groups) == 1
    assert _told(groups) == _told(whole)
    assert recording.changes(groups) == EXPECTED


def test_a_table_map_that_ends_anywhere_is_damaged_or_says_less(recording: _Recording) -> None:
    group = recording.read(recording.data)[0]
    data, whole = bytes(group.data), group.tables[0]
    at = data.index(b"\x04shop\0\x01t\0")
    lacking = 0
    for end in range(at, at + 150):
        try:
            table = tablemap.read(data[at:end], recording.flavor)
        except CorruptionError:
            lacking += 1
            continue
        assert table.name == whole.name
        assert [each.tp for each in table.columns] == [each.tp for each in whole.columns]
    assert lacking > 40


def test_another_table_than_the_historys_is_named(recording: _Recording) -> None:
    table = next(each for group in recording.read(recording.data) for each in group.tables)
    raw = recording.info.raw
    cases = {
        "the history lacks the column k": raw | {"cols": raw["cols"][:-1]},
        "the binlog lacks the column new": raw
        | {"cols": [*raw["cols"], raw["cols"][0] | {"id": 99, "name": {"O": "new", "L": "new"}}]},
        "the column id: one is UNSIGNED": _typed(raw, 0, Flag=0),
        r"the column b: it is DECIMAL\(12,3\)": _typed(raw, 2, Flen=13),
        "the column c: it has 3 digits": _typed(raw, 3, Decimal=6),
        "the column f: its elements are x, y": _typed(raw, 6, Elems=["x", "z"]),
        "the column j: it has 12 bits": _typed(raw, 10, Flen=11),
        "the column a: its character set": _typed(raw, 1, Charset="binary"),
        "the column h: its values are of the type 5": _typed(raw, 8, Tp=4),
    }
    for what, other in cases.items():
        with pytest.raises(ColumnMismatch, match=what):
            Target.of(table, TableInfo.from_dict(other), recording.charsets)


def _typed(raw: dict[str, Any], at: int, **more: Any) -> dict[str, Any]:
    columns = list(raw["cols"])
    columns[at] = columns[at] | {"type": columns[at]["type"] | more}
    return raw | {"cols": columns}


def test_sets_of_gtids() -> None:
    maria = GtidSet.parse(" 1-2-7,\n0-1-42", Flavor.MARIADB)
    assert str(maria) == "0-1-42,1-2-7"
    assert str(maria.plus("0-3-43", "5-1-1", "0-3-44")) == "0-3-44,1-2-7,5-1-1"
    assert "0-9-41" in maria
    assert "0-1-43" not in maria
    assert maria.plus("0-3-44").covers(maria)
    assert not maria.covers(GtidSet.parse("2-1-1", Flavor.MARIADB))
    one, other = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562"
    mysql = GtidSet.parse(f"{one.upper()}:1-5:9,{other}:3", Flavor.MYSQL)
    assert str(mysql) == f"{one}:1-5:9,{other}:3"
    assert str(mysql.plus(f"{one}:6", f"{one}:8", f"{one}:7", f"{other}:4")) == f"{one}:1-9,{other}:3-4"
    assert f"{one}:5" in mysql
    assert f"{one}:6" not in mysql
    assert mysql.covers(GtidSet.parse(f"{one}:2-4", Flavor.MYSQL))
    assert not mysql.covers(GtidSet.parse(f"{one}:4-6", Flavor.MYSQL))
    assert (
        str(mysql.lacking(GtidSet.parse(f"{one}:4-7:9-12,{other}:1-4", Flavor.MYSQL)))
        == f"{one}:6-7:10-12,{other}:1-2:4"
    )
    assert not mysql.lacking(GtidSet.parse(f"{one}:2-3:9", Flavor.MYSQL))
    assert str(maria.lacking(GtidSet.parse("0-1-43,1-2-6,2-1-1", Flavor.MARIADB))) == "0-1-43,2-1-1"
    assert str(maria.lacking(GtidSet.parse("0-9-42,1-9-6", Flavor.MARIADB))) == "0-9-42"  # one number of two servers
    for text, flavor in (
        ("0-1", Flavor.MARIADB),
        (f"{one}:0", Flavor.MYSQL),
        (f"{one}:ta-g:1", Flavor.MYSQL),
        (f"{one}:5-4", Flavor.MYSQL),
    ):
        with pytest.raises(UsageError):
            GtidSet.parse(text, flavor)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("BEGIN", Word.BEGIN), ("start transaction", Word.BEGIN), ("COMMIT /* x */", Word.COMMIT), ("ROLLBACK", Word.ROLLBACK),
        ("ROLLBACK TO `s`", Word.ROLLBACK_TO), ("rollback work to s", Word.ROLLBACK_TO), ("SAVEPOINT `s`", Word.SAVEPOINT),
        ("XA START X'01',X'',1", Word.XA), ("/* hi */ -- x\n INSERT INTO t VALUES (1)", Word.ROWS), ("/*!50100 DELETE */ FROM t", Word.ROWS),
        ("/*M!100100 UPDATE t SET a = 1 */", Word.ROWS), ("(SELECT 1)", Word.ROWS), ("WITH x AS (SELECT 1) DELETE FROM t", Word.ROWS),
        ("SET STATEMENT a=1 FOR UPDATE t SET b = 1", Word.ROWS), ("SET STATEMENT a=1 FOR ALTER TABLE t ADD b INT", Word.OTHER),
        ("SET PASSWORD FOR x = 'SELECT'", Word.OTHER), ("CREATE TABLE t AS SELECT 1", Word.ROWS), ("CREATE OR REPLACE TABLE t SELECT 1", Word.ROWS),
        ("CREATE TABLE `select` (a INT COMMENT 'select 1', b INT DEFAULT 1 /* select */)", Word.OTHER), ("TRUNCATE t", Word.OTHER),
        ("CREATE VIEW v AS SELECT 1", Word.OTHER), ("", Word.NOTHING), ("  /* nothing */ ", Word.NOTHING), ("# replace\nDROP TABLE t", Word.OTHER),
        ("REPLACE INTO t VALUES (1)", Word.ROWS), ("LOAD DATA INFILE 'x' INTO TABLE t", Word.ROWS), ("ANALYZE TABLE t", Word.OTHER),
    ],
)  # fmt: skip
def test_the_first_words_say_what_a_statement_is(text: str, word: Word) -> None:
    assert word_of(text.encode()) is word
