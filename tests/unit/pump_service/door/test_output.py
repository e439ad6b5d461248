"""What a connection holds for a peer that does not read."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from pump_service.door.http2.output import Output
from pump_service.door.http2.streams import Stream, Streams
from pump_service.door.limits import Limits


@pytest.mark.row("P7")
def test_the_rest_of_a_large_message_does_not_hold_all_of_it() -> None:
    """Who may go on gives back the memory that was granted for the whole."""
    output = Output(Limits(stream_ahead=1000), Streams(1), lambda: None)
    output.window = 1 << 20
    stream = Stream(1, 0, 99_600, None)
    data = np.arange(100_000, dtype=np.uint32).astype(np.uint8)
    expected = data[99_600:].tobytes()
    held = weakref.ref(data)
    output.data(stream, data.data[:50_000])
    output.data(stream, data.data[50_000:])
    stream.wants_room = True
    assert output.fill(1 << 20) == [stream]
    output.take()
    assert stream.queued == 400
    del data
    gc.collect()
    assert held() is None
    output.credit(stream, 1000)
    assert not output.fill(1 << 20)
    assert stream.queued == 0
    assert bytes(output.take()).endswith(expected)
