"""What a running Pump says of itself, against docs/formats.md."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pyarrow as pa
import pytest

from pumphouse.model.node import NodeKind, NodeState, NodeStatus, PumpExtra
from pumphouse.proto import pumphouse_pb2 as v1
from pumphouse.registry.file import FileCluster
from tests.support import formats
from tests.support.pumpserver import PumpServer
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def pump(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PumpServer]:
    directory = tmp_path_factory.mktemp("pump")
    cluster = FileCluster(directory / "cluster")
    extra = PumpExtra(incarnation="0" * 32, start_count=3)
    other = NodeStatus(node_id="pump-1", host="", state=NodeState.PAUSED, update_ts=cluster.tso(), extra=extra)
    cluster.update_node(NodeKind.PUMP, "pump-1", lambda _: other)
    with PumpServer(directory, cluster) as server:
        server.consumer(server.cluster.tso())
        server.transaction()
        eventually(lambda: server.registered().extra.synced_offset, what="a heartbeat after the write")  # type: ignore[union-attr]
        yield server


def call(pump: PumpServer, path: str, method: str = "GET") -> Any:
    with urlopen(Request(f"http://{pump.http}{path}", method=method)) as answer:
        return json.loads(answer.read())


@pytest.mark.row("W3", "O7")
def test_the_registry_value_is_as_the_page_says_in_the_order_of_tidb_binlog(pump: PumpServer) -> None:
    path = Path(pump.cluster.url.removeprefix("file://")) / "tidb-binlog/v1/pumps/pump-1"
    value = json.loads(path.read_bytes())
    shown = formats.Shown()
    shown.check("node-status", value)
    assert list(value) == [*formats.schemas()["common"]["$defs"]["nodeStatus"]["required"], "pumphouse"]
    unset = {"/isAlive", "/label/labels", "/label", "/label/labels/*", "/pumphouse/syncedEnd/fid"}
    # An archive's entry alone is bound to an archive.
    missing = {each for each in shown.missing("node-status") if not each.startswith("/pumphouseArchive")}
    assert missing - {"/pumphouse/syncedEnd/fid"} <= unset


@pytest.mark.row("O7")
def test_the_data_directory_holds_what_the_page_lists(pump: PumpServer) -> None:
    page = formats.PAGE.read_text()
    for path in pump.data_dir.iterdir():
        assert f"| `{path.name}" in page, path.name
    for path in (pump.data_dir / "pumphouse").iterdir():
        assert f"| `{path.name}" in page, path.name
    formats.check("incarnation", json.loads((pump.data_dir / "pumphouse/incarnation.json").read_bytes()))
    if (own := pump.data_dir / "pumphouse/cluster.json").exists():
        formats.check("cluster", json.loads(own.read_bytes()))


@pytest.mark.row("P12", "O7")
def test_http_answers_are_as_the_page_says(pump: PumpServer) -> None:
    formats.check("http-status", call(pump, "/status"))
    for each in call(pump, "/drainers"):
        formats.check("node-status", each)
    formats.check("http-state", call(pump, "/state/somebody/pause", "PUT"))


@pytest.mark.row("P7")
def test_a_frame_has_the_columns_of_the_page(pump: PumpServer) -> None:
    request = v1.PullBatchesRequest(cluster_id=pump.cluster_id, until=pump.cluster.tso())
    frames = [each.frame for each in pump.batch.PullBatches(request, timeout=60) if each.frame]
    assert frames
    for frame in frames:
        with pa.ipc.open_stream(frame) as reader:
            formats.check_columns("frame", reader.schema)


@pytest.mark.row("O3")
@pytest.mark.parametrize(("command", "schema"), [("pumps", "pumps-output"), ("drainers", "drainers-output")])
def test_lists_of_nodes_are_as_the_page_says(pump: PumpServer, command: str, schema: str) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "pumphouse", "--set", f"cluster.url={pump.cluster.url}", command, "--json"],
        capture_output=True, check=True,
    )  # fmt: skip
    value = json.loads(said.stdout)
    assert len(value) == 1
    formats.check(schema, value)


@pytest.mark.row("O7")
def test_the_serving_line_is_as_the_page_says(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "pumphouse", "--set", "pump.stop_write_at_available_bytes=0", "pump", "run", "--addr", "127.0.0.1:0",
         "--http-addr", "127.0.0.1:0", "--data-dir", str(tmp_path / "data"), "--cluster", f"file://{tmp_path}/cluster"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        formats.check("serving", said)
        assert said["pid"] == process.pid
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()
