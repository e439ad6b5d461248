"""Free space: when prewrites are refused, and the two reserves that are left on a full disk (row P15).

One reserve is for commits, rollbacks and fakes. The other is for what must go on for the disk to become empty again:
index, GC numbers, notes of settlements. It is given back only when such a write met a full disk, and the value log may
not take it: as long as no more than that is free, everything is refused.
"""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import structlog

from pump_service.store.fs import FileSystem
from pumphouse.clock import Clock
from pumphouse.errors import PumpReadOnly

log = structlog.get_logger(__name__)

CHECK_EVERY_S = 0.5
# After a full disk, prewrites are taken again only when this much is free besides the reserve.
RESUME_BYTES = 1 << 20
RESERVE_NAME = "reserve"
BOOKKEEPING_NAME = "reserve.own"
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
# The process or the machine has no descriptor left for the next file: it says nothing of the disk, and it passes.
NO_FILES = frozenset({errno.EMFILE, errno.ENFILE})


class DiskGuard:
    """Read-only is a state that ends by itself. Asked by whoever writes, read by any."""

    def __init__(
        self, fs: FileSystem, directory: Path, clock: Clock, *, stop_at: int, reserve: int, bookkeeping: int = 0
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._clock = clock
        self._stop_at = stop_at
        self._wanted = {name: size for name, size in ((RESERVE_NAME, reserve), (BOOKKEEPING_NAME, bookkeeping)) if size}
        self._bookkeeping = bookkeeping
        self._reserved: set[str] = set()
        self._tried = False
        self._full = False
        self._lock = threading.Lock()
        self._checked = float("-inf")
        self._available = 0
        self._read_only = False

    def refusal(self) -> PumpReadOnly:
        """What a refused writer is told."""
        available = self.available()
        return PumpReadOnly(
            f"no available space, available: {available}, StopWriteAtAvailableSpace: {self._stop_at}",
            available=available,
            limit=self._stop_at,
        )

    def available(self) -> int:
        """Free bytes, at most half a second old."""
        self.read_only()
        return self._available

    def read_only(self) -> bool:
        """Whether prewrites are refused."""
        with self._lock:
            if self._clock.monotonic() - self._checked >= CHECK_EVERY_S:
                self._look()
                self._checked = self._clock.monotonic()  # behind the look: until then nobody is at ease
            return self._read_only

    def at_ease(self) -> bool:
        """Whether the last look was a moment ago and nothing is refused since; does not look itself, never blocks."""
        fresh = self._clock.monotonic() - self._checked < CHECK_EVERY_S
        return fresh and not self._read_only and (not self._bookkeeping or BOOKKEEPING_NAME in self._reserved)

    def _look(self) -> None:
        try:
            self._available = self._fs.free_bytes(self._directory)
        except OSError as error:
            log.warning("free_space_unknown", error=str(error))
            return
        if self._full and self._available > max(self._stop_at, RESUME_BYTES) + self._lacking():
            self._full = False
        if self._lacking() and not self._full:
            self._preallocate()
        # After a start on a full disk what is free was the reserves: it is for them again, not for prewrites.
        self._now(self._full or self._available <= self._stop_at + self._lacking())

    def _lacking(self) -> int:
        return sum(size for name, size in self._wanted.items() if name not in self._reserved)

    def _now(self, read_only: bool) -> None:
        if read_only == self._read_only:
            return
        self._read_only = read_only
        log.warning(
            "read_only" if read_only else "writable_again",
            available=self._available, stop_at=self._stop_at, setting="pump.stop_write_at_available_bytes",
            met_full_disk=self._full,
        )  # fmt: skip

    def _preallocate(self) -> None:
        first, self._tried = not self._tried, True
        for name, size in self._wanted.items():
            # A try that fails takes all that is free for a moment. At first the files of the last process may be there.
            if name in self._reserved or (size > self._available and not first):
                continue
            try:
                self._fs.preallocate(self._directory / name, size)
                self._reserved.add(name)
                self._available = self._fs.free_bytes(self._directory)
            except OSError as error:
                log.warning("reserve_not_made", name=name, bytes=size, error=str(error))

    def went_full(self) -> bool:
        """A write of the value log met a full disk: give its reserve back. True when that made room."""
        return self._give_back(RESERVE_NAME)

    def make_room(self) -> bool:
        """A write of the bookkeeping met a full disk: give its reserve back. True when that made room."""
        return self._give_back(BOOKKEEPING_NAME)

    def _give_back(self, name: str) -> bool:
        with self._lock:
            self._full = True
            self._now(read_only=True)
            self._checked = self._clock.monotonic()
            if name not in self._reserved:
                return False
            self._reserved.discard(name)
            try:
                self._fs.remove(self._directory / name)
            except OSError as error:
                log.warning("reserve_not_released", name=name, error=str(error))
                return False
            log.warning("reserve_released", name=name, bytes=self._wanted[name])
            return True

    def left_to_bookkeeping(self) -> bool:
        """Whether what is free is the bookkeeping's, which has no reserve now: the value log takes nothing then."""
        self.read_only()  # the first look takes the reserves that lie there
        if not self._bookkeeping or BOOKKEEPING_NAME in self._reserved:
            return False
        try:
            return self._fs.free_bytes(self._directory) <= self._bookkeeping
        except OSError:
            return True


def give_back_at_start(fs: FileSystem, directory: Path) -> bool:
    """A start met a full disk: the reserves that the last process left are for this. True when there was one."""
    found = [name for name in (BOOKKEEPING_NAME, RESERVE_NAME) if fs.exists(directory / name)]
    for name in found:
        fs.remove(directory / name)
    return bool(found)


def is_full(error: BaseException) -> bool:
    """Whether an error says that the disk is full; LevelDB has only words for it."""
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return True
    return "No space left" in str(error) or "Disk quota exceeded" in str(error)
