"""Commits and rollbacks on their way to one Pump, in the background (row C3).

The caller has its answer already, so nothing here is an error for it: what cannot be delivered is counted, and the
Pump finds the outcome by asking.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import BadBinlog, BinlogError, ClusterMismatch, PeerRefused, PumpUnavailable
from pumphouse.library_log import library_logger

log = library_logger(__name__)

GIVE_UP_S = 600.0
RETRY_INTERVAL_S = 1.0
# In one round; also the most that it can lose to a Pump that just died.
WINDOW = 4096
# Waiting for a Pump that is down. Beyond it the oldest goes: the Pump will have to ask for it anyway.
LIMIT = 100_000
LIMIT_BYTES = 64 << 20
# No other answer will come by asking again.
PERMANENT = (ClusterMismatch, BadBinlog, PeerRefused)

Send = Callable[[Sequence[bytes]], list[BinlogError | None]]


@dataclass(slots=True)
class _Item:
    payload: bytes
    since: float


class CommitSender:
    """One queue and one thread, started with the first item."""

    def __init__(self, node_id: str, send: Send, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.sent = 0
        self.lost = 0
        self._node_id = node_id
        self._send = send
        self._clock = clock
        self._queue: deque[_Item] = deque()
        self._queued_bytes = 0
        self._busy = 0
        self._failure = ""
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def put(self, *payloads: bytes) -> None:
        """Queue binlogs; never waits."""
        with self._changed:
            if self._stopping:
                self.lost += len(payloads)
                return
            now = self._clock.monotonic()
            self._queue.extend(_Item(payload, now) for payload in payloads)
            self._queued_bytes += sum(map(len, payloads))
            self._trim()
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name=f"commits-{self._node_id}", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    @property
    def idle(self) -> bool:
        """Whether everything is answered or given up."""
        with self._changed:
            return not self._queue and not self._busy

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is answered or given up; False when the time is up before."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and not self._busy, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Flush for so long, then stop; what is left counts as lost."""
        self.flush(timeout_s)
        with self._changed:
            self._stopping = True
            self.lost += len(self._queue)
            self._queue.clear()
            self._queued_bytes = 0
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._stopping)
                if self._stopping:
                    return
                items = [self._queue.popleft() for _ in range(min(WINDOW, len(self._queue)))]
                self._queued_bytes -= sum(len(item.payload) for item in items)
                self._busy = len(items)
            again = items  # if this thread is ended, the next one sends them
            try:
                outcomes = self._outcomes(items)
                with self._changed:
                    again = [item for item, each in zip(items, outcomes, strict=True) if self._is_due_again(item, each)]
            finally:
                with self._changed:
                    self._queue.extendleft(reversed(again))
                    self._queued_bytes += sum(len(item.payload) for item in again)
                    self._trim()
                    self._busy = 0
                    self._changed.notify_all()
            with self._changed:
                if again:
                    self._changed.wait_for(lambda: self._stopping, RETRY_INTERVAL_S)

    def _outcomes(self, items: Sequence[_Item]) -> Sequence[BinlogError | None]:
        """Send them; whatever is raised (a certificate that cannot be read, say) is an outcome that may change."""
        try:
            outcomes = self._send([item.payload for item in items])
            if len(outcomes) != len(items):
                raise ValueError(f"{len(outcomes)} outcomes of {len(items)} binlogs")  # noqa: TRY301
        except Exception as error:  # noqa: BLE001
            failure = f"{type(error).__name__}: {error}"
            if failure != self._failure:
                log.warning("commits_not_sent", node_id=self._node_id, error=failure, again_in_s=RETRY_INTERVAL_S)
            self._failure = failure
            unsent = PumpUnavailable(f"Pump {self._node_id}: not sent: {failure}", node_id=self._node_id)
            return [unsent] * len(items)
        self._failure = ""
        return outcomes

    def _trim(self) -> None:
        while len(self._queue) > LIMIT or (self._queued_bytes > LIMIT_BYTES and len(self._queue) > 1):
            self._queued_bytes -= len(self._queue.popleft().payload)
            self.lost += 1

    def _is_due_again(self, item: _Item, error: BinlogError | None) -> bool:
        if error is None:
            self.sent += 1
            return False
        if isinstance(error, PERMANENT) or self._stopping or self._clock.monotonic() - item.since > GIVE_UP_S:
            self.lost += 1
            log.warning("commit_lost", node_id=self._node_id, error=str(error))
            return False
        return True
