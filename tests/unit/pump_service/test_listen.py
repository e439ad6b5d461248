"""What stock gRPC lets in."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from pump_service.api.rights import Rights
from pump_service.process import listen
from pumphouse.settings import TlsSettings


@pytest.mark.row("P15")
def test_calls_above_the_limit_of_a_connection_wait_with_their_caller_and_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listen, "_STREAMS", 20)
    inside = most = 0

    async def run() -> None:
        goes_on = asyncio.Event()

        async def write(request: bytes, context: object) -> bytes:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            await goes_on.wait()  # the disk hangs
            inside -= 1
            return request

        server, port = listen.bind_grpc("127.0.0.1:0", TlsSettings(), Rights(TlsSettings()))
        handler = grpc.unary_unary_rpc_method_handler(write)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", {"Write": handler}),))
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/s/Write")
            calls = [asyncio.ensure_future(_of(call(b"%d" % n))) for n in range(60)]
            while most < 20:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            assert most == 20
            goes_on.set()
            assert await asyncio.gather(*calls) == [b"%d" % n for n in range(60)]
        await server.stop(0)

    async def _of(call: grpc.aio.UnaryUnaryCall[bytes, bytes]) -> bytes:
        return await call

    asyncio.run(asyncio.wait_for(run(), 30))
