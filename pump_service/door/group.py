"""What handlers and the door hand each other beyond what generated servicers know.

A group handler takes requests of one method that one socket read brought, or several reads at about the same time, and
answers them together; a streaming handler may yield many messages as one piece. Both spare the work that would be done
for each message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, overload, runtime_checkable

import grpc
import numpy as np
from numpy.typing import NDArray

_SLACK = 4 << 10  # bytes of a buffer that may be held for nothing
Trailing = tuple[tuple[str, str | bytes], ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call that ends without a message: gRPC code, text, metadata of the trailers (``-bin`` values are bytes)."""

    code: grpc.StatusCode
    details: str = ""
    trailing: Trailing = ()


@runtime_checkable
class Endable(Protocol):
    """A call's context by which it can be ended from outside its handler."""

    def end(self, refusal: Refusal) -> None:
        """End the call with this status, wherever its handler waits."""
        ...


# A serialized response message, or why there is none. Give the same object for equal answers: the door compares with
# `is` first and writes a prebuilt block for a group whose answers are all equal.
Answer = bytes | Refusal


@dataclass(slots=True, eq=False)
class Requests(Sequence[bytes]):
    """Serialized messages without their prefix, in the order in which they came.

    Request i is ``data[starts[i] : starts[i] + sizes[i]]``; starts ascend. The buffer is usually that of a socket read,
    of which they are a good part: whoever holds them holds all of it.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    message_bytes: int  # of all messages

    @classmethod
    def of(cls, messages: Sequence[bytes]) -> Self:
        """From single messages."""
        sizes = np.fromiter(map(len, messages), np.int64, len(messages))
        data = messages[0] if len(messages) == 1 else b"".join(messages)
        return cls(np.frombuffer(data, np.uint8), np.cumsum(sizes) - sizes, sizes, len(data))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """One behind the other, in a buffer that holds little else."""
        if len(parts) == 1:
            (part,) = parts
            return part if len(part.data) <= 2 * part.message_bytes + _SLACK else cls.of(list(part))
        pieces: list[memoryview] = []
        starts, at = [], 0
        for part in parts:
            begin, end = int(part.starts[0]), int(part.starts[-1] + part.sizes[-1])
            pieces.append(part.data.data[begin:end])
            starts.append(part.starts + (at - begin))
            at += end - begin
        # Through bytes, so that the buffer is read-only as all others are.
        data = np.frombuffer(b"".join(pieces), np.uint8)
        sizes = np.concatenate([part.sizes for part in parts])
        return cls(data, np.concatenate(starts), sizes, sum(part.message_bytes for part in parts))

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        start = int(self.starts[index])
        return self.data[start : start + int(self.sizes[index])].tobytes()


# `answer` is to be called once, on the event loop, with one Answer for each request; calls that ended meanwhile are
# dropped by the door.
AnswerGroup = Callable[[Sequence[Answer]], None]
GroupHandler = Callable[[Requests, AnswerGroup], None]


@dataclass(frozen=True, slots=True)
class Messages:
    """Response messages of a stream back to back, each with its gRPC prefix (0, then the length as u32be).

    In one piece or several, cut anywhere: what is large need not be copied to stand behind its prefix.
    """

    pieces: tuple[bytes | memoryview, ...]
    count: int
