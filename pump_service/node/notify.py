"""A Pump that is new, or was killed as it became so, is known to every online Drainer before it takes a write."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc

from pumphouse.durable import fsync_dir, write_atomic
from pumphouse.errors import PumpUnavailable
from pumphouse.model.node import NodeStatus
from pumphouse.proto.cistern_pb2 import NotifyReq
from pumphouse.proto.cistern_pb2_grpc import CisternStub
from pumphouse.rpc.channel import open_aio_channel
from pumphouse.settings import TlsSettings

MARK = Path("pumphouse") / "unnotified"
_TRIES = 3
_FIRST_WAIT_S = 1.0
OVERALL_S = 10.0
_HINT = (
    "start it; one that is gone must be set offline before a new Pump can start:"
    " `pumphouse update-drainer NODE_ID --state offline`"
)


class Unnotified:
    """A mark in the data directory: this Pump may be registered, and not every online Drainer has heard of it.

    The registry alone does not say so: it shows `online` before anybody was told, and a start may be killed in between.
    """

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / MARK

    @property
    def is_set(self) -> bool:
        """Whether it is there."""
        return self._path.exists()

    def set(self) -> None:
        """Durable on return; blocks."""
        write_atomic(self._path, b"")

    def clear(self) -> None:
        """Durable on return; blocks."""
        if self._path.exists():
            self._path.unlink()
            fsync_dir(self._path.parent)


async def notify(drainers: list[NodeStatus], tls: TlsSettings) -> None:
    """Call ``Cistern.Notify`` on each Drainer; PumpUnavailable names the one that did not answer."""
    drainer: NodeStatus | None = None
    try:
        async with asyncio.timeout(OVERALL_S):
            for drainer in drainers:
                await _notify_one(drainer, tls)
    except TimeoutError:
        who = "" if drainer is None else f"{drainer.node_id} at {drainer.host}: "
        raise PumpUnavailable(
            f"fail to notify all living drainer: {who}no answer within {OVERALL_S:g} s",
            hint=_HINT,
            node_id="" if drainer is None else drainer.node_id,
        ) from None


async def _notify_one(drainer: NodeStatus, tls: TlsSettings) -> None:
    wait_s = _FIRST_WAIT_S
    async with open_aio_channel(drainer.host, tls) as channel:
        for left in reversed(range(_TRIES)):
            try:
                await CisternStub(channel).Notify(NotifyReq())
            except grpc.RpcError as error:
                if not left:
                    code = error.code() if isinstance(error, grpc.aio.AioRpcError) else error
                    raise PumpUnavailable(
                        f"fail to notify all living drainer: {drainer.node_id} at {drainer.host}: {code}",
                        hint=_HINT,
                        node_id=drainer.node_id,
                    ) from error
                await asyncio.sleep(wait_s)
                wait_s *= 2
            else:
                return
