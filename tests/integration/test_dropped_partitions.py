"""Rows that are written while a partition is being dropped: where nobody can tell which of them the source kept, a load waits."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from pumphouse.errors import PartitionUnsettled
from pumphouse.loader.target import TargetConnection
from pumphouse.runs import load
from pumphouse.settings import LoadRule, Settings
from tests.integration.test_load_ddl_kinds import partition_names, partitions
from tests.support.loading import restored
from tests.support.madearchive import MadeSource, column, target_rows

pytestmark = pytest.mark.row("S2", "L6")


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


@pytest.fixture(params=["merge", "replay"])
def moded(request: pytest.FixtureRequest, settings: Settings) -> Settings:
    return settings.model_copy(update={"load": settings.load.model_copy(update={"mode": request.param})})


@pytest.mark.parametrize("key", [True, False], ids=["with a key", "without a key"])
def test_writes_beside_the_partition_let_its_drop_pass(
    source: MadeSource, moded: Settings, target: TargetConnection, *, key: bool
) -> None:
    drop = Drop(source, key=key)
    drop.begin()
    drop.write("insert", 7, 1)
    drop.write("update", 5, 1)
    drop.write("update", 6, 2, sees=False)
    drop.write("insert", 16, sees=False)  # into the partition, and with it
    drop.write("delete", 16, sees=False)
    drop.write("delete", 25)
    drop.write("insert", 14)
    drop.write("delete", 14)
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
