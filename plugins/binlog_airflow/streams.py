"""Where the programs that a task starts write to."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_OUT, _ERR = 1, 2


@contextmanager
def ordinary_stderr() -> Iterator[None]:
    """What is started meanwhile has its stderr in the task's log as plain lines.

    Airflow shows each line on stderr as an error; Spark writes its ordinary messages there.
    """
    sys.stderr.flush()
    kept = os.dup(_ERR)
    os.dup2(_OUT, _ERR)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, _ERR)
        os.close(kept)
