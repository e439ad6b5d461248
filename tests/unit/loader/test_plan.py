"""Plans: buckets, and a row that was tampered with."""

from pathlib import Path

import pytest

from pumphouse.archive.losses import Losses
from pumphouse.archive.view import read_view
from pumphouse.errors import CorruptionError
from pumphouse.loader.plan import MAX_BUCKETS, Mode, Plan, bucket_counts
from pumphouse.loader.work import Work, works_between
from pumphouse.model.tso import Tso
from pumphouse.schema.dialect import Dialect
from pumphouse.settings import LoadSettings
from tests.support.madearchive import MadeSource, column


def plan(**changes: object) -> Plan:
    base: dict[str, object] = {"task": "main", "number": 3, "from_ts": Tso(10), "to_ts": Tso(100), "mode": Mode.MERGE}
    return Plan(**{**base, "boundaries": (20, 50), "buckets": {7: 4}, "archive": "ab", **changes})  # type: ignore[arg-type]


def row(of: Plan) -> list[object]:
    return [of.task, of.number, of.from_ts, of.to_ts, str(of.mode), of.spec(), of.digest()]


@pytest.mark.row("L6")
def test_a_plan_row_is_read_as_it_was_written() -> None:
    assert Plan.from_row(row(plan())) == plan()
    assert plan().bucket_count(7) == 4
    assert plan().bucket_count(8) == 1
    ended = plan(touched=((7, 9), ()))
    assert Plan.from_row(row(ended)) == ended != plan()
    cut = plan(ranges={7: (5, 1 << 63, (1 << 64) - 1)})
    assert Plan.from_row(row(cut)) == cut


@pytest.mark.parametrize(
    ("at", "value"), [(3, 101), (4, "repeat"), (5, plan().spec().replace("4", "5")), (5, "{"), (6, "0")]
)
def test_a_plan_row_that_was_edited_is_refused(at: int, value: object) -> None:
    edited = row(plan())
    edited[at] = value
    with pytest.raises(CorruptionError):
        Plan.from_row(edited)


def test_buckets_follow_the_bytes_of_a_table_and_never_split_a_small_one() -> None:
    sizes = {1: 100, 2: 3 << 20, 3: 1 << 30, 4: 1 << 50}
    assert bucket_counts(sizes, unit_bytes=64 << 20, connections=2) == {2: 2, 3: 16, 4: MAX_BUCKETS}
    scanned = bucket_counts(sizes, unit_bytes=64 << 20, connections=2, scanned={2, 3})
    assert scanned == {3: 16, 4: MAX_BUCKETS}, "each unit of a table without a key reads it whole"
    assert bucket_counts(sizes, unit_bytes=64 << 20, connections=2, fixed=3) == dict.fromkeys(sizes, 3)


def test_bytes_of_partitions_count_for_their_table(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    definitions = [{"id": 900 + n, "name": {"O": f"p{n}", "L": f"p{n}"}} for n in range(2)]
    spread = {"type": 2, "expr": "`id`", "columns": None, "enable": True, "definitions": definitions, "num": 2}
    source.create_table("t", [column(1, "id", flag=3)], partition=spread)
    at = source.genesis()
    with source.txn() as t:
        t.insert("t", id=1)
    end = source.cut()
    (work,) = works_between(read_view(source.archive), at, end, "main", LoadSettings(buckets=3))
    assert work.plan.buckets == {source.tables["t"].info.id: 3}


def test_a_plan_for_a_tidb_has_units_that_fit_into_its_transactions() -> None:
    sizes = {1: 1 << 20, 2: 40 << 20, 3: 40 << 20, 4: 1 << 30}
    buckets = bucket_counts(sizes, unit_bytes=64 << 20, connections=2, scanned={3})
    work = Work(
        plan=plan(buckets=buckets),
        pieces=(),
        tables=frozenset(),
        events=(),
        losses=Losses(),
        sizes=sizes,
        scanned=frozenset({3}),
    )
    assert dict(work.fitted(LoadSettings(), Dialect.MARIADB).plan.buckets) == {2: 2, 4: 16}
    assert dict(work.fitted(LoadSettings(), Dialect.TIDB).plan.buckets) == {2: 3, 3: 3, 4: 64}
    small = LoadSettings(unit_bytes=1 << 20)
    assert work.fitted(small, Dialect.TIDB) is work
