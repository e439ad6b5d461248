"""A bucket against peers that keep a server busy with frames that cost them nothing."""

from __future__ import annotations

from pump_service.door.http2.frames import ENHANCE_YOUR_CALM, ConnectionFault


class Bucket:
    """Holds ``burst`` tokens and gets ``per_s`` back a second."""

    def __init__(self, burst: int, per_s: float, now: float) -> None:
        self._burst = float(burst)
        self._per_s = per_s
        self._left = float(burst)
        self._then = self.now = now  # `now` is set before what is read is looked at

    def take(self, what: str) -> None:
        """One frame; ConnectionFault when there were too many."""
        self._left -= 1.0
        if self._left < 0.0:
            self._left = min(self._burst, self._left + (self.now - self._then) * self._per_s)
            self._then = self.now
            if self._left < 0.0:
                raise ConnectionFault(ENHANCE_YOUR_CALM, f"too many {what}")
