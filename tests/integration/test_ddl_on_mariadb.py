"""Rendered DDL on a real MariaDB: what stands there afterwards is what the job's table info says."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from pumphouse.errors import (
    DdlRefused,
    DdlUncertain,
    FenceLost,
    HistoryUnavailable,
    LoadError,
    SchemaError,
    UnknownDdl,
    naming,
)  # fmt: skip
from pumphouse.loader import fence
from pumphouse.loader.ddl import DdlExecutor, forget_ddl
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import ColumnFlag, Job, TableInfo
from pumphouse.model.tso import Tso
from pumphouse.schema.actions import Action
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.history import MysqlTableSource
from pumphouse.schema.ident import qualified
from pumphouse.schema.render import render
from pumphouse.schema.table_sql import create_object, plain_indexes
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import DdlEvent, TimedJob
from pumphouse.settings import ServerSettings, TargetSettings
from tests.support import mariadb
from tests.support.failover import ReplicatingPair, replicating
from tests.support.kind import is_mysql
from tests.support.loading import drop_all
from tests.support.schemajobs import (
    Source,
    add,
    add_key,
    col,
    find,
    int_col,
    key,
    name,
    remove,
    remove_key,
    tidy,
)  # fmt: skip

GOLDEN = Path(__file__).parents[1] / "golden"
ID = int_col("id", flag=4099)


class Target:
    """A clean server, owned, with an executor."""

    def __init__(self, settings: TargetSettings, connection: TargetConnection, owner: fence.Ownership) -> None:
        self.settings, self.connection, self.owner = settings, connection, owner
        self.ddl = DdlExecutor(connection, owner, "main")

    def run(self, source: Source, *, after: int = 0) -> list[str]:
        return list(
            itertools.chain.from_iterable(
                self.ddl.execute(event).statements for event in source.timeline().ddls(after, source.jobs[-1].commit_ts)
            )
        )

    def sql(self, text: str) -> Any:
        return self.connection.query(text)

    def show(self, table: str) -> str:
        text = str(self.sql(f"SHOW CREATE TABLE {qualified(*table.split('.'))}")[0][1])
        return re.sub(r" AUTO_INCREMENT=\d+", "", text)

    def fresh(self, info: TableInfo) -> str:
        """SHOW CREATE of the table as CREATE TABLE makes it."""
        self.connection.execute("CREATE DATABASE IF NOT EXISTS fresh")
        self.connection.execute(create_object("fresh", info, self.connection.dialect))
        text = self.show(f"fresh.{info.name}")
        self.connection.execute("DROP DATABASE fresh")
        return text


@pytest.fixture
def target(server: TargetSettings) -> Iterator[Target]:
    with TargetConnection.open(server) as connection:
        drop_all(connection)
    with mariadb.owned(server) as (connection, owner):
        yield Target(server, connection, owner)


@pytest.fixture
def source() -> Source:
    made = Source()
    made.create_db("d")
    return made


# -- what information_schema must say, worked out from the table info without the renderer

_KINDS = {
    1: "tinyint", 2: "smallint", 3: "int", 4: "float", 5: "double", 7: "timestamp", 8: "bigint", 9: "mediumint",
    10: "date", 11: "time", 12: "datetime", 13: "year", 15: "varchar", 16: "bit", 245: "longtext", 246: "decimal",
    247: "enum", 248: "set", 249: "tinytext", 250: "mediumtext", 251: "longtext", 252: "text", 254: "char",
}  # fmt: skip
_BINARY = {"varchar": "varbinary", "char": "binary", "text": "blob", "tinytext": "tinyblob", "mediumtext": "mediumblob",
           "longtext": "longblob"}  # fmt: skip


def _check_table(target: Target, db: str, info: TableInfo) -> None:
    rows = target.sql(
        "SELECT column_name, data_type, is_nullable, character_maximum_length, numeric_precision, numeric_scale,"
        " datetime_precision, column_type, extra, generation_expression FROM information_schema.columns"
        f" WHERE table_schema = '{db}' AND table_name = '{info.name}' ORDER BY ordinal_position"
    )
    assert [r[0] for r in rows] == [c.name for c in info.columns if c.public and not c.hidden]
    for row, column in zip(rows, info.public_columns, strict=True):
        field = column.type
        kind = "json" if field.tp == 245 and is_mysql() else _KINDS[field.tp]
        if field.charset == "binary" and field.tp != 245:
            kind = _BINARY.get(kind, kind)
        assert row[1] == kind, (info.name, column.name)
        if not column.generated:
            assert (row[2] == "NO") == bool(field.flag & 1), (info.name, column.name)
        if kind in ("varchar", "char", "varbinary", "binary"):
            assert row[3] == field.flen
        if kind == "decimal":
            assert (row[4], row[5]) == (field.flen, field.decimal)
        if kind in ("timestamp", "time", "datetime"):
            assert row[6] == max(field.decimal, 0)
        if kind in ("tinyint", "smallint", "mediumint", "int", "bigint"):
            assert ("unsigned" in row[7]) == field.unsigned
        assert bool(row[9]) == column.generated
        assert ("auto_increment" in row[8]) == bool(field.flag & ColumnFlag.AUTO_INCREMENT)
    keys = target.sql(
        "SELECT index_name, GROUP_CONCAT(column_name ORDER BY seq_in_index), MIN(non_unique) FROM"
        f" information_schema.statistics WHERE table_schema = '{db}' AND table_name = '{info.name}' GROUP BY 1 ORDER BY 1"
    )
    wanted = [
        (i.name, ",".join(c.name for c in i.columns), int(not i.unique))
        for i in info.indexes
        if not i.primary and i.public
    ]
    if info.primary_key():
        wanted.append(("PRIMARY", ",".join(c.name for c in info.primary_key()), 0))
    assert sorted(map(tuple, keys)) == sorted(wanted)


def _golden(stem: str) -> Timeline:
    steps = json.loads((GOLDEN / f"{stem}.json").read_text())["steps"]
    jobs = [
        TimedJob(Tso(s["commit_ts"]), Job.from_json(s["job_json"]))
        for s in steps if s.get("job_json") and s["ddl_schema_state"] != 1
    ]  # fmt: skip
    return Timeline.empty().fold(jobs)


@pytest.mark.row("S2", "L6")
@pytest.mark.parametrize("stem", sorted(p.stem for p in GOLDEN.glob("scenario_*.json")))
def test_after_every_captured_ddl_the_target_has_what_the_table_infos_say(target: Target, stem: str) -> None:
    timeline = _golden(stem)
    for event in timeline.events:
        target.ddl.execute(event)
        tables = {v.name: v for v in timeline.tables_at(event.commit_ts)}
        there = target.sql(
            "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema LIKE 'wf%'"
        )
        # A MySQL has no sequences.
        assert {tuple(r) for r in there} == {n for n, v in tables.items() if not (v.table.is_sequence and is_mysql())}
        for version in tables.values():
            if not version.table.is_view and not version.table.is_sequence:
                _check_table(target, version.db, version.table)


# -- every common type, default and key

EVERYTHING = [
    col("id", 8, flag=4099 | 512, flen=20),
    col("ti", 1, flag=32, flen=3, default="18"),
    col("b1", 1, flag=1, flen=1, default="1"),
    col("si", 2, flen=6, flag=64 | 32),
    col("mi", 9, flen=9),
    int_col("i", flag=1, default="-7"),
    col("f", 4, flen=12, default="1.5"),
    col("fd", 4, flen=10, decimal=3),
    col("db", 5, flen=22, flag=32),
    col("de", 246, flen=20, decimal=6, default="12.345678"),
    col("bi", 16, flen=10, flag=32, default_bit="AqA="),
    col("da", 10, flen=10, flag=128, default="2020-02-29"),
    col("dz", 10, flen=10, flag=128 | 1, default="0000-00-00"),
    col("dt", 12, flen=26, decimal=6, flag=128, default="CURRENT_TIMESTAMP"),
    col("ts", 7, flen=23, decimal=3, flag=128 | 1 | 8192, default="CURRENT_TIMESTAMP"),
    col("tn", 7, flen=19, flag=128, default="2020-01-01 00:00:00"),
    col("tm", 11, flen=13, decimal=2, flag=128, default="-12:34:56.78"),
    col("yr", 13, flen=4, flag=96, default="2024"),
    col("vc", 15, flen=30, text=True, flag=1, default="it's \\ `x` %s é\n"),
    col("vg", 15, flen=30, text=True, collate="utf8mb4_general_ci"),
    col("v9", 15, flen=30, text=True, collate="utf8mb4_0900_ai_ci"),
    col("vl", 15, flen=30, text=True, charset="latin1", collate="latin1_bin"),
    col("v3", 15, flen=30, text=True, charset="utf8", collate="utf8_general_ci"),
    col("vk", 15, flen=30, text=True, charset="gbk", collate="gbk_chinese_ci"),
    col("va", 15, flen=30, text=True, charset="ascii", collate="ascii_bin"),
    col("ch", 254, flen=5, text=True, default=""),
    col("vb", 15, flen=8, flag=128),
    col("bn", 254, flen=4, flag=128),
    col("bl", 252, flen=65535, flag=128),
    col("tb", 249, flen=255, flag=128),
    col("mb", 250, flen=16777215, flag=128),
    col("lb", 251, flen=4294967295, flag=128),
    col("tx", 252, flen=65535, text=True),
    col("lt", 251, flen=4294967295, text=True),
    col("en", 247, text=True, elems=["a", "b'c", "ü,"], default="b'c"),
    col("st", 248, text=True, elems=["x", "y", "z"], default="x,z"),
    col("js", 245, flag=128),
    col("gv", 3, flen=11, generated_expr_string="`i` + 1"),
    col("gs", 15, flen=20, text=True, generated_expr_string="concat(`vc`, _utf8mb4'x')", generated_stored=True),
    col("ex", 15, flen=36, text=True, default="uuid()", default_is_expr=True),
    int_col("co", comment="what it's for `x`"),
]
KEYS = [
    key("u1", "i", "de", unique=True),
    key("k2", ("tx", 10), "vc", comment="a 'comment'"),
    key("k3", ("bl", 20)),
    key("hidden from the planner", "mi", is_invisible=True),
    key("gv", "gv"),
]


@pytest.mark.row("S2", "L1")
def test_every_type_default_and_key_is_created_as_it_is(target: Target, source: Source) -> None:
    source.create("d.All `types`", EVERYTHING, KEYS, comment="all 'of' them", auto_inc_id=500)
    target.run(source)
    _check_table(target, "d", source.info("d.All `types`"))
    text = target.show("d.All `types`")
    by_mysql = (
        "`b1` tinyint(1) NOT NULL DEFAULT '1'", "`si` smallint(6) unsigned zerofill", "DEFAULT b'1010100000'",
        "`dz` date NOT NULL DEFAULT '0000-00-00'", "`dt` datetime(6) DEFAULT CURRENT_TIMESTAMP(6)",
        "`ts` timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3)",
        "utf8mb4_0900_ai_ci", "`vk` varchar(30) CHARACTER SET gbk COLLATE gbk_chinese_ci",
        "enum('a','b''c','ü,')", "KEY `k2` (`tx`(10),`vc`) COMMENT 'a ''comment'''", "INVISIBLE",
        "DEFAULT (uuid())", "COMMENT='all ''of'' them'",
    )  # fmt: skip
    for part in by_mysql if is_mysql() else (
        "`b1` tinyint(1) NOT NULL DEFAULT 1", "`si` smallint(6) unsigned zerofill", "DEFAULT b'1010100000'",
        "`dz` date NOT NULL DEFAULT '0000-00-00'", "`dt` datetime(6) DEFAULT current_timestamp(6)",
        "`ts` timestamp(3) NOT NULL DEFAULT current_timestamp(3) ON UPDATE current_timestamp(3)",
        "utf8mb4_uca1400_nopad_ai_ci", "`vk` varchar(30) CHARACTER SET gbk COLLATE gbk_chinese_ci",
        "enum('a','b''c','ü,')", "KEY `k2` (`tx`(10),`vc`) COMMENT 'a ''comment'''", "IGNORED",
        "DEFAULT uuid()", "COMMENT='all ''of'' them'",
    ):  # fmt: skip
        assert part in text, part
    default = target.sql(
        "SELECT column_default FROM information_schema.columns WHERE table_schema = 'd' AND column_name = 'vc'"
    )
    target.connection.execute("INSERT INTO `d`.`All ``types```(id, dz) VALUES (0, default)")
    assert target.sql("SELECT vc, id, fd FROM `d`.`All ``types```")[0] == ("it's \\ `x` %s é\n", 0, None), default


@pytest.mark.row("S2")
def test_partitions_of_every_kind(target: Target, source: Source) -> None:
    a, b, d = int_col("a", flag=1), col("b", 15, flen=10, text=True, flag=1), col("d", 12, flen=19, flag=129)
    kinds = {
        "range": source.partitions(("p0", "10"), ("p1", "MAXVALUE"), expr="`a`"),
        "range_columns": source.partitions(("p0", "'2020-01-01'"), ("p1", "MAXVALUE"), columns=("d",)),
        "range_expr": source.partitions(("p0", "2020"), ("p1", "2030"), expr="YEAR(`d`)"),
        "list": source.partitions(("p0", [1, 2]), ("p1", [3, "NULL"]), type_=3, expr="`a`"),
        "list_columns": source.partitions(("p0", ["'x'"]), ("p1", ["'y'", "'z'"]), type_=3, columns=("b",)),
        "hash": source.partitions(("p0", None), ("p1", None), type_=2, expr="`a`"),
        "key": source.partitions(("p0", None), ("p1", None), type_=4, columns=("a",)),
    }
    for kind, partition in kinds.items():
        source.create(f"d.{kind}", [a, b, d], partition=partition)
    target.run(source)
    found = target.sql(
        "SELECT table_name, partition_name FROM information_schema.partitions WHERE table_schema = 'd' ORDER BY 1, 2"
    )
    assert list(found) == [(kind, p) for kind in sorted(kinds) for p in ("p0", "p1")]


@pytest.mark.row("S2")
def test_what_the_target_cannot_say_is_left_out_and_named(target: Target, source: Source) -> None:
    hidden = int_col("_V$_e_0", hidden=True, generated_expr_string="`a` + 1")
    foreign = [{"fk_name": name("fk"), "cols": [name("a")]}]
    source.create("d.t", [ID, int_col("a"), hidden], [key("e", "_V$_e_0")], fk_info=foreign, ttl_info={"x": 1})
    source.create("d.tmp", [ID], temp_table_type=1)
    source.drop("d.tmp")
    timeline = source.timeline()
    reports = [target.ddl.execute(event) for event in timeline.events]
    assert reports[1].notes == (
        "index e of t is left out: it is over an expression or a column that is left out",
        "foreign key fk of t is left out: the source does not enforce it",
    )
    assert [r.statements for r in reports[2:]] == [(), ()]
    assert "temporary" in reports[2].notes[0]
    assert target.show("d.t").count("KEY") == 1


@pytest.mark.row("S2")
def test_a_key_that_a_mariadb_alone_can_have_is_left_out_elsewhere(target: Target, source: Source) -> None:
    """A captured one's: JSON is a text there, and a unique key has whole texts."""
    source.create(
        "d.t",
        [
            ID,
            int_col("a"),
            col("doc", 245),
            col("tx", 252, text=True),
            col("tt", 249, text=True),
            col("c", 15, flen=1000, text=True),
            col("b", 8),
        ],
        [
            key("k", "a", ("tt", 63)),
            key("u", ("doc", 9)),
            key("w", "tx", unique=True),
            key("x", ("tt", 64)),
            key("y", "a", "c", unique=True),
            key("z", ("c", 768), unique=True),
            key("n", "b", ("c", 767), unique=True),
            key("m", "b", ("c", 766), unique=True),
        ],
    )
    notes = [note for event in source.timeline().events for note in target.ddl.execute(event).notes]
    left_out = [f"index {name} of t is left out: only a MariaDB has such an index" for name in "uw"]
    left_out.append("index x of t is left out: a key over TINYTEXT has 255 bytes at most")
    left_out += [f"index {name} of t is left out: only a MariaDB has such an index" for name in "yn"]
    assert notes == (left_out if is_mysql() else [])
    _evolve(target, source, "d.t", lambda t: add_key(t, key("v", ("doc", 9), "a")), Action.ADD_INDEX)
    _evolve(target, source, "d.t", lambda t: remove_key(t, "u"), Action.DROP_INDEX)
    assert target.show("d.t").count("KEY `") == (3 if is_mysql() else 8)


@pytest.mark.row("S2")
def test_a_key_over_a_type_that_is_not_known_is_measured_too(source: Source) -> None:
    source.create("d.t", [ID, col("v", 225)], [key("k", "v")])  # a TiDB's vector
    assert [[each.name for each in plain_indexes(source.info("d.t"), dialect)] for dialect in Dialect] == [["k"]] * 3


# -- ALTER by comparison: the result must be what CREATE TABLE of the new info makes


def _evolve(
    target: Target, source: Source, table: str, change: Callable[[dict[str, Any]], Any], action: int, **more: Any
) -> list[str]:
    after = source.jobs[-1].commit_ts
    source.alter(table, action, change, **more)
    ran = target.run(source, after=after)
    assert target.show(table) == target.fresh(source.info(table)), ran
    return ran


@pytest.mark.row("S2", "L6")
def test_a_column_that_partitions_a_table_gets_another_name(target: Target, source: Source) -> None:
    """On a captured MariaDB: a MySQL renames it only where the statement says how the table is partitioned then."""

    def rename(raw: dict[str, Any]) -> None:
        find(raw, "a")["name"] = name("n")
        raw["partition"].update(expr=raw["partition"]["expr"].replace("`a`", "`n`"))
        raw["partition"].update(columns=[name("n") for _ in raw["partition"]["columns"] or ()])

    kinds = {
        "r": source.partitions(("p0", "10"), ("p1", "MAXVALUE"), expr="`a` + 1"),
        "c": source.partitions(("p0", "10"), ("p1", "MAXVALUE"), columns=("a",)),
        "h": source.partitions(("p0", None), ("p1", None), type_=2, expr="`a`"),
    }
    for table, partition in kinds.items():
        source.create(f"d.{table}", [int_col("a"), int_col("b")], partition=partition)
        target.run(source, after=0 if table == "r" else source.jobs[-2].commit_ts)
        target.sql(f"INSERT INTO d.{table} VALUES (1, 20), (30, 4)")
        _evolve(target, source, f"d.{table}", rename, Action.MODIFY_COLUMN)
        assert list(target.sql(f"SELECT n, b FROM d.{table} ORDER BY n")) == [(1, 20), (30, 4)]


@pytest.mark.row("S2", "L6")
def test_each_alter_leaves_what_create_table_of_the_new_info_would_make(target: Target, source: Source) -> None:
    source.create(
        "d.t",
        [ID, int_col("a"), col("b", 15, flen=10, text=True), int_col("c")],
        [key("ka", "a"), key("kb", "b", unique=True)],
    )
    target.run(source)
    go = lambda action, change, **more: _evolve(target, source, "d.t", change, action, **more)  # noqa: E731
    go(Action.ADD_COLUMN, lambda t: add(t, int_col("x", default="1", origin_default="1")))
    go(Action.ADD_COLUMN, lambda t: add(t, int_col("first"), 0))
    go(Action.ADD_COLUMN, lambda t: add(t, int_col("mid", flag=1), 3))
    go(Action.MODIFY_COLUMN, lambda t: find(t, "a")["type"].update(Tp=8, Flen=20))
    go(Action.MODIFY_COLUMN, lambda t: t["cols"].insert(0, t["cols"].pop()))
    go(Action.MODIFY_COLUMN, lambda t: t["cols"].append(t["cols"].pop(1)))

    def rename_column(raw: dict[str, Any]) -> None:
        find(raw, "b")["name"] = name("B2")
        raw["index_info"][1]["idx_cols"][0]["name"] = name("B2")

    (sql,) = go(Action.MODIFY_COLUMN, rename_column)
    assert "INDEX" not in sql
    go(Action.SET_DEFAULT_VALUE, lambda t: find(t, "x").update(default="7"))
    go(Action.ADD_INDEX, lambda t: add_key(t, key("kx", "x", "a")))
    (sql,) = go(Action.RENAME_INDEX, lambda t: t["index_info"][-1].update(idx_name=name("renamed")))
    assert "RENAME INDEX `kx` TO `renamed`" in sql
    go(Action.ALTER_INDEX_VISIBILITY, lambda t: t["index_info"][-1].update(is_invisible=True))
    go(Action.DROP_INDEX, lambda t: remove_key(t, "ka"))
    go(Action.DROP_COLUMN, lambda t: remove(t, "c"))
    go(Action.MODIFY_TABLE_COMMENT, lambda t: t.update(comment="new 'one'"))
    go(
        Action.ADD_CHECK,
        lambda t: t.update(
            constraint_info=[{"constraint_name": name("pos"), "enforced": True, "expr_string": "`x` > 0", "state": 5}]
        ),
    )
    go(Action.DROP_CHECK, lambda t: t.update(constraint_info=None))

    def charset(raw: dict[str, Any]) -> None:
        raw.update(collate="utf8mb4_general_ci")
        find(raw, "B2")["type"].update(Collate="utf8mb4_general_ci")

    go(Action.MODIFY_TABLE_CHARSET, charset)
    assert go(Action.SET_TIFLASH_REPLICA, lambda t: t.update(tiflash_replica={"Count": 1})) == []
    assert go(Action.SHARD_ROW_ID, lambda t: t.update(ShardRowIDBits=4)) == []


@pytest.mark.row("S2")
def test_primary_keys_come_and_go(target: Target, source: Source) -> None:
    source.create("d.t", [int_col("a", flag=1), int_col("b", flag=1)])
    target.run(source)
    _evolve(target, source, "d.t", lambda t: add_key(t, key("PRIMARY", "a", "b", primary=True)), Action.ADD_PRIMARY_KEY)
    assert "PRIMARY KEY (`a`,`b`)" in target.show("d.t")
    _evolve(target, source, "d.t", lambda t: remove_key(t, "PRIMARY"), Action.DROP_PRIMARY_KEY)
    assert "PRIMARY" not in target.show("d.t")


@pytest.mark.row("S2")
def test_a_dropped_and_an_added_column_are_not_a_renamed_one(target: Target, source: Source) -> None:
    source.create("d.t", [ID, int_col("b")])
    target.run(source)
    target.connection.execute("INSERT INTO d.t VALUES (1, 42)")
    part = lambda type_, arg: {"type": type_, "raw_args": [arg]}  # noqa: E731

    def swap(raw: dict[str, Any]) -> None:
        remove(raw, "b")
        add(raw, int_col("c", default="5", origin_default="5"))

    said = {"sub_jobs": [part(5, {"name": name("c")}), part(6, name("b"))]}
    _evolve(target, source, "d.t", swap, Action.MULTI_SCHEMA_CHANGE, multi_schema_info=said)
    assert target.sql("SELECT id, c FROM d.t") == [(1, 5)]

    def rewrite(raw: dict[str, Any]) -> None:
        # CHANGE c e BIGINT with a rewrite of the rows: a new id and a new name at once.
        find(raw, "c").update(id=9, name=name("e"), type=col("x", 8, flen=20)["type"])

    (sql,) = _evolve(target, source, "d.t", rewrite, Action.MODIFY_COLUMN)
    assert "CHANGE COLUMN `c` `e`" in sql
    assert target.sql("SELECT e FROM d.t") == [(5,)]

    def doubt(raw: dict[str, Any]) -> None:
        swap_in = int_col("g")
        remove(raw, "e")
        add(raw, swap_in)
        add(raw, int_col("h"))

    source.alter("d.t", Action.MULTI_SCHEMA_CHANGE, doubt, multi_schema_info={"sub_jobs": [part(12, None)]})
    with pytest.raises(SchemaError, match="which column"):
        target.run(source)


@pytest.mark.row("S2")
def test_columns_that_one_job_rewrites_and_renames_keep_their_places(target: Target, source: Source) -> None:
    """Nothing but their places says which was which; a statement that may have moved them is refused."""
    source.create("d.t", [ID, int_col("b"), int_col("c"), int_col("d")])
    target.run(source)
    target.connection.execute("INSERT INTO d.t VALUES (1, 2, 3, 4)")

    def rewrite(raw: dict[str, Any]) -> None:
        for at, old, new in ((8, "b", "x"), (9, "d", "y")):
            find(raw, old).update(id=at, name=name(new), type=col("x", 8, flen=20)["type"])

    said = {"sub_jobs": [{"type": 12, "raw_args": None}] * 2}
    _evolve(target, source, "d.t", rewrite, Action.MULTI_SCHEMA_CHANGE, multi_schema_info=said, query="ALTER TABLE …")
    assert target.sql("SELECT x, c, y FROM d.t") == [(2, 3, 4)]

    def moved(raw: dict[str, Any]) -> None:
        for at, old, new in ((10, "x", "first_"), (11, "y", "v")):
            find(raw, old).update(id=at, name=name(new), type=int_col("x")["type"])

    done = source.jobs[-1].commit_ts
    source.alter(
        "d.t", Action.MULTI_SCHEMA_CHANGE, moved, multi_schema_info=said, query="… CHANGE x first_ INT After c"
    )
    with pytest.raises(SchemaError, match="which column"):
        target.run(source, after=done)


@pytest.mark.row("S2")
def test_a_column_that_came_in_the_place_of_one_that_went_is_not_taken_for_it(target: Target, source: Source) -> None:
    """A job of CHANGE, DROP and ADD that names none of them."""
    source.create("d.t", [ID, int_col("b"), int_col("c"), int_col("d")])
    target.run(source)

    def change(raw: dict[str, Any]) -> None:
        for at, old, new in ((8, "b", "x"), (9, "d", "y")):
            find(raw, old).update(id=at, name=name(new))

    said = {"sub_jobs": [{"type": kind, "raw_args": None} for kind in (12, 6, 5)]}
    source.alter("d.t", Action.MULTI_SCHEMA_CHANGE, change, multi_schema_info=said, query="ALTER TABLE …")
    with pytest.raises(SchemaError, match="which column"):
        target.run(source)


@pytest.mark.row("S2", "L6")
def test_old_rows_get_the_value_that_add_column_gave_them_at_the_source(target: Target, source: Source) -> None:
    """The Go tools evaluate CURRENT_TIMESTAMP again, and old rows get another time than in the source."""
    source.create("d.t", [ID])
    target.run(source)
    target.connection.execute("INSERT INTO d.t VALUES (1)")
    now = col(
        "at",
        7,
        flen=23,
        decimal=3,
        flag=129 | 8192,
        default="CURRENT_TIMESTAMP",
        origin_default="2021-03-04 05:06:07.891",
    )
    ran = _evolve(target, source, "d.t", lambda t: add(t, now), Action.ADD_COLUMN)
    assert len(ran) == 2
    # A nullable column whose default was set in the same statement as its rows stayed NULL.
    _evolve(target, source, "d.t", lambda t: add(t, int_col("n", default="3")), Action.ADD_COLUMN)
    _evolve(
        target,
        source,
        "d.t",
        lambda t: add(t, int_col("z", flag=1, default="3", origin_default="2"), 1),
        Action.ADD_COLUMN,
    )
    assert [str(v) for v in target.sql("SELECT at, n, z FROM d.t")[0]] == ["2021-03-04 05:06:07.891000", "None", "2"]
    defined = "`z` int NOT NULL DEFAULT '3'" if is_mysql() else "`z` int(11) NOT NULL DEFAULT 3"
    assert defined in target.show("d.t")


@pytest.mark.row("S2")
def test_a_source_without_strict_mode_may_cut_values(target: Target, source: Source) -> None:
    source.create("d.t", [ID, col("v", 15, flen=10, text=True)])
    target.run(source)
    target.connection.execute("INSERT INTO d.t VALUES (1, 'abcdef')")
    short = lambda t: find(t, "v")["type"].update(Flen=3)  # noqa: E731
    source.alter("d.t", Action.MODIFY_COLUMN, short, reorg_meta={"sql_mode": 1436549152})
    with pytest.raises(DdlRefused, match="Data truncated"):
        target.run(source)
    source.jobs.pop()
    _evolve(target, source, "d.t", short, Action.MODIFY_COLUMN, reorg_meta={"sql_mode": 0})
    assert target.sql("SELECT v FROM d.t") == [("abc",)]
    assert "STRICT_TRANS_TABLES" in target.sql("SELECT @@sql_mode")[0][0]


def _in_zone(source: Source, location: Any) -> None:
    """The last job ran in a session of that time zone."""
    last = source.jobs[-1]
    raw = {**last.job.raw, "reorg_meta": {"sql_mode": 1436549152, "location": location}}
    source.jobs[-1] = TimedJob(last.commit_ts, Job.from_dict(raw))


def _moments(target: Target, source: Source, *, stamped: bool) -> int:
    """d.t with a TIMESTAMP (or a DATETIME) m, and its row 2024-01-01 00:00:00."""
    kind = 7 if stamped else 12
    other = col("o", 7, flen=19, default="2020-05-05 05:05:05", flag=1)
    source.create("d.t", [dict(ID), col("m", kind, flen=19, decimal=0), other], pk_is_handle=True)
    target.run(source)
    target.sql("INSERT INTO d.t (id, m) VALUES (1, '2024-01-01 00:00:00')")
    return source.jobs[-1].commit_ts


def _modify(source: Source, title: str, kind: int, **more: Any) -> None:
    def change(raw: dict[str, Any]) -> None:
        at = next(i for i, c in enumerate(raw["cols"]) if c["name"]["L"] == "m")
        new = col(title, kind, flen=40, decimal=0, **more) | {"id": 9, "offset": at}
        raw["cols"][at] = new

    source.alter("d.t", Action.MODIFY_COLUMN, change)


@pytest.mark.row("L6")
@pytest.mark.parametrize(
    ("location", "stamped", "kind", "shown"),
    [
        ({"name": "", "offset": 28800}, True, 12, "2024-01-01 08:00:00"),
        ({"name": "", "offset": -12600}, True, 15, "2023-12-31 20:30:00"),
        ({"name": "", "offset": 28800}, False, 7, "2023-12-31 16:00:00"),
        ({"name": "UTC", "offset": 0}, True, 12, "2024-01-01 00:00:00"),
        (None, True, 12, "2024-01-01 00:00:00"),
    ],
)
def test_timestamps_become_other_types_and_back_in_the_time_zone_of_the_source_session(
    target: Target, source: Source, location: Any, stamped: bool, kind: int, shown: str
) -> None:
    after = _moments(target, source, stamped=stamped)
    # Defaults of table infos are in UTC, whatever the session was.
    default = {"default": "2021-01-01 00:00:00"} if kind == 7 else {}
    _modify(source, "renamed", kind, text=kind == 15, **default)
    _in_zone(source, location)
    target.run(source, after=after)
    assert [str(r[0]) for r in target.sql("SELECT renamed FROM d.t")] == [shown]
    assert target.show("d.t") == target.fresh(source.timeline().tables_at(source.jobs[-1].commit_ts)[-1].table)
    assert target.sql("SELECT @@time_zone") == [("+00:00",)]


@pytest.mark.row("L6")
def test_a_time_zone_that_the_target_does_not_know_is_refused_by_name_until_it_does(
    target: Target, source: Source
) -> None:
    after = _moments(target, source, stamped=True)
    _modify(source, "m", 12)
    _in_zone(source, {"name": "Test/Place", "offset": 0})
    with pytest.raises(LoadError, match="Test/Place"):
        target.run(source, after=after)
    assert "datetime" not in target.show("d.t")
    target.sql("INSERT INTO mysql.time_zone (Time_zone_id, Use_leap_seconds) VALUES (7001, 'N')")
    target.sql("INSERT INTO mysql.time_zone_name VALUES ('Test/Place', 7001)")
    target.sql("INSERT INTO mysql.time_zone_transition_type VALUES (7001, 0, 3600, 0, 'TST')")
    target.run(source, after=after)
    assert [str(r[0]) for r in target.sql("SELECT m FROM d.t")] == ["2024-01-01 01:00:00"]


def test_a_time_zone_that_only_a_host_knows_is_refused(source: Source) -> None:
    source.create("d.t", [dict(ID), col("m", 7, flen=19)], pk_is_handle=True)
    _modify(source, "m", 12)
    _in_zone(source, {"name": "Local", "offset": 0})
    with pytest.raises(SchemaError, match="Local"):
        render(source.timeline().events[-1], Dialect.MARIADB)


@pytest.mark.row("S2")
@pytest.mark.parametrize("seed", range(12))
def test_random_changes_of_columns_and_keys_leave_what_the_info_says(target: Target, source: Source, seed: int) -> None:
    rng = random.Random(seed)
    names = (f"c{n}" for n in itertools.count())
    kinds = [
        lambda: int_col(next(names), flag=rng.choice([0, 1, 32])),
        lambda: col(next(names), 15, flen=rng.randint(1, 40), text=True),
    ]
    source.create("d.t", [ID, *(rng.choice(kinds)() for _ in range(5))])
    target.run(source)
    for _ in range(6):

        def change(raw: dict[str, Any]) -> None:
            for _ in range(rng.randint(1, 3)):
                plain = [c["name"]["O"] for c in raw["cols"] if c["name"]["O"] != "id"]
                indexed = {p["name"]["O"] for k in raw["index_info"] or () for p in k["idx_cols"]}
                what = rng.randrange(6)
                if what == 0:
                    add(raw, rng.choice(kinds)(), rng.randint(0, len(raw["cols"])))
                elif what == 1 and (free := [c for c in plain if c not in indexed]):
                    remove(raw, rng.choice(free))
                elif what == 2:
                    rng.shuffle(raw["cols"])
                elif what == 3 and plain:
                    victim, new = rng.choice(plain), next(names)
                    find(raw, victim)["name"] = name(new)
                    for part in (p for k in raw["index_info"] or () for p in k["idx_cols"] if p["name"]["O"] == victim):
                        part["name"] = name(new)
                elif what == 4 and plain:
                    add_key(raw, key(next(names), *rng.sample(plain, min(2, len(plain))), unique=rng.random() < 0.3))
                elif what == 5 and raw["index_info"]:
                    remove_key(raw, rng.choice(raw["index_info"])["idx_name"]["O"])
                tidy(raw)

        _evolve(
            target,
            source,
            "d.t",
            change,
            Action.MULTI_SCHEMA_CHANGE,
            multi_schema_info={"sub_jobs": [{"type": 5, "raw_args": [None]}]},
        )


# -- whole tables


@pytest.mark.row("S2", "L6")
def test_a_swap_of_two_tables_swaps_their_rows(target: Target, source: Source) -> None:
    for table in "ab":
        source.create(f"d.{table}", [ID])
    target.run(source)
    target.connection.execute("INSERT INTO d.a VALUES (1)")
    target.connection.execute("INSERT INTO d.b VALUES (2)")
    after = source.jobs[-1].commit_ts
    source.rename_many("RENAME TABLE a TO t, b TO a, t TO b", [("d.a", "d.t"), ("d.b", "d.a"), ("d.t", "d.b")])
    ran = target.run(source, after=after)
    assert len(ran) == 3
    assert target.sql("SELECT * FROM d.a") + target.sql("SELECT * FROM d.b") == [(2,), (1,)]
    assert target.sql("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'd'") == [(2,)]


@pytest.mark.row("S2", "L6")
def test_partition_ddl_moves_the_rows_as_at_the_source(target: Target, source: Source) -> None:
    source.create("d.p", [int_col("a")], partition=source.partitions(("p0", "10"), ("p1", "20"), expr="`a`"))
    source.create("d.n", [int_col("a")])
    target.run(source)
    target.connection.execute("INSERT INTO d.p VALUES (1), (11), (12)")
    target.connection.execute("INSERT INTO d.n VALUES (15)")
    rows = lambda t: sorted(r[0] for r in target.sql(f"SELECT a FROM d.{t}"))  # noqa: E731
    after = source.jobs[-1].commit_ts
    source.exchange("d.p", "p1", "d.n")
    target.run(source, after=after)
    assert (rows("p"), rows("n")) == ([1, 15], [11, 12])
    definitions = lambda t: t["partition"]["definitions"]  # noqa: E731

    def step(action: int, change: Callable[[dict[str, Any]], Any]) -> None:
        after = source.jobs[-1].commit_ts
        source.alter("d.p", action, change)
        target.run(source, after=after)

    more = source.partitions(("p2", "30"))["definitions"]
    step(Action.ADD_PARTITION, lambda t: definitions(t).extend(more))
    target.connection.execute("INSERT INTO d.p VALUES (25)")
    split = source.partitions(("p1a", "16"), ("p1b", "20"))["definitions"]
    step(Action.REORGANIZE_PARTITION, lambda t: definitions(t).__setitem__(slice(1, 2), split))
    assert rows("p") == [1, 15, 25]
    step(Action.TRUNCATE_PARTITION, lambda t: definitions(t)[0].update(id=source.take()))
    assert rows("p") == [15, 25]
    step(Action.DROP_PARTITION, lambda t: definitions(t).pop())
    assert rows("p") == [15]
    assert target.show("d.p") == target.fresh(source.info("d.p"))


@pytest.mark.row("S2", "L6")
def test_a_recovered_table_has_its_rows(target: Target, source: Source) -> None:
    """The Go tools make the target lose them: nothing in the binlog brings them back."""
    source.create("d.t", [ID])
    source.create("d.u", [ID])
    target.run(source)
    target.connection.execute("INSERT INTO d.t VALUES (1)")
    target.connection.execute("INSERT INTO d.u VALUES (2)")
    after = source.jobs[-1].commit_ts
    t, u = source.tables["d.t"], source.tables["d.u"]
    source.drop("d.t")
    source.truncate("d.u")
    source.recover("d.t", t)
    source.recover("d.old_u", u)
    target.run(source, after=after)
    assert target.sql("SELECT * FROM d.t") + target.sql("SELECT * FROM d.old_u") == [(1,), (2,)]
    assert target.sql("SELECT * FROM d.u") == []


@pytest.mark.row("S2")
def test_a_recovery_that_came_too_late_for_the_target_is_refused_by_name(target: Target, source: Source) -> None:
    source.create("d.t", [ID])
    raw = source.tables["d.t"]
    source.drop("d.t")
    target.run(source)
    source.recover("d.t", raw)
    with pytest.raises(LoadError, match="restore the target"):
        target.run(source)


@pytest.mark.row("S2")
def test_databases_views_and_sequences(target: Target, source: Source) -> None:
    source.create_db("e-1", "utf8mb4", "utf8mb4_general_ci")
    source.alter_db("e-1", "utf8mb4", "utf8mb4_unicode_ci")
    source.create("d.t", [ID])
    view = {"view_select": "SELECT `id` AS `id` FROM `d`.`t`", "view_security": 1, "view_cols": [name("x")]}
    source.create("d.v", [int_col("x")], action=Action.CREATE_VIEW, view=view)
    source.create("d.v", [int_col("y")], action=Action.CREATE_VIEW, view=view | {"view_cols": [name("y")]})
    sequence = {"sequence_start": 5, "sequence_cache": False, "sequence_cycle": True, "sequence_min_value": 1,
                "sequence_max_value": 100, "sequence_increment": 2, "sequence_cache_value": 0}  # fmt: skip
    source.create("d.s", [], action=Action.CREATE_SEQUENCE, sequence=sequence)
    source.alter("d.s", Action.ALTER_SEQUENCE, lambda s: s["sequence"].update(sequence_increment=3))
    target.run(source)
    assert target.sql("SELECT default_collation_name FROM information_schema.schemata WHERE schema_name = 'e-1'") == [
        ("utf8mb4_unicode_ci",)
    ]
    assert target.sql("SELECT y FROM d.v") == []
    if not is_mysql():
        assert target.sql("SELECT start_value, increment, cycle_option FROM d.s") == [(5, 3, 1)]
    source.drop("d.v", action=Action.DROP_VIEW)
    source.drop("d.s", action=Action.DROP_SEQUENCE)
    source.drop_db("e-1")
    source.drop_db("d")
    target.run(source)
    assert target.sql("SELECT schema_name FROM information_schema.schemata WHERE schema_name IN ('d', 'e-1')") == []


@pytest.mark.row("S2")
def test_a_recovered_database_has_its_rows_its_views_and_its_sequences(target: Target, source: Source) -> None:
    source.create("d.t", [ID])
    view = {"view_select": "SELECT `id` AS `id` FROM `d`.`t`", "view_security": 1, "view_cols": [name("x")]}
    source.create("d.v", [int_col("x")], action=Action.CREATE_VIEW, view=view)
    source.create("d.g", [ID], temp_table_type=1)
    sequence = {"sequence_start": 5, "sequence_cache": False, "sequence_cycle": True, "sequence_min_value": 1,
                "sequence_max_value": 100, "sequence_increment": 2, "sequence_cache_value": 0}  # fmt: skip
    source.create("d.s", [], action=Action.CREATE_SEQUENCE, sequence=sequence)
    dropped = source.drop_db("d")
    source.job(Action.RECOVER_SCHEMA, "d", DBInfo=dropped.job.raw["binlog"]["DBInfo"])
    for event in source.timeline().ddls(0, source.jobs[-1].commit_ts):
        if event.commit_ts == dropped.commit_ts:
            target.connection.execute("INSERT INTO d.t VALUES (7)")
        target.ddl.execute(event)
    assert target.sql("SELECT x FROM d.v") == [(7,)]
    if not is_mysql():
        assert target.sql("SELECT start_value, increment FROM d.s") == [(5, 2)]


@pytest.mark.row("S2")
def test_what_cannot_be_replicated_is_refused(source: Source, target: Target) -> None:
    source.job(Action.FLASHBACK_CLUSTER, "")
    with pytest.raises(UnknownDdl, match="no binlog says which rows"):
        target.run(source)
    source.jobs.pop()
    source.create_db("pumphouse")
    source.drop_db("pumphouse")
    with pytest.raises(SchemaError, match="Pumphouse's own tables") as refused, naming("eu"):
        target.run(source)
    assert "set schema_name in [targets.eu]" in refused.value.hint


@pytest.mark.row("S2")
def test_the_rows_of_a_partition_by_key_are_not_taken_for_those_of_the_source(source: Source, target: Target) -> None:
    hashed = source.partitions(("p0", None), ("p1", None), type_=2, expr="`id`")
    keyed = source.partitions(("p0", None), ("p1", None), type_=4, columns=("id",))
    source.create("d.h", [ID], partition=hashed)
    source.create("d.k", [ID], partition=keyed)

    def emptied(raw: dict[str, Any]) -> None:
        raw["partition"]["definitions"][0]["id"] = source.take()

    source.alter("d.h", Action.TRUNCATE_PARTITION, emptied)
    target.run(source)
    done = source.jobs[-1].commit_ts
    source.alter("d.k", Action.TRUNCATE_PARTITION, emptied)
    with pytest.raises(SchemaError, match=r"takes the rows of partition p0 from d\.k, which is partitioned BY KEY"):
        target.run(source, after=done)


@pytest.mark.row("S2")
@pytest.mark.parametrize(
    ("count", "expr", "kept"),
    [(3, "`n`", [-4, -2, -1, 1, 2]), (4, "`n`", [-3, -2, -1, 1, 2, 3]), (3, "`n` + 1", [-3, -2, 0, 1, 3])],
)
def test_a_hash_that_is_null_lies_in_the_first_partition_as_in_tidb(
    source: Source, target: Target, count: int, expr: str, kept: list[int]
) -> None:
    """A MariaDB has it elsewhere, unless the number of partitions is a power of two."""
    spread = source.partitions(*((f"p{at}", None) for at in range(count)), type_=2, expr=expr)
    source.create("d.h", [int_col("n")], partition=spread)
    target.run(source)
    target.connection.execute("INSERT INTO d.h VALUES (NULL), (-4), (-3), (-2), (-1), (0), (1), (2), (3)")
    assert ((None,) in target.sql("SELECT * FROM d.h PARTITION (p0)")) == (count == 4)
    done = source.jobs[-1].commit_ts

    def emptied(raw: dict[str, Any]) -> None:
        raw["partition"]["definitions"][0]["id"] = source.take()

    source.alter("d.h", Action.TRUNCATE_PARTITION, emptied)
    target.run(source, after=done)
    assert [n for (n,) in target.sql("SELECT n FROM d.h ORDER BY n")] == kept


@pytest.mark.row("S2")
@pytest.mark.parametrize("flag", [0, 1], ids=["NULL", "NOT NULL"])
def test_a_partition_of_a_hash_that_may_be_null_is_not_exchanged(source: Source, target: Target, flag: int) -> None:
    spread = source.partitions(*((f"p{at}", None) for at in range(3)), type_=2, expr="`n`")
    source.create("d.h", [int_col("N", flag=flag)], partition=spread)
    source.create("d.e", [int_col("N", flag=flag)])
    target.run(source)
    done = source.jobs[-1].commit_ts
    source.exchange("d.h", "p1", "d.e")
    with nullcontext() if flag else pytest.raises(SchemaError, match=r"p1 from d\.h, .* by a HASH of something else"):
        target.run(source, after=done)


@pytest.mark.row("S2")
def test_a_drop_of_several_tables_drops_one_with_each_job_on_a_tidb(source: Source) -> None:
    source.create("d.a", [ID])
    source.create("d.v", [ID], action=Action.CREATE_VIEW, view={"view_select": "SELECT 1 AS `id`"})
    for table, action in (("d.a", Action.DROP_TABLE), ("d.v", Action.DROP_VIEW)):
        source.drop(table, action=action, query="DROP TABLE `a`,`b`")
    statements = [render(event, Dialect.TIDB).statements for event in source.timeline().events[-2:]]
    assert [each.sql for (each,) in statements] == ["DROP TABLE IF EXISTS `d`.`a`", "DROP VIEW IF EXISTS `d`.`v`"]


@pytest.mark.row("S2")
def test_system_schemas_are_left_alone(source: Source, target: Target) -> None:
    source.dbs["mysql"] = 1
    source.create("mysql.bind_info", [ID])
    before = target.sql("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'mysql'")
    target.run(source)
    assert target.sql("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'mysql'") == before


# -- crashes


class Crash(Exception):
    """The process ends here."""


def _crashing(target: Target, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """Die after the intent, before or after the statement."""
    if when == "before":
        monkeypatch.setattr(target.ddl, "_run", _raise)
    else:
        mark = target.ddl._mark

        def dying(event: DdlEvent, step: Any, state: str, looks: Any = None) -> None:
            if state == "done":
                raise Crash
            mark(event, step, state, looks)

        monkeypatch.setattr(target.ddl, "_mark", dying)


def _raise(*_: object) -> None:
    raise Crash


def _scenarios() -> dict[str, Callable[[Source], Any]]:
    def rename_many(s: Source) -> None:
        s.rename_many("RENAME TABLE t TO x, u TO t, x TO u", [("d.t", "d.x"), ("d.u", "d.t"), ("d.x", "d.u")])

    return {
        "create": lambda s: s.create("d.new", [ID]),
        "drop": lambda s: s.drop("d.t"),
        "truncate": lambda s: s.truncate("d.t"),
        "rename": lambda s: s.rename("d.t", "d.t2"),
        "swap": rename_many,
        "add column": lambda s: s.alter("d.t", 5, lambda t: add(t, int_col("b"))),
        "add column in two": lambda s: s.alter(
            "d.t", 5, lambda t: add(t, int_col("b", flag=1, default="2", origin_default="1"))
        ),
        "drop column": lambda s: s.alter("d.t", 6, lambda t: remove(t, "a")),
        "modify": lambda s: s.alter("d.t", 12, lambda t: find(t, "a")["type"].update(Tp=8, Flen=20)),
        "add index": lambda s: s.alter("d.t", 7, lambda t: add_key(t, key("k", "a"))),
        "exchange": lambda s: s.exchange("d.p", "p1", "d.n"),
        "truncate partition": lambda s: s.alter(
            "d.p", 23, lambda t: t["partition"]["definitions"][1].update(id=s.take())
        ),
        "drop database": lambda s: s.drop_db("d"),
        "create database": lambda s: s.create_db("e"),
    }


def _state(target: Target) -> dict[str, Any]:
    tables = target.sql(
        "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema IN ('d', 'e') ORDER BY 1, 2"
    )
    dbs = target.sql("SELECT schema_name FROM information_schema.schemata WHERE schema_name IN ('d', 'e')")
    return {"dbs": dbs} | {
        f"{db}.{table}": (target.show(f"{db}.{table}"), sorted(target.sql(f"SELECT * FROM {qualified(db, table)}")))
        for db, table in tables
    }


def _before(source: Source, what: str) -> tuple[DdlEvent, Callable[[Target], None]]:
    """The DDL of a scenario, and what makes a target what it was before it."""
    source.create("d.t", [ID, int_col("a")])
    source.create("d.u", [ID, int_col("a")])
    source.create("d.p", [int_col("a")], partition=source.partitions(("p0", "10"), ("p1", "20"), expr="`a`"))
    source.create("d.n", [int_col("a")])
    base = source.jobs[-1].commit_ts

    def prepare(to: Target) -> None:
        forget_ddl(to.connection)
        for db in ("d", "e"):
            to.connection.execute(f"DROP DATABASE IF EXISTS {db}")
        for event in source.timeline().ddls(0, base):
            to.ddl.execute(event)
        to.connection.execute("INSERT INTO d.t VALUES (1, 1), (2, 2)")
        to.connection.execute("INSERT INTO d.u VALUES (3, 3)")
        to.connection.execute("INSERT INTO d.p VALUES (1), (11)")
        to.connection.execute("INSERT INTO d.n VALUES (12)")

    _scenarios()[what](source)
    (event,) = source.timeline().ddls(base, source.jobs[-1].commit_ts)
    return event, prepare


@pytest.mark.row("L6")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", _scenarios())
def test_a_ddl_that_a_crash_cut_off_is_settled_by_looking(
    target: Target, source: Source, monkeypatch: pytest.MonkeyPatch, what: str, when: str
) -> None:
    event, prepare = _before(source, what)
    prepare(target)
    wanted_sql = target.ddl.execute(event).statements
    wanted = _state(target)

    prepare(target)
    _crashing(target, monkeypatch, when)
    with pytest.raises(Crash):
        target.ddl.execute(event)
    target.connection.close()
    with mariadb.owned(target.settings, run="retry") as (connection, owner):
        again = Target(target.settings, connection, owner)
        report = again.ddl.execute(event)
        assert _state(again) == wanted
        # What ran is not run twice.
        assert report.statements == (wanted_sql if when == "before" else wanted_sql[1:])
        assert again.ddl.execute(event).statements == ()


@pytest.fixture(scope="module")
def pair() -> Iterator[ReplicatingPair]:
    with mariadb.directory_in_memory() as directory, replicating(directory) as found:
        yield found


@pytest.mark.row("L6")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", _scenarios())
def test_a_ddl_that_a_crash_cut_off_is_settled_on_the_server_that_takes_over(
    pair: ReplicatingPair, source: Source, monkeypatch: pytest.MonkeyPatch, what: str, when: str
) -> None:
    """Its table ids and the text of SHOW CREATE are others; what moves rows and leaves no other mark is asked about."""
    event, prepare = _before(source, what)

    def state(of: Target) -> Any:
        # How names are quoted is a matter of the server.
        return {name: (each[0].replace("`", ""), each[1]) for name, each in _state(of).items() if name != "dbs"}

    with mariadb.owned(pair.settings) as (connection, owner):
        first = Target(pair.settings, connection, owner)
        prepare(first)
        before = state(first)
        first.ddl.execute(event)
        wanted = state(first)
        prepare(first)
        _crashing(first, monkeypatch, when)
        with pytest.raises(Crash):
            first.ddl.execute(event)
    pair.promote()
    with mariadb.owned(pair.settings, run="retry") as (connection, owner):
        again = Target(pair.settings, connection, owner)
        if what == "exchange":
            with pytest.raises(DdlUncertain, match="on another server") as caught:
                again.ddl.execute(event)
            assert state(again) == (before if when == "before" else wanted)
            found = re.search(r"UPDATE .*", caught.value.hint)
            assert found
            done, planned = " (it ran) or 'planned' (it did not)", "'done' (it ran) or 'planned' (it did not)"
            said = found[0].replace(planned, "'planned'") if when == "before" else found[0].replace(done, "")
            connection.execute(said)
        again.ddl.execute(event)
        assert state(again) == wanted
        assert again.ddl.execute(event).statements == ()


@pytest.mark.row("L6")
def test_a_ddl_that_looking_cannot_settle_asks(target: Target, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    source.create("d.pä", [int_col("a")], partition=source.partitions(("p0", "10"), expr="`a`"))
    source.create("d.n", [int_col("a")])
    target.run(source)
    after = source.jobs[-1].commit_ts
    source.exchange("d.pä", "p0", "d.n")
    _crashing(target, monkeypatch, "after")
    with pytest.raises(Crash):
        target.run(source, after=after)
    monkeypatch.undo()
    with pytest.raises(DdlUncertain, match=r"UPDATE .* SET state = 'done'") as caught:
        target.run(source, after=after)
    hint = re.search(r"UPDATE .*?(?= \(it ran\)).*", caught.value.hint)
    assert hint
    target.connection.execute(hint[0].replace(" (it ran) or 'planned' (it did not)", ""))
    assert target.run(source, after=after) == []


@pytest.mark.row("L6")
def test_a_retry_runs_what_was_planned_even_if_it_would_be_rendered_otherwise_now(
    target: Target, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.create("d.t", [ID])
    target.run(source)
    after = source.jobs[-1].commit_ts
    raw = source.tables["d.t"]
    source.truncate("d.t")
    _crashing(target, monkeypatch, "before")
    with pytest.raises(Crash):
        target.run(source, after=after)
    monkeypatch.undo()
    source.recover("d.old", raw)
    event = source.timeline().ddls(after, source.jobs[-1].commit_ts)[0]
    assert len(render(event, Dialect.MARIADB)) == 3
    assert target.ddl.execute(event).statements == ("TRUNCATE TABLE `d`.`t`",)


@pytest.mark.row("L6")
def test_an_owner_that_was_replaced_runs_no_more_ddl(target: Target, source: Source) -> None:
    target.run(source)
    with mariadb.owned(target.settings, run="other"):
        source.create("d.t", [ID])
        with pytest.raises((FenceLost, LoadError)):
            target.run(source)
    with mariadb.owned(target.settings, run="third") as (connection, _):
        assert connection.query("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'd'") == [(0,)]


@pytest.mark.row("L6")
def test_a_ddl_that_the_target_refuses_names_the_job_and_can_be_tried_again(target: Target, source: Source) -> None:
    target.run(source)
    target.connection.execute("CREATE TABLE d.t (x INT)")
    source.create("d.t", [ID])
    with pytest.raises(DdlRefused, match=r"job \d+ .*already exists") as caught:
        target.run(source)
    assert caught.value.code == 1050
    target.connection.execute("DROP TABLE d.t")
    assert len(target.run(source)) == 1


def test_our_tables_are_made_once(target: Target) -> None:
    target.connection.create_tables()
    assert target.connection.warnings() == []


@pytest.mark.row("S1")
def test_job_history_is_read_from_a_table(target: Target, source: Source) -> None:
    source.create("d.t", [ID])
    target.connection.execute("CREATE DATABASE `s.c`")
    target.connection.execute("CREATE TABLE `s.c`.`ddl history` (job_id BIGINT PRIMARY KEY, job LONGTEXT)")
    for timed in source.jobs:
        target.connection.execute(
            "INSERT INTO `s.c`.`ddl history` VALUES (%s, %s)", (timed.job.id, json.dumps(timed.job.raw))
        )
    settings = target.settings
    history = MysqlTableSource(settings, "s.c", "ddl history")
    ids = [t.job.id for t in source.jobs]
    assert [j.id for j in history.jobs()] == ids
    assert [j.id for j in history.jobs(after_id=ids[0])] == ids[1:]
    found = history.job(ids[1])
    assert found is not None
    assert found.raw == source.jobs[1].job.raw
    assert history.job(1) is None
    with pytest.raises(HistoryUnavailable, match="does not answer"):
        MysqlTableSource(ServerSettings(port=1), "s", "t").job(1)
