"""Who writes the groups of a store: its own thread, or whoever submits, as an event loop does."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from pump_service.store.store import Store
from pump_service.store.writer import Writer
from tests.support.storekit import close_stores


@contextlib.contextmanager
def written_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is submitted to a store meanwhile is written by one other thread by `Store.write_here`, where that is short."""
    work: SimpleQueue[Store | None] = SimpleQueue()
    plain = Store.submit

    def submit(store: Store, *arguments: Any) -> None:
        plain(store, *arguments, here=True)
        work.put(store)

    def run() -> None:
        while (store := work.get()) is not None:
            store.write_here()

    thread = threading.Thread(target=run, name="test-here", daemon=True)
    thread.start()
    with monkeypatch.context() as patch:
        patch.setattr(Store, "submit", submit)
        try:
            yield
        finally:
            close_stores()
            work.put(None)
            thread.join(60)


def nothing_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's thread writes everything."""
    monkeypatch.setattr(Writer, "_write_short", lambda _writer: False)
