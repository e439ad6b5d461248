"""One connection on the event loop: its transport, its turns, its timers, and the calls behind its streams.

What the bytes mean is `http2`'s. A turn is one read, and what the handlers of its calls do at once: calls of group
methods are handed over at its end, and everything that is to be written leaves in one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import structlog

from pump_service.door.calls import Call, PlainCall, Shared
from pump_service.door.group import Answer, Refusal
from pump_service.door.handlers import HandlerCall
from pump_service.door.http2.batch import Batch
from pump_service.door.http2.events import Cancelled, Ended, Event, Failed, Opened, Received
from pump_service.door.http2.frames import INTERNAL_ERROR, PING, ConnectionFault, frame
from pump_service.door.http2.protocol import Http2
from pump_service.door.http2.runs import Runs
from pump_service.door.http2.streams import Tally
from pump_service.door.routes import Group, Permit, Routes
from pump_service.door.tls import AuthContext

log = structlog.get_logger()
_LINGER_S = 5.0


class Host(Shared, Protocol):
    """A server, as its connections see it."""

    routes: Routes
    runs: Runs
    tally: Tally

    def hand_over(self, connection: Any, batch: Batch) -> None:
        """Calls for a group's handler."""

    def brings(self, connection: Any) -> None:
        """Requests in plenty come this way from now on."""

    def lost(self, connection: Any) -> None:
        """A connection has ended."""


class Connection(asyncio.Protocol):
    """Protocol of a connection whose preface has been seen (`sniff` hands it over)."""

    def __init__(
        self,
        server: Host,
        transport: asyncio.Transport,
        peer: str,
        names: AuthContext,
        refusal: Refusal | None,
        permit: Permit,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self.server = server
        self.peer = peer
        self.auth_context = names
        self.heard = self._loop.time()  # when the last bytes came
        self._asked: float | None = None  # when it was asked whether it is there
        self.http2 = Http2(
            server.limits, partial(server.routes.head, permit=permit), server.runs, now=self.heard, refusal=refusal,
            wanted=self._soon, tally=server.tally,
        )  # fmt: skip
        self.idle_since = self.heard  # no call has begun or was open since then, as far as `look` has seen
        self._last_id = 0
        self.feeds = False  # it has brought requests in plenty
        self._in_turn = False  # at its end everything is written
        self._scheduled = False  # an end of a turn is
        self._blocked = False  # the transport's buffer is full
        self._reasons: set[str] = set()  # why nothing is read
        self._linger: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Say our settings."""
        size = self.server.limits.write_buffer
        # Half of it: streams may fill the other half before they are told.
        self._transport.set_write_buffer_limits(size // 2, size // 4)
        self.http2.begin()

    @property
    def closed(self) -> bool:
        """Whether nothing comes of it any more."""
        return self.http2.closed

    # ---- what the transport says -------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """A turn."""
        if self.http2.closed:
            return
        self.heard = self._loop.time()
        self._asked = None
        self._in_turn = True
        events: Iterator[Event] = iter(())
        try:
            events = iter(self.http2.receive(data, self.heard))
            for event in events:
                self._handle(event)
        except Exception:
            log.exception("connection_failed", peer=self.peer)
            fault = ConnectionFault(INTERNAL_ERROR, "internal error")
            self.http2.fail(fault)
            self._handle(Failed(fault.code, fault.text))
            for event in events:
                if isinstance(event, Cancelled):
                    self._handle(event)  # of another call, and told once
        finally:
            self._end_turn()
        if self.http2.closed:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Every call is cancelled; answers of groups are dropped."""
        del exc
        self._blocked = True
        if self._linger is not None:
            self._linger.cancel()  # it would hold all of this until then
        for stream in self.http2.lost():
            if stream.call is not None:
                stream.call.cancel()
        self.server.lost(self)

    def pause_writing(self) -> None:
        """The peer does not read: neither do we."""
        self._blocked = True
        self.pause("writing")

    def resume_writing(self) -> None:
        """It does again."""
        self._blocked = False
        self._soon()
        self.resume("writing")

    # ---- a turn ------------------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        match event:
            case Opened():
                self._open(event)
            case Received(stream, data) if stream.call is not None:
                stream.call.feed(data)
            case Ended(stream) if stream.call is not None and stream.stream_id in self.http2.streams.open:
                stream.call.half_close()
            case Cancelled(stream) if stream.call is not None:
                stream.call.cancel()
            case Failed(code, reason):
                log.info("connection_refused", peer=self.peer, code=code, reason=reason)

    def _open(self, opened: Opened) -> None:
        stream, head = opened.stream, opened.head
        if stream.stream_id not in self.http2.streams.open:
            return  # the same read has ended it
        deadline = None if opened.timeout is None else self.heard + opened.timeout
        kind = PlainCall if head.http_status else Call if head.group is not None else HandlerCall
        stream.call = kind(self, stream, head, deadline)
        stream.call.open()

    def _end_turn(self) -> None:
        """Hand over what has come and write what there is."""
        http2 = self.http2
        self._in_turn = True
        try:
            for batch in http2.take_batches():
                if http2.closed:
                    batch.drop()
                    continue
                self.brings()
                self.server.hand_over(self, batch)
            if not http2.closed:
                http2.windows.credit_connection()
        finally:
            self._in_turn = False
            self._flush()

    def _flush(self) -> None:
        output, streams = self.http2.output, self.http2.streams
        self._scheduled = True  # what is added meanwhile goes along
        try:
            fills = output.ready and not self._blocked
            if fills:
                for stream in output.fill(self.server.limits.write_buffer - self._transport.get_write_buffer_size()):
                    if stream.call is not None:
                        stream.call.drained()
            data = output.take()
            if data and not self._transport.is_closing():
                self._transport.write(data)
        finally:
            self._scheduled = False
        if streams.going and streams.idle and not self.closed:
            self.close()  # the last call has ended that a connection on its way out waited for
        elif fills and output.goes_on:
            self._soon()

    def _soon(self) -> None:
        """There is something to write, or to hand over."""
        if not self._in_turn and not self._scheduled and not self.closed:
            self._scheduled = True
            self._loop.call_soon(self._end_turn)

    # ---- groups ------------------------------------------------------------------------------------------------

    def group_call(self, group: Group, stream_id: int, message: bytes) -> None:
        """A call of a group method that has a stream of its own has come to its end."""
        self.http2.batch(group).add(stream_id, message)
        self._soon()

    def answer(self, batch: Batch, answers: Sequence[Answer], of_all: bytes | None) -> None:
        """What the handler says to the calls of a batch, one by one or to all."""
        if self.http2.closed:
            return
        if batch.mixed:
            for stream_id in batch.stream_ids:
                stream = self.http2.streams.open.get(stream_id)
                if stream is not None and stream.call is not None:
                    stream.call.ended()
        in_turn, self._in_turn = self._in_turn, True
        try:
            if of_all is not None:
                self.http2.answers.to_all(batch, of_all)
            else:
                self.http2.answers.to_each(batch, answers)
        finally:
            self._in_turn = in_turn
        if not in_turn:
            self._flush()  # a turn of the loop for it costs as much as the answers

    def expire(self, batch: Batch, now: float) -> None:
        """The deadline of some calls has passed."""
        if not self.closed:
            self.http2.answers.expire(batch, now)

    # ---- reading or not ----------------------------------------------------------------------------------------

    def pause(self, reason: str) -> None:
        """Stop reading."""
        if not self._reasons and not self._transport.is_closing():
            self._transport.pause_reading()
        self._reasons.add(reason)

    def resume(self, reason: str) -> None:
        """Read again when no other reason is left."""
        if reason in self._reasons:
            self._reasons.discard(reason)
            if not self._reasons and not self._transport.is_closing():
                self.heard = self._loop.time()
                self._transport.resume_reading()

    def brings(self) -> None:
        """Requests in plenty come this way (groups, streaming requests): it is not read while they have no room."""
        if not self.feeds:
            self.feeds = True
            self.server.brings(self)

    def keep_alive(self, now: float) -> None:
        """Ask a peer that has been silent, give up one that does not answer."""
        limits = self.server.limits
        if self._reasons or self.closed:
            return
        if self._asked is not None:
            if now - self._asked > limits.keepalive_timeout_s:
                log.info("peer_gone", peer=self.peer)
                self.abort()
        elif now - self.heard > limits.keepalive_s:
            self._asked = now
            self.http2.output.add(frame(PING, 0, 0, b"keepaliv"))

    def look(self, now: float) -> None:
        """Called each second: whether a call began or is open. What is no call keeps no connection."""
        streams = self.http2.streams
        if streams.last_id != self._last_id or not streams.idle:
            self._last_id, self.idle_since = streams.last_id, now

    def refuse_stalled(self, before: float, refusal: Refusal) -> None:
        """End calls whose peers have not gone on with their requests since then."""
        if self._reasons:
            return  # it is we who do not read
        for stream in list(self.http2.streams.open.values()):
            call = stream.call
            if call is not None and call.heard <= before and call.awaits_peer():
                call.refuse(refusal)

    def is_idle(self, before: float) -> bool:
        """Whether it has had no call since then."""
        streams = self.http2.streams
        return self.idle_since <= before and streams.idle and streams.last_id == self._last_id and not self.closed

    # ---- ends --------------------------------------------------------------------------------------------------

    def go_away(self) -> None:
        """Take no new calls, and end with the last of those that are open."""
        self.resume("server")
        self.http2.go_away()

    def refuse_all(self, refusal: Refusal) -> None:
        """End every call that is still open."""
        for stream in list(self.http2.streams.open.values()):
            if stream.call is not None:
                stream.call.refuse(refusal)
        self.http2.answers.refuse_lean(refusal)

    def close(self) -> None:
        """End the connection after what is written; its calls are cancelled."""
        self.http2.closed = True
        if self._linger is None:
            self._transport.close()
            # A peer that does not read would keep it open for ever.
            self._linger = self._loop.call_later(_LINGER_S, self._transport.abort)

    def abort(self) -> None:
        """End it at once."""
        self._transport.abort()
