"""Small writes beside the value log that must work on a full disk too."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pump_service.store.disk import DiskGuard, is_full
from pump_service.store.index import IndexFailed
from pump_service.store.indexer import Indexer

T = TypeVar("T")


class Bookkeeping:
    """Does what it is given; once more when the disk is full and the reserve for it can be given back."""

    def __init__(self, guard: DiskGuard, indexer: Indexer) -> None:
        self._guard = guard
        self._indexer = indexer

    def __call__(self, action: Callable[[], T]) -> T:
        """What the action returns. Raises what it raises."""
        try:
            return action()
        except (OSError, IndexFailed) as error:
            if not is_full(error) or not self._guard.make_room():
                raise
            if isinstance(error, IndexFailed):
                self._indexer.reopen()
        return action()
