"""What carrying a plan out reads: of the schema's history, that of its tables."""

from pathlib import Path

import pytest

from pumphouse.archive.view import read_view
from pumphouse.loader.context import LoadContext
from pumphouse.loader.work import base_work, works_between
from pumphouse.settings import LoadSettings
from tests.support.madearchive import MadeSource
from tests.support.schemajobs import int_col


@pytest.mark.row("S1", "L1")
def test_a_plan_carries_the_history_of_its_tables_however_many_there_are(tmp_path: Path) -> None:
    source = MadeSource(tmp_path / "archive")
    for number in range(30):
        source.create_table(f"t{number}", [int_col("id", flag=4099, id=1)])
        source.add_column(f"t{number}", int_col("a", id=2))
    source.genesis()
    with source.txn() as txn:
        txn.insert("t3", id=1, a=2)
    source.add_column("t4", int_col("b", id=3))
    source.cut()
    view = read_view(source.archive)
    wanted = source.tables["t3"].info.id
    (work,) = works_between(view, view.genesis.ts, view.end, "main", LoadSettings())
    assert work.tables == {wanted}
    carried = view.timeline.of_tables(work.tables)
    assert [(j.job.type, j.job.table_id) for j in carried.jobs] == [(1, 0), (3, wanted), (5, wanted)]
    # A worker folds nothing else, and no table of another plan.
    context = LoadContext.of(work, view, source.settings)
    assert context.timeline == carried
    # A dump needs the history of the tables that it has.
    base = view.bases[0]
    found = base_work(view, base, "main", LoadSettings())
    assert {table.table_id for table in base.tables} <= found.tables
