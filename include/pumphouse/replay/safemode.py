"""Whether changes are replayed in safe mode, where a transaction may come twice (row L2)."""

from __future__ import annotations

from pumphouse.clock import SYSTEM_CLOCK, Clock

# A stream that begins again repeats what was not acknowledged when it ended.
FIRST_S = 300.0


class SafeMode:
    """On for the first five minutes, and all the time after an unclean stop, unless it is switched by hand.

    Args:
        unclean: whether the run before ended otherwise than by a close.
        later: what it is when nothing of that holds.
        clock: time.
    """

    def __init__(self, *, unclean: bool, later: bool, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        self._unclean = unclean
        self._later = later
        self._switched: bool | None = None

    @property
    def on(self) -> bool:
        """Now."""
        if self._switched is not None:
            return self._switched
        return self._unclean or self._later or self._clock.monotonic() - self._began < FIRST_S

    def switch(self, on: bool) -> None:
        """By hand, from the next round on; it stays so."""
        self._switched = on
