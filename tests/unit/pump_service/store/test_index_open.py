"""An index that cannot be used as it lies there: begun anew where it is damaged, left alone where somebody has it open."""

from __future__ import annotations

import shutil
from pathlib import Path

import plyvel
import pytest

from pump_service.store.index import Index, IndexFailed
from pumphouse.codec.number import read_uvarint
from pumphouse.model.position import Pointer
from tests.support.storekit import (
    commit,
    fake,
    open_store,
    prewrite,
    puts,
    rollback,
    settle,
    store_all,
    stream,
    write,
)

pytestmark = pytest.mark.row("P2", "P4")


def test_an_index_whose_positions_rotted_is_built_anew_from_the_value_log(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for ts in range(10, 2000, 10):
        write(store, prewrite(ts), commit(ts, ts + 5))
    store_all(store, fake(50_000))
    whole = stream(store)
    store.close()
    tables = list((tmp_path / "kv").glob("*.ldb"))
    assert tables
    for path in tables:
        data = bytearray(path.read_bytes())
        data[: len(data) // 2] = b"\xff" * (len(data) // 2)  # the index of its blocks lies at the end and still reads
        path.write_bytes(data)
    store = open_store(tmp_path)
    try:
        assert stream(store) == whole
    finally:
        store.close()
    assert len(list(tmp_path.glob("kv?*"))) == 1  # kept aside


@pytest.mark.parametrize("head", [True, False])
def test_an_index_of_which_a_block_without_positions_rotted_is_built_anew_from_the_value_log(
    head: bool, tmp_path: Path
) -> None:
    store = open_store(tmp_path)
    # The first transaction stays open: a start reads everything behind it again.
    items = [each for ts in range(20, 40_000, 10) for each in (prewrite(ts), commit(ts, ts + 5))]
    write(store, prewrite(10), *items)
    settle(store)
    before = store.incarnation
    store.close()
    # Written anew without filters: a table's footer begins with the end of its timestamps then.
    with plyvel.DB(str(tmp_path / "kv")) as database:
        pairs = [pair for pair in database if head or pair[0] != b"!binlog!headPointer"]
    shutil.rmtree(tmp_path / "kv")
    with plyvel.DB(str(tmp_path / "kv"), create_if_missing=True, compression=None) as database:
        for pair in pairs:
            database.put(*pair)
        database.compact_range()
    (table,) = (tmp_path / "kv").glob("*.ldb")
    data = bytearray(table.read_bytes())
    end, _ = read_uvarint(bytes(data), len(data) - 48)
    data[end - 1000 : end] = b"\xff" * 1000
    table.write_bytes(data)
    index = Index.open(tmp_path / "kv")
    with pytest.raises(IndexFailed, match="Corruption") as rotted:
        index.last_ts()
    assert "kv directory" in str(rotted.value.hint)
    assert (index.positions().head is not None) is head
    index.close()
    store = open_store(tmp_path)
    try:
        assert store.incarnation == before
        store_all(store, rollback(10), fake(50_000))
        assert stream(store) == [(ts, ts + 5) for ts in range(20, 40_000, 10)]
    finally:
        store.close()


def test_an_index_that_is_open_elsewhere_is_not_taken_for_a_broken_one(tmp_path: Path) -> None:
    first = Index.open(tmp_path / "kv")
    first.write(puts([7]), Pointer(0, 7))
    with pytest.raises(IndexFailed, match="already held") as refused:
        Index.open(tmp_path / "kv")
    assert "another process" in str(refused.value.hint)
    assert [path.name for path in tmp_path.iterdir()] == ["kv"]
    assert first.get(7) == Pointer(0, 7)
    first.close()
