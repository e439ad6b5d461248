"""The streams of one connection: which are open, which were, and what each of them is in the middle of."""

from __future__ import annotations

from collections import deque

from pump_service.door.group import Trailing
from pump_service.door.http2.batch import Batch
from pump_service.door.http2.frames import PROTOCOL_ERROR, STREAM_CLOSED, ConnectionFault, StreamFault
from pump_service.door.opencall import OpenCall

_REMEMBERED = 512  # streams that we have reset: frames that were under way are let pass


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
        "waiting",
        "wants_room",
    )  # fmt: skip

    def __init__(self, stream_id: int, recv_window: int, send_window: int, content_length: int | None) -> None:
        self.stream_id = stream_id
        self.call: OpenCall | None = None  # whose it is; the protocol does not ask it anything
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
        self.waiting = False  # in the output's queue
        self.wants_room = False  # a handler waits for `queued` to fall

    def forget(self) -> None:
        """Drop what it still had to send."""
        self.queue.clear()
        self.queued = 0
        self.ending = None


class Tally:
    """How many streams are open on all connections of a server."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.open = 0


class Streams:
    """Of a connection. A call that came whole has no stream but its number here (`lean`)."""

    def __init__(self, most: int, tally: Tally | None = None) -> None:
        self._most = most
        self._tally = tally or Tally(most)
        self.open: dict[int, Stream] = {}
        self.lean: dict[int, Batch] = {}
        self.early_credit: dict[int, int] = {}  # WINDOW_UPDATEs of lean calls: rare
        self.last_id = 0
        self.going = False  # GOAWAY is out: no new ones
        self._reset: dict[int, None] = {}  # by us, oldest first

    @property
    def room(self) -> int:
        """How many more may be opened."""
        return self._most - len(self.open) - len(self.lean)

    @property
    def idle(self) -> bool:
        """Whether no call is open."""
        return not self.lean and not self.open

    @property
    def takes_more(self) -> bool:
        """Whether one more may have a stream of its own."""
        return self.room > 0 and self._tally.open < self._tally.most

    def begin(self, stream: Stream) -> None:
        """One is open."""
        self.open[stream.stream_id] = stream
        self._tally.open += 1

    def end(self, stream_id: int) -> Stream | None:
        """It is no more."""
        stream = self.open.pop(stream_id, None)
        if stream is not None:
            self._tally.open -= 1
        return stream

    def drop(self, stream_id: int) -> Stream | None:
        """Forget one that ends before its answer."""
        batch = self.lean.pop(stream_id, None)
        if batch is not None:
            batch.lost = True
            self.early_credit.pop(stream_id, None)
        stream = self.end(stream_id)
        if stream is not None:
            stream.forget()
        return stream

    def remember(self, stream_id: int) -> None:
        """We have reset it, and frames of it may still be under way."""
        self._reset[stream_id] = None
        if len(self._reset) > _REMEMBERED:
            del self._reset[next(iter(self._reset))]

    def was_reset(self, stream_id: int) -> bool:
        """Whether frames of it may have been under way when we reset it."""
        return stream_id in self._reset

    def check_begun(self, stream_id: int, what: str) -> None:
        """Refuse a frame for a stream that has never been opened."""
        if not stream_id & 1 or (stream_id > self.last_id and not self.going):
            raise ConnectionFault(PROTOCOL_ERROR, f"{what} on stream {stream_id}, which is idle")

    def check_closed(self, stream_id: int, what: str) -> None:
        """Refuse a frame for a stream that takes none, unless it may have been under way."""
        self.check_begun(stream_id, what)
        if stream_id <= self.last_id and not self.was_reset(stream_id):
            raise StreamFault(stream_id, STREAM_CLOSED, f"{what} on a closed stream")

    def clear(self) -> None:
        """The connection is gone."""
        for stream in self.open.values():
            stream.forget()
        self._tally.open -= len(self.open)
        self.open.clear()
        self.lean.clear()
