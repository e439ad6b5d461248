"""Requests of a group method that several connections bring at about the same time go to the handler as one group.

With many connections of few calls each the groups of single reads are small, and what each costs (a kernel call, a hand
over to another thread, an fdatasync, a wake-up back) is paid for a handful of calls. So what the sockets that are ready
bring is collected, and a small group waits for more as long as more is sure to come and nothing is lost by it:

- while one group, and no more, is with the handler: it is on its way to the disk, and what comes later is behind it
  anyway. Behind two a group goes at once, so that it is there when the disk is free. A group that is out for longer
  than a tick of the loop's timer (a slow disk, a question to the cluster) counts no more; and
- while a connection is about to bring the next calls: its answers went out a moment ago, none of its calls is open, and
  the last time it was back at once. A peer that has shown no such habit is waited for by nobody.

Nobody waits longer than that tick.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import grpc
import structlog

from pump_service.door.batch import Batch
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
_SOON_S = 0.001  # uvloop's timers know milliseconds


class Turn:
    """Batches that are collected, by method, and who is to bring more."""

    def __init__(self, loop: asyncio.AbstractEventLoop, runs: Runs) -> None:
        self._loop = loop
        self._runs = runs
        self._now = time.monotonic  # the loop's own clock has ticks of a millisecond
        self._batches: dict[Group, list[Batch]] = {}
        self._calls = 0
        self._large = False  # one of the reads is
        self._bringing: set[Connection] = set()  # whose batches they are
        self._out: set[object] = set()  # groups that were handed over since the last tick and have no answers yet
        self._expected: dict[Connection, float] = {}  # until when
        self._answered_at: dict[Connection, float] = {}  # of those that have not been back
        self._soon: asyncio.Handle | None = None
        self._longest: asyncio.TimerHandle | None = None

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
        self._calls += len(batch.stream_ids)
        self._large = self._large or len(batch.stream_ids) >= _LARGE_READ
        if len(batches) >= _MOST:
            self._hand_over()
        else:
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
        if self._large or self._calls >= _ENOUGH or not (len(self._out) == 1 or self._expects()):
            self._hand_over()
        elif self._longest is None:
            self._longest = self._loop.call_later(_SOON_S, self._tick)

    def _tick(self) -> None:
        self._out.clear()
        self._hand_over()

    def _expects(self) -> bool:
        if self._expected:
            now = self._now()
            self._expected = {each: until for each, until in self._expected.items() if now < until}
        return bool(self._expected)

    def _hand_over(self) -> None:
        if self._longest is not None:
            self._longest.cancel()
            self._longest = None
        collected, self._batches = self._batches, {}
        self._calls, self._large = 0, False
        self._bringing.clear()
        for group, batches in collected.items():
            live = [batch for batch in batches if batch.begin()]
            if live:
                self._give(group, live)

    def _give(self, group: Group, batches: Sequence[Batch]) -> None:
        calls = sum(len(batch.stream_ids) for batch in batches)
        this = object()
        answered = False

        def answer(answers: Sequence[Answer]) -> None:
            nonlocal answered
            if answered or len(answers) != calls:
                raise ValueError(f"{len(answers)} answers to {calls} calls of {group.path}, or twice")
            answered = True
            at = 0
            for batch in batches:
                count = len(batch.stream_ids)
                try:
                    batch.answer(answers[at : at + count])
                except Exception:  # of one connection: the others have their answers all the same
                    log.exception("answer_failed", method=group.path)
                at += count
            self._out.discard(this)
            self._answered(batches)

        self._out.add(this)
        try:
            group.handler(self._runs.requests([part for batch in batches for part in batch.parts()]), answer)
        except Exception as error:
            log.exception("call_failed", method=group.path)
            if not answered:
                answer([Refusal(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")] * calls)

    def _answered(self, batches: Sequence[Batch]) -> None:
        now = self._now()
        for batch in batches:
            connection = batch.connection
            if not (connection.closed or connection.lean or connection in self._bringing):
                self._answered_at[connection] = now
                if connection.prompt:
                    self._expected[connection] = now + _SOON_S
        if self._batches:
            self._look_soon()
