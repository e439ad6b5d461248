"""Requests of a group method that several connections bring at about the same time go to the handler as one group.

With many connections of few calls each the groups of single reads are small, and what each costs (a kernel call, a hand
over to another thread, an fdatasync, a wake-up back) is paid for a handful of calls. So what all sockets that are ready
bring is collected. A small group waits for more while one group, and no more, is with the handler: that is on its way
to the disk, and what comes later is behind it anyway. Behind two a group goes at once, so that it is there when the
disk is free. A group that is out for longer than a tick of the loop's timer (a slow disk, a question to the cluster)
counts no more, and nobody waits longer than that tick.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Protocol

import grpc
import structlog

from pump_service.door.deadlines import Deadlines
from pump_service.door.group import Answer, Refusal, Requests
from pump_service.door.http2.batch import Batch
from pump_service.door.http2.runs import Run, Runs
from pump_service.door.routes import Group

log = structlog.get_logger()
# Each of them is of one read: what a handler that holds readers back cannot stop any more.
_MOST = 32
# Calls of one read, and of all, for which what a group costs is little.
_LARGE_READ = 24
_ENOUGH = 64
# uvloop's timers are of whole milliseconds of its own clock: this one is one to two of them.
_LONGEST_S = 0.002


class Bearer(Protocol):
    """A connection, as its batches see it."""

    @property
    def closed(self) -> bool:
        """Whether nobody waits for answers."""
        ...

    def answer(self, batch: Batch, answers: Sequence[Answer], of_all: bytes | None) -> None:
        """To the calls of a batch, one by one or the same to all."""

    def expire(self, batch: Batch, now: float) -> None:
        """The deadline of some calls has passed."""


Brought = tuple[Bearer, Batch]


class Turn:
    """What is handed over, and the batches that are collected for it, by method."""

    def __init__(self, loop: asyncio.AbstractEventLoop, runs: Runs, deadlines: Deadlines) -> None:
        self._loop = loop
        self._runs = runs
        self._deadlines = deadlines
        self._batches: dict[Group, list[Brought]] = {}
        self._calls = 0
        self._large = False  # one of the reads is
        self._out: set[_Given] = set()  # groups that were handed over since the last tick and have no answers yet
        self._soon: asyncio.Handle | None = None
        self._longest: asyncio.TimerHandle | None = None

    def alone(self, connection: Bearer, batch: Batch) -> None:
        """Hand it over by itself."""
        self._give(_Given(self, batch.group, [(connection, batch)], self._deadlines))

    def add(self, connection: Bearer, batch: Batch) -> None:
        """Hand it over with those that others bring."""
        batches = self._batches.setdefault(batch.group, [])
        batches.append((connection, batch))
        calls = len(batch.stream_ids)
        self._calls += calls
        if calls >= _LARGE_READ:
            self._large = True
        if len(batches) >= _MOST:
            self._hand_over()
        elif self._soon is None and (self._longest is None or not self._waits()):
            self._look_soon()

    def lost(self) -> None:
        """A connection brings nothing any more."""
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
        return len(self._out) == 1

    def _tick(self) -> None:
        self._out.clear()
        self._hand_over()

    def _hand_over(self) -> None:
        if self._longest is not None:
            self._longest.cancel()
            self._longest = None
        collected, self._batches = self._batches, {}
        self._calls, self._large = 0, False
        for group, batches in collected.items():
            live = []
            for connection, batch in batches:
                if connection.closed:
                    batch.drop()
                else:
                    live.append((connection, batch))
            if live:
                given = _Given(self, group, live, self._deadlines)
                self._out.add(given)
                self._give(given)

    def _give(self, given: _Given) -> None:
        try:
            given.group.handler(self._runs.requests(given.parts()), given.answer)
        except Exception as error:
            log.exception("call_failed", method=given.group.path)
            given.failed(error)

    def answered(self, given: _Given) -> None:
        """The group has its answers."""
        self._out.discard(given)
        if self._batches:
            self._look_soon()


class _Given:
    """A group that is with its handler."""

    __slots__ = ("_batches", "_bucket", "_calls", "_deadlines", "_turn", "group")

    def __init__(self, turn: Turn, group: Group, batches: list[Brought], deadlines: Deadlines) -> None:
        self._turn = turn
        self.group = group
        self._batches = batches  # none once they are answered
        self._calls = 0
        for _, batch in batches:
            self._calls += len(batch.stream_ids)
        self._deadlines = deadlines
        self._watch()

    def parts(self) -> list[Requests | Run]:
        """All requests, in order; once."""
        return [part for _, batch in self._batches for part in batch.parts()]

    def answer(self, answers: Sequence[Answer]) -> None:
        """What the handler calls: one answer for each request, in order."""
        batches = self._batches
        if not batches or len(answers) != self._calls:
            raise ValueError(f"{len(answers)} answers to {self._calls} calls of {self.group.path}, or twice")
        self._batches = []
        if self._bucket:
            self._deadlines.discard(self._bucket, self)
        first = answers[0]
        of_all = first if isinstance(first, bytes) and answers.count(first) == len(answers) else None
        at = 0
        for connection, batch in batches:
            end = at + len(batch.stream_ids)
            try:
                connection.answer(batch, answers[at:end], of_all)
            except Exception:  # of one connection: the others have their answers all the same
                log.exception("answer_failed", method=self.group.path)
            at = end
        self._turn.answered(self)

    def failed(self, error: Exception) -> None:
        """The handler did; it may have answered before."""
        if self._batches:
            self.answer([Refusal(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")] * self._calls)

    def expire(self, now: float) -> None:
        """The first deadline has passed."""
        for connection, batch in self._batches:
            if batch.deadline <= now:
                try:
                    connection.expire(batch, now)
                except Exception:  # of one connection: the deadlines of the others are met all the same
                    log.exception("expiry_failed", method=self.group.path)
        self._watch()

    def _watch(self) -> None:
        first = math.inf
        for connection, batch in self._batches:
            if not connection.closed:
                first = min(first, batch.deadline)
        self._bucket = self._deadlines.add(first, self) if first < math.inf else 0
