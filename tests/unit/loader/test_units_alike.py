"""Units of a large table are alike in size, however its keys lie in the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from pumphouse.archive.view import read_view
from pumphouse.errors import StoreError
from pumphouse.loader.context import LoadContext
from pumphouse.loader.decode import Decoder
from pumphouse.loader.engine import LocalEngine
from pumphouse.loader.stages import UnitSummary
from pumphouse.loader.work import works_between
from pumphouse.model.table import MysqlType
from pumphouse.settings import LoadSettings
from tests.support.madearchive import MadeSource, column, index

pytestmark = pytest.mark.row("L4", "L5")
_WINDOWS, _ROWS, _WIDE = 72, 20, b"x" * 4000


def units(source: MadeSource, settings: LoadSettings, *, by_range: bool) -> list[UnitSummary]:
    """What one plan over everything after the genesis is cut into; whether by key range or by hash."""
    view = read_view(source.archive)
    (work,) = works_between(view, view.genesis.ts, view.end, "main", settings)
    ranges = Decoder(LoadContext.of(work.numbered(1, {}), view, source.settings)).ranges(work)
    assert bool(ranges) == by_range
    work = work.numbered(1, ranges)
    return LocalEngine().prepare(LoadContext.of(work, view, source.settings), work.pieces)


def test_keys_that_ascend_with_time_fill_all_units_alike(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    source.create_table("t", [column(1, "id", flag=3), column(2, "v", MysqlType.BLOB)])
    source.genesis()
    for window in range(_WINDOWS):
        with source.txn() as t:
            for id_ in range(window * _ROWS, (window + 1) * _ROWS):
                t.insert("t", id=id_, v=_WIDE)
        source.cut()
    sizes = [unit.bytes for unit in units(source, LoadSettings(unit_bytes=256 << 10), by_range=True) if unit.rows]
    assert len(sizes) >= 20
    assert max(sizes) < 2 * (256 << 10)


def test_one_value_that_many_keys_begin_with_fills_no_unit_alone(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    columns = [column(1, "tenant", flag=3), column(2, "id", flag=3), column(3, "v", MysqlType.BLOB)]
    primary = index(1, "PRIMARY", ("tenant", 0), ("id", 1), primary=True, unique=True)
    source.create_table("t", columns, pk_is_handle=False, index_info=[primary])
    source.genesis()
    for window in range(_WINDOWS):
        with source.txn() as t:
            for id_ in range(window * _ROWS, (window + 1) * _ROWS):
                t.insert("t", tenant=0 if id_ % 5 < 2 else id_, id=id_, v=_WIDE)
        source.cut()
    sizes = [unit.bytes for unit in units(source, LoadSettings(unit_bytes=256 << 10), by_range=False) if unit.rows]
    assert max(sizes) < 3 * (256 << 10)


def test_a_table_that_is_met_at_one_place_alone_is_divided_by_hash(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    source.create_table("t", [column(1, "id", flag=3), column(2, "v", MysqlType.BLOB)])
    source.genesis()
    with source.txn() as t:  # One row group, of which the sample sees the begin.
        for id_ in range(_WINDOWS * _ROWS):
            t.insert("t", id=id_, v=_WIDE)
    source.cut()
    sizes = [unit.bytes for unit in units(source, LoadSettings(unit_bytes=256 << 10), by_range=False) if unit.rows]
    assert max(sizes) < 2 * (256 << 10)


def test_a_store_that_fails_ends_the_sample(tmp_path: Path) -> None:
    source = MadeSource(tmp_path)
    source.create_table("t", [column(1, "id", flag=3), column(2, "v", MysqlType.BLOB)])
    source.genesis()
    for window in range(_WINDOWS):
        with source.txn() as t:
            for id_ in range(window * _ROWS, (window + 1) * _ROWS):
                t.insert("t", id=id_, v=_WIDE)
        source.cut()
    view = read_view(source.archive)
    (work,) = works_between(view, view.genesis.ts, view.end, "main", LoadSettings(unit_bytes=256 << 10))
    decoder = Decoder(LoadContext.of(work.numbered(1, {}), view, source.settings))
    (failing,) = tmp_path.rglob(Path(work.pieces[0].segment.key).name)
    failing.unlink()
    failing.symlink_to(failing)
    with pytest.raises(StoreError, match="symbolic links"):
        decoder.ranges(work)
