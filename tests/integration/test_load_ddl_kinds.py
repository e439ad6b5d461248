"""Kinds of DDL that a real TiDB logs and that only a whole load shows: archive, load and restore on a real MariaDB."""

import copy
import json
from typing import Any

import pytest

from pumphouse.errors import DdlRefused, UnknownDdl
from pumphouse.loader.target import StatementFailed, TargetConnection
from pumphouse.model.table import MysqlType, TableInfo
from pumphouse.model.tso import Tso
from pumphouse.runs import load
from pumphouse.settings import Settings
from tests.support.kind import is_mysql
from tests.support.loading import restored
from tests.support.madearchive import MadeSource, column, index, table_info, target_rows

ID = column(1, "id", flag=3)


def name(text: str) -> dict[str, str]:
    return {"O": text, "L": text.lower()}


def reshaped(source: MadeSource, table: str, type_: int, **changes: Any) -> None:
    """A DDL after which the table has another id, as PARTITION BY gives it."""
    held = source.tables[table]
    source.table_id += 1
    raw = {**copy.deepcopy(held.info.raw), "id": source.table_id, **changes}
    source.ddl(type_, held.info.id, f"ALTER TABLE `{table}` …", TableInfo=raw)
    held.info = TableInfo.from_dict(raw)


def partitions(source: MadeSource, *bounds: tuple[str, str | None], type_: int, expr: str = "`id`") -> dict[str, Any]:
    definitions = []
    for title, bound in bounds:
        source.table_id += 1
        definitions.append({"id": source.table_id, "name": name(title), "less_than": bound and [bound]})
    return {"type": type_, "expr": expr, "columns": None, "enable": True, "definitions": definitions,
            "num": len(definitions)}  # fmt: skip


def work(source: MadeSource, table: str, *ids: int) -> None:
    """A row for each id, and a change of the one before."""
    with source.txn() as t:
        for each in ids:
            t.insert(table, id=each, a=each)
    with source.txn() as t:
        t.update(table, ids[0], a=-1)


def check(source: MadeSource, settings: Settings, target: TargetConnection) -> None:
    """Everything arrives by a load, and by a restore."""
    end = source.cut()
    load.run(settings)
    assert target_rows(target) == source.snapshot()
    restored(settings, to=end, dry_run=False)
    assert target_rows(target) == source.snapshot()


def partition_names(target: TargetConnection, table: str) -> list[str | None]:
    rows = target.query(
        "SELECT partition_name FROM information_schema.partitions WHERE table_schema = 'd' AND table_name = %s"
        " ORDER BY partition_ordinal_position",
        (table,),
    )
    return [row[0] for row in rows]


@pytest.mark.row("S2", "L6")
def test_a_table_that_one_statement_renames_twice_is_followed(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    for table in ("a", "b"):
        source.create_table(table, [ID, column(2, "a")])
    source.genesis()
    work(source, "a", 1, 2)
    work(source, "b", 11, 12)
    a, b = source.tables["a"].info.raw, source.tables["b"].info.raw
    named = [{**a, "name": name("x")}, {**b, "name": name("a")}, {**a, "name": name("b")}]
    source.ddl(47, a["id"], "RENAME TABLE a TO x, b TO a, x TO b", TableInfo=named[-1], MultipleTableInfos=named)
    source.tables["a"], source.tables["b"] = source.tables["b"], source.tables["a"]
    source.tables["a"].info, source.tables["b"].info = TableInfo.from_dict(named[1]), TableInfo.from_dict(named[2])
    work(source, "a", 3)
    work(source, "b", 13)
    check(source, settings, target)


@pytest.mark.row("S2", "L6")
def test_a_table_gets_partitions_other_ones_and_none(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [ID, column(2, "a")])
    source.genesis()
    work(source, "t", 1, 11)
    reshaped(source, "t", 71, partition=partitions(source, ("p0", "10"), ("p1", "MAXVALUE"), type_=1))
    work(source, "t", 2, 12)
    source.cut()
    load.run(settings)
    assert partition_names(target, "t") == ["p0", "p1"]
    reshaped(source, "t", 71, partition=partitions(source, ("h0", None), ("h1", None), ("h2", None), type_=2))
    work(source, "t", 3, 13)
    source.cut()
    load.run(settings)
    assert partition_names(target, "t") == ["h0", "h1", "h2"]
    with source.txn() as t:
        t.delete("t", 11)
    reshaped(source, "t", 72, partition=None)
    work(source, "t", 4, 14)
    check(source, settings, target)
    assert partition_names(target, "t") == [None]


@pytest.mark.row("S2", "L6")
@pytest.mark.parametrize(("kind", "type_"), [("hash", 64), ("key", 64), ("hash", 19)])
def test_partitions_by_hash_become_more_and_fewer(
    source: MadeSource, settings: Settings, target: TargetConnection, kind: str, type_: int
) -> None:
    def spread(*titles: str) -> dict[str, Any]:
        made = partitions(source, *((title, None) for title in titles), type_=2 if kind == "hash" else 4)
        return made if kind == "hash" else {**made, "expr": "", "columns": [name("id")]}

    def again(*titles: str) -> None:
        # TiDB reorganizes all of them, each under a new id; older ones add to what is there.
        raw = copy.deepcopy(source.tables["t"].info.raw)
        before = raw["partition"]["definitions"]
        raw["partition"] = spread(*titles)
        if type_ == 19:
            raw["partition"]["definitions"][: len(before)] = before[: len(titles)]
        source.alter("t", type_ if len(titles) > len(before) else 64, raw)

    source.create_table("t", [ID, column(2, "a")], partition=spread("p0", "p1"))
    source.genesis()
    work(source, "t", *range(1, 20))
    again("p0", "p1", "p2", "p3")
    work(source, "t", *range(21, 30))
    source.cut()
    load.run(settings)
    assert partition_names(target, "t") == ["p0", "p1", "p2", "p3"]
    again("p0", "p1", "p2")
    work(source, "t", *range(31, 40))
    check(source, settings, target)
    assert partition_names(target, "t") == ["p0", "p1", "p2"]


@pytest.mark.row("L6")
def test_a_row_that_may_become_larger_than_a_page_takes_is_taken_all_the_same(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    wide = [column(n, f"c{n}", MysqlType.VARCHAR, flen=63) for n in range(2, 40)]
    source.create_table("of_the_base", [ID, *wide])
    source.genesis()
    source.create_table("later", [ID, *wide[:30]])
    source.add_column("later", column(40, "one_more", MysqlType.VARCHAR, flen=63))
    for at in range(41, 48):
        source.add_column("later", column(at, f"x{at}", MysqlType.VARCHAR, flen=63))
    with source.txn() as t:
        t.insert("of_the_base", id=1, c2=b"x" * 63)
        t.insert("later", id=1, x47=b"y" * 63)
    check(source, settings, target)


@pytest.mark.row("L6")
def test_a_drop_of_several_tables_is_a_job_for_each_with_one_text(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    for table in ("a", "b", "stays"):
        source.create_table(table, [ID, column(2, "a")])
    source.genesis()
    work(source, "stays", 1, 2)
    for table in ("a", "b"):
        source.ddl(4, source.tables[table].info.id, "DROP TABLE `a`,`b`", TableInfo=source.tables[table].info.raw)
        del source.tables[table]
        work(source, "stays", *(10, 11) if table == "a" else (20, 21))
    source.create_table("a", [ID, column(2, "a")])
    check(source, settings, target)


@pytest.mark.row("L6")
def test_a_global_temporary_table_lives_and_dies_without_a_trace(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [ID, column(2, "a")])
    source.create_table("old", [ID, column(2, "a")], temp_table_type=1)
    source.genesis()
    source.create_table("tmp", [ID, column(2, "a")], temp_table_type=1)
    source.truncate("tmp")
    source.add_column("tmp", column(3, "b"))
    source.rename_table("tmp", "tmp2")
    work(source, "t", 1, 2)
    source.drop_table("tmp2")
    source.drop_table("old")
    # The name is free for a table with rows.
    source.create_table("tmp", [ID, column(2, "a")])
    work(source, "tmp", 1, 2)
    source.create_table("last", [ID], temp_table_type=1)
    del source.tables["last"]
    check(source, settings, target)


# -- sequences


def sequence(**more: Any) -> dict[str, Any]:
    return {f"sequence_{key}": value for key, value in {
        "start": 1, "cache": True, "cycle": False, "min_value": 1, "max_value": 9223372036854775806, "increment": 1,
        "cache_value": 1000, **more}.items()}  # fmt: skip


def create_sequence(source: MadeSource, title: str, **more: Any) -> dict[str, Any]:
    source.table_id += 1
    info = table_info(source.table_id, title, [], pk_is_handle=False, sequence=sequence(**more))
    source.ddl(34, source.table_id, f"CREATE SEQUENCE {title}", TableInfo=info)
    return info


def next_of(target: TargetConnection, title: str) -> int:
    return int(target.value(f"SELECT NEXTVAL(d.{title})"))


@pytest.mark.mariadb("MySQL has no sequences")
@pytest.mark.row("S2", "L6", "R1")
def test_a_sequence_gives_no_value_that_the_source_gave(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.genesis()
    create_sequence(source, "s")
    odd = create_sequence(source, "odd", start=3, increment=10)
    create_sequence(source, "down", start=-1, increment=-1, min_value=-1000, max_value=-1, cache=False)
    create_sequence(source, "untouched", start=7)
    create_sequence(source, "full", max_value=50)
    create_sequence(source, "circle", max_value=50, cycle=True)
    create_sequence(source, "gone")
    source.setval("gone", 5000)
    source.ddl(36, source.table_id, "DROP SEQUENCE gone", TableInfo=odd)
    create_sequence(source, "gone")
    source.setval("s", 2000)
    source.setval("s", 1000)  # of another server, which took its range first
    source.setval("odd", 1000)
    source.setval("down", -40)
    source.setval("full", 50)
    source.setval("circle", 50)
    first = source.cut()
    load.run(settings)
    assert next_of(target, "s") == 2001
    source.setval("s", 3000)
    restart = {**odd, "sequence": {**odd["sequence"]}}
    source.ddl(35, odd["id"], "ALTER SEQUENCE `odd` RESTART WITH 43", TableInfo=restart)
    end = source.cut()
    load.run(settings)

    def state() -> list[int]:
        return [next_of(target, title) for title in ("s", "odd", "down", "untouched", "circle", "gone")]

    for done in (None, end):
        if done is not None:
            restored(settings, to=done, dry_run=False)
        assert state() == [3001, 43, -41, 7, 1, 1]
        with pytest.raises(StatementFailed, match="run out"):
            next_of(target, "full")
    restored(settings, to=first, dry_run=False)
    assert state() == [2001, 1003, -41, 7, 1, 1]


# -- foreign keys


@pytest.mark.mariadb("MySQL has no sequences")
@pytest.mark.row("L7")
@pytest.mark.parametrize("routed", [False, True])
def test_a_sequence_whose_create_was_skipped_is_named_with_the_rule_that_parks_it(
    source: MadeSource, settings: Settings, target: TargetConnection, routed: bool
) -> None:
    def ruled(*rules: dict[str, Any]) -> Settings:
        told = [{"why": "a test", **rule} for rule in (*rules, *routes)]
        return Settings.model_validate({**dict(settings), "load": settings.load.model_dump() | {"rules": told}})

    routes = ({"do": "route", "database": "d", "to": "e"},) if routed else ()
    source.create_table("t", [ID])
    source.genesis()
    load.run(ruled())
    create_sequence(source, "s")
    skip = {"do": "skip", "ddl": source.jobs[-1].job.id}
    source.setval("s", 1000)
    with source.txn() as t:
        t.insert("t", id=1)
    end = source.cut()
    with pytest.raises(DdlRefused, match=r"cannot move the sequence [de]\.s on") as caught:
        load.run(ruled(skip))
    assert 'do = "park"\ntable = "d.s"' in caught.value.hint
    assert load.run(ruled(skip, {"do": "park", "table": "d.s"})).to_ts == end
    assert target.value(f"SELECT COUNT(*) FROM {'e' if routed else 'd'}.t") == 1


def foreign(id_: int, title: str, column_: str, table: str, **more: Any) -> dict[str, Any]:
    return {"id": id_, "fk_name": name(title), "ref_schema": name("d"), "ref_table": name(table),
            "ref_cols": [name("id")], "cols": [name(column_)], "on_delete": 0, "on_update": 0, "state": 5,
            "version": 1, **more}  # fmt: skip


def unsaid() -> str:
    """What the server calls the rule of a key that has none; it is the same one."""
    return "NO ACTION" if is_mysql() else "RESTRICT"


def keys_of(target: TargetConnection) -> set[tuple[str, ...]]:
    return {
        tuple(map(str, row))
        for row in target.query(
            "SELECT constraint_name, table_name, referenced_table_name, delete_rule, update_rule"
            " FROM information_schema.referential_constraints WHERE constraint_schema = 'd'"
        )
    }


@pytest.mark.mysql
@pytest.mark.row("S2", "L6", "R1")
def test_foreign_keys_are_there_after_a_load_and_a_restore_and_hold_nothing_up(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    refers = [index(1, "to_p", ("p", 1))]
    child = [ID, column(2, "p"), column(3, "a")]
    # Made before the table it refers to, and by a name that TiDB gives in each table.
    source.create_table("child", child, index_info=refers, fk_info=[foreign(1, "fk_1", "p", "parent", on_delete=2)])
    source.create_table("parent", [ID, column(2, "a")])
    source.create_table("unenforced", child, index_info=refers, fk_info=[foreign(1, "fk_1", "p", "parent", version=0)])
    with source.txn() as t:
        t.insert("parent", id=1)
        t.insert("child", id=10, p=1)
        t.insert("unenforced", id=10, p=99)
    source.genesis()
    source.create_table(
        "other", child, index_info=refers,
        fk_info=[foreign(1, "fk_1", "p", "parent", on_update=3), foreign(2, "mine", "p", "other", on_delete=4)],
    )  # fmt: skip
    with source.txn() as t:
        # As the source cascades it: rows of both tables, the parent first.
        t.delete("parent", 1)
        t.delete("child", 10)
        t.insert("child", id=11, p=2)
        t.insert("parent", id=2)
        t.insert("other", id=5, p=2)
    first = source.cut()
    report = load.run(settings)
    assert target_rows(target) == source.snapshot()
    begun = {("child_ibfk_1", "child", "parent", "CASCADE", unsaid())}
    both = {("other_ibfk_1", "other", "parent", unsaid(), "SET NULL"),
            ("mine", "other", "other", "NO ACTION", unsaid())}  # fmt: skip
    assert keys_of(target) == begun | both
    assert not [note for note in report.notes if "foreign" in note and "does not enforce it" not in note]

    raw = copy.deepcopy(source.tables["other"].info.raw)
    raw["fk_info"] = raw["fk_info"][1:]
    source.alter("other", 10, raw)
    raw = copy.deepcopy(raw)
    raw["fk_info"].append(foreign(3, "fk_3", "a", "parent"))
    raw["index_info"].append(index(2, "to_a", ("a", 2)))
    source.alter("other", 9, raw)
    source.rename_table("child", "kid")
    source.truncate("parent")
    raw = copy.deepcopy(source.tables["kid"].info.raw)
    raw["cols"][1]["type"] |= {"Tp": int(MysqlType.LONGLONG), "Flen": 20}
    source.alter("kid", 12, raw)
    source.drop_table("parent")
    # A MySQL makes no table whose key would be of another type than a column that refers to it.
    key = MysqlType.LONG if is_mysql() else MysqlType.LONGLONG
    source.create_table("parent", [column(1, "id", key, flag=3), column(2, "a")])
    raw = copy.deepcopy(source.tables["kid"].info.raw) | {"fk_info": []}
    source.alter("kid", 10, raw)
    end = source.cut()
    load.run(settings)
    for done in (None, end):
        if done is not None:
            restored(settings, to=done, dry_run=False)
        assert target_rows(target) == source.snapshot()
        assert {(row[0], row[1]) for row in keys_of(target)} >= {("mine", "other")}
        assert not [row for row in keys_of(target) if row[1] == "kid"]
    restored(settings, to=first, dry_run=False)
    assert keys_of(target) == begun | both
    with pytest.raises(StatementFailed, match="foreign key constraint"):
        target.execute("SET foreign_key_checks = 1")
        target.execute("INSERT INTO d.child (id, p) VALUES (12, 77)")


@pytest.mark.row("L6")
def test_a_column_of_a_foreign_key_is_renamed_where_another_gets_a_new_type(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("parent", [ID])
    child = [ID, column(2, "p"), column(3, "n")]
    key = foreign(1, "fk_1", "p", "parent")
    source.create_table("child", child, index_info=[index(1, "to_p", ("p", 1))], fk_info=[key])
    with source.txn() as t:
        t.insert("parent", id=1)
    source.genesis()
    load.run(settings)
    raw = copy.deepcopy(source.tables["child"].info.raw)
    raw["cols"][1]["name"] = raw["index_info"][0]["idx_cols"][0]["name"] = raw["fk_info"][0]["cols"][0] = name("to")
    raw["cols"][2]["type"] |= {"Tp": int(MysqlType.LONGLONG), "Flen": 20}
    source.alter("child", 61, raw)
    with source.txn() as t:
        t.insert("child", id=1, to=1, n=1 << 40)
    source.cut()
    load.run(settings)
    assert target_rows(target) == source.snapshot()
    assert keys_of(target) == {("child_ibfk_1", "child", "parent", unsaid(), unsaid())}


@pytest.mark.row("L6", "L7")
def test_a_new_type_of_a_column_that_foreign_keys_refer_to_is_refused_with_the_statements_that_go_around_them(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    # A MySQL makes such a column longer, and gives it no other type.
    code = column(2, "code") if is_mysql() else column(2, "code", MysqlType.VARCHAR, flen=10)
    to_code = foreign(1, "fk_1", "code", "parent") | {"ref_cols": [name("code")]}
    source.create_table("parent", [ID, code], index_info=[index(1, "u", ("code", 1), unique=True)])
    for table in ("child", "other"):
        source.create_table(table, [ID, code], index_info=[index(1, "i", ("code", 1))], fk_info=[to_code])
    source.create_table("apart", [ID, column(2, "p")], index_info=[index(1, "i", ("p", 1))],
                        fk_info=[foreign(1, "fk_1", "p", "child")])  # fmt: skip
    source.genesis()
    load.run(settings)
    keys = keys_of(target)
    raw = copy.deepcopy(source.tables["parent"].info.raw)
    raw["cols"][1]["type"] |= {"Flen": 20} | ({"Tp": int(MysqlType.LONGLONG)} if is_mysql() else {})
    source.alter("parent", 12, raw)
    with source.txn() as t:
        t.insert("parent", id=1, code=1 << 40 if is_mysql() else b"longer than ten")
    source.cut()
    with pytest.raises(DdlRefused) as caught:
        load.run(settings)
    assert "(child_ibfk_1 of d.child, other_ibfk_1 of d.other): sql = [" in caught.value.hint
    sql, _ = json.JSONDecoder().raw_decode(caught.value.hint.split("): sql = ")[1])
    assert len(sql) == (3 if is_mysql() else 5)
    rule = {"do": "replace", "ddl": source.jobs[-1].job.id, "sql": sql, "why": "a test"}
    told = settings.load.model_dump() | {"rules": [rule]}
    load.run(Settings.model_validate({**dict(settings), "load": told}))
    assert target_rows(target) == source.snapshot()
    # Between columns of two types it has no key.
    assert keys_of(target) == {key for key in keys if not is_mysql() or key[1] == "apart"}


# -- types that nobody knows yet


@pytest.mark.row("S2", "R1")
def test_an_unknown_type_of_ddl_stops_what_goes_past_it_and_nothing_else(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [ID, column(2, "a")])
    source.create_table("u", [ID, column(2, "a")])
    source.genesis()
    work(source, "t", 1, 2)
    source.ddl(211, 0, "CREATE SOMETHING new")
    work(source, "u", 1, 2)
    before, then = Tso(source.tick()), source.snapshot()
    source.alter("t", 211, copy.deepcopy(source.tables["t"].info.raw))
    work(source, "u", 11, 12)
    end = source.cut()
    for _ in range(2):
        with pytest.raises(UnknownDdl, match="type 211, which this release does not know: ALTER TABLE `t`"):
            load.run(settings)
        assert target_rows(target) == then
    target.execute("TRUNCATE TABLE d.u")
    restored(settings, to=before, dry_run=False)
    assert target_rows(target) == then
    with pytest.raises(UnknownDdl, match=r"What lies before .* can be loaded and restored"):
        restored(settings, to=end, dry_run=False)
    assert target_rows(target) == then
