"""The output: transactions that are committed, in the order of the input."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator

from pumphouse.replay.change import Txn

# So many wait for whoever reads them; then the replay waits.
_MOST = 65536


class Successes(Iterator[Txn]):
    """Iterates over committed transactions; ends when the run has ended, in whatever way."""

    def __init__(self) -> None:
        self._queue: deque[Txn] = deque()
        self._ended = False
        self._changed = threading.Condition()

    def tell(self, txns: Iterable[Txn]) -> None:
        """Add transactions; waits for a reader while too many wait."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or len(self._queue) < _MOST)
            self._queue.extend(txns)
            self._changed.notify_all()

    def end(self) -> None:
        """No more comes."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def __next__(self) -> Txn:
        """The next one; waits for it."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._ended)
            if not self._queue:
                raise StopIteration
            txn = self._queue.popleft()
            self._changed.notify_all()
            return txn
