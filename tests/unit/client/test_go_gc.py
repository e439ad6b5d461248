"""Go Pumps free by age alone: the archive must be ahead of that, and whoever is told says by how much."""

from __future__ import annotations

import http.server
import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pumphouse.archive import consumer
from pumphouse.cli import cli
from pumphouse.client.admin import PumpGc, failures, trigger_gc
from pumphouse.client.go_gc import Distance, GoLimits, distance, span
from pumphouse.errors import ClusterUnavailable, ConfigError, GapError, PumpUnavailable
from pumphouse.model.node import NodeKind, NodeState, NodeStatus, PumpExtra
from pumphouse.model.tso import Tso, compose, physical_ms, show
from pumphouse.proto.pumphouse_pb2 import TriggerGcResponse
from pumphouse.registry.file import FileCluster
from pumphouse.settings import Settings
from tests.support.awaycluster import AwayCluster
from tests.support.checkpoints import set_checkpoint
from tests.support.fakepump import FakePump

pytestmark = pytest.mark.row("P11")
HOUR = 3_600_000
DAY = 24 * HOUR
HALF_AN_HOUR = HOUR // 2
NOW = compose(1_700_000_000_000, 7)
# A port that nothing listens on.
NOBODY = "127.0.0.1:1"


def go_pump(state: NodeState = NodeState.ONLINE, max_commit_ts: int = 0, host: str = NOBODY) -> NodeStatus:
    return NodeStatus(node_id="go", host=host, state=state, max_commit_ts=Tso(max_commit_ts))


def before(now: int, ms: int) -> Tso:
    return compose(physical_ms(now) - ms)


def compared(archived: int | None, told: int | None = None, pump: NodeStatus | None = None) -> Distance | None:
    limits = GoLimits(archived=None if archived is None else Tso(archived), retention_s=7 * 86_400, margin_s=20 * 3600)
    return distance(pump or go_pump(), limits, NOW, None if told is None else Tso(told))


@pytest.mark.parametrize(
    ("behind_now_ms", "enough", "left_s"),
    [
        (0, True, 7 * 86_400),
        (7 * DAY - 20 * HOUR, True, 20 * 3600),
        (7 * DAY - 20 * HOUR + 1, False, 20 * 3600 - 0.001),
        (7 * DAY, False, 0),
        (8 * DAY, False, -86_400),
    ],
)
def test_the_archive_must_be_ahead_of_the_age_at_which_a_go_pump_frees_by_the_margin(
    behind_now_ms: int, enough: bool, left_s: float
) -> None:
    found = compared(before(NOW, behind_now_ms))
    assert found is not None
    assert (found.enough, found.left_s) == (enough, left_s)
    assert found.gone_upto == before(NOW, 7 * DAY)


def test_a_gc_point_that_the_pump_tells_counts_where_it_is_later_than_the_setting_allows() -> None:
    """Its real `gc` is 2 days: of an archive that is 3 days behind a part is gone."""
    archived = before(NOW, 3 * DAY)
    for told, enough, gone in (
        (before(NOW, 2 * DAY), False, before(NOW, 2 * DAY)),
        (before(NOW, 8 * DAY), True, before(NOW, 7 * DAY)),
        (Tso(0), True, before(NOW, 7 * DAY)),
    ):
        found = compared(archived, told)
        assert found is not None
        assert (found.enough, found.gone_upto) == (enough, gone)


def test_one_that_is_paused_and_wholly_archived_is_no_error_and_one_that_runs_is() -> None:
    """What runs may have more than its last heartbeat says."""
    archived = before(NOW, 30 * DAY)
    for state, last, enough in (
        (NodeState.PAUSED, archived, True),
        (NodeState.PAUSED, archived + 1, False),
        (NodeState.PAUSED, 0, False),
        (NodeState.ONLINE, archived, False),
        (NodeState.CLOSING, archived, False),
    ):
        found = compared(archived, pump=go_pump(state, last))
        assert found is not None
        assert found.enough is enough


def test_both_ends_are_said_as_tso_and_as_clock_time() -> None:
    assert compared(None) is None
    ahead, behind, empty = (compared(before(NOW, ms)) for ms in (DAY, 8 * DAY, physical_ms(NOW)))
    assert ahead is not None
    assert behind is not None
    assert empty is not None
    assert ahead.text() == (
        f"the archive has up to {show(before(NOW, DAY))}, it may have freed what lies up to "
        f"{show(before(NOW, 7 * DAY))}: 6 d 0 h left"
    )
    assert behind.text().endswith(": 1 d 0 h behind")
    assert "the archive has nothing yet" in empty.text()
    assert [span(s) for s in (59, 60, 3 * 3600 + 120, 90_000)] == ["0 min", "1 min", "3 h 2 min", "1 d 1 h"]


def test_a_margin_that_no_archive_could_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="go_pump_margin_s"):
        Settings.read(overrides={"archive.go_pump_gc_s": 8 * 3600})
    assert Settings.read(overrides={"archive.go_pump_gc_s": 8 * 3600, "archive.go_pump_margin_s": 3600})


@pytest.fixture
def cluster(tmp_path: Path) -> AwayCluster:
    return AwayCluster(tmp_path / "cluster")


@pytest.fixture
def collect(cluster: FileCluster) -> Callable[..., list[PumpGc]]:
    """GC on every Pump; raises what the command and the DAG's task raise."""

    def run(retention_ms: int = 7 * DAY, margin_ms: int = 20 * HOUR) -> list[PumpGc]:
        archived = consumer.checkpoint(cluster, "main")
        limits = GoLimits(archived=archived, retention_s=retention_ms / 1000, margin_s=margin_ms / 1000)
        reports = trigger_gc(cluster, go_limits=limits)
        error = failures(reports)
        if error is not None:
            raise error
        return reports

    return run


@pytest.fixture
def ours(cluster: FileCluster) -> Iterator[FakePump]:
    pump = FakePump("ours", cluster).register()
    pump.gc_answer = TriggerGcResponse(started=True, freed_files=2)
    yield pump
    pump.stop()


def register(cluster: FileCluster, status: NodeStatus) -> None:
    cluster.update_node(NodeKind.PUMP, status.node_id, lambda _: status)


def test_it_is_said_how_much_is_left_of_each_go_pump(
    cluster: FileCluster, collect: Callable[..., list[PumpGc]], ours: FakePump
) -> None:
    register(cluster, go_pump())
    archived = set_checkpoint(cluster, "main", before(cluster.tso(), DAY - HALF_AN_HOUR))
    of_go, of_ours = collect()
    assert (of_ours.node_id, of_ours.freed_files, of_ours.archived) == ("ours", 2, None)
    assert (of_go.asked, of_go.error, of_go.archived) == (False, "", archived)
    assert of_go.left_s is not None
    assert 6 * 86_400 < of_go.left_s <= 6 * 86_400 + 1800
    for part in ("cannot be held", show(archived), show(of_go.gone_upto or 0), "6 d 0 h left"):
        assert part in of_go.note


def test_an_archive_that_is_not_ahead_of_a_go_pump_is_an_error_after_the_others_were_collected(
    cluster: FileCluster, collect: Callable[..., list[PumpGc]], ours: FakePump
) -> None:
    register(cluster, go_pump())
    archived = set_checkpoint(cluster, "main", before(cluster.tso(), DAY - HALF_AN_HOUR))
    with pytest.raises(GapError) as failed:
        collect(30 * HOUR)
    assert ours.collected == 1
    error = failed.value
    assert not error.retryable
    gone = error.facts["gone_upto"]
    assert before(cluster.tso(), 31 * HOUR) < gone <= before(cluster.tso(), 30 * HOUR)
    for part in ("go: the archive is not ahead", show(archived), show(gone), "pumphouse snapshot"):
        assert part in str(error)
    assert re.search(r": 6 h \d+ min left", str(error))
    assert collect(30 * HOUR, HOUR)


def test_one_that_is_offline_is_not_looked_at(cluster: FileCluster, collect: Callable[..., list[PumpGc]]) -> None:
    set_checkpoint(cluster, "main", Tso(0))
    register(cluster, go_pump())
    with pytest.raises(GapError, match="the archive has nothing yet"):
        collect()
    register(cluster, go_pump(NodeState.OFFLINE))
    assert collect() == []


def test_a_pump_that_fails_and_a_go_pump_that_is_not_archived_are_both_named(
    cluster: FileCluster, collect: Callable[..., list[PumpGc]]
) -> None:
    dead = NodeStatus(
        node_id="dead", host=NOBODY, state=NodeState.ONLINE, extra=PumpExtra(incarnation="i", start_count=1)
    )
    register(cluster, dead)
    set_checkpoint(cluster, "main", before(cluster.tso(), 8 * DAY + HALF_AN_HOUR))
    with pytest.raises(PumpUnavailable, match="dead"):
        collect()
    register(cluster, go_pump())
    with pytest.raises(GapError, match="1 d 0 h behind") as failed:
        collect()
    assert "dead: " in str(failed.value)
    assert failed.value.facts["node_id"] == "go"


class Metrics(http.server.BaseHTTPRequestHandler):
    """A Go Pump's HTTP port."""

    server: MetricsServer

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/metrics" else 404)
        self.end_headers()
        text = f"# TYPE binlog_pump_storage_gc_ts gauge\nbinlog_pump_storage_gc_ts {float(self.server.gc_ms):.12e}\n"
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        pass


class MetricsServer(http.server.ThreadingHTTPServer):
    gc_ms = 0.0  # its GC point; 0 = it never ran GC


@pytest.fixture
def go(cluster: FileCluster) -> Iterator[MetricsServer]:
    """A Go Pump that says how far its GC came."""
    with MetricsServer(("127.0.0.1", 0), Metrics) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        register(cluster, go_pump(host=f"127.0.0.1:{server.server_port}"))
        yield server
        server.shutdown()


def test_a_go_pump_whose_gc_is_shorter_than_the_setting_is_found_out_by_its_own_metrics(
    cluster: FileCluster, collect: Callable[..., list[PumpGc]], go: MetricsServer
) -> None:
    go.gc_ms = physical_ms(cluster.tso()) - DAY
    set_checkpoint(cluster, "main", before(cluster.tso(), 2 * DAY + HALF_AN_HOUR))
    with pytest.raises(GapError, match="1 d 0 h behind") as failed:
        collect()
    assert failed.value.facts["gone_upto"] == compose(int(go.gc_ms))
    go.gc_ms = 0
    assert (collect()[0].left_s or 0) > 4 * 86_400


@pytest.mark.parametrize("said", [float("inf"), 1e30])
def test_a_gc_point_that_cannot_be_decides_nothing(
    cluster: FileCluster, collect: Callable[..., list[PumpGc]], go: MetricsServer, said: float
) -> None:
    go.gc_ms = said
    set_checkpoint(cluster, "main", before(cluster.tso(), DAY))
    assert (collect()[0].left_s or 0) > 5 * 86_400


def test_an_address_that_is_none_decides_nothing(
    cluster: FileCluster, collect: Callable[..., list[PumpGc]], ours: FakePump
) -> None:
    register(cluster, go_pump(host="go:bad"))
    set_checkpoint(cluster, "main", before(cluster.tso(), DAY))
    assert (collect()[0].left_s or 0) > 5 * 86_400
    assert ours.collected == 1


def test_where_the_time_is_not_to_be_had_the_others_are_collected_all_the_same(
    cluster: AwayCluster, collect: Callable[..., list[PumpGc]], ours: FakePump
) -> None:
    register(cluster, go_pump())
    set_checkpoint(cluster, "main", cluster.tso())
    cluster.fails("tso", ClusterUnavailable("no leader"))
    with pytest.raises(PumpUnavailable, match="go: it was not compared: no leader"):
        collect()
    assert ours.collected == 1


def test_the_command_reports_the_same_and_fails_where_there_is_an_archive_that_is_behind(cluster: FileCluster) -> None:
    register(cluster, go_pump())
    command = ["--set", f"cluster.url={cluster.url}", "gc", "--json"]
    alone = CliRunner().invoke(cli, command)
    assert alone.exit_code == 0
    assert "no archive" in json.loads(alone.stdout)[0]["note"]
    set_checkpoint(cluster, "main", before(cluster.tso(), 8 * DAY + HALF_AN_HOUR))
    behind = CliRunner().invoke(cli, command)
    assert "1 d 0 h behind" in json.loads(behind.stdout)[0]["error"]
    assert isinstance(behind.exception, GapError)
    set_checkpoint(cluster, "main", cluster.tso())
    assert CliRunner().invoke(cli, command).exit_code == 0
