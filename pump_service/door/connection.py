"""One HTTP/2 connection: reads frames, keeps the state of streams, answers in one write a turn.

All frames of a socket read are handled in one loop. The loop itself recognizes the common case, a call whose HEADERS
and DATA came whole, for a method that is handled by the group: runs of them go through a kernel (`lean`), one that has
other headers than the last is taken here; `incoming` has every other frame.
"""

from __future__ import annotations

import asyncio
import struct

import structlog

from pump_service.door import frames
from pump_service.door.batch import Batch
from pump_service.door.calls import Call, HandlerCall, PlainCall
from pump_service.door.carrier import Host
from pump_service.door.frames import ConnectionFault, StreamFault
from pump_service.door.group import Answer, Refusal
from pump_service.door.headers import HeaderReader
from pump_service.door.incoming import Incoming
from pump_service.door.lean import SHORTEST
from pump_service.door.limits import Limits
from pump_service.door.routes import Group, Head
from pump_service.door.sender import Sender
from pump_service.door.stream import Stream

log = structlog.get_logger()
_HEAD = frames.HEAD.unpack_from
# Head of a DATA frame and prefix of the message in it.
_DATA_HEAD = struct.Struct(">IBIBI").unpack_from
_LINGER_S = 5.0


class Connection(asyncio.Protocol):
    """Protocol of a connection whose preface has been seen (`sniff` hands it over)."""

    def __init__(self, server: Host, transport: asyncio.Transport, refusal: Refusal | None) -> None:
        self._loop = asyncio.get_running_loop()
        self.heard = self._loop.time()
        self.server = server
        self.transport = transport
        self.limits: Limits = server.limits
        self.deadlines = server.deadlines
        self.sender = Sender(transport, self.limits, self.stream_ended)
        self.refusal_of_all = refusal  # the peer may not call anything
        self.closed = False
        self.lean: dict[int, Batch] = {}
        self.early_credit: dict[int, int] = {}  # WINDOW_UPDATEs of lean calls: rare
        self.streams: dict[int, Stream] = {}
        self.last_stream_id = 0
        self._headers: HeaderReader[Head] = HeaderReader(server.routes.head, self.limits.header_list)
        self._incoming = Incoming(self, self._headers)
        self._batches: dict[Group, Batch] = {}
        self._rest: list[bytes] = []
        self._rest_size = 0
        self._need = len(frames.PREFACE)
        self._repeated = b""  # header block of the last common call, which the next ones are expected to have
        self._most = min(self.limits.frame - 5, self.limits.message)  # bytes of a message that is taken there
        self._held_bytes = 0  # of requests that handlers have not taken
        self._uncredited = 0
        self.recv_window = self.limits.connection_window
        self._credit_from = self.limits.connection_window // 4  # the least that is worth a frame
        # Of a new stream. Less than the default holds from the acknowledgement of our SETTINGS on (section 6.9.3).
        self.stream_window = max(self.limits.stream_window, frames.DEFAULT_WINDOW)
        self.asked: float | None = None
        self._linger: asyncio.TimerHandle | None = None
        self.going = False  # GOAWAY is out
        self.feeds = False
        self._reasons: set[str] = set()
        self.peer, self.auth_context = server.identify(transport)

    # ---- transport ---------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Say our settings; what we allow beyond the defaults holds from the start."""
        limits = self.limits
        # Half of it: streams may fill the other half before they are told.
        self.transport.set_write_buffer_limits(limits.write_buffer // 2, limits.write_buffer // 4)
        self.sender.add(
            frames.settings(
                {
                    frames.MAX_CONCURRENT_STREAMS: limits.streams,
                    frames.INITIAL_WINDOW_SIZE: limits.stream_window,
                    frames.MAX_FRAME_SIZE: limits.frame,
                    frames.MAX_HEADER_LIST_SIZE: limits.header_list,
                }
            )
            + frames.window_update(0, limits.connection_window - frames.DEFAULT_WINDOW)
        )

    def data_received(self, data: bytes) -> None:
        """Whole frames are handled; the rest waits for more."""
        self.heard = self._loop.time()
        self.asked = None
        if self._rest:
            self._rest.append(data)
            self._rest_size += len(data)
            if self._rest_size < self._need:
                return
            data = b"".join(self._rest)
            self._rest.clear()
            self._rest_size = 0
        elif self._repeated and self._brought(data):
            return
        self.sender.in_turn = True
        try:
            at = self._read(data)
            if at < len(data) and not self.closed:
                self._keep(data, at)
        except ConnectionFault as fault:
            self.fail(fault)
        except Exception as error:  # noqa: BLE001
            self._failed(error)
        finally:
            self._end_turn()

    def _failed(self, error: Exception) -> None:
        log.error("connection_failed", peer=self.peer, exc_info=error)
        self.fail(ConnectionFault(frames.INTERNAL_ERROR, "internal error"))

    def _keep(self, data: bytes, at: int) -> None:
        """Bytes of a frame that is not complete, and how many it will have."""
        rest = data[at:] if at else data
        self._rest.append(rest)
        self._rest_size = len(rest)
        if not self._incoming.prefaced:
            self._need = len(frames.PREFACE)
        elif len(rest) < frames.HEAD.size:
            self._need = frames.HEAD.size
        else:
            self._need = frames.HEAD.size + (_HEAD(rest)[0] >> 8)

    def _end_turn(self) -> None:
        if self._batches:
            batches, self._batches = self._batches, {}
            for batch in batches.values():
                if self.server.feeders > 1 and not self.closed:
                    self.server.collect(batch)
                else:
                    batch.hand_over()
        if self._uncredited >= self._credit_from:
            self._credit_connection()
        self.sender.in_turn = False
        self.sender.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Every call is cancelled; answers of groups are dropped."""
        del exc
        self.closed = True
        self.sender.blocked = True
        if self._linger is not None:
            self._linger.cancel()  # it would hold all of this until then
        for stream in list(self.streams.values()):
            self.sender.forget(stream)
            if stream.call is not None:
                stream.call.cancel()
            stream.wake()
        self.streams.clear()
        self.lean.clear()
        for batch in self._batches.values():
            batch.drop()
        self._batches.clear()
        self._rest.clear()
        self.server.lost(self)

    def pause_writing(self) -> None:
        """The peer does not read: neither do we."""
        self.sender.blocked = True
        self.pause("writing")

    def resume_writing(self) -> None:
        """It does again."""
        self.sender.unblocked()
        self.resume("writing")

    def pause(self, reason: str) -> None:
        """Stop reading."""
        if not self._reasons and not self.transport.is_closing():
            self.transport.pause_reading()
        self._reasons.add(reason)

    def resume(self, reason: str) -> None:
        """Read again when no other reason is left."""
        if reason in self._reasons:
            self._reasons.discard(reason)
            if not self._reasons and not self.transport.is_closing():
                self.heard = self._loop.time()
                self.transport.resume_reading()

    def brings(self) -> None:
        """Requests in plenty come this way (groups, streaming requests): it is not read while they have no room."""
        if not self.feeds:
            self.feeds = True
            self.server.feeders += 1
            if self.server.paused:
                self.pause("server")

    @property
    def paused(self) -> bool:
        """Whether it reads nothing for now."""
        return bool(self._reasons)

    @property
    def idle(self) -> bool:
        """Whether no call is open."""
        return not self.lean and not self.streams

    # ---- the loop ----------------------------------------------------------------------------------------------

    def _brought(self, data: bytes) -> bool:
        """Take what one of several connections brings, where it is calls like the last one and nothing else.

        It is what `_read` and `_end_turn` would do, for the kind of read that costs the most when it is small. False,
        and nothing has happened, for any other.
        """
        server = self.server
        room = self.limits.streams - len(self.lean) - len(self.streams)
        if (
            room <= 0
            or not data.startswith(self._repeated, 9)
            or not self.feeds
            or server.feeders < 2
            or len(data) > self.recv_window
            or self._batches
            or self.closed
            or not self._incoming.lean
        ):
            return False
        try:
            found = self._take_run(data, 0, self.last_stream_id, room, whole=True)
            if found is None:
                return False
            batch, _, taken, self.last_stream_id = found
            self.received(taken)
            server.collect(batch)
            self._credit_connection()
        except Exception as error:  # noqa: BLE001
            self._failed(error)
        return True

    def _read(self, data: bytes) -> int:  # noqa: C901, PLR0912, PLR0915 - one loop: calls cost more
        """Handle the frames in ``data``; where the first incomplete one begins."""
        incoming, blocks, lean = self._incoming, self._headers.blocks, self.lean
        at, size = 0, len(data)
        if not incoming.prefaced:
            if size < len(frames.PREFACE):
                return 0
            incoming.preface(data)
            at = len(frames.PREFACE)
        largest = self.limits.frame << 8 | 0xFF
        most = self._most
        last = self.last_stream_id
        room = self.limits.streams - len(lean) - len(self.streams) if incoming.lean else 0
        taken = 0  # bytes of DATA that the common case has handled
        head: Head | None = None
        batch: Batch | None = None
        now = self.heard
        may_run = bool(self._repeated)
        while size - at >= 9:
            if may_run:
                may_run = False  # what ends a run is looked at here before the next
                same = data[at + 3] == 1 and data.startswith(self._repeated, at + 9)
                if same and room > 0 and (run := self._take_run(data, at, last, room)):
                    _, at, more, last = run
                    room = self.limits.streams - len(lean) - len(self.streams)
                    taken += more
                    continue
            word, flags, stream_id = _HEAD(data, at)
            if word > largest:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, f"a frame of {word >> 8} bytes")
            end = at + 9 + (word >> 8)
            if end > size:
                break
            if (
                room > 0
                and word & 0xFF == 1  # HEADERS
                and flags == 4  # END_HEADERS alone
                and last < stream_id < 0x80000000
                and stream_id & 1
                and size - end >= 14
            ):
                data_word, data_flags, data_id, compressed, length = _DATA_HEAD(data, end)
                stop = end + 14 + length
                if (
                    data_id == stream_id
                    and data_flags == 1  # END_STREAM alone
                    and data_word == (length + 5) << 8  # DATA, of one message
                    and not compressed
                    and stop <= size
                    and length <= most
                ):
                    block = data[at + 9 : end]
                    found, timeout = blocks.get(block) or self._headers.read(block)
                    if found.lean and timeout != -1.0:
                        if found is not head or batch is None:
                            head = found
                            batch = self.group(found.group)
                        last = stream_id
                        room -= 1
                        taken += length + 5
                        lean[stream_id] = batch
                        batch.take(stream_id, data[end + 14 : stop], None if timeout is None else now + timeout)
                        at = stop
                        may_run = self._may_repeat(block)
                        continue
                    # Read already, and the table has moved: the frame must not be read again.
                    self._request(stream_id, found, timeout)
                    last = self.last_stream_id
                    room = self.limits.streams - len(lean) - len(self.streams)
                    at = end
                    continue
            if taken:
                self.received(taken)
                taken = 0
            self.last_stream_id = last
            try:
                incoming.frame(word & 0xFF, flags, stream_id & 0x7FFFFFFF, data[at + 9 : end])
            except StreamFault as fault:
                self.reset(fault.stream_id, fault.code)
            last = self.last_stream_id
            room = self.limits.streams - len(lean) - len(self.streams) if incoming.lean else 0
            at = end
            may_run = bool(self._repeated)
            if self.closed:
                return size
        self.last_stream_id = last
        if taken:
            self.received(taken)
        return at

    def _may_repeat(self, block: bytes) -> bool:
        """Whether the next calls are expected to have this block: two in a row had, or it is the next read."""
        base = self._headers.repeated(block)
        if base is None or base == self._repeated:
            return base is not None
        self._repeated = base
        return False

    def _take_run(
        self, data: bytes, at: int, last: int, room: int, *, whole: bool = False
    ) -> tuple[Batch, int, int, int] | None:
        """Take calls like the last one from ``at`` on: their batch, where they end, bytes of DATA, last stream id.

        ``whole``: only if they are all of the data, into a batch of their own.
        """
        known = self._headers.blocks.get(self._repeated)
        if known is None or not known[0].lean or known[1] is not None:
            return None  # the peer's table has moved, and with it what the block means
        if len(data) - at < 2 * (SHORTEST + len(self._repeated)) and not whole:
            return None  # one costs less without
        found = self.server.runs.take(data, at, last, room, self._most, self._repeated, whole=whole)
        if found is None:
            return None
        run, end, taken = found
        group = known[0].group
        batch = Batch(self, group) if whole and group is not None else self.group(group)
        self.lean.update(dict.fromkeys(run.stream_ids, batch))
        batch.take_run(run, self.heard)
        return batch, end, taken, run.stream_ids[-1]

    def _request(self, stream_id: int, head: Head, timeout: float | None) -> None:
        try:
            self._incoming.request(stream_id, head, timeout, end_stream=False)
        except StreamFault as fault:
            self.reset(fault.stream_id, fault.code)

    # ---- windows of what we receive ----------------------------------------------------------------------------

    def received(self, size: int) -> None:
        """Count bytes of DATA frames against the connection's window."""
        self.recv_window -= size
        self._uncredited += size
        if self.recv_window < 0:
            raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "more DATA than the connection's window")

    def acknowledged(self) -> None:
        """The peer has our SETTINGS: its streams' windows are what they say."""
        change = self.limits.stream_window - self.stream_window
        if change:
            self.stream_window += change
            for stream in self.streams.values():
                stream.recv_window += change

    def held(self, size: int) -> None:
        """Bytes that wait for a handler are not credited until it has taken them."""
        self._held_bytes += size
        if size < 0:
            self._credit_connection()

    def _credit_connection(self) -> None:
        free = self._uncredited - self._held_bytes
        if free >= self._credit_from and not self.closed:
            self._uncredited -= free
            self.recv_window += free
            self.sender.add(frames.window_update(0, free))

    def credit(self, stream: Stream) -> None:
        """Let the peer send more on a stream, when it is worth a frame and its call may have more."""
        free = stream.uncredited - stream.held
        if free < self.limits.stream_window // 4 or stream.remote_closed or self.closed:
            return
        if stream.call is None or (stream.call.needs_credit() and stream.call.lets(free)):
            self.give(stream)

    def give(self, stream: Stream) -> None:
        """Credit for what was taken."""
        free = stream.uncredited - stream.held
        if free > 0 and not stream.remote_closed and not self.closed:
            stream.uncredited -= free
            stream.recv_window += free
            self.sender.add(frames.window_update(stream.stream_id, free))

    # ---- calls -------------------------------------------------------------------------------------------------

    def group(self, group: Group | None) -> Batch:
        """This turn's batch of a group method."""
        assert group is not None  # noqa: S101 - the caller has looked
        batch = self._batches.get(group)
        if batch is None:
            if not self.feeds:
                self.brings()
            batch = self._batches[group] = Batch(self, group)
            if not self.sender.in_turn:
                self._loop.call_soon(self._end_turn)
        return batch

    def open_call(self, stream_id: int, head: Head, timeout: float | None) -> Stream:
        """Begin a call that gets a stream of its own."""
        stream = Stream(stream_id, self.stream_window, self.sender.initial_window, head.content_length)
        self.streams[stream_id] = stream
        deadline = None if timeout is None else self.heard + timeout
        kind = PlainCall if head.http_status else Call if head.group is not None else HandlerCall
        stream.call = kind(self, stream, head, deadline)
        stream.call.open()
        return stream

    def answer(self, batch: Batch, stream_id: int, answer: Answer) -> None:
        """Answer one call of a group, if it still wants an answer."""
        if self.lean.get(stream_id) is batch:
            del self.lean[stream_id]
            extra = self.early_credit.pop(stream_id, 0)
            if isinstance(answer, bytes) and not self.sender.fits(len(answer), 1):
                stream = Stream(stream_id, 0, self.sender.initial_window + extra, None)
                stream.remote_closed = True
                self.streams[stream_id] = stream
            elif isinstance(answer, bytes):
                self.sender.unary_one(stream_id, answer)
                return
            else:
                self.sender.refuse(stream_id, answer)
                return
        else:
            found = self.streams.get(stream_id)
            if found is None or found.call is None or found.call.done:
                return
            stream = found
            found.call.ended()
        if isinstance(answer, Refusal):
            self.refuse(stream, answer, begun=False)
            return
        self.sender.headers(stream_id, self.sender.replies.headers())
        self.sender.data(stream, b"\0" + len(answer).to_bytes(4, "big") + answer)
        self.sender.finish(stream, 0, "", ())

    def refuse(self, stream: Stream, refusal: Refusal, *, begun: bool) -> None:
        """End a call's stream with a status instead of what it still had to send."""
        if self.closed or stream.stream_id not in self.streams:
            return
        self.sender.forget(stream)
        if begun:
            self.sender.finish(stream, refusal.code.value[0], refusal.details, refusal.trailing)
        else:
            self.sender.refuse(stream.stream_id, refusal)
            self.stream_ended(stream)
        stream.wake()

    def answered(self) -> None:
        """A call has ended: perhaps it was the last one that a connection on its way out waited for."""
        if self.going and self.idle and not self.closed:
            self._loop.call_soon(self._leave)

    def _leave(self) -> None:
        if self.idle and not self.closed:
            self.sender.flush()
            self.close()

    def stream_ended(self, stream: Stream) -> None:
        """The last frame of a response is out."""
        self.streams.pop(stream.stream_id, None)
        if not stream.remote_closed:
            # The whole answer is there, the rest of the request is not wanted (section 8.1).
            self.sender.add(frames.rst_stream(stream.stream_id, frames.NO_ERROR))
            self._incoming.remember(stream.stream_id)
        self.answered()

    # ---- ends --------------------------------------------------------------------------------------------------

    def reset(self, stream_id: int, code: int) -> None:
        """End a stream by RST_STREAM."""
        self.drop(stream_id)
        self.sender.add(frames.rst_stream(stream_id, code))
        self._incoming.remember(stream_id)

    def drop(self, stream_id: int) -> None:
        """Forget a stream; its call is cancelled."""
        batch = self.lean.pop(stream_id, None)
        if batch is not None:
            batch.lost = True
            self.early_credit.pop(stream_id, None)
        stream = self.streams.pop(stream_id, None)
        if stream is not None:
            self.sender.forget(stream)
            if stream.call is not None:
                stream.call.cancel()
            stream.wake()
        self.answered()

    def fail(self, fault: ConnectionFault) -> None:
        """GOAWAY, and the end of the connection."""
        if self.closed:
            return
        log.info("connection_refused", peer=self.peer, code=fault.code, reason=fault.text)
        self.sender.add(frames.goaway(self.last_stream_id, fault.code, fault.text))
        self.sender.flush()
        self.close()

    def close(self) -> None:
        """End the connection after what is written; its calls are cancelled."""
        self.closed = True
        self.transport.close()
        # A peer that does not read would keep it open for ever.
        self._linger = self._loop.call_later(_LINGER_S, self.transport.abort)

    def go_away(self) -> None:
        """Take no new calls; the peer goes elsewhere with them."""
        if not self.closed and not self.going:
            self.going = True
            self.sender.add(frames.goaway(self.last_stream_id, frames.NO_ERROR, "the server ends"))
            self.answered()

    def refuse_all(self, refusal: Refusal) -> None:
        """End every call that is still open."""
        for stream in list(self.streams.values()):
            if stream.call is not None and not stream.call.done:
                stream.call.refuse(refusal)
        for stream_id, batch in list(self.lean.items()):
            batch.lost = True
            self.answer(batch, stream_id, refusal)
