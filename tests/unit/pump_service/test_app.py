"""Order of the steps around a change of state, on an app in this process whose store can be held."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from pump_service.command import cli
from pump_service.process.app import PumpApp, Serving, check_clock
from pump_service.store.groups import Done
from pump_service.store.records import Records
from pump_service.store.store import Store
from pump_service.store.writer import Writer
from pumphouse.client import admin
from pumphouse.errors import CorruptionError
from pumphouse.model.node import NodeKind, NodeState, NodeStatus
from pumphouse.model.tso import compose
from pumphouse.proto.pump_pb2 import WriteBinlogReq
from pumphouse.proto.pump_pb2_grpc import PumpStub
from pumphouse.registry.file import FileCluster
from pumphouse.rpc.channel import open_aio_channel
from pumphouse.settings import PumpSettings, Settings, TlsSettings
from tests.support.pumpserver import prewrite
from tests.support.storekit import fake, store_all


@pytest.mark.row("P13")
def test_a_prewrite_that_was_taken_is_on_disk_before_anybody_reads_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FileCluster(tmp_path / "cluster")
    hold, held = threading.Event(), threading.Event()
    stored: list[NodeState] = []
    real = Writer.submit

    def state() -> NodeState:
        node = cluster.node(NodeKind.PUMP, "p1")
        assert node is not None
        return node.state

    def submit(writer: Writer, records: Records, done: Done, *, own: bool = False, here: bool = False) -> None:
        if (records.columns.tp == 0).any():
            held.set()

            def later() -> None:
                hold.wait(60)
                stored.append(state())
                real(writer, records, done, own=own)

            threading.Thread(target=later).start()
        else:
            real(writer, records, done, own=own, here=here)

    monkeypatch.setattr(Writer, "submit", submit)  # a disk that takes its time

    async def run() -> int:
        serving: asyncio.Future[Serving] = asyncio.get_running_loop().create_future()
        settings = PumpSettings(
            node_id="p1", data_dir=tmp_path / "data", addr="127.0.0.1:0", stop_write_at_available_bytes=0,
            reserve_bytes=0, heartbeat_interval_s=0.05, gen_binlog_interval_s=0.1, check_rows=False,
        )  # fmt: skip
        app = PumpApp(settings, cluster, TlsSettings(), announce=serving.set_result)
        running = asyncio.create_task(app.run())
        at = await serving
        assert state() is NodeState.ONLINE
        async with open_aio_channel(at.grpc) as channel:
            request = WriteBinlogReq(clusterID=cluster.cluster_id(), payload=prewrite(cluster.tso()))
            call = PumpStub(channel).WriteBinlog(request)
            while not held.is_set():
                await asyncio.sleep(0.01)
            await asyncio.to_thread(admin.ask_state, cluster, "p1", "close")
            await asyncio.sleep(0.3)
            # The gate is closed; the registry waits for what had passed it, and no heartbeat says so earlier.
            seen = state()
            hold.set()
            await call
        while state() is not NodeState.CLOSING:
            await asyncio.sleep(0.01)
        assert seen is NodeState.ONLINE
        app.stop()
        return await running

    assert asyncio.run(asyncio.wait_for(run(), 30)) == 0
    assert stored == [NodeState.ONLINE]
    assert state() is NodeState.PAUSED


@pytest.mark.row("P9")
def test_a_pump_whose_node_id_was_taken_ends_with_1_and_one_line_without_a_traceback(tmp_path: Path) -> None:
    cluster = FileCluster(tmp_path / "cluster")
    settings = PumpSettings(
        node_id="p1", data_dir=tmp_path / "data", addr="127.0.0.1:0", stop_write_at_available_bytes=0, reserve_bytes=0,
        heartbeat_interval_s=0.05,
    )  # fmt: skip

    def taken(found: NodeStatus | None) -> NodeStatus:
        assert found is not None
        assert found.extra is not None
        return found.with_(extra=replace(found.extra, incarnation="another"))

    async def run() -> int:
        serving: asyncio.Future[Serving] = asyncio.get_running_loop().create_future()
        app = PumpApp(settings, cluster, TlsSettings(), announce=serving.set_result)
        running = asyncio.create_task(app.run())
        await serving
        cluster.update_node(NodeKind.PUMP, "p1", taken)
        return await running

    with capture_logs() as logged:
        assert asyncio.run(asyncio.wait_for(run(), 30)) == 1
    (line,) = [each for each in logged if each["log_level"] == "error"]
    assert line["event"] == "pump_superseded"
    assert "another process has registered as p1" in line["error"]
    assert "one node id belongs to one data directory" in line["hint"]
    assert not line.get("exc_info")
    node = cluster.node(NodeKind.PUMP, "p1")
    assert node is not None
    assert node.state is NodeState.ONLINE  # what the other one says of itself stays


@pytest.mark.row("P8")
def test_a_pump_does_not_start_on_a_clock_that_went_back_below_what_it_has_published() -> None:
    published = compose(1_700_000_000_000)
    check_clock(published, published)
    check_clock(compose(1_699_999_999_900), published)  # as far as the horizon believes the future
    with pytest.raises(CorruptionError, match="went back"):
        check_clock(compose(1_699_999_990_000), published)


@pytest.mark.row("P8", "P9")
def test_a_pump_starts_behind_one_that_published_while_it_was_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FileCluster(tmp_path / "cluster")
    settings = PumpSettings(
        node_id="p1", data_dir=tmp_path / "data", addr="127.0.0.1:0", stop_write_at_available_bytes=0, reserve_bytes=0
    )

    def warm() -> None:  # the process before ends while this one gets ready
        time.sleep(0.3)
        store = Store.open(settings)
        store_all(store, fake(cluster.tso()))
        store.close()

    monkeypatch.setattr("pump_service.process.app.warm", warm)

    async def run() -> int:
        serving: asyncio.Future[Serving] = asyncio.get_running_loop().create_future()
        app = PumpApp(settings, cluster, TlsSettings(), announce=serving.set_result)
        running = asyncio.create_task(app.run())
        await asyncio.wait([running, serving], return_when=asyncio.FIRST_COMPLETED)
        app.stop()
        return await running

    assert asyncio.run(asyncio.wait_for(run(), 30)) == 0


def test_what_the_process_has_is_left_alone_before_anybody_is_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = PumpSettings(
        node_id="p1", data_dir=tmp_path / "data", addr="127.0.0.1:0", stop_write_at_available_bytes=0, reserve_bytes=0
    )
    seen: list[str] = []

    def leave() -> None:
        front = apps[-1]._front
        assert front is not None
        assert front.server._servers == []
        seen.append("left")

    apps: list[PumpApp] = []

    def app(*arguments: Any, **named: Any) -> PumpApp:
        apps.append(PumpApp(*arguments, **named))
        return apps[-1]

    def announced(serving: Serving) -> None:
        del serving
        front = apps[-1]._front
        assert front is not None
        assert front.server._servers
        seen.append("serving")
        apps[-1].stop()

    monkeypatch.setattr(cli, "PumpApp", app)
    monkeypatch.setattr(cli, "leave_what_stays", leave)
    monkeypatch.setattr(cli, "announce", announced)
    whole = Settings(pump=settings)
    assert asyncio.run(asyncio.wait_for(cli._run(whole, FileCluster(tmp_path / "cluster")), 30)) == 0
    assert seen == ["left", "serving"]
