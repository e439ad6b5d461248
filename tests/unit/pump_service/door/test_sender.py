"""What a connection holds for a peer that does not read."""

from __future__ import annotations

import asyncio
import gc
import weakref

import numpy as np
import pytest

from pump_service.door.limits import Limits
from pump_service.door.sender import Sender
from pump_service.door.stream import Stream
from tests.support.doorkit import Wire
from tests.unit.pump_service.door.test_protocol import run


@pytest.mark.row("P7")
@run
async def test_the_rest_of_a_large_message_does_not_hold_all_of_it() -> None:
    """Who is woken gives back the memory that was granted for the whole."""
    wire = Wire()
    sender = Sender(wire, Limits(stream_ahead=1000), lambda _: None)
    sender.window = 1 << 20
    stream = Stream(1, 0, 99_600, None)
    data = np.arange(100_000, dtype=np.uint32).astype(np.uint8)
    expected = data[99_600:].tobytes()
    held = weakref.ref(data)
    sender.data(stream, data.data[:50_000])
    sender.data(stream, data.data[50_000:])
    stream.waiter = asyncio.get_running_loop().create_future()
    waiter = stream.waiter
    for _ in range(5):
        await asyncio.sleep(0)
    assert waiter.done()
    assert b"".join(stream.queue) == expected
    assert stream.queued == 400
    del data
    gc.collect()
    assert held() is None
    sender.credit(stream, 1000)
    for _ in range(5):
        await asyncio.sleep(0)
    assert stream.queued == 0
    assert not stream.queue
    assert bytes(wire.written).endswith(expected)
