"""Changes of a table, its rows at a moment and versions of a row, over random histories with DDLs, Pumps and windows."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from pumphouse.archive import segment
from pumphouse.archive.base import TableWithout
from pumphouse.archive.expire import Ages, expire
from pumphouse.archive.restorable import restorable_from
from pumphouse.archive.retention import Policy
from pumphouse.archive.view import read_view
from pumphouse.cli import cli
from pumphouse.codec.columnar import DELETE, INSERT, UPDATE
from pumphouse.codec.row import encode_insert
from pumphouse.errors import BadManifest, BadSegment, LoadError, RestoreError, UnknownTable, UsageError
from pumphouse.history.changes import Asked, Changed, changes, forms_between, range_in, tables_of
from pumphouse.history.rows import moment_of, rows_at
from pumphouse.history.shown import clock
from pumphouse.history.table import ChangeTable, require_one_key
from pumphouse.loader.changes import Form
from pumphouse.loader.keys import ALL_ROWS, Predicate
from pumphouse.model.table import MysqlType, TableInfo
from pumphouse.model.tso import Tso, show
from pumphouse.schema.versions import DdlEvent
from pumphouse.settings import LoadRule, LoadSettings
from spark_tasks.history import HistoryReader
from spark_tasks.history import _question as question
from tests.support import madearchive
from tests.support.agedarchive import aged
from tests.support.madearchive import Churn, MadeSource, column, index

pytestmark = pytest.mark.row("A6")
LOAD = LoadSettings(unit_bytes=1 << 20)
Row = tuple[Any, ...]


def asked(source: MadeSource, table: str, **more: Any) -> Iterator[Changed | DdlEvent]:
    view = read_view(source.archive, since=more.get("after"))
    begin, end = range_in(view, more.pop("after", None), more.pop("upto", None))
    return changes(source.archive, view, Asked(table=table, after=begin, upto=end, **more))


def rows_of(source: MadeSource, table: str, at: int, where: Predicate = ALL_ROWS) -> Counter[Row]:
    view = read_view(source.archive, upto=Tso(at))
    moment = moment_of(view, table, Tso(at), archive=source.settings, load=LOAD, where=where)
    return Counter(tuple(row.values()) for batch in rows_at(moment) for row in batch.to_pylist())


def one_by_one(found: Iterator[Changed | DdlEvent]) -> Iterator[tuple[Changed, int, Any, Any]]:
    for some in found:
        if isinstance(some, Changed):
            for at, (old, new) in enumerate(zip(some.old.to_pylist(), some.new.to_pylist(), strict=True)):
                yield some, at, None if some.op[at] == INSERT else old, None if some.op[at] == DELETE else new


def told(*arguments: str, root: Path) -> Any:
    found = CliRunner(catch_exceptions=False).invoke(cli, ["archive", *arguments, "--archive", f"file://{root}"])
    assert found.exit_code == 0, found.output
    return found.stdout


def story(source: MadeSource, seed: int) -> dict[int, dict[str, Counter[Row]]]:
    """A history of every awkward kind; the rows at some moments of it, by moment and table."""
    rng, churn, moments = random.Random(seed), Churn(source, seed), {}
    churn.fill()
    source.genesis(base=seed % 2 == 0 or not source.archive.begun())
    for number in range(8):
        churn.work(rng.randrange(1, 6))
        if rng.random() < 0.4:
            source.add_column("t", column(20 + number, f"c{number}", MysqlType.VARCHAR, origin_default=f"d{number}"))
        if rng.random() < 0.3:
            source.rename_table("u", "u_")
            with source.txn() as t:
                t.insert("u_", id=1000 + number, u=b"renamed%d" % number)
            source.rename_table("u_", "u")
        moments[source.tick()] = source.snapshot()
        if rng.random() < 0.7:
            source.cut(pumps=rng.randrange(1, 4))
    source.cut()
    return moments


def standing(held: Counter[Row], found: Iterator[Changed | DdlEvent], defaults: dict[str, bytes]) -> Counter[Row]:
    """Rows that are held, and changes laid over them."""
    rows = Counter(held)
    width = len(next(iter(held), ()))
    for some, _, old, new in one_by_one(found):
        names = [c.name for c in some.form.columns()]
        assert list((old or new).keys()) == names
        if len(names) > width:  # an ADD COLUMN since: rows have its default
            added, width = [defaults[name] for name in names[width:]], len(names)
            rows = Counter({(*row, *added): count for row, count in rows.items()})
        for row, sign in ((old, -1), (new, 1)):
            if row is not None:
                rows[tuple(row.values())] += sign
                assert rows[tuple(row.values())] >= 0, "a row goes that was not there"
    return +rows


@pytest.mark.parametrize("seed", range(12))
def test_changes_laid_over_the_rows_of_a_moment_are_the_rows_of_a_later_one(tmp_path: Path, seed: int) -> None:
    source = MadeSource(tmp_path)
    moments = sorted(story(source, seed).items())
    defaults = {f"c{number}": b"d%d" % number for number in range(8)}
    rng = random.Random(seed)
    for table in ("t", "k", "u"):
        (begin, before), (end, after) = sorted(rng.sample(moments, 2), key=lambda each: each[0])
        found = list(asked(source, f"d.{table}", after=Tso(begin), upto=Tso(end)))
        order = [
            (int(ts), int(start), int(place))
            for each in found
            if isinstance(each, Changed)
            for ts, start, place in zip(each.commit_ts, each.start_ts, each.position, strict=True)
        ]
        assert order == sorted(set(order))
        got = standing(before[table], iter(found), defaults)
        width = len(next(iter(after[table])))  # columns that no later change has seen
        names = [c.name for c in read_form(source, table, end)]
        got = Counter({(*row, *(defaults[n] for n in names[len(row) : width])): n_ for row, n_ in got.items()})
        assert got == after[table]


def read_form(source: MadeSource, table: str, at: int) -> Any:
    view = read_view(source.archive, upto=Tso(at))
    return moment_of(view, f"d.{table}", Tso(at), archive=source.settings, load=LOAD).form.columns()


@pytest.mark.parametrize("seed", range(6))
def test_rows_at_a_moment_are_those_of_the_source(tmp_path: Path, seed: int) -> None:
    source = MadeSource(tmp_path)
    for at, then in random.Random(seed).sample(sorted(story(source, seed * 2).items()), 3):
        for table, rows in then.items():
            assert rows_of(source, f"D.{table.upper()}", at) == rows
        key = random.Random(at).choice(sorted(source.tables["t"].rows))
        assert rows_of(source, "d.t", at, Predicate(keys=(str(key),), exact=True)) == Counter(
            {row: n for row, n in then["t"].items() if row[0] == key}
        )


def test_a_large_table_is_folded_in_parts_each_by_key(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    source.create_table("big", [column(1, "id", flag=3), column(2, "v", MysqlType.VARCHAR)])
    with source.txn() as t:
        for id_ in random.Random(1).sample(range(40_000), 20_000):
            t.insert("big", id=id_, v=b"x" * 100)
    source.genesis()
    with source.txn() as t:
        for id_ in list(source.tables["big"].rows)[::50]:
            t.delete("big", id_)
    end = source.cut()
    view = read_view(source.archive, upto=end)
    moment = moment_of(view, "d.big", end, archive=source.settings, load=LOAD)
    assert moment.context.plan.bucket_count(moment.form.wanted.table_id) > 1
    parts = [batch.column("id").to_pylist() for batch in rows_at(moment)]
    assert all(part == sorted(part) for part in parts)
    assert sorted(id_ for part in parts for id_ in part) == sorted(source.tables["big"].rows)


def test_copies_of_a_row_without_a_key_are_made_a_batch_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = MadeSource(tmp_path)
    source.create_table("t", [column(1, "a"), column(2, "v", MysqlType.VARCHAR, flen=5000)], pk_is_handle=False)
    source.genesis()
    with source.txn() as t:
        for number in range(10_000):
            t.insert("t", a=number % 10 // 9, v=b"x" * 3000)
    source.cut()
    monkeypatch.setattr("pumphouse.history.rows._BATCH_ROWS", 100)
    moment = moment_of(
        read_view(source.archive), "d.t", source.archive.end(), archive=source.settings, load=LoadSettings()
    )
    with closing(rows_at(moment)) as found:
        before = pa.total_allocated_bytes()
        some = [next(found).column("a").to_pylist()]
        assert pa.total_allocated_bytes() - before < 3 << 20, "30 MB in all"
        some += [batch.column("a").to_pylist() for batch in found]
    assert {len(each) for each in some} == {100}
    assert [a for each in some for a in each] == [0] * 9_000 + [1] * 1_000


def test_a_key_is_found_before_and_after_the_change_and_nothing_else_is(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    story(source, 3)
    whole = list(one_by_one(asked(source, "d.t")))
    for key in (3, 17, 59):
        found = list(one_by_one(asked(source, "d.t", where=Predicate(keys=(str(key),), exact=True))))
        same = [each for each in whole if key in ((each[2] or {}).get("id"), (each[3] or {}).get("id"))]
        assert [(old, new) for _, _, old, new in found] == [(old, new) for _, _, old, new in same]
    with pytest.raises(UsageError, match=r"d\.k has no key"):
        list(asked(source, "d.k", where=Predicate(keys=("1",))))


def test_columns_are_those_that_are_asked_for_and_the_key(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    story(source, 2)
    some = [new for _, _, _, new in one_by_one(asked(source, "d.t", columns=("NAME",))) if new]
    whole = [new for _, _, _, new in one_by_one(asked(source, "d.t")) if new]
    assert some == [{"id": each["id"], "name": each["name"]} for each in whole]
    with pytest.raises(UsageError, match="no column nothing"):
        list(asked(source, "d.t", columns=("nothing",)))


def followed(source: MadeSource) -> None:
    source.create_table("t", [column(1, "id", flag=3), column(2, "name", MysqlType.VARCHAR)])
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=1, name=b"first")
    source.rename_table("t", "other")
    with source.txn() as t:
        t.update("other", 1, name=b"renamed")
    source.rename_table("other", "t")
    source.cut()
    source.truncate("t")
    with source.txn() as t:
        t.insert("t", id=1, name=b"second")
    source.drop_table("t")
    source.create_table("t", [column(1, "id", flag=3), column(2, "size")])
    with source.txn() as t:
        t.insert("t", id=1, size=5)
    source.cut()


def test_a_table_is_followed_by_name_through_rename_truncate_and_drop_with_its_ddls_in_place(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    followed(source)
    said = [json.loads(line) for line in told("changes", "d.t", "--json", root=tmp_path).splitlines()]
    assert [(each.get("action") or each["op"], each.get("table"), each.get("new")) for each in said] == [
        ("insert", "d.t", {"id": 1, "name": "first"}),
        ("RENAME_TABLE", None, None),
        ("update", "d.other", {"id": 1, "name": "renamed"}),
        ("RENAME_TABLE", None, None),
        ("TRUNCATE_TABLE", None, None),
        ("insert", "d.t", {"id": 1, "name": "second"}),
        ("DROP_TABLE", None, None),
        ("CREATE_TABLE", None, None),
        ("insert", "d.t", {"id": 1, "size": 5}),
    ]
    assert [each["commit_ts"] for each in said] == sorted(each["commit_ts"] for each in said)
    lines = told("changes", "d.t", "--limit", "3", root=tmp_path).splitlines()
    assert lines[2].endswith('update d.other: id 1, name "first" -> "renamed"')
    sql = told("changes", "d.t", "--sql", "--key", "1", root=tmp_path)
    assert "UPDATE `d`.`other` SET `name` = 'renamed' WHERE `id` = 1;" in sql


def test_a_ddl_of_one_table_stands_between_changes_of_another_that_had_the_name(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis()
    source.rename_table("t", "old")
    source.create_table("t", [column(1, "id", flag=3)])
    for number in range(3):
        with source.txn() as t:
            t.insert("old", id=number)
        source.add_column("t", column(5 + number, f"c{number}"))
    source.cut(pumps=1)
    said = [json.loads(line) for line in told("changes", "d.t", "--json", root=tmp_path).splitlines()]
    assert [each.get("table") or each["action"] for each in said[2:]] == ["d.old", "ADD_COLUMN"] * 3


def test_versions_of_a_row_say_from_when_to_when_it_stood_and_what_ended_it(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    followed(source)
    said = [json.loads(line) for line in told("versions", "d.t", "--key", "1", "--json", root=tmp_path).splitlines()]
    assert [(each["row"], each["ended"]) for each in said] == [
        ({"id": 1, "name": "first"}, "update"),
        ({"id": 1, "name": "renamed"}, "TRUNCATE_TABLE"),
        ({"id": 1, "name": "second"}, "DROP_TABLE"),
        ({"id": 1, "size": 5}, None),
    ]
    assert [each["from_ts"] for each in said[1:2]] == [said[0]["to_ts"]]
    assert said[-1]["to_ts"] is None
    later = told("versions", "d.t", "--key", "1", "--from", str(said[2]["from_ts"]), root=tmp_path).splitlines()
    assert later[0].startswith("earlier to") or "second" not in later[0]


def test_a_version_that_nothing_ended_in_the_range_is_not_said_to_stand_now(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    followed(source)
    first = json.loads(told("versions", "d.t", "--key", "1", "--json", root=tmp_path).splitlines()[0])
    upto = first["to_ts"] - 1
    arguments = ("versions", "d.t", "--key", "1", "--to", str(upto))
    line, _ = told(*arguments, root=tmp_path).splitlines()
    assert line.startswith(f"{show(first['from_ts'])} to the end of the range, {show(upto)}: id 1,")
    said = json.loads(told(*arguments, "--json", root=tmp_path))
    assert (said["to_ts"], said["ended"], said["upto_ts"], said["upto_time"]) == (None, None, upto, clock(upto))


def test_a_row_that_nobody_changed_has_one_version(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    source.create_table("t", [column(1, "id", flag=3)])
    with source.txn() as t:
        t.insert("t", id=7)
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=8)
    source.cut()
    (version,) = map(json.loads, told("versions", "d.t", "--key", "7", "--json", root=tmp_path).splitlines())
    assert (version["row"], version["from_ts"], version["to_ts"]) == ({"id": 7}, None, None)
    assert "no row of d.t has the key 9" in told("versions", "d.t", "--key", "9", root=tmp_path)


def test_a_transaction_in_parts_and_of_several_pumps_is_streamed_in_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "ROW_GROUP_BYTES", 8192)
    monkeypatch.setattr(madearchive, "SegmentWriter", partial(segment.SegmentWriter, part_bytes=4096))
    source = MadeSource(tmp_path)
    source.create_table("t", [column(1, "id", flag=3), column(2, "name", MysqlType.VARCHAR)])
    source.genesis()
    with source.txn() as t:
        for id_ in range(2000):
            t.insert("t", id=id_, name=b"y" * 50)
    with source.txn() as t:
        for id_ in range(2000):
            t.update("t", id_, name=b"z")
    source.cut(pumps=2)
    found = [each for each in asked(source, "d.t") if isinstance(each, Changed)]
    assert len(found) > 4
    ops = [int(op) for each in found for op in each.op]
    assert ops == [INSERT] * 2000 + [UPDATE] * 2000
    ids = [id_ for each in found for id_ in each.new.column("id").to_pylist()]
    assert ids == [*range(2000), *range(2000)]


@pytest.mark.parametrize("which", ["segment", "window"])
def test_what_is_missing_or_damaged_is_refused_by_name(tmp_path: Path, which: str) -> None:
    source = MadeSource(tmp_path)
    followed(source)
    name = next(
        path
        for path in sorted(tmp_path.rglob("*"))
        if path.is_file() and f"/{which}s/" in str(path) and path.suffix in (".parquet", ".json")
    )
    for harm in (lambda: name.write_bytes(name.read_bytes()[:-9] + b"x" * 9), name.unlink):
        harm()
        fresh = MadeSource.__new__(MadeSource)
        fresh.archive = type(source.archive).open(source.settings, source.cluster_id)
        with pytest.raises((BadSegment, BadManifest), match=name.name.split(".")[0]):
            list(asked(fresh, "d.t"))


@pytest.mark.row("A5")
def test_when_the_oldest_windows_have_expired_all_that_is_kept_is_told(tmp_path: Path) -> None:
    source = aged(tmp_path).source
    genesis, end = source.archive.genesis().ts, source.archive.end()
    before = told("changes", "d.t", "--json", root=tmp_path).splitlines()
    expire(source.archive, Ages(), Policy(bases=1), (), now=end, who="me@here")
    start = source.archive.range().start
    after = told("changes", "d.t", "--json", root=tmp_path).splitlines()
    assert after == before[-len(after) :]
    assert 0 < len(after) < len(before)
    assert f"changes of d.t from {start}" in told("changes", "d.t", root=tmp_path)
    assert question({"table": "d.t", "archive": f"file://{tmp_path}"}).asked.after == start
    error = refused("changes", "d.t", "--from", str(int(genesis)), root=tmp_path)
    assert f"the archive covers {start}" in error
    assert "by me@here" in error


@pytest.mark.row("A5")
def test_a_moment_before_the_oldest_kept_base_is_refused_as_a_restore_refuses_it(tmp_path: Path) -> None:
    source = aged(tmp_path / "archive").source
    expire(source.archive, Ages(), Policy(bases=1), (), now=source.archive.end(), who="me@here")
    kept = source.archive.range()
    first, at = restorable_from(source.archive), Tso(kept.start + 1)
    assert first is not None
    assert at < first
    why = rf"(?s){at} .* cannot be restored: the archive keeps moments from {first} .* by me@here"
    into, root = (f"file://{tmp_path / 'out'}", "--format", "csv"), tmp_path / "archive"
    for words in (("changes", "d.t"), ("export", *into, "--table", "d.t"), ("base",)):
        error = refused(*words, "--at", str(at), root=root)
        assert re.search(why, error), error
        assert "dump`" not in error, "no dump leads to the past"
    reader = HistoryReader(question({"table": "d.t", "archive": f"file://{root}", "at": str(at)}), None)
    with pytest.raises(RestoreError, match=why):
        reader.partitions()


def test_a_row_that_no_change_tells_is_read_at_the_first_moment_that_a_base_leads_to(tmp_path: Path) -> None:
    source = aged(tmp_path).source
    expire(source.archive, Ages(), Policy(bases=1), (), now=source.archive.end(), who="me@here")
    archive = source.archive
    assert archive.range().start < (restorable_from(archive) or 0)  # so nothing tells the rows at the begin
    assert "no row of d.t has the key 987654" in told("versions", "d.t", "--key", "987654", root=tmp_path)


def test_what_the_archive_does_not_have_is_refused_and_never_cut_to_fit(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    followed(source)
    with pytest.raises(UsageError, match="the archive covers"):
        asked(source, "d.t", upto=Tso(source.archive.end() + 1))
    with pytest.raises(UsageError, match="the archive covers"):
        told_error = CliRunner().invoke(
            cli, ["archive", "changes", "d.t", "--from", "2001-01-01", "--archive", f"file://{tmp_path}"]
        )
        raise told_error.exception or AssertionError
    with pytest.raises(UnknownTable, match=r"d\.none"):
        list(asked(source, "d.none"))
    with pytest.raises(UsageError, match="no table"):
        list(asked(source, "none"))


def test_rows_that_the_archive_alone_does_not_tell_are_refused_by_the_ddl(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    source.create_table("t", [column(1, "id", flag=3), column(2, "v")])
    with source.txn() as t:
        t.insert("t", id=1, v=5)
    source.genesis()
    raw = json.loads(json.dumps(source.tables["t"].info.raw))
    raw["cols"][1] = {**column(3, "v", MysqlType.VARCHAR), "offset": 1}
    source.alter("t", 12, raw)
    end = source.cut()
    with pytest.raises(LoadError, match=r"d\.t: the DDL at .* changed the type of v"):
        rows_of(source, "d.t", end)


def partitioned(*ids: int) -> dict[str, Any]:
    parts = [
        {"id": id_, "name": {"O": f"p{id_}", "L": f"p{id_}"}, "less_than": [str(100 * (at + 1))], "in_values": None}
        for at, id_ in enumerate(ids)
    ]
    return {"type": 1, "expr": "`id`", "columns": None, "enable": True, "num": len(ids), "definitions": parts}


def refused(*arguments: str, root: Path) -> str:
    found = CliRunner().invoke(cli, ["archive", *arguments, "--archive", f"file://{root}"])
    assert found.exception is not None, found.output
    return f"{found.output}{found.exception}"


def versions_of(root: Path, *more: str) -> list[Any]:
    said = [json.loads(line) for line in told("versions", "d.t", "--key", "7", "--json", *more, root=root).splitlines()]
    return [(each["row"], each["from_ts"], each["ended"]) for each in said]


def test_a_table_without_key_is_not_told_where_it_has_none_of_the_columns(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    source.create_table("k", [column(1, "a"), column(2, "b")], pk_is_handle=False)
    source.genesis()
    with source.txn() as t:
        t.insert("k", a=1, b=2)
    source.add_column("k", column(3, "c"))
    with source.txn() as t:
        t.insert("k", a=1, b=2, c=5)
    source.cut()
    assert "d.k has no key, and at" in refused("changes", "d.k", "--columns", "c", "--json", root=tmp_path)
    added = source.jobs[-1].commit_ts
    (said,) = told("changes", "d.k", "--columns", "c", "--json", "--from", str(int(added)), root=tmp_path).splitlines()
    assert json.loads(said)["new"] == {"c": 5}


def exchanged(source: MadeSource) -> None:
    """Changes of a table and of a partition, before and after they took each other's place."""
    source.create_table("pt", [column(1, "id", flag=3)], partition=partitioned(900))
    source.create_table("x", [column(1, "id", flag=3)])
    source.genesis()
    with source.txn() as t:
        t.insert("x", id=1)
        t.insert("pt", id=2)
    pt, x = source.tables["pt"].info, source.tables["x"].info
    raw = {**pt.raw, "partition": partitioned(x.id)}
    source.ddl(42, x.id, "ALTER TABLE pt EXCHANGE PARTITION p900 WITH TABLE x", TableInfo=raw)
    source.tables["pt"].info = TableInfo.from_dict(raw)
    source.tables["x"].info = TableInfo.from_dict({**x.raw, "id": 900})
    with source.txn() as t:
        t.insert("x", id=3)
        t.insert("pt", id=4)
    source.cut()


@pytest.mark.parametrize(("table", "ids"), [("d.pt", [2, 4]), ("d.x", [1, 3])])
def test_changes_count_to_the_table_that_they_were_made_in(tmp_path: Path, table: str, ids: list[int]) -> None:
    source = MadeSource(tmp_path)
    exchanged(source)
    said = [json.loads(line) for line in told("changes", table, "--json", root=tmp_path).splitlines()]
    assert [(each["table"], each["new"]["id"]) for each in said if each["op"] == "insert"] == [(table, i) for i in ids]
    assert [each["action"] for each in said if each["op"] == "ddl"] == ["EXCHANGE_PARTITION"]


@pytest.mark.parametrize(("type_", "ids"), [(20, (901,)), (23, (903, 901))])
def test_versions_of_a_row_that_a_ddl_may_have_taken_away_are_refused(
    tmp_path: Path, type_: int, ids: tuple[int, ...]
) -> None:
    source = MadeSource(tmp_path)
    source.create_table("t", [column(1, "id", flag=3)], partition=partitioned(900, 901))
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=7)
    source.alter("t", type_, {**source.tables["t"].info.raw, "partition": partitioned(*ids)})
    source.cut()
    assert re.search(
        r"versions of d\.t: .*_PARTITION\) changed rows", refused("versions", "d.t", "--key", "7", root=tmp_path)
    )
    ended = source.jobs[-1].commit_ts
    with source.txn() as t:
        t.source.tables["t"].rows.clear()
        t.insert("t", id=7)
    source.cut()
    assert [row for row, _, _ in versions_of(tmp_path, "--from", str(int(ended)))] == [{"id": 7}]


def test_versions_of_a_row_that_a_ddl_converted_are_refused(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    source.create_table("t", [column(1, "id", flag=3), column(2, "v")])
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=7, v=5)
    raw = json.loads(json.dumps(source.tables["t"].info.raw))
    raw["cols"][1] = {**column(3, "v", MysqlType.VARCHAR), "offset": 1}
    source.alter("t", 12, raw)
    source.cut()
    assert "changed the type of v" in refused("versions", "d.t", "--key", "7", root=tmp_path)
    assert "no row of d.t has the key 9" in told("versions", "d.t", "--key", "9", root=tmp_path)


def test_a_row_from_before_the_range_ends_with_its_table(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    source.create_table("t", [column(1, "id", flag=3)])
    with source.txn() as t:
        t.insert("t", id=7)
    source.genesis()
    source.truncate("t")
    end = source.cut()
    assert versions_of(tmp_path) == [({"id": 7}, None, "TRUNCATE_TABLE")]
    with source.txn() as t:
        t.insert("t", id=7)
    source.rename_table("t", "gone")
    source.rename_table("gone", "t")
    source.cut()
    assert [(row, ended) for row, _, ended in versions_of(tmp_path)] == [
        ({"id": 7}, "TRUNCATE_TABLE"),
        ({"id": 7}, None),
    ]
    begin = source.cut()
    held = source.tables["t"]
    source.drop_table("t")
    dropped = source.cut()
    source.recover_table("t", held)
    source.cut()
    (first, second) = versions_of(tmp_path, "--from", str(int(begin)))
    assert (first, second[2]) == (({"id": 7}, None, "DROP_TABLE"), None)
    assert "dropped before the range" in refused(
        "versions", "d.t", "--key", "7", "--from", str(int(dropped)), root=tmp_path
    )
    assert versions_of(tmp_path, "--to", str(int(end)))[-1][2] == "TRUNCATE_TABLE"


def test_a_row_that_an_exchange_may_have_brought_is_refused(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    exchanged(source)
    for table in ("d.pt", "d.x"):
        assert "EXCHANGE_PARTITION) changed rows" in refused("versions", table, "--key", "5", root=tmp_path)


def test_sql_is_in_transactions_without_computed_columns_and_half_of_it_is_refused(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    computed = column(3, "g", generated_expr_string="`n` + 1", generated_stored=True, dependences={"n": {}})
    source.create_table("t", [column(1, "id", flag=3), column(2, "n"), computed])
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=1, n=2, g=3)
        t.insert("t", id=2, n=2, g=3)
    with source.txn() as t:
        t.update("t", 1, n=4, g=5)
    source.cut()
    sql = [line for line in told("changes", "d.t", "--sql", root=tmp_path).splitlines() if not line.startswith("--")]
    assert sql[sql.index("BEGIN;") :] == [
        "BEGIN;",
        "INSERT INTO `d`.`t` (`id`,`n`) VALUES (1,2);",
        "INSERT INTO `d`.`t` (`id`,`n`) VALUES (2,2);",
        "COMMIT;",
        "BEGIN;",
        "UPDATE `d`.`t` SET `n` = 4 WHERE `id` = 1;",
        "COMMIT;",
    ]
    assert "(`id`,`n`) VALUES" in told("changes", "d.t", "--sql", "--at", "latest", root=tmp_path)
    for more in (("--columns", "n"), ("--limit", "1")):
        assert f"takes no {more[0]}" in refused("changes", "d.t", "--sql", *more, root=tmp_path)


def test_rows_of_a_table_that_no_ddl_names_are_left_out_by_a_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = MadeSource(root := tmp_path / "archive")
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=7)
        t.builder.insert(4711, encode_insert(source.tables["t"].info, {1: 2}, handle=2))
    source.cut()
    out = tmp_path / "out"
    words = ("export", "--format", "csv", "--table", "d.t", "--at", "latest", str(out))
    assert "4711" in refused("changes", "d.t", "--at", "latest", "--json", root=root)
    rule = '{"do": "skip", "table": "4711", "why": "a stranger"}'
    monkeypatch.setenv("PUMPHOUSE_LOAD__RULES", f"[{rule}]")
    assert json.loads(told("changes", "d.t", "--at", "latest", "--json", root=root)) == {"id": 7}
    assert "d.t: 1 rows" in told(*words, root=root)


def test_a_rule_of_the_id_of_a_table_that_a_ddl_names_leaves_out_no_rows_of_a_history(tmp_path: Path) -> None:
    """It was written before the archive had the DDL, or the id was a partition's: loads alone go by it."""
    source = MadeSource(tmp_path)
    columns = [column(1, "id", flag=3)]
    parts = source.create_table("p", columns, partition=partitioned(300))
    table_id = source.create_table("t", columns)
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=7)
        t.builder.insert(300, encode_insert(source.tables["p"].info, {1: 8}, handle=8))
    source.cut()
    view = read_view(source.archive)
    for do in ("skip", "park"):
        rules = tuple(LoadRule(do=do, table=str(each), why="of then") for each in (table_id, parts, 300))
        for table, rows in (("d.t", [{"id": 7}]), ("d.p", [{"id": 8}])):
            load = LOAD.model_copy(update={"rules": rules})
            moment = moment_of(view, table, view.end, archive=source.settings, load=load)
            assert [row for batch in rows_at(moment) for row in batch.to_pylist()] == rows


@pytest.mark.parametrize("how", [(), ("--json",)])
def test_what_stands_behind_a_limit_begins_with_the_whole_transaction(tmp_path: Path, how: tuple[str, ...]) -> None:
    source = MadeSource(tmp_path)
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis()
    for ids in ((1, 2), (3, 4), (5,)):
        with source.txn() as t:
            for each in ids:
                t.insert("t", id=each)
    source.cut()
    words = ["archive", "changes", "d.t", *how, "--archive", f"file://{tmp_path}"]
    for limit, behind in (("2", {3, 4, 5}), ("3", {3, 4, 5}), ("4", {5})):
        found = CliRunner(catch_exceptions=False).invoke(cli, [*words, "--limit", limit])
        assert len(re.findall("insert", found.stdout)) == int(limit)
        (begin,) = re.findall(r"--from (\d+) goes on", found.stderr)
        rest = told("changes", "d.t", "--json", "--from", begin, root=tmp_path)
        assert {json.loads(line)["new"]["id"] for line in rest.splitlines()} == behind


def test_a_limit_names_no_begin_from_which_changes_would_be_left_out_or_shown_again(tmp_path: Path) -> None:
    """A table is found by the names that it has in the range."""
    source = MadeSource(tmp_path)
    source.create_table("o", [column(1, "id", flag=3)])
    source.genesis()
    with source.txn() as t:
        t.insert("o", id=1)
    source.rename_table("o", "o_old")
    source.create_table("o", [column(1, "id", flag=3)])
    for table in ("o_old", "o"):
        for each in (2, 3):
            with source.txn() as t:
                t.insert(table, id=each)
    source.drop_table("o_old")
    for each in range(4, 7):
        with source.txn() as t:
            for at in range(3):
                t.insert("o", id=10 * each + at)
    source.cut()
    genesis = str(source.archive.genesis().ts)

    def more(*words: str) -> tuple[str, str]:
        """What is found, and the begin that is named."""
        done = CliRunner(catch_exceptions=False).invoke(cli, ["archive", *words, "--archive", f"file://{tmp_path}"])
        assert "there are more" in done.output
        return done.stdout, "".join(re.findall(r"--from (\d+) goes on", done.output))

    # o, its two DDLs, two changes of o_old, two of o, the drop; then three transactions of three each.
    for limit, goes_on in (("1", True), ("2", False), ("4", False), ("7", False), ("8", True), ("11", True)):
        shown, begin = more("changes", "d.o", "--limit", limit)
        assert bool(begin) == goes_on, shown
    _, begin = more("changes", "d.o", "--limit", "9")
    for limit, goes_on in (("2", False), ("3", True)):
        assert bool(more("changes", "d.o", "--limit", limit, "--from", begin)[1]) == goes_on
    finds = ("find", "--from", genesis, "--table", "d.o")
    for limit, goes_on in (("1", True), ("2", False), ("7", False), ("8", True)):
        shown, begin = more(*finds, "--limit", limit)
        assert bool(begin) == goes_on, shown


def test_a_column_has_the_name_of_the_texts_that_no_column_holds(tmp_path: Path) -> None:
    source = MadeSource(root := tmp_path / "archive")
    columns = [column(1, "id", flag=3), column(2, "_Exact"), column(3, "born", MysqlType.DATE)]
    source.create_table("t", columns)
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=1, _Exact=5, born="0000-00-00")
    source.cut()
    out = tmp_path / "out"
    told("export", "--format", "parquet", "--table", "d.t", "--at", "latest", str(out), root=root)
    (path,) = out.rglob("*.parquet")
    assert pq.read_table(path).to_pylist() == [
        {"id": 1, "_Exact": 5, "born": None, "__exact": [("born", "0000-00-00")]}
    ]


def test_columns_of_a_key_have_the_names_that_changes_have_for_themselves(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    key = ("_Exact", "_op", "__op")
    columns = [column(at, name, flag=1) for at, name in enumerate(key, 1)]
    primary = index(1, "PRIMARY", *((name, at) for at, name in enumerate(key)), primary=True, unique=True)
    source.create_table("t", [*columns, column(4, "born", MysqlType.DATE)], pk_is_handle=False, index_info=[primary])
    source.genesis()
    with source.txn() as t:
        t.insert("t", _Exact=5, _op=6, __op=7, born="0000-00-00")
    source.cut()
    table = ChangeTable.of(key_forms(source))
    ((found,),) = [table.batch(each).to_pylist() for each in asked(source, "d.t") if isinstance(each, Changed)]
    assert [found[name] for name in ("___op", *key, "__exact")] == [
        "insert", 5, 6, 7, [("after.born", "0000-00-00")],
    ]  # fmt: skip
    assert len({name.lower() for name in table.schema.names}) == len(table.schema)


def test_a_table_that_was_truncated_before_it_got_its_name_is_followed(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=7)
    source.truncate("t")
    source.rename_table("t", "u")
    source.truncate("u")
    with source.txn() as t:
        t.insert("u", id=7)
    source.cut()
    for name in ("d.t", "d.u"):
        lines = [json.loads(line) for line in told("changes", name, "--json", root=tmp_path).splitlines()]
        assert [each.get("action", each["op"]) for each in lines] == [
            "insert", "TRUNCATE_TABLE", "RENAME_TABLE", "TRUNCATE_TABLE", "insert",
        ]  # fmt: skip
        stood = told("versions", name, "--key", "7", "--json", root=tmp_path).splitlines()
        assert [json.loads(line)["ended"] for line in stood] == ["TRUNCATE_TABLE", None]


def test_genesis_is_a_moment_and_losses_since_the_dump_are_told(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    source.create_table("t", [column(1, "id", flag=3)])
    with source.txn() as t:
        t.insert("t", id=7)
    at = source.genesis()
    source.cut(binlog_skipped=True)
    assert json.loads(told("changes", "d.t", "--at", str(int(at)), "--json", root=tmp_path)) == {"id": 7}
    arguments = ["archive", "versions", "d.t", "--key", "7", "--from", str(int(source.archive.end()))]
    source.truncate("t")
    source.cut()
    found = CliRunner().invoke(cli, [*arguments, "--archive", f"file://{tmp_path}"])
    assert "binlogs skipped by TiDB" in found.stderr


def key_forms(source: MadeSource) -> list[Form]:
    view = read_view(source.archive)
    question = Asked(table="d.t", after=view.genesis.ts, upto=view.end)
    return forms_between(view.timeline, question, tables_of(view.timeline, question))


def test_a_range_in_which_the_key_has_two_names_is_refused(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    primary = index(1, "PRIMARY", ("a", 0), ("b", 1), primary=True, unique=True)
    columns = [column(1, "a", flag=3), column(2, "b", MysqlType.VARCHAR, flag=1)]
    source.create_table("t", columns, pk_is_handle=False, index_info=[primary])
    source.genesis()
    source.cut()
    raw = json.loads(json.dumps(source.tables["t"].info.raw))
    raw["cols"][0]["name"] = {"O": "c", "L": "c"}
    raw["index_info"] = [index(1, "PRIMARY", ("c", 0), ("b", 1), primary=True, unique=True)]
    source.alter("t", 12, raw)
    source.cut()
    with pytest.raises(UsageError, match=r"the key of d\.t is a, b, and c, b"):
        require_one_key(key_forms(source))


def test_a_key_that_becomes_one_of_other_columns_is_asked_for_on_each_side(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    primary = partial(index, 1, "PRIMARY", unique=True, primary=True)
    columns = [column(1, "id", flag=1), column(2, "code", flag=1), column(3, "n")]
    source.create_table("t", columns, pk_is_handle=False, index_info=[primary(("id", 0))])
    source.genesis()
    with source.txn() as t:
        one, other = t.insert("t", id=5, code=70, n=1), t.insert("t", id=6, code=5, n=2)
    raw = source.tables["t"].info.raw
    source.alter("t", 8, {**raw, "index_info": None})
    source.alter("t", 7, {**raw, "index_info": [primary(("code", 1))]})
    made = int(source.jobs[-1].commit_ts)
    with source.txn() as t:
        t.update("t", one, n=11)
        t.update("t", other, n=22)
    source.cut()
    for command in ("versions", "changes"):
        said = refused(command, "d.t", "--key", "5", root=tmp_path)
        assert "the key of d.t is id, and from" in said
        assert f"--to {made - 1}, and --from {made}" in said
    with pytest.raises(UsageError, match=r"of other columns"):
        question({"archive": f"file://{tmp_path}", "table": "d.t", "key": "5"})
    assert [row for row, _, _ in versions_of(tmp_path, "--key", "5", "--to", str(made - 1))] == [
        {"id": 5, "code": 70, "n": 1}
    ]
    told_behind = versions_of(tmp_path, "--key", "5", "--from", str(made))
    assert [row["n"] for row, _, _ in told_behind] == [2, 22]


def test_a_copy_with_another_key_that_takes_the_name_is_asked_for_by_itself(tmp_path: Path) -> None:
    """So the tools alter a table's key; of a copy that keeps it the row has one history."""
    source = MadeSource(tmp_path)
    primary = partial(index, 1, "PRIMARY", unique=True, primary=True)
    columns = [column(1, "id", flag=1), column(2, "code", flag=1), column(3, "n")]
    source.create_table("t", columns, pk_is_handle=False, index_info=[primary(("id", 0))])
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=5, code=70, n=1)
        t.insert("t", id=6, code=5, n=2)

    def copied(key: dict[str, Any], *gone: str) -> int:
        source.create_table("t_gho", columns, pk_is_handle=False, index_info=[key])
        with source.txn() as t:
            t.insert("t_gho", id=5, code=70, n=1)
            other = t.insert("t_gho", id=6, code=5, n=2)
        source.rename_table("t", gone[0])
        source.rename_table("t_gho", "t")
        with source.txn() as t:
            t.update("t", other, n=22)
        source.cut()
        return next(int(job.commit_ts) for job in reversed(source.jobs))

    copied(primary(("id", 0)), "t_kept")
    assert {row["id"] for row, _, _ in versions_of(tmp_path, "--key", "5")} == {5}
    made = copied(primary(("code", 1)), "t_del")
    for command in ("versions", "changes"):
        said = refused(command, "d.t", "--key", "5", root=tmp_path)
        assert "the key of d.t is id, and from" in said
        assert f"--to {made - 1}, and --from {made}" in said
    assert {row["id"] for row, _, _ in versions_of(tmp_path, "--key", "5", "--to", str(made - 1))} == {5}
    assert {row["id"] for row, _, _ in versions_of(tmp_path, "--key", "5", "--from", str(made))} == {6}


def test_a_key_keeps_its_rows_through_a_rename_and_another_type_of_its_column(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    primary = partial(index, 1, "PRIMARY", unique=True, primary=True)
    columns = [column(1, "id", flag=1), column(2, "n")]
    source.create_table("t", columns, pk_is_handle=False, index_info=[primary(("id", 0))])
    source.genesis()
    with source.txn() as t:
        row = t.insert("t", id=5, n=1)
    raw = source.tables["t"].info.raw
    renamed = {**raw, "cols": [column(1, "key", flag=1), column(2, "n")], "index_info": [primary(("key", 0))]}
    source.alter("t", 12, renamed)
    with source.txn() as t:
        t.update("t", row, n=2)
    source.cut()
    assert [found["n"] for found, _, _ in versions_of(tmp_path, "--key", "5")] == [1, 2]
    wider = {**column(9, "key", MysqlType.LONGLONG, flag=1), "offset": 0}
    source.alter("t", 12, {**renamed, "cols": [wider, column(2, "n")]})
    with source.txn() as t:
        t.insert("t", key=5, n=3)
    source.cut()
    found = [json.loads(line) for line in told("changes", "d.t", "--key", "5", "--json", root=tmp_path).splitlines()]
    assert [each["new"]["n"] for each in found if each["op"] != "ddl"] == [1, 2, 3]


def test_a_dump_that_left_the_table_out_under_another_name_is_passed_over(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    table_id = source.create_table("old", [column(1, "id", flag=3)])
    source.genesis()
    source.rename_table("old", "t")
    end = source.cut()
    view = read_view(source.archive, upto=end)
    without = (TableWithout(db="d", table="old", table_id=table_id, why="a rule"),)
    lacking = replace(view, bases=tuple(replace(each, without=without) for each in view.bases))
    moment_of(view, "d.t", end, archive=source.settings, load=LOAD)
    with pytest.raises(RestoreError, match=r"rows of d\.old, which a rule left out \(a rule\)"):
        moment_of(lacking, "d.t", end, archive=source.settings, load=LOAD)


def test_an_unknown_ddl_stops_nothing_before_it_and_no_version_passes_it(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=7)
    before = source.cut()
    source.ddl(99, source.tables["t"].info.id, "ALTER CLUSTER strange", TableInfo=source.tables["t"].info.raw)
    source.cut()
    until = ("--to", str(int(before)))
    assert len(told("changes", "d.t", "--json", *until, root=tmp_path).splitlines()) == 1
    assert [row for row, _, _ in versions_of(tmp_path, *until)] == [{"id": 7}]
    assert json.loads(told("changes", "d.t", "--json", "--at", str(int(before)), root=tmp_path)) == {"id": 7}
    assert "does not tell" in refused("versions", "d.t", "--key", "7", root=tmp_path)
