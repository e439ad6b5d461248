"""What becomes part of SQL, and what is read from it."""

import re
from types import SimpleNamespace

import pytest

from pumphouse.errors import SchemaError
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.ident import columns, literal, qualified, quote
from pumphouse.schema.rename import Renamed, parse_rename
from pumphouse.schema.render import render
from pumphouse.schema.sequence import restart_of
from tests.support.schemajobs import Source, int_col, key


def test_names_and_texts_cannot_break_out() -> None:
    assert quote("a`b") == "`a``b`"
    assert qualified("d.x", "t") == "`d.x`.`t`"
    assert columns(["a", "b c"]) == "`a`,`b c`"
    assert literal("it's \\ \n\0") == "'it\\'s \\\\ \\n\\0'"


@pytest.mark.row("S2")
@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("RENAME TABLE a TO b", [("", "a", "", "b")]),
        ("rename tables `a``x` to d.`b c`, e.f TO g ;", [("", "a`x", "d", "b c"), ("e", "f", "", "g")]),
        ('RENAME TABLE "a" TO "b""c", `to` TO `,`', [("", "a", "", 'b"c'), ("", "to", "", ",")]),
        ("/* x */ RENAME TABLE -- why, `to`\n a TO täst", [("", "a", "", "täst")]),
        ("RENAME TABLE to TO rename", [("", "to", "", "rename")]),
    ],
)
def test_a_rename_is_read_whatever_its_quotes(query: str, wanted: list[tuple[str, str, str, str]]) -> None:
    assert parse_rename(query) == [Renamed(*w) for w in wanted]


@pytest.mark.parametrize(
    "query",
    [
        "",
        "ALTER TABLE a RENAME TO b",
        "RENAME TABLE a",
        "RENAME TABLE a TO b c",
        "RENAME TABLE a TO , b",
        "RENAME TABLE 'a' TO b",
    ],
)
def test_what_is_no_rename_is_refused(query: str) -> None:
    with pytest.raises(SchemaError, match="cannot read which tables"):
        parse_rename(query)


@pytest.mark.row("S2")
@pytest.mark.parametrize(
    ("flag", "spread", "most"), [(4099, 0, 2**60 - 1), (4099 | 32, 64, 2**61 - 1), (4099, 54, 2**50 - 1)]
)
def test_the_base_of_random_ids_that_have_run_out_is_the_largest_that_a_tidb_takes(
    flag: int, spread: int, most: int
) -> None:
    for base in (most, most + 30_000):
        source = Source()
        source.create_db("d")
        random = {"auto_random_bits": 3, "auto_random_range_bits": spread, "auto_rand_id": base}
        source.create("d.t", [int_col("id", flag=flag)], **random)
        (create,) = render(source.timeline().events[-1], Dialect.TIDB).statements
        assert f" AUTO_RANDOM_BASE={most}" in create.sql


@pytest.mark.row("S2")
def test_only_the_first_column_of_a_key_is_random() -> None:
    source = Source()
    source.create_db("d")
    both = [int_col("k", flag=4099), int_col("id", flag=4099)]
    primary = key("PRIMARY", "id", "k", primary=True)
    source.create("d.t", both, [primary], is_common_handle=True, auto_random_bits=4)
    (create,) = render(source.timeline().events[-1], Dialect.TIDB).statements
    assert re.findall(r"`(\w+)` int\b[^,]* AUTO_RANDOM\(4\)", create.sql) == ["id"], create.sql


@pytest.mark.row("S3")
@pytest.mark.parametrize(
    ("query", "begins"),
    [
        ("ALTER SEQUENCE s RESTART", 1),
        ("alter sequence d.s restart with 5 cache 3", 5),
        ("ALTER SEQUENCE IF EXISTS `a``restart`.`b` RESTART = -4", -4),
        ("ALTER SEQUENCE s RESTART WITH - 5", -5),
        ("ALTER SEQUENCE s RESTART WITH +5", 5),
        ("/* x */ ALTER SEQUENCE s -- restart 7\n RESTART 3", 3),
        ("ALTER SEQUENCE restart RESTART 9", 9),
        ("ALTER SEQUENCE `restart` CACHE 50", None),
        ("ALTER SEQUENCE d.restart CACHE 50", None),
        ("ALTER SEQUENCE `order-restart-ids` CACHE 5", None),
        ("ALTER SEQUENCE s CACHE 50 /* no restart */", None),
        ("ALTER SEQUENCE s COMMENT = 'restart 5' CACHE 3", None),
    ],
)
def test_a_sequence_begins_anew_where_the_statement_says_so_and_nowhere_else(query: str, begins: int | None) -> None:
    assert restart_of(SimpleNamespace(query=query), SimpleNamespace(raw={"sequence": {"sequence_start": 1}})) == begins  # type: ignore[arg-type]
