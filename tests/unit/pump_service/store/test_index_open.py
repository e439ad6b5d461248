"""An index that cannot be used as it lies there: begun anew where it is damaged, left alone where somebody has it open."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.model.position import Pointer
from pump_service.store.index import Index, IndexFailed
from tests.support.storekit import commit, fake, open_store, prewrite, store_all, stream, write

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


def test_an_index_that_is_open_elsewhere_is_not_taken_for_a_broken_one(tmp_path: Path) -> None:
    first = Index.open(tmp_path / "kv")
    batch = first.batch()
    batch.put(7, 0, 70)
    first.write(batch, Pointer(0, 70))
    with pytest.raises(IndexFailed, match="already held") as refused:
        Index.open(tmp_path / "kv")
    assert "another process" in str(refused.value.hint)
    assert [path.name for path in tmp_path.iterdir()] == ["kv"]
    assert first.get(7) == Pointer(0, 70)
    first.close()
