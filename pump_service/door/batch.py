"""Calls of one group method that one socket read brought: one object for all of them.

A call whose HEADERS and DATA came whole has no other state than its stream id here; that is what makes it cheap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import grpc
import structlog

from pump_service.door.carrier import Carrier
from pump_service.door.group import Answer, Refusal, Requests
from pump_service.door.routes import Group
from pump_service.door.runs import Run
from pump_service.door.stream import Stream

log = structlog.get_logger()
_DEADLINE = Refusal(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")


class Batch:
    """Filled by the connection while it reads, handed over once, answered once."""

    __slots__ = (
        "_answered", "_bucket", "_parts", "_single", "_timed", "_timed_runs", "connection", "deadline", "group", "lost",
        "mixed", "stream_ids",
    )  # fmt: skip

    def __init__(self, connection: Carrier, group: Group) -> None:
        self.connection = connection
        self.group = group
        self.stream_ids: list[int] = []
        self._parts: list[Requests | Run] = []
        self._single: list[bytes] = []  # messages behind the last of the parts
        self._timed: dict[int, float] = {}  # deadlines of calls that have one and no state elsewhere, by stream id
        self._timed_runs: list[tuple[Run, float]] = []  # and of runs with any, whose time runs since
        self.deadline = math.inf  # the first of them
        self.lost = False  # some calls ended before their answer
        self.mixed = False  # some calls have a stream of their own
        self._answered = False
        self._bucket = 0

    def add(self, stream: Stream, message: bytes) -> None:
        """A call with a stream of its own: its request came in several pieces."""
        self.mixed = True
        self.take(stream.stream_id, message, None)

    def take(self, stream_id: int, message: bytes, deadline: float | None) -> None:
        """A call."""
        self.stream_ids.append(stream_id)
        self._single.append(message)
        if deadline is not None:
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

    def hand_over(self) -> None:
        """Give the requests to the handler, these alone, and watch their deadlines."""
        if self.connection.closed:
            self.drop()
            return
        if self.deadline < math.inf:
            self._bucket = self.connection.deadlines.add(self.deadline, self)
        try:
            self.group.handler(self.connection.server.runs.requests(self.parts()), self.answer)
        except Exception as error:
            log.exception("call_failed", method=self.group.path)
            if not self._answered:
                refusal = Refusal(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")
                self.answer([refusal] * len(self.stream_ids))

    def answer(self, answers: Sequence[Answer]) -> None:
        """What the handler calls: one answer for each request, in order. They leave at once."""
        if len(answers) != len(self.stream_ids):
            raise ValueError(f"{len(answers)} answers to {len(self.stream_ids)} calls of {self.group.path}")
        first = answers[0]
        if isinstance(first, bytes) and answers.count(first) == len(answers):
            self.answer_all(first)
            return
        self._end()
        if not self.connection.closed:
            self._send(answers, None)

    def answer_all(self, message: bytes) -> None:
        """The same for each of them."""
        self._end()
        connection = self.connection
        if connection.closed:
            return
        if (
            self.lost
            or self.mixed
            or connection.early_credit
            or not connection.sender.fits(len(message), len(self.stream_ids))
        ):
            self._send([message] * len(self.stream_ids), None)
        else:
            self._send((), message)

    def _end(self) -> None:
        if self._answered:
            raise ValueError(f"the calls of {self.group.path} are answered twice")
        self._answered = True
        if self._bucket:
            self.connection.deadlines.discard(self._bucket, self)

    def _send(self, answers: Sequence[Answer], of_all: bytes | None) -> None:
        connection = self.connection
        sender = connection.sender
        later, sender.in_turn = sender.in_turn, True
        try:
            if of_all is None:
                for stream_id, answer in zip(self.stream_ids, answers, strict=True):
                    connection.answer(self, stream_id, answer)
            else:
                lean = connection.lean
                for stream_id in self.stream_ids:
                    lean.pop(stream_id, None)
                sender.unary(self.stream_ids, of_all)
        finally:
            sender.in_turn = later
        if not later:
            sender.flush()  # a turn of the loop for it costs as much as the answers
        connection.answered()

    def expire(self, now: float) -> None:
        """End the calls whose deadline has passed; the others go on."""
        timed = self._timed
        for run, began in self._timed_runs:
            timed.update(zip(run.stream_ids, run.deadlines(began), strict=True))
        self._timed_runs = []
        for stream_id, deadline in timed.items():
            if deadline <= now and self.connection.lean.get(stream_id) is self:
                self.lost = True
                self.connection.answer(self, stream_id, _DEADLINE)
        self._bucket = 0
        self._timed = {n: deadline for n, deadline in timed.items() if now < deadline < math.inf}
        if self._timed:
            self.deadline = min(self._timed.values())
            self._bucket = self.connection.deadlines.add(self.deadline, self)
