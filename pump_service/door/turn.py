"""Requests of a group method that several connections bring at about the same time go to the handler as one group.

With many connections of few calls each the groups of single reads are small, and what each costs (a kernel call, a hand
over to another thread, an fdatasync, a wake-up back) is paid for a handful of calls. So what the sockets that are ready
bring is collected, and a small group waits for more as long as more is sure to come and nothing is lost by it:

- while one group, and no more, is with the handler: it is on its way to the disk, and what comes later is behind it
  anyway. Behind two a group goes at once, so that it is there when the disk is free. A group that is out for longer
  than a tick of the loop's timer (a slow disk, a question to the cluster) counts no more; and
- while a connection is about to bring the next calls: its answers went out a moment ago, none of its calls is open, and
  the last time it was back at once. A peer that has shown no such habit is waited for by nobody.

Nobody waits longer than that tick, and a nap.

To be woken for each of these connections, and to sleep again, costs as much as to read it. So while several with a few
calls each are expected, and the server has nothing else to do, the loop sleeps for a moment on purpose: it takes a nap,
and finds at once what some of them have brought. Where naps take much longer than they should, as on a busy host,
there are none for a while.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import grpc
import structlog

from pump_service.door.batch import Batch
from pump_service.door.deadlines import Deadlines
from pump_service.door.group import Answer, Refusal
from pump_service.door.routes import Group
from pump_service.door.runs import Runs

if TYPE_CHECKING:
    from pump_service.door.connection import Connection

log = structlog.get_logger()
# Each of them is of one read: what a handler that holds readers back cannot stop any more.
_MOST = 32
# Calls of one read, and of all, for which what a group costs is little.
_LARGE_READ = 24
_ENOUGH = 64
_SOON_S = 0.001  # for so long after its answers a connection is expected back
# uvloop's timers are of whole milliseconds of its own clock: this one is one to two of them.
_LONGEST_S = 0.002
# A third to a half of what one client process needs for an answer and its next call: longer, and both wait for each
# other. Linux adds some 0.07 ms.
_NAP_A_CALL_S = 4e-6
_LONGEST_NAP_S = 0.0003
_OVERSLEPT_S = 0.001
_AWAKE_S = 1.0  # for so long behind that
_NAP_CONNECTIONS = 4  # at least
_NAP_CALLS = range(6, 17)  # of each: with fewer the first is back sooner, more are worth to be woken for


class Turn:
    """Batches that are collected, by method, and who is to bring more."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        runs: Runs,
        deadlines: Deadlines,
        *,
        busy: Callable[[], bool] = lambda: True,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``busy``: whether the server may have more to do than to wait for these; then it never sleeps on purpose."""
        self._loop = loop
        self._runs = runs
        self._deadlines = deadlines
        self._busy = busy
        self._sleep = sleep
        self._now = time.monotonic  # the loop's own clock has ticks of a millisecond
        self._batches: dict[Group, list[Batch]] = {}
        self._calls = 0
        self._large = False  # one of the reads is
        self._bringing: set[Connection] = set()  # whose batches they are
        self._out: set[_Given] = set()  # groups that were handed over since the last tick and have no answers yet
        self._expected: dict[Connection, float] = {}  # until when; in that order
        self._answered_at: dict[Connection, float] = {}  # of those that have not been back
        self._soon: asyncio.Handle | None = None
        self._longest: asyncio.TimerHandle | None = None
        self._nap_for = 0  # calls for whose answers the next nap is; 0 = none is due
        self._awake_until = -math.inf

    def add(self, batch: Batch) -> None:
        """Hand it over with those that others bring."""
        connection = batch.connection
        answered_at = self._answered_at.pop(connection, None)
        if answered_at is not None:
            connection.prompt = self._now() - answered_at <= _SOON_S
            self._expected.pop(connection, None)
        self._bringing.add(connection)
        batches = self._batches.setdefault(batch.group, [])
        batches.append(batch)
        calls = len(batch.stream_ids)
        self._calls += calls
        if calls >= _LARGE_READ:
            self._large = True
        if len(batches) >= _MOST:
            self._hand_over()
        elif self._soon is None and (self._longest is None or not self._waits()):
            self._look_soon()

    def lost(self, connection: Connection) -> None:
        """It brings nothing any more."""
        self._expected.pop(connection, None)
        self._answered_at.pop(connection, None)
        if self._batches:  # a last other one may hand over by itself from now on
            self._hand_over()

    def _look_soon(self) -> None:
        """Behind the callbacks of all sockets that are ready now."""
        if self._soon is None:
            self._soon = self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._soon = None
        if not self._batches:
            return
        if not self._waits():
            self._hand_over()
        elif self._longest is None:
            self._longest = self._loop.call_later(_LONGEST_S, self._tick)

    def _waits(self) -> bool:
        """Whether what was collected is to wait for more."""
        if self._large or self._calls >= _ENOUGH:
            return False
        return len(self._out) == 1 or self._expects()

    def _tick(self) -> None:
        self._out.clear()
        self._hand_over()

    def _expects(self) -> bool:
        if self._expected:
            now = self._now()
            while self._expected:
                connection, until = next(iter(self._expected.items()))
                if now < until:
                    return True
                del self._expected[connection]
        return False

    def _hand_over(self) -> None:
        if self._longest is not None:
            self._longest.cancel()
            self._longest = None
        collected, self._batches = self._batches, {}
        self._calls, self._large = 0, False
        self._bringing.clear()
        for group, batches in collected.items():
            live = []
            for batch in batches:
                if batch.connection.closed:
                    batch.drop()
                else:
                    live.append(batch)
            if live:
                self._give(group, live)

    def _give(self, group: Group, batches: list[Batch]) -> None:
        given = _Given(self, group, batches, self._deadlines)
        self._out.add(given)
        try:
            group.handler(self._runs.requests([part for batch in batches for part in batch.parts()]), given.answer)
        except Exception as error:
            log.exception("call_failed", method=group.path)
            given.failed(error)

    def answered(self, given: _Given, batches: list[Batch]) -> None:
        """The group has its answers."""
        self._out.discard(given)
        now = self._now()
        for batch in batches:
            connection = batch.connection
            if not (connection.closed or connection.lean or connection in self._bringing):
                self._answered_at[connection] = now
                self._expected.pop(connection, None)
                if connection.prompt:
                    self._expected[connection] = now + _SOON_S
        if self._batches:
            self._look_soon()
        elif len(self._expected) >= _NAP_CONNECTIONS and given.calls // len(batches) in _NAP_CALLS:
            if not self._nap_for:
                self._loop.call_soon(self._nap)  # behind what is still to be done for the answers
            self._nap_for += given.calls

    def _nap(self) -> None:
        seconds = min(self._nap_for * _NAP_A_CALL_S, _LONGEST_NAP_S)
        self._nap_for = 0
        if self._batches or self._out or not self._expects() or len(self._expected) < _NAP_CONNECTIONS:
            return
        began = self._now()
        if began < self._awake_until or self._busy():
            return
        self._sleep(seconds)
        if (ended := self._now()) - began > _OVERSLEPT_S:
            self._awake_until = ended + _AWAKE_S


class _Given:
    """A group that is with its handler."""

    __slots__ = ("_batches", "_bucket", "_deadlines", "_group", "_turn", "calls")

    def __init__(self, turn: Turn, group: Group, batches: list[Batch], deadlines: Deadlines) -> None:
        self._turn = turn
        self._group = group
        self._batches = batches  # none once they are answered
        self._deadlines = deadlines
        self.calls = 0
        first = math.inf
        for batch in batches:
            self.calls += len(batch.stream_ids)
            first = min(first, batch.deadline)
        self._bucket = deadlines.add(first, self) if first < math.inf else 0

    def answer(self, answers: Sequence[Answer]) -> None:
        """What the handler calls: one answer for each request, in order."""
        batches, self._batches = self._batches, []
        if not batches or len(answers) != self.calls:
            self._batches = batches
            raise ValueError(f"{len(answers)} answers to {self.calls} calls of {self._group.path}, or twice")
        if self._bucket:
            self._deadlines.discard(self._bucket, self)
        first = answers[0]
        of_all = first if isinstance(first, bytes) and answers.count(first) == len(answers) else None
        at = 0
        for batch in batches:
            count = len(batch.stream_ids)
            try:
                if of_all is not None:
                    batch.answer_all(of_all)
                else:
                    batch.answer(answers[at : at + count])
            except Exception:  # of one connection: the others have their answers all the same
                log.exception("answer_failed", method=self._group.path)
            at += count
        self._turn.answered(self, batches)

    def failed(self, error: Exception) -> None:
        """The handler did; it may have answered before."""
        if self._batches:
            self.answer([Refusal(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")] * self.calls)

    def expire(self, now: float) -> None:
        """The first deadline has passed; from here on each batch watches its own."""
        self._bucket = 0
        for batch in self._batches:
            try:
                batch.expire(now)
            except Exception:  # of one connection: the deadlines of the others are met all the same
                log.exception("expiry_failed", method=self._group.path)
