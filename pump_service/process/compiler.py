"""Kernels that are not in the disk cache are compiled by a process of its own: the compiler's memory ends with it.

That is at the first start after an installation or an update. Compiled in the Pump's own process they would cost it
some 100 MiB for the rest of its life. That process ends with the Pump, also with a killed one: it reads a pipe that the
Pump holds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import structlog

import pumphouse
from pump_service.process.warm import warm
from pump_service.process.warm_reads import warm_reads
from pumphouse.codec.jit import not_on_disk

log = structlog.get_logger()

# Where our two packages are imported from.
_ROOTS = (str(Path(__file__).parents[1]), str(Path(pumphouse.__file__ or "").parents[1]))
_LONGEST_S = 900.0
_LEASHED = "--leashed"  # standard input is the pipe; an installation runs this with any other
_SHOWN = 2000  # characters of what a compiler said that failed


class Leash:
    """What a compiler hangs on. Any thread."""

    def __init__(self) -> None:
        self.end, self._held = os.pipe()
        self._lock = threading.Lock()
        self.gone = False

    def let_go(self) -> None:
        """End the compiler that runs, and each that would be started."""
        with self._lock:
            if not self.gone:
                self.gone = True
                os.close(self._held)

    def close(self) -> None:
        """Nobody is started any more."""
        self.let_go()
        os.close(self.end)


def compile_apart(leash: Leash | None = None) -> None:
    """Fill the disk cache where it lacks something. Where that fails, whoever needs a kernel compiles it.

    ``leash``: ends it before its time; None = the end of this process.
    """
    leash = leash or Leash()
    if leash.gone or not not_on_disk("pump_service"):
        return
    began = time.monotonic()
    log.info("compiling", hint="once after an installation or an update; some ten seconds, a minute on a busy machine")
    path = os.pathsep.join(filter(None, (*_ROOTS, os.environ.get("PYTHONPATH"))))
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__, _LEASHED],
            env={**os.environ, "PYTHONPATH": path}, stdin=leash.end, capture_output=True, text=True,
            errors="replace", timeout=_LONGEST_S, check=False,
        )  # fmt: skip
        failure = done.stderr[-_SHOWN:] if done.returncode else ""
    except (OSError, subprocess.SubprocessError) as error:
        failure = str(error)
    if leash.gone:
        return
    seconds = round(time.monotonic() - began, 1)
    if failure or not_on_disk("pump_service"):
        log.warning("compiled_nothing", reason=failure or "nothing came into the cache", seconds=seconds)
    else:
        log.info("compiled", seconds=seconds)


def _end_with_the_pump() -> None:
    os.read(0, 1)  # nothing is ever written to it
    os._exit(1)


if __name__ == "__main__":
    if _LEASHED in sys.argv:
        threading.Thread(target=_end_with_the_pump, daemon=True).start()
    warm()
    warm_reads()
