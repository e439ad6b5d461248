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

from pumphouse.library_log import library_logger

log = library_logger(__name__)

_TASKS = Path("/proc/self/task")
# What gRPC calls its own threads. They end by themselves a moment after the process's last channel is closed; that may
# be somebody else's.
_GRPC_THREADS = {"event_engine", "grpc_global_tim", "lifeguard"}
_LONGEST_S = 0.5
# Begun by one of them when all are to end. It holds the lock that the making of a channel takes, may outlive the
# others, and ends in any case (gRPC itself gives up after 10 s): a child made before waits for the lock for ever.
_LAST_THREAD = "grpc_shutdown"
_LONGEST_LAST_S = 12.0
_LIBRARY = {*_GRPC_THREADS, _LAST_THREAD}
# A thread that has not run yet has the name of the one that made it.
_UNNAMED = "(not named yet)"
_PAUSE_S = 0.005
_LOOKS = 100


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
    began, longest, clean, collected = time.monotonic(), _LONGEST_S, False, False
    while True:
        running, sure = _library_runs()
        if not running and (sure or clean):
            return
        clean = not running
        if running & _LIBRARY and not collected:
            gc.collect()  # a channel that nobody closed may lie in a cycle; the child would end in its handler
            collected = True
            began = time.monotonic()  # in a large process that alone takes as long as the wait may
        if _LAST_THREAD in running:
            longest = _LONGEST_LAST_S
        if time.monotonic() - began > longest:
            if running & _LIBRARY:
                log.warning(
                    "forked_while_grpc_ran",
                    threads=sorted(running),
                    hint="the child may wait for ever at its first call; close channels before a fork, or use exec",
                )
            return
        time.sleep(_PAUSE_S)


def _library_runs() -> tuple[set[str], bool]:
    """Names of gRPC's threads, and whether all others are Python's: one that is not may be about to get a name.

    Nothing where there is no /proc.
    """
    names: dict[str, str] = {}
    ours = {str(thread.native_id) for thread in threading.enumerate()}
    for _ in range(_LOOKS):  # until none is new: what a thread that ended meanwhile had begun is in the next list
        try:
            fresh = {task.name for task in _TASKS.iterdir()} - names.keys()
        except OSError:
            break
        if not fresh:
            break
        names |= {task: _name(_TASKS / task, ours=task in ours) for task in fresh}
    found = set(names.values())
    return found & {*_LIBRARY, _UNNAMED}, names.keys() <= ours


def _name(task: Path, *, ours: bool) -> str:
    """As the kernel knows it; '' when it has ended."""
    try:
        name = (task / "comm").read_text().strip()
        if ours or name in _LIBRARY:
            return name
        # Time on a processor, time in wait for one, and how often it had one.
        return name if (task / "schedstat").read_text().split()[2] != "0" else _UNNAMED
    except OSError:
        return ""


def _in_parent() -> None:
    _opening.release()


def _in_child() -> None:
    global _opening  # noqa: PLW0603 - the one that was inherited is held by a thread that the child does not have
    _opening = threading.RLock()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
