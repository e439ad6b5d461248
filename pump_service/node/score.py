"""How well a Pump can take more, as a heartbeat says it."""

from __future__ import annotations


def score(*, free: int, total: int, stored: int, load: float, writable: bool) -> int:
    """How well this Pump can take more: 0 (not at all) to 100 (row P10).

    The free share of the disk; up to half of it is taken off for load, and up to half of the rest for how full the Pump
    itself is. So of two Pumps on one disk, of which both say the same free share, the one that holds less gets more.

    Args:
        free: bytes of the disk that can be written.
        total: bytes of the disk.
        stored: bytes of the value log.
        load: load average a CPU; 1 and above is busy.
        writable: whether Ps are taken at all.
    """
    if not writable:
        return 0
    free_share = min(max(free / total, 0.0), 1.0) if total else 0.0
    filled = stored / (stored + free) if stored else 0.0  # of all that it could ever hold
    return max(1, round(100 * free_share * (1.0 - 0.5 * min(max(load, 0.0), 1.0)) * (1.0 - 0.5 * filled)))
