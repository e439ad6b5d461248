"""One Pump's stream as frames of Arrow columns: ``PullBatches`` from ours, unary ``PullBinlogs`` from a Go Pump.

A frame says up to which commit ts the stream is complete with it; the end of a stream never says that. Frames come at
least about every second, also while nothing moves, so that the caller can look at its clock.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import pyarrow as pa

from pumphouse.archive.manifest import AcceptedCommit, LastBinlog
from pumphouse.errors import BadBinlog, BinlogError, CorruptionError, PumpUnavailable
from pumphouse.model.node import NodeStatus
from pumphouse.model.tso import Tso
from pumphouse.proto.binlog_pb2 import Binlog
from pumphouse.proto.pump_pb2 import Pos, PullBinlogReq
from pumphouse.proto.pump_pb2_grpc import PumpStub
from pumphouse.proto.pumphouse_pb2 import (
    AcceptRequest,
    PendingCommit,
    PullBatchesRequest,
    PullBatchesResponse,
    StatusRequest,
    StatusResponse,
)
from pumphouse.proto.pumphouse_pb2_grpc import PumpBatchStub
from pumphouse.rpc.channel import open_channel
from pumphouse.rpc.operator import Proof
from pumphouse.rpc.status import from_rpc_error
from pumphouse.settings import TlsSettings

IN_ORDER, ORPHAN, LATE = 0, 1, 2
CALL_TIMEOUT_S = 10.0
_GO_FRAME_BYTES = 4 << 20
_GO_AHEAD_BYTES = 64 << 20
_ITEM_BYTES = 128  # what one message costs besides its payload
_IDLE_S = 1.0
_READY_S = 1.0

SCHEMA = pa.schema(
    [
        pa.field("commit_ts", pa.int64(), nullable=False),
        pa.field("start_ts", pa.int64(), nullable=False),
        pa.field("ddl_job_id", pa.int64(), nullable=False),
        pa.field("payload", pa.large_binary(), nullable=False),
        pa.field("flag", pa.uint8(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Binlogs in order, fakes too (start ts = commit ts); columns as SCHEMA. ``batch`` None: only the position moved.

    ``last`` is set by Go Pumps alone: the last binlog of the stream so far.
    """

    batch: pa.RecordBatch | None
    complete_to: Tso
    incarnation: str
    start_count: int
    sync_log: bool
    blocked_by: Tso  # start ts of the oldest unresolved prewrite, 0 = none
    last: LastBinlog | None = None


class Puller(Protocol):
    """A connection to one Pump."""

    def frames(self, after: Tso) -> Iterator[Frame]:
        """Frames with commit ts > after, for ever. PumpUnavailable, PositionCollected, ClusterMismatch."""
        ...

    def first_after(self, after: Tso, timeout_s: float) -> tuple[Tso, bytes] | None:
        """The first binlog above a ts (fakes too) and its commit ts; None when none came in time.

        PumpUnavailable when the Pump does not answer at all.
        """
        ...

    def status(self) -> StatusResponse | None:
        """What holds what; None for a Go Pump."""
        ...

    def accept(self, start_ts: Tso, commit_ts: Tso, reason: str) -> None:
        """Tell the Pump that the archive took a late or orphan commit."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


def kept_out(status: StatusResponse | None) -> list[tuple[str, PendingCommit]]:
    """What a Pump says that it kept out of its stream: (late or orphan, the commit); [] of a Go Pump.

    One that is both is an orphan: nothing of it can be taken.
    """
    if status is None:
        return []
    orphans = {(each.start_ts, each.commit_ts) for each in status.orphans}
    late = [each for each in status.late if (each.start_ts, each.commit_ts) not in orphans]
    return [(AcceptedCommit.LATE, each) for each in late] + [(AcceptedCommit.ORPHAN, each) for each in status.orphans]


def open_puller(status: NodeStatus, cluster_id: int, tls: TlsSettings | None = None, proof: Proof = ()) -> Puller:
    """Connect to a registered Pump, the way it speaks. ``proof``: shown to our Pumps alone."""
    if status.extra is not None and status.extra.batch:
        return BatchPuller(status, cluster_id, tls, proof)
    return GoPuller(status, cluster_id, tls)


def _nothing_came(error: Any, channel: grpc.Channel) -> bool:
    """Whether the other side is there and had nothing to send in time: a call to one that hangs ends like that too."""
    if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
        return False
    try:
        grpc.channel_ready_future(channel).result(timeout=_READY_S)
    except grpc.FutureTimeoutError:
        return False
    return True


def _refusal(error: grpc.RpcError, node_id: str) -> BinlogError:
    """What the Pump refused with; damage is named with the Pump, whose path alone says nothing elsewhere."""
    found = from_rpc_error(error, peer=node_id)
    if not isinstance(found, CorruptionError):
        return found
    return found.rebuild(f"Pump {node_id}: {found.message}", found.advice, {**found.facts, "node_id": node_id})


class BatchPuller:
    """Our Pump."""

    def __init__(self, status: NodeStatus, cluster_id: int, tls: TlsSettings | None = None, proof: Proof = ()) -> None:
        self._proof = proof
        self._node_id = status.node_id
        self._cluster_id = cluster_id
        self._channel = open_channel(status.host, tls)
        self._stub = PumpBatchStub(self._channel)

    def frames(self, after: Tso) -> Iterator[Frame]:
        """Frames, for ever."""
        call = self._stub.PullBatches(
            PullBatchesRequest(cluster_id=self._cluster_id, start_from=after), metadata=self._proof
        )
        try:
            for answer in call:
                yield self._frame(answer)
        except grpc.RpcError as error:
            raise _refusal(error, self._node_id) from error
        finally:
            call.cancel()
        # OK is how a Pump that stops ends its streams; it says nothing about the data.
        raise PumpUnavailable(f"Pump {self._node_id} ended its stream: it is stopping", node_id=self._node_id)

    def first_after(self, after: Tso, timeout_s: float) -> tuple[Tso, bytes] | None:
        """The first binlog above a ts."""
        call = self._stub.PullBatches(
            PullBatchesRequest(cluster_id=self._cluster_id, start_from=after, max_frame_bytes=4096),
            timeout=timeout_s,
            metadata=self._proof,
        )
        try:
            for answer in call:
                batch = self._frame(answer).batch
                if batch is not None and batch.num_rows:
                    return Tso(batch.column("commit_ts")[0].as_py()), batch.column("payload")[0].as_py()
        except grpc.RpcError as error:
            if not _nothing_came(error, self._channel):
                raise _refusal(error, self._node_id) from error
        finally:
            call.cancel()
        return None

    def status(self) -> StatusResponse | None:
        """What holds what."""
        try:
            answer: StatusResponse = self._stub.Status(
                StatusRequest(cluster_id=self._cluster_id), timeout=CALL_TIMEOUT_S
            )
        except grpc.RpcError as error:
            raise _refusal(error, self._node_id) from error
        return answer

    def accept(self, start_ts: Tso, commit_ts: Tso, reason: str) -> None:
        """Tell the Pump."""
        request = AcceptRequest(cluster_id=self._cluster_id, start_ts=start_ts, commit_ts=commit_ts, reason=reason)
        try:
            self._stub.Accept(request, timeout=CALL_TIMEOUT_S, metadata=self._proof)
        except grpc.RpcError as error:
            raise _refusal(error, self._node_id) from error

    def close(self) -> None:
        """Hang up."""
        self._channel.close()

    def _frame(self, answer: PullBatchesResponse) -> Frame:
        batch = None
        if answer.frame:
            try:
                table = pa.ipc.open_stream(pa.py_buffer(answer.frame)).read_all()
                batch = table.select(SCHEMA.names).cast(SCHEMA).combine_chunks().to_batches()
            except (pa.ArrowException, KeyError) as error:
                raise BadBinlog(f"Pump {self._node_id} sent a frame that cannot be read: {error}") from error
            batch = batch[0] if batch else None
        return Frame(
            batch=batch,
            complete_to=Tso(answer.watermark),
            incarnation=answer.incarnation,
            start_count=answer.start_count,
            sync_log=answer.sync_log,
            blocked_by=Tso(answer.blocker.start_ts if answer.HasField("blocker") else 0),
        )


class GoPuller:
    """A Go Pump: one message a binlog, strictly ascending commit ts, fakes as the only sign of progress."""

    def __init__(self, status: NodeStatus, cluster_id: int, tls: TlsSettings | None = None) -> None:
        self._node_id = status.node_id
        self._cluster_id = cluster_id
        self._channel = open_channel(status.host, tls)
        self._stub = PumpStub(self._channel)

    def frames(self, after: Tso) -> Iterator[Frame]:
        """Frames, for ever."""
        request = PullBinlogReq(clusterID=self._cluster_id, startFrom=Pos(offset=after))
        inbox = _Ahead(_GO_AHEAD_BYTES)
        call = self._stub.PullBinlogs(request)
        done = threading.Event()

        def read() -> None:
            try:
                for answer in call:
                    _offer(inbox, answer.entity.payload, done)
                outcome: Any = PumpUnavailable(f"Pump {self._node_id} ended its stream", node_id=self._node_id)
            except grpc.RpcError as error:
                outcome = from_rpc_error(error, peer=self._node_id)
            _offer(inbox, outcome, done)

        reader = threading.Thread(target=read, name=f"pull-{self._node_id}", daemon=True)
        reader.start()
        position, last = after, None
        try:
            while True:
                payloads, outcome = _drain(inbox)
                if payloads:
                    batch, last = _go_batch(payloads)
                    position = Tso(max(position, last.commit_ts))
                    yield self._frame(batch, position, last)
                elif outcome is None:
                    yield self._frame(None, position, last)
                if outcome is not None:
                    raise outcome
        finally:
            done.set()
            call.cancel()
            reader.join()

    def first_after(self, after: Tso, timeout_s: float) -> tuple[Tso, bytes] | None:
        """The first binlog above a ts."""
        request = PullBinlogReq(clusterID=self._cluster_id, startFrom=Pos(offset=after))
        call = self._stub.PullBinlogs(request, timeout=timeout_s)
        try:
            for answer in call:
                return _go_batch([answer.entity.payload])[1].commit_ts, answer.entity.payload
        except grpc.RpcError as error:
            if not _nothing_came(error, self._channel):
                raise from_rpc_error(error, peer=self._node_id) from error
        finally:
            call.cancel()
        return None

    def status(self) -> StatusResponse | None:
        """A Go Pump has no such call."""
        return None

    def accept(self, start_ts: Tso, commit_ts: Tso, reason: str) -> None:
        """A Go Pump does not keep such commits."""

    def close(self) -> None:
        """Hang up."""
        self._channel.close()

    def _frame(self, batch: pa.RecordBatch | None, position: Tso, last: LastBinlog | None) -> Frame:
        return Frame(
            batch=batch,
            complete_to=position,
            incarnation="",
            start_count=0,
            sync_log=True,  # it does not say; its default is on
            blocked_by=Tso(0),
            last=last,
        )


class _Ahead(queue.Queue[Any]):
    """What a Go Pump sends ahead, while a segment is written, say: ``maxsize`` bytes, and one message more at most."""

    def _init(self, maxsize: int) -> None:
        super()._init(maxsize)
        self._held = 0

    def _qsize(self) -> int:
        return self._held

    def _put(self, item: Any) -> None:
        super()._put(item)
        self._held += _weight(item)

    def _get(self) -> Any:
        item = super()._get()
        self._held -= _weight(item)
        return item


def _weight(item: Any) -> int:
    return _ITEM_BYTES + (len(item) if isinstance(item, bytes) else 0)


def _offer(inbox: queue.Queue[Any], item: Any, done: threading.Event) -> None:
    """Put, unless the other side has gone."""
    while not done.is_set():
        try:
            return inbox.put(item, timeout=_IDLE_S)
        except queue.Full:
            continue
    return None


def _drain(inbox: queue.Queue[Any]) -> tuple[list[bytes], BaseException | None]:
    """What has arrived, about a frame at most; waits about a second for the first."""
    payloads: list[bytes] = []
    size = 0
    try:
        item = inbox.get(timeout=_IDLE_S)
        while True:
            if isinstance(item, BaseException):
                return payloads, item
            payloads.append(item)
            size += len(item)
            if size >= _GO_FRAME_BYTES:
                return payloads, None
            item = inbox.get_nowait()
    except queue.Empty:
        return payloads, None


def _go_batch(payloads: list[bytes]) -> tuple[pa.RecordBatch, LastBinlog]:
    heads = []
    for payload in payloads:
        binlog = Binlog()
        try:
            binlog.ParseFromString(payload)
        except Exception as error:  # google.protobuf has an error class of its own per implementation
            raise BadBinlog(f"a payload of {len(payload)} bytes does not parse: {error}") from error
        heads.append((binlog.commit_ts, binlog.start_ts, binlog.ddl_job_id))
    commit_ts, start_ts, job_id = zip(*heads, strict=True)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(commit_ts, pa.int64()),
            pa.array(start_ts, pa.int64()),
            pa.array(job_id, pa.int64()),
            pa.array(payloads, pa.large_binary()),
            pa.array([IN_ORDER] * len(payloads), pa.uint8()),
        ],
        schema=SCHEMA,
    )
    last = LastBinlog(commit_ts=Tso(commit_ts[-1]), sha256=hashlib.sha256(payloads[-1]).hexdigest())
    return batch, last
