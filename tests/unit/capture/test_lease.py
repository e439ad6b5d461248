"""Until when a process may decide, by the clocks of its host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pumphouse.capture.lease import Lease
from pumphouse.errors import CaptureFenced
from pumphouse.registry.base import CaptureRecord
from pumphouse.registry.file import FileCluster
from tests.support.setclock import SetClock

pytestmark = pytest.mark.row("Q2")


class _Host(SetClock):
    """Suspended, its wall clock goes on."""

    slept = 0.0

    def now(self) -> float:
        return self.value + self.slept


def test_a_host_that_was_suspended_asks_who_has_the_capture_before_it_decides(tmp_path: Path) -> None:
    host = _Host()
    cluster = FileCluster(tmp_path)
    mine = Lease.take(cluster, "main", source="", server="", clock=host)
    mine.held()
    host.slept = 8.0
    mine.held()
    host.slept = 3600.0
    mine.held()  # nobody took it: it is renewed
    Lease.take(cluster, "main", source="", server="", clock=SetClock(host.now() + 16))
    host.slept += 20.0
    with pytest.raises(CaptureFenced, match="taken over"):
        mine.held()


def test_a_lease_counts_from_before_it_was_asked_for(tmp_path: Path) -> None:
    host = SetClock()

    class Slow(FileCluster):
        def update_capture(
            self, capture_id: str, change: Callable[[CaptureRecord | None], CaptureRecord | None]
        ) -> CaptureRecord | None:
            if host.value > 1000:
                raise OSError("away")
            written = super().update_capture(capture_id, change)
            host.value += 12
            return written

    lease = Lease.take(Slow(tmp_path), "main", source="", server="", clock=host)
    with pytest.raises(CaptureFenced, match="not reached"):
        lease.held()
