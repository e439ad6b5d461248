"""What handlers and the door hand each other beyond what generated servicers know.

A group handler takes all requests of one method that one socket read brought and answers them together; a streaming
handler may yield many messages as one piece. Both spare the work that would be done for each message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc

Trailing = tuple[tuple[str, str | bytes], ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call that ends without a message: gRPC code, text, metadata of the trailers (``-bin`` values are bytes)."""

    code: grpc.StatusCode
    details: str = ""
    trailing: Trailing = ()


# A serialized response message, or why there is none. Give the same object for equal answers: the door compares with
# `is` first and writes a prebuilt block for a group whose answers are all equal.
Answer = bytes | Refusal

# Requests are serialized messages without their prefix, in the order in which they came. `answer` is to be called once,
# on the event loop, with one Answer for each request; calls that ended meanwhile are dropped by the door.
AnswerGroup = Callable[[Sequence[Answer]], None]
GroupHandler = Callable[[list[bytes], AnswerGroup], None]


@dataclass(frozen=True, slots=True)
class Messages:
    """Many response messages of a stream back to back, each with its gRPC prefix (0, then the length as u32be)."""

    data: bytes | memoryview
    count: int
