"""What tests ask about processes."""

from __future__ import annotations

import psutil


def lives(pid: int) -> bool:
    """Whether it runs; a killed grandchild that its new parent has not collected yet is dead."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
