"""Rows that are written while a partition is being dropped: where nobody can tell which of them the source kept, a load waits."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from pumphouse.codec import row
from pumphouse.errors import PartitionUnsettled
from pumphouse.loader import state
from pumphouse.loader.context import LoadContext
from pumphouse.loader.target import TargetConnection
from pumphouse.loader.work import SegmentPart
from pumphouse.model.table import MysqlType
from pumphouse.runs import load
from pumphouse.settings import LoadRule, Settings
from tests.integration.test_load_ddl_kinds import partition_names, partitions
from tests.integration.test_load_rules import in_mode, ruled
from tests.support.killed import Killed
from tests.support.loading import restored
from tests.support.madearchive import MadeSource, column, target_rows, written_as

pytestmark = pytest.mark.row("S2", "L6")


def killed(*_: Any, **__: Any) -> None:
    raise Killed


class Drop:
    """A DROP PARTITION of p1, ids 10 to 19, in TiDB's three steps; some writers see the first one late."""

    def __init__(self, source: MadeSource, *, key: bool = True) -> None:
        self._source = source
        columns = [column(1, "id", flag=3 if key else 0), column(2, "a")]
        made = partitions(source, ("p0", "10"), ("p1", "20"), ("p2", "MAXVALUE"), type_=1)
        source.create_table("t", columns, partition=made, pk_is_handle=key)
        self._handles: dict[int, int] = {}
        with source.txn() as t:
            self._handles |= {each: t.insert("t", id=each, a=0) for each in (5, 6, 13, 25, 26)}
        source.genesis()

    def begin(self) -> None:
        """The first step; what is in the partition will be gone."""
        self._begun = self._source.tick()
        self._before = self._source.schema_version
        self._source.schema_version += 2
        del self._source.tables["t"].rows[self._handles.pop(13)]

    def write(self, change: str, each: int, a: int = 0, *, sees: bool = True) -> None:
        """A transaction of one change: insert, update or delete."""
        with self._source.txn(schema_version=self._before + sees) as t:
            if change == "insert":
                self._handles[each] = t.insert("t", id=each, a=a)
            elif change == "update":
                t.update("t", self._handles[each], a=a)
            else:
                t.delete("t", self._handles.pop(each))

    def end(self) -> None:
        """The last step, whose binlog is the DDL's."""
        raw = copy.deepcopy(self._source.tables["t"].info.raw)
        del raw["partition"]["definitions"][1]
        self._source.alter("t", 20, raw)

        def say_when(job: dict[str, Any]) -> None:
            job["real_start_ts"] = self._begun

        self._source.rewrite_job(say_when)

    def delete_in_the_partition(self, each: int) -> None:
        """By a server that has not seen the first step, of a row that the source has beside the partition, too."""
        info = self._source.tables["t"].info
        with self._source.txn(schema_version=self._before) as t:
            t.builder.delete(written_as(info), row.encode_delete(info, {1: each, 2: 0}, handle=each))


@pytest.fixture(params=["merge", "replay"])
def moded(request: pytest.FixtureRequest, settings: Settings) -> Settings:
    return in_mode(settings, request.param)


@pytest.mark.parametrize("key", [True, False], ids=["with a key", "without a key"])
def test_writes_beside_the_partition_let_its_drop_pass(
    source: MadeSource, moded: Settings, target: TargetConnection, *, key: bool
) -> None:
    drop = Drop(source, key=key)
    drop.begin()
    drop.write("insert", 7, 1)
    drop.write("update", 5, 1)
    drop.write("update", 6, 2, sees=False)
    drop.write("delete", 25)
    drop.end()
    drop.write("insert", 18, 5)
    source.cut()
    load.run(moded)
    assert target_rows(target) == source.snapshot()
    assert partition_names(target, "t") == ["p0", "p2"]


@pytest.mark.parametrize("cut", [False, True], ids=["one window", "a window ends meanwhile"])
@pytest.mark.parametrize("key", [True, False], ids=["with a key", "without a key"])
def test_a_row_of_its_range_that_may_have_stayed_stops_the_load_before_the_drop(
    source: MadeSource, moded: Settings, target: TargetConnection, *, key: bool, cut: bool
) -> None:
    drop = Drop(source, key=key)
    drop.begin()
    drop.write("insert", 14, 1)
    if cut:
        source.cut()
        load.run(moded)
        drop.write("update", 26, 1)
        source.cut()
        load.run(moded)
    drop.end()
    end = source.cut()
    with pytest.raises(PartitionUnsettled, match=r"drops p1 of d\.t\. .* as {'id': '14'") as caught:
        load.run(moded)
    assert "--resync d.t" in caught.value.hint
    assert partition_names(target, "t") == ["p0", "p1", "p2"]
    with pytest.raises(PartitionUnsettled):
        restored(moded, to=end, dry_run=False)
    rule = LoadRule(
        ddl=int(caught.value.job_id),  # type: ignore[attr-defined]
        do="replace",
        sql=["DELETE FROM t WHERE id = 13"],
        why="14 is there",
    )
    ruled = moded.model_copy(update={"load": moded.load.model_copy(update={"rules": [rule]})})
    restored(ruled, to=end, dry_run=False)
    assert target_rows(target) == source.snapshot()


@pytest.mark.parametrize("since", ["before", "after"])
def test_so_does_a_row_of_a_transaction_that_began_before_the_first_step_or_says_an_older_version(
    source: MadeSource, settings: Settings, target: TargetConnection, since: str
) -> None:
    drop = Drop(source)
    early = source.txn()
    drop.begin()
    if since == "before":
        with early as t:
            t.insert("t", id=14, a=1)
    else:
        drop.write("insert", 14, sees=False)
    drop.end()
    source.cut()
    with pytest.raises(PartitionUnsettled):
        load.run(settings)
    assert target.value("SELECT COUNT(*) FROM d.t WHERE id = 14") == 1


@pytest.mark.parametrize("cut", [False, True], ids=["one window", "a window ends meanwhile"])
def test_so_does_one_whose_key_was_deleted_in_the_partition_later(
    source: MadeSource, moded: Settings, target: TargetConnection, *, cut: bool
) -> None:
    drop = Drop(source)
    source.cut()
    load.run(moded)
    drop.begin()  # 13 is in the partition, and the source will not have it
    drop.write("insert", 13, 77)  # beside it
    if cut:
        source.cut()
        load.run(moded)
    drop.delete_in_the_partition(13)
    drop.end()
    source.cut()
    assert (13, 77) in [tuple(each) for each in source.snapshot()["t"]]
    with pytest.raises(PartitionUnsettled, match=r"as {'id': '13'"):
        load.run(moded)
    assert "p1" in partition_names(target, "t")


def test_a_drop_that_began_before_the_archive_always_does(
    source: MadeSource, moded: Settings, target: TargetConnection
) -> None:
    made = partitions(source, ("p0", "10"), ("p1", "20"), ("p2", "MAXVALUE"), type_=1)
    source.create_table("t", [column(1, "id", flag=3), column(2, "a")], partition=made, pk_is_handle=True)
    begun = source.tick()
    with source.txn() as t:
        t.insert("t", id=14, a=1)  # beside the partition, where it stays
    source.genesis()
    raw = copy.deepcopy(source.tables["t"].info.raw)
    del raw["partition"]["definitions"][1]
    source.alter("t", 20, raw)
    source.rewrite_job(lambda job: job.update(real_start_ts=begun))
    source.cut()
    with pytest.raises(PartitionUnsettled, match="before the archive"):
        load.run(moded)
    assert target_rows(target) == source.snapshot()


def test_what_no_unit_loads_does_not(source: MadeSource, settings: Settings, target: TargetConnection) -> None:
    """A row that the target refuses and that does not stay; rows of a transaction that a rule leaves out."""
    made = partitions(source, ("p0", "10"), ("p1", "20"), ("p2", "MAXVALUE"), type_=1)
    columns = [column(1, "id", flag=3), column(2, "a", MysqlType.VARCHAR)]
    source.create_table("t", columns, partition=made, pk_is_handle=True)
    source.genesis()
    load.run(settings)
    begun = source.tick()
    with source.txn() as t:
        handle = t.insert("t", id=30, a=b"x\xff")
    with source.txn() as t:
        t.update("t", handle, a=b"fine")
    with source.txn() as t:
        t.insert("t", id=14, a=b"in its range")
        t.insert("t", id=31, a=b"x\xff")
    left_out = source.events[-1].commit_ts
    for each in (14, 31):
        del source.tables["t"].rows[each]
    raw = copy.deepcopy(source.tables["t"].info.raw)
    del raw["partition"]["definitions"][1]
    source.alter("t", 20, raw)
    source.rewrite_job(lambda job: job.update(real_start_ts=begun))
    source.cut()
    load.run(ruled(settings, {"do": "skip", "txn": left_out}))
    assert target_rows(target) == source.snapshot()
    assert partition_names(target, "t") == ["p0", "p2"]


def test_a_drop_that_ran_before_a_crash_is_not_asked_again(
    source: MadeSource, moded: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop = Drop(source)
    load.run(moded)
    drop.begin()
    drop.write("insert", 27, 1)
    drop.end()
    raw = copy.deepcopy(source.tables["t"].info.raw)
    first, *_ = raw["partition"]["definitions"]
    again = partitions(source, ("p0", "10"), ("p1", "30"), ("p2", "MAXVALUE"), type_=1)["definitions"][1:]
    for each in again:
        source.table_id += 1
        each["id"] = source.table_id
    raw["partition"]["definitions"] = [first, *again]
    source.alter("t", 64, raw)  # a REORGANIZE that has a partition of that name, and the row in it
    source.cut()
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(state, "close_plan", killed)
        load.run(moded)
    assert partition_names(target, "t") == ["p0", "p1", "p2"]
    load.run(moded)
    assert target_rows(target) == source.snapshot()


def test_only_segments_with_changes_of_the_table_are_read_for_it(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.create_table("other", [column(1, "id", flag=3)])
    drop = Drop(source)
    load.run(settings)
    drop.begin()
    for each in range(3):
        with source.txn() as t:
            t.insert("other", id=each)
        source.cut()
    load.run(settings)
    drop.end()
    source.cut()
    read: list[SegmentPart] = []
    whole = LoadContext.read

    def noted(self: LoadContext, piece: SegmentPart, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        read.append(piece)
        return whole(self, piece, columns)

    monkeypatch.setattr(LoadContext, "read", noted)
    load.run(settings)
    assert not read
    assert target_rows(target) == source.snapshot()


@pytest.mark.row("L7")
def test_the_way_on_names_the_table_of_the_source_where_two_change_names(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    swap = [{"do": "route", "table": f"d.{one}", "to": f"d.{other}"} for one, other in ("ts", "st")]
    source.create_table("s", [column(1, "id", flag=3), column(2, "a")])
    drop = Drop(source)
    load.run(ruled(settings, *swap))
    drop.begin()
    drop.write("insert", 14, 1)
    drop.end()
    source.cut()
    with pytest.raises(PartitionUnsettled, match=r"drops p1 of d\.t") as caught:
        load.run(ruled(settings, *swap))
    assert caught.value.table == "d.t"
    assert "d.s" not in str(caught.value)
    assert list(load.run(ruled(settings, *swap, {"do": "park", "table": caught.value.table})).parked) == ["d.t"]
