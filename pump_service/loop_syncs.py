"""fdatasyncs by Linux's asynchronous I/O, told to an event loop through an eventfd: `fs.Syncs` for a Pump.

io_submit(2) with IOCB_CMD_FDSYNC (Linux 4.18) has a worker of the kernel do what fdatasync(2) does, on the same open
file, so that an error of the medium is told to exactly one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from functools import partial
from types import ModuleType

import structlog

from pump_service.store.fs import SyncDone

log = structlog.get_logger(__name__)
_AT_ONCE = 8
_SIGN = 1 << 63


class LoopSyncs:
    """Owned by the event loop that made it; `close` it behind the store."""

    def __init__(self, aio: ModuleType, loop: asyncio.AbstractEventLoop) -> None:
        """Raises SystemError where the kernel has none to give: fs.aio-max-nr, a sandbox."""
        self._loop = loop
        self._thread = threading.get_ident()
        self._fdsync = aio.Operation.fdsync
        self._context = aio.Context(_AT_ONCE)
        loop.add_reader(self._context.fileno, self._ready)

    def mine(self) -> bool:
        """Whether the caller is the loop's thread."""
        # The number of a thread that has ended is given out again.
        return threading.get_ident() == self._thread and not self._loop.is_closed()

    def begin(self, fd: int, done: SyncDone) -> bool:
        """Begin an fdatasync."""
        operation = self._fdsync(fd)
        operation.set_callback(partial(_ended, done))
        try:
            return bool(self._context.submit(operation) == 1)
        except (OverflowError, OSError, SystemError, ValueError):
            return False  # no resources, or a descriptor of which there is no sync

    def call(self, action: Callable[[], None]) -> bool:
        """Run it on the loop."""
        try:
            self._loop.call_soon_threadsafe(action)
        except RuntimeError:  # closed
            return False
        return True

    def _ready(self) -> None:
        # What is done is no matter of the counter, which only says when to look.
        with contextlib.suppress(BlockingIOError):
            self._context.poll()
        while self._context.process_events(_AT_ONCE) == _AT_ONCE:  # the kernel takes more than it was asked for
            pass

    def close(self) -> None:
        """Nothing is begun any more; the loop still runs."""
        self._loop.remove_reader(self._context.fileno)


def _ended(done: SyncDone, result: int) -> None:
    done(_error(result))


def _error(result: int) -> OSError | None:
    # The library gives the kernel's signed result as an unsigned number.
    number = result - 2 * _SIGN if result >= _SIGN else result
    return OSError(-number, os.strerror(-number)) if number < 0 else None


def loop_syncs() -> LoopSyncs | None:
    """Of the running event loop; None where this system has no such thing, and threads have to wait for the disk."""
    try:
        from caio import linux_aio

        return LoopSyncs(linux_aio, asyncio.get_running_loop())
    # No wheel of caio, no such call in the kernel, or too many of them: the Pump then waits for the disk in threads.
    except (ImportError, SystemError, OSError, NotImplementedError) as error:
        log.info("no_asynchronous_sync", error=str(error))
        return None
