"""The largest timestamp of a file stands in its footer, whichever write brought it (row P1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from pump_service.store import frame
from tests.support.storekit import commit, open_store, prewrite, store_all, value_files


@pytest.mark.row("P1", "P11")
def test_a_footer_has_the_largest_ts_of_an_early_write_too(tmp_path: Path) -> None:
    store = open_store(tmp_path, value_log_file_bytes=4096)
    store_all(store, prewrite(10), commit(10, 9000))
    for start_ts in range(20, 40):
        store_all(store, prewrite(start_ts, b"v" * 300))
    store.close()
    first, *others = value_files(tmp_path)
    assert others
    assert frame.decode_footer(first.read_bytes()[-12:]) == 9000
