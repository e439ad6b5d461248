"""What a replica's session reads from a real server's binlog, and what its rows are when the archive's codec decodes them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from random import Random
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest

from pumphouse.capture.source.charsets import character_map
from pumphouse.capture.source.gtid import Flavor, GtidSet
from pumphouse.capture.source.model import Group, Kind, Position, XaStep
from pumphouse.capture.source.session import character_sets, hides, position_now
from pumphouse.capture.source.stream import Reader, open_stream
from pumphouse.codec.datum import Kind as Held
from pumphouse.codec.datum import kind_of
from pumphouse.codec.json import encode_json, json_text
from pumphouse.dump.rows import text_columns
from pumphouse.dump.source import session
from pumphouse.dump.table import TableReader
from pumphouse.errors import CaptureRefused, SourceErrant, SourceFailed, SourcePurged
from pumphouse.model.table import TableInfo
from tests.stack.mariadb import MariaDbServer
from tests.support import capturing, mariadb
from tests.support.kind import is_mysql
from tests.support.waiting import eventually

pytestmark = [pytest.mark.row("Q1"), pytest.mark.mysql]


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDbServer]:
    with mariadb.directory_in_memory() as directory, capturing.source(directory) as made:
        yield made


@pytest.fixture
def source(server: MariaDbServer) -> Iterator[Any]:
    """A connection, with an empty database and the position behind it."""
    with server.connect(autocommit=True) as connection:
        capturing.run(
            connection,
            "SET time_zone = '+00:00', sql_mode = 'NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES'",
            "DROP DATABASE IF EXISTS shop",
            "CREATE DATABASE shop CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
            "USE shop",
        )
        yield SimpleNamespace(connection=connection, start=position_now(connection), server=server)


def _run(source: Any, *statements: str) -> None:
    capturing.run(source.connection, *statements)


def _read(source: Any, **options: Any) -> capturing.Read:
    return capturing.read(source.server, options.pop("start", source.start), **options)


def _changes(source: Any, found: capturing.Read) -> list[capturing.Change]:
    infos = capturing.infos_of(source.connection, "shop")
    return capturing.changes(found.groups, infos, character_sets(source.connection))


def _selected(source: Any, info: TableInfo) -> list[dict[str, Any]]:
    """The table as a dump of it has it, in the spelling of binlogs."""
    reader = TableReader.of(SimpleNamespace(table=info, name=("shop", info.name)))  # type: ignore[arg-type]
    rows: list[dict[str, Any]] = []
    with session(mariadb.settings_of(source.server)) as connection:
        for batch in text_columns(connection, reader.select() + " ORDER BY 1"):
            rows += reader.convert(batch).to_pylist()
    documents = {c.name for c in info.columns if kind_of(c.type) is Held.JSON}
    for row in rows:
        for name in documents & row.keys():
            row[name] = None if row[name] is None else json_text(encode_json(row[name]))
    return rows


def _played(found: list[capturing.Change], key: str = "id") -> list[dict[str, Any]]:
    """What the changes of one table make of an empty one."""
    rows: dict[Any, dict[str, Any]] = {}
    for _, kind, old, new in found:
        if old is not None:
            assert rows.pop(old[key]) == old, f"{kind} of another row"
        if new is not None:
            assert new[key] not in rows
            rows[new[key]] = new
    return [rows[each] for each in sorted(rows)]


NUMBERS = """CREATE TABLE shop.numbers (id BIGINT UNSIGNED PRIMARY KEY, y YEAR, a TINYINT, b TINYINT UNSIGNED, c SMALLINT,
  d SMALLINT UNSIGNED, e MEDIUMINT, f MEDIUMINT UNSIGNED, g INT, h INT UNSIGNED, i BIGINT, j BIGINT UNSIGNED, k FLOAT,
  l DOUBLE, m DECIMAL(65,30), n DECIMAL(1,0), o DECIMAL(10,10), p DECIMAL(20,3) UNSIGNED ZEROFILL, q BIT(1), r BIT(9), s BIT(64), t TINYINT(1),
  u DECIMAL(9,0), v DECIMAL(18,9))"""
NUMBER_ROWS = (
    ("(18446744073709551615, 1901, -128, 255, -32768, 65535, -8388608, 16777215, -2147483648, 4294967295,"
    " -9223372036854775808, 18446744073709551615, -3.402823e38, -1.7976931348623157e308,"
    " -99999999999999999999999999999999999.999999999999999999999999999999, -9, -0.9999999999, 12.5, b'1', b'111111111',"
    " b'1111111111111111111111111111111111111111111111111111111111111111', 1, -999999999, -999999999.999999999)"),
    ("(0, 0, 127, 0, 32767, 0, 8388607, 0, 2147483647, 0, 9223372036854775807, 0, 1.17549e-38, 2.2250738585072014e-308,"
    " 0.000000000000000000000000000001, 0, -0.0, 0, b'0', b'0', b'0', 0, 0, 0)"),
    ("(1, 2155, 0, 128, 0, 32768, -1, 8388608, -1, 2147483648, -1, 9223372036854775808, 0.1, 0.1, -1, 9, 0.5, 99999999999999999.999,"
    " b'1', b'10', b'1000000000000000000000000000000000000000000000000000000000000000', -1, 1, 0.000000001)"),
    "(2" + ", NULL" * 23 + ")",
    "(9223372036854775808, 1970, -1, 1, -1, 1, 1, 1, 1, 1, 1, 1, -0.0, -0.0, 0, 1, 0, 1, b'1', b'100000000', b'1', 1, 1, 1)",
)  # fmt: skip
TIMES = """CREATE TABLE shop.times (id INT PRIMARY KEY, d DATE, t0 TIME, t1 TIME(1), t2 TIME(2), t3 TIME(3), t4 TIME(4), t5 TIME(5),
  t6 TIME(6), d0 DATETIME, d1 DATETIME(1), d2 DATETIME(2), d3 DATETIME(3), d4 DATETIME(4), d5 DATETIME(5), d6 DATETIME(6),
  s0 TIMESTAMP NULL, s1 TIMESTAMP(1) NULL, s2 TIMESTAMP(2) NULL, s3 TIMESTAMP(3) NULL, s4 TIMESTAMP(4) NULL, s5 TIMESTAMP(5) NULL,
  s6 TIMESTAMP(6) NULL)"""


def _times(number: int, date: str, time: str, moment: str, stamp: str) -> str:
    values = [f"'{date}'", *[f"'{time}'"] * 7, *[f"'{moment}'"] * 7, *[f"'{stamp}'"] * 7]
    return f"({number}, {', '.join(values)})"


TIME_ROWS = (
    _times(1, "0000-00-00", "00:00:00", "0000-00-00 00:00:00", "0000-00-00 00:00:00"),
    _times(2, "9999-12-31", "838:59:59", "9999-12-31 23:59:59", "2038-01-19 03:14:07"),
    _times(3, "1000-01-01", "-838:59:59", "1000-01-01 00:00:00", "1970-01-01 00:00:01"),
    _times(4, "2024-02-29", "-00:00:00.123456", "2024-02-29 12:34:56.123456", "2024-02-29 12:34:56.123456"),
    _times(5, "2023-00-31", "-12:00:00.900001", "2024-00-00 00:00:00.999", "1999-12-31 23:59:59.9"),
    _times(6, "2023-02-31", "10:11:12.654321", "2023-02-31 01:02:03.000001", "2000-03-01 00:00:00.000009"),
    "(7" + ", NULL" * 22 + ")",
)
TEXTS = """CREATE TABLE shop.texts (id INT PRIMARY KEY, a CHAR(12), b VARCHAR(60), c VARCHAR(300), d BINARY(9), e VARBINARY(40), f BINARY(255),
  g TINYTEXT, h TEXT, i MEDIUMTEXT, j LONGTEXT, k TINYBLOB, l BLOB, m MEDIUMBLOB, n LONGBLOB, o ENUM('red','grün','it''s'), p SET('a','b','c','d'),
  q VARCHAR(20) CHARACTER SET latin1, r TEXT CHARACTER SET latin1, s VARCHAR(20) CHARACTER SET gbk, t CHAR(5) CHARACTER SET ascii,
  u VARCHAR(20) CHARACTER SET utf8mb3, v CHAR(255), w ENUM('ä','b') CHARACTER SET latin1, x CHAR(80) CHARACTER SET latin1)"""
TEXT_ROWS = (
    "(1" + ", NULL" * 24 + ")",
    "(2, '', '', '', '', '', '', '', '', '', '', '', '', '', '', 'red', '', '', '', '', '', '', '', 'ä', '')",
    (
        "(3, '漢字 🚰', 'it''s \\\\ \"q\"\\0', REPEAT('ü', 300), x'00ff00', x'0000', REPEAT(x'ff', 255), REPEAT('x', 255), REPEAT('ß', 30000),"
        " REPEAT('y', 70000), REPEAT('漢', 70000), REPEAT(x'00', 255), REPEAT(x'fe', 65535), REPEAT(x'01', 70000), x'00', 3, 15,"
        " '€ÄÖÜß', 'plain é', '汉字 abc', 'ab', '漢字', REPEAT('🚰', 60), 'b', REPEAT('é', 80))"
    ),
    (
        "(4, 'trailing  ', 'trailing  ', ' ', x'6100', x'6100', x'20', 'a', 'b ', 'c', 'd', 'e ', 'f', 'g', 'h', 'grün', 'a,d', 'ÿ', '', '',"
        " '', '', '', 1, '')"
    ),
)
JSONS = "CREATE TABLE shop.documents (id INT PRIMARY KEY, j JSON, k JSON NOT NULL)"
JSON_TEXTS = (
    "null", "true", "0", "-1", "32767", "32768", "65536", "-2147483649", "9223372036854775807", "18446744073709551615", "1.5", "-0.25", "1e100",
    '""', '"x"', '"' + "ü" * 200 + '"', "[]", "{}", '[1, [2, [3, {"a": {"b": [null, true, false]}}]]]',
    '{"bb": 1, "a": 2, "ccc": 3, "aa": 4, "": 5, "b": {"zz": 1, "y": 2}}', '"quo\\\\"te \\\\n \\\\u00e9"',
    "[" + ", ".join(map(str, range(3000))) + "]", '{"' + '": 1, "'.join(f"k{n}" for n in range(500)) + '": 2}', '["' + "long" * 20000 + '"]',
    '{"deep": ' + "[" * 25 + "1" + "]" * 25 + "}",
)  # fmt: skip


@pytest.mark.parametrize(
    ("table", "create", "rows"),
    [("numbers", NUMBERS, NUMBER_ROWS), ("times", TIMES, TIME_ROWS), ("texts", TEXTS, TEXT_ROWS),
     ("documents", JSONS, [f"({n}, '{each}', '{each}')" for n, each in enumerate(JSON_TEXTS)])],
)  # fmt: skip
def test_every_type_with_its_edge_values_is_what_a_dump_reads(source: Any, table: str, create: str, rows: Any) -> None:
    _run(source, create, *(f"INSERT INTO shop.{table} VALUES {each}" for each in rows))
    info = capturing.infos_of(source.connection, "shop")["shop", table]
    found = _changes(source, _read(source))
    assert [kind for _, kind, _, _ in found] == [Kind.INSERT] * len(rows)
    assert _played(found) == _selected(source, info)
    start = position_now(source.connection)
    last = info.columns[-1].name
    value = "'[7]'" if table == "documents" else "NULL"
    _run(
        source,
        f"UPDATE shop.{table} SET {last} = {value}",
        f"UPDATE shop.{table} SET id = id + 1 ORDER BY id DESC LIMIT 1"
        if table != "numbers"
        else f"UPDATE shop.{table} SET id = 7 WHERE id = 2",
    )
    found += _changes(source, _read(source, start=start))
    assert _played(found) == _selected(source, info)
    start = position_now(source.connection)
    _run(source, f"DELETE FROM shop.{table}")
    assert _played(found + _changes(source, _read(source, start=start))) == []


def test_keys_of_every_kind_and_generated_columns(source: Any) -> None:
    _run(
        source,
        "CREATE TABLE shop.words (word VARCHAR(40) COLLATE utf8mb4_general_ci, n INT, at DATETIME(3), t TIME, c CHAR(9), body TEXT,"
        " width INT AS (n + 1), twice BIGINT AS (n * 2) STORED, PRIMARY KEY (word, n, at, t, c))",
        "CREATE TABLE shop.pieces (code VARBINARY(30), tail CHAR(30), v INT, PRIMARY KEY (code(4), tail(2)))",
        "CREATE TABLE shop.keyless (tag INT NOT NULL, body VARCHAR(200))",
        "INSERT INTO shop.words (word, n, at, t, c, body) VALUES ('Ab ', 1, '2024-01-01 00:00:00.5', '-01:00:00', 'c  ', 'x')",
        "INSERT INTO shop.pieces VALUES (x'0102030405', 'äbcd', 1)",
        "INSERT INTO shop.keyless VALUES (1, 'a'), (1, 'a'), (2, NULL)",
        "UPDATE shop.words SET body = 'y'",
        "UPDATE shop.words SET n = 2",
        "UPDATE shop.pieces SET v = 2, code = x'01020304ff'",
        "DELETE FROM shop.keyless WHERE tag = 1 LIMIT 1",
    )
    word = {"word": b"Ab ", "n": 1, "at": "2024-01-01 00:00:00.500", "t": "-01:00:00", "c": b"c", "body": b"x"}
    found = [
        (
            table,
            kind,
            old and {n: v for n, v in old.items() if n != "twice"},
            new and {n: v for n, v in new.items() if n != "twice"},
        )
        for table, kind, old, new in _changes(source, _read(source))
    ]
    piece = {"code": b"\1\2\3\4\5", "tail": "äbcd".encode(), "v": 1}
    assert found == [
        ("words", Kind.INSERT, None, word),
        ("pieces", Kind.INSERT, None, piece),
        ("keyless", Kind.INSERT, None, {"tag": 1, "body": b"a"}),
        ("keyless", Kind.INSERT, None, {"tag": 1, "body": b"a"}),
        ("keyless", Kind.INSERT, None, {"tag": 2, "body": None}),
        ("words", Kind.UPDATE, word, word | {"body": b"y"}),
        ("words", Kind.DELETE, word | {"body": b"y"}, None),
        ("words", Kind.INSERT, None, word | {"body": b"y", "n": 2}),
        ("pieces", Kind.DELETE, piece, None),
        ("pieces", Kind.INSERT, None, piece | {"code": b"\1\2\3\4\xff", "v": 2}),
        ("keyless", Kind.DELETE, {"tag": 1, "body": b"a"}, None),
    ]


def _filled(source: Any, rows: int = 200) -> None:
    _run(
        source,
        "CREATE TABLE shop.t (id INT PRIMARY KEY, a VARCHAR(100), b LONGBLOB)",
        "INSERT INTO shop.t VALUES " + ",".join(f"({n}, '{n * 'ab'}', NULL)" for n in range(min(rows, 40))),
        "BEGIN",
        *(f"INSERT INTO shop.t VALUES ({n}, 'x', REPEAT('y', {n % 7 * 1000}))" for n in range(40, rows)),
        "UPDATE shop.t SET a = CONCAT(a, 'z') WHERE id % 2",
        "DELETE FROM shop.t WHERE id % 3 = 0",
        "COMMIT",
    )


def _equal(source: Any, found: list[capturing.Change], table: str = "t") -> None:
    info = capturing.infos_of(source.connection, "shop")["shop", table]
    assert _played(found) == _selected(source, info)


def test_compressed_transactions_and_statements_are_the_same(source: Any) -> None:
    if is_mysql():
        _run(source, "SET SESSION binlog_transaction_compression = ON")
    else:
        _run(source, "SET GLOBAL log_bin_compress = ON, GLOBAL log_bin_compress_min_len = 10")
    try:
        _filled(source)
        _run(
            source, "CREATE TABLE shop.u (id INT PRIMARY KEY, a TEXT)", f"INSERT INTO shop.u VALUES (1, '{'q' * 5000}')"
        )
    finally:
        if not is_mysql():
            _run(source, "SET GLOBAL log_bin_compress = OFF")
    _run(source, "INSERT INTO shop.u VALUES (2, 'plain')")
    found = _read(source)
    assert found.statements[-1].startswith("CREATE TABLE shop.u")
    every = _changes(source, found)
    _equal(source, [each for each in every if each[0] == "t"])
    _equal(source, [each for each in every if each[0] == "u"], "u")
    # In parts, and with what is under way carried over, they are the same.
    small = _read(source, group_bytes=1)
    assert [each.gtid for each in small.transactions if each.final] == [each.gtid for each in found.transactions]
    assert _changes(source, small) == every


def test_events_of_more_than_a_packet_and_transactions_of_more_than_a_group(source: Any) -> None:
    _run(
        source,
        "CREATE TABLE shop.t (id INT PRIMARY KEY, b LONGBLOB)",
        "BEGIN",
        f"INSERT INTO shop.t VALUES (1, REPEAT('a', {40 << 20})), (2, 'small')",
        f"INSERT INTO shop.t VALUES (3, REPEAT('b', {(16 << 20) - 1}))",
        *(f"INSERT INTO shop.t VALUES ({n}, REPEAT('c', 300000))" for n in range(4, 30)),
        "COMMIT",
        "INSERT INTO shop.t VALUES (100, 'end')",
    )
    found = _read(source, group_bytes=4 << 20)
    big = [each for each in found.transactions if each.gtid == found.transactions[1].gtid]
    assert len(big) >= 2
    assert [each.part for each in big] == list(range(len(big)))
    assert [each.final for each in big] == [False] * (len(big) - 1) + [True]
    assert len({(each.micros, each.server_id) for each in big}) == 1
    _equal(source, _changes(source, found))


@pytest.mark.mariadb("a MySQL with GTIDs has no temporary tables within a transaction")
@pytest.mark.parametrize("most", [8 << 20, 1 << 16], ids=["whole", "in parts"])
def test_what_was_rolled_back_and_is_in_the_binlog_never_was(source: Any, most: int) -> None:
    """It is there where a temporary table came or went within the transaction."""
    rows, temporary = (
        "INSERT INTO shop.r SELECT REPEAT('x', 200), {} FROM seq_1_to_900",
        "CREATE TEMPORARY TABLE shop.{} (a INT)",
    )
    _run(
        source,
        "CREATE TABLE shop.r (pad VARCHAR(200), n INT)",
        "BEGIN", rows.format(1), temporary.format("one"), rows.format(2), "ROLLBACK",
        "BEGIN", "INSERT INTO shop.r VALUES ('', 3)", temporary.format("two"), "SAVEPOINT `S``1`",
        "INSERT INTO shop.r VALUES ('', 4)", "SAVEPOINT t", "INSERT INTO shop.r VALUES ('', 5)", "ROLLBACK TO `s``1`",
        "INSERT INTO shop.r VALUES ('', 6)", "COMMIT",
        "INSERT INTO shop.r VALUES ('', 7)",
    )  # fmt: skip
    found = _read(source, group_bytes=most)
    assert [row["n"] for *_, row in _changes(source, found) if row][-3:] == [3, 6, 7]
    assert sorted(n for (n,) in capturing.rows_of(source.connection, "SELECT n FROM shop.r")) == [3, 6, 7]
    undone = [each for each in found.transactions if each.final and each.first == each.last and not each.queries]
    assert [each.part for each in undone] == [0]
    assert any(not each.final for each in found.transactions) == (most == 1 << 16)


@pytest.mark.mariadb("a MySQL with GTIDs has no temporary tables within a transaction")
def test_one_that_goes_out_in_parts_is_whole_where_another_one_is_rolled_back_behind_it(source: Any) -> None:
    """Its end, and what was rolled back, come with one read."""
    _run(
        source,
        "CREATE TABLE shop.r (pad VARCHAR(200), n INT)",
        "INSERT INTO shop.r SELECT REPEAT('x', 200), seq FROM seq_1_to_900",
        "BEGIN", "INSERT INTO shop.r VALUES ('', 1001)", "CREATE TEMPORARY TABLE shop.one (a INT)",
        "INSERT INTO shop.r VALUES ('', 1002)", "ROLLBACK",
        "INSERT INTO shop.r VALUES ('', 1003)",
    )  # fmt: skip
    data = capturing.sent(source.server, source.start)
    for cut in range(1 << 15, 1 << 17, 1 << 14):
        reader, found = Reader(source.start.gtids.flavor, source.start, summed=True), capturing.Read()
        for some in (data[:9000], data[9000:cut], data[cut:]):
            reader.room()[: len(some)] = some
            reader.took(len(some))
            found.groups += [each for each in reader.groups(1) if isinstance(each, Group)]
        parts = [(each.part, each.final) for each in found.transactions if each.gtid == found.transactions[1].gtid]
        assert parts == [(0, False), (1, True)]
        assert [row["n"] for *_, row in _changes(source, found) if row] == [*range(1, 901), 1003]


def test_order_context_and_moments_of_transactions(source: Any) -> None:
    before = time.time()
    _run(
        source,
        "SET SESSION sql_mode = 'ANSI_QUOTES', time_zone = '+05:30', foreign_key_checks = 0",
        "SET NAMES latin1",
        'CREATE TABLE "ä" (id INT PRIMARY KEY, at TIMESTAMP DEFAULT CURRENT_TIMESTAMP)'.encode("latin1"),  # type: ignore[list-item]
        "SET NAMES utf8mb4",
        "SET SESSION sql_mode = '', foreign_key_checks = 1",
        "BEGIN",
        "INSERT INTO shop.`ä` (id) VALUES (1)",
        "SAVEPOINT s",
        "INSERT INTO shop.`ä` (id) VALUES (2)",
        "ROLLBACK TO s",
        "INSERT INTO shop.`ä` (id) VALUES (3)",
        "COMMIT",
        "FLUSH BINARY LOGS",
        "ALTER TABLE shop.`ä` ADD x INT",
        "CREATE TABLE shop.copy (PRIMARY KEY (id)) SELECT * FROM shop.`ä`",
        "DROP TABLE shop.`ä`",
    )
    found = _read(source)
    create, insert, alter, copy, drop = found.transactions
    query = create.queries[0]
    assert query.schema == "shop"
    assert query.sql_mode is not None
    assert query.sql_mode & 4
    assert query.time_zone in ("+05:30", "")
    assert query.flags is not None
    assert query.flags & 1 << 26
    assert query.text.decode("latin1").startswith('CREATE TABLE "ä"')
    assert query.client_collation == 8
    assert before - 1 <= create.micros / 1e6 <= time.time() + 1
    assert [each.last - each.first for each in (create, insert, alter, copy, drop)] == [0, 2, 0, 1, 0]
    assert copy.queries[0].text.startswith(b"CREATE TABLE `copy`")
    assert [type(each) for each in copy.pieces()] == [type(query), range]
    assert create.file != drop.file == found.position.file  # type: ignore[union-attr]
    gtids = source.start.gtids
    for each in found.transactions:
        assert each.has_gtid
        assert each.gtid not in gtids
        gtids = gtids.plus(each.gtid)
    now = position_now(source.connection)
    assert str(gtids) == str(now.gtids)
    assert (drop.file, drop.end) == (now.file, now.offset)


def test_maps_of_characters_are_the_servers(source: Any) -> None:
    for charset, codes in (("latin1", range(256)), ("gbk", [*range(128), *range(0x8140, 0xFEFF)])):
        found = character_map(charset)
        for low in range(0, len(codes), 4000):
            some = [c for c in codes[low : low + 4000] if c < 256 or found[256 + c] > 0]
            text = "".join(f"{c:02x}" if c < 256 else f"{c:04x}" for c in some)
            (said,) = (
                capturing.rows_of(source.connection, f"SELECT CONVERT(_{charset} x'{text}' USING utf8mb4)")[0]
                if text
                else ("",)
            )
            ours = [int(found[c if c < 256 else 256 + c]) for c in some]
            texts = [(each & 0xFFFFFF).to_bytes(3, "little")[: each >> 24].decode() for each in ours]
            assert [f"{c:x}: {a!r}, {b!r}" for c, a, b in zip(some, said, texts, strict=True) if a != b] == []
    # What the server knows and we do not would be refused.
    every = [lead << 8 | trail for lead in range(0x81, 0xFF) for trail in (*range(0x40, 0x7F), *range(0x80, 0xFF))]
    (said,) = capturing.rows_of(
        source.connection, f"SELECT CONVERT(_gbk x'{''.join(f'{c:04x}' for c in every)}' USING utf8mb4)"
    )[0]
    gbk = character_map("gbk")
    unknown = [f"{c:x}" for c, text in zip(every, said, strict=True) if text != "?" and gbk[256 + c] <= 0]
    assert unknown == []


def test_xa_is_told_step_by_step(source: Any) -> None:
    _run(source, "CREATE TABLE shop.t (id INT PRIMARY KEY)")
    for number, end in enumerate(("XA COMMIT 'x{n}'", "XA ROLLBACK 'x{n}'", "XA COMMIT 'x{n}' ONE PHASE")):
        _run(source, f"XA START 'x{number}'", f"INSERT INTO shop.t VALUES ({number})", f"XA END 'x{number}'")
        if "ONE" not in end:
            _run(source, f"XA PREPARE 'x{number}'")
        _run(source, end.format(n=number))
    steps = [
        (each.xa and (each.xa.step, each.xa.xid), each.last - each.first) for each in _read(source).transactions[1:]
    ]
    assert steps == [
        ((XaStep.PREPARE, "X'7830',X'',1"), 1),
        ((XaStep.COMMIT, "X'7830',X'',1"), 0),
        ((XaStep.PREPARE, "X'7831',X'',1"), 1),
        ((XaStep.ROLLBACK, "X'7831',X'',1"), 0),
        (None, 1),
    ]


GEOMETRIES = {
    "g0": "a VARCHAR(9) CHARACTER SET latin1, b VARCHAR(9) CHARACTER SET latin1, g POINT",
    "g1": "g GEOMETRY, a VARCHAR(9) CHARACTER SET latin1, b VARCHAR(9) CHARACTER SET latin1, c TEXT",
    "g2": "a TEXT, g POINT, h LINESTRING, b BINARY(3), c VARCHAR(9) CHARACTER SET ascii",
    "g3": "g POLYGON, h MULTIPOINT",
}


def test_a_geometry_does_not_shift_the_collations_of_the_columns_beside_it(source: Any) -> None:
    for name, columns in GEOMETRIES.items():
        _run(
            source,
            f"CREATE TABLE shop.{name} (id INT PRIMARY KEY, {columns})",
            f"INSERT INTO shop.{name} (id) VALUES (1)",
        )
    tables, charsets = _read(source).tables, character_sets(source.connection)
    for name in GEOMETRIES:
        said = capturing.rows_of(
            source.connection,
            "SELECT COLUMN_NAME, COALESCE(CHARACTER_SET_NAME, 'binary') FROM information_schema.COLUMNS"
            f" WHERE TABLE_SCHEMA = 'shop' AND TABLE_NAME = '{name}' AND COLUMN_NAME IN ('a', 'b', 'c')",
        )
        found = {each.name: charsets[each.collation] for each in tables[name].columns if each.name in ("a", "b", "c")}
        assert found == dict(said), name


@pytest.mark.skipif(not is_mysql(), reason="a MariaDB's GTIDs have no tags")
@pytest.mark.parametrize("group_bytes", [8 << 20, 1])
def test_a_transaction_with_a_tag_is_one_of_that_name(source: Any, group_bytes: int) -> None:
    _run(
        source,
        "CREATE TABLE shop.t (id INT PRIMARY KEY, a TEXT)",
        "SET gtid_next = 'AUTOMATIC:books'",
        "INSERT INTO shop.t VALUES (1, '')",
        "INSERT INTO shop.t SELECT 1 + SEQ, REPEAT('x', 5000) FROM (WITH RECURSIVE s AS (SELECT 1 AS SEQ UNION ALL SELECT SEQ + 1 FROM s WHERE SEQ < 500) SELECT SEQ FROM s) AS s",
    )
    between = position_now(source.connection)
    _run(source, "CREATE TABLE shop.u (id INT)", "SET gtid_next = 'AUTOMATIC'", "INSERT INTO shop.u VALUES (3)")
    found, end = _read(source, group_bytes=group_bytes), position_now(source.connection)
    ((server,),) = capturing.rows_of(source.connection, "SELECT LOWER(@@server_uuid)")
    whole = [each for each in found.transactions if each.final]
    assert [each.gtid for each in whole[-4:-1]] == [f"{server}:books:{number}" for number in _numbers(end, server, 3)]
    assert any(each.part for each in found.transactions) == (group_bytes == 1)
    assert found.position is not None and found.position.gtids == end.gtids
    ((now,),) = capturing.rows_of(source.connection, "SELECT CAST(1000000 * UNIX_TIMESTAMP(NOW(6)) AS SIGNED)")
    assert all(now - 60_000_000 < each.micros < now for each in whole)
    assert sum(kind is Kind.INSERT for _, kind, _, _ in _changes(source, found)) == 502
    # What was read before has tags, too.
    assert [each.gtid for each in _read(source, start=between).transactions] == [each.gtid for each in whole[-2:]]


def _numbers(end: Position, server: str, count: int) -> range:
    last = end.gtids.done[f"{server}:books"][-1][1]
    return range(last - count + 1, last + 1)


def test_what_makes_rows_inexact_is_refused_by_name(source: Any) -> None:
    _run(source, "CREATE TABLE shop.t (id INT PRIMARY KEY, a INT, j JSON)")
    begin = position_now(source.connection)
    cases = [
        ("SET SESSION binlog_row_image = MINIMAL", "INSERT INTO shop.t VALUES (1, 1, '{}')", "UPDATE shop.t SET a = 2", "SET SESSION binlog_row_image = FULL"),
        ("SET SESSION binlog_format = STATEMENT", "INSERT INTO shop.t VALUES (9, 1, '{}')", "SET SESSION binlog_format = ROW"),
        ("SET SESSION binlog_format = STATEMENT", "CREATE TABLE shop.c SELECT 1 AS x", "SET SESSION binlog_format = ROW"),
    ]  # fmt: skip
    words = ["lacks the column", "a statement that changes rows", "a statement that changes rows"]
    if is_mysql():
        cases[2] = (
            "SET SESSION binlog_row_value_options = PARTIAL_JSON",
            "UPDATE shop.t SET j = JSON_SET('{\"a\": 1}', '$.a', 2)", "UPDATE shop.t SET j = JSON_SET(j, '$.a', 3)",
            "SET SESSION binlog_row_value_options = ''",
        )  # fmt: skip
        words[2] = "parts of JSON"
    for statements, word in zip(cases, words, strict=True):
        begin = position_now(source.connection)
        _run(source, *statements)
        with pytest.raises(CaptureRefused, match=word) as refused:
            _changes(source, _read(source, start=begin))
        assert refused.value.hint
    _run(source, "SET GLOBAL binlog_row_metadata = MINIMAL")
    try:
        with source.server.connect(autocommit=True) as other:
            begin = position_now(other)
            capturing.run(other, "INSERT INTO shop.t VALUES (77, 1, '{}')")
    finally:
        _run(source, "SET GLOBAL binlog_row_metadata = FULL")
    found = _read(source, start=begin)  # the table may be one that is left out
    with pytest.raises(CaptureRefused, match=r"does not name the columns of shop\.t"):
        _changes(source, found)


@pytest.mark.mariadb("a MySQL has no ALTER in two phases")
def test_an_alter_in_two_phases_is_refused(source: Any) -> None:
    """The source rolls it back; in the binlog it is there twice, in the same words."""
    _run(source, "CREATE TABLE shop.t (a INT PRIMARY KEY, b INT)", "INSERT INTO shop.t VALUES (1, 1), (2, 1)")
    for number in (60, 257, 513):
        begin = position_now(source.connection)
        with source.server.connect(autocommit=True) as other:
            capturing.run(other, f"SET gtid_seq_no = {10_000 + number}", "SET SESSION binlog_alter_two_phase = 1")
            with pytest.raises(pymysql.IntegrityError):
                capturing.run(other, "ALTER TABLE shop.t ADD UNIQUE KEY (b)")
        with pytest.raises(CaptureRefused, match="ALTER in two phases") as refused:
            _read(source, start=begin)
        assert "binlog_alter_two_phase" in refused.value.hint


@pytest.mark.mariadb("a MySQL compresses whole transactions, which another test reads")
def test_rows_that_were_compressed_go_out_before_they_are_large(source: Any) -> None:
    _run(source, "SET GLOBAL log_bin_compress = ON", "CREATE TABLE shop.t (id INT PRIMARY KEY, b LONGBLOB)")
    try:
        with source.server.connect(autocommit=True) as other:
            inserts = [f"INSERT INTO shop.t VALUES ({n}, REPEAT('x', 4000000))" for n in range(20)]
            capturing.run(other, "BEGIN", *inserts, "COMMIT")
    finally:
        _run(source, "SET GLOBAL log_bin_compress = OFF")
    found = _read(source, group_bytes=1 << 20)
    assert sum(each.bytes for each in found.transactions) < 1 << 20
    assert max(len(each.data) for each in found.groups) < 10 << 20
    assert len(_changes(source, found)) == 20


def test_what_was_compressed_whole_goes_out_before_it_is_large(source: Any) -> None:
    """A MySQL's transactions, and a MariaDB's statements: each is a few bytes, and all of them come with one read."""
    statements = [f"CREATE TABLE shop.t{n} (id INT PRIMARY KEY) /* {'x' * 1_000_000} */" for n in range(20)]
    if is_mysql():
        _run(source, "SET SESSION binlog_transaction_compression = ON", "CREATE TABLE shop.t (id INT, b LONGBLOB)")
        statements = [f"INSERT INTO shop.t VALUES ({n}, REPEAT('x', 1000000))" for n in range(20)]
    else:
        _run(source, "SET GLOBAL log_bin_compress = ON")
    begin = position_now(source.connection)
    try:
        _run(source, *statements)
    finally:
        if not is_mysql():
            _run(source, "SET GLOBAL log_bin_compress = OFF")
    found = _read(source, start=begin, group_bytes=1 << 20)
    assert sum(each.bytes for each in found.transactions) < 1 << 20
    assert len(found.transactions) == 20
    assert max(len(each.transactions) for each in found.groups) <= 2


def test_a_position_that_is_gone_or_strange_is_named(source: Any) -> None:
    _run(
        source,
        "CREATE TABLE shop.t (id INT PRIMARY KEY)",
        "FLUSH BINARY LOGS",
        "INSERT INTO shop.t VALUES (1)",
        "FLUSH BINARY LOGS",
    )
    last = position_now(source.connection)
    deadline = time.monotonic() + 30
    while True:
        _run(source, f"PURGE BINARY LOGS TO '{last.file}'")
        if len(capturing.rows_of(source.connection, "SHOW BINARY LOGS")) == 1 or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    _run(source, "INSERT INTO shop.t VALUES (2)")
    with pytest.raises(SourcePurged, match="has deleted binlogs") as purged:
        _read(source)
    assert "archive dump" in purged.value.hint
    assert len(_changes(source, _read(source, start=last))) == 1
    flavor = Flavor.MYSQL if is_mysql() else Flavor.MARIADB
    name = str(last.gtids).partition(":")[0]
    strange = GtidSet.parse(f"{name}:1-999999" if is_mysql() else "0-1-999999", flavor)
    with pytest.raises(SourceErrant, match="does not know the position"):
        _read(source, start=Position(gtids=strange), end=Position(gtids=strange))


def test_without_gtids_file_and_offset_say_where(source: Any) -> None:
    _filled(source, 60)
    none = Position(
        gtids=GtidSet.parse("", source.start.gtids.flavor), file=source.start.file, offset=source.start.offset
    )
    found = _read(source, start=none)
    assert found.position == Position(
        gtids=none.gtids, file=found.transactions[-1].file, offset=found.transactions[-1].end
    )
    assert _changes(source, found) == _changes(source, _read(source))


def test_checksums_may_be_off_and_come_back(source: Any) -> None:
    _run(
        source,
        "CREATE TABLE shop.t (id INT PRIMARY KEY)",
        "INSERT INTO shop.t VALUES (1)",
        "SET GLOBAL binlog_checksum = NONE",
    )
    try:
        _run(source, "INSERT INTO shop.t VALUES (2)")
        one = _read(source)
    finally:
        _run(source, "SET GLOBAL binlog_checksum = CRC32")
    _run(source, "INSERT INTO shop.t VALUES (3)")
    assert len(_changes(source, one)) == 2
    assert len(_changes(source, _read(source))) == 3


def test_a_semi_sync_source_waits_until_it_is_acknowledged(source: Any) -> None:
    name = "source" if is_mysql() else "master"
    if is_mysql():
        try:
            _run(source, "INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'")
        except pymysql.MySQLError as error:
            # A package of its own in some distributions; the MariaDB of every machine has it built in.
            pytest.skip(f"this MySQL has no plugin for it: {error}")
    _run(source, "CREATE TABLE shop.t (id INT PRIMARY KEY)")
    begin = position_now(source.connection)
    stop, committed = threading.Event(), threading.Event()
    _run(source, f"SET GLOBAL rpl_semi_sync_{name}_timeout = 600000", f"SET GLOBAL rpl_semi_sync_{name}_enabled = ON")

    def commit(number: int) -> None:
        with source.server.connect(autocommit=True) as other:
            capturing.run(other, f"INSERT INTO shop.t VALUES ({number})")
        committed.set()

    try:
        settings = mariadb.settings_of(source.server)
        with open_stream(
            settings, begin, section="source", server_id=4712, heartbeat_s=0.5, semi_sync=True, stop=stop
        ) as stream:
            writer = threading.Thread(target=commit, args=(1,))
            writer.start()
            for each in stream:
                if isinstance(each, Group) and len(each.events):
                    assert each.acknowledge is not None
                    assert not committed.wait(1), "it did not wait"
                    stream.acknowledge(each)
                    assert committed.wait(60), "it waits for ever"
                    break
            writer.join()
            # The answer is lost with the connection: where the next one goes on says it.
            committed.clear()
            writer = threading.Thread(target=commit, args=(2,))
            writer.start()
            end = next(each.end for each in stream if isinstance(each, Group) and len(each.events))
            assert not committed.wait(1), "it did not wait"
            hidden = hides(source.connection)
            assert hidden()
        with open_stream(settings, end, section="source", server_id=4712, heartbeat_s=0.5, semi_sync=True, stop=stop):
            assert committed.wait(60), "it waits for ever"
        writer.join()
        assert not hidden()
    finally:
        stop.set()
        _run(source, f"SET GLOBAL rpl_semi_sync_{name}_enabled = OFF")


_AFTER_SYNC = (
    "SET GLOBAL max_binlog_size = 4096, GLOBAL rpl_semi_sync_master_wait_point = AFTER_SYNC",
    "SET GLOBAL rpl_semi_sync_master_timeout = 600000, GLOBAL rpl_semi_sync_master_enabled = ON",
)
_AS_IT_WAS = (
    "SET GLOBAL rpl_semi_sync_master_enabled = OFF, GLOBAL rpl_semi_sync_master_wait_point = DEFAULT",
    "SET GLOBAL max_binlog_size = DEFAULT",
)


@pytest.mark.row("Q5")
@pytest.mark.mariadb("a MySQL names what is under way; this is about MariaDB's position")
def test_what_waits_for_its_answer_is_hidden_also_once_its_source_begins_another_file(source: Any) -> None:
    _run(source, "CREATE TABLE shop.t (id INT PRIMARY KEY, b TEXT)")
    begin = position_now(source.connection)

    def elsewhere(statement: str) -> threading.Thread:
        def run() -> None:
            with source.server.connect(autocommit=True) as other:
                capturing.run(other, statement)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def file() -> Any:
        return capturing.rows_of(source.connection, "SHOW STATUS LIKE 'binlog_snapshot_file'")[0][1]

    stop = threading.Event()
    try:
        _run(source, *_AFTER_SYNC)
        settings = mariadb.settings_of(source.server)
        with open_stream(
            settings, begin, section="source", server_id=4712, heartbeat_s=0.5, semi_sync=True, stop=stop
        ) as stream:
            writers = [elsewhere("INSERT INTO shop.t VALUES (1, REPEAT('b', 9000))")]
            end = next(each.end for each in stream if isinstance(each, Group) and len(each.events))
            eventually(lambda: file() != begin.file, what="its file is full", within_s=10)
            hidden = hides(source.connection)
            assert hidden()
            reached = file()
            writers.append(elsewhere("FLUSH BINARY LOGS"))
            eventually(lambda: file() != reached, what="the next file", within_s=10)
            assert capturing.rows_of(source.connection, "SELECT id FROM shop.t") == []
            assert hidden()
        with open_stream(settings, end, section="source", server_id=4712, heartbeat_s=0.5, semi_sync=True, stop=stop):
            for writer in writers:
                writer.join(20)
        assert not hidden()
        assert capturing.rows_of(source.connection, "SELECT id FROM shop.t") == [(1,)]
    finally:
        stop.set()
        _run(source, *_AS_IT_WAS)


@pytest.mark.row("Q5")
@pytest.mark.parametrize("answer_s", [0.02, 0.2])
@pytest.mark.mariadb("a MySQL names what is under way; this is about MariaDB's position")
def test_what_was_sent_is_shown_once_nothing_is_hidden_while_many_write_and_files_change(
    source: Any, answer_s: float
) -> None:
    _run(source, "CREATE TABLE shop.t (id INT AUTO_INCREMENT PRIMARY KEY, b VARCHAR(2000))")
    begin = position_now(source.connection)
    sent = [begin.gtids]
    ended, stop = threading.Event(), threading.Event()
    luck = Random(7)

    def number(gtids: GtidSet) -> int:
        return int(str(gtids).rsplit("-", 1)[1])

    def answer() -> None:
        settings = mariadb.settings_of(source.server)
        with open_stream(
            settings, begin, section="source", server_id=4712, heartbeat_s=0.5, semi_sync=True, stop=stop
        ) as stream:
            for each in stream:
                if isinstance(each, Group):
                    sent[0] = each.end.gtids
                    time.sleep(luck.random() * answer_s)
                    stream.acknowledge(each)

    def write(statement: str, pause_s: float = 0) -> None:
        with source.server.connect(autocommit=True) as other:
            while not ended.wait(luck.random() * pause_s):
                capturing.run(other, statement)

    threads = [threading.Thread(target=answer)]
    insert = "INSERT INTO shop.t (b) VALUES (REPEAT('x', RAND() * 2000))"
    threads += [threading.Thread(target=write, args=(insert,)) for _ in range(6)]
    threads.append(threading.Thread(target=write, args=("FLUSH BINARY LOGS", 0.05)))
    _run(source, *_AFTER_SYNC)
    try:
        for each in threads:
            each.start()
        late, until = 0, time.monotonic() + 5
        while time.monotonic() < until:
            wanted = number(sent[0]) - number(begin.gtids)
            ((shown,),) = capturing.rows_of(source.connection, "SELECT COUNT(*) FROM shop.t")
            late += shown < wanted
            hidden = hides(source.connection)
            while hidden():
                pass
            ((shown,),) = capturing.rows_of(source.connection, "SELECT COUNT(*) FROM shop.t")
            assert shown >= wanted
        assert late, "nothing was hidden: this shows nothing"
    finally:
        ended.set()
        for each in threads[1:]:
            each.join()
        stop.set()
        threads[0].join()
        _run(source, *_AS_IT_WAS)


def test_a_source_that_goes_away_is_named(source: Any) -> None:
    settings = mariadb.settings_of(source.server)
    with open_stream(settings, source.start, section="source", server_id=4713, heartbeat_s=0.5) as stream:
        found = iter(stream)
        next(found)
        for number, command in capturing.rows_of(
            source.connection, "SELECT ID, COMMAND FROM information_schema.PROCESSLIST"
        ):
            if "Binlog Dump" in str(command):
                capturing.end(source.connection, int(number))
        with pytest.raises(SourceFailed):
            for _ in found:
                pass
