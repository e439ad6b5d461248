"""Calls that have a stream of their own: what gRPC says over HTTP/2's frames."""

from __future__ import annotations

import asyncio
from typing import Protocol

import grpc

from pump_service.door.assembly import Assembly
from pump_service.door.deadlines import Deadlines
from pump_service.door.group import Refusal
from pump_service.door.http2.batch import DEADLINE
from pump_service.door.http2.protocol import Http2
from pump_service.door.http2.streams import Stream
from pump_service.door.limits import Limits
from pump_service.door.messages import STEP, Assembler
from pump_service.door.routes import Group, Head
from pump_service.door.tls import AuthContext

_Code = grpc.StatusCode


class Shared(Protocol):
    """What calls of all connections have in common."""

    limits: Limits
    deadlines: Deadlines
    assembly: Assembly


class Carrier(Protocol):
    """A connection, as its calls see it."""

    http2: Http2
    peer: str
    auth_context: AuthContext
    heard: float

    @property
    def server(self) -> Shared:
        """Whose it is."""
        ...

    def group_call(self, group: Group, stream_id: int, message: bytes) -> None:
        """The request of a call of a group method is complete."""

    def brings(self) -> None:
        """Requests in plenty come this way."""


class Call:
    """One call. `cancel`, `refuse` and `expire` may come at any time until it is done."""

    def __init__(self, connection: Carrier, stream: Stream, head: Head, deadline: float | None) -> None:
        self._connection = connection
        self._http2 = connection.http2
        self._shared = connection.server
        self._stream = stream
        self._head = head
        self.deadline = deadline
        self.heard = connection.heard
        self._assembler = Assembler(
            connection.server.limits.message, gzip=head.gzip, inflated=connection.server.limits.inflated
        )
        self._bucket = 0
        self.done = False
        self._messages: list[bytes] = []
        self._half_closed = False
        self._assembly = connection.server.assembly
        self._inflates = False  # at the next turn of the loop
        self._let = False  # whether it was asked for already
        if deadline is not None:
            self._bucket = connection.server.deadlines.add(deadline, self)

    def open(self) -> None:
        """The headers are here."""

    def feed(self, data: bytes) -> None:
        """Bytes of the request."""
        self.heard = self._connection.heard
        if not self.done:
            inflating = self._assembler.inflating
            self._got(self._assembler.feed(data))
            if self._assembler.inflating and not inflating:
                self._inflate_soon()
        self._credit()

    def drained(self) -> None:
        """Much of what it had to send is out: nobody waits for that."""

    def _credit(self) -> None:
        """Let the peer send more, when it is worth a frame and may be held."""
        free = self._http2.windows.worth_credit(self._stream)
        if free and self._needs_credit() and self._lets(free):
            self._http2.windows.credit(self._stream)

    def _lets(self, size: int) -> bool:
        """Whether so much more of the request may come; `go_on` is called when it may."""
        return self.done or self._assembly.lets(self, size)

    def awaits_peer(self) -> bool:
        """Whether it is the peer who has to go on."""
        return not (self._half_closed or self._assembler.inflating or self._stream.held)

    def _needs_credit(self) -> bool:
        """Whether the windows that it has are less than what is missing."""
        return self.done or self._assembler.missing > self._stream.recv_window

    def go_on(self) -> None:
        """More of the request may come."""
        self._http2.windows.credit(self._stream)
        self._let = self._assembler.inflating
        self._inflate_soon()

    def _got(self, messages: list[bytes] | Refusal) -> None:
        if isinstance(messages, Refusal):
            self.refuse(messages)
            return
        if messages:
            self._take(messages)
        if not self.done and (refusal := self._assembly.count(self, self._holding())) is not None:
            self.refuse(refusal)
        elif messages and not self.done:
            self._assembly.complete(self)

    def _inflate_soon(self) -> None:
        if self._assembler.inflating and not self._inflates and not self.done:
            self._inflates = True
            asyncio.get_running_loop().call_soon(self._inflate)

    def _inflate(self) -> None:
        """A step of a large message; others have their turn between two."""
        self._inflates = False
        if self.done or not self._may_inflate():
            return
        self._let = False
        self._got(self._assembler.inflate())
        if self._assembler.inflating:
            self._inflate_soon()
        elif self._half_closed:
            self.half_close()

    def _may_inflate(self) -> bool:
        return self._let or self._lets(STEP)

    def _holding(self) -> int:
        """Of an open request: parts of messages, and whole ones without the end of the request."""
        return self._assembler.size + sum(map(len, self._messages))

    def _take(self, messages: list[bytes]) -> None:
        self._messages += messages
        if len(self._messages) > 1:
            self.refuse(Refusal(_Code.INTERNAL, f"more than one message for {self._head.path}"))

    def half_close(self) -> None:
        """The peer has sent everything."""
        self._half_closed = True
        if self.done or self._assembler.inflating:
            return
        self._assembly.settled(self)
        if self._assembler.held:
            self.refuse(Refusal(_Code.INTERNAL, "the request ends within a message"))
        else:
            if self._messages:
                self._assembly.leave(self)  # whoever takes it counts it from here
            self._complete()

    def _complete(self) -> None:
        if not self._messages:
            self.refuse(Refusal(_Code.INTERNAL, f"no message for {self._head.path}"))
            return
        if self._head.group is not None:
            self._connection.group_call(self._head.group, self._stream.stream_id, self._messages.pop())

    def refuse(self, refusal: Refusal) -> None:
        """End the call with a status, whatever it is doing."""
        if not self.done:
            self._finished()
            self._http2.answers.refuse(self._stream, refusal, begun=False)

    def cancel(self) -> None:
        """The peer does not want it any more: nothing is answered."""
        if not self.done:
            self._finished()

    def expire(self, now: float) -> None:
        """The deadline has passed."""
        del now
        self._bucket = 0
        self.refuse(DEADLINE)

    def _finished(self) -> None:
        self.done = True
        if self._bucket:
            self._shared.deadlines.discard(self._bucket, self)
        self._assembly.leave(self)
        self._messages = []
        self._assembler.drop()

    def ended(self) -> None:
        """Somebody else has answered it (a group)."""
        if not self.done:
            self._finished()


class PlainCall(Call):
    """A request that is not gRPC: its body is let go, its answer is a text."""

    def feed(self, data: bytes) -> None:
        """Not looked at."""
        del data
        self._credit()

    def _lets(self, size: int) -> bool:
        """Nothing of it is held."""
        del size
        return True

    def half_close(self) -> None:
        """The whole request is here and well formed: answer."""
        if not self.done:
            self._finished()
            output, stream = self._http2.output, self._stream
            output.headers(stream.stream_id, output.replies.plain(self._head.http_status))
            output.data(stream, self._head.text.encode())
            output.finish(stream, -1)
