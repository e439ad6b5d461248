"""What a Pump keeps in memory: nothing that only an archive needs; what garbage collection leaves alone once it serves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# Garbage that is there when it begins to serve is freed, what stays is not looked at again, and what comes later is.
_FREEZES = """
import gc, weakref
from pump_service.command import cli

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

# As `pumphouse pump run` does before it serves. Arrow is 25 MB, boto3 and the archive's code some more.
_STARTS = """
import sys
import pumphouse.commands.pump
import pump_service.command.cli
from pump_service.process.warm import warm
from pump_service.process.warm_reads import warm_reads

warm()
warm_reads()
assert not {"pyarrow", "boto3", "pandas"} & set(sys.modules), "loaded without need"
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


def test_neither_writes_nor_pulls_import_pandas() -> None:
    _succeeds(
        """
import sys
import pump_service.process.app
from pump_service.process.warm import warm
from pump_service.process.warm_reads import warm_reads
warm()
warm_reads()
assert "pandas" not in sys.modules
"""
    )


def test_what_only_an_archive_needs_is_not_loaded_at_the_start() -> None:
    _succeeds(_STARTS)
