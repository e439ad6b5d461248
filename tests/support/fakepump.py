"""A Pump for tests of clients: real gRPC, no storage. Says what it is told to, remembers what it was sent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc

from pumphouse.errors import BinlogError
from pumphouse.model.node import NodeKind, NodeState, NodeStatus, PumpExtra
from pumphouse.model.tso import Tso
from pumphouse.proto import pump_pb2, pump_pb2_grpc, pumphouse_pb2, pumphouse_pb2_grpc
from pumphouse.proto.binlog_pb2 import Binlog
from pumphouse.registry.base import Cluster
from pumphouse.rpc.channel import SERVER_OPTIONS
from pumphouse.rpc.status import abort_details, go_abort, item_status
from pumphouse.rpc.tls import server_credentials
from pumphouse.settings import TlsSettings

Behave = Callable[[Binlog], BinlogError | float | None]
"""What to do with a binlog: store it (None), refuse it (an error), or answer after so many seconds."""


class FakePump(pump_pb2_grpc.PumpServicer, pumphouse_pb2_grpc.PumpBatchServicer):
    """Serves until `stop`; registered in a cluster on request."""

    def __init__(self, node_id: str, cluster: Cluster, *, tls: TlsSettings | None = None, addr: str = "127.0.0.1:0"):
        self.node_id = node_id
        self.cluster = cluster
        self.behave: Behave = lambda _: None
        self.gc_answer: pumphouse_pb2.TriggerGcResponse | BinlogError = pumphouse_pb2.TriggerGcResponse(started=True)
        self.taken: list[Binlog] = []
        self.asked = 0
        self.probes = 0
        self.collected = 0  # GC runs
        self.abort_with: tuple[grpc.StatusCode, str] | None = None
        self.batches = True  # whether the batch call is served
        self.batched: list[int] = []  # sizes of its requests
        self.muddle: Callable[[pumphouse_pb2.WriteBinlogsResponse], object] = lambda _: None  # done to batch answers
        self.break_after = 0  # end the stream after so many requests
        self._lock = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(64), options=SERVER_OPTIONS)
        pump_pb2_grpc.add_PumpServicer_to_server(self, self._server)
        pumphouse_pb2_grpc.add_PumpBatchServicer_to_server(self, self._server)
        credentials = server_credentials(tls or TlsSettings())
        port = self._server.add_secure_port(addr, credentials) if credentials else self._server.add_insecure_port(addr)
        self.host = f"{addr.rpartition(':')[0]}:{port}"
        self._server.start()

    def register(
        self,
        state: NodeState = NodeState.ONLINE,
        *,
        start_count: int = 1,
        http: str = "",
        go: bool = False,
        label: dict[str, str] | None = None,
    ):
        extra = None if go else PumpExtra(incarnation=f"i-{self.node_id}", start_count=start_count, http=http)
        status = NodeStatus(
            node_id=self.node_id,
            host=self.host,
            state=state,
            extra=extra,
            label=label,
            max_commit_ts=Tso(1),
            update_ts=self.cluster.tso(),
        )
        self.cluster.update_node(NodeKind.PUMP, self.node_id, lambda _: status)
        return self

    def stop(self) -> None:
        self._server.stop(0).wait(5)  # what a client sent by half keeps it

    def of_type(self, name: str) -> list[int]:
        """Start ts of the stored binlogs of a type, in the order of arrival."""
        with self._lock:
            return [
                b.start_ts
                for b in self.taken
                if b.tp == Binlog.DESCRIPTOR.fields_by_name["tp"].enum_type.values_by_name[name].number
            ]

    def WriteBinlog(self, request, context):
        with self._lock:
            self.asked += 1
        if self.abort_with is not None:
            context.abort(*self.abort_with)
        binlog = Binlog.FromString(request.payload)
        outcome = self.behave(binlog)
        if isinstance(outcome, BinlogError):
            context.abort(*go_abort(outcome)[:2])
        if isinstance(outcome, float):
            time.sleep(outcome)
        with self._lock:
            if request.clusterID != self.cluster.cluster_id():
                context.abort(
                    grpc.StatusCode.UNKNOWN,
                    f"cluster ID are mismatch, {request.clusterID} vs {self.cluster.cluster_id()}",
                )
            if request.payload:
                self.taken.append(binlog)
            else:
                self.probes += 1
        return pump_pb2.WriteBinlogResp()

    def WriteBinlogs(self, request_iterator, context):
        if not self.batches:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "a Go Pump")
        for request in request_iterator:
            statuses = []
            for payload in request.payloads:
                binlog = Binlog.FromString(payload)
                outcome = self.behave(binlog)
                if isinstance(outcome, float):
                    time.sleep(outcome)
                    outcome = None
                statuses.append(item_status(outcome))
                if outcome is None:
                    with self._lock:
                        self.taken.append(binlog)
            with self._lock:
                self.batched.append(len(request.payloads))
            answer = pumphouse_pb2.WriteBinlogsResponse(batch_id=request.batch_id, statuses=statuses)
            self.muddle(answer)
            yield answer
            if len(self.batched) == self.break_after:
                context.abort(grpc.StatusCode.UNAVAILABLE, "going away")

    def TriggerGc(self, request, context):
        self.collected += 1
        if isinstance(self.gc_answer, BinlogError):
            code, details, metadata = abort_details(self.gc_answer)
            context.set_trailing_metadata(metadata)
            context.abort(code, details)
        return self.gc_answer
