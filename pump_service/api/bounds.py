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

from pumphouse.rpc.channel import MAX_MESSAGE_BYTES
from pumphouse.rpc.status import too_large_text

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
    take = _all_of if handler.request_streaming else _fitting
    # A streaming one that writes by itself is awaited like a unary one.
    wrap = _awaited if inspect.iscoroutinefunction(behavior) else _iterated
    return handler._replace(request_deserializer=parse, **{kind: wrap(behavior, take, most)})


class _Refused(Exception):  # passes through a handler
    """A request is too large. Told by the task that answers: one that only reads would do it amid an answer."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


def _fitting(request: Any) -> Any:
    if isinstance(request, _TooLarge):
        raise _Refused(request.size)
    return request


async def _all_of(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        yield _fitting(request)


async def _refuse(context: Any, refused: _Refused, most: int) -> None:
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, too_large_text(refused.size, most))


def _awaited(behavior: Behavior, take: Callable[[Any], Any], most: int) -> Callable[[Any, Any], Awaitable[Any]]:
    async def checked(request: Any, context: Any) -> Any:
        try:
            return await behavior(take(request), context)
        except _Refused as refused:
            await _refuse(context, refused, most)

    return checked


def _iterated(behavior: Behavior, take: Callable[[Any], Any], most: int) -> Callable[[Any, Any], AsyncIterator[Any]]:
    async def checked(request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            async for message in behavior(take(request), context):
                yield message
        except _Refused as refused:
            await _refuse(context, refused, most)

    return checked
