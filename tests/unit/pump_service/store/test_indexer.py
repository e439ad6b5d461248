"""What the indexer says of commits that come late."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pump_service.store.fs import REAL_FS
from pump_service.store.judge import LOGGED_AT_ONCE
from pump_service.store.pending import PendingCommits
from pump_service.store.store import Store
from tests.support.storekit import (
    commit,
    fake,
    index_stands_still,
    open_store,
    prewrite,
    settle,
    store_all,
    value_log,
    write,
)
from tests.unit.pump_service.store.test_order import Bench

pytestmark = pytest.mark.row("P7")


@pytest.mark.parametrize("count", [1, LOGGED_AT_ONCE, LOGGED_AT_ONCE + 1, 25])
def test_of_many_late_commits_the_first_are_logged_and_the_others_summed_up_and_all_are_kept(
    tmp_path: Path, count: int
) -> None:
    bench = Bench(tmp_path, plain=False)
    bench.write([fake(1000)], 1)
    assert bench.indexer.watermark == 1000
    # From the latest to the earliest; every third has no prewrite either.
    starts = [500 - n for n in range(count)]
    bench.write([prewrite(1), *(prewrite(start) for n, start in enumerate(starts) if n % 3)], 1)
    with capture_logs() as logs:
        bench.write([commit(start, start + 100 + (start == 480)) for start in starts], 1)
    lines = [entry for entry in logs if entry["event"] == "commit_pending"]
    assert [(entry["start_ts"], entry["commit_ts"], entry["watermark"]) for entry in lines] == [
        (start, start + 100, 1000) for start in starts[:10]
    ]
    assert [entry["orphan"] for entry in lines] == [n % 3 == 0 for n in range(min(count, 10))]
    assert all(entry["late"] and entry["log_level"] == "error" for entry in lines)
    sums = [entry for entry in logs if entry["event"] == "commits_pending"]
    if count <= 10:
        assert not sums
    else:
        (line,) = sums
        more = starts[10:]
        assert (line["more"], line["late"], line["log_level"]) == (count - 10, count - 10, "error")
        assert line["orphan"] == sum(n % 3 == 0 for n in range(10, count))
        commits = [start + 100 + (start == 480) for start in more]
        assert (line["min_commit_ts"], line["max_commit_ts"]) == (min(commits), max(commits))
    assert len(logs) == len(lines) + len(sums)
    kept = PendingCommits(REAL_FS, tmp_path)
    kept.load()
    assert sorted((item.start_ts, item.commit_ts) for item in kept.all()) == sorted(
        (start, start + 100 + (start == 480)) for start in starts
    )
    assert all(item.late and not item.accepted for item in kept.all())
    with capture_logs() as logs:  # met again
        bench.write([commit(start, start + 100 + (start == 480)) for start in starts], 1)
    assert not logs


def test_what_is_summed_up_says_how_many_are_late_and_how_many_have_no_prewrite(tmp_path: Path) -> None:
    bench = Bench(tmp_path, plain=False)
    with capture_logs() as logs:  # none is late: nothing has been published
        bench.write([commit(start, start + 1) for start in range(10, 50, 2)], 1)
    (line,) = (entry for entry in logs if entry["event"] == "commits_pending")
    assert (line["more"], line["late"], line["orphan"]) == (10, 0, 10)
    assert (line["min_commit_ts"], line["max_commit_ts"]) == (31, 49)
    assert bench.indexer.watermark == 49


def test_the_backlog_is_what_the_value_log_has_and_the_index_does_not(tmp_path: Path) -> None:
    store = open_store(tmp_path, value_log_file_bytes=4096)
    store_all(store, *(prewrite(ts) for ts in range(1, 9)))

    def on_file(store: Store) -> int:
        return sum(file.synced_end for file in value_log(store).files())

    before = on_file(store)
    assert store.status().backlog_bytes == 0
    with index_stands_still(store):
        for ts in range(10, 500):
            assert write(store, prewrite(ts)) == [None]
        assert store.synced_end.fid > 3
        assert store.status().backlog_bytes == on_file(store) - before > 0
    settle(store)
    assert store.status().backlog_bytes == 0
    store.close()
    assert open_store(tmp_path).status().backlog_bytes == 0
