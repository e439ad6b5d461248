"""Requests of a group method that several connections brought in one turn of the loop go to the handler as one group.

With many connections of few calls each the groups of single reads are small, and what each costs (a kernel call, a hand
over to another thread, a wake-up back) is paid for a handful of calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc
import structlog

from pump_service.door.batch import Batch
from pump_service.door.group import Answer, Refusal, Requests
from pump_service.door.routes import Group

log = structlog.get_logger()
# Each of them is one read at most: what a handler that holds readers back cannot stop any more.
_MOST = 32


class Turn:
    """Batches of the loop's present turn, by method."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._batches: dict[Group, list[Batch]] = {}
        self._soon: asyncio.Handle | None = None

    def add(self, batch: Batch) -> None:
        """Hand it over with those that the other ready sockets bring."""
        batches = self._batches.setdefault(batch.group, [])
        batches.append(batch)
        if len(batches) >= _MOST:
            del self._batches[batch.group]
            _hand_over(batch.group, batches)
        elif self._soon is None:
            # Behind the callbacks of all sockets that are ready now.
            self._soon = self._loop.call_soon(self._end)

    def _end(self) -> None:
        self._soon = None
        collected, self._batches = self._batches, {}
        for group, batches in collected.items():
            _hand_over(group, batches)


def _hand_over(group: Group, batches: Sequence[Batch]) -> None:
    live = [batch for batch in batches if batch.begin()]
    if len(live) == 1:
        live[0].give()
        return
    calls = sum(len(batch.stream_ids) for batch in live)
    answered = False

    def answer(answers: Sequence[Answer]) -> None:
        nonlocal answered
        if answered or len(answers) != calls:
            raise ValueError(f"{len(answers)} answers to {calls} calls of {group.path}, or twice")
        answered = True
        at = 0
        for batch in live:
            count = len(batch.stream_ids)
            try:
                batch.answer(answers[at : at + count])
            except Exception:  # of one connection: the others have their answers all the same
                log.exception("answer_failed", method=group.path)
            at += count

    if live:
        try:
            group.handler(Requests.joined([run for batch in live for run in batch.requests()]), answer)
        except Exception as error:
            log.exception("call_failed", method=group.path)
            if not answered:
                answer([Refusal(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")] * calls)
