"""The Pump's HTTP API, as binlogctl and people call it (row P12)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from pumphouse.codec.payload import PrewriteValueBuilder
from pumphouse.model.node import NodeKind, NodeState, NodeStatus
from pumphouse.model.tso import Tso
from pumphouse.registry.file import FileCluster
from tests.integration.test_pump_limits import resident
from tests.support.pumpserver import PumpServer, prewrite, rollback
from tests.support.waiting import eventually

pytestmark = pytest.mark.row("P12")


@pytest.fixture(scope="module")
def pump(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PumpServer]:
    directory = tmp_path_factory.mktemp("pump")
    with PumpServer(directory, FileCluster(directory / "cluster")) as server:
        yield server


def call(pump: PumpServer, path: str, method: str = "GET") -> tuple[str, str]:
    """Content type and body."""
    with urlopen(Request(f"http://{pump.http}{path}", method=method)) as answer:
        assert answer.status == 200
        return answer.headers["Content-Type"], answer.read().decode()


def refused(pump: PumpServer, path: str, method: str) -> int:
    with pytest.raises(HTTPError) as error:
        urlopen(Request(f"http://{pump.http}{path}", method=method))
    error.value.close()
    return error.value.code


def test_status_lists_every_registered_pump(pump: PumpServer) -> None:
    other = NodeStatus(node_id="other:8250", host="other:8250", state=NodeState.OFFLINE, max_commit_ts=Tso(5))
    pump.cluster.update_node(NodeKind.PUMP, "other:8250", lambda _: other)
    before = pump.cluster.tso()
    _, text = call(pump, "/status")
    assert text.endswith("}\n")
    body = json.loads(text)
    assert list(body) == ["status", "CommitTS", "Checkpoint", "ErrMsg"]
    assert set(body["status"]) == {"pump-1", "other:8250"}
    assert body["status"]["pump-1"]["state"] == "online"
    assert body["status"]["other:8250"]["maxCommitTS"] == 5
    assert body["CommitTS"] > before
    assert body["Checkpoint"] == {}
    assert body["ErrMsg"] == ""


def test_drainers_is_null_until_there_is_one(pump: PumpServer) -> None:
    assert call(pump, "/drainers")[1] == "null\n"
    pump.cluster.update_node(
        NodeKind.DRAINER,
        "pumphouse-main",
        lambda _: NodeStatus(node_id="pumphouse-main", host="", state=NodeState.PAUSED, max_commit_ts=Tso(77)),
    )
    (drainer,) = json.loads(call(pump, "/drainers")[1])
    assert (drainer["nodeId"], drainer["state"], drainer["maxCommitTS"]) == ("pumphouse-main", "paused", 77)


@pytest.mark.row("P13")
def test_a_change_of_state_must_name_this_pump_and_a_known_action(tmp_path: Path) -> None:
    with PumpServer(tmp_path, FileCluster(tmp_path / "cluster")) as pump:
        change_states(pump)


def change_states(pump: PumpServer) -> None:
    kind, text = call(pump, "/state/somebody/pause", "PUT")
    assert kind == "application/json; charset=UTF-8"
    assert text == json.dumps(
        {"message": "invalide nodeID somebody, this pump's nodeID is pump-1", "code": 3, "data": None}, indent=2
    )
    assert json.loads(call(pump, "/state/pump-1/explode", "PUT")[1]) == {
        "message": "invalide action explode",
        "code": 3,
        "data": None,
    }
    assert pump.registered().state is NodeState.ONLINE
    assert json.loads(call(pump, f"/state/{quote('pump-1', safe='')}/close", "PUT")[1]) == {
        "message": "apply action close success!",
        "code": 200,
        "data": None,
    }
    assert pump.wait() == 0
    assert pump.registered().state is NodeState.OFFLINE


def test_a_binlog_is_dumped_by_its_ts(pump: PumpServer) -> None:
    start_ts = pump.cluster.tso()
    pump.write(prewrite(start_ts, ddl_query=b"create table readable(a int)", value=b""))
    # Found by its index, which follows the answer.
    eventually(lambda: "create table readable(a int)" in call(pump, f"/debug/binlog/{start_ts}")[1])
    assert call(pump, "/debug/binlog/xyz")[1] == "invalid parameter ts: xyz"
    assert "no binlog" in call(pump, "/debug/binlog/12")[1]


def test_a_prewrite_value_that_cannot_be_read_is_shown_as_bytes(pump: PumpServer) -> None:
    start_ts = pump.cluster.tso()
    pump.write(prewrite(start_ts, b"\xff\xff\xff"))
    eventually(lambda: "ffffff" in call(pump, f"/debug/binlog/{start_ts}")[1])
    assert str(start_ts) in call(pump, f"/debug/binlog/{start_ts}")[1]


def test_a_large_prewrite_is_dumped_in_part_while_writes_go_on(pump: PumpServer) -> None:
    row = bytes(range(256)) * 4
    value = PrewriteValueBuilder(1)
    for _ in range(40 << 10):
        value.insert(7, row)
    start_ts = pump.cluster.tso()
    pump.write(prewrite(start_ts, value.build()))
    path = f"/debug/binlog/{start_ts}"
    eventually(lambda: "no binlog" not in call(pump, path)[1])
    Path(f"/proc/{pump.pid}/clear_refs").write_text("5")  # begins a new high-water mark
    before = resident(pump.pid, "VmRSS")
    with ThreadPoolExecutor(4) as pool:
        dumps = [pool.submit(call, pump, path) for _ in range(4)]
        while not all(each.done() for each in dumps):
            pump.write(rollback(pump.cluster.tso()))
        texts = [each.result()[1] for each in dumps]
    assert resident(pump.pid, "VmHWM") - before < 32 << 20  # one copy of it has 40 MiB
    assert len({text.partition("transaction:")[0] for text in texts}) == 1
    assert len(texts[0]) < 1 << 20
    assert "inserted_rows: " in texts[0]
    assert re.search(r"# not shown, for its size: [0-9,]+ inserted_rows .*40,960 sequence", texts[0])
    assert "# the whole of it: tail -c +" in texts[0]
    assert "\ntransaction: " in texts[0]
    pump.write(rollback(start_ts))


@pytest.mark.row("P14")
def test_metrics_follow_what_happens(pump: PumpServer) -> None:
    pump.transaction()
    open_ts = pump.cluster.tso()
    pump.write(prewrite(open_ts))
    _, text = call(pump, "/metrics")
    written = re.search(r'rpc_duration_seconds_count{label="succ",method="WriteBinlog"} (\d+)', text)
    assert written is not None
    assert int(written[1]) >= 3
    unresolved = re.search(r"binlog_pump_unresolved_prewrites (\d+)", text)
    assert unresolved is not None
    assert int(unresolved[1]) >= 1
    assert 'binlog_pump_storage_storage_size_bytes{type="available"}' in text


def test_gc_is_begun_at_once_and_said_in_the_go_pumps_words(pump: PumpServer) -> None:
    assert call(pump, "/debug/gc/trigger", "POST")[1] in ("trigger gc success\n", "gc is working\n")
    eventually(lambda: "binlog_pump_gc_runs_total" in call(pump, "/metrics")[1])


def test_a_pump_that_is_not_online_says_its_state_before_it_looks_at_the_action(tmp_path: Path) -> None:
    with PumpServer(tmp_path, FileCluster(tmp_path / "cluster")) as pump:
        pump.consumer(0)
        assert "apply action close success!" in call(pump, "/state/pump-1/close", "PUT")[1]
        for action in ("close", "pause", "explode"):
            body = json.loads(call(pump, f"/state/pump-1/{action}", "PUT")[1])
            assert body["message"] == f"this pump's state is closing, apply {action} failed!"
            assert body["code"] == 3


def test_wrong_methods_and_paths_are_refused(pump: PumpServer) -> None:
    assert refused(pump, "/state/pump-1/pause", "GET") == 405
    assert refused(pump, "/debug/gc/trigger", "GET") == 405
    assert refused(pump, "/nothing", "GET") == 404
    assert pump.registered().state is NodeState.ONLINE
