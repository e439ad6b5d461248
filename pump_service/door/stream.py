"""One stream: its two windows, what waits to be sent, and the call behind it."""

from __future__ import annotations

import asyncio
from collections import deque

from pump_service.door.group import Trailing
from pump_service.door.opencall import OpenCall


class Stream:
    """State of a stream that is open or half closed; who is neither has no object."""

    __slots__ = (
        "call",
        "content_left",
        "ending",
        "held",
        "queue",
        "queued",
        "recv_window",
        "remote_closed",
        "send_window",
        "stream_id",
        "uncredited",
        "waiter",
        "waiting",
    )  # fmt: skip

    def __init__(self, stream_id: int, recv_window: int, send_window: int, content_length: int | None) -> None:
        self.stream_id = stream_id
        self.call: OpenCall | None = None
        # ---- from the peer
        self.remote_closed = False
        self.recv_window = recv_window  # what it may still send
        self.uncredited = 0  # received since the last WINDOW_UPDATE
        self.held = 0  # bytes of complete messages that the handler has not taken
        self.content_left = content_length
        # ---- to the peer
        self.send_window = send_window  # below zero after a smaller SETTINGS_INITIAL_WINDOW_SIZE
        self.queue: deque[memoryview] = deque()
        self.queued = 0
        # gRPC code, text and metadata of the trailers; set when no more DATA comes. A code below 0: no trailers.
        self.ending: tuple[int, str, Trailing] | None = None
        self.waiting = False  # in the sender's queue
        self.waiter: asyncio.Future[None] | None = None  # a handler that waits for `queued` to fall

    def wake(self) -> None:
        """Let the handler go on."""
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
