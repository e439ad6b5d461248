"""What a writer that lost its records is told of its transactions, while these get their outcomes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pump_service.store.store import Store
from pumphouse.errors import PumpUnavailable
from tests.support.storekit import (
    commit,
    index_stands_still,
    open_store,
    prewrite,
    remember,
    rollback,
    so_often,
    store_all,
    until,
)

pytestmark = pytest.mark.row("P6")

Said = tuple[dict[int, bool], dict[int, int]]


def said(store: Store) -> Said:
    """Whether each prewrite is open, and the commit ts of those that have one; joined as a client does, part by part."""
    opened, commits = dict[int, bool](), dict[int, int]()
    for part in store.transactions.read(b"", 0):
        opened |= {start: is_open for start, _, is_open in part.prewrites}
        commits |= {start: ts for start, ts in part.commits if start in opened}
    return opened, commits


@pytest.fixture
def first(monkeypatch: pytest.MonkeyPatch) -> Callable[[Store, Callable[[], object]], None]:
    """Do something before it is first asked whether a prewrite is open: behind the look into the index."""

    def before(store: Store, action: Callable[[], object]) -> None:
        once, real = so_often(1, action), store.prewrites.is_open

        def asked(start_ts: int) -> bool:
            once()
            return real(start_ts)

        monkeypatch.setattr(store.prewrites, "is_open", asked)

    return before


def test_a_transaction_that_is_committed_while_it_is_asked_for_is_not_given_as_rolled_back(
    tmp_path: Path, first: Callable[[Store, Callable[[], object]], None]
) -> None:
    store = open_store(tmp_path)
    store_all(store, prewrite(5), rollback(5), prewrite(10), prewrite(20), commit(20, 40))
    first(store, lambda: store_all(store, commit(10, 30)))
    assert said(store) == ({5: False, 10: False, 20: False}, {10: 30, 20: 40})


def test_an_outcome_that_is_kept_in_memory_meanwhile_is_given(
    tmp_path: Path, first: Callable[[Store, Callable[[], object]], None]
) -> None:
    store = open_store(tmp_path)
    store_all(store, prewrite(10))

    def kept() -> None:
        remember(store, 10, 30, commit(10, 30).payload)
        assert store.wait_for_index()

    first(store, kept)
    assert said(store) == ({10: False}, {10: 30})


def test_an_outcome_that_is_kept_in_memory_is_given(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store_all(store, prewrite(10))
    remember(store, 10, 30, commit(10, 30).payload)
    until(lambda: not store.prewrites.is_open(10))
    assert said(store) == ({10: False}, {10: 30})


def test_an_outcome_that_is_written_from_memory_meanwhile_is_given(
    tmp_path: Path, first: Callable[[Store, Callable[[], object]], None]
) -> None:
    store = open_store(tmp_path)
    store_all(store, prewrite(10))
    remember(store, 10, 30, commit(10, 30).payload)
    first(store, lambda: store_all(store, commit(10, 30)))
    assert said(store) == ({10: False}, {10: 30})


def test_a_prewrite_that_was_given_as_open_and_got_its_outcome_is_asked_for_again(
    tmp_path: Path, first: Callable[[Store, Callable[[], object]], None]
) -> None:
    store = open_store(tmp_path)
    store_all(store, prewrite(10), prewrite(20))
    parts = store.transactions.read(b"", 0)
    assert next(parts).prewrites == [(10, b"k", True), (20, b"k", True)]
    store_all(store, rollback(10))
    with pytest.raises(PumpUnavailable, match="while it was read"):
        list(parts)
    assert said(store) == ({10: False, 20: True}, {})


def test_nothing_is_told_while_the_index_is_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pump_service.store.store._INDEX_WITHIN_S", 0.05)
    store = open_store(tmp_path)
    store_all(store, prewrite(10))
    with index_stands_still(store):
        with pytest.raises(PumpUnavailable, match="behind the value log"):
            said(store)
        with pytest.raises(PumpUnavailable, match="behind the value log"):
            store.transactions.floor(b"", 0)
