"""The Spark source ``pumphouse``: changes and rows of every type of column, on a real session."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from pumphouse.codec.datum import Kind, kind_of
from pumphouse.model.table import ColumnInfo, MysqlType, TableInfo
from pumphouse.model.tso import to_datetime
from pumphouse.settings import SparkSettings
from spark_tasks import history
from spark_tasks.session import build_session
from tests.support import everytype
from tests.support.madearchive import MadeSource, column, index

pytestmark = [pytest.mark.row("A6", "O4"), pytest.mark.timeout(900)]
_UNSIGNED = 32
EVERY = [
    column(1, "id", MysqlType.LONGLONG, flag=3 | _UNSIGNED),
    column(2, "ti", MysqlType.TINY),
    column(3, "mi", MysqlType.INT24, flag=_UNSIGNED),
    column(4, "bi", MysqlType.LONGLONG),
    column(5, "biu", MysqlType.LONGLONG, flag=_UNSIGNED),
    column(6, "f", MysqlType.FLOAT),
    column(7, "d", MysqlType.DOUBLE),
    column(8, "dc", MysqlType.NEWDECIMAL, flen=30, decimal=10),
    column(9, "dc0", MysqlType.NEWDECIMAL, flen=65),
    column(10, "da", MysqlType.DATE),
    column(11, "dt", MysqlType.DATETIME),
    column(12, "dt6", MysqlType.DATETIME, decimal=6),
    column(13, "ts", MysqlType.TIMESTAMP, decimal=3),
    column(14, "tm", MysqlType.TIME, decimal=2),
    column(15, "y", MysqlType.YEAR, flag=_UNSIGNED),
    column(16, "ch", MysqlType.STRING, flen=12),
    column(17, "vc", MysqlType.VARCHAR, flen=60),
    column(18, "bin", MysqlType.STRING, flen=9, binary=True),
    column(19, "vb", MysqlType.VARCHAR, flen=40, binary=True),
    column(20, "tx", MysqlType.BLOB, flen=65535),
    column(21, "bl", MysqlType.BLOB, flen=65535, binary=True),
    column(22, "en", MysqlType.ENUM, elems=["red", "green", "blue"]),
    column(23, "st", MysqlType.SET, elems=["a", "b", "c", "d"]),
    column(24, "bt", MysqlType.BIT, flen=17, flag=_UNSIGNED),
    column(25, "js", MysqlType.JSON),
]


@pytest.fixture(scope="module")
def session(quick_jvms: str) -> Iterator[SparkSession]:
    del quick_jvms
    made = build_session("test", SparkSettings())
    history.register(made)
    yield made
    made.stop()


class Reader:
    """Asks one archive."""

    def __init__(self, session: SparkSession, source: MadeSource) -> None:
        self._session, self._root = session, f"file://{source.root}"

    def __call__(self, table: str, **options: Any) -> DataFrame:
        read = self._session.read.format("pumphouse").option("archive", self._root).option("table", table)
        for name, value in options.items():
            read = read.option(name.rstrip("_"), str(value))
        return read.load()


@pytest.fixture
def made(tmp_path: Path) -> MadeSource:
    return MadeSource(tmp_path)


@pytest.fixture
def read(session: SparkSession, made: MadeSource) -> Reader:
    return Reader(session, made)


def collected(frame: DataFrame) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return found


def as_spark(column_: ColumnInfo, value: Any) -> Any:
    """A loader value as Spark is to have it, told by another way than the product's."""
    kind, type_ = kind_of(column_.type), column_.type
    if value is None:
        return None
    if kind is Kind.UINT and type_.tp == MysqlType.LONGLONG:
        return Decimal(value)
    if kind is Kind.DECIMAL and type_.flen <= 38:
        return Decimal(value)
    if kind is Kind.DATE:
        return date.fromisoformat(value)
    if kind is Kind.DATETIME:
        found = datetime.fromisoformat(value)
        return found.replace(tzinfo=UTC) if type_.tp == MysqlType.TIMESTAMP else found
    if kind is Kind.BYTES:
        return value if type_.charset == "binary" else value.decode()
    if kind is Kind.JSON:
        return json.dumps(json.loads(value), ensure_ascii=False, sort_keys=True)
    if kind is Kind.ENUM:
        return type_.elems[value - 1]
    if kind is Kind.SET:
        return ",".join(name for bit, name in enumerate(type_.elems) if value & 1 << bit)
    return value


def spark_row(info: TableInfo, values: dict[int, Any]) -> dict[str, Any]:
    return {c.name: as_spark(c, values[c.id]) for c in info.public_columns}


def differing(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """What is not equal, as a failure is to show it; of JSON, as TiDB orders its keys, the value counts."""
    assert one.keys() == other.keys()
    one = {
        **one,
        "js": None if one["js"] is None else json.dumps(json.loads(one["js"]), ensure_ascii=False, sort_keys=True),
    }
    return {name: (one[name], other[name]) for name in one if one[name] != other[name]}


def every_type(source: MadeSource, count: int = 24) -> list[dict[str, Any]]:
    """A table of every type with so many rows; what Spark is to have."""
    source.create_table("every", EVERY)
    info = source.tables["every"].info
    source.genesis()
    expected = []
    with source.txn() as t:
        for number in range(1, count + 1):
            values = everytype.row(info, number)
            t.insert("every", **{c.name: values[c.id] for c in info.public_columns})
            expected.append(spark_row(info, values))
    source.cut()
    return expected


def test_every_type_is_typed_and_exact_before_after_and_at_a_moment(made: MadeSource, read: Reader) -> None:
    expected = every_type(made)
    with made.txn() as t:
        t.delete("every", 3)
    made.cut()
    types = {field.name: field.dataType.simpleString() for field in read("d.every", at="latest").schema}
    assert {name: types[name] for name in ("biu", "dc", "dc0", "da", "dt6", "ts", "tm", "bin", "vc", "en", "bt")} == {
        "biu": "decimal(20,0)", "dc": "decimal(30,10)", "dc0": "string", "da": "date", "dt6": "timestamp_ntz",
        "ts": "timestamp", "tm": "string", "bin": "binary", "vc": "string", "en": "string", "bt": "bigint",
    }  # fmt: skip
    found = collected(read("d.every").orderBy("_commit_ts", "_position"))
    assert [differing(each["_after"], row) for each, row in zip(found[:-1], expected, strict=True)] == [{}] * 24
    assert (found[-1]["_op"], found[-1]["_after"], differing(found[-1]["_before"], expected[2])) == ("delete", None, {})
    assert all(each["_exact"] is None for each in found)
    assert [each["id"] for each in found] == [Decimal(at) for at in (*range(1, 25), 3)]
    assert found[0]["_commit_time"] == to_datetime(found[0]["_commit_ts"])
    rows = collected(read("d.every", at="latest").orderBy("id"))
    there = [{**each, "_exact": None} for each in expected if each["id"] != 3]
    assert [differing(each, row) for each, row in zip(rows, there, strict=True)] == [{}] * 23


def test_what_a_type_cannot_hold_is_null_and_its_text_stands_beside_it(made: MadeSource, read: Reader) -> None:
    made.create_table("every", EVERY)
    made.genesis()
    info = made.tables["every"].info
    values = {c.name: everytype.row(info, 1)[c.id] for c in info.public_columns}
    odd = {"da": "0000-00-00", "dt": "2024-02-31 10:00:00", "ts": "0000-00-00 00:00:00.000", "vc": b"\xff\xfe"}
    with made.txn() as t:
        t.insert("every", **{**values, **odd, "tm": "-838:59:59.99", "en": 0})
    made.cut()
    (row,) = collected(read("d.every", at="latest"))
    assert {name: row[name] for name in odd} == dict.fromkeys(odd)
    assert dict(row["_exact"]) == {
        "da": "0000-00-00", "dt": "2024-02-31 10:00:00", "ts": "0000-00-00 00:00:00.000", "vc": "0xfffe",
    }  # fmt: skip
    assert (row["tm"], row["en"]) == ("-838:59:59.99", "")
    (change,) = collected(read("d.every"))
    assert dict(change["_exact"]) == {f"after.{name}": text for name, text in dict(row["_exact"]).items()}


def test_sql_folds_changes_to_the_rows_of_a_moment(made: MadeSource, read: Reader, session: SparkSession) -> None:
    made.create_table("t", [column(1, "id", flag=3), column(2, "n")])
    made.genesis()
    rng = random.Random(5)
    for _ in range(30):
        with made.txn() as t:
            ids = list(made.tables["t"].rows)
            for id_ in rng.sample(range(20), 4):
                if id_ not in ids:
                    t.insert("t", id=id_, n=rng.randrange(100))
                elif rng.random() < 0.5:
                    t.update("t", id_, n=rng.randrange(100))
                else:
                    t.delete("t", id_)
        if rng.random() < 0.3:
            made.cut(pumps=2)
    end = made.cut()
    read("d.t").createOrReplaceTempView("changes")
    folded = session.sql(
        "SELECT after.id, after.n FROM (SELECT id, max_by(_after, struct(_commit_ts, _start_ts, _position)) AS after "
        "FROM changes GROUP BY id) WHERE after IS NOT NULL"
    )
    assert Counter((row.id, row.n) for row in folded.collect()) == made.snapshot()["t"]
    assert Counter((row.id, row.n) for row in read("d.t", at=end).collect()) == made.snapshot()["t"]


def test_options_choose_windows_and_keys_and_a_filter_is_of_its_own_query_alone(
    made: MadeSource, read: Reader, session: SparkSession
) -> None:
    made.create_table(
        "t",
        [column(1, "a", flag=3), column(2, "b", MysqlType.VARCHAR, flag=1), column(3, "n")],
        pk_is_handle=False,
        index_info=[index(1, "PRIMARY", ("a", 0), ("b", 1), primary=True, unique=True)],
    )
    made.genesis()
    moments = []
    for number in range(6):
        with made.txn() as t:
            for letter in (b"x", b'y,"z"\n\xe2\x80\xa8w'):
                t.insert("t", a=number, b=letter, n=number)
        moments.append(made.cut())
    # What other versions of Spark hand down is not kept, either.
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    whole, rows = read("d.t"), read("d.t", at="latest")
    for frame in (whole, rows):
        assert frame.where("a = 4").count() == 2
        assert frame.count() == 12
        assert frame.where("a = 4").unionByName(frame.where("a = 5")).count() == 4
    assert whole.where(f"_commit_ts > {moments[3]}").count() == 4
    whole.createOrReplaceTempView("changes")
    (counted,) = session.sql(
        f"SELECT (SELECT count(*) FROM changes WHERE a = 1) AS one, (SELECT count(*) FROM changes) AS all, "
        f"(SELECT count(*) FROM changes WHERE _commit_ts > {moments[4]}) AS late"
    ).collect()
    assert (counted["one"], counted["all"], counted["late"]) == (2, 12, 2)
    one = collected(read("d.t", key='4,"y,""z""\n\u2028w"'))
    assert [(each["a"], each["b"], each["_after"]["n"]) for each in one] == [(4, 'y,"z"\n\u2028w', 4)]
    assert [row.n for row in read("d.t", key="3,x", at="latest").collect()] == [3]
    # Windows outside the range are not opened: here they are gone.
    for window in made.archive.windows()[:3]:
        for each in window.segments:
            Path(made.root, str(made.cluster_id), each.key).unlink()
    assert read("d.t", from_=moments[2]).count() == 6
    with pytest.raises(Exception, match="is not there"):
        read("d.t").count()


def test_a_frame_is_of_the_archive_as_it_was_and_has_the_columns_of_every_form(made: MadeSource, read: Reader) -> None:
    made.create_table("t", [column(1, "id", flag=3), column(2, "n")])
    made.genesis()
    with made.txn() as t:
        t.insert("t", id=1, n=1)
    made.add_column("t", column(3, "name", MysqlType.VARCHAR, origin_default="x"))
    with made.txn() as t:
        t.update("t", 1, name=b"named")
    made.drop_column("t", "n")
    made.rename_table("t", "renamed")
    with made.txn() as t:
        t.insert("renamed", id=2, name=b"later")
    made.cut()
    frame = read("d.t")
    with made.txn() as t:
        t.insert("renamed", id=3, name=b"beyond")
    made.cut()
    found = collected(frame.orderBy("_commit_ts"))
    assert [(each["_table"], each["_op"], each["_after"]) for each in found] == [
        ("d.t", "insert", {"id": 1, "name": None, "n": 1}),
        ("d.t", "update", {"id": 1, "name": "named", "n": 1}),
        ("d.renamed", "insert", {"id": 2, "name": "later", "n": None}),
    ]
    assert {row._table for row in frame.where("id = 2").select("_table").collect()} == {"d.renamed"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "there is no option tabel"),
        ({"at": "latest", "from": "2001-01-01"}, "at is one moment"),
        ({"from": "2001-01-01"}, "the archive covers"),
        ({"columns": "nothing"}, "no column nothing"),
        ({"key": "x"}, r"the key of d\.t"),
    ],
)
def test_what_is_asked_wrongly_is_refused(made: MadeSource, read: Reader, options: dict[str, str], said: str) -> None:
    made.create_table("t", [column(1, "id", flag=3)])
    made.genesis()
    with made.txn() as t:
        t.insert("t", id=1)
    made.cut()
    with pytest.raises(Exception, match=said):
        read("d.t", **(options or {"tabel": "x"}))


def test_no_secret_but_the_archives_travels(made: MadeSource, tmp_path: Path) -> None:
    made.create_table("t", [column(1, "id", flag=3)])
    made.genesis()
    with made.txn() as t:
        t.insert("t", id=1)
    made.cut()
    config = tmp_path / "p.toml"
    config.write_text(f'[archive]\nroot = "file://{made.root}"\n[target]\npassword = "of the target"\n')
    source = history.HistorySource({"table": "d.t", "config": str(config)})
    reader = source.reader(source.schema())
    travelling = cloudpickle.dumps((reader, reader.partitions()))
    assert b"of the target" not in travelling


def test_the_questions_of_the_documentation_are_answered(made: MadeSource, read: Reader, session: SparkSession) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "history.md").read_text()
    deleted, versions, stays, totals = re.findall(r"^```sql\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    made.create_table(
        "orders",
        [
            column(1, "id", flag=3),
            column(2, "state", MysqlType.ENUM, elems=["new", "paid", "sent"]),
            column(3, "total", MysqlType.NEWDECIMAL, flen=10, decimal=2),
        ],
    )
    made.genesis()
    with made.txn() as t:
        for id_ in range(150):
            t.insert("orders", id=id_, state=1, total="10.00")
    noon = made.tick()
    made.tick(1990)
    with made.txn() as t:
        t.update("orders", 0, state=2, total="12.50")
        t.update("orders", 1, total="11.00")
    with (opened := made.txn()) as t:
        for id_ in range(10, 130):
            t.delete("orders", id_)
    made.cut(pumps=2)
    read("d.orders").createOrReplaceTempView("changes")
    read("d.orders", at=noon).createOrReplaceTempView("at_noon")
    read("d.orders", **{"from": noon}).createOrReplaceTempView("since_noon")
    assert [(row._commit_ts, row.rows) for row in session.sql(deleted).collect()] == [(opened.commit_ts, 120)]
    assert [(row.until is None, row.state, str(row.total)) for row in session.sql(versions).collect()] == [
        (False, "new", "10.00"),
        (True, "paid", "12.50"),
    ]
    assert [(row.state, row.times, round(row.seconds)) for row in session.sql(stays).collect()] == [("new", 121, 2)]
    assert {row.what: row.total for row in session.sql(totals).collect()} == {
        "at noon": Decimal(1500), "update": Decimal("3.50"), "delete": Decimal(-1200),
    }  # fmt: skip
