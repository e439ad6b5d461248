"""Slow mode: when the index cannot keep up, writers stop handing over and a chaser reads the value log (row P4).

On when one hand-over blocks longer than the threshold. From then on the writer only writes; the chaser reads from the
first record that was not handed over. When a pass was quick and the last attempt is a minute old, it takes the write
lock for one more pass of at most a second; when that reaches the end, hand-overs are direct again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from pump_service.store.block import Block
from pump_service.store.index_queue import IndexQueue
from pump_service.store.valuelog import ValueLog
from pump_service.store.writelock import WriteLock
from pumphouse.clock import Clock
from pumphouse.model.position import Pointer

log = structlog.get_logger(__name__)

POLL_S = 0.5
QUICK_PASS_S = 1.0
LOCKED_PASS_S = 1.0
ATTEMPT_EVERY_S = 60.0


class Chaser:
    """Stands between writer and index queue."""

    def __init__(
        self,
        *,
        valuelog: ValueLog,
        queue: IndexQueue,
        clock: Clock,
        threshold_s: float,
        poll_s: float = POLL_S,
        attempt_every_s: float = ATTEMPT_EVERY_S,
    ) -> None:
        self._valuelog = valuelog
        self._queue = queue
        self._clock = clock
        self._threshold_s = threshold_s
        self._poll_s = poll_s
        self._attempt_every_s = attempt_every_s
        self._next: Pointer | None = None  # first record not handed over; None = slow mode is off
        self.attempted = float("-inf")  # when the write lock was taken last, to catch up
        self._stop = threading.Event()
        self.write_lock = WriteLock()  # replaced by the writer's own before start
        self.turned_on = 0
        self._thread = threading.Thread(target=self._run, name="pump-chaser", daemon=True)
        self.on_fault: Callable[[BaseException], None] = lambda _error: None

    @property
    def on(self) -> bool:
        """Whether slow mode is on."""
        return self._next is not None

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End with the writer. What was not caught up is indexed at the next start."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def ready(self) -> bool:
        """Whether the next hand-over will not wait. Asked under the write lock."""
        return self._next is not None or self._queue.has_room()

    def hand_over(self, block: Block) -> None:
        """Whoever writes: give records to the indexer, or turn slow mode on. Called under the write lock."""
        if self._next is not None:
            return
        if not self._queue.push(block, self._threshold_s):
            self._next = first = block.first
            self.turned_on += 1
            log.warning("slow_mode_on", file_id=first.fid, offset=first.offset)

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._poll_s):
                if self._next is not None:
                    self._pass()
        except BaseException as error:
            self.on_fault(error)
            log.exception("chaser_stopped")

    def _pass(self) -> None:
        begun = self._clock.monotonic()
        self._catch_up(None)
        now = self._clock.monotonic()
        if now - begun >= QUICK_PASS_S or now - self.attempted < self._attempt_every_s or self._stop.is_set():
            return
        self.attempted = now
        with self.write_lock:
            if self._catch_up(self._clock.monotonic() + LOCKED_PASS_S):
                self._next = None
                log.warning("slow_mode_off")

    def _catch_up(self, deadline: float | None) -> bool:
        """Hand over from `_next` to the end of the log; False when time or the store ended first."""
        if self._next is None:
            return True
        for block in self._valuelog.scan(self._next):
            if not self._push(block, deadline):
                return False
            self._next = block.end
        return True

    def _push(self, block: Block, deadline: float | None) -> bool:
        while not self._stop.is_set():
            timeout = self._poll_s
            if deadline is not None:
                timeout = min(timeout, deadline - self._clock.monotonic())
                if timeout <= 0:
                    return False
            if self._queue.push(block, timeout):
                return True
        return False
