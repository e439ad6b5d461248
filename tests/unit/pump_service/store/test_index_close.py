"""What a clean stop leaves in the index's directory."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pump_service.store.index import Index, IndexFailed
from pumphouse.model.position import Pointer
from tests.support.storekit import (
    commit,
    index_meets,
    no_room_in_index,
    no_room_to_open_index,
    open_store,
    prewrite,
    puts,
    so_often,
    store_all,
    until,
)


@pytest.mark.row("P2")
def test_a_closed_index_has_nothing_left_in_its_log(tmp_path: Path) -> None:
    """The Go Pump's LevelDB would skip batches of the log that were written while a table was flushed."""
    index = Index.open(tmp_path / "kv", {"write_buffer_size": 65536})
    for number in range(200):
        index.write(puts(range(number * 128, number * 128 + 128)), Pointer(0, number))
    index.close_durably()

    assert sum(path.stat().st_size for path in (tmp_path / "kv").glob("*.log")) == 0
    again = Index.open(tmp_path / "kv")
    try:
        assert again.get(25_599) == Pointer(0, 25_599)
        assert again.get(0) == Pointer(0, 0)
    finally:
        again.close()


def _filled(directory: Path) -> Index:
    index = Index.open(directory / "kv")
    index.write(puts(range(1, 5000)), Pointer(0, 4999))
    return index


@pytest.mark.row("P2", "P7")
def test_an_index_is_not_opened_again_under_somebody_who_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pump_service.store.index._REOPEN_WITHIN_S", 0.05)
    index = _filled(tmp_path)
    pointers = index.pointers(0, 4999)
    assert next(pointers) == (1, Pointer(0, 1))
    with pytest.raises(IndexFailed, match="in use"):
        index.reopen()
    assert len(list(pointers)) == 4998
    with index.snapshot() as below, pytest.raises(IndexFailed, match="in use"):
        assert len(list(below(5000))) == 4999
        index.reopen()
    index.reopen()
    assert index.get_all([0, 7]) == [None, Pointer(0, 7)]
    index.close()


@pytest.mark.row("P2", "P7")
def test_readers_go_on_while_the_index_is_opened_again_and_again(tmp_path: Path) -> None:
    """A read of a closed LevelDB would end the process."""
    index = _filled(tmp_path)
    done = threading.Event()
    failed: list[BaseException] = []

    def read() -> None:
        try:
            while not done.is_set():
                assert index.get(7) == Pointer(0, 7)
                assert len(index.columns(0, 4999, 1 << 20)[0]) == 4999
                with index.snapshot() as below:
                    assert len(list(below(100))) == 99
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        index.reopen()
    done.set()
    for thread in threads:
        thread.join()
    assert failed == []
    index.close()
    with pytest.raises(IndexFailed):
        index.get(7)


@pytest.mark.row("P15")
@pytest.mark.parametrize("first", ["write", "get"])
def test_an_index_that_cannot_be_opened_again_at_once_is_opened_later(first: str, tmp_path: Path) -> None:
    """A disk that is full for the index's next file too: the Pump waits, as it does for the write, or for a look."""
    store = open_store(tmp_path)
    store_all(store, prewrite(5), commit(5, 8))
    store.close()
    store = open_store(tmp_path)  # which does not know by heart what the index has
    openings = [no_room_to_open_index] * 2
    with index_meets(**{first: so_often(1, no_room_in_index)}, opening=lambda: openings.pop()() if openings else None):
        # Whether something has the late one's commit ts already, only the index knows.
        store_all(store, prewrite(10), commit(10, 12), commit(4, 6))
    until(lambda: store.watermark == 12)
    assert [item.commit_ts for item in store.late()] == [6]
    assert (openings, store.fault) == ([], None)
