"""What must be done before this process forks: gRPC channels are closed, so that parent and child can make new ones.

A child of a process that has a gRPC channel open inherits the library without its threads, and its first call waits
for ever. When no channel is open at the time of the fork, and the library's threads have ended, both sides start anew.
"""

from __future__ import annotations

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
# What gRPC calls its own threads. They end by themselves a moment after the process's last channel is closed; that may
# be somebody else's.
_GRPC_THREADS = {"event_engine", "grpc_global_tim", "lifeguard"}
_LONGEST_S = 0.5
# Begun by one of them (and called like it until it runs) when all are to end. It holds the lock that the making of a
# channel takes, outlives the others, and ends in any case: a child made before that waits for the lock for ever.
_LAST_THREAD = "grpc_shutdown"
_LONGEST_LAST_S = 10.0
_LIBRARY = {*_GRPC_THREADS, _LAST_THREAD}
_UNKNOWN = "?"


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
    began = time.monotonic()
    while running := _library_runs():
        if time.monotonic() - began > (_LONGEST_LAST_S if _LAST_THREAD in running else _LONGEST_S):
            log.warning(
                "forked_while_grpc_ran",
                threads=sorted(running),
                hint="the child may wait for ever at its first call; close channels before a fork, or start by exec",
            )
            return
        time.sleep(0.005)


def _library_runs() -> set[str]:
    """Names of gRPC's threads; `_UNKNOWN` when a thread ended meanwhile, for what it began may have been overlooked."""
    try:
        return {(task / "comm").read_text().strip() for task in list(_TASKS.iterdir())} & _LIBRARY
    except OSError:
        return {_UNKNOWN} if _TASKS.exists() else set()


def _in_parent() -> None:
    _opening.release()


def _in_child() -> None:
    global _opening  # noqa: PLW0603 - the one that was inherited is held by a thread that the child does not have
    _opening = threading.RLock()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
