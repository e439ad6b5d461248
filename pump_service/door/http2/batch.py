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

    __slots__ = ("_parts", "_runs", "_single", "_timed", "deadline", "group", "lost", "mixed", "stream_ids")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.stream_ids: list[int] = []
        self._parts: list[Requests | Run] = []
        self._single: list[bytes] = []  # messages behind the last of the parts
        self._runs: list[Run] = []
        self._timed: dict[int, float] | None = None  # deadlines of calls that are in runs, by stream id, when looked at
        self.deadline = math.inf  # the first of them
        self.lost = False  # some calls ended before their answer
        self.mixed = False  # some calls have a stream of their own

    def add(self, stream_id: int, message: bytes) -> None:
        """A call with a stream of its own: its request came in several pieces."""
        self.mixed = True
        self.stream_ids.append(stream_id)
        self._single.append(message)

    def take(self, run: Run) -> None:
        """Calls that came one behind the other."""
        self._end_single()
        self._parts.append(run)
        self._runs.append(run)
        self.stream_ids += run.stream_ids
        if run.soonest >= 0:
            self.deadline = min(self.deadline, run.began + run.soonest / 1e9)

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

    def credit(self, stream_id: int) -> int:
        """What the peer takes of the answer to a call of a run beyond its initial window."""
        return next((run.credits()[stream_id] for run in self._runs if stream_id in run.stream_ids), 0)

    def expired(self, now: float) -> list[int]:
        """Calls whose deadline has passed; `deadline` is that of the next."""
        timed = self._timed
        if timed is None:
            timed = {}
            for run in self._runs:
                timed.update(zip(run.stream_ids, run.deadlines(), strict=True))
        self._timed = {n: deadline for n, deadline in timed.items() if now < deadline < math.inf}
        self.deadline = min(self._timed.values(), default=math.inf)
        return [n for n, deadline in timed.items() if deadline <= now]
