"""Loads on a real MariaDB where the schema is awkward: views in any order, DDL that is under way while rows change."""

import copy
from typing import Any

import pytest

from pumphouse.codec import payload, row
from pumphouse.errors import DdlRefused, DuplicateKey, LoadError, MissingColumn, RowRejected
from pumphouse.loader.report import LoadReport
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import MysqlType, TableInfo
from pumphouse.runs import load
from pumphouse.settings import Settings
from tests.support.kind import is_mysql
from tests.support.loading import restored
from tests.support.madearchive import MadeSource, column, index, table_info, target_rows


def altered(source: MadeSource, table: str) -> dict[str, Any]:
    """A copy of a table's info, to be changed."""
    return copy.deepcopy(source.tables[table].info.raw)


# -- views


def create_view(source: MadeSource, name: str, select: str) -> None:
    source.table_id += 1
    view = {
        "view_algorithm": 0,
        "view_security": 0,
        "view_select": select,
        "view_cols": [{"O": "id", "L": "id"}],
    }
    info = table_info(source.table_id, name, [column(1, "id")], pk_is_handle=False, view=view)
    source.ddl(21, source.table_id, f"CREATE OR REPLACE VIEW {name}", TableInfo=info)


@pytest.mark.row("L6")
def test_views_of_genesis_are_created_whatever_their_age_and_one_over_a_dropped_table_is_left_out_by_name(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    source.create_table("gone", [column(1, "id", flag=3)])
    create_view(source, "v1", "SELECT `d`.`t`.`id` AS `id` FROM `d`.`t`")
    create_view(source, "v2", "SELECT `d`.`v1`.`id` AS `id` FROM `d`.`v1`")
    create_view(source, "v1", "SELECT `d`.`t`.`id` AS `id` FROM `d`.`t` WHERE `d`.`t`.`id` > 1")
    create_view(source, "broken", "SELECT `d`.`gone`.`id` AS `id` FROM `d`.`gone`")
    create_view(source, "on_broken", "SELECT `d`.`broken`.`id` AS `id` FROM `d`.`broken`")
    source.drop_table("gone")
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=1)
        t.insert("t", id=2)
    end = source.cut()

    report = load.run(settings)

    assert target.query("SELECT id FROM d.v2") == [(2,)]
    assert [note.split(" is left out: ")[0] for note in report.notes] == [
        "the view `d`.`broken`",
        "the view `d`.`on_broken`",
    ]
    done = restored(settings, to=end, dry_run=False)
    assert len(done.load.notes) == 2
    assert target.query("SELECT id FROM d.v2") == [(2,)]


# -- rows that are written while a DDL runs


def delete_without(source: MadeSource, table: str, handle: int, name: str) -> None:
    """A delete while DROP COLUMN runs: its image has the public columns only."""
    raw = altered(source, table)
    next(c for c in raw["cols"] if c["name"]["O"] == name)["state"] = 2
    info = TableInfo.from_dict(raw)
    builder = payload.PrewriteValueBuilder(source.schema_version)
    builder.delete(info.id, row.encode_delete(info, source.tables[table].rows.pop(handle), handle=handle))
    source.commit(source.tick(), builder.build())


def unique_table(source: MadeSource) -> list[int]:
    """u(a NOT NULL UNIQUE, b), with four rows; returns their handles."""
    unique = [index(1, "ua", ("a", 0), unique=True)]
    source.create_table("u", [column(1, "a", flag=1), column(2, "b")], pk_is_handle=False, index_info=unique)
    with source.txn() as t:
        return [t.insert("u", a=a, b=10 + a) for a in range(4)]


def drop_key_and_column(source: MadeSource) -> None:
    raw = altered(source, "u")
    raw["cols"], raw["index_info"] = [{**raw["cols"][1], "offset": 0}], []
    source.alter("u", 6, raw)
    for values in source.tables["u"].rows.values():
        values.pop(1)


@pytest.mark.row("L4")
def test_rows_deleted_while_their_key_is_dropped_with_its_column_are_the_right_ones(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    handles = unique_table(source)
    source.genesis()
    with source.txn() as t:
        t.update("u", handles[2], b=77)
    delete_without(source, "u", handles[1], "a")
    drop_key_and_column(source)
    with source.txn() as t:
        t.delete("u", handles[2])
    source.cut()
    load.run(settings)
    assert target_rows(target) == source.snapshot()


@pytest.mark.row("L4")
def test_rows_deleted_from_a_table_without_a_key_while_a_column_is_dropped_are_found(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("k", [column(1, "a"), column(2, "b")], pk_is_handle=False)
    with source.txn() as t:
        handles = [t.insert("k", a=a, b=10 + a % 2) for a in range(4)]
    source.genesis()
    with source.txn() as t:
        t.insert("k", a=9, b=11)
    delete_without(source, "k", handles[1], "a")
    with source.txn() as t:
        t.delete("k", handles[3])
    source.drop_column("k", "a")
    end = source.cut()
    load.run(settings)
    assert target_rows(target) == source.snapshot()
    restored(settings, to=end, dry_run=False)
    assert target_rows(target) == source.snapshot()


@pytest.mark.row("L4")
@pytest.mark.parametrize("keyed", [True, False])
def test_an_image_that_lacks_a_column_whose_drop_lies_beyond_the_load_names_table_and_column(
    source: MadeSource, settings: Settings, target: TargetConnection, keyed: bool
) -> None:
    if keyed:
        handle = unique_table(source)[0]
    else:
        source.create_table("u", [column(1, "a", flag=1), column(2, "b")], pk_is_handle=False)
        with source.txn() as t:
            handle = t.insert("u", a=0, b=1)
    source.genesis()
    before = source.snapshot()
    delete_without(source, "u", handle, "a")
    source.cut()
    with pytest.raises(MissingColumn, match=r"d\.u: .*the column a is missing") as caught:
        load.run(settings)
    assert "DROP COLUMN" in caught.value.hint
    assert target_rows(target) == before
    # The way out that the message names: by itself, once the archive has the end of the DDL.
    source.drop_column("u", "a") if not keyed else drop_key_and_column(source)
    end = source.cut()
    assert load.run(settings).to_ts == end
    assert target_rows(target) == source.snapshot()
    restored(settings, to=end, dry_run=False)
    assert target_rows(target) == source.snapshot()


@pytest.mark.row("L4")
def test_rows_that_share_a_key_which_is_being_dropped_all_arrive(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    handles = unique_table(source)
    source.genesis()
    with source.txn() as t:
        t.insert("u", a=1, b=50)
        t.insert("u", a=7, b=51)
    with source.txn() as t:
        t.insert("u", a=7, b=52)
        t.delete("u", handles[1])
    raw = altered(source, "u") | {"index_info": []}
    source.alter("u", 8, raw)
    with source.txn() as t:
        t.insert("u", a=7, b=52)
    source.cut()
    load.run(settings)
    assert target_rows(target) == source.snapshot()


@pytest.mark.row("L4")
def test_rows_that_share_a_key_whose_drop_lies_beyond_the_load_are_refused_by_name(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    unique_table(source)
    source.genesis()
    for b in (50, 51):
        with source.txn() as t:
            t.insert("u", a=7, b=b)
    source.cut()
    with pytest.raises(DuplicateKey, match=r"\(a\) of d\.u") as caught:
        load.run(settings)
    assert "DROP INDEX" in caught.value.hint


@pytest.mark.row("L4", "L7")
def test_a_plan_that_ends_while_a_unique_key_is_being_dropped_names_the_way_on_once_the_archive_has_the_drop(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    ID = column(1, "id", flag=3)
    source.create_table("u", [ID, column(2, "n")], index_info=[index(1, "n", ("n", 1), unique=True)])
    source.create_table("k", [ID])
    with source.txn() as t:
        t.insert("u", id=1, n=5)
    source.genesis()
    load.run(settings)
    with source.txn() as t:
        t.insert("u", id=2, n=5)
        # Of another step than the one that fails.
        t.insert("k", id=1)
    source.add_column("k", column(2, "b"))
    source.cut()
    with pytest.raises(RowRejected, match=r"d\.u"):
        load.run(settings)
    source.alter("u", 8, altered(source, "u") | {"index_info": []})
    end = source.cut()
    with pytest.raises(RowRejected) as caught:
        load.run(settings)
    assert "a DROP INDEX of this table was under way" in caught.value.hint
    assert "somebody else" not in caught.value.hint
    assert 'do = "park"\ntable = "d.u"' in caught.value.hint
    rules = {"rules": [{"do": "park", "table": "d.u", "why": "a test"}]}
    told = Settings.model_validate({**dict(settings), "load": settings.load.model_dump() | rules})
    assert load.run(told).to_ts == end
    load.run(settings, resync="d.u")
    assert target_rows(target) == source.snapshot()


# -- generated columns that the target lacks


BYTES = column(2, "b", MysqlType.VARCHAR, binary=True)
# VIRTUAL, over bytes: a MariaDB would compute it otherwise.
ABSENT = column(3, "g", MysqlType.VARCHAR, generated_expr_string="concat(`b`, _utf8mb4'x')")
CHECKS = [
    {"id": number, "constraint_name": {"O": name, "L": name}, "expr_string": text, "enforced": True, "state": 5}
    for number, name, text in ((1, "over_g", "`g` <> _utf8mb4''"), (2, "over_id", "`id` > 0"))
]


@pytest.mark.mysql
@pytest.mark.row("L6", "R1")
def test_a_check_of_a_column_that_is_left_out_is_left_out_with_a_note(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    def of(report: LoadReport) -> list[str]:
        return [note for note in report.notes if "CHECK" in note]

    def made(name: str) -> str:
        return str(target.query(f"SHOW CREATE TABLE d.{name}")[0][1])

    source.create_table("t", [column(1, "id", flag=3), BYTES, ABSENT], constraint_info=CHECKS)
    source.genesis()
    note = "the CHECK over_g of {} is left out, with a column that it names"
    assert of(load.run(settings)) == [note.format("t")]
    source.create_table("u", [column(1, "id", flag=3), BYTES, ABSENT], constraint_info=CHECKS)
    # The checks go, of which the target has one, and then the column, which it has not.
    source.alter("t", 44, altered(source, "t") | {"constraint_info": None})
    source.drop_column("t", "g")
    with source.txn() as t:
        t.insert("u", id=1, b=b"x")
    end = source.cut()
    assert of(load.run(settings)) == [note.format("u")]
    # In a MySQL its name is one of the whole database, not of the table.
    kept = "`u_chk_2`" if is_mysql() else "`over_id`"
    assert kept in made("u") and made("u").count("CHECK") == 1
    assert "CHECK" not in made("t")
    restored(settings, to=end, dry_run=False)
    assert kept in made("u") and made("u").count("CHECK") == 1
    assert target.query("SELECT * FROM d.u") == [(1, b"x")]


@pytest.mark.row("L6", "L7", "R1")
def test_a_table_that_a_first_load_or_a_restore_cannot_create_is_named_with_the_rule_that_parks_it(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    parts = [{"id": 900 + at, "name": {"O": f"p{at}", "L": f"p{at}"}} for at in range(2)]
    source.create_table("k", [column(1, "id", flag=3)])
    source.create_table(
        "t",
        [column(1, "id"), BYTES, ABSENT],
        pk_is_handle=False,
        partition={"type": 4, "columns": [{"O": "g", "L": "g"}], "enable": True, "definitions": parts, "num": 2},
    )
    end = source.genesis()
    with pytest.raises(DdlRefused, match=r"refused to create `d`\.`t`") as caught:
        load.run(settings)
    assert 'do = "park"\ntable = "d.t"' in caught.value.hint
    with pytest.raises(DdlRefused) as caught:
        restored(settings, to=end, dry_run=False)
    assert 'do = "park"\ntable = "d.t"' in caught.value.hint
    rules = {"rules": [{"do": "park", "table": "d.t", "why": "a test"}]}
    told = Settings.model_validate({**dict(settings), "load": settings.load.model_dump() | rules})
    restored(told, to=end, dry_run=False)
    assert set(target_rows(target)) == {"k"}


@pytest.mark.row("L6")
def test_the_recovery_of_a_table_dropped_before_genesis_says_that_only_a_new_archive_helps(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    info = source.tables["t"].info
    source.drop_table("t")
    source.genesis()
    source.ddl(25, info.id, "FLASHBACK TABLE t", TableInfo=info.raw)
    source.cut()
    with pytest.raises(LoadError, match="nowhere in the archive: FLASHBACK TABLE t") as caught:
        load.run(settings)
    assert "pumphouse archive init" in caught.value.hint
    assert "restore" not in caught.value.hint
