"""A rollback that no file took."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from pumphouse.errors import WriterFailed
from tests.support.crashfs import FaultyFs, failing
from tests.support.storekit import fake, open_store, prewrite, store_all, until, write


@pytest.mark.row("P15", "P6")
def test_a_prewrite_whose_rollback_is_in_memory_only_is_met_again_after_a_restart(tmp_path: Path) -> None:
    fs = FaultyFs()
    store = open_store(tmp_path, fs)
    store_all(store, prewrite(10), fake(15))
    fs.faults["sync"] = failing(errno.EIO)
    assert isinstance(write(store, fake(16))[0], WriterFailed)
    store.settling.rolled_back(10)
    until(lambda: store.watermark == 15)
    assert store.prewrites.lowest_unsettled() == 10
    store.close()
    store = open_store(tmp_path)
    assert [each.start_ts for each in store.prewrites.oldest()] == [10]
    store.close()
