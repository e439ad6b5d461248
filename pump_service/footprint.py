"""Memory of the process: what only its start needs is given back, and threads share few heaps.

The library that compiles kernels has some 70 MB of code in memory once they are loaded, and is hardly used afterwards:
what is used is read from the file again. Each thread that allocates gets a heap of its own from glibc, which never
shrinks. Both are requests to the system; where it does not know them nothing changes. And Python's garbage collection
would look at all that the libraries have made, over and over.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from pathlib import Path

_MAPS = Path("/proc/self/smaps")  # proc(5)
_HEADER = 6  # words of a mapping's first line, with a file
_CHANGED = ("Anonymous:", "Swap:")  # where a page of a file is that the linker or anybody has written to
_LAST = "0-0 ---p 0 0:0 0"
_COMPILER = "libllvmlite"
_MADV_DONTNEED = 4  # linux/mman.h
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


def give_back_compiler() -> None:
    """Take the compiler's code out of memory; call it when every kernel is loaded."""
    advise = getattr(ctypes.CDLL(None), "madvise", None)
    if advise is None or not _MAPS.exists():
        return
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for begin, end in _unchanged(_MAPS.read_text(), _COMPILER):
        advise(begin, end - begin, _MADV_DONTNEED)


def _unchanged(smaps: str, library: str) -> Iterator[tuple[int, int]]:
    """Begin and end of each mapping of a library that nobody can write to and whose pages are all as in the file."""
    place, wanted, changed = (0, 0), False, 0
    for line in [*smaps.splitlines(), _LAST]:
        field, *rest = line.split(maxsplit=5)
        if not field.endswith(":"):
            if wanted and not changed:
                yield place
            begin, _, end = field.partition("-")
            place, changed = (int(begin, 16), int(end, 16)), 0
            wanted = "w" not in rest[0] and len(rest) == _HEADER - 1 and library in Path(rest[-1]).name
        elif field in _CHANGED:
            changed += int(rest[0])
