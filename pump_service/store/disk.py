"""Free space: when prewrites are refused, and the reserve that commits and fakes still have then (row P15)."""

from __future__ import annotations

import threading
from pathlib import Path

import structlog

from include.clock import Clock
from pump_service.store.fs import FileSystem

log = structlog.get_logger(__name__)

CHECK_EVERY_S = 0.5
# After a full disk, prewrites are taken again only when this much is free besides the reserve.
RESUME_BYTES = 1 << 20
RESERVE_NAME = "reserve"


class DiskGuard:
    """Read-only is a state that ends by itself. Asked by the writer thread, read by any."""

    def __init__(self, fs: FileSystem, directory: Path, clock: Clock, *, stop_at: int, reserve: int) -> None:
        self._fs = fs
        self._directory = directory
        self._clock = clock
        self._stop_at = stop_at
        self._reserve = reserve
        self._reserved = False
        self._full = False
        self._lock = threading.Lock()
        self._checked = float("-inf")
        self._available = 0
        self._read_only = False

    @property
    def stop_at(self) -> int:
        """Bytes at or below which prewrites are refused."""
        return self._stop_at

    def available(self) -> int:
        """Free bytes, at most half a second old."""
        self.read_only()
        return self._available

    def read_only(self) -> bool:
        """Whether prewrites are refused."""
        with self._lock:
            now = self._clock.monotonic()
            if now - self._checked >= CHECK_EVERY_S:
                self._checked = now
                self._look()
            return self._read_only

    def _look(self) -> None:
        try:
            self._available = self._fs.free_bytes(self._directory)
        except OSError as error:
            log.warning("free_space_unknown", error=str(error))
            return
        if self._full and self._available > max(self._stop_at, RESUME_BYTES) + self._reserve:
            self._full = False
        if not self._reserved and not self._full:
            self._preallocate()
        read_only = self._full or self._available <= self._stop_at
        if read_only != self._read_only:
            self._read_only = read_only
            log.warning(
                "read_only" if read_only else "writable_again", available=self._available, stop_at=self._stop_at
            )

    def _preallocate(self) -> None:
        if self._reserve == 0:
            return
        try:
            self._fs.preallocate(self._directory / RESERVE_NAME, self._reserve)
            self._reserved = True
        except OSError as error:
            log.warning("reserve_not_made", bytes=self._reserve, error=str(error))

    def went_full(self) -> bool:
        """A write met a full disk: give the reserve back. True when that made room."""
        with self._lock:
            self._full = True
            self._read_only = True
            self._checked = self._clock.monotonic()
            if not self._reserved:
                return False
            self._reserved = False
            try:
                self._fs.remove(self._directory / RESERVE_NAME)
            except OSError as error:
                log.warning("reserve_not_released", error=str(error))
                return False
            log.warning("reserve_released", bytes=self._reserve)
            return True
