"""Calls of a servicer's method: a task for each, and the context that the servicer sees."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NoReturn

import grpc
import structlog

from pump_service.door.calls import Call, Carrier
from pump_service.door.group import Messages, Refusal, Trailing
from pump_service.door.http2.streams import Stream
from pump_service.door.messages import PREFIX
from pump_service.door.routes import Head, metadata

log = structlog.get_logger()
_Code = grpc.StatusCode
_OK = _Code.OK.value[0]


class Aborted(grpc.aio.AbortError):
    """What `Context.abort` raises."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.details)
        self.refusal = refusal


class HandlerCall(Call):
    """A call of a servicer's method: a task."""

    def __init__(self, connection: Carrier, stream: Stream, head: Head, deadline: float | None) -> None:
        super().__init__(connection, stream, head, deadline)
        self.context = Context(self, connection, head)
        self._begun = False  # response headers are out
        self._task: asyncio.Task[None] | None = None
        self._room: asyncio.Future[None] | None = None  # for more of the response
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
        self._http2.windows.hold(self._stream, sum(map(len, messages)))
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

    def _needs_credit(self) -> bool:
        """Of a stream of requests there may always be more."""
        return self._requests is not None or super()._needs_credit()

    def _holding(self) -> int:
        # What is inflated may be a thousand times as much as the windows let through.
        waiting = self._stream.held if self._head.gzip and self._requests is not None else 0
        return super()._holding() + waiting

    def taken(self, size: int) -> None:
        """The handler has taken a message: the peer may send as much again."""
        self._http2.windows.hold(self._stream, -size)
        self._credit()
        self._assembly.count(self, self._holding())
        if self._head.gzip:
            self._assembly.complete(self)
        self._inflate_soon()

    def _may_inflate(self) -> bool:
        # What the handler has not taken is not bounded by the windows.
        return self._stream.held <= self._shared.limits.stream_window and super()._may_inflate()

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
            output = self._http2.output
            output.headers(self._stream.stream_id, output.replies.headers(initial))

    async def _send(self, response: Any) -> None:
        if self.done:
            raise asyncio.CancelledError
        self.begin()
        output, stream = self._http2.output, self._stream
        if isinstance(response, Messages):
            for piece in response.pieces:
                output.data(stream, piece)
        else:
            message = self._serialize(response)
            output.data(stream, PREFIX.pack(0, len(message)) + message)
        while stream.queued > self._shared.limits.stream_ahead:
            stream.wants_room = True
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def drained(self) -> None:
        """Much of what it had to send is out."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _succeed(self, response: Any) -> None:
        if self.done:
            return
        context, output, stream = self.context, self._http2.output, self._stream
        code, text = context.status
        if code is not _Code.OK:
            self.refuse(Refusal(code, text, context.trailing))
            return
        if response is not None:
            message = self._serialize(response)
            plain = not self._begun and not context.trailing
            if plain and self._http2.answers.whole(stream, message):
                self._finished()
                return
            self.begin()
            output.data(stream, PREFIX.pack(0, len(message)) + message)
        self.begin()
        self._finished()
        output.finish(stream, _OK, text, context.trailing)

    def _finished(self) -> None:
        super()._finished()
        if self._requests is not None:
            self._http2.windows.hold(self._stream, -self._stream.held)  # what the handler has not taken
            self._requests.close()

    def refuse(self, refusal: Refusal) -> None:
        """End the call with a status, whatever it is doing."""
        if not self.done:
            self._finished()
            self._stop()
            self._http2.answers.refuse(self._stream, refusal, begun=self._begun)

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
