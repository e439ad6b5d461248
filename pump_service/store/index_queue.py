"""The hand-over between writer (or chaser) and indexer: records that follow each other are indexed together."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from pump_service.store.block import Block

# How long records may wait for more to be indexed together, and how many are enough. Only pullers wait for it.
LINGER_S = 0.02
# When so many have come by then, the writer is busy, and each wake-up here costs it a wait for the interpreter.
MANY_RECORDS = 256
LINGER_MORE_S = 0.03
_ENOUGH_RECORDS = 4096
# Most records that are indexed at once, however many wait.
_AT_ONCE = 1 << 16

Work = Block | Callable[[], None]


class IndexQueue:
    """Bounded, counted in records."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._work: deque[Work] = deque()
        self._records = 0
        self._urgent = False  # something waits that is not to linger
        self._idle = False  # the indexer sleeps until the first record comes
        self._changed = threading.Condition()

    def push(self, block: Block, timeout: float | None) -> bool:
        """Hand over records; False when there was no room for that long. ``None`` waits for ever."""
        with self._changed:
            if self._records >= self._limit:
                self._changed.notify_all()
                if not self._changed.wait_for(lambda: self._records < self._limit, timeout):
                    return False
            self._work.append(block)
            self._records += len(block)
            if self._idle or self._records >= min(_ENOUGH_RECORDS, self._limit):
                self._changed.notify_all()
            return True

    def has_room(self) -> bool:
        """Whether the next `push` will not wait, when nobody else pushes meanwhile."""
        return self._records < self._limit

    def call(self, action: Callable[[], None]) -> None:
        """Run something in the indexer thread, behind what is queued."""
        with self._changed:
            self._work.append(action)
            self._urgent = True
            self._changed.notify_all()

    def pop(self, timeout: float) -> Work | None:
        """Next piece of work, None after the timeout. Records that follow each other come together."""
        with self._changed:
            if not self._work:
                self._idle = True
                came = self._changed.wait_for(lambda: self._work, timeout)
                self._idle = False
                if not came:
                    return None
            self._linger(LINGER_S)
            if self._records >= MANY_RECORDS:
                self._linger(LINGER_MORE_S)
            work = self._work.popleft()
            if isinstance(work, Block):
                blocks = [work]
                count = len(work)
                while self._work and isinstance(more := self._work[0], Block) and count + len(more) <= _AT_ONCE:
                    blocks.append(more)
                    count += len(more)
                    self._work.popleft()
                self._records -= count
                work = Block.concat(blocks)
            if not self._work:
                self._urgent = False
            self._changed.notify_all()
            return work

    def _linger(self, seconds: float) -> None:
        if not self._urgent and self._records < min(_ENOUGH_RECORDS, self._limit):
            self._changed.wait(seconds)

    def __len__(self) -> int:
        return self._records
