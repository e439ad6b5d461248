"""The limit on requests with stock gRPC, in grpc-go's words (row W1).

gRPC's core would refuse a request over its own limit with `Received message larger than max`. TiDB looks for grpc-go's
text, case and all, and takes any other failure that it cannot get past for a critical one. So core's limit stays at the
largest there is, and what is over ours is refused here, as soon as its bytes are there and before they are parsed.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc

from include.rpc.channel import MAX_MESSAGE_BYTES
from include.rpc.status import too_large_text

Behavior = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class _TooLarge:
    """In place of a request."""

    size: int


def bounded(handler: Any, most: int) -> Any:
    """A method's handler (`grpc.RpcMethodHandler` of asyncio) that refuses request messages above ``most`` bytes."""
    if most >= MAX_MESSAGE_BYTES:
        return handler  # core's own limit
    given = handler.request_deserializer

    def parse(data: bytes) -> Any:
        if len(data) > most:
            return _TooLarge(len(data))
        return data if given is None else given(data)

    kind = f"{'stream' if handler.request_streaming else 'unary'}_{'stream' if handler.response_streaming else 'unary'}"
    behavior = getattr(handler, kind)
    of_request = _Requests if handler.request_streaming else None
    # A streaming one that writes by itself is awaited like a unary one.
    wrap = _awaited if inspect.iscoroutinefunction(behavior) else _iterated
    return handler._replace(request_deserializer=parse, **{kind: wrap(behavior, of_request, most)})


async def _refuse(request: Any, context: Any, most: int) -> None:
    if isinstance(request, _TooLarge):
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, too_large_text(request.size, most))


def _awaited(behavior: Behavior, of_request: Any, most: int) -> Callable[[Any, Any], Awaitable[Any]]:
    async def checked(request: Any, context: Any) -> Any:
        if of_request is not None:
            request = of_request(request, context, most)
        else:
            await _refuse(request, context, most)
        return await behavior(request, context)

    return checked


def _iterated(behavior: Behavior, of_request: Any, most: int) -> Callable[[Any, Any], AsyncIterator[Any]]:
    async def checked(request: Any, context: Any) -> AsyncIterator[Any]:
        if of_request is not None:
            request = of_request(request, context, most)
        else:
            await _refuse(request, context, most)
        async for message in behavior(request, context):
            yield message

    return checked


class _Requests:
    """Requests of a stream; the first that is too large ends the call."""

    def __init__(self, requests: AsyncIterator[Any], context: Any, most: int) -> None:
        self._requests = aiter(requests)
        self._context = context
        self._most = most

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        request = await anext(self._requests)
        await _refuse(request, self._context, self._most)
        return request
