"""Keeping the sets of Pumps true (rows C1, C5): what the registry says, and probes of those that failed.

A registry that tells of changes is listened to, and looked at now and then anyway; any other is looked at by interval.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from pumphouse.client.members import Members
from pumphouse.clock import Clock
from pumphouse.errors import BinlogError
from pumphouse.library_log import library_logger
from pumphouse.model.node import NodeKind
from pumphouse.registry.base import Cluster, NodeWatch, WatchesNodes

log = library_logger(__name__)

LOOK_ANYWAY_S = 30.0
_LOOKS = 3


class PumpWatch:
    """Threads over one `Members`, until closed."""

    def __init__(
        self,
        cluster: Cluster,
        members: Members,
        probe: Callable[[], None],
        tidy: Callable[[], None] = lambda: None,
        *,
        interval_s: float,
        probe_interval_s: float,
        clock: Clock,
    ) -> None:
        """Start.

        Args:
            cluster: where the Pumps are registered.
            members: what is kept true.
            probe: called every ``probe_interval_s`` seconds; must not wait for a Pump.
            tidy: called every ``interval_s`` seconds, after the look if there was one.
            interval_s: seconds between looks at a registry that does not tell.
            probe_interval_s: see ``probe``.
            clock: time.
        """
        self._cluster = cluster
        self._members = members
        self._probe = probe
        self._tidy = tidy
        self._interval_s = interval_s
        self._probe_interval_s = probe_interval_s
        self._clock = clock
        self._closed = threading.Event()
        self._told: NodeWatch | None = None
        self._listening = threading.Event()
        self._order = threading.Lock()
        self._begun = self._taken = 0  # the last look that was begun, and the last whose list was taken
        self._news = 0  # lists of changes that were told
        self._threads = [threading.Thread(target=self._look, name="pump-watch", daemon=True)]
        if isinstance(cluster, WatchesNodes):
            self._told = cluster.watch_nodes(NodeKind.PUMP)
            self._listening.set()
            self._threads.append(
                threading.Thread(target=self._listen, args=(self._told,), name="pump-news", daemon=True)
            )
        for thread in self._threads:
            thread.start()

    def refresh(self) -> None:
        """Look at the registry now; a failure leaves what is known.

        A list that was begun before news came, or before another list that is known already, may be older than what is
        known: it is dropped, and while this thread has patience the registry is looked at once more.
        """
        for _ in range(_LOOKS):
            with self._order:
                self._begun += 1
                begun, news = self._begun, self._news
            try:
                found = self._cluster.readable_nodes(NodeKind.PUMP)
            except (BinlogError, OSError) as error:
                log.warning("pump_watch_failed", error=str(error))
                return
            with self._order:
                if begun < self._taken:
                    return
                if news == self._news:
                    self._taken = begun
                    self._members.update(found)
                    return

    def close(self) -> None:
        """End the threads."""
        self._closed.set()
        if self._told is not None:
            self._told.close()
        for thread in self._threads:
            thread.join(timeout=self._interval_s + 1)

    def _look(self) -> None:
        look_at, probe_at = 0.0, self._clock.monotonic() + self._probe_interval_s
        while not self._closed.wait(self._interval_s):
            now = self._clock.monotonic()
            if not self._listening.is_set() or now >= look_at:
                self.refresh()
                look_at = now + LOOK_ANYWAY_S
            self._tidy()
            if now >= probe_at:
                self._probe()
                probe_at = self._clock.monotonic() + self._probe_interval_s

    def _listen(self, told: NodeWatch) -> None:
        first = True
        try:
            for changes in told:
                with self._order:
                    self._news += 1
                    if first:
                        self._members.update([change.status for change in changes if change.status is not None])
                        first = False
                        continue
                    for change in changes:
                        self._members.change(change.node_id, change.status)
        except (BinlogError, OSError) as error:
            log.warning("pump_watch_ended", error=str(error))
        finally:
            self._listening.clear()
