"""Frames of a peer, one by one, by the rules of RFC 9113: what `protocol` does not take as the common case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import grpc

from pump_service.door.group import Refusal
from pump_service.door.http2 import frames
from pump_service.door.http2.answers import Answers
from pump_service.door.http2.blocks import Block
from pump_service.door.http2.control import Control
from pump_service.door.http2.events import Cancelled, Ended, Event, Opened, Received
from pump_service.door.http2.floods import Bucket
from pump_service.door.http2.frames import ConnectionFault, StreamFault
from pump_service.door.http2.headers import HeaderReader
from pump_service.door.http2.output import Output
from pump_service.door.http2.streams import Stream, Streams
from pump_service.door.http2.table import MALFORMED
from pump_service.door.http2.windows import Windows
from pump_service.door.limits import Limits
from pump_service.door.routes import Head, malformed

_MALFORMED_TIMEOUT = Refusal(grpc.StatusCode.INTERNAL, "malformed grpc-timeout")


class Incoming:
    """Frames of streams; `control` has the others."""

    def __init__(
        self,
        limits: Limits,
        streams: Streams,
        windows: Windows,
        output: Output,
        answers: Answers,
        headers: HeaderReader[Head],
        bucket: Bucket,
        refusal: Refusal | None,
        emit: Callable[[Event], None],
    ) -> None:
        self._limits = limits
        self._streams = streams
        self._windows = windows
        self._output = output
        self._answers = answers
        self._headers = headers
        self._bucket = bucket
        self._refusal = refusal  # the peer may not call anything
        self._emit = emit
        self._block: Block | None = None  # a header block that goes on in CONTINUATIONs
        self._control = control = Control(streams, windows, output, bucket)
        self._kinds = (
            self._data, self._header, control.priority, self._rst_stream, control.settings, control.push_promise,
            control.ping, control.goaway, control.window_update, self._continuation,
        )  # fmt: skip

    @property
    def plain(self) -> bool:
        """Whether the next HEADERS may be taken without asking here."""
        return self._control.settled and self._block is None and not self._streams.going and self._refusal is None

    def frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Handle a frame."""
        if not self._control.settled and (kind != frames.SETTINGS or flags & frames.ACK):
            raise ConnectionFault(frames.PROTOCOL_ERROR, "the first frame must be SETTINGS")
        if self._block is not None and (kind != frames.CONTINUATION or stream_id != self._block.stream_id):
            raise ConnectionFault(frames.PROTOCOL_ERROR, "a header block was interrupted")
        if kind < len(self._kinds):
            self._kinds[kind](flags, stream_id, payload)
        else:
            self._bucket.take("unknown frames")

    def reset(self, fault: StreamFault) -> None:
        """End a stream by RST_STREAM."""
        self._drop(fault.stream_id)
        self._output.add(frames.rst_stream(fault.stream_id, fault.code))
        self._streams.remember(fault.stream_id)

    # ---- requests ----------------------------------------------------------------------------------------------

    def request(self, stream_id: int, head: Head, timeout: float | None, *, end_stream: bool) -> None:
        """Open a stream."""
        streams = self._streams
        if streams.going:
            return  # above the last stream of our GOAWAY: the peer tries it elsewhere
        streams.last_id = stream_id
        if not streams.takes_more:
            self._bucket.take("streams above the limit")
            raise StreamFault(stream_id, frames.REFUSED_STREAM, "too many streams")
        if head.malformed or (end_stream and head.content_length):
            raise StreamFault(stream_id, frames.PROTOCOL_ERROR, head.malformed or "content-length")
        stream = Stream(stream_id, self._windows.of_new_stream, self._output.initial_window, head.content_length)
        stream.remote_closed = end_stream
        streams.begin(stream)
        refusal = self._refusal or head.refusal or (_MALFORMED_TIMEOUT if timeout == MALFORMED else None)
        if refusal is not None and not head.http_status:
            self._answers.refuse(stream, refusal, begun=False)
            return
        if self._refusal is not None:
            # As the HTTP API says it: what the peer sent matters less than that it may send nothing.
            head = replace(head, http_status=403, text=f"{self._refusal.details}\n")
        self._emit(Opened(stream, head, timeout))
        if end_stream:
            self._emit(Ended(stream))

    def _header(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._add_to_block(Block(flags, stream_id, payload), flags)

    def _continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        del stream_id  # `frame` has looked
        block, self._block = self._block, None
        if block is None:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        block.go_on(payload, self._bucket)
        self._add_to_block(block, flags)

    def _add_to_block(self, block: Block, flags: int) -> None:
        if block.size > self._limits.header_block:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "a header block is too long")
        if not flags & frames.END_HEADERS:
            self._block = block
        elif block.stream_id > self._streams.last_id:
            self._begin(block)
        else:
            self._trailers(block)

    def _begin(self, block: Block) -> None:
        data = block.joined()
        head, timeout = self._headers.read(data)
        if block.on_itself:
            self._streams.last_id = block.stream_id
            raise StreamFault(block.stream_id, frames.PROTOCOL_ERROR, "a stream that depends on itself")
        self.request(block.stream_id, head, timeout, end_stream=block.end_stream)

    def _trailers(self, block: Block) -> None:
        fields = self._headers.fields(block.joined())
        stream_id, streams = block.stream_id, self._streams
        stream = streams.open.get(stream_id)
        if stream is None and stream_id not in streams.lean:
            if not streams.was_reset(stream_id):
                raise ConnectionFault(frames.STREAM_CLOSED, "HEADERS on a closed stream")
        elif stream is None or stream.remote_closed:
            raise StreamFault(stream_id, frames.STREAM_CLOSED, "HEADERS on a half-closed stream")
        elif not block.end_stream or malformed(fields, trailers=True) is not None or stream.content_left:
            raise StreamFault(stream_id, frames.PROTOCOL_ERROR, "trailers")
        else:
            self._half_close(stream)

    def _data(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id == 0:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "DATA on stream 0")
        self._windows.received(len(payload))
        self._windows.check()
        data = frames.without_padding(flags, payload)
        end = bool(flags & frames.END_STREAM)
        if not data and not end:
            self._bucket.take("empty DATA frames")
        stream = self._streams.open.get(stream_id)
        if stream is None or stream.remote_closed:
            self._streams.check_closed(stream_id, "DATA")
            return
        self._windows.received_on(stream, len(payload))
        if stream.content_left is not None:
            stream.content_left -= len(data)
            if stream.content_left < 0 or (end and stream.content_left):
                raise StreamFault(stream_id, frames.PROTOCOL_ERROR, "content-length")
        self._emit(Received(stream, data))
        if end:
            self._half_close(stream)

    def _half_close(self, stream: Stream) -> None:
        stream.remote_closed = True
        self._emit(Ended(stream))

    def _rst_stream(self, flags: int, stream_id: int, payload: bytes) -> None:
        del flags
        if stream_id == 0 or len(payload) != 4:
            code = frames.FRAME_SIZE_ERROR if stream_id else frames.PROTOCOL_ERROR
            raise ConnectionFault(code, "RST_STREAM")
        self._streams.check_begun(stream_id, "RST_STREAM")
        self._bucket.take("RST_STREAM frames")
        self._drop(stream_id)

    def _drop(self, stream_id: int) -> None:
        stream = self._streams.drop(stream_id)
        if stream is not None:
            self._emit(Cancelled(stream))
