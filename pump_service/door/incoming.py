"""Frames of a peer, one by one, by the rules of RFC 9113: what `connection` does not take as the common case."""

from __future__ import annotations

from dataclasses import replace

import grpc

from pump_service.door import frames
from pump_service.door.carrier import Carrier
from pump_service.door.floods import Bucket
from pump_service.door.frames import ConnectionFault, StreamFault
from pump_service.door.group import Refusal
from pump_service.door.headers import MALFORMED, HeaderReader
from pump_service.door.routes import Head, malformed
from pump_service.door.stream import Stream

_REMEMBERED = 512  # streams that we have reset: frames that were under way are let pass
_MALFORMED_TIMEOUT = Refusal(grpc.StatusCode.INTERNAL, "malformed grpc-timeout")


class Incoming:
    """Reader's state of a connection."""

    def __init__(self, connection: Carrier, headers: HeaderReader[Head]) -> None:
        self._connection = connection
        self._limits = connection.limits
        self._headers = headers
        self.prefaced = False
        self._settled = False  # the peer's first SETTINGS are here
        # A header block that goes on in CONTINUATIONs: stream id, flags, parts, bytes.
        self._block: tuple[int, int, list[bytes]] | None = None
        self._block_size = 0
        self._reset: dict[int, None] = {}  # by us, oldest first
        self._bucket = Bucket(self._limits.idle_frames, self._limits.idle_frames_per_s, connection.heard)
        self._kinds = (
            self._data, self._header, self._priority, self._rst_stream, self._settings, self._push_promise, self._ping,
            self._goaway, self._window_update, self._continuation,
        )  # fmt: skip

    @property
    def lean(self) -> bool:
        """Whether the next HEADERS may be taken without asking here."""
        connection = self._connection
        return self._settled and self._block is None and not connection.going and connection.refusal_of_all is None

    def preface(self, data: bytes) -> None:
        """The first bytes."""
        if not data.startswith(frames.PREFACE):
            raise ConnectionFault(frames.PROTOCOL_ERROR, "no HTTP/2 preface")
        self.prefaced = True

    def remember(self, stream_id: int) -> None:
        """Frames of this stream may still be under way."""
        self._reset[stream_id] = None
        if len(self._reset) > _REMEMBERED:
            del self._reset[next(iter(self._reset))]

    def frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Handle a frame."""
        if not self._settled and (kind != frames.SETTINGS or flags & frames.ACK):
            raise ConnectionFault(frames.PROTOCOL_ERROR, "the first frame must be SETTINGS")
        if self._block is not None and (kind != frames.CONTINUATION or stream_id != self._block[0]):
            raise ConnectionFault(frames.PROTOCOL_ERROR, "a header block was interrupted")
        if kind < len(self._kinds):
            self._kinds[kind](flags, stream_id, payload)
        else:
            self._suspicious("unknown frames")

    def _suspicious(self, what: str) -> None:
        self._bucket.take(self._connection.heard, what)

    # ---- DATA --------------------------------------------------------------------------------------------------

    def _data(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id == 0:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "DATA on stream 0")
        connection = self._connection
        connection.received(len(payload))
        data = frames.without_padding(flags, payload)
        end = bool(flags & frames.END_STREAM)
        if not data and not end:
            self._suspicious("empty DATA frames")
        stream = connection.streams.get(stream_id)
        if stream is None or stream.remote_closed:
            self._not_open(stream_id, "DATA")
            return
        stream.recv_window -= len(payload)
        stream.uncredited += len(payload)
        if stream.recv_window < 0:
            raise StreamFault(stream_id, frames.FLOW_CONTROL_ERROR, "more DATA than the stream's window")
        if stream.content_left is not None:
            stream.content_left -= len(data)
            if stream.content_left < 0 or (end and stream.content_left):
                raise StreamFault(stream_id, frames.PROTOCOL_ERROR, "content-length")
        if stream.call is not None:
            stream.call.feed(data)
        if end:
            self._half_close(stream)
        else:
            connection.credit(stream)

    def _half_close(self, stream: Stream) -> None:
        stream.remote_closed = True
        if stream.call is not None:
            stream.call.half_close()

    def _not_open(self, stream_id: int, what: str) -> None:
        """A frame for a stream that takes none."""
        if stream_id > self._connection.last_stream_id or not stream_id & 1:
            if self._connection.going and stream_id & 1:
                return  # opened after our GOAWAY
            raise ConnectionFault(frames.PROTOCOL_ERROR, f"{what} on stream {stream_id}, which is idle")
        if stream_id not in self._reset:
            raise StreamFault(stream_id, frames.STREAM_CLOSED, f"{what} on a closed stream")

    # ---- HEADERS -----------------------------------------------------------------------------------------------

    def _header(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1:
            raise ConnectionFault(frames.PROTOCOL_ERROR, f"HEADERS on stream {stream_id}")
        block = frames.without_padding(flags, payload)
        if flags & frames.PRIORITIZED:
            if len(block) < 5:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "HEADERS without its priority fields")
            depends = int.from_bytes(block[:4], "big") & 0x7FFFFFFF
            block = block[5:]
            if depends == stream_id:
                flags |= 0x100  # the block must be read all the same
        if flags & frames.END_HEADERS:
            self._whole_block(flags, stream_id, block)
        else:
            self._block = stream_id, flags, [block]
            self._block_size = len(block)

    def _continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is None:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        _, first_flags, parts = self._block
        if not payload:
            self._suspicious("empty CONTINUATION frames")
        parts.append(payload)
        self._block_size += len(payload)
        if self._block_size > self._limits.header_block or len(parts) > 64:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "a header block is too long")
        if flags & frames.END_HEADERS:
            self._block = None
            self._whole_block(first_flags, stream_id, b"".join(parts))

    def _whole_block(self, flags: int, stream_id: int, block: bytes) -> None:
        connection = self._connection
        if len(block) > self._limits.header_block:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "a header block is too long")
        end = bool(flags & frames.END_STREAM)
        if stream_id > connection.last_stream_id:
            head, timeout = self._headers.blocks.get(block) or self._headers.read(block)
            if flags & 0x100:
                connection.last_stream_id = stream_id
                raise StreamFault(stream_id, frames.PROTOCOL_ERROR, "a stream that depends on itself")
            self.request(stream_id, head, timeout, end_stream=end)
            return
        fields = self._headers.fields(block)
        stream = connection.streams.get(stream_id)
        if stream is None:
            if stream_id in connection.lean:
                raise StreamFault(stream_id, frames.STREAM_CLOSED, "HEADERS on a half-closed stream")
            if stream_id not in self._reset:
                raise ConnectionFault(frames.STREAM_CLOSED, "HEADERS on a closed stream")
        elif stream.remote_closed:
            raise StreamFault(stream_id, frames.STREAM_CLOSED, "HEADERS on a half-closed stream")
        elif not end or malformed(fields, trailers=True) is not None or stream.content_left:
            raise StreamFault(stream_id, frames.PROTOCOL_ERROR, "trailers")
        else:
            self._half_close(stream)

    def request(self, stream_id: int, head: Head, timeout: float | None, *, end_stream: bool) -> None:
        """Open a stream."""
        connection = self._connection
        if connection.going:
            return  # above the last stream of our GOAWAY: the peer tries it elsewhere
        connection.last_stream_id = stream_id
        if len(connection.streams) + len(connection.lean) >= self._limits.streams:
            self._suspicious("streams above the limit")
            raise StreamFault(stream_id, frames.REFUSED_STREAM, "too many streams")
        if head.malformed or (end_stream and head.content_length):
            raise StreamFault(stream_id, frames.PROTOCOL_ERROR, head.malformed or "content-length")
        refusal = connection.refusal_of_all or head.refusal
        if timeout == MALFORMED:
            refusal = refusal or _MALFORMED_TIMEOUT
        if refusal is not None and not head.http_status:
            stream = Stream(stream_id, connection.stream_window, connection.sender.initial_window, None)
            stream.remote_closed = end_stream
            connection.streams[stream_id] = stream
            connection.refuse(stream, refusal, begun=False)
            return
        if connection.refusal_of_all is not None:
            # As the HTTP API says it: what the peer sent matters less than that it may send nothing.
            head = replace(head, http_status=403, text=f"{connection.refusal_of_all.details}\n")
        stream = connection.open_call(stream_id, head, timeout)
        if end_stream:
            self._half_close(stream)

    # ---- the rest ----------------------------------------------------------------------------------------------

    def _priority(self, flags: int, stream_id: int, payload: bytes) -> None:
        del flags
        self._suspicious("PRIORITY frames")
        if stream_id == 0:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "PRIORITY on stream 0")
        if len(payload) != 5:
            raise StreamFault(stream_id, frames.FRAME_SIZE_ERROR, "PRIORITY of a wrong size")
        if int.from_bytes(payload[:4], "big") & 0x7FFFFFFF == stream_id:
            raise StreamFault(stream_id, frames.PROTOCOL_ERROR, "a stream that depends on itself")

    def _rst_stream(self, flags: int, stream_id: int, payload: bytes) -> None:
        del flags
        if stream_id == 0 or len(payload) != 4:
            code = frames.FRAME_SIZE_ERROR if stream_id else frames.PROTOCOL_ERROR
            raise ConnectionFault(code, "RST_STREAM")
        self._idle(stream_id, "RST_STREAM")
        self._suspicious("RST_STREAM frames")
        self._connection.drop(stream_id)

    def _idle(self, stream_id: int, what: str) -> None:
        if not stream_id & 1 or (stream_id > self._connection.last_stream_id and not self._connection.going):
            raise ConnectionFault(frames.PROTOCOL_ERROR, f"{what} on stream {stream_id}, which is idle")

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & frames.ACK:
            if payload:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "an acknowledgement with a payload")
            self._connection.acknowledged()
            return
        if len(payload) % 6:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, "SETTINGS of a wrong size")
        self._settled = True
        self._suspicious("SETTINGS frames")
        for name, value in frames.parse_settings(payload):
            self._setting(name, value)
        self._connection.sender.add(frames.frame(frames.SETTINGS, frames.ACK, 0))

    def _setting(self, name: int, value: int) -> None:
        sender = self._connection.sender
        if name == frames.HEADER_TABLE_SIZE:
            sender.table_size(value)
        elif name == frames.ENABLE_PUSH and value > 1:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH")
        elif name == frames.INITIAL_WINDOW_SIZE:
            self._initial_window(value)
        elif name == frames.MAX_FRAME_SIZE:
            if not frames.DEFAULT_FRAME <= value <= frames.LARGEST_FRAME:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE")
            sender.max_frame = value

    def _initial_window(self, value: int) -> None:
        """It moves the windows of open streams as well, below zero if need be (section 6.9.2)."""
        connection, sender = self._connection, self._connection.sender
        if value > frames.MAX_WINDOW:
            raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE")
        change, sender.initial_window = value - sender.initial_window, value
        try:
            for stream in connection.streams.values():
                sender.credit(stream, change)
        except StreamFault as fault:
            raise ConnectionFault(frames.FLOW_CONTROL_ERROR, fault.text) from fault

    def _push_promise(self, flags: int, stream_id: int, payload: bytes) -> None:
        del flags, stream_id, payload
        raise ConnectionFault(frames.PROTOCOL_ERROR, "PUSH_PROMISE from a client")

    def _ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, "PING of a wrong size")
        sender = self._connection.sender
        if sender.answered:  # by one PING behind an answer clients measure the way (grpc-go, gRPC core)
            sender.answered = False
        else:
            self._suspicious("PING frames")
        if not flags & frames.ACK:
            sender.add(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        del flags
        if stream_id:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, "GOAWAY of a wrong size")
        # It opens no more streams by itself; what is open is answered, and then it closes.
        self._suspicious("GOAWAY frames")

    def _window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        del flags
        if len(payload) != 4:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, "WINDOW_UPDATE of a wrong size")
        increment = int.from_bytes(payload, "big") & 0x7FFFFFFF
        connection = self._connection
        if stream_id == 0:
            if not increment:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            connection.sender.credit_connection(increment)
            return
        self._idle(stream_id, "WINDOW_UPDATE")
        if not increment:
            raise StreamFault(stream_id, frames.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
        stream = connection.streams.get(stream_id)
        if stream is not None:
            connection.sender.credit(stream, increment)
        elif stream_id in connection.lean:
            total = connection.early_credit.get(stream_id, 0) + increment
            if connection.sender.initial_window + total > frames.MAX_WINDOW:
                raise StreamFault(stream_id, frames.FLOW_CONTROL_ERROR, "a window above 2^31-1")
            connection.early_credit[stream_id] = total
