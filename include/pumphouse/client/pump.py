"""One Pump as its writers see it: unary ``binlog.Pump.WriteBinlog``, which our Pump and the Go Pump both serve.

Several binlogs go to ours in batches on one stream (``pumphouse.v1.PumpBatch/WriteBinlogs``): one fsync, one answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import grpc
from google.protobuf.message import Message

from pumphouse.codec.number import append_uvarint
from pumphouse.errors import BadBinlog, BinlogError, PumpError, PumpUnavailable
from pumphouse.model.binlog import MAX_TRANSACTION_BYTES
from pumphouse.proto.pump_pb2 import WriteBinlogReq, WriteBinlogResp
from pumphouse.proto.pumphouse_pb2 import WriteBinlogsRequest, WriteBinlogsResponse
from pumphouse.rpc.channel import open_channel
from pumphouse.rpc.status import from_item_status, from_rpc_error
from pumphouse.settings import TlsSettings

# Of one request of the batch call; a larger payload goes alone.
BATCH_BYTES = 1 << 20
BATCH_ITEMS = 4096
# Unary calls at once, to a Pump that knows no batches.
UNARY_IN_FLIGHT = 64
# What a Pump and the way to it manage at the least: a transaction near the limit may take two minutes.
WRITE_BYTES_PER_S = float(16 << 20)


class Payload(Protocol):
    """The bytes of a binlog. A large one may be read as late as it is sent: each `bytes` of it is a copy then."""

    def __len__(self) -> int: ...

    def __bytes__(self) -> bytes: ...


def refuse_too_large(payload: Payload) -> None:
    """Raise BadBinlog over the one limit on a transaction (row P17), before anything is sent."""
    if len(payload) > MAX_TRANSACTION_BYTES:
        raise BadBinlog(
            f"a binlog of {len(payload)} bytes is over the limit of {MAX_TRANSACTION_BYTES}",
            hint="split the transaction",
            size=len(payload),
            limit=MAX_TRANSACTION_BYTES,
        )


def time_for(payloads: Iterable[Payload], timeout_s: float, bytes_per_s: float) -> float:
    """Seconds that a write may take: ``timeout_s``, and one more for each ``bytes_per_s`` bytes (row P17)."""
    return timeout_s + sum(map(len, payloads)) / bytes_per_s


class PumpConnection:
    """Channel to one Pump, for any number of threads. Make it after a fork."""

    def __init__(
        self,
        node_id: str,
        host: str,
        cluster_id: int,
        tls: TlsSettings | None = None,
        *,
        batch: bool = False,
        bytes_per_s: float = WRITE_BYTES_PER_S,
    ) -> None:
        """Connect on first use.

        Args:
            node_id: for messages.
            host: ``host:port``.
            cluster_id: what every call carries.
            tls: certificates.
            batch: whether it serves the batch call, as its status says; a Go Pump does not.
            bytes_per_s: each call has a second more than its time-out for so many bytes of payloads.
        """
        self.node_id = node_id
        self.host = host
        self.batch = batch
        self._bytes_per_s = bytes_per_s
        self._cluster_id = cluster_id
        self._channel = open_channel(host, tls)
        self._write = self._channel.unary_unary(
            "/binlog.Pump/WriteBinlog",
            request_serializer=bytes,
            response_deserializer=WriteBinlogResp.FromString,
        )
        self._batches = self._channel.stream_stream(
            "/pumphouse.v1.PumpBatch/WriteBinlogs",
            request_serializer=bytes,
            response_deserializer=WriteBinlogsResponse.FromString,
        )
        self.ended = False  # by this client; what fails then says nothing of the Pump

    def write(self, payload: Payload, timeout_s: float) -> None:
        """Store one binlog; durable on return. Any refusal or silence is a BinlogError."""
        refuse_too_large(payload)
        try:
            answer = self._write(self._request(payload), timeout=self._time_for([payload], timeout_s))
        except grpc.RpcError as error:
            raise self._failure(error) from error
        except ValueError as error:  # what gRPC says of a channel that another thread closed
            raise self._closed() from error
        self._check(answer)

    def write_many(self, payloads: Sequence[Payload], timeout_s: float) -> list[BinlogError | None]:
        """Store several at once; one outcome each, None = durable.

        In the order given where the Pump serves the batch call, in no particular order else.
        """
        if len(payloads) == 1:
            try:
                self.write(payloads[0], timeout_s)
            except BinlogError as error:
                return [error]
            return [None]
        if self.batch:
            outcomes = self._write_batches(payloads, timeout_s)
            if outcomes is not None:
                return outcomes
        return self._write_each(payloads, timeout_s)

    def _write_batches(self, payloads: Sequence[Payload], timeout_s: float) -> list[BinlogError | None] | None:
        """All of them on one stream; None where the call is not known."""
        outcomes: list[BinlogError | None] = []
        failure: BinlogError = PumpUnavailable(
            f"Pump {self.node_id} ended the stream before it had answered everything", node_id=self.node_id
        )
        spans = _batches_of(payloads)
        try:
            answers = self._batches(self._requests(payloads, spans), timeout=self._time_for(payloads, timeout_s))
            for at, answer in enumerate(answers):
                begin, end = spans[at] if at < len(spans) else (-1, -1)
                if (answer.batch_id, len(answer.statuses)) != (begin, end - begin):
                    # Which answer is whose is not known, so nothing of the whole stream is.
                    answers.cancel()
                    strange = PumpError(
                        f"Pump {self.node_id} answered batch {answer.batch_id} with {len(answer.statuses)} outcomes, "
                        f"due was batch {begin} with {end - begin}",
                        node_id=self.node_id,
                    )
                    return [strange] * len(payloads)
                outcomes += map(from_item_status, answer.statuses)
        except grpc.RpcError as error:
            if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.UNIMPLEMENTED and not outcomes:
                return None
            failure = self._failure(error)
        except ValueError:
            failure = self._closed()
        if isinstance(failure, BadBinlog):
            # A Pump with a small limit on requests: what is too large for it shows one by one.
            return outcomes + self._write_each(payloads[len(outcomes) :], timeout_s)
        return outcomes + [failure] * (len(payloads) - len(outcomes))

    def _requests(self, payloads: Sequence[Payload], spans: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        for begin, end in spans:
            request = WriteBinlogsRequest(cluster_id=self._cluster_id, batch_id=begin)
            if end - begin == 1:
                yield _with_payload(request, WriteBinlogsRequest.PAYLOADS_FIELD_NUMBER, payloads[begin])
            else:
                request.payloads.extend(map(bytes, payloads[begin:end]))
                yield request.SerializeToString()

    def _write_each(self, payloads: Sequence[Payload], timeout_s: float) -> list[BinlogError | None]:
        outcomes: list[BinlogError | None] = []
        for at in range(0, len(payloads), UNARY_IN_FLIGHT):
            some = self._write_some(payloads[at : at + UNARY_IN_FLIGHT], timeout_s)
            outcomes += some
            if all(isinstance(error, PumpUnavailable) for error in some):
                # It is silent: the others would wait for their time-outs one after the other.
                return outcomes + [some[-1]] * (len(payloads) - len(outcomes))
        return outcomes

    def _write_some(self, payloads: Sequence[Payload], timeout_s: float) -> list[BinlogError | None]:
        due_s = self._time_for(payloads, timeout_s)  # they share the connection
        try:
            calls = [self._write.future(self._request(payload), timeout=due_s) for payload in payloads]
        except ValueError:
            return [self._closed()] * len(payloads)
        outcomes: list[BinlogError | None] = []
        for call in calls:
            try:
                self._check(call.result())
            except grpc.RpcError as error:
                outcomes.append(self._failure(error))
            except grpc.FutureCancelledError:
                outcomes.append(self._closed())
            except BinlogError as error:
                outcomes.append(error)
            else:
                outcomes.append(None)
        return outcomes

    def probe(self, timeout_s: float) -> None:
        """Ask whether prewrites are taken: an empty binlog, of which nothing is stored."""
        self.write(b"", timeout_s)

    def close(self) -> None:
        """Close the channel; calls under way end with an error."""
        self.ended = True
        self._channel.close()

    def _time_for(self, payloads: Iterable[Payload], timeout_s: float) -> float:
        return time_for(payloads, timeout_s, self._bytes_per_s)

    def _request(self, payload: Payload) -> bytes:
        request = WriteBinlogReq(clusterID=self._cluster_id)
        return _with_payload(request, WriteBinlogReq.PAYLOAD_FIELD_NUMBER, payload)

    def _failure(self, error: grpc.RpcError) -> BinlogError:
        # A multi-threaded call raises itself: an RpcError that is a Call too.
        if self.ended and isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.CANCELLED:
            return self._closed()
        return from_rpc_error(error, peer=self.node_id)

    def _closed(self) -> BinlogError:
        return PumpUnavailable(
            f"Pump {self.node_id}: this client closed the connection before an answer came",
            node_id=self.node_id,
            code=grpc.StatusCode.CANCELLED.name,
        )

    def _check(self, answer: WriteBinlogResp) -> None:
        # Failures come as a gRPC status; the field is of older Pumps.
        if answer.errmsg:
            raise PumpError(f"Pump {self.node_id}: {answer.errmsg}", node_id=self.node_id)


def _with_payload(request: Message, field: int, payload: Payload) -> bytes:
    """A request with its last field (also an empty one), without the copies that protobuf makes of it."""
    head = bytearray(request.SerializeToString())
    append_uvarint(head, field << 3 | 2)
    append_uvarint(head, len(payload))
    return b"".join((head, bytes(payload)))


def _batches_of(payloads: Sequence[Payload]) -> list[tuple[int, int]]:
    """Where each request begins and ends."""
    spans = []
    begin = size = 0
    for place, payload in enumerate(payloads):
        if place > begin and (size + len(payload) > BATCH_BYTES or place - begin >= BATCH_ITEMS):
            spans.append((begin, place))
            begin, size = place, 0
        size += len(payload)
    return [*spans, (begin, len(payloads))]
