"""What goes out on one connection: answers of one turn in one write, DATA as far as both windows allow.

Memory is bounded for a peer that does not read: above `Limits.write_buffer` bytes in the transport nothing is taken
from streams any more and the connection reads nothing, so that no new answers come up either.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from pump_service.door import frames
from pump_service.door.group import Refusal, Trailing
from pump_service.door.limits import Limits
from pump_service.door.replies import ReplyBlocks
from pump_service.door.stream import Stream

_QUANTUM = 128 << 10  # bytes of one stream before the next has its turn
_FEW = 8  # answers for which columns are not worth their setup


class Sender:
    """Owned by a connection. Everything that is added goes out with the next `flush`."""

    def __init__(self, transport: asyncio.Transport, limits: Limits, closed: Callable[[Stream], None]) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._closed = closed  # called with a stream whose last frame is out
        self._out: list[bytes | memoryview] = []
        self._ready: deque[Stream] = deque()
        self._scheduled = False
        self.in_turn = False  # the connection flushes at the end of its turn
        self.blocked = False  # the transport's buffer is full
        self.answered = False  # a message of a response went out since somebody last looked (`Incoming` does)
        self.window = frames.DEFAULT_WINDOW
        self.initial_window = frames.DEFAULT_WINDOW
        self.max_frame = frames.DEFAULT_FRAME
        self.replies = ReplyBlocks()
        self._template: tuple[bytes, np.ndarray[tuple[int], np.dtype[np.uint8]], struct.Struct, list[bytes]] | None = (
            None
        )
        self._rows = np.empty((0, 0), np.uint8)  # of many equal answers, but for their stream ids
        self._id_columns: list[int] = []
        self._last_block = b""

    # ---- frames ------------------------------------------------------------------------------------------------

    def table_size(self, size: int) -> None:
        """The peer's SETTINGS_HEADER_TABLE_SIZE."""
        self.replies.table_size(size)
        self._template = None

    def add(self, data: bytes) -> None:
        """Queue bytes of whole frames."""
        self._out.append(data)
        if not self.in_turn and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.flush)

    def headers(self, stream_id: int, block: bytes, *, end: bool = False) -> None:
        """A header block."""
        self.add(frames.header_frames(stream_id, block, frames.END_STREAM if end else 0, self.max_frame))

    def refuse(self, stream_id: int, refusal: Refusal) -> None:
        """End a call that has sent nothing yet."""
        block = self.replies.only_trailers(refusal.code.value[0], refusal.details, refusal.trailing)
        self.headers(stream_id, block, end=True)

    # ---- unary answers -----------------------------------------------------------------------------------------

    def fits(self, size: int, count: int) -> bool:
        """Whether ``count`` messages of ``size`` bytes can go at once, on streams that have sent nothing yet."""
        size += 5
        return size * count <= self.window and size <= self.initial_window and size <= self.max_frame

    def unary(self, stream_ids: Sequence[int], message: bytes) -> None:
        """The same successful answer on many streams, for which `fits` was asked."""
        if not self.replies.settled:
            self.unary_one(stream_ids[0], message)
            stream_ids = stream_ids[1:]
            if not stream_ids:
                return
        count = len(stream_ids)
        template = self._template
        if template is None or template[0] is not message:
            template = self._template = self._make_template(message)
        _, row, packer, parts = template
        self.answered = True
        self.window -= (len(message) + 5) * count
        if count <= _FEW:
            first, second, third = parts
            pack, last = packer.pack, self._last_block
            self.add(b"".join([pack(first, n, second, n, third, n, last) for n in stream_ids]))
            return
        if len(self._rows) < count:
            self._rows = np.tile(row, (1 << (count - 1).bit_length(), 1))
        rows = self._rows[:count]
        ids = np.array(stream_ids, ">u4").view(np.uint8).reshape(count, 4)
        for at in self._id_columns:
            rows[:, at : at + 4] = ids
        self.add(rows.tobytes())

    def unary_one(self, stream_id: int, message: bytes) -> None:
        """A successful answer on one stream, for which `fits` was asked."""
        headers, trailers = self.replies.unary()
        data = b"\0" + len(message).to_bytes(4, "big") + message
        self.answered = True
        self.window -= len(data)
        self.add(
            frames.frame(frames.HEADERS, frames.END_HEADERS, stream_id, headers)
            + frames.frame(frames.DATA, 0, stream_id, data)
            + frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream_id, trailers)
        )

    def _make_template(
        self, message: bytes
    ) -> tuple[bytes, np.ndarray[tuple[int], np.dtype[np.uint8]], struct.Struct, list[bytes]]:
        headers, trailers = self.replies.unary()
        data = b"\0" + len(message).to_bytes(4, "big") + message
        ends = frames.END_HEADERS | frames.END_STREAM
        parts = [
            frames.frame(frames.HEADERS, frames.END_HEADERS, 0)[3:5],
            frames.frame(frames.DATA, 0, 0)[3:5],
            frames.frame(frames.HEADERS, ends, 0)[3:5],
        ]
        parts = [
            len(headers).to_bytes(3, "big") + parts[0],
            headers + len(data).to_bytes(3, "big") + parts[1],
            data + len(trailers).to_bytes(3, "big") + parts[2],
        ]
        self._last_block = trailers
        self._rows = np.empty((0, 0), np.uint8)
        zero = b"\0\0\0\0"
        row = np.frombuffer(zero.join((*parts, trailers)), np.uint8)
        self._id_columns = [
            len(parts[0]),
            len(parts[0]) + 4 + len(parts[1]),
            len(parts[0]) + 8 + len(parts[1]) + len(parts[2]),
        ]
        packer = struct.Struct(">" + "I".join(f"{len(part)}s" for part in (*parts, trailers)))
        return message, row, packer, parts

    # ---- streams -----------------------------------------------------------------------------------------------

    def data(self, stream: Stream, data: bytes | memoryview) -> None:
        """Queue DATA of a stream."""
        stream.queue.append(memoryview(data))
        stream.queued += len(data)
        self._make_ready(stream)

    def finish(self, stream: Stream, code: int, text: str, metadata: Trailing) -> None:
        """End a stream's response with trailers, after its DATA."""
        stream.ending = code, text, metadata
        self._make_ready(stream)

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
        self._schedule()

    def unblocked(self) -> None:
        """The transport takes more."""
        self.blocked = False
        self._schedule()

    def forget(self, stream: Stream) -> None:
        """Drop what a stream still had to send."""
        stream.queue.clear()
        stream.queued = 0
        stream.ending = None

    def _make_ready(self, stream: Stream) -> None:
        if not stream.waiting and (stream.send_window > 0 or not stream.queue):
            stream.waiting = True
            self._ready.append(stream)
        self._schedule()

    def _schedule(self) -> None:
        if self._ready and not self.in_turn and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what there is, once."""
        self._scheduled = False
        if self._ready and not self.blocked:
            self._pump()
        out = self._out
        if out:
            self._out = []
            if not self._transport.is_closing():
                self._transport.write(out[0] if len(out) == 1 else b"".join(out))
        # A stream whose quantum is used up has its next turn after everybody else's.
        if self._ready and not self.blocked and (self.window > 0 or any(not s.queue for s in self._ready)):
            self._schedule()

    def _pump(self) -> None:
        room = self._limits.write_buffer - self._transport.get_write_buffer_size()
        for _ in range(len(self._ready)):
            if room <= 0:
                return
            stream = self._ready.popleft()
            stream.waiting = False
            room -= self._take(stream, min(_QUANTUM, room))
            if stream.queue:
                if stream.send_window > 0:
                    stream.waiting = True
                    self._ready.append(stream)
            elif stream.ending is not None:
                self._end(stream, *stream.ending)
            if stream.waiter is not None and stream.queued <= self._limits.stream_ahead // 2:
                # Who is woken takes all of it for sent: what is left must not hold the whole of a large message.
                stream.queue = deque([memoryview(b"".join(stream.queue))] if stream.queue else ())
                stream.wake()

    def _end(self, stream: Stream, code: int, text: str, metadata: Trailing) -> None:
        # Encoded here and not before: header blocks must go out in the order in which they are made.
        stream.ending = None
        if code < 0:
            self._out.append(frames.frame(frames.DATA, frames.END_STREAM, stream.stream_id))
        else:
            block = self.replies.trailers(code, text, metadata)
            self._out.append(frames.header_frames(stream.stream_id, block, frames.END_STREAM, self.max_frame))
        self._closed(stream)

    def _take(self, stream: Stream, most: int) -> int:
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
