"""What a clean stop leaves in the index's directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.model.position import Pointer
from pump_service.store.index import Index


@pytest.mark.row("P2")
def test_a_closed_index_has_nothing_left_in_its_log(tmp_path: Path) -> None:
    """The Go Pump's LevelDB would skip batches of the log that were written while a table was flushed."""
    index = Index.open(tmp_path / "kv", {"write_buffer_size": 65536})
    for number in range(200):
        batch = index.batch()
        for ts in range(number * 128, number * 128 + 128):
            batch.put(ts, 0, ts)
        index.write(batch, Pointer(0, number))
    index.close_durably()

    assert sum(path.stat().st_size for path in (tmp_path / "kv").glob("*.log")) == 0
    again = Index.open(tmp_path / "kv")
    try:
        assert again.get(25_599) == Pointer(0, 25_599)
        assert again.get(0) == Pointer(0, 0)
    finally:
        again.close()
