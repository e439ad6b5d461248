"""What must be done before this process forks: gRPC channels are closed, so that parent and child can make new ones.

A child of a process that has a gRPC channel open inherits the library without its threads, and its first call waits
for ever. When no channel is open at the time of the fork, and the library's threads have ended, both sides start anew.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import structlog

log = structlog.get_logger()

_TASKS = Path("/proc/self/task")
# What gRPC calls its own threads. They end by themselves a moment after the last channel is closed.
_GRPC_THREADS = {"event_engine", "grpc_global_tim", "lifeguard"}
_LONGEST_S = 0.5


class Channels(Protocol):
    """Something that holds channels which it can make again."""

    def before_fork(self) -> None:
        """Close the channels; must not wait for anything that another thread may hold for long."""
        ...


_holders: weakref.WeakSet[Channels] = weakref.WeakSet()
_opening = threading.RLock()


def close_at_fork(holder: Channels) -> None:
    """Call ``holder.before_fork()`` before each fork of this process, for as long as the holder lives."""
    with _opening:  # a fork under way goes through the holders
        _holders.add(holder)


@contextmanager
def no_fork() -> Iterator[None]:
    """Around the opening of a channel and the note that it is open: no fork comes in between."""
    with _opening:
        yield


def _before() -> None:
    _opening.acquire()
    holders = list(_holders)
    for holder in holders:
        try:
            holder.before_fork()
        except Exception:  # the others must be closed all the same, and the fork comes in any case
            log.exception("not_closed_before_fork", holder=type(holder).__name__)
    if _library_runs():
        gc.collect()  # a channel that nobody closed may lie in a cycle; the child would end in its handler
    until = time.monotonic() + _LONGEST_S
    while _library_runs() and time.monotonic() < until:
        time.sleep(0.005)


def _library_runs() -> bool:
    with contextlib.suppress(OSError):
        for task in _TASKS.iterdir():
            with contextlib.suppress(OSError):  # it ended meanwhile
                if (task / "comm").read_text().strip() in _GRPC_THREADS:
                    return True
    return False


def _in_parent() -> None:
    _opening.release()


def _in_child() -> None:
    global _opening  # noqa: PLW0603 - the one that was inherited is held by a thread that the child does not have
    _opening = threading.RLock()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
