"""Decoding a plan: what a worker holds, and when it hands it on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pumphouse.archive.view import read_view
from pumphouse.loader import held, stages
from pumphouse.loader.context import LoadContext
from pumphouse.loader.plan import Phase
from pumphouse.loader.work import SegmentPart, works_between
from pumphouse.settings import LoadSettings
from tests.support.madearchive import MadeSource, column

TABLES, WINDOWS = 40, 6


@pytest.mark.row("L5")
def test_entries_of_many_small_tables_are_handed_on_before_all_pieces_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = MadeSource(tmp_path)
    for number in range(TABLES):
        source.create_table(f"t{number}", [column(1, "id", flag=3)])
    at = source.genesis()
    for window in range(WINDOWS):
        with source.txn() as t:
            for number in range(TABLES):
                t.insert(f"t{number}", id=window)
        end = source.cut(pumps=1)
    view = read_view(source.archive)
    (work,) = works_between(view, at, end, "main", LoadSettings())
    context = LoadContext.of(work, view, source.settings)
    read = []

    def pieces() -> Iterator[SegmentPart]:
        for piece in work.pieces:
            read.append(piece)
            yield piece

    assert len(work.pieces) == WINDOWS
    one = list(stages.decode(context, pieces()))
    assert sorted(blob.rows for blob in one) == [WINDOWS] * TABLES
    read.clear()
    # No table of these has as much by itself.
    monkeypatch.setattr(held, "HELD_BYTES", sum(blob.size for blob in one) // WINDOWS)
    blobs = stages.decode(context, pieces())
    first = next(blobs)
    assert len(read) < WINDOWS
    assert sum(blob.rows for blob in (first, *blobs)) == TABLES * WINDOWS


@pytest.mark.row("L1", "L4")
def test_changes_of_one_row_in_one_transaction_count_in_the_order_of_its_sequence(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    source.create_table("t", [column(1, "id", flag=3), column(2, "v")])
    with source.txn() as t:
        handle = t.insert("t", id=1, v=1)
    at = source.genesis()
    # A binlog lists inserts, updates and deletes apart; the sequence alone says that the delete came first.
    with source.txn() as t:
        t.delete("t", handle)
        t.insert("t", id=1, v=2)
    end = source.cut(pumps=1)
    view = read_view(source.archive)
    (work,) = works_between(view, at, end, "main", LoadSettings())
    blobs = list(stages.fold(work.plan, stages.decode(LoadContext.of(work, view, source.settings), work.pieces)))
    rows = {Phase(blob.phase): blob.table().to_pylist() for blob in blobs}
    assert rows == {Phase.DELETE: [{"id": 1}], Phase.INSERT: [{"id": 1, "v": 2}]}
