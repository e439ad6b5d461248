"""Which transaction did it: by table, key, kind and size, over renames, TRUNCATE and several Pumps."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pumphouse.archive import segment
from pumphouse.archive.expire import Ages, expire
from pumphouse.archive.manifest import Declaration
from pumphouse.archive.retention import Policy
from pumphouse.archive.view import read_view
from pumphouse.cli import cli
from pumphouse.errors import UnknownTable, UsageError
from pumphouse.loader.report import silent
from pumphouse.model.table import MysqlType
from pumphouse.model.tso import Tso, show
from pumphouse.restore.find import DDL, Found, Sought, find
from tests.support.agedarchive import aged
from tests.support.madearchive import MadeSource, column, index

pytestmark = pytest.mark.row("R8")


@pytest.fixture
def made(tmp_path: Path) -> MadeSource:
    source = MadeSource(tmp_path)
    source.create_table("t", [column(1, "id", flag=3), column(2, "name", MysqlType.VARCHAR)])
    source.create_table("other", [column(1, "id", flag=3)])
    source.genesis()
    return source


def look(source: MadeSource, *tables: str, **more: Any) -> list[Found]:
    view = read_view(source.archive, since=source.archive.genesis().ts)
    whole = Sought(after=source.archive.genesis().ts, upto=view.end, tables=tables)
    return list(find(source.archive, view, dataclasses.replace(whole, **more), silent))


def told(found: list[Found]) -> list[str]:
    return [each.action or "; ".join(map(str, each.tables)) for each in found]


def commit(source: MadeSource, do: Any) -> int:
    with (opened := source.txn()) as t:
        do(t)
    return opened.commit_ts


def insert(source: MadeSource, table: str, *ids: int, **more: Any) -> int:
    return commit(source, lambda t: [t.insert(table, id=each, **more) for each in ids])


def test_a_transaction_is_found_by_table_kind_and_size_in_commit_order_over_pumps_and_windows(made: MadeSource) -> None:
    first = insert(made, "t", 1, 2, 3)
    insert(made, "other", 7)
    made.cut()
    both = commit(made, lambda t: (t.update("t", 1, name=b"x"), t.delete("t", 2), t.insert("other", id=8)))
    gone = commit(made, lambda t: [t.delete("t", each) for each in (1, 3)])
    made.cut(pumps=3)
    found = look(made, "d.t")
    assert [each.commit_ts for each in found] == [first, both, gone]
    assert told(found) == ["d.t: 3 inserted", "d.t: 1 updated, 1 deleted", "d.t: 2 deleted"]
    assert (found[1].before, found[1].rows) == (both - 1, 2)
    assert [each.commit_ts for each in look(made, "D.T", kinds=frozenset({"delete"}))] == [both, gone]
    assert [each.commit_ts for each in look(made, "d.t", kinds=frozenset({"delete"}), rows=2)] == [gone]
    assert told(look(made, kinds=frozenset({"insert"}))) == [
        "d.t: 3 inserted", "d.other: 1 inserted", "d.other: 1 inserted",
    ]  # fmt: skip
    assert [each.commit_ts for each in look(made, "d.*", after=Tso(first), upto=Tso(both))][-1] == both
    assert look(made, "d.t", after=Tso(both), upto=Tso(gone - 1)) == []


def test_segments_of_other_tables_are_not_read(made: MadeSource, monkeypatch: pytest.MonkeyPatch) -> None:
    insert(made, "other", 1)
    made.cut(pumps=1)
    insert(made, "t", 1)
    made.cut(pumps=1)
    read: list[str] = []
    verified = segment.verified

    def counting(store: Any, entry: Any) -> Any:
        read.append(entry.key)
        return verified(store, entry)

    monkeypatch.setattr(segment, "verified", counting)
    assert told(look(made, "d.t", kinds=frozenset({"insert"}))) == ["d.t: 1 inserted"]
    assert len(read) == 1


def test_a_table_is_followed_through_rename_and_truncate_and_called_as_it_was(made: MadeSource) -> None:
    insert(made, "t", 1)
    made.rename_table("t", "t2")
    made.cut()
    commit(made, lambda t: t.delete("t2", 1))
    made.truncate("t2")
    insert(made, "t2", 5)
    made.drop_table("t2")
    made.cut()
    whole = ["d.t: 1 inserted", "RENAME_TABLE", "d.t2: 1 deleted", "TRUNCATE_TABLE", "d.t2: 1 inserted", "DROP_TABLE"]
    for name in ("d.t2", "d.t"):  # the id that it has from TRUNCATE on was never called by its first name
        assert told(look(made, name)) == whole
    assert [each.table_id for found in look(made, "d.t2") for each in found.tables] == [201, 201, 203]
    drop = look(made, "d.t2", kinds=frozenset({DDL}))[-1]
    assert (drop.action, drop.query, drop.job_id) == ("DROP_TABLE", "DROP TABLE `t2`", made.jobs[-1].job.id)
    assert drop.commit_ts == made.jobs[-1].commit_ts > drop.start_ts > 0
    with pytest.raises(UnknownTable, match=r"no table is called d\.none"):
        look(made, "d.none")


def test_a_row_is_found_by_its_key_before_and_after_a_change(made: MadeSource) -> None:
    made.create_table(
        "c",
        [column(1, "a", flag=1), column(2, "b", MysqlType.VARCHAR, flag=1), column(3, "v")],
        pk_is_handle=False,
        index_info=[index(1, "PRIMARY", ("a", 0), ("b", 1), unique=True, primary=True)],
    )
    made.create_table("k", [column(1, "a")], pk_is_handle=False)
    insert(made, "t", 1, 2)
    made.add_column("t", column(3, "n"))
    moved = commit(made, lambda t: t.update("t", 2, id=9))
    updated = commit(made, lambda t: t.update("t", 1, n=4))
    commit(made, lambda t: (t.insert("c", a=1, b=b"x,y", v=1), t.insert("c", a=2, b=b"z", v=1), t.insert("k", a=1)))
    commit(made, lambda t: t.update("c", 1, b=b"q"))
    made.cut()
    rows = {"kinds": frozenset({"insert", "update", "delete"})}
    assert told(look(made, "d.t", keys=("1",), **rows)) == ["d.t: 1 inserted", "d.t: 1 updated"]
    assert look(made, "d.t", keys=("1",), **rows)[1].commit_ts == updated
    assert [each.commit_ts for each in look(made, "d.t", keys=("9", "4711"), **rows)] == [moved]
    assert told(look(made, "d.t", keys=("2",), **rows)) == ["d.t: 1 inserted", "d.t: 1 deleted"]
    assert told(look(made, "d.c", keys=('1,"x,y"', "2,y"), **rows)) == ["d.c: 1 inserted", "d.c: 1 updated"]
    assert told(look(made, "d.c", keys=("1,q",), **rows)) == ["d.c: 1 updated"]
    for table, key, says in (
        ("d.t", "abc", "no value of id"),
        ("d.t", "99999999999999999999", "no value of id"),
        ("d.c", "1", "1 values, the key"),
        ("d.k", "1", r"d\.k has no key"),
    ):
        with pytest.raises(UsageError, match=says):
            look(made, table, keys=(key,), **rows)


def test_a_transaction_in_parts_is_one_and_counts_as_a_whole(made: MadeSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.madearchive.SegmentWriter", small_parts)
    large = insert(made, "t", *range(40), name=b"x" * 60)
    insert(made, "t", 100)
    made.cut(pumps=1)
    assert made.archive.windows()[0].segments[0].rows > 3
    assert [(each.commit_ts, each.rows) for each in look(made, "d.t", rows=40)] == [(large, 40)]


def small_parts(store: Any, key_of: Any, node: str) -> segment.SegmentWriter:
    return segment.SegmentWriter(store, key_of, node, part_bytes=500)


def run(source: MadeSource, *args: str, code: int = 0) -> Any:
    done = CliRunner().invoke(cli, ["archive", "find", "--archive", f"file://{source.root}", *args])
    assert done.exit_code == code, (done.output, done.exception)
    return done


@pytest.mark.row("A5")
def test_a_begin_whose_windows_have_expired_is_refused_with_the_one_that_goes(tmp_path: Path) -> None:
    source = aged(tmp_path).source
    genesis = source.archive.genesis().ts
    expire(source.archive, Ages(), Policy(bases=1), (), now=source.archive.end(), who="me@here")
    start = source.archive.range().start
    error = run(source, "--from", str(genesis), code=1).exception
    assert isinstance(error, UsageError)
    assert f"asked for {show(genesis)}; the archive keeps moments from" in error.message
    assert "by me@here" in error.message
    assert error.hint == f"--from {start}"
    assert "searched from" in run(source, "--from", str(start)).stdout


def test_the_command_prints_moments_to_paste_stops_at_a_limit_and_names_losses(made: MadeSource) -> None:
    genesis = made.archive.genesis().ts
    first = insert(made, "t", 1, 2)
    second = commit(made, lambda t: [t.delete("t", each) for each in (1, 2)])
    loss = Declaration(
        node_id="pump-1", incarnation="i", from_ts=genesis, to_ts=Tso(second), reason="its disk burned", who="ops"
    )
    made.cut(declared=(loss,))
    args = ("--from", str(genesis), "--table", "d.t")
    said = run(made, *args).stdout
    assert f"start ts {first - (10 << 18)}; just before it: --to {first - 1}; with it: --to {first}" in said
    assert "d.t: 2 deleted" in said
    assert "declared lost: Pump pump-1" in said
    assert f"pumphouse flashback --txn {second} --into source" in said
    assert "where the archive ends; `pumphouse snapshot` brings in what was written since" in said
    nothing = run(made, *args, "--to", str(second), "--rows", "3").stdout
    assert "found nothing" in nothing and "flashback" not in nothing and "archive ends" not in nothing
    limited = run(made, *args, "--limit", "1").stdout
    assert f"there are more: the same with --from {first} goes on" in limited
    assert "d.t: 2 deleted" not in limited
    found = json.loads(run(made, *args, "--kind", "delete", "--json").stdout)
    assert [(each["commit_ts"], each["before_ts"], each["rows"]) for each in found["found"]] == [
        (second, second - 1, 2)
    ]
    assert found["found"][0]["tables"] == [{"table": "d.t", "table_id": 201, "inserted": 0, "updated": 0, "deleted": 2}]
    assert found["found"][0]["commit_time"] and found["declared"][0]["reason"] == "its disk burned"
    assert not found["more"]
    early = run(made, "--from", "2020-01-01T00:00:00Z", "--to", "2030-01-01T00:00:00Z")
    ends = [line for line in early.stdout.splitlines() if "the archive begins there" in line or "take one back" in line]
    assert ["begins" in line for line in ends] == [True, False]
    assert "where the archive ends" in early.stdout
    assert isinstance(run(made, "--from", str(genesis), "--key", "1", code=1).exception, UsageError)
    late = run(made, "--from", str(made.archive.end()), code=1).exception
    assert isinstance(late, UsageError) and "`pumphouse snapshot` brings in" in str(late.hint)
