"""Keys of unresolved prewrites that are only shown: read from the beginnings of their records, whatever their size."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog.testing

from pump_service.process.store_samples import store_samples
from pump_service.store.store import Store
from tests.support.storekit import (
    open_store,
    prewrite,
    store_all,
    value_files,
    value_log,
)

pytestmark = pytest.mark.row("P12", "P14")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with_large = open_store(tmp_path, value_log_file_bytes=64 << 20)
    items = [prewrite(start, b"v" * (1 << 20), key=b"key of %d" % start) for start in range(10, 15)]
    store_all(with_large, *items)
    yield with_large
    with_large.close()


def reads(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each read of the value log from here on."""
    found: list[int] = []
    kind = type(value_log(store).files()[0].handle)
    real = kind.read_at

    def read_at(self: object, offset: int, size: int) -> bytes:
        found.append(size)
        return real(self, offset, size)

    monkeypatch.setattr(kind, "read_at", read_at)
    return found


def test_a_scrape_reads_no_record(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = reads(store, monkeypatch)
    samples = {name: value for name, _, labels, value in store_samples(store, tmp_path) if not labels}
    assert samples["binlog_pump_unresolved_prewrites"] == 5
    assert read == []


def test_status_shows_the_keys_and_reads_only_where_they_are(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    read = reads(store, monkeypatch)
    status = store.status()
    assert [p.prewrite_key for p in status.oldest_unresolved] == [b"key of %d" % start for start in range(10, 15)]
    assert 0 < sum(read) <= 5 * (20 << 10)
    del read[:]
    store.status()
    assert read == []  # they are known now


def test_a_key_that_cannot_be_shown_is_left_empty_and_named_once(store: Store, tmp_path: Path) -> None:
    store_all(store, prewrite(20, key=b"k" * (64 << 10)), prewrite(21, key=b"short"))
    (path,) = value_files(tmp_path)
    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(b"key of 11") - 5)
        file.write(b"\x0c")  # the start ts before it: what lies there says that it is another prewrite
    with structlog.testing.capture_logs() as logged:
        shown = {p.start_ts: p.prewrite_key for p in store.prewrites.oldest()}
        assert {p.start_ts: p.prewrite_key for p in store.prewrites.oldest()} == shown
    assert {ts: key for ts, key in shown.items() if ts not in (12, 13, 14)} == {
        10: b"key of 10", 11: b"", 20: b"", 21: b"short",
    }  # fmt: skip
    assert [(line["event"], line["start_ts"]) for line in logged] == [("prewrite_key_unread", ts) for ts in (11, 20)]


def test_a_disk_that_does_not_read_now_may_read_later(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type(value_log(store).files()[0].handle)
    with monkeypatch.context() as broken:

        def read_at(*_: object) -> bytes:
            raise OSError(errno.EIO, "not now")

        broken.setattr(kind, "read_at", read_at)
        assert [p.prewrite_key for p in store.prewrites.oldest(1)] == [b""]
    assert [p.prewrite_key for p in store.prewrites.oldest(1)] == [b"key of 10"]
