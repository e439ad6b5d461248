"""How a call is ended from outside its handler, on both transports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from pump_service.door.group import Endable, Refusal
from pumphouse.errors import BinlogError
from pumphouse.rpc.status import Abort


def ender(
    context: grpc.aio.ServicerContext[Any, Any], refusal: Callable[[BinlogError], Abort]
) -> Callable[[BinlogError], None]:
    """Ends the current call with an error, wherever it waits. Stock grpcio cannot say it: there it is CANCELLED."""
    task = asyncio.current_task()

    def end(error: BinlogError) -> None:
        if isinstance(context, Endable):
            context.end(Refusal(*refusal(error)))
        elif task is not None:
            task.cancel()

    return end
