"""Generated columns: which of a TiDB's expressions a target computes, and what is known of new columns."""

import pytest

from pumphouse.model.table import Job, MysqlType, TableInfo
from pumphouse.model.tso import Tso
from pumphouse.schema.actions import Action
from pumphouse.schema.alter import alter_clauses
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.expressions import alike
from pumphouse.schema.render import render
from pumphouse.schema.versions import Change, DdlEvent, TableVersion
from tests.support.expressions import NOT_TAKEN, TAKEN, info, infos
from tests.support.madearchive import column, table_info


@pytest.mark.row("S2")
def test_expressions_that_are_known_to_be_computed_alike_are_taken_and_no_others() -> None:
    columns = infos()
    assert [each for each in TAKEN if not alike(info("g", *each), columns)] == []
    assert [each for each in NOT_TAKEN if alike(info("g", *each), columns)] == []


@pytest.mark.row("S2")
def test_a_new_stored_column_whose_values_no_binlog_has_is_a_doubt() -> None:
    """A TiDB adds none; MySQL and MariaDB do, and compute it of the rows that are there."""
    job = Job.from_dict({"id": 1, "type": 5, "state": 6})
    columns = [column(1, "id", flag=3), column(2, "b", MysqlType.VARCHAR, binary=True)]

    def of(*more: dict[str, object]) -> TableInfo:
        raw = table_info(7, "t", [*columns, *more])
        del raw["ShardRowIDBits"]
        return TableInfo.from_dict(raw)

    def doubts(expression: str) -> list[str]:
        new = column(3, "s", MysqlType.VARCHAR, generated_expr_string=expression, generated_stored=True)
        return [what for what, _ in alter_clauses(job, "d", of(), of(new), Dialect.MARIADB).doubts]

    assert doubts("concat(`id`)") == []
    (doubt,) = doubts("concat(`b`, _utf8mb4'x')")
    assert "no binlog has its values" in doubt


@pytest.mark.row("S2")
def test_a_stored_column_with_another_expression_is_a_doubt_where_the_target_has_it_as_a_plain_one() -> None:
    """MySQL and MariaDB compute it anew of the rows that are there, and log none of them."""
    id_, bytes_ = column(1, "id", flag=3), column(2, "b", MysqlType.VARCHAR, binary=True)

    def of(name: str, expression: str) -> TableInfo:
        made = column(3, "s", MysqlType.VARCHAR, generated_expr_string=expression, generated_stored=True)
        raw = table_info(7, "t", [id_, {**bytes_, "name": {"O": name, "L": name}}, made])
        del raw["ShardRowIDBits"]
        return TableInfo.from_dict(raw)

    def statements(after: TableInfo) -> list[tuple[str, int]]:
        versions = [
            TableVersion("d", table, at, Tso(at), at) for at, table in ((1, of("b", "concat(`b`)")), (2, after))
        ]
        job = Job.from_dict({"id": 1, "type": 12, "state": 6, "table_id": 7, "query": "ALTER TABLE t …"})
        event = DdlEvent(Tso(2), Action.MODIFY_COLUMN, job, (Change(*versions),))
        return [(each.sql, len(each.doubts)) for each in render(event, Dialect.MARIADB)]

    assert statements(of("b", "concat(`b`)")) == []
    assert statements(of("b", "concat(`b`,'x')")) == [("ALTER TABLE `d`.`t` FORCE", 1)]
    ((renamed, doubts),) = statements(of("c", "concat(`c`)"))
    assert "CHANGE COLUMN `b` `c`" in renamed
    assert doubts == 0


@pytest.mark.row("S2")
@pytest.mark.parametrize(
    ("before", "after", "anew"),
    [
        ((MysqlType.VARCHAR, 20), (MysqlType.VARCHAR, 30), False),
        ((MysqlType.VARCHAR, 20), (MysqlType.VARCHAR, 3), True),
        ((MysqlType.STRING, 20), (MysqlType.STRING, 30), True),  # BINARY gains zeros
        ((MysqlType.LONG, 11), (MysqlType.LONGLONG, 20), False),
        ((MysqlType.FLOAT, 12), (MysqlType.DOUBLE, 22), True),  # 0.1 is 0.10000000149011612
    ],
)
def test_a_stored_column_whose_source_gets_another_type_is_a_doubt_where_its_values_may_change(
    before: tuple[MysqlType, int], after: tuple[MysqlType, int], anew: bool
) -> None:
    """Also through a generated column in between."""
    job = Job.from_dict({"id": 1, "type": 12, "state": 6})
    bytes_ = column(4, "bytes", MysqlType.VARCHAR, binary=True)

    def of(type_: MysqlType, flen: int, *, of_tidb: bool = False) -> TableInfo:
        one = column(2, "b", type_, binary=True)
        one["type"] |= {"Flen": flen}
        between = column(5, "v", MysqlType.VARCHAR, binary=True, generated_expr_string="concat(`b`)")
        made = column(3, "s", MysqlType.VARCHAR, generated_expr_string="concat(`v`,`bytes`)", generated_stored=True)
        raw = table_info(7, "t", [column(1, "id", flag=3), one, bytes_, between, made])
        if not of_tidb:
            del raw["ShardRowIDBits"]
        return TableInfo.from_dict(raw)

    doubts = alter_clauses(job, "d", of(*before), of(*after), Dialect.MARIADB).doubts
    assert [what.split(",")[0] for what, _ in doubts] == ["s"] * anew
    of_tidb = [of(*each, of_tidb=True) for each in (before, after)]
    assert alter_clauses(job, "d", *of_tidb, Dialect.MARIADB).doubts == ()


@pytest.mark.row("S2")
def test_a_stored_column_is_told_again_when_another_column_takes_the_name_that_it_is_computed_from() -> None:
    """Its text is the same. A MariaDB keeps the values of before unless the column itself is changed."""

    def of(name: str, *more: dict[str, object]) -> TableInfo:
        made = column(3, "s", generated_expr_string="`b` * 2", generated_stored=True)
        raw = table_info(7, "t", [column(1, name, flag=3), *more, made])
        del raw["ShardRowIDBits"]
        return TableInfo.from_dict(raw)

    job = Job.from_dict({"id": 1, "type": 66, "state": 6, "multi_schema_info": {"sub_jobs": []}})
    first = alter_clauses(job, "d", of("id", column(2, "b")), of("b"), Dialect.MARIADB).first
    assert [each.split(" ", 3)[:3] for each in first] == [
        ["DROP", "COLUMN", "`b`"], ["CHANGE", "COLUMN", "`id`"], ["MODIFY", "COLUMN", "`s`"]
    ]  # fmt: skip
