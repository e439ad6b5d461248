"""Stores that write beside an event loop: the real thing in a thread of its own, and one that the test drives."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pump_service.loop_syncs import LoopSyncs, loop_syncs
from pump_service.store.fs import SyncDone
from pump_service.store.store import Store
from tests.support.storekit import close_stores


@contextlib.contextmanager
def a_loop() -> Iterator[LoopSyncs]:
    """A running event loop's; stores that are attached must be closed inside."""
    ready: list[LoopSyncs] = []
    started = threading.Event()

    async def main() -> None:
        stop = asyncio.Event()
        stops.append(lambda: loop.call_soon_threadsafe(stop.set))
        loop = asyncio.get_running_loop()
        syncs = loop_syncs()
        assert syncs is not None, "this system has no asynchronous fdatasync"
        ready.append(syncs)
        started.set()
        await stop.wait()
        syncs.close()

    stops: list[Callable[[], object]] = []
    thread = threading.Thread(target=lambda: asyncio.run(main()), name="test-loop")
    thread.start()
    assert started.wait(10)
    try:
        yield ready[0]
    finally:
        stops[0]()
        thread.join(10)


@contextlib.contextmanager
def attached_stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopSyncs]:
    """Every store that is opened meanwhile writes beside an event loop in a thread of its own."""
    with a_loop() as syncs, _opened(monkeypatch, lambda: syncs):
        try:
            yield syncs
        finally:
            close_stores()


@contextlib.contextmanager
def stores_on_this_loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every store that is opened meanwhile, by a coroutine, writes on its loop, as a Pump's does.

    It must be closed by another thread.
    """

    def here() -> LoopSyncs:
        syncs = loop_syncs()
        assert syncs is not None
        return syncs

    with _opened(monkeypatch, here):
        yield


@contextlib.contextmanager
def _opened(monkeypatch: pytest.MonkeyPatch, syncs: Callable[[], LoopSyncs]) -> Iterator[None]:
    plain = Store.open.__func__  # type: ignore[attr-defined]

    def opened(cls: type[Store], *arguments: Any, **named: Any) -> Store:
        return plain(cls, *arguments, **named, syncs=syncs())  # type: ignore[no-any-return]

    with monkeypatch.context() as patch:
        patch.setattr(Store, "open", classmethod(opened))
        yield


class HeldSyncs:
    """The thread that makes it is the loop's; what is begun ends when the test says so."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._actions: deque[Callable[[], None]] = deque()
        self.begun: deque[tuple[int, SyncDone]] = deque()
        self.refuses = False  # as where the kernel has no resources
        self.ended = False  # the loop is gone

    def mine(self) -> bool:
        return threading.get_ident() == self._thread

    def begin(self, fd: int, done: SyncDone) -> bool:
        assert self.mine()
        if not self.refuses:
            self.begun.append((fd, done))
        return not self.refuses

    def call(self, action: Callable[[], None]) -> bool:
        if not self.ended:
            self._actions.append(action)
        return not self.ended

    def run(self) -> None:
        """What was called so far."""
        assert self.mine()
        while self._actions:
            self._actions.popleft()()

    def end(self, error: OSError | None = None) -> None:
        """The oldest sync that is under way ends."""
        fd, done = self.begun.popleft()
        if error is None:
            os.fdatasync(fd)
        done(error)

    def run_until(self, condition: Callable[[], Any], seconds: float = 20.0) -> None:
        """Run what is called until something is so."""
        pause = threading.Event()
        for _ in range(int(seconds / 0.002)):
            self.run()
            if condition():
                return
            pause.wait(0.002)
        raise AssertionError("it did not come")
