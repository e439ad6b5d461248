"""Calls of one group method that came in one turn of a connection: one object for all of them.

A call whose HEADERS and DATA came whole has no other state than its stream id here; that is what makes it cheap.
"""

from __future__ import annotations

import math

import grpc

from pump_service.door.group import Refusal, Requests
from pump_service.door.http2.runs import Run
from pump_service.door.routes import Group

DEADLINE = Refusal(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")


class Batch:
    """Filled while a connection reads, handed over once, answered once."""

    __slots__ = ("_parts", "_single", "_timed", "_timed_runs", "deadline", "group", "lost", "mixed", "stream_ids")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.stream_ids: list[int] = []
        self._parts: list[Requests | Run] = []
        self._single: list[bytes] = []  # messages behind the last of the parts
        self._timed: dict[int, float] = {}  # deadlines of calls that have one and no state elsewhere, by stream id
        self._timed_runs: list[tuple[Run, float]] = []  # and of runs with any, whose time runs since
        self.deadline = math.inf  # the first of them
        self.lost = False  # some calls ended before their answer
        self.mixed = False  # some calls have a stream of their own

    def add(self, stream_id: int, message: bytes) -> None:
        """A call with a stream of its own: its request came in several pieces."""
        self.mixed = True
        self.take(stream_id, message, math.inf)

    def take(self, stream_id: int, message: bytes, deadline: float) -> None:
        """A call; infinity is no deadline."""
        self.stream_ids.append(stream_id)
        self._single.append(message)
        if deadline < math.inf:
            self._timed[stream_id] = deadline
            self.deadline = min(self.deadline, deadline)

    def take_run(self, run: Run, began: float) -> None:
        """Calls that came one behind the other, at ``began``."""
        if self._single:
            self._end_single()
        self._parts.append(run)
        self.stream_ids += run.stream_ids
        if run.soonest >= 0:
            self._timed_runs.append((run, began))
            self.deadline = min(self.deadline, began + run.soonest / 1e9)

    def _end_single(self) -> None:
        if self._single:
            self._parts.append(Requests.of(self._single))
            self._single = []

    def parts(self) -> list[Requests | Run]:
        """All requests, in order, in one piece or several; once, for each may hold all of a socket read."""
        self._end_single()
        parts, self._parts = self._parts, []
        return parts

    def drop(self) -> None:
        """It is not handed over: nothing holds what was read."""
        for part in self._parts:
            if isinstance(part, Run):
                part.chunk = b""

    def expired(self, now: float) -> list[int]:
        """Calls whose deadline has passed; `deadline` is that of the next."""
        timed = self._timed
        for run, began in self._timed_runs:
            timed.update(zip(run.stream_ids, run.deadlines(began), strict=True))
        self._timed_runs = []
        self._timed = {n: deadline for n, deadline in timed.items() if now < deadline < math.inf}
        self.deadline = min(self._timed.values(), default=math.inf)
        return [n for n, deadline in timed.items() if deadline <= now]
