"""Kernels that are not in the disk cache are compiled by a process of its own: the compiler's memory ends with it.

That is at the first start after an installation or an update. Compiled in the Pump's own process they would cost it
some 100 MiB for the rest of its life.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import structlog

import pumphouse
from pump_service.warm import warm
from pump_service.warm_reads import warm_reads
from pumphouse.codec.jit import not_on_disk

log = structlog.get_logger()

# Where our two packages are imported from.
_ROOTS = (str(Path(__file__).parents[1]), str(Path(pumphouse.__file__ or "").parents[1]))
_LONGEST_S = 900.0
_SHOWN = 2000  # characters of what a compiler said that failed


def compile_apart() -> None:
    """Fill the disk cache where it lacks something. Where that fails, whoever needs a kernel compiles it."""
    if not not_on_disk("pump_service"):
        return
    began = time.monotonic()
    log.info("compiling", hint="once after an installation or an update; some ten seconds, a minute on a busy machine")
    path = os.pathsep.join(filter(None, (*_ROOTS, os.environ.get("PYTHONPATH"))))
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=_LONGEST_S, check=False,
        )  # fmt: skip
        failure = done.stderr[-_SHOWN:] if done.returncode else ""
    except (OSError, subprocess.SubprocessError) as error:
        failure = str(error)
    seconds = round(time.monotonic() - began, 1)
    if failure or not_on_disk("pump_service"):
        log.warning("compiled_nothing", reason=failure or "nothing came into the cache", seconds=seconds)
    else:
        log.info("compiled", seconds=seconds)


if __name__ == "__main__":
    warm()
    warm_reads()
