"""One HTTP/2 connection, the server's side: bytes in, events out; answers in, bytes out. No socket, clock or loop.

All frames of a read are handled in one loop. The common case, a call whose HEADERS and DATA came whole, for a method
that is handled by the group, is taken here: those that have the headers of the last go through a kernel together
(`lean`), another is taken by itself. `incoming` has every other frame.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

from pump_service.door.group import Refusal
from pump_service.door.http2 import frames
from pump_service.door.http2.answers import Answers
from pump_service.door.http2.batch import Batch
from pump_service.door.http2.events import Cancelled, Event, Failed
from pump_service.door.http2.floods import Bucket
from pump_service.door.http2.frames import ConnectionFault, StreamFault
from pump_service.door.http2.headers import MALFORMED, TIMEOUT_LITERAL, Fields, HeaderReader
from pump_service.door.http2.incoming import Incoming
from pump_service.door.http2.lean import SHORTEST
from pump_service.door.http2.output import Output
from pump_service.door.http2.runs import Runs
from pump_service.door.http2.streams import Stream, Streams, Tally
from pump_service.door.http2.windows import Windows
from pump_service.door.limits import Limits
from pump_service.door.routes import Group, Head

_HEAD = frames.HEAD.unpack_from
# Head of a DATA frame and prefix of the message in it.
_DATA_HEAD = struct.Struct(">IBIBI").unpack_from


class Http2:
    """Streams, windows, answers and output of a connection, and what reads the peer's frames.

    Args:
        meaning: of a request's header fields.
        runs: of the server.
        now: a time, as each `receive` gets it.
        refusal: what all calls of this peer are answered with.
        tally: of the server's streams.
        wanted: called whenever there is something to write.
    """

    def __init__(
        self,
        limits: Limits,
        meaning: Callable[[Fields], Head],
        runs: Runs,
        *,
        now: float,
        refusal: Refusal | None = None,
        wanted: Callable[[], None] = lambda: None,
        tally: Tally | None = None,
    ) -> None:
        self._limits = limits
        self.streams = Streams(limits.streams, tally)
        self.output = Output(limits, self.streams, wanted)
        self.windows = Windows(limits, self.streams, self.output)
        self.answers = Answers(self.streams, self.output)
        self.closed = False
        self._runs = runs
        self._batches: dict[Group, Batch] = {}
        self._events: list[Event] = []
        self._bucket = Bucket(limits.idle_frames, limits.idle_frames_per_s, now)
        self._headers: HeaderReader[Head] = HeaderReader(meaning, limits.header_list)
        self._incoming = Incoming(
            limits, self.streams, self.windows, self.output, self.answers, self._headers, self._bucket, refusal,
            self._events.append,
        )  # fmt: skip
        self._prefaced = False
        self._rest = frames.Rest()
        self._repeated = b""  # header block of the last common call, which the next ones are expected to have
        self._largest = limits.frame << 8 | 0xFF
        self._most = min(limits.frame - 5, limits.message)  # bytes of a message that is taken here

    def begin(self) -> None:
        """Say our settings; what we allow beyond the defaults holds from the start."""
        limits = self._limits
        settings = {
            frames.MAX_CONCURRENT_STREAMS: limits.streams,
            frames.INITIAL_WINDOW_SIZE: limits.stream_window,
            frames.MAX_FRAME_SIZE: limits.frame,
            frames.MAX_HEADER_LIST_SIZE: limits.header_list,
        }
        credit = frames.window_update(0, limits.connection_window - frames.DEFAULT_WINDOW)
        self.output.add(frames.settings(settings) + credit)

    def receive(self, data: bytes, now: float) -> list[Event]:
        """What the peer has sent and when: what it did, in order, but for calls that `take_batches` has."""
        self._bucket.now = now
        try:
            if not self.closed and (data := self._rest.joined(data)):
                at = self._read(data, now)
                if at < len(data):
                    self._rest.keep(data[at:] if at else data, 0 if self._prefaced else len(frames.PREFACE))
        except ConnectionFault as fault:
            self.fail(fault)
            self._events.append(Failed(fault.code, fault.text))
        if not self._events:
            return []
        events = self._events[:]
        self._events.clear()
        return events

    def batch(self, group: Group) -> Batch:
        """Calls of a group method of this turn."""
        found = self._batches.get(group)
        if found is None:
            found = self._batches[group] = Batch(group)
        return found

    def take_batches(self) -> list[Batch]:
        """Calls of the turn that has ended."""
        if not self._batches:
            return []
        batches = list(self._batches.values())
        self._batches.clear()
        return batches

    def go_away(self) -> None:
        """Take no new calls; the peer goes elsewhere with them."""
        if not self.closed and not self.streams.going:
            self.streams.going = True
            self.output.add(frames.goaway(self.streams.last_id, frames.NO_ERROR, "the server ends"))

    def fail(self, fault: ConnectionFault) -> None:
        """GOAWAY, and the end."""
        if not self.closed:
            self.closed = True
            self.output.add(frames.goaway(self.streams.last_id, fault.code, fault.text))

    def lost(self) -> list[Stream]:
        """There is nobody to answer; the streams that were open, or whose end nobody was told of."""
        self.closed = True
        self._rest = frames.Rest()
        for batch in self.take_batches():
            batch.drop()
        streams = [*self.streams.open.values(), *(event.stream for event in self._events if type(event) is Cancelled)]
        self._events.clear()
        self.streams.clear()
        return streams

    # ---- the loop ----------------------------------------------------------------------------------------------

    def _read(self, data: bytes, now: float) -> int:
        """Handle the frames in ``data``; where the first incomplete one begins."""
        at, size = 0, len(data)
        if not self._prefaced:
            if size < len(frames.PREFACE):
                return 0
            if not data.startswith(frames.PREFACE):
                raise ConnectionFault(frames.PROTOCOL_ERROR, "no HTTP/2 preface")
            self._prefaced = True
            at = len(frames.PREFACE)
        incoming = self._incoming
        while size - at >= frames.HEAD.size:
            word, flags, stream_id = _HEAD(data, at)
            if word > self._largest:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, f"a frame of {word >> 8} bytes")
            end = at + 9 + (word >> 8)
            if end > size:
                break
            try:
                # HEADERS, END_HEADERS alone
                if flags == 4 and word & 0xFF == 1 and (behind := self._common(data, at, end, stream_id, now)):
                    end = behind
                else:
                    self.windows.check()
                    incoming.frame(word & 0xFF, flags, stream_id & 0x7FFFFFFF, data[at + 9 : end])
            except StreamFault as fault:
                incoming.reset(fault)
            at = end
        self.windows.check()
        return at

    def _common(self, data: bytes, at: int, end: int, stream_id: int, now: float) -> int:
        """Take calls that came whole, or the HEADERS of one; where they end, 0 for anything else."""
        streams = self.streams
        if not (
            streams.last_id < stream_id < 0x80000000
            and stream_id & 1
            and len(data) - end >= 14
            and self._incoming.plain
            and streams.room > 0
        ):
            return 0
        data_word, data_flags, data_id, compressed, length = _DATA_HEAD(data, end)
        behind: int = end + 14 + length
        if (
            data_id != stream_id
            or data_flags != 1  # END_STREAM alone
            or data_word != (length + 5) << 8  # DATA, of one message
            or compressed
            or behind > len(data)
            or length > self._most
        ):
            return 0
        if self._is_like_the_last(data, at + 9, end) and (of_all := self._run(data, at, now)):
            return of_all
        block = data[at + 9 : end]
        head, timeout = self._headers.blocks.get(block) or self._headers.read(block)
        if not head.lean or head.group is None or timeout == MALFORMED:
            # Read already, and the table has moved: the frame must not be read again.
            self._incoming.request(stream_id, head, timeout, end_stream=False)
            return end
        self._repeated = self._headers.repeated(block) or self._repeated
        batch = streams.lean[stream_id] = self.batch(head.group)
        batch.take(stream_id, data[end + 14 : behind], math.inf if timeout is None else now + timeout)
        streams.last_id = stream_id
        self.windows.received(length + 5)
        return behind

    def _is_like_the_last(self, data: bytes, at: int, end: int) -> bool:
        """Whether a header block is the last one's, but for a timeout that may follow."""
        known = self._repeated
        behind = at + len(known)
        return data.startswith(known, at) and (behind == end or data.startswith(TIMEOUT_LITERAL, behind))

    def _run(self, data: bytes, at: int, now: float) -> int:
        """Take calls like the last one, many at once; where they end, 0 when there are none."""
        block = self._repeated
        if len(data) - at < 2 * (SHORTEST + len(block)):
            return 0  # one costs less without
        head, timeout = self._headers.blocks.get(block, (None, None))
        if head is None or not head.lean or head.group is None or timeout is not None:
            return 0  # the peer's table has moved, and with it what the block means
        streams = self.streams
        found = self._runs.take(data, at, streams.last_id, streams.room, self._most, block)
        if found is None:
            return 0
        run, end, taken = found
        batch = self.batch(head.group)
        batch.take_run(run, now)
        streams.lean.update(dict.fromkeys(run.stream_ids, batch))
        streams.last_id = run.stream_ids[-1]
        self.windows.received(taken)
        return end
