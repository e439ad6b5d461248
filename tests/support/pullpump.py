"""A Pump that serves what a test puts into it: PullBatches, Status and Accept, or a Go Pump's PullBinlogs."""

from __future__ import annotations

import threading
from concurrent import futures

import grpc
import pyarrow as pa

from pumphouse.archive.puller import SCHEMA
from pumphouse.codec.payload import PrewriteValueBuilder, make_commit, make_prewrite, merge
from pumphouse.errors import BinlogError, ClusterMismatch, PositionCollected
from pumphouse.model.node import NodeKind, NodeState, NodeStatus, PumpExtra, Replaced
from pumphouse.model.tso import Tso
from pumphouse.proto import pump_pb2, pump_pb2_grpc, pumphouse_pb2, pumphouse_pb2_grpc
from pumphouse.registry.base import Cluster
from pumphouse.rpc.channel import SERVER_OPTIONS
from pumphouse.rpc.status import abort_details
from tests.support.rowreference import make_fake


class PullPump(pump_pb2_grpc.PumpServicer, pumphouse_pb2_grpc.PumpBatchServicer):
    """``binlogs`` holds (commit_ts, start_ts, payload, job id, flag); everything up to ``watermark`` is served."""

    def __init__(self, cluster: Cluster, node_id: str, *, go: bool = False, incarnation: str = "one") -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.go = go
        self.incarnation = "" if go else incarnation
        self.start_count = 1
        self.sync_log = True
        self.binlogs: list[tuple[int, int, bytes, int, int]] = []
        self.watermark = 0
        self.follow_clock = True  # the watermark is a fresh timestamp with each frame, as an idle Pump's is
        self.gc_point = 0
        self.refuse_with: BinlogError | None = None  # instead of any frame
        self.blocker = 0
        self.replaced: tuple[Replaced, ...] = ()
        self.pending: dict[tuple[int, int], str] = {}
        self.accepted: list[tuple[int, int]] = []
        self.frame_rows = 100
        self.on_frame = lambda: None
        self.pulls: list[int] = []
        self.state = NodeState.ONLINE
        self.addr = "127.0.0.1:0"
        self._stopping = threading.Event()
        self._server: grpc.Server | None = None

    def start(self) -> PullPump:
        self._stopping = threading.Event()
        self._server = grpc.server(futures.ThreadPoolExecutor(8), options=SERVER_OPTIONS)
        pump_pb2_grpc.add_PumpServicer_to_server(self, self._server)
        if not self.go:
            pumphouse_pb2_grpc.add_PumpBatchServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(self.addr)
        self.addr = f"127.0.0.1:{port}"
        self._server.start()
        self.register(NodeState.ONLINE)
        return self

    def stop(self) -> None:
        self._stopping.set()
        if self._server is not None:
            self._server.stop(0.1).wait()
            self._server = None

    def register(self, state: NodeState) -> None:
        self.state = state
        extra = None
        if not self.go:
            extra = PumpExtra(
                incarnation=self.incarnation,
                start_count=self.start_count,
                sync_log=self.sync_log,
                replaced=self.replaced,
            )
        status = NodeStatus(
            node_id=self.node_id, host=self.addr, state=state, extra=extra, update_ts=self.cluster.tso()
        )
        self.cluster.update_node(NodeKind.PUMP, self.node_id, lambda _: status)

    def empty(self, incarnation: str) -> None:
        """Its directory is gone; it registers again with a new one."""
        found = self.cluster.node(NodeKind.PUMP, self.node_id)
        assert found is not None
        gone = Replaced(incarnation=self.incarnation, start_count=self.start_count, update_ts=found.update_ts)
        self.replaced = (*self.replaced, gone)
        self.binlogs, self.incarnation, self.start_count = [], incarnation, 1
        self.register(NodeState.ONLINE)

    # -- content

    def transaction(self, table: int = 7, rows: int = 1, size: int = 16, *, start=0, commit=0, flag=0, fill=1) -> Tso:
        """A committed transaction with inserts; returns its commit ts."""
        start = start or self.cluster.tso()
        commit = commit or self.cluster.tso()
        value = PrewriteValueBuilder(1)
        for row in range(rows):
            value.insert(table, bytes([fill, row % 250]) * (size // 2))
        payload = merge(make_prewrite(start, b"k", value.build()), make_commit(start, commit, b"k"))
        self.put(commit, start, payload, 0, flag)
        return Tso(commit)

    def ddl(self, job_id: int, query: bytes = b"create table t (a int)", state: int = 5) -> Tso:
        start, commit = self.cluster.tso(), self.cluster.tso()
        fields = {"ddl_query": query, "ddl_job_id": job_id, "ddl_schema_state": state}
        payload = merge(make_prewrite(start, b"k", **fields), make_commit(start, commit, b"k", **fields))
        self.put(commit, start, payload, job_id, 0)
        return commit

    def fake(self) -> Tso:
        ts = self.cluster.tso()
        self.put(ts, ts, make_fake(ts), 0, 0)
        return ts

    def put(self, commit: int, start: int, payload: bytes, job_id: int, flag: int) -> None:
        self.binlogs = sorted([*self.binlogs, (commit, start, payload, job_id, flag)])

    # -- calls

    def _refuse(self, context, error: BinlogError) -> None:
        code, details, metadata = abort_details(error)
        context.set_trailing_metadata(metadata)
        context.abort(code, details)

    def _mark(self) -> int:
        if self.follow_clock:
            self.watermark = self.cluster.tso()
        return self.watermark

    def _after(self, position: int, mark: int) -> list[tuple[int, int, bytes, int, int]]:
        return [each for each in self.binlogs if position < each[0] <= mark][: self.frame_rows]

    def PullBatches(self, request, context):
        if request.cluster_id != self.cluster.cluster_id():
            self._refuse(context, ClusterMismatch("wrong cluster", got=request.cluster_id, want=1))
        position = request.start_from
        self.pulls.append(position)
        if self.refuse_with is not None:
            self._refuse(context, self.refuse_with)
        if position < self.gc_point:
            error = PositionCollected("collected", start_from=position, gc_point=self.gc_point)
            self._refuse(context, error)
        while context.is_active() and not self._stopping.is_set():
            self.on_frame()
            mark = self._mark()
            rows = self._after(position, mark)
            position = rows[-1][0] if len(rows) == self.frame_rows else max(position, mark)
            frame = b""
            if rows:
                commit, start, payload, job_id, flag = zip(*rows, strict=True)
                batch = pa.record_batch(
                    [
                        pa.array(commit, pa.int64()),
                        pa.array(start, pa.int64()),
                        pa.array(job_id, pa.int64()),
                        pa.array(payload, pa.large_binary()),
                        pa.array(flag, pa.uint8()),
                    ],
                    schema=SCHEMA,
                )
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, SCHEMA) as writer:
                    writer.write_batch(batch)
                frame = sink.getvalue().to_pybytes()
            yield pumphouse_pb2.PullBatchesResponse(
                frame=frame,
                watermark=position,
                node_id=self.node_id,
                incarnation=self.incarnation,
                start_count=self.start_count,
                sync_log=self.sync_log,
                gc_point=self.gc_point,
                blocker=pumphouse_pb2.Blocker(start_ts=self.blocker) if self.blocker else None,
            )
            if len(rows) < self.frame_rows:
                self._stopping.wait(0.02)

    def PullBinlogs(self, request, context):
        position = request.startFrom.offset
        self.pulls.append(position)
        # As the Go Pump: a position below the GC point is moved forward, in silence.
        position = max(position, self.gc_point)
        while context.is_active() and not self._stopping.is_set():
            for commit, start, payload, _, _ in self._after(position, 1 << 62):
                position = commit
                entity = pump_pb2.Entity(payload=payload, meta=pump_pb2.Meta(startTs=start, commitTs=commit))
                yield pump_pb2.PullBinlogResp(entity=entity)
            if self.follow_clock:
                self.fake()
            self._stopping.wait(0.05)

    def Status(self, request, context):
        pending = [
            (kind, pumphouse_pb2.PendingCommit(start_ts=s, commit_ts=c, accepted=(s, c) in self.accepted))
            for (s, c), kind in self.pending.items()
        ]
        return pumphouse_pb2.StatusResponse(
            node_id=self.node_id,
            incarnation=self.incarnation,
            gc_point=self.gc_point,
            late=[each for kind, each in pending if kind == "late"],
            orphans=[each for kind, each in pending if kind == "orphan"],
        )

    def Accept(self, request, context):
        self.accepted.append((request.start_ts, request.commit_ts))
        return pumphouse_pb2.AcceptResponse()
