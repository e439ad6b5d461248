"""Which tables of a dump count, which are read again, and which the log has whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from pumphouse.archive.base import BaseChunk, BaseTable
from pumphouse.archive.view import read_view
from pumphouse.codec.columnar import key_rank
from pumphouse.dump.survey import Survey, survey
from pumphouse.model.table import MysqlType
from pumphouse.model.tso import Tso
from pumphouse.settings import DumpRule
from tests.support.dumpedsource import DumpedSource
from tests.support.madearchive import MadeSource, column

pytestmark = pytest.mark.row("A5")


@pytest.fixture
def source(tmp_path: Path) -> MadeSource:
    made = MadeSource(tmp_path)
    for name in ("kept", "t"):
        made.create_table(name, [column(1, "id", flag=3), column(2, "s", MysqlType.VARCHAR)])
    made.genesis()
    return made


def note(source: MadeSource, name: str, low: Tso, number: int = 0, *, last: bool = True) -> BaseChunk:
    return BaseChunk(
        db="d", table=name, table_id=source.tables[name].info.id, low=low, number=number,
        upto=None if last else (b"1",), last=last, segment=None,
    )  # fmt: skip


def look(
    source: MadeSource,
    low: Tso,
    notes: list[BaseChunk],
    rules: Sequence[DumpRule] = (),
    earlier: Sequence[BaseTable] = (),
) -> Survey:
    at = source.cut()
    source.tick()
    source.cut()
    return survey(read_view(source.archive), low, notes, at, earlier, rules=rules)


def names(found: Survey) -> tuple[list[str], list[str]]:
    return [table.table for table in found.tables], [version.table.name for version in found.missing]


def test_a_table_counts_when_its_last_chunk_is_there_and_an_attempt_goes_on_behind_a_hole_less_beginning(
    source: MadeSource,
) -> None:
    low = source.cut()
    first, third = note(source, "t", low, 0, last=False), note(source, "t", low, 2)
    found = look(source, low, [note(source, "kept", low), first, third])
    assert names(found) == (["kept"], ["t"])
    assert found.begun == {source.tables["t"].info.id: (first,)}


@pytest.mark.parametrize("change", ["add", "rename", "drop column"])
def test_a_ddl_that_changes_a_table_has_it_read_again(source: MadeSource, change: str) -> None:
    low = source.cut()
    notes = [note(source, "kept", low), note(source, "t", low)]
    if change == "add":
        source.add_column("t", column(9, "more"))
    elif change == "rename":
        source.rename_table("t", "other")
    else:
        source.drop_column("t", "s")
    found = look(source, low, notes)
    assert names(found) == (["kept"], ["other" if change == "rename" else "t"])
    assert found.begun == {}
    later = source.cut()
    again = [*notes, note(source, "other" if change == "rename" else "t", later)]
    assert names(look(source, low, again))[1] == []


def test_tables_that_were_born_in_the_log_need_no_reading_until_a_ddl_changes_them(source: MadeSource) -> None:
    low = source.cut()
    notes = [note(source, "kept", low), note(source, "t", low)]
    source.truncate("t")
    source.create_table("new", [column(1, "id", flag=3)])
    found = look(source, low, notes)
    assert names(found) == (["kept"], [])
    source.add_column("new", column(9, "more"))
    assert names(look(source, low, notes)) == (["kept"], ["new"])


def test_a_dropped_table_is_not_asked_for(source: MadeSource) -> None:
    low = source.cut()
    source.drop_table("t")
    assert names(look(source, low, [note(source, "kept", low)])) == (["kept"], [])


def test_a_rule_leaves_out_what_would_have_to_be_read_and_nothing_else(source: MadeSource) -> None:
    low = source.cut()
    rules = [DumpRule(table="D.*", why="all of them")]
    source.create_table("new", [column(1, "id", flag=3)])
    found = look(source, low, [note(source, "kept", low)], rules)
    assert names(found) == (["kept"], [])
    assert [(each.name, each.table_id, each.why) for each in found.without] == [
        ("d.t", source.tables["t"].info.id, "all of them")
    ]
    whole = look(source, low, [note(source, "t", low)]).tables
    assert look(source, low, [note(source, "kept", low)], rules, whole).without == ()


def test_a_table_that_had_rows_when_its_job_was_written_was_not_born_empty(source: MadeSource) -> None:
    low = source.cut()
    made = [note(source, name, low) for name in ("kept", "t")]
    source.create_table("imported", [column(1, "id", flag=3)])
    source.rewrite_job(lambda job: job.update(had_rows=True))
    assert names(look(source, low, made)) == (["kept", "t"], ["imported"])


@pytest.mark.parametrize("flag", [3, 3 | 32], ids=["signed", "unsigned"])
def test_segments_of_a_table_with_an_integer_key_say_where_they_begin(tmp_path: Path, flag: int) -> None:
    source = DumpedSource(tmp_path)
    source.create_table("t", [column(1, "id", flag=flag), column(2, "n")])
    source.create_table("k", [column(1, "id"), column(2, "n")], pk_is_handle=False)
    source.genesis()
    low, shift = source.cut(), 0 if flag & 32 else 1 << 63
    with_rows = [source.read("t", low, low, [{"id": each, "n": 1}], number=each) for each in (7, 9, 50)]
    found = [
        replace(with_rows[0], number=0, last=False, upto=(b"7",)),
        replace(with_rows[0], number=1, last=False, upto=(b"8",), segment=None),  # its rows went meanwhile
        replace(with_rows[1], number=2, last=False, upto=(b"9",)),
        replace(with_rows[2], number=3, last=True, upto=None),
    ]
    keyless = source.read("k", low, low, [{"id": 1, "n": 1}])
    at = source.cut()
    source.cut()
    tables = {each.table: each for each in survey(read_view(source.archive), low, [*found, keyless], at).tables}
    assert tables["t"].ranks == (9 + shift, 10 + shift)
    assert tables["k"].ranks is None
    assert [int(rank) for rank in key_rank(pa.array([9], pa.uint64() if flag & 32 else pa.int64()))] == [9 + shift]
