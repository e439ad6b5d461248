"""Calls of one group method that one socket read brought: one object for all of them.

A call whose HEADERS and DATA came whole has no other state than its stream id here; that is what makes it cheap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import grpc
import structlog

from pump_service.door.group import Answer, Refusal
from pump_service.door.routes import Group
from pump_service.door.stream import Stream

if TYPE_CHECKING:
    from pump_service.door.connection import Connection

log = structlog.get_logger()
_DEADLINE = Refusal(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")


class Batch:
    """Filled by the connection while it reads, handed over once, answered once."""

    __slots__ = ("_answered", "_bucket", "_connection", "deadlines", "group", "lost", "messages", "mixed", "stream_ids")

    def __init__(self, connection: Connection, group: Group) -> None:
        self._connection = connection
        self.group = group
        self.stream_ids: list[int] = []
        self.messages: list[bytes] = []
        self.deadlines: dict[int, float] = {}  # of those that have one and no state elsewhere
        self.lost = False  # some calls ended before their answer
        self.mixed = False  # some calls have a stream of their own
        self._answered = False
        self._bucket = 0

    def add(self, stream: Stream, message: bytes) -> None:
        """A call with a stream of its own: its request came in several pieces."""
        self.mixed = True
        self.stream_ids.append(stream.stream_id)
        self.messages.append(message)

    def hand_over(self) -> None:
        """Give the requests to the handler."""
        if self.begin():
            self.give()

    def begin(self) -> bool:
        """Watch its deadlines from now on; False when its connection is gone."""
        if self._connection.closed:
            return False
        if self.deadlines:
            self._bucket = self._connection.deadlines.add(min(self.deadlines.values()), self)
        return True

    def give(self) -> None:
        """Give the requests to the handler, these alone."""
        try:
            self.group.handler(self.messages, self.answer)
        except Exception as error:
            log.exception("call_failed", method=self.group.path)
            if not self._answered:
                self.answer(
                    [Refusal(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")] * len(self.messages)
                )

    def answer(self, answers: Sequence[Answer]) -> None:
        """What the handler calls: one answer for each request, in order."""
        if self._answered or len(answers) != len(self.stream_ids):
            raise ValueError(f"{len(answers)} answers to {len(self.stream_ids)} calls of {self.group.path}, or twice")
        self._answered = True
        self.messages = []
        if self._bucket:
            self._connection.deadlines.discard(self._bucket, self)
        if self._connection.closed:
            return
        first = answers[0]
        if (
            not (self.lost or self.mixed)
            and isinstance(first, bytes)
            and answers.count(first) == len(answers)
            and self._connection.sender.fits(len(first), len(answers))
            and not self._connection.early_credit
        ):
            lean = self._connection.lean
            for stream_id in self.stream_ids:
                del lean[stream_id]
            self._connection.sender.unary(self.stream_ids, first)
        else:
            for stream_id, answer in zip(self.stream_ids, answers, strict=True):
                self._connection.answer(self, stream_id, answer)
        self._connection.answered()

    def expire(self, now: float) -> None:
        """End the calls whose deadline has passed; the others go on."""
        following = math.inf
        for stream_id, deadline in self.deadlines.items():
            if deadline > now:
                following = min(following, deadline)
            elif self._connection.lean.get(stream_id) is self:
                self._connection.answer(self, stream_id, _DEADLINE)
                self.lost = True
        self._bucket = 0
        self.deadlines = {n: deadline for n, deadline in self.deadlines.items() if deadline > now}
        if self.deadlines:
            self._bucket = self._connection.deadlines.add(following, self)
