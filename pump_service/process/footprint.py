"""Memory of the process: threads share few heaps, and garbage collection leaves alone what stays.

Each thread that allocates gets a heap of its own from glibc, which never shrinks: fewer are a request to the system,
and where it does not know that nothing changes. Python's garbage collection would look at all that the libraries have
made, over and over.
"""

from __future__ import annotations

import ctypes
import gc

_M_ARENA_MAX = -8  # glibc, malloc.h
_HEAPS = 2


def share_heaps() -> None:
    """Few heaps for all threads; call it before they start."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_ARENA_MAX, _HEAPS)


def leave_what_stays() -> None:
    """What the process has stays: garbage collection does not look at it any more.

    Some 200,000 objects, of libraries for the most part. To look at them takes a tenth of a second, in which nothing is
    answered. For a process of its own, before anybody is connected: what is here now, lies in a cycle and becomes
    garbage later is never freed.
    """
    gc.collect()
    gc.freeze()
