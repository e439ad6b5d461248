"""A watch on an etcd prefix that outlives broken connections, changes of the leader and frozen members.

A stream that says nothing is asked for its progress; a member that does not answer that either is left for the next
one. What is lost on the way is only the stream: it begins again at the revision after the last event that was seen.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc

from pumphouse.errors import BinlogError
from pumphouse.library_log import library_logger
from pumphouse.proto import etcd_kv_pb2 as kvpb
from pumphouse.proto import etcd_rpc_pb2 as pb
from pumphouse.registry.etcd_client import Compacted, EtcdClient, KeyValue, end_of_prefix, key_value

log = library_logger(__name__)

_ASK_AFTER_S = 5.0
_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class KeyEvent:
    """A key was written, or deleted (then only its key and the revision of the deletion are set)."""

    kv: KeyValue
    deleted: bool


class Watch:
    """Changes of all keys under a prefix, from a revision on. One thread iterates, any may close."""

    def __init__(
        self, client: EtcdClient, prefix: bytes, start_revision: int, *, ask_after_s: float = _ASK_AFTER_S
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._next = start_revision
        self._ask_after_s = ask_after_s
        self._closed = threading.Event()
        self._stream: _Stream | None = None

    @property
    def revision(self) -> int:
        """Everything up to this revision has been given out."""
        return self._next - 1

    def __iter__(self) -> Iterator[list[KeyEvent]]:
        """Events in order, in lists; events of one transaction are never apart. Ends when closed.

        Raises:
            Compacted: etcd has dropped events that were not seen; list the keys and watch from there.
        """
        wait = _FIRST_WAIT_S
        while not self._closed.is_set():
            at = self._client.at
            try:
                for events in self._run():
                    wait = _FIRST_WAIT_S
                    if events:
                        yield events
            except Compacted:
                raise
            except (grpc.RpcError, BinlogError, ValueError) as error:
                if self._closed.is_set():
                    return
                if wait == _FIRST_WAIT_S:  # once for each break, however long it lasts
                    log.warning("etcd_watch_broken", endpoint=self._client.endpoints[at], error=_text(error))
                self._client.failed(at)
            if self._closed.wait(wait):
                return
            wait = min(wait * 2, _LONGEST_WAIT_S)

    def close(self) -> None:
        """End the iteration, also from another thread."""
        self._closed.set()
        stream = self._stream
        if stream is not None:
            stream.end()

    def _run(self) -> Iterator[list[KeyEvent]]:
        """One stream, until it breaks; an empty list is a sign of life."""
        stream = self._stream = _Stream(self._ask_after_s)
        stream.send(
            pb.WatchRequest(
                create_request=pb.WatchCreateRequest(
                    key=self._prefix,
                    range_end=end_of_prefix(self._prefix),
                    start_revision=self._next,
                    progress_notify=True,
                )
            )
        )
        stream.call = self._client.open_watch(iter(stream))
        try:
            if self._closed.is_set():
                return
            watch_id = 0
            for answer in stream.call:
                stream.heard()
                if answer.created:
                    watch_id = answer.watch_id
                if answer.canceled:
                    self._refused(answer)
                    return
                if answer.events:
                    self._next = answer.events[-1].kv.mod_revision + 1
                elif not answer.created and answer.watch_id == watch_id:
                    # Progress that etcd reports of itself: this watch has seen everything up to here. The answer to
                    # a request for progress (another watch id) does not promise that.
                    self._next = max(self._next, answer.header.revision + 1)
                yield [_event(event) for event in answer.events]
        finally:
            stream.end()

    def _refused(self, answer: pb.WatchResponse) -> None:
        if answer.compact_revision:
            raise Compacted(
                f"etcd keeps its history from revision {answer.compact_revision} on, asked for was {self._next}",
                revision=answer.compact_revision,
            )
        self._client.forget_token()
        raise ValueError(answer.cancel_reason or "the watch was cancelled")


class _Stream:
    """The sending side of one stream, which watches over the receiving side."""

    def __init__(self, ask_after_s: float) -> None:
        self.call: Any = None
        self._ask_after_s = ask_after_s
        self._requests: queue.SimpleQueue[pb.WatchRequest | None] = queue.SimpleQueue()
        self._unanswered = 0

    def send(self, request: pb.WatchRequest | None) -> None:
        self._requests.put(request)

    def heard(self) -> None:
        self._unanswered = 0

    def end(self) -> None:
        self.send(None)
        if self.call is not None:
            self.call.cancel()

    def __iter__(self) -> Iterator[pb.WatchRequest]:
        """Consumed by a thread of gRPC."""
        while True:
            try:
                request = self._requests.get(timeout=self._ask_after_s)
            except queue.Empty:
                if self._unanswered and self.call is not None:
                    self.call.cancel()
                    return
                self._unanswered += 1
                request = pb.WatchRequest(progress_request=pb.WatchProgressRequest())
            if request is None:
                return
            yield request


def _event(event: kvpb.Event) -> KeyEvent:
    return KeyEvent(key_value(event.kv), deleted=event.type == kvpb.Event.DELETE)


def _text(error: Exception) -> str:
    return error.details() or "" if isinstance(error, grpc.Call) else str(error)
