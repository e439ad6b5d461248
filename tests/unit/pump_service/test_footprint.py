"""What a Pump gives back when it has started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pump_service.footprint import _unchanged

_SMAPS = """\
7f00-7f10 r-xp 00001000 fe:00 12    /lib/libllvmlite.so
Rss:   64 kB
Anonymous:             0 kB
Swap:                  0 kB
7f10-7f20 r--p 00002000 fe:00 12    /lib/libllvmlite.so
Anonymous:             4 kB
7f18-7f20 r--p 00002000 fe:00 12    /lib/libllvmlite.so
Anonymous:             0 kB
Swap:                  4 kB
7f20-7f30 rw-p 00003000 fe:00 12    /lib/libllvmlite.so
Anonymous:             0 kB
7f30-7f40 r-xp 00001000 fe:00 13    /lib/libother.so
Anonymous:             0 kB
7f40-7f50 r--p 00000000 00:00 0
Anonymous:             0 kB
7f50-7f60 r--p 00000000 fe:00 12    /with space/libllvmlite.so
Anonymous:             0 kB
"""

_PROCESS = """
from pathlib import Path
from pump_service.footprint import give_back_compiler, share_heaps
from pump_service.warm import warm
import numba

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

share_heaps()
warm()
before = resident()
give_back_compiler()
assert before - resident() > 20 << 20, (before, resident())
warm()
assert numba.njit(lambda x: x * 2 + 1)(20) == 41  # the compiler still works
"""


# Garbage that is there when it begins to serve is freed, what stays is not looked at again, and what comes later is.
_FREEZES = """
import gc, weakref
from pump_service import cli

class Kept(list):
    pass

class Cycle:
    def __init__(self):
        self.me = self

kept = [Kept() for _ in range(50_000)]
gc.disable()
before = gc.get_freeze_count()
garbage = weakref.ref(Cycle())
cli.leave_what_stays()
assert garbage() is None
assert gc.get_freeze_count() - before > 50_000
assert len(gc.get_objects()) < 1000, len(gc.get_objects())  # of which a collection looks at each
later = weakref.ref(Cycle())
gc.collect()
assert later() is None
"""


def _succeeds(program: str) -> None:
    """In a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_what_a_pump_has_when_it_begins_to_serve_is_not_looked_at_again() -> None:
    _succeeds(_FREEZES)


def test_only_what_is_in_the_file_as_it_is_in_memory_is_given_back() -> None:
    assert list(_unchanged(_SMAPS, "libllvmlite")) == [(0x7F00, 0x7F10), (0x7F50, 0x7F60)]


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux")
def test_the_compiler_leaves_the_memory_and_comes_back_when_it_is_needed() -> None:
    _succeeds(_PROCESS)
