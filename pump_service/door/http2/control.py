"""Frames about the connection and its windows, by the rules of RFC 9113, section 6."""

from __future__ import annotations

from pump_service.door.http2 import frames
from pump_service.door.http2.floods import Bucket
from pump_service.door.http2.frames import ConnectionFault, StreamFault
from pump_service.door.http2.output import Output
from pump_service.door.http2.streams import Streams
from pump_service.door.http2.windows import Windows


class Control:
    """Each method handles one kind of frame: flags, stream id, payload."""

    def __init__(self, streams: Streams, windows: Windows, output: Output, bucket: Bucket) -> None:
        self._streams = streams
        self._windows = windows
        self._output = output
        self._suspicious = bucket.take
        self.settled = False  # the peer's first SETTINGS are here

    def settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        """SETTINGS, and the acknowledgement of ours."""
        if stream_id:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & frames.ACK:
            if payload:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "an acknowledgement with a payload")
            self._windows.acknowledged()
            return
        if len(payload) % 6:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, "SETTINGS of a wrong size")
        self.settled = True
        self._suspicious("SETTINGS frames")
        for name, value in frames.parse_settings(payload):
            self._setting(name, value)
        self._output.add(frames.frame(frames.SETTINGS, frames.ACK, 0))

    def _setting(self, name: int, value: int) -> None:
        if name == frames.HEADER_TABLE_SIZE:
            self._output.replies.table_size(value)
        elif name == frames.ENABLE_PUSH and value > 1:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH")
        elif name == frames.INITIAL_WINDOW_SIZE:
            self._initial_window(value)
        elif name == frames.MAX_FRAME_SIZE:
            if not frames.DEFAULT_FRAME <= value <= frames.LARGEST_FRAME:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE")
            self._output.max_frame = value

    def _initial_window(self, value: int) -> None:
        """It moves the windows of open streams as well, below zero if need be (section 6.9.2)."""
        if value > frames.MAX_WINDOW:
            raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE")
        change, self._output.initial_window = value - self._output.initial_window, value
        try:
            for stream in self._streams.open.values():
                self._output.credit(stream, change)
        except StreamFault as fault:
            raise ConnectionFault(frames.FLOW_CONTROL_ERROR, fault.text) from fault

    def window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        """WINDOW_UPDATE of the connection, a stream, or a call that came whole and has none yet."""
        del flags
        if len(payload) != 4:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, "WINDOW_UPDATE of a wrong size")
        increment = int.from_bytes(payload, "big") & 0x7FFFFFFF
        streams, output = self._streams, self._output
        if stream_id == 0:
            if not increment:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            output.credit_connection(increment)
            return
        streams.check_begun(stream_id, "WINDOW_UPDATE")
        if not increment:
            raise StreamFault(stream_id, frames.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
        stream = streams.open.get(stream_id)
        if stream is not None:
            output.credit(stream, increment)
        elif stream_id in streams.lean:
            total = streams.early_credit.get(stream_id, 0) + increment
            if output.initial_window + total > frames.MAX_WINDOW:
                raise StreamFault(stream_id, frames.FLOW_CONTROL_ERROR, "a window above 2^31-1")
            streams.early_credit[stream_id] = total

    def ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        """PING, and the answer to ours."""
        if stream_id:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, "PING of a wrong size")
        if self._output.answered:  # by one PING behind an answer clients measure the way (grpc-go, gRPC core)
            self._output.answered = False
        else:
            self._suspicious("PING frames")
        if not flags & frames.ACK:
            self._output.add(frames.frame(frames.PING, frames.ACK, 0, payload))

    def goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        """GOAWAY: the peer opens no more streams by itself; what is open is answered, and then it closes."""
        del flags
        if stream_id:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, "GOAWAY of a wrong size")
        self._suspicious("GOAWAY frames")

    def priority(self, flags: int, stream_id: int, payload: bytes) -> None:
        """PRIORITY, which means nothing any more."""
        del flags
        self._suspicious("PRIORITY frames")
        if stream_id == 0:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "PRIORITY on stream 0")
        if len(payload) != 5:
            raise StreamFault(stream_id, frames.FRAME_SIZE_ERROR, "PRIORITY of a wrong size")
        if int.from_bytes(payload[:4], "big") & 0x7FFFFFFF == stream_id:
            raise StreamFault(stream_id, frames.PROTOCOL_ERROR, "a stream that depends on itself")

    def push_promise(self, flags: int, stream_id: int, payload: bytes) -> None:
        """PUSH_PROMISE, which only servers send."""
        del flags, stream_id, payload
        raise ConnectionFault(frames.PROTOCOL_ERROR, "PUSH_PROMISE from a client")
