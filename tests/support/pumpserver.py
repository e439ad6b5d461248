"""A Pump as tests run it: a process of its own (`pumphouse pump run`, `forked`), and the few calls that they make on it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Self

import grpc
import pyarrow as pa

from pumphouse.model.node import NodeKind, NodeState, NodeStatus
from pumphouse.proto import pumphouse_pb2 as v1
from pumphouse.proto.binlog_pb2 import Binlog, BinlogType
from pumphouse.proto.pump_pb2 import Pos, PullBinlogReq, PullBinlogResp, WriteBinlogReq
from pumphouse.proto.pump_pb2_grpc import PumpStub
from pumphouse.proto.pumphouse_pb2_grpc import PumpBatchStub
from pumphouse.registry.file import FileCluster
from pumphouse.rpc.channel import open_channel
from pumphouse.settings import TlsSettings
from tests.stack.ports import free_port
from tests.stack.pumps import CLI
from tests.support.forked import Forked, popen

# Quick enough for tests; every number is a setting of the product.
_QUICK: dict[str, Any] = {
    "heartbeat_interval_s": 0.1,
    "gen_binlog_interval_s": 0.1,
    "resolve_interval_s": 0.1,
    "stop_write_at_available_bytes": 0,
    "reserve_bytes": 65536,
    "check_rows": False,  # tests write values that are shorter to read than rows
}


def prewrite(start_ts: int, value: bytes = b"value", *, key: bytes = b"app/k", **fields: Any) -> bytes:
    """Bytes of a P."""
    return Binlog(
        tp=BinlogType.Prewrite, start_ts=start_ts, commit_ts=0, prewrite_key=key, prewrite_value=value, **fields
    ).SerializeToString()


def commit(start_ts: int, commit_ts: int, *, key: bytes = b"app/k") -> bytes:
    """Bytes of a C."""
    return Binlog(tp=BinlogType.Commit, start_ts=start_ts, commit_ts=commit_ts, prewrite_key=key).SerializeToString()


def rollback(start_ts: int) -> bytes:
    """Bytes of a Rollback."""
    return Binlog(tp=BinlogType.Rollback, start_ts=start_ts, commit_ts=0).SerializeToString()


class PumpServer:
    """One Pump process over a data directory; address and identity survive restarts.

    ``popen``: `subprocess.Popen` for one that has imported what a Pump needs and nothing else, whose memory is measured.
    """

    def __init__(
        self,
        directory: Path,
        cluster: FileCluster,
        *,
        node_id: str = "pump-1",
        tls: TlsSettings | None = None,
        client_tls: TlsSettings | None = None,
        popen: Callable[..., Forked | subprocess.Popen[bytes]] = popen,
        **settings: Any,
    ) -> None:
        self.directory = directory
        self.data_dir = directory / f"{node_id}.data"
        self.cluster = cluster
        self.node_id = node_id
        self.addr = f"127.0.0.1:{free_port()}"  # it comes back there after a kill
        self.http = "127.0.0.1:0"
        self._client_tls = client_tls or tls
        self._channel: grpc.Channel | None = None
        self._popen = popen
        self._process: Forked | subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None
        self._log = directory / f"{node_id}.log"
        self._config = directory / f"{node_id}.toml"
        self._settings = {**_QUICK, **settings}
        self._tls = tls

    # ---- process -----------------------------------------------------------------------------------------------

    def spawn(self) -> int:
        """Start the process and do not wait; its pid."""
        self._config.write_text(self._toml())
        with self._log.open("ab") as log:
            command = [*CLI, "--config", str(self._config), "pump", "run", "--addr", self.addr]
            command += ["--http-addr", "127.0.0.1:0"]
            environment = {**os.environ, "PYTHONWARNINGS": "default"}
            said, theirs = os.pipe()
            self._said = os.fdopen(said, "rb")
            with os.fdopen(theirs, "wb") as out:
                self._process = self._popen(command, stdout=out, stderr=log, start_new_session=True, env=environment)
        return self._process.pid

    def start(self) -> Self:
        """Start and wait until it serves; AssertionError with its log when it ends instead."""
        self.spawn()
        return self.wait_until_serving()

    def wait_until_serving(self) -> Self:
        """What `start` waits for, after `spawn`."""
        assert self._process is not None
        assert self._said is not None
        line = self._said.readline()
        if not line:
            code = self._process.wait(60)
            self._said.close()
            raise AssertionError(f"the Pump ended with {code}: {self.log()[-3000:]}")
        said = json.loads(line)
        assert said["event"] == "serving"
        assert said["pid"] == self._process.pid
        self.addr, self.http = said["grpc"], said["http"]
        return self

    def refuse_to_start(self) -> tuple[int, str]:
        """Start where that must fail: exit code and log."""
        size = len(self.log())
        try:
            self.start()
        except AssertionError:
            assert self._process is not None
            return self._process.wait(), self.log()[size:]
        self.stop()
        raise AssertionError("the Pump started")

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        return self._end(signal.SIGTERM)

    def wait(self, timeout_s: float = 20.0) -> int:
        """Wait until it ends by itself; the exit code."""
        assert self._process is not None
        code = self._process.wait(timeout_s)
        self._closed()
        return code

    @property
    def pid(self) -> int:
        """Its pid."""
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        """Everything that it has logged."""
        return self._log.read_text() if self._log.exists() else ""

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self._closed()

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        code = self._process.wait(60)
        self._closed()
        return code

    def _closed(self) -> None:
        if self._said is not None:
            self._said.close()
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _toml(self) -> str:
        def show(value: Any) -> str:
            return json.dumps(list(value) if isinstance(value, tuple) else value, default=str)

        pump = {"node_id": self.node_id, "data_dir": self.data_dir, **self._settings}
        lines = ["[cluster]", f"url = {show(self.cluster.url)}", "[pump]"]
        lines += [f"{name} = {show(value)}" for name, value in pump.items()]
        if self._tls is not None:
            lines.append("[tls]")
            lines += [f"{n} = {show(v)}" for n, v in self._tls.model_dump().items() if v is not None]
        return "\n".join(lines) + "\n"

    # ---- calls -------------------------------------------------------------------------------------------------

    @property
    def channel(self) -> grpc.Channel:
        """A channel to it."""
        if self._channel is None:
            self._channel = open_channel(self.addr, self._client_tls)
        return self._channel

    @property
    def batch(self) -> PumpBatchStub:
        """Stub of `pumphouse.v1.PumpBatch`."""
        return PumpBatchStub(self.channel)

    def write(self, payload: bytes, *, cluster_id: int | None = None) -> None:
        """One unary WriteBinlog."""
        request = WriteBinlogReq(clusterID=self.cluster_id if cluster_id is None else cluster_id, payload=payload)
        PumpStub(self.channel).WriteBinlog(request, timeout=60)

    def transaction(self, value: bytes = b"value", **fields: Any) -> tuple[int, int]:
        """P and C; their ts."""
        start_ts = self.cluster.tso()
        self.write(prewrite(start_ts, value, **fields))
        commit_ts = self.cluster.tso()
        self.write(commit(start_ts, commit_ts))
        return start_ts, commit_ts

    @contextlib.contextmanager
    def pulling(self, after: int = 0) -> Iterator[Iterator[PullBinlogResp]]:
        """A unary pull stream."""
        request = PullBinlogReq(clusterID=self.cluster_id, startFrom=Pos(offset=after))
        stream = PumpStub(self.channel).PullBinlogs(request, timeout=60)
        try:
            yield stream
        finally:
            stream.cancel()

    def pull_until(self, ts: int, after: int = 0) -> list[Binlog]:
        """What a unary pull brings up to the first binlog at or above ``ts``; fakes are left out."""
        found = []
        with self.pulling(after) as stream:
            for response in stream:
                binlog = Binlog.FromString(response.entity.payload)
                assert binlog.commit_ts == response.entity.meta.commitTs
                if binlog.tp == BinlogType.Commit:
                    found.append(binlog)
                if binlog.commit_ts >= ts:
                    break
        return found

    def pull_batches(self, until: int, after: int = 0) -> list[dict[str, Any]]:
        """Rows of the batch pull up to ``until``; fakes are left out."""
        request = v1.PullBatchesRequest(cluster_id=self.cluster_id, start_from=after, until=until)
        rows: list[dict[str, Any]] = []
        for response in self.batch.PullBatches(request, timeout=60):
            if response.frame:
                with pa.ipc.open_stream(response.frame) as reader:
                    rows += reader.read_all().to_pylist()
        return [row for row in rows if row["start_ts"] != row["commit_ts"]]

    def status(self) -> v1.StatusResponse:
        """The status call."""
        answer: v1.StatusResponse = self.batch.Status(v1.StatusRequest(cluster_id=self.cluster_id), timeout=60)
        return answer

    def gc(self) -> v1.TriggerGcResponse:
        """Run GC."""
        answer: v1.TriggerGcResponse = self.batch.TriggerGc(v1.TriggerGcRequest(cluster_id=self.cluster_id), timeout=60)
        return answer

    # ---- registry ----------------------------------------------------------------------------------------------

    @property
    def cluster_id(self) -> int:
        """The cluster's id."""
        return self.cluster.cluster_id()

    def registered(self) -> NodeStatus:
        """Its registry value."""
        node = self.cluster.node(NodeKind.PUMP, self.node_id)
        assert node is not None
        return node

    def consumer(self, checkpoint: int, *, name: str = "pumphouse-main", state: NodeState = NodeState.PAUSED) -> None:
        """Register a consumer, or move it."""
        self.cluster.update_node(
            NodeKind.DRAINER,
            name,
            lambda _: NodeStatus(node_id=name, host="", state=state, max_commit_ts=checkpoint),  # type: ignore[arg-type]
        )


class Writers:
    """Threads that write transactions as fast as they are answered, and remember what was answered."""

    def __init__(self, pump: PumpServer, threads: int = 4) -> None:
        self.pump = pump
        self.answered: list[bytes] = []  # P and C payloads, in order of their answers
        self.sent: list[bytes] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]

    def start(self) -> Self:
        """Begin."""
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """End and wait."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self) -> None:
        channel = open_channel(self.pump.addr)
        stub = PumpStub(channel)
        try:
            while not self._stop.is_set():
                start_ts = self.pump.cluster.tso()
                self._write(stub, prewrite(start_ts, os.urandom(64)))
                self._write(stub, commit(start_ts, self.pump.cluster.tso()))
        except grpc.RpcError:
            return
        finally:
            channel.close()

    def _write(self, stub: PumpStub, payload: bytes) -> None:
        self.sent.append(payload)
        stub.WriteBinlog(WriteBinlogReq(clusterID=self.pump.cluster_id, payload=payload), timeout=60)
        self.answered.append(payload)
