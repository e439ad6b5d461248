"""kill -9 on a real Pump process under load, and what a restart finds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pumphouse.model.node import NodeState
from pumphouse.proto.binlog_pb2 import Binlog, BinlogType
from pumphouse.registry.file import FileCluster
from tests.support.pumpserver import PumpServer, Writers, commit, prewrite
from tests.support.waiting import eventually

pytestmark = pytest.mark.row("P3", "P5")


def test_everything_that_was_answered_survives_kill_9_under_load(tmp_path: Path) -> None:
    pump = PumpServer(tmp_path, FileCluster(tmp_path / "cluster"), value_log_file_bytes=65536)
    answered: list[bytes] = []
    sent: list[bytes] = []
    for _ in range(3):
        with pump.start():
            writers = Writers(pump).start()
            eventually(lambda w=writers: len(w.answered) > 300)
            pump.kill()
            writers.stop()
        answered += writers.answered
        sent += writers.sent
    with pump.start():
        for payload in answered:
            binlog = Binlog.FromString(payload)
            if binlog.tp == BinlogType.Prewrite and commit_of(sent, binlog.start_ts) is None:
                pump.write(commit(binlog.start_ts, pump.cluster.tso()))
        # A P that was written but not answered may be there as well: without an outcome it holds the stream.
        for prewritten in pump.status().oldest_unresolved:
            pump.write(commit(prewritten.start_ts, pump.cluster.tso()))
        fence = pump.cluster.tso()
        eventually(lambda: pump.status().watermark > fence)
        pulled = {(b.start_ts, b.commit_ts): b for b in pump.pull_until(fence)}
    assert list(pulled) == sorted(pulled, key=lambda pair: pair[1])
    prewrites = {b.start_ts: b for b in map(Binlog.FromString, sent) if b.tp == BinlogType.Prewrite}
    for payload in answered:
        binlog = Binlog.FromString(payload)
        if binlog.tp == BinlogType.Commit:
            assert (binlog.start_ts, binlog.commit_ts) in pulled
    for (start_ts, _), binlog in pulled.items():
        assert binlog.prewrite_value == prewrites[start_ts].prewrite_value
    assert len({b.start_ts for b in map(Binlog.FromString, answered)}) <= len(pulled)


def commit_of(payloads: list[bytes], start_ts: int) -> int | None:
    """Commit ts of a transaction whose C was sent."""
    for payload in payloads:
        binlog = Binlog.FromString(payload)
        if binlog.tp == BinlogType.Commit and binlog.start_ts == start_ts:
            return binlog.commit_ts
    return None


def test_a_restart_keeps_the_incarnation_and_counts_also_at_another_address_at_once(tmp_path: Path) -> None:
    pump = PumpServer(tmp_path, FileCluster(tmp_path / "cluster"), heartbeat_interval_s=0.05)
    with pump.start():
        open_ts = pump.cluster.tso()
        pump.write(prewrite(open_ts, b"kept"))
        pump.kill()
    before = pump.registered()
    assert before.state is NodeState.ONLINE  # nobody could say otherwise
    pump.addr = "127.0.0.1:0"
    with pump.start():
        now = pump.registered()
        assert now.host != before.host
        assert before.extra is not None
        assert now.extra is not None
        assert (now.extra.incarnation, now.extra.start_count) == (before.extra.incarnation, 2)
        assert [b.start_ts for b in pump.status().oldest_unresolved] == [open_ts]
        commit_ts = pump.cluster.tso()
        pump.write(commit(open_ts, commit_ts))
        assert pump.pull_until(commit_ts)[0].prewrite_value == b"kept"


@pytest.mark.row("A2")
def test_a_data_directory_that_is_put_back_from_an_older_copy_or_emptied_is_another_incarnation(tmp_path: Path) -> None:
    pump = PumpServer(tmp_path, FileCluster(tmp_path / "cluster"))
    with pump.start():
        pump.transaction()
        pump.kill()
    shutil.copytree(pump.data_dir, tmp_path / "copy")
    seen = []
    with pump.start():
        seen.append(pump.status().incarnation)
        for _ in range(20):
            pump.transaction(b"x" * 1000)
        said = pump.status().value_log_bytes
        eventually(lambda: pump.registered().extra.synced_offset >= said - 2000)  # type: ignore[union-attr]
        pump.kill()
    shutil.rmtree(pump.data_dir)
    shutil.copytree(tmp_path / "copy", pump.data_dir)
    for emptied in (False, True):
        if emptied:
            shutil.rmtree(pump.data_dir)
        with pump.start():
            now = pump.registered().extra
            assert now is not None
            seen.append(now.incarnation)
            assert pump.status().incarnation == now.incarnation
            eventually(lambda: "incarnation_renewed" in pump.log())
            pump.kill()
    assert len(set(seen)) == 3


@pytest.mark.row("W3", "A2")
def test_another_data_directory_does_not_take_the_node_id_of_the_pump_that_runs(tmp_path: Path) -> None:
    cluster = FileCluster(tmp_path / "cluster")
    empty = PumpServer(tmp_path / "elsewhere", cluster)
    empty.directory.mkdir()
    with PumpServer(tmp_path, cluster) as pump:
        pump.transaction()
        before = pump.registered().extra
        code, log = empty.refuse_to_start()
        assert code != 0
        assert f"a Pump runs at {pump.addr} under this node id" in log
        assert "--node-id" in log
        pump.transaction()
        now = pump.registered()
        assert before is not None
        assert now.extra is not None
        assert (now.state, now.extra.incarnation) == (NodeState.ONLINE, before.incarnation)
        node = empty.data_dir / ".node"
        assert not node.exists()  # the next start may be given another
        node.write_text(now.node_id)
        assert empty.refuse_to_start()[0] != 0
        assert node.read_text() == now.node_id  # somebody else has put it there
        pump.kill()
    with empty.start():  # nobody answers there any more
        empty.transaction()
        assert "node_id_had_another_incarnation" in empty.log()
        taken = empty.registered().extra
        code, log = pump.refuse_to_start()  # that has served before, and is not the one that is registered
        assert code != 0
        assert f"a Pump runs at {empty.addr} under this node id" in log
        empty.transaction()
        after = empty.registered()
        assert taken is not None
        assert after.extra is not None
        assert (after.state, after.extra.incarnation) == (NodeState.ONLINE, taken.incarnation)


@pytest.mark.row("W5")
def test_a_pump_that_has_served_makes_no_cluster_where_its_url_was_mistyped(tmp_path: Path) -> None:
    with PumpServer(tmp_path, FileCluster(tmp_path / "cluster")) as pump:
        pump.transaction()
    pump.cluster = FileCluster(tmp_path / "other")
    shutil.rmtree(tmp_path / "other")
    code, log = pump.refuse_to_start()
    assert code != 0
    assert f"there is no cluster at {pump.cluster.url}" in log
    assert not (tmp_path / "other").exists()


@pytest.mark.row("W3", "A2")
@pytest.mark.parametrize("newer", ["start", "log", "nothing"])
def test_a_copy_of_a_data_directory_does_not_take_the_node_id_of_the_pump_that_runs(tmp_path: Path, newer: str) -> None:
    cluster = FileCluster(tmp_path / "cluster")
    # Without fakes the copy is as new as the Pump that runs.
    pump = PumpServer(tmp_path, cluster, gen_binlog_interval_s=3600.0 if newer == "nothing" else 0.1)
    copy = PumpServer(tmp_path / "elsewhere", cluster)
    copy.directory.mkdir()
    with pump.start():
        pump.transaction()
        if newer == "start":
            pump.kill()
            shutil.copytree(pump.data_dir, copy.data_dir)
            pump.start()
            pump.kill()
            pump.start()
        elif newer == "nothing":
            shutil.copytree(pump.data_dir, copy.data_dir, ignore=shutil.ignore_patterns(".lock"))
        else:
            shutil.copytree(pump.data_dir, copy.data_dir, ignore=shutil.ignore_patterns(".lock"))
            for _ in range(20):
                pump.transaction(b"x" * 1000)
            said = pump.status().value_log_bytes
            eventually(lambda: pump.registered().extra.synced_offset >= said - 2000)  # type: ignore[union-attr]
        before = pump.registered().extra
        code, log = copy.refuse_to_start()
        assert code != 0
        assert f"the Pump that runs at {pump.addr}" in log
        assert "incarnation_renewed" not in log
        pump.transaction()
        now = pump.registered()
        assert before is not None
        assert now.extra is not None
        assert (now.host, now.extra.incarnation, now.extra.start_count) == (
            pump.addr,
            before.incarnation,
            before.start_count,
        )
        pump.kill()
    # What was registered is dead now, its heartbeat still fresh: the copy may go on, as another incarnation.
    with copy.start():
        copy.transaction()


@pytest.mark.row("P16")
def test_a_second_process_on_the_same_data_is_refused_and_the_registry_stays_as_it_was(tmp_path: Path) -> None:
    cluster = FileCluster(tmp_path / "cluster")
    with PumpServer(tmp_path, cluster) as pump:
        registered = pump.registered()
        second = PumpServer(tmp_path, cluster)
        code, log = second.refuse_to_start()
        assert code != 0
        assert "another process has" in log
        assert f"fuser {tmp_path}" in log
        now = pump.registered()
        assert (now.host, now.extra.start_count if now.extra else 0) == (
            registered.host,
            registered.extra.start_count if registered.extra else 0,
        )
        pump.transaction()
