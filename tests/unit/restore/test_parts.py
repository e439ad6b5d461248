"""Planning a restore of parts: pure, from an archive without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pumphouse.archive.view import read_view
from pumphouse.errors import LoadError, RestoreError, TargetUnreachable, UsageError
from pumphouse.loader.state import Standing
from pumphouse.loader.steps import Apply, Build, ForeignKeys, Given, HandOver, Leave, Reset, Steps, kind_of
from pumphouse.model.tso import Tso
from pumphouse.restore.parts import TASK, Chosen, PartsPlan, own_schema, plan_parts
from pumphouse.settings import LoadRule, LoadSettings, TargetSettings
from tests.support.madearchive import MadeSource, column

pytestmark = pytest.mark.row("R2", "R3")
ID = column(1, "id", flag=3)
TARGET = own_schema(TargetSettings())


@pytest.fixture
def source(tmp_path: Path) -> MadeSource:
    return MadeSource(tmp_path)


def put(source: MadeSource, table: str, *ids: int) -> None:
    with source.txn() as t:
        for each in ids:
            t.insert(table, id=each)


def plan(source: MadeSource, *tables: str, to: Tso | None = None, load: Any = None, **where: str) -> PartsPlan:
    view = read_view(source.archive, upto=to)
    settings = LoadSettings(**(load or {}))
    return plan_parts(view, to, chosen=Chosen(tables=tables, **where), target=TARGET, settings=settings)


def steps(source: MadeSource, planned: PartsPlan) -> Steps:
    view = read_view(source.archive)
    given = Given(
        view=view, standing=Standing(), rules=planned.rules, settings=LoadSettings(), task=TASK, target=TARGET
    )
    return planned.steps(given)


def key(to: str, name: str = "fk") -> dict[str, Any]:
    def cistr(text: str) -> dict[str, str]:
        return {"O": text, "L": text.lower()}

    return {
        "id": 1, "fk_name": cistr(name), "ref_schema": cistr("d"), "ref_table": cistr(to), "ref_cols": [cistr("id")],
        "cols": [cistr("id")], "on_delete": 0, "on_update": 0, "state": 5, "version": 1,
    }  # fmt: skip


def test_only_the_segments_of_the_tables_are_read_and_ddls_of_others_do_not_count(source: MadeSource) -> None:
    for name in ("t", "o"):
        source.create_table(name, [ID])
    put(source, "t", 1)
    put(source, "o", 1, 2)
    source.genesis()
    put(source, "o", 3)
    source.cut()
    put(source, "t", 2)
    put(source, "o", 4)
    source.add_column("o", column(2, "more"))
    source.ddl(211, 0, "SOMETHING NEW")
    source.cut(pumps=3)
    put(source, "o", 5)
    end = source.cut()
    found = plan(source, "d.t")
    assert (found.to, found.base_tables, found.base_rows, found.ddls) == (end, 1, 1, ())
    assert [window.segments for window in found.windows] == [1], "two windows have nothing of it"
    assert [(each.table, each.rows, each.changes) for each in found.sizes] == [("d.t", 1, 1)]
    assert plan(source, "d.o").rows > found.rows


def test_the_steps_build_in_our_schema_hand_over_and_leave(source: MadeSource) -> None:
    source.create_table("t", [ID])
    source.genesis()
    put(source, "t", 1)
    source.cut()
    planned = plan(source, "d.t", called="copy.t_0300")
    made = steps(source, planned)
    assert [kind_of(step) for step in made.all] == [
        "reset", "build", "apply", "apply", "hand_over", "foreign_keys", "leave",
    ]  # fmt: skip
    reset, build, _, _, over, keys, leave = made.anew
    assert isinstance(reset, Reset)
    assert "d.t as copy.t_0300" in reset.checkpoint.reason
    assert isinstance(build, Build)
    assert build.drop == build.databases == ()
    assert [version.name for version in build.objects] == [("pumphouse_parts", "part_1")]
    assert isinstance(over, HandOver)
    assert over.tables == (("part_1", ("copy", "t_0300")),)
    assert [info.name for info in over.databases] == ["copy"]
    assert str(build) == "make 1 tables and views"  # the schema of ours that these lie in is nothing that stays
    assert str(over).endswith("in their places: copy.t_0300; databases that are missing are made: copy")
    assert isinstance(keys, ForeignKeys)
    assert [version.name for version in keys.objects] == [("copy", "t_0300")]
    assert leave == Leave(schema="pumphouse_parts")
    other = plan(source, "d.t", called="copy.t_0400")
    assert steps(source, other).digest() != made.digest()
    assert other.digest() != planned.digest()


def test_foreign_keys_stay_between_restored_tables_and_others_are_named(source: MadeSource) -> None:
    source.create_table("parent", [ID])
    source.create_table("aside", [ID])
    source.create_table("t", [ID], fk_info=[key("parent"), {**key("aside", "fk_2"), "id": 2}])
    source.genesis()
    found = plan(source, "d.t", "d.parent", database="copy")
    (t,) = [version for version in found.restored if version.table.name == "t"]
    assert [each["ref_schema"]["O"] for each in t.table.raw["fk_info"]] == ["copy"]
    assert found.left == ("the foreign key fk_2 of d.t to d.aside is left out",)
    assert all(not version.table.raw.get("fk_info") for version in found.objects)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("d.%", ["d.a_b", "d.axb", "d.t"]), ("D.T", ["d.t"]), ("d.a_b", ["d.a_b"]), ("d.a?b", ["d.a_b", "d.axb"]),
        ("d.*b", ["d.a_b", "d.axb"]),
    ],
)  # fmt: skip
def test_patterns_fit_tables_at_the_moment_and_an_underscore_is_itself(
    source: MadeSource, asked: str, found: list[str]
) -> None:
    for name in ("t", "a_b", "axb"):
        source.create_table(name, [ID])
    at = source.genesis()
    source.create_table("axxb", [ID])
    source.cut()
    assert [each.table for each in plan(source, asked, to=at).placed] == found


def test_what_cannot_be_asked_for_is_refused_by_name(source: MadeSource) -> None:
    for name in ("orders", "o"):
        source.create_table(name, [ID])
    source.genesis()
    put(source, "orders", 1)
    source.drop_table("orders")
    dropped = source.jobs[-1].commit_ts
    source.cut()
    with pytest.raises(UsageError, match=r"no table d\.orders at") as gone:
        plan(source, "d.orders")
    assert f"--to {dropped - 1}" in gone.value.hint
    assert [each.table for each in plan(source, "d.orders", to=Tso(dropped - 1)).placed] == ["d.orders"]
    with pytest.raises(UsageError, match="no table") as misspelt:
        plan(source, "d.oo")
    assert "d.o?" in misspelt.value.hint
    with pytest.raises(UsageError, match="--as names one table"):
        plan(source, "d.%", to=Tso(dropped - 1), called="d.x")
    for called in ("pumphouse.x", "pumphouse_parts.x", "mysql.x"):
        with pytest.raises(UsageError, match="cannot get the place"):
            plan(source, "d.o", called=called)
    with pytest.raises(UsageError, match="is no table"):
        plan(source, "orders")
    with pytest.raises(UsageError, match="exclude each other"):
        plan(source, "d.o", called="d.x", database="e")
    with pytest.raises(TargetUnreachable):
        plan(source, "d.o", to=Tso(1))


def test_a_table_whose_rows_came_from_another_takes_that_along(source: MadeSource) -> None:
    for name in ("orders", "ghost", "o"):
        source.create_table(name, [ID])
    source.genesis()
    source.rename_table("orders", "old")
    source.rename_table("ghost", "orders")
    source.cut()
    found = plan(source, "d.orders")
    assert found.along == ("d.ghost", "d.old")
    assert [ddl.action for ddl in found.ddls] == ["RENAME_TABLE", "RENAME_TABLE"]
    assert [each.table for each in found.placed] == ["d.orders"]
    # A dump behind the renames needs them no more.
    assert plan(source, "d.o").along == ()


def test_a_database_that_goes_is_its_tables(source: MadeSource) -> None:
    source.create_table("t", [ID])
    source.create_table("o", [ID])
    put(source, "t", 1)
    at = source.genesis()
    source.drop_database()
    source.ddl(1, 0, "CREATE DATABASE `d`", DBInfo={"id": 2, "db_name": {"O": "d", "L": "d"}, "charset": "utf8mb4",
                                                   "collate": "utf8mb4_bin", "state": 5})  # fmt: skip
    source.create_table("t", [ID])
    source.cut()
    assert plan(source, "d.t", to=at).base_rows == 1
    found = plan(source, "d.t")
    assert [(ddl.action, ddl.query) for ddl in found.ddls] == [
        ("DROP_TABLE", "DROP DATABASE `d`"), ("CREATE_TABLE", "CREATE TABLE `t`"),
    ]  # fmt: skip


def test_what_nobody_can_follow_is_refused_by_name(source: MadeSource) -> None:
    source.create_table("t", [ID])
    source.genesis()
    source.ddl(62, 0, "FLASHBACK CLUSTER TO TIMESTAMP '2026-01-01'")
    source.cut()
    with pytest.raises(LoadError, match=r"d\.t cannot be restored apart from the rest: "):
        plan(source, "d.t")


def test_statements_of_a_rule_would_reach_live_tables_and_are_refused(source: MadeSource) -> None:
    for name in ("t", "o"):
        source.create_table(name, [ID])
    source.genesis()
    source.add_column("t", column(2, "more"))
    job = source.jobs[-1].job.id
    source.cut()
    rule = LoadRule(do="replace", ddl=job, sql=("ALTER TABLE d.t ADD COLUMN more INT",), why="a test")
    with pytest.raises(RestoreError, match="by statements of its own"):
        plan(source, "d.t", load={"rules": (rule,)})
    assert plan(source, "d.o", load={"rules": (rule,)}).tables == 1


def test_each_plan_is_of_the_tables_alone_and_ends_where_their_bytes_fill_it(source: MadeSource) -> None:
    for name in ("t", "o"):
        source.create_table(name, [ID])
    source.genesis()
    for each in range(4):
        put(source, "o", each)
        source.cut()
    put(source, "t", 1)
    source.cut()
    found = plan(source, "d.t", load={"max_plan_bytes": 1})
    assert [work.plan.only for work in found.works] == [("d.t",)] * 2
    assert sum(isinstance(step, Apply) for step in steps(source, found).anew) == 2
