"""Small groups are written on the event loop's own thread: between a request and its answer no thread changes.

A change of thread costs more than all else that is done for a group of few calls, and in Python each side waits for the
other's hold of the interpreter besides. So, where there is an event loop that can be told of the end of an fdatasync
(`fs.Syncs`), it takes what is queued for the writer. A group that is small and plain it writes by itself: into the page
cache at once, then the sync, for which nothing waits; at its end the answers, the hand-over to the index, and the next
group. Every other group goes to the writer thread, one at a time: large ones, those that end a file, the first of each
half second (which looks at the disk), all of them while the disk is full or slow, the index has no room, or a write has
failed. So what may wait long for the disk or the index, and all that answers for failures, is on that thread as it is
without a loop; it goes on by itself as long as what waits would only come back to it. What a disk can hold up here is
the write into the page cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from pump_service.store.fs import Syncs
from pumphouse.clock import Clock

# A sync that took longer than this is a disk on which a write into the page cache may wait as well, and where a change
# of thread is nothing. For so long it is the thread's.
SLOW_S = 0.02
AWAY_S = 1.0


G = TypeVar("G")


class Groups(Protocol[G]):
    """What the writer does, for whoever has its queue."""

    def next_waiting(self) -> G | None:
        """Take what waits; None when there is nothing, or when it is time to give the queue back."""
        ...

    def begin(self, group: G, syncs: Syncs, ended: Callable[[bool], None]) -> bool:
        """Write it here, if it can be. ``ended`` says later whether it was answered; what was not is for the thread."""
        ...


class Inline(Generic[G]):
    """Who has the writer's queue, and what is under way. One group at a time, here or on the writer thread."""

    def __init__(self, groups: Groups[G], syncs: Syncs, clock: Clock) -> None:
        self._groups = groups
        self._syncs = syncs
        self._clock = clock
        self.handed: SimpleQueue[G | None] = SimpleQueue()  # for the writer thread; None: the queue is its own again
        self._lent = False  # to this side
        self._busy = False  # a group is under way, here or there
        self._under_way: G | None = None  # here, until its sync ends
        self._began = 0.0
        self._away_until = float("-inf")

    # -- writer thread ---------------------------------------------------------------------------------------------

    def lend(self) -> bool:
        """The queue is given away; False when there is nobody who would take it."""
        return self._syncs.call(self._start)

    def done(self) -> None:
        """What was handed over is answered, and nothing waits."""
        self._syncs.call(self._free)

    def take_back(self, group: G) -> bool:
        """What was handed over is answered, and this is the next. False: it is for the writer thread, or nobody."""
        return self._clock.monotonic() >= self._away_until and self._syncs.call(partial(self._begin, group))

    # -- any thread ------------------------------------------------------------------------------------------------

    def look(self) -> bool:
        """Something was queued. False: the loop has ended, and nothing will be done about it."""
        if self._syncs.mine():
            self._step()
            return True
        return self._syncs.call(self._step)

    @property
    def here(self) -> bool:
        """Whether the caller is the loop's thread."""
        return self._syncs.mine()

    @property
    def under_way(self) -> bool:
        """Whether the loop's thread has a group whose sync has not ended."""
        return self._under_way is not None

    def give_back_all(self) -> bool:
        """As `give_back`, when the loop has ended: also the group that was under way here; whether there was one."""
        group = self._under_way
        if group is not None:
            self.handed.put(group)
        self.give_back()
        return group is not None

    # -- the loop's thread -----------------------------------------------------------------------------------------

    def stay_away(self) -> None:
        """For a while every group goes to the thread."""
        self._away_until = self._clock.monotonic() + AWAY_S

    def _start(self) -> None:
        self._lent = True
        self._step()

    def _free(self) -> None:
        self._busy = False
        self._step()

    def give_back(self) -> None:
        """The queue is the writer thread's again."""
        self._lent = False
        self.handed.put(None)

    def _step(self) -> None:
        if not self._lent or self._busy:
            return
        group = self._groups.next_waiting()
        if group is None:
            return
        self._busy = True
        self._begin(group)

    def _begin(self, group: G) -> None:
        self._began = self._clock.monotonic()
        self._under_way = group
        begun = False
        try:
            begun = self._began >= self._away_until and self._groups.begin(group, self._syncs, self._ended)
        except Exception:  # noqa: BLE001, S110 - writing has failed and even that could not be logged: it is not the
            pass  # caller's, whose group the thread answers
        finally:
            if not begun:
                self._under_way = None
                self.handed.put(group)

    def _ended(self, answered: bool) -> None:
        group, self._under_way = self._under_way, None
        if self._clock.monotonic() - self._began > SLOW_S:
            self.stay_away()
        if answered:
            self._free()
        else:
            self.handed.put(group)
