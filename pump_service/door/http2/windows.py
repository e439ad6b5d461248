"""What the peer may send: the window of the connection, and that of each stream (RFC 9113, section 5.2)."""

from __future__ import annotations

from pump_service.door.http2 import frames
from pump_service.door.http2.frames import ConnectionFault, StreamFault
from pump_service.door.http2.output import Output
from pump_service.door.http2.streams import Stream, Streams
from pump_service.door.limits import Limits


class Windows:
    """Of a connection. Credit is given when it is worth a frame: a quarter of a window."""

    def __init__(self, limits: Limits, streams: Streams, output: Output) -> None:
        self._streams = streams
        self._output = output
        self._stream_window = limits.stream_window
        self.connection = limits.connection_window
        # Of a new stream. Less than the default holds from the acknowledgement of our SETTINGS on (section 6.9.3).
        self.of_new_stream = max(limits.stream_window, frames.DEFAULT_WINDOW)
        self._credit_from = limits.connection_window // 4
        self._uncredited = 0
        self._held = 0  # of messages that handlers have not taken

    def acknowledged(self) -> None:
        """The peer has our SETTINGS: its streams' windows are what they say."""
        change = self._stream_window - self.of_new_stream
        if change:
            self.of_new_stream += change
            for stream in self._streams.open.values():
                stream.recv_window += change

    def received(self, size: int) -> None:
        """Count bytes of DATA frames against the connection's window; `check` is to follow."""
        self.connection -= size
        self._uncredited += size

    def check(self) -> None:
        """ConnectionFault when the peer has sent more than it may."""
        if self.connection < 0:
            raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "more DATA than the connection's window")

    def received_on(self, stream: Stream, size: int) -> None:
        """And against the stream's."""
        stream.recv_window -= size
        stream.uncredited += size
        if stream.recv_window < 0:
            raise StreamFault(stream.stream_id, frames.FLOW_CONTROL_ERROR, "more DATA than the stream's window")

    def hold(self, stream: Stream, size: int) -> None:
        """Bytes that wait for a handler are not credited until it has taken them: then ``size`` is below 0."""
        stream.held += size
        self._held += size
        if size < 0:
            self.credit_connection()

    def credit_connection(self) -> None:
        """Let the peer send more, when it is worth a frame."""
        free = self._uncredited - self._held
        if free >= self._credit_from:
            self._uncredited -= free
            self.connection += free
            self._output.add(frames.window_update(0, free))

    def worth_credit(self, stream: Stream) -> int:
        """Bytes of a stream that could be given back, 0 when they are not worth a frame."""
        free = stream.uncredited - stream.held
        return 0 if free < self._stream_window // 4 or stream.remote_closed else free

    def credit(self, stream: Stream) -> None:
        """Let the peer send as much again as was taken of a stream."""
        free = stream.uncredited - stream.held
        if free > 0 and not stream.remote_closed and stream.stream_id in self._streams.open:
            stream.uncredited -= free
            stream.recv_window += free
            self._output.add(frames.window_update(stream.stream_id, free))
