"""What goes out on one connection, in the order in which it was made: DATA as far as both of the peer's windows allow.

Memory is bounded for a peer that does not read: DATA of streams is moved here only when somebody has room for it
(`fill`), and what they queue has its bound in `Limits.stream_ahead`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pump_service.door.group import Trailing
from pump_service.door.http2 import frames
from pump_service.door.http2.replies import ReplyBlocks
from pump_service.door.http2.streams import Stream, Streams
from pump_service.door.limits import Limits

_QUANTUM = 128 << 10  # bytes of one stream before the next has its turn


class Output:
    """Bytes to be written, streams that have more, and what the peer allows."""

    def __init__(self, limits: Limits, streams: Streams, wanted: Callable[[], None]) -> None:
        """``wanted``: called whenever there is something to `take` or to `fill`."""
        self._limits = limits
        self._streams = streams
        self._wanted = wanted
        self._out: list[bytes | memoryview] = []
        self._ready: deque[Stream] = deque()
        self.answered = False  # a message of a response went out since somebody last looked (`control` does)
        self.window = frames.DEFAULT_WINDOW
        self.initial_window = frames.DEFAULT_WINDOW
        self.max_frame = frames.DEFAULT_FRAME
        self.replies = ReplyBlocks()

    # ---- what is to be sent ------------------------------------------------------------------------------------

    def add(self, data: bytes) -> None:
        """Whole frames."""
        self._out.append(data)
        self._wanted()

    def headers(self, stream_id: int, block: bytes, *, end: bool = False) -> None:
        """A header block."""
        self.add(frames.header_frames(stream_id, block, frames.END_STREAM if end else 0, self.max_frame))

    def data(self, stream: Stream, data: bytes | memoryview) -> None:
        """DATA of a stream."""
        stream.queue.append(memoryview(data))
        stream.queued += len(data)
        self._make_ready(stream)

    def finish(self, stream: Stream, code: int, text: str = "", metadata: Trailing = ()) -> None:
        """End a stream's response with trailers, after its DATA; without them for a code below 0."""
        stream.ending = code, text, metadata
        self._make_ready(stream)

    def ended(self, stream: Stream) -> None:
        """The last frame of a response is here."""
        self._streams.end(stream.stream_id)
        if not stream.remote_closed:
            # The whole answer is there, the rest of the request is not wanted (section 8.1).
            self.add(frames.rst_stream(stream.stream_id, frames.NO_ERROR))
            self._streams.remember(stream.stream_id)

    # ---- what the peer allows ----------------------------------------------------------------------------------

    def credit(self, stream: Stream, increment: int) -> None:
        """The peer takes more of a stream."""
        stream.send_window += increment
        if stream.send_window > frames.MAX_WINDOW:
            raise frames.StreamFault(stream.stream_id, frames.FLOW_CONTROL_ERROR, "a window above 2^31-1")
        if stream.queue:
            self._make_ready(stream)

    def credit_connection(self, increment: int) -> None:
        """The peer takes more of the connection."""
        self.window += increment
        if self.window > frames.MAX_WINDOW:
            raise frames.ConnectionFault(frames.FLOW_CONTROL_ERROR, "a window above 2^31-1")
        if self._ready:
            self._wanted()

    # ---- writing -----------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether streams have something that the peer's windows may allow."""
        return bool(self._ready)

    @property
    def goes_on(self) -> bool:
        """Whether to `fill` again would move something: a stream has its next turn after everybody else's."""
        return bool(self._ready) and (self.window > 0 or any(not stream.queue for stream in self._ready))

    def take(self) -> bytes | memoryview:
        """What is to be written, once."""
        if not self._out:
            return b""
        out, self._out = self._out, []
        return out[0] if len(out) == 1 else b"".join(out)

    def fill(self, room: int) -> list[Stream]:
        """Take what streams have, up to about ``room`` bytes; those whose handlers may go on."""
        drained = []
        for _ in range(len(self._ready)):
            if room <= 0:
                break
            stream = self._ready.popleft()
            stream.waiting = False
            room -= self._move(stream, min(_QUANTUM, room))
            if stream.queue:
                if stream.send_window > 0:
                    stream.waiting = True
                    self._ready.append(stream)
            elif stream.ending is not None:
                self._end(stream, *stream.ending)
            if stream.wants_room and stream.queued <= self._limits.stream_ahead // 2:
                # Who goes on takes all of it for sent: what is left must not hold the whole of a large message.
                stream.queue = deque([memoryview(b"".join(stream.queue))] if stream.queue else ())
                stream.wants_room = False
                drained.append(stream)
        return drained

    def _make_ready(self, stream: Stream) -> None:
        if not stream.waiting and (stream.send_window > 0 or not stream.queue):
            stream.waiting = True
            self._ready.append(stream)
        self._wanted()

    def _end(self, stream: Stream, code: int, text: str, metadata: Trailing) -> None:
        # Encoded here and not before: header blocks must go out in the order in which they are made.
        stream.ending = None
        if code < 0:
            self._out.append(frames.frame(frames.DATA, frames.END_STREAM, stream.stream_id))
        else:
            block = self.replies.trailers(code, text, metadata)
            self._out.append(frames.header_frames(stream.stream_id, block, frames.END_STREAM, self.max_frame))
        self.ended(stream)

    def _move(self, stream: Stream, most: int) -> int:
        """Move DATA frames of a stream to the output; bytes moved."""
        out, queue = self._out, stream.queue
        allowed = min(most, self.window, stream.send_window)
        left = allowed
        while queue and left > 0:
            piece = queue[0]
            size = min(left, self.max_frame, len(piece))
            out.append(frames.HEAD.pack(size << 8, 0, stream.stream_id))
            if size == len(piece):
                out.append(piece)
                queue.popleft()
            else:
                out.append(piece[:size])
                queue[0] = piece[size:]
            left -= size
        moved = max(allowed - left, 0)
        if moved:
            self.answered = True
        self.window -= moved
        stream.send_window -= moved
        stream.queued -= moved
        return moved
