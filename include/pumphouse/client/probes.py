"""Probes of Pumps that are online but not available (row C5): side by side, so that one that hangs delays no other.

Each Pump has at most one under way, and all together ``threads``. Their threads end with the last probe.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from pumphouse.library_log import library_logger
from pumphouse.model.node import NodeStatus

log = library_logger(__name__)

# At once; a Pump that hangs keeps one for the time-out of a call.
PROBES_AT_ONCE = 8


class Probes:
    """Runs them until closed; for any number of threads."""

    def __init__(self, probe: Callable[[NodeStatus], None], threads: int = PROBES_AT_ONCE) -> None:
        """Take the function that probes one Pump, and how many run at once."""
        self._probe = probe
        self._most = threads
        self._changed = threading.Condition()
        self._under_way: set[str] = set()  # node ids, waiting ones too
        self._waiting: deque[NodeStatus] = deque()
        self._threads: set[threading.Thread] = set()
        self._closed = False

    def start(self, pumps: Iterable[NodeStatus]) -> None:
        """Probe these Pumps, but for those whose probe has not ended; does not wait."""
        with self._changed:
            if self._closed:
                return
            for pump in pumps:
                if pump.node_id not in self._under_way:
                    self._under_way.add(pump.node_id)
                    self._waiting.append(pump)
            for _ in range(min(len(self._waiting), self._most - len(self._threads))):
                thread = threading.Thread(target=self._run, name="pump-probe", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # no more threads in this process now: the next round probes them
                    log.warning("no_thread_for_probes", error=str(error))
                    if not self._threads:
                        self._drop_waiting()
                    return
                self._threads.add(thread)

    def wait(self) -> None:
        """Wait until none is under way."""
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way)

    def close(self, timeout_s: float) -> None:
        """Begin no more, and wait so long for those under way."""
        with self._changed:
            self._closed = True
            self._drop_waiting()
            threads = list(self._threads)
        until = time.monotonic() + timeout_s
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _drop_waiting(self) -> None:
        self._under_way -= {pump.node_id for pump in self._waiting}
        self._waiting.clear()
        self._changed.notify_all()

    def _run(self) -> None:
        while (pump := self._next()) is not None:
            try:
                self._probe(pump)
            except Exception as error:  # noqa: BLE001 - those that wait behind it are probed all the same
                log.warning("probe_broke_off", node_id=pump.node_id, error=repr(error))
            with self._changed:
                self._under_way.discard(pump.node_id)
                self._changed.notify_all()

    def _next(self) -> NodeStatus | None:
        """The next one; None = this thread ends."""
        with self._changed:
            if self._waiting:
                return self._waiting.popleft()
            self._threads.discard(threading.current_thread())
            return None
