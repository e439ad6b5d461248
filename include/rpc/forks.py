"""What must be done before this process forks: gRPC channels are closed, so that parent and child can make new ones.

A child of a process that has a gRPC channel open inherits the library without its threads, and its first call waits
for ever. When no channel is open at the time of the fork, both sides start anew.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Channels(Protocol):
    """Something that holds channels which it can make again."""

    def before_fork(self) -> None:
        """Close the channels; must not wait for anything that another thread may hold for long."""
        ...


_holders: weakref.WeakSet[Channels] = weakref.WeakSet()


def close_at_fork(holder: Channels) -> None:
    """Call ``holder.before_fork()`` before each fork of this process, for as long as the holder lives."""
    _holders.add(holder)


def _before() -> None:
    for holder in list(_holders):
        holder.before_fork()


os.register_at_fork(before=_before)
