"""One HTTP/2 connection, the server's side: bytes in, events out; answers in, bytes out. No socket, clock or loop.

All frames of a read are handled in one loop. Calls that came whole, for a method that is handled by the group, are
taken by a kernel (`lean`), all that follow each other at once. `incoming` has every other frame.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pump_service.door.group import Refusal
from pump_service.door.http2 import frames
from pump_service.door.http2.answers import Answers
from pump_service.door.http2.batch import Batch
from pump_service.door.http2.events import Cancelled, Event, Failed
from pump_service.door.http2.floods import Bucket
from pump_service.door.http2.frames import ConnectionFault, StreamFault
from pump_service.door.http2.headers import Fields, HeaderReader, refuse, timeout_s
from pump_service.door.http2.incoming import Incoming
from pump_service.door.http2.lean import FRAME
from pump_service.door.http2.output import Output
from pump_service.door.http2.runs import Reading, Run, Runs
from pump_service.door.http2.streams import Stream, Streams, Tally
from pump_service.door.http2.table import MALFORMED
from pump_service.door.http2.windows import Windows
from pump_service.door.limits import Limits
from pump_service.door.routes import Group, Head

_HEAD = frames.HEAD.unpack_from
# Like no section: the shortest has no field and no byte, the next one eight of its sizes alone.
_LIKE_NONE = np.frombuffer(b"?", np.uint8)


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
        self._headers: HeaderReader[Head] = HeaderReader(meaning, limits.header_list, runs.scratch)
        self._incoming = Incoming(
            limits, self.streams, self.windows, self.output, self.answers, self._headers, self._bucket, refusal,
            self._events.append,
        )  # fmt: skip
        self._prefaced = False
        self._rest = frames.Rest()
        self._like = _LIKE_NONE  # section of the last call of a group method, which the next ones are expected to have
        self._group: Group | None = None  # and whose it is
        self._largest = limits.frame << 8 | 0xFF

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
                if flags != 4 or word & 0xFF != 1 or not (behind := self._calls(data, at, now)):
                    self.windows.check()
                    incoming.frame(word & 0xFF, flags, stream_id & 0x7FFFFFFF, data[at + 9 : end])
                    behind = end
            except StreamFault as fault:
                incoming.reset(fault)
                behind = end
            at = behind
        self.windows.check()
        return at

    def _calls(self, data: bytes, at: int, now: float) -> int:
        """Take the calls that came whole from ``at`` on; where they end, 0 for none."""
        streams = self.streams
        if not self._incoming.plain or streams.room <= 0:
            return 0
        found = self._runs.take(
            data, at, self._headers.table, self._like, last=streams.last_id, room=streams.room,
            window=self.output.initial_window, now=now,
        )  # fmt: skip
        if found.run is not None and self._group is not None:
            self._take(found.run, self._group, found.taken)
        if found.credit:
            self.output.credit_connection(found.credit)
        if found.stop == FRAME:
            return found.end if found.end > at else 0
        refuse(found.fault)
        return self._other(data, found, now)

    def _take(self, run: Run, group: Group, taken: int) -> None:
        """Calls of the kernel's are open."""
        streams, batch = self.streams, self.batch(group)
        batch.take(run)
        streams.lean.update(dict.fromkeys(run.stream_ids, batch))
        streams.last_id = run.stream_ids[-1]
        self.windows.received(taken)

    def _other(self, data: bytes, found: Reading, now: float) -> int:
        """The call that has another section, whose header block must not be read again; where what was taken ends."""
        section = self._runs.scratch[: found.section].tobytes()
        head = self._headers.head(section)
        stream_id, size, timeout = self._runs.other()
        if head.lean and head.group is not None and timeout != MALFORMED:
            self._like, self._group = np.frombuffer(section, np.uint8), head.group
            self._take(self._runs.take_other(data, found, now), head.group, size + 5)
            if found.more:
                self.output.credit_connection(found.more)
            return found.next
        try:
            self._incoming.request(stream_id, head, timeout_s(timeout), end_stream=False)
        except StreamFault as fault:
            self._incoming.reset(fault)
        behind: int = found.end + frames.HEAD.size + (_HEAD(data, found.end)[0] >> 8)
        return behind
