"""A gate that all writers of the source pass, over processes: shared for a transaction, exclusive for a barrier.

DDL, the dump of genesis and a mark take it exclusively: then no transaction is under way, so none holds a commit ts
that is not committed. Two files, each under flock: whoever wants the gate goes through the turnstile first, so a
barrier waits only for the transactions that are inside.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Gate:
    """One user's view of the gate; each thread makes its own (flock belongs to the open file)."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._turnstile = os.open(directory / "turnstile", os.O_RDWR | os.O_CREAT, 0o600)
        self._gate = os.open(directory / "gate", os.O_RDWR | os.O_CREAT, 0o600)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Be inside with others."""
        fcntl.flock(self._turnstile, fcntl.LOCK_SH)
        try:
            fcntl.flock(self._gate, fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._turnstile, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._gate, fcntl.LOCK_UN)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Be inside alone."""
        fcntl.flock(self._turnstile, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._gate, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._gate, fcntl.LOCK_UN)
        finally:
            fcntl.flock(self._turnstile, fcntl.LOCK_UN)

    def close(self) -> None:
        """Release the files."""
        os.close(self._gate)
        os.close(self._turnstile)
