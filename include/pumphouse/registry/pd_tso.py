"""Timestamps of PD: one stream to the leader, one request under way, which serves everybody who waits when it goes.

A request asks for as many timestamps as callers wait *at that moment*, never for more: a timestamp kept for a later
caller would lie before fences that others took meanwhile. PD answers with the largest of the batch.

One thread a process drives the stream: it opens it when somebody waits, reads answers, hands them out and sends the
next request. A stream that says nothing is given up by whoever has waited too long on it.
"""

from __future__ import annotations

import os
import queue
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import grpc

from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import BinlogError, ClusterUnavailable
from pumphouse.library_log import library_logger
from pumphouse.model.tso import LOGICAL_MASK, Tso, compose
from pumphouse.proto import pdpb_pb2 as pdpb
from pumphouse.proto.pdpb_pb2_grpc import PDStub
from pumphouse.registry.pd_members import Members, reason_of
from pumphouse.rpc import forks

log = library_logger(__name__)

MOST_AT_ONCE = 10_000
_FIRST_WAIT_S = 0.02
_LONGEST_WAIT_S = 0.5
_LET_GO_S = 1.0


class _NoTimestamps(Exception):
    """An answer that cannot be used; the stream is opened again."""


@dataclass(slots=True, eq=False)
class _Waiter:
    count: int
    answered: threading.Event = field(default_factory=threading.Event)
    taken: Sequence[Tso] = ()
    error: BinlogError | None = None
    gone: bool = False


@dataclass(slots=True)
class _Local:
    """What belongs to one process; everything is guarded by ``changed``."""

    pid: int
    changed: threading.Condition = field(default_factory=threading.Condition)
    waiting: list[_Waiter] = field(default_factory=list)
    under_way: list[_Waiter] = field(default_factory=list)
    sent_at: float = 0.0
    call: Any = None  # the stream, or None
    requests: queue.SimpleQueue[pdpb.TsoRequest | None] = field(default_factory=queue.SimpleQueue)
    driver: threading.Thread | None = None
    failure: str = "no stream yet"


def timestamps_of(response: pdpb.TsoResponse, count: int) -> range:
    """The timestamps of an answer, in order: its logical part is the largest, their distance 2^suffix_bits.

    Raises ValueError when it cannot be the answer to a request for ``count``.
    """
    stamp = response.timestamp
    step = 1 << stamp.suffix_bits
    first = stamp.logical - (count - 1) * step
    if response.count != count or stamp.physical <= 0 or first < 0 or stamp.logical > LOGICAL_MASK:
        raise ValueError(
            f"asked for {count} timestamps, got {response.count} up to {stamp.physical} ms + {stamp.logical}"
        )
    return range(compose(stamp.physical, first), compose(stamp.physical, stamp.logical) + 1, step)


class TsoStream:
    """PD's clock, for any number of threads."""

    def __init__(self, members: Members, clock: Clock = SYSTEM_CLOCK) -> None:
        self._members = members
        self._clock = clock
        self._last = 0
        self._closed = False
        self._state = _Local(os.getpid())
        forks.close_at_fork(self)

    def next(self) -> Tso:
        """One timestamp, above every one that this process got before; about one round trip.

        Raises:
            ClusterUnavailable: no leader gave one within the deadline.
            ClusterMismatch: PD has another cluster id than at the start.
        """
        return self._take(1)[0]

    def take(self, count: int) -> Sequence[Tso]:
        """So many, ascending; one round trip for each `MOST_AT_ONCE`, each as `next`."""
        taken: list[Tso] = []
        while len(taken) < count:
            taken += self._take(min(count - len(taken), MOST_AT_ONCE))
        return taken

    def close(self) -> None:
        """End the stream; callers that wait get an error."""
        self._closed = True
        self._end_stream()

    def before_fork(self) -> None:
        """See `pumphouse.rpc.forks`: the driver opens another stream when somebody waits."""
        self._end_stream()
        state = self._local()
        with state.changed:  # until the driver has let go of the call, gRPC goes on living
            state.changed.wait_for(lambda: state.call is None, _LET_GO_S)

    # ---- parts -------------------------------------------------------------------------------------------------

    def _take(self, count: int) -> Sequence[Tso]:
        options, state = self._members.options, self._local()
        until = self._clock.monotonic() + options.deadline_s
        waiter = _Waiter(count)
        with state.changed:
            if self._closed:
                raise ClusterUnavailable(f"{self._members.url} was closed", url=self._members.url)
            self._keep_driven(state)
            state.waiting.append(waiter)
            self._send(state)
            state.changed.notify_all()
        while not waiter.answered.wait(min(options.timeout_s, max(0.0, until - self._clock.monotonic()))):
            with state.changed:
                self._keep_driven(state)
                now = self._clock.monotonic()
                if state.call is not None and state.under_way and now - state.sent_at >= options.timeout_s:
                    state.failure = f"the stream gave no answer for {options.timeout_s:g} s"
                    state.call.cancel()
                if now >= until and not waiter.answered.is_set():
                    waiter.gone = True
                    raise ClusterUnavailable(
                        f"{self._members.url} gave no timestamp: {state.failure}",
                        hint="is PD up and has it a leader?",
                        url=self._members.url,
                    )
        if waiter.error is not None:
            raise waiter.error
        return waiter.taken

    def _local(self) -> _Local:
        if self._state.pid != os.getpid():
            self._state = _Local(os.getpid())
        return self._state

    def _end_stream(self) -> None:
        state = self._local()
        with state.changed:
            if state.call is not None:
                state.call.cancel()
            state.changed.notify_all()

    def _keep_driven(self, state: _Local) -> None:
        """Start the driver where there is none. Call it with ``changed`` held."""
        if not self._closed and (state.driver is None or not state.driver.is_alive()):
            state.driver = threading.Thread(target=self._drive, args=(state,), name="pd-tso", daemon=True)
            state.driver.start()

    def _send(self, state: _Local) -> None:
        """Ask for everybody who waits, unless an answer is still to come. Call it with ``changed`` held."""
        if state.call is None or state.under_way:
            return
        waiting = [waiter for waiter in state.waiting if not waiter.gone]
        upto = list(accumulate(waiter.count for waiter in waiting))
        now = bisect_right(upto, MOST_AT_ONCE)
        state.under_way, state.waiting = waiting[:now], waiting[now:]
        if state.under_way:
            state.sent_at = self._clock.monotonic()
            state.requests.put(pdpb.TsoRequest(header=self._members.header, count=upto[now - 1], dc_location="global"))

    def _drive(self, state: _Local) -> None:
        wait = _FIRST_WAIT_S
        while True:
            with state.changed:
                while not state.waiting and not self._closed:
                    state.changed.wait()
                if self._closed:
                    break
            leader = ""
            try:
                leader = self._members.leader()
                for response in self._open(state, leader):
                    self._hand_out(state, response)
                    wait = _FIRST_WAIT_S
                self._drop(state, "the stream ended")
            except grpc.RpcError as error:
                self._drop(state, "" if _cancelled(error) else f"{leader}: {reason_of(error)}")
            except (_NoTimestamps, ClusterUnavailable) as error:
                self._drop(state, str(error))
            except BinlogError as error:
                self._drop(state, str(error))
                self._fail(state, error)
            except ValueError as error:  # a fork closed the channel before the stream was opened
                self._drop(state, str(error))
            except Exception as error:
                # Whatever it is, those who wait must not be left: a new stream, until their time is up.
                log.exception("pd_tso_stream_failed", url=self._members.url)
                self._drop(state, f"{type(error).__name__}: {error}")
            if leader:
                self._members.forget(leader)
            with state.changed:
                state.changed.wait_for(lambda: self._closed, wait)
            wait = min(wait * 2, _LONGEST_WAIT_S)
        self._drop(state, "closed")
        self._fail(state, ClusterUnavailable(f"{self._members.url} was closed", url=self._members.url))

    def _open(self, state: _Local, leader: str) -> Iterator[pdpb.TsoResponse]:
        requests: queue.SimpleQueue[pdpb.TsoRequest | None] = queue.SimpleQueue()
        call = self._members.stub(leader, PDStub).Tso(iter(requests.get, None))
        with state.changed:
            state.requests, state.call = requests, call
            self._send(state)
        return call  # type: ignore[no-any-return]

    def _hand_out(self, state: _Local, response: pdpb.TsoResponse) -> None:
        refused = self._members.refusal(response.header)
        if refused:
            raise _NoTimestamps(refused)
        with state.changed:
            try:
                stamps = timestamps_of(response, sum(waiter.count for waiter in state.under_way))
            except ValueError as error:
                raise _NoTimestamps(str(error)) from error
            if stamps[0] <= self._last:
                raise _NoTimestamps(f"PD's clock went back: {stamps[0]} after {self._last}")
            self._last = stamps[-1]
            at = 0
            for waiter in state.under_way:
                waiter.taken = [Tso(each) for each in stamps[at : at + waiter.count]]
                at += waiter.count
                waiter.answered.set()
            state.under_way = []
            self._send(state)

    @staticmethod
    def _drop(state: _Local, failure: str) -> None:
        """The stream is no more: who was promised an answer by it waits for the next."""
        with state.changed:
            if state.call is not None:
                state.call.cancel()
            state.requests.put(None)
            state.call = None
            state.changed.notify_all()
            state.waiting = [*state.under_way, *state.waiting]
            state.under_way = []
            state.failure = failure or state.failure

    @staticmethod
    def _fail(state: _Local, error: BinlogError) -> None:
        with state.changed:
            for waiter in state.waiting:
                waiter.error = error
                waiter.answered.set()
            state.waiting = []


def _cancelled(error: grpc.RpcError) -> bool:
    call: Any = error
    return hasattr(call, "code") and call.code() is grpc.StatusCode.CANCELLED
