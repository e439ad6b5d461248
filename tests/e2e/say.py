"""What the demo prints while it runs: one line a step, with the seconds since it began."""

from __future__ import annotations

import sys
import threading
import time


class Say:
    """Prints lines; for any number of threads. ``error``: on stderr, where stdout is for a machine."""

    def __init__(self, *, error: bool = False) -> None:
        self._out = sys.stderr if error else sys.stdout
        self._began = time.monotonic()
        self._lock = threading.Lock()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def __call__(self, text: str) -> None:
        """Print a line."""
        with self._lock:
            print(f"[{self.elapsed_s:6.1f}s] {text}", file=self._out, flush=True)

    def table(self, title: str, rows: list[tuple[str, object]]) -> None:
        """Print a summary."""
        width = max(len(name) for name, _ in rows)
        with self._lock:
            print(f"\n{title}", file=self._out)
            for name, value in rows:
                print(f"  {name.ljust(width)}  {value}", file=self._out)
            self._out.flush()
