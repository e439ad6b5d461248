"""Calls that have a stream of their own: what gRPC says over HTTP/2's frames, and the context that servicers see."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NoReturn

import grpc
import structlog

from pump_service.door.carrier import Carrier
from pump_service.door.group import Messages, Refusal, Trailing
from pump_service.door.messages import PREFIX, STEP, Assembler
from pump_service.door.routes import Head, metadata
from pump_service.door.stream import Stream

log = structlog.get_logger()
_Code = grpc.StatusCode
_OK = _Code.OK.value[0]
_DEADLINE = Refusal(_Code.DEADLINE_EXCEEDED, "Deadline Exceeded")


class Aborted(grpc.aio.AbortError):
    """What `Context.abort` raises."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.details)
        self.refusal = refusal


class Call:
    """One call. `cancel`, `refuse` and `expire` may come at any time until it is done."""

    def __init__(self, connection: Carrier, stream: Stream, head: Head, deadline: float | None) -> None:
        self._connection = connection
        self._stream = stream
        self._head = head
        self.deadline = deadline
        self._assembler = Assembler(connection.limits.message, gzip=head.gzip)
        self._bucket = 0
        self.done = False
        self._messages: list[bytes] = []
        self._half_closed = False
        self._assembly = connection.server.assembly
        self._inflates = False  # at the next turn of the loop
        self._let = False  # whether it was asked for already
        if deadline is not None:
            self._bucket = connection.deadlines.add(deadline, self)

    def open(self) -> None:
        """The headers are here."""

    def feed(self, data: bytes) -> None:
        """Bytes of the request."""
        if self.done:
            return
        inflating = self._assembler.inflating
        self._got(self._assembler.feed(data))
        if self._assembler.inflating and not inflating:
            self._inflate_soon()

    def lets(self, size: int) -> bool:
        """Whether so much more of the request may come; `go_on` is called when it may."""
        return self.done or self._assembly.lets(self, size)

    def coming(self) -> int:
        """Bytes of the request that may come without more credit."""
        if self._messages or self._half_closed or self._assembler.inflating:
            return 0
        return max(min(self._stream.recv_window, self._assembler.missing), 0)

    def needs_credit(self) -> bool:
        """Whether the windows that it has are less than what is missing."""
        return self.done or self._assembler.missing > self._stream.recv_window

    def go_on(self) -> None:
        """More of the request may come."""
        self._connection.give(self._stream)
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
        self._assembly.moved(self)
        self._got(self._assembler.inflate())
        if self._assembler.inflating:
            self._inflate_soon()
        elif self._half_closed:
            self.half_close()

    def _may_inflate(self) -> bool:
        return self._let or self.lets(STEP)

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
        self._connection.group(self._head.group).add(self._stream, self._messages.pop())

    def refuse(self, refusal: Refusal) -> None:
        """End the call with a status, whatever it is doing."""
        if not self.done:
            self._finished()
            self._connection.refuse(self._stream, refusal, begun=False)

    def cancel(self) -> None:
        """The peer does not want it any more: nothing is answered."""
        if not self.done:
            self._finished()

    def expire(self, now: float) -> None:
        """The deadline has passed."""
        del now
        self._bucket = 0
        self.refuse(_DEADLINE)

    def _finished(self) -> None:
        self.done = True
        if self._bucket:
            self._connection.deadlines.discard(self._bucket, self)
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

    def lets(self, size: int) -> bool:
        """Nothing of it is held."""
        del size
        return True

    def half_close(self) -> None:
        """The whole request is here and well formed: answer."""
        if not self.done:
            self._finished()
            sender, stream = self._connection.sender, self._stream
            sender.headers(stream.stream_id, sender.replies.plain(self._head.http_status))
            sender.data(stream, self._head.text.encode())
            sender.finish(stream, -1, "", ())


class HandlerCall(Call):
    """A call of a servicer's method: a task."""

    def __init__(self, connection: Carrier, stream: Stream, head: Head, deadline: float | None) -> None:
        super().__init__(connection, stream, head, deadline)
        self.context = Context(self, connection, head)
        self._begun = False  # response headers are out
        self._task: asyncio.Task[None] | None = None
        self._requests = _Requests(self) if head.method.request_streaming else None

    def open(self) -> None:
        """Streaming requests begin with the headers."""
        if self._requests is not None:
            self._start(self._requests)

    def _take(self, messages: list[bytes]) -> None:
        if self._requests is None:
            super()._take(messages)
            return
        self._connection.brings()
        self._stream.held += sum(map(len, messages))
        self._connection.held(sum(map(len, messages)))
        self._requests.put(messages)

    def _complete(self) -> None:
        if self._requests is not None:
            self._requests.close()
        elif not self._messages:
            self.refuse(Refusal(_Code.INTERNAL, f"no message for {self._head.path}"))
        else:
            try:
                request = self.parse(self._messages.pop())
            except Exception as error:  # noqa: BLE001 - whatever a deserializer raises
                self.refuse(Refusal(_Code.INTERNAL, f"Exception deserializing request: {error}"))
            else:
                self._start(request)

    def parse(self, message: bytes) -> Any:
        """A request message."""
        parse = self._head.method.request_deserializer
        return message if parse is None else parse(message)

    def coming(self) -> int:
        """Bytes of the request that may come without more credit."""
        if self._requests is None:
            return super().coming()
        return 0 if self._half_closed else max(self._stream.recv_window, 0)

    def needs_credit(self) -> bool:
        """Of a stream of requests there may always be more."""
        return self._requests is not None or super().needs_credit()

    def _holding(self) -> int:
        # What is inflated may be a thousand times as much as the windows let through.
        waiting = self._stream.held if self._head.gzip and self._requests is not None else 0
        return super()._holding() + waiting

    def taken(self, size: int) -> None:
        """The handler has taken a message: the peer may send as much again."""
        self._stream.held -= size
        self._connection.held(-size)
        self._connection.credit(self._stream)
        self._assembly.count(self, self._holding())
        if self._head.gzip:
            self._assembly.complete(self)
        self._inflate_soon()

    def _may_inflate(self) -> bool:
        # What the handler has not taken is not bounded by the windows.
        return self._stream.held <= self._connection.limits.stream_window and super()._may_inflate()

    def _start(self, request: Any) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(request), name=self._head.path)

    async def _run(self, request: Any) -> None:
        try:
            if self._head.method.response_streaming:
                behavior = self._head.method.stream_stream or self._head.method.unary_stream
                async with contextlib.aclosing(behavior(request, self.context)) as responses:
                    async for response in responses:
                        await self._send(response)
                self._succeed(None)
            else:
                behavior = self._head.method.stream_unary or self._head.method.unary_unary
                self._succeed(await behavior(request, self.context))
        except asyncio.CancelledError:
            # By the peer, a deadline or the end of the server; or the handler itself was cancelled.
            if not self.done:
                self.refuse(Refusal(_Code.CANCELLED, "the call was cancelled"))
        except Aborted as aborted:
            self.refuse(aborted.refusal)
        except Exception as error:
            if not self.done:
                log.exception("call_failed", method=self._head.path)
                self.refuse(Refusal(_Code.UNKNOWN, f"Unexpected {type(error)}: {error}"))
        finally:
            self.context.called_back()

    def _serialize(self, response: Any) -> bytes:
        serialize = self._head.method.response_serializer
        message: bytes = response if serialize is None else serialize(response)
        return message

    def begin(self, initial: Trailing = ()) -> None:
        """Send the response headers, once."""
        if not self._begun and not self.done:
            self._begun = True
            sender = self._connection.sender
            sender.headers(self._stream.stream_id, sender.replies.headers(initial))

    async def _send(self, response: Any) -> None:
        if self.done:
            raise asyncio.CancelledError
        self.begin()
        sender, stream = self._connection.sender, self._stream
        if isinstance(response, Messages):
            for piece in response.pieces:
                sender.data(stream, piece)
        else:
            message = self._serialize(response)
            sender.data(stream, PREFIX.pack(0, len(message)) + message)
        while stream.queued > self._connection.limits.stream_ahead:
            stream.waiter = asyncio.get_running_loop().create_future()
            await stream.waiter

    def _succeed(self, response: Any) -> None:
        if self.done:
            return
        context, sender, stream = self.context, self._connection.sender, self._stream
        code, text = context.status
        if code is not _Code.OK:
            self.refuse(Refusal(code, text, context.trailing))
            return
        if response is not None:
            message = self._serialize(response)
            plain = not self._begun and not context.trailing and stream.send_window >= sender.initial_window
            if plain and sender.fits(len(message), 1):
                self._finished()
                sender.unary_one(stream.stream_id, message)
                self._connection.stream_ended(stream)
                return
            self.begin()
            sender.data(stream, PREFIX.pack(0, len(message)) + message)
        self._finished()
        self.begin_anyway()
        sender.finish(stream, _OK, text, context.trailing)

    def _finished(self) -> None:
        super()._finished()
        if self._requests is not None:
            self._connection.held(-self._stream.held)  # what the handler has not taken
            self._stream.held = 0
            self._requests.close()

    def begin_anyway(self) -> None:
        """Headers of a stream without messages."""
        if not self._begun:
            self._begun = True
            sender = self._connection.sender
            sender.headers(self._stream.stream_id, sender.replies.headers())

    def refuse(self, refusal: Refusal) -> None:
        """End the call with a status, whatever it is doing."""
        if not self.done:
            self._finished()
            self._stop()
            self._connection.refuse(self._stream, refusal, begun=self._begun)

    def cancel(self) -> None:
        """The peer does not want it any more."""
        if not self.done:
            self._finished()
            self._stop()

    def _stop(self) -> None:
        self.context.was_cancelled = True
        task = self._task
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        if task is None:
            self.context.called_back()


class _Requests:
    """The messages of a streaming request, as the handler iterates over them."""

    def __init__(self, call: HandlerCall) -> None:
        self._call = call
        self._messages: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    def put(self, messages: list[bytes]) -> None:
        self._messages.extend(messages)
        self._wake()

    def close(self) -> None:
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        while not self._messages and not self._call.done:
            if self._closed:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._call.done:
            raise asyncio.CancelledError  # it was ended while somebody still reads
        message = self._messages.popleft()
        self._call.taken(len(message))
        try:
            return self._call.parse(message)
        except Exception as error:
            refusal = Refusal(_Code.INTERNAL, f"Exception deserializing request: {error}")
            self._call.refuse(refusal)  # whoever reads may be another task than the handler's
            raise Aborted(refusal) from error


class Context:
    """What servicers use of `grpc.aio.ServicerContext`."""

    def __init__(self, call: HandlerCall, connection: Carrier, head: Head) -> None:
        self._call = call
        self._connection = connection
        self._head = head
        self._callbacks: list[Callable[[Any], None]] = []
        self._code = _Code.OK
        self._details = ""
        self.trailing: Trailing = ()
        self.was_cancelled = False

    # ---- about the caller
    def peer(self) -> str:
        """``ipv4:host:port``."""
        return self._connection.peer

    def auth_context(self) -> Mapping[str, list[bytes]]:
        """What TLS says of the caller."""
        return self._connection.auth_context

    def invocation_metadata(self) -> Trailing:
        """The caller's metadata."""
        return metadata(self._head.fields)

    def time_remaining(self) -> float | None:
        """Seconds until the deadline; None = there is none."""
        deadline = self._call.deadline
        return None if deadline is None else max(deadline - asyncio.get_running_loop().time(), 0.0)

    def cancelled(self) -> bool:
        """Whether the caller has gone or its deadline has passed."""
        return self.was_cancelled

    def done(self) -> bool:
        """Whether the call has ended."""
        return self._call.done

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Called with this context when the call has ended."""
        self._callbacks.append(callback)

    def called_back(self) -> None:
        """The call has ended."""
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    # ---- what the answer carries
    @property
    def status(self) -> tuple[grpc.StatusCode, str]:
        """Code and details that the handler has set."""
        return self._code, self._details

    def set_code(self, code: grpc.StatusCode) -> None:
        """Code of the answer."""
        self._code = code

    def set_details(self, details: str) -> None:
        """Text of the answer's status."""
        self._details = details

    def set_trailing_metadata(self, trailing_metadata: Trailing) -> None:
        """Metadata behind the answer."""
        self.trailing = tuple(trailing_metadata)

    async def send_initial_metadata(self, initial_metadata: Trailing) -> None:
        """Metadata before the answer."""
        self._call.begin(tuple(initial_metadata))

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Trailing = ()) -> NoReturn:
        """End the call with this status; does not return."""
        if code is _Code.OK:
            raise ValueError("a call is not aborted with OK")
        raise Aborted(Refusal(code, details, tuple(trailing_metadata) or self.trailing))

    def end(self, refusal: Refusal) -> None:
        """End the call with this status, wherever its handler waits."""
        self._call.refuse(refusal)
