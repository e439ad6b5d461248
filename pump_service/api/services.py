"""Puts the services on a server: on the door as they are, on stock gRPC with streams split into single messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from pump_service.api.batch_api import PumpBatchApi
from pump_service.api.bounds import bounded
from pump_service.api.frame import split
from pump_service.api.grpc_api import PumpApi
from pump_service.door.server import Server
from pumphouse.proto.pump_pb2_grpc import add_PumpServicer_to_server
from pumphouse.proto.pumphouse_pb2_grpc import add_PumpBatchServicer_to_server

Stream = Callable[[Any, Any], AsyncIterator[Any]]
# They yield `Messages`.
_PULLS = ("PullBinlogs", "PullBatches")
_RAW = ("WriteBinlogs",)


def add_services(server: Any, pump: PumpApi, batch: PumpBatchApi, *, max_message_bytes: int) -> None:
    """Register both services. ``max_message_bytes``: of a request, on stock gRPC; the door has it in its limits."""
    target = server if isinstance(server, Server) else _Splitting(server, max_message_bytes)
    add_PumpServicer_to_server(pump, target)
    add_PumpBatchServicer_to_server(batch, _Raw(target))


class _Raw:
    """Hands on to a server; what takes and gives serialized messages gets them."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """The same handlers come as registered ones."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        """Register."""
        raw = {"request_deserializer": _as_it_is, "response_serializer": _as_it_is}
        own = {name: each._replace(**raw) if name in _RAW else each for name, each in handlers.items()}
        self._server.add_registered_method_handlers(service, own)


class _Splitting:
    """What generated code needs of a server; hands on to a real one."""

    def __init__(self, server: Any, max_message_bytes: int) -> None:
        self._server = server
        self._most = max_message_bytes

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """The same handlers come as registered ones."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        """Register, pulls split, requests bounded."""
        own = {name: _split(each) if name in _PULLS else each for name, each in handlers.items()}
        own = {name: bounded(each, self._most) for name, each in own.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, own),))
        self._server.add_registered_method_handlers(service, own)


def _split(handler: Any) -> Any:
    behavior: Stream = handler.unary_stream

    # gRPC asks each message of a generator through the event loop; written this way it is only the write that waits.
    async def write(request: Any, context: Any) -> None:
        async for messages in behavior(request, context):
            for message in split(messages):
                await context.write(message)

    return handler._replace(unary_stream=write, response_serializer=_as_it_is)


def _as_it_is(message: bytes) -> bytes:
    return message
