"""What the demo prints while it runs: one line a step, with the seconds since it began."""

from __future__ import annotations

import sys
import threading
import time


class Say:
    """Prints lines; for any number of threads."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._lock = threading.Lock()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def __call__(self, text: str) -> None:
        """Print a line."""
        with self._lock:
            print(f"[{self.elapsed_s:6.1f}s] {text}", flush=True)

    def table(self, title: str, rows: list[tuple[str, object]]) -> None:
        """Print a summary."""
        width = max(len(name) for name, _ in rows)
        with self._lock:
            print(f"\n{title}")
            for name, value in rows:
                print(f"  {name.ljust(width)}  {value}")
            sys.stdout.flush()
