"""The clock of a ``file://`` cluster: one counter for all processes of one machine that never goes back.

Two files:

- ``tso`` holds the last timestamp given out. It is locked, read and written in place for each timestamp and never
  fsynced: the page cache is enough while the machine runs, also when a process is killed.
- ``tso.bound`` holds an upper bound of everything given out. It is durable *before* a timestamp up to it is given
  out, and lies some seconds ahead so that the fsync is rare.

After a restart of the machine (told by the kernel's boot id), or when ``tso`` does not read back, the counter starts
at the bound. The wall clock only ever pushes forward: a clock that went back is waited for by counting.
"""

from __future__ import annotations

import os
import struct
import threading
import uuid
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import google_crc32c

from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.durable import write_atomic
from pumphouse.errors import CorruptionError
from pumphouse.model.tso import Tso, compose
from pumphouse.registry.lock import locked

BOUND_AHEAD_MS = 3_000
# `FileTso.is_past` follows the time of day so far beyond the last timestamp.
PAST_AHEAD_MS = 100
_PAST_AHEAD = compose(PAST_AHEAD_MS)
# last, the bound as it was when last was written, boot id; then the CRC-32C of those.
_STATE = struct.Struct("<qq16s")
_CRC = struct.Struct("<I")
_STATE_BYTES = _STATE.size + _CRC.size


@cache
def boot_id() -> bytes:
    """16 bytes that change with each start of the machine; without /proc, with each process (which is safe too)."""
    try:
        return uuid.UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).bytes
    except (OSError, ValueError):
        return uuid.uuid4().bytes


class FileTso:
    """Gives out timestamps; safe across threads, forks and processes."""

    def __init__(self, directory: Path, *, clock: Clock = SYSTEM_CLOCK, boot: bytes | None = None) -> None:
        self._state_path = directory / "tso"
        self._bound_path = directory / "tso.bound"
        self._clock = clock
        self._boot = boot if boot is not None else boot_id()
        self._seen = 0  # the largest timestamp of which it is known that it was given out
        # Threads queue here rather than in the kernel. Kept with its pid: after a fork the parent's lock may be held
        # by a thread that the child does not have.
        self._mutex = (os.getpid(), threading.Lock())

    @staticmethod
    def create(directory: Path) -> None:
        """Make the durable part, once in a cluster's life and before its id is published."""
        write_atomic(directory / "tso.bound", b"0\n")

    def next(self) -> Tso:
        """One timestamp above every one before; CorruptionError when that cannot be promised."""
        return self.take(1)[0]

    def take(self, count: int) -> Sequence[Tso]:
        """So many at once, ascending; as `next`."""
        pid, mutex = self._mutex
        if pid != os.getpid():
            mutex = threading.Lock()
            self._mutex = (os.getpid(), mutex)
        # The lock file is the state file: one open serves both.
        with mutex, locked(self._state_path) as fd:
            last, bound = self._read(fd)
            # The clock is read under the lock: the timestamp serves a request that is already waiting.
            first = max(last + 1, compose(int(self._clock.now() * 1000)))
            ts = first + count - 1
            if ts > bound:
                bound = ts + compose(BOUND_AHEAD_MS)
                write_atomic(self._bound_path, b"%d\n" % bound)
            body = _STATE.pack(ts, bound, self._boot)
            os.pwrite(fd, body + _CRC.pack(google_crc32c.value(body)), 0)
        return [Tso(each) for each in range(first, first + count)]

    def is_past(self, ts: int) -> bool:
        """Whether a timestamp can be told to lie in the past, with no lock and nothing written.

        True: no `next` that begins from here on gives it out. So it is with each up to the last one given out; and
        with each of a millisecond before this one, as `next` does not go below the time of day. Should that go back,
        then `next` is below what was told here by `PAST_AHEAD_MS` at most. One that is under way may be below too,
        which is enough: a transaction's P is durable before its commit ts is drawn, and holds the watermark.
        """
        before = compose(int(self._clock.now() * 1000)) - 1
        # The last one is only looked up where what was seen of it before is too little.
        if ts > min(before, self._seen + _PAST_AHEAD):
            self._seen = max(self._seen, self._last())
        return ts <= max(self._seen, min(before, self._seen + _PAST_AHEAD))

    def _last(self) -> int:
        """The last timestamp given out, or one before; 0 = not known."""
        try:
            fd = os.open(self._state_path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return 0
        try:
            state = self._state(fd)
        except OSError:
            return 0
        finally:
            os.close(fd)
        return 0 if state is None else state[0]  # none: half written, perhaps, as no lock is held

    def _read(self, fd: int) -> tuple[int, int]:
        state = self._state(fd)
        if state is not None:
            return state
        bound = self._durable_bound()
        return bound, bound

    def _state(self, fd: int) -> tuple[int, int] | None:
        """The last timestamp and the bound; None where the file does not tell."""
        data = os.pread(fd, _STATE_BYTES, 0)
        if len(data) != _STATE_BYTES:
            return None
        body = data[: _STATE.size]
        last, bound, boot = _STATE.unpack(body)
        # Another boot id means that the page cache was lost, and with it perhaps the newest value of `last`.
        if boot != self._boot or _CRC.unpack(data[_STATE.size :])[0] != google_crc32c.value(body):
            return None
        return last, bound

    def _durable_bound(self) -> int:
        try:
            return int(self._bound_path.read_bytes())
        except (OSError, ValueError) as error:
            raise CorruptionError(
                f"the upper bound of the clock cannot be read from {self._bound_path}",
                hint="restore the file, or write into it a timestamp above every one ever given out",
                path=str(self._bound_path),
                reason=str(error),
            ) from error
