"""Answers to calls that came whole: each alone, or all of a batch as one prebuilt block."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from pump_service.door.group import Answer, Refusal
from pump_service.door.http2 import frames
from pump_service.door.http2.batch import DEADLINE, Batch
from pump_service.door.http2.output import Output
from pump_service.door.http2.streams import Stream, Streams

_FEW = 8  # answers for which columns are not worth their setup


class Answers:
    """Of a connection."""

    def __init__(self, streams: Streams, output: Output) -> None:
        self._streams = streams
        self._output = output
        self._template: _Template | None = None

    def to_all(self, batch: Batch, message: bytes) -> None:
        """The same to each call of a batch that still wants one."""
        stream_ids, streams = batch.stream_ids, self._streams
        plain = not (batch.lost or batch.mixed or streams.early_credit)
        if plain and self._fit(len(message), len(stream_ids)):
            lean = streams.lean
            for stream_id in stream_ids:
                lean.pop(stream_id, None)
            self._unary(stream_ids, message)
        else:
            self.to_each(batch, [message] * len(stream_ids))

    def to_each(self, batch: Batch, answers: Sequence[Answer]) -> None:
        """One to each call of a batch that still wants one, in order."""
        for stream_id, answer in zip(batch.stream_ids, answers, strict=True):
            self._to_one(batch, stream_id, answer)

    def expire(self, batch: Batch, now: float) -> None:
        """End the calls of a batch whose deadline has passed; the others go on."""
        for stream_id in batch.expired(now):
            if self._streams.lean.get(stream_id) is batch:
                batch.lost = True
                self._to_one(batch, stream_id, DEADLINE)

    def refuse_lean(self, refusal: Refusal) -> None:
        """End every call that has no stream of its own."""
        for stream_id, batch in list(self._streams.lean.items()):
            batch.lost = True
            self._to_one(batch, stream_id, refusal)

    def whole(self, stream: Stream, message: bytes) -> bool:
        """Answer one that has sent nothing yet; False, and nothing has happened, where the windows are too small."""
        if stream.send_window < self._output.initial_window or not self._fit(len(message), 1):
            return False
        self._unary_one(stream.stream_id, message)
        self._output.ended(stream)
        return True

    def refuse(self, stream: Stream, refusal: Refusal, *, begun: bool) -> None:
        """End a call with a status instead of what it still had to send."""
        if stream.stream_id not in self._streams.open:
            return
        stream.forget()
        if begun:
            self._output.finish(stream, refusal.code.value[0], refusal.details, refusal.trailing)
        else:
            self._refuse(stream.stream_id, refusal)
            self._output.ended(stream)

    def _to_one(self, batch: Batch, stream_id: int, answer: Answer) -> None:
        output, streams = self._output, self._streams
        if streams.lean.get(stream_id) is batch:
            del streams.lean[stream_id]
            extra = streams.early_credit.pop(stream_id, 0)
            if isinstance(answer, Refusal):
                self._refuse(stream_id, answer)
                return
            if self._fit(len(answer), 1):
                self._unary_one(stream_id, answer)
                return
            stream = Stream(stream_id, 0, output.initial_window + extra + batch.credit(stream_id), None)
            stream.remote_closed = True
            streams.begin(stream)
        elif stream_id in streams.open:
            stream = streams.open[stream_id]
        else:
            return
        if isinstance(answer, Refusal):
            self.refuse(stream, answer, begun=False)
            return
        output.headers(stream_id, output.replies.headers())
        output.data(stream, b"\0" + len(answer).to_bytes(4, "big") + answer)
        output.finish(stream, 0)

    def _refuse(self, stream_id: int, refusal: Refusal) -> None:
        block = self._output.replies.only_trailers(refusal.code.value[0], refusal.details, refusal.trailing)
        self._output.headers(stream_id, block, end=True)

    def _fit(self, size: int, count: int) -> bool:
        """Whether ``count`` messages of ``size`` bytes can go at once, on streams that have sent nothing yet."""
        size += 5
        output = self._output
        return size * count <= output.window and size <= output.initial_window and size <= output.max_frame

    def _unary(self, stream_ids: Sequence[int], message: bytes) -> None:
        """The same successful answer on many streams."""
        output = self._output
        if not output.replies.settled:
            self._unary_one(stream_ids[0], message)
            stream_ids = stream_ids[1:]
            if not stream_ids:
                return
        headers, trailers = output.replies.unary()
        template = self._template
        if template is None or template.message is not message or template.trailers is not trailers:
            template = self._template = _Template(headers, message, trailers)
        output.answered = True
        output.window -= (len(message) + 5) * len(stream_ids)
        output.add(template.filled(stream_ids))

    def _unary_one(self, stream_id: int, message: bytes) -> None:
        """A successful answer on one stream."""
        output = self._output
        headers, trailers = output.replies.unary()
        data = b"\0" + len(message).to_bytes(4, "big") + message
        output.answered = True
        output.window -= len(data)
        output.add(
            frames.frame(frames.HEADERS, frames.END_HEADERS, stream_id, headers)
            + frames.frame(frames.DATA, 0, stream_id, data)
            + frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream_id, trailers)
        )


class _Template:
    """Frames of an answer that many streams get: all of it but the stream ids, of which there are three."""

    def __init__(self, headers: bytes, message: bytes, trailers: bytes) -> None:
        self.message = message
        self.trailers = trailers
        data = b"\0" + len(message).to_bytes(4, "big") + message
        framed = (
            frames.frame(frames.HEADERS, frames.END_HEADERS, 0, headers),
            frames.frame(frames.DATA, 0, 0, data),
            frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 0, trailers),
        )
        whole = b"".join(framed)
        self._row = np.frombuffer(whole, np.uint8)
        self._rows = np.empty((0, len(whole)), np.uint8)
        second = len(framed[0])
        self._at = 5, second + 5, second + len(framed[1]) + 5  # where the ids stand
        first, second, third = self._at
        self._parts = whole[:first], whole[first + 4 : second], whole[second + 4 : third], whole[third + 4 :]
        self._packer = struct.Struct(">" + "I".join(f"{len(part)}s" for part in self._parts))

    def filled(self, stream_ids: Sequence[int]) -> bytes:
        """The frames for these streams."""
        count = len(stream_ids)
        if count <= _FEW:
            (first, second, third, last), pack = self._parts, self._packer.pack
            return b"".join([pack(first, n, second, n, third, n, last) for n in stream_ids])
        if len(self._rows) < count:
            self._rows = np.tile(self._row, (1 << (count - 1).bit_length(), 1))
        rows = self._rows[:count]
        ids = np.array(stream_ids, ">u4").view(np.uint8).reshape(count, 4)
        for at in self._at:
            rows[:, at : at + 4] = ids
        return rows.tobytes()
