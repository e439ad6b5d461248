"""The commands on nodes, and what stands behind them (row O3)."""

from __future__ import annotations

import http.server
import json
import re
import socket
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from pumphouse import secret_text
from pumphouse.cli import cli
from pumphouse.client import admin
from pumphouse.errors import ClusterUnavailable, ConfigError, CorruptionError, PumpError, PumpUnavailable, UsageError
from pumphouse.model.node import NodeKind, NodeState, NodeStatus
from pumphouse.model.tso import Tso, compose, physical_ms, show
from pumphouse.proto.pumphouse_pb2 import Blocker, StatusResponse, TriggerGcResponse
from pumphouse.registry.file import FileCluster
from tests.support.fakepump import FakePump
from tests.support.secrettext import decrypt

REQUESTED = ("requested", "requested_by_retention", "requested_by_checkpoints")


@pytest.fixture
def cluster(tmp_path):
    return FileCluster(tmp_path / "cluster")


@pytest.fixture
def run(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run_command(*args: str, code: int | None = 0, as_json: bool = False):
        command = ["--set", f"cluster.url={cluster.url}", *args] + (["--json"] if as_json else [])
        result = CliRunner().invoke(cli, command)
        if code is None:
            raise result.exception
        assert result.exit_code == code, (result.output, result.exception)
        return json.loads(result.stdout) if as_json else result

    return run_command


@pytest.fixture
def pump(cluster):
    pump = FakePump("p:8250", cluster)
    yield pump
    pump.stop()


class HttpPump:
    """A Pump's HTTP API; says what it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.body = b'{"message":"apply action close success!","code":200,"data":null}'
        self.on_put = lambda: None
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_PUT(self):
                outer.asked.append(self.path)
                outer.on_put()
                self.send_response(200)
                self.send_header("content-length", str(len(outer.body)))
                self.end_headers()
                self.wfile.write(outer.body)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def http_pump():
    server = HttpPump()
    yield server
    server.stop()


def consumer(cluster, name: str, checkpoint: int, state: NodeState = NodeState.PAUSED, *, age_s: float = 0) -> None:
    updated = compose(physical_ms(cluster.tso()) - int(age_s * 1000))
    status = NodeStatus(node_id=name, host="", state=state, max_commit_ts=Tso(checkpoint), update_ts=updated)
    cluster.update_node(NodeKind.DRAINER, name, lambda _: status)


# Lists


@pytest.mark.row("O3")
@pytest.mark.row("W3")
def test_pumps_lists_state_position_and_silence(cluster, run, pump):
    pump.register(http="127.0.0.1:1")
    old = NodeStatus(
        node_id="old",
        host="h:1",
        state=NodeState.ONLINE,
        max_commit_ts=compose(1_700_000_000_000),
        update_ts=compose(1_700_000_000_000),
    )
    cluster.update_node(NodeKind.PUMP, "old", lambda _: old)
    cluster.update_node(NodeKind.PUMP, "gone", lambda _: old.with_(node_id="gone", state=NodeState.OFFLINE))
    listed = run("pumps", as_json=True)
    assert [(each["node_id"], each["state"], each["kind"], each["silent"]) for each in listed] == [
        ("old", "online", "go", True),
        ("p:8250", "online", "pumphouse", False),
    ]
    assert listed[0]["max_commit_time"] == "2023-11-14T22:13:20.000+00:00"
    assert (listed[1]["incarnation"], listed[1]["start_count"], listed[1]["http"]) == ("i-p:8250", 1, "127.0.0.1:1")
    text = run("pumps").stdout
    assert "p:8250" in text and "silent for" in text and "gone" not in text
    assert [each["node_id"] for each in run("pumps", "--show-offline", as_json=True)] == ["gone", "old", "p:8250"]


@pytest.mark.row("O3", "P15")
def test_a_pump_without_space_is_listed_as_read_only_and_a_go_pump_never(cluster, run, pump):
    pump.register(http="127.0.0.1:1")
    ours = cluster.node(NodeKind.PUMP, "p:8250")
    for name, status in {"full": ours, "good": ours.with_(score=50), "go": ours.with_(extra=None)}.items():
        cluster.update_node(NodeKind.PUMP, name, lambda _, name=name, status=status: status.with_(node_id=name))
    shown = {each["node_id"]: each["read_only"] for each in run("pumps", as_json=True)}
    assert shown == {"full": True, "go": None, "good": False, "p:8250": True}
    lines = {line.split()[0]: line for line in run("pumps").stdout.splitlines()[1:]}
    assert "online, read-only" in lines["full"]
    assert "read-only" not in lines["good"] + lines["go"]


@pytest.mark.row("O3")
def test_a_go_pump_has_no_status_of_our_kind(run, pump):
    pump.register(http="127.0.0.1:1")
    with pytest.raises(UsageError, match="is a Go Pump"):
        run("pump", "status", "p:8250", code=None)
    with pytest.raises(UsageError, match="registered are: p:8250"):
        run("pump", "status", "q", code=None)


@pytest.mark.row("O3")
@pytest.mark.parametrize("command", [("drainers",), ("consumer", "list")])
def test_consumers_are_listed_with_checkpoint_and_alarm(cluster, run, command):
    consumer(cluster, "pumphouse-main", 5 << 18, age_s=8000)
    consumer(cluster, "drainer", 6 << 18, NodeState.ONLINE)
    consumer(cluster, "ended", 6 << 18, NodeState.OFFLINE, age_s=8000)
    listed = run(*command, as_json=True)
    assert [(each["node_id"], each["stale"], each["holds_gc"], each["max_commit_ts"]) for each in listed] == [
        ("drainer", False, True, 6 << 18),
        ("pumphouse-main", True, True, 5 << 18),
    ]
    assert "stale" in run(*command).stdout
    assert [each["stale"] for each in run(*command, "--show-offline", as_json=True)] == [False, False, True]


def test_a_cluster_that_is_not_there_is_a_usage_error_and_is_not_made(run, tmp_path):
    result = CliRunner().invoke(cli, ["--set", f"cluster.url=file://{tmp_path}/typo", "pumps"])
    assert "there is no cluster" in str(result.exception)
    assert not (tmp_path / "typo").exists()


# Consumers


@pytest.mark.row("O3")
def test_a_consumer_is_registered_paused_and_removed(cluster, run):
    listed = run("consumer", "register", "mine", "--checkpoint", "2026-11-21T07:30:00Z", as_json=True)
    assert (listed["state"], listed["max_commit_time"]) == ("paused", "2026-11-21T07:30:00.000+00:00")
    with pytest.raises(UsageError, match="registered already"):
        run("consumer", "register", "mine", code=None)
    assert cluster.node(NodeKind.DRAINER, "mine").max_commit_ts == listed["max_commit_ts"]
    with pytest.raises(UsageError, match="--yes"):
        run("consumer", "unregister", "mine", code=None)
    result = run("consumer", "unregister", "mine", "--yes")
    assert "Pumps may free what mine has not read" in result.stderr
    assert cluster.nodes(NodeKind.DRAINER) == []
    with pytest.raises(UsageError, match="no consumer 'mine'"):
        run("consumer", "unregister", "mine", "--yes", code=None)


@pytest.mark.row("O3", "W4")
@pytest.mark.parametrize("as_json", [False, True])
def test_a_consumer_that_cannot_be_read_is_named_with_its_way_out_and_removed(cluster, run, tmp_path, as_json):
    run("consumer", "register", "mine", "--checkpoint", "0")
    (value,) = (tmp_path / "cluster").rglob("drainers/mine")
    value.write_bytes(value.read_bytes().replace(b'"maxCommitTS":0', b'"maxCommitTS":1e400'))
    with pytest.raises(CorruptionError, match="1e400 is too large") as refused:
        cluster.nodes(NodeKind.DRAINER)
    assert "`pumphouse consumer unregister mine`" in refused.value.hint
    with pytest.raises(UsageError, match="--yes"):
        run("consumer", "unregister", "mine", code=None)
    removed = run("consumer", "unregister", "mine", "--yes", as_json=as_json)
    assert removed["max_commit_ts"] is None if as_json else "could not be read" in removed.stdout
    assert cluster.nodes(NodeKind.DRAINER) == []


def test_a_consumer_may_begin_at_zero(cluster, run):
    run("consumer", "register", "all", "--checkpoint", "0")
    assert cluster.node(NodeKind.DRAINER, "all").max_commit_ts == 0


# State


@pytest.mark.row("O3")
@pytest.mark.row("P12")
@pytest.mark.parametrize(("command", "action"), [("pause-pump", "pause"), ("offline-pump", "close")])
def test_a_pump_is_asked_by_http_where_it_says(run, pump, http_pump, command, action):
    pump.register(http=http_pump.host)
    answer = run(command, "p:8250", as_json=True)
    assert http_pump.asked == [f"/state/p%3A8250/{action}"]
    assert answer["message"] == "apply action close success!"


@pytest.mark.row("O3")
def test_a_go_pump_is_asked_on_its_one_port(cluster, run, http_pump):
    status = NodeStatus(node_id="go", host=http_pump.host, state=NodeState.ONLINE)
    cluster.update_node(NodeKind.PUMP, "go", lambda _: status)
    run("pause-pump", "go")
    assert http_pump.asked == ["/state/go/pause"]


@pytest.mark.row("O3")
def test_a_refusal_in_the_answer_is_an_error_though_http_says_200(run, pump, http_pump):
    pump.register(NodeState.PAUSED, http=http_pump.host)
    http_pump.body = b'{"message":"this pump\'s state is paused, apply close failed!","code":3,"data":null}'
    with pytest.raises(PumpError, match="state is paused"):
        run("offline-pump", "p:8250", code=None)
    http_pump.body = b"<html>"
    with pytest.raises(PumpError, match="HTTP 200"):
        run("offline-pump", "p:8250", code=None)


@pytest.mark.row("O3")
def test_waiting_for_offline_ends_with_it_or_says_who_is_behind(cluster, run, pump, http_pump):
    pump.register(http=http_pump.host)
    http_pump.on_put = lambda: pump.register(NodeState.CLOSING, http=http_pump.host)
    consumer(cluster, "pumphouse-main", 0)
    consumer(cluster, "done", 9)
    with pytest.raises(PumpError, match=r"is closing and not offline after 0.1 s; behind it: pumphouse-main"):
        run("offline-pump", "p:8250", "--wait", "0.1", code=None)
    waited = run("offline-pump", "p:8250", "--wait", "0.1", code=1).stdout
    assert "a snapshot lets the archive catch up; behind it: pumphouse-main" in waited
    assert "--wait" not in waited, "whoever waits knows"
    # It is not asked again, which it would refuse.
    assert "it is closing already. It takes no more prewrites" in run("offline-pump", "p:8250").stdout
    assert len(http_pump.asked) == 1
    pump.register(http=http_pump.host)
    http_pump.on_put = lambda: pump.register(NodeState.OFFLINE, http=http_pump.host)
    assert run("offline-pump", "p:8250", "--wait", "5", as_json=True)["state"] == "offline"
    assert run("offline-pump", "p:8250").stdout == "p:8250: it is offline already. It is offline now.\n"


class BusyPump(FakePump):
    """Has open prewrites, as its status says."""

    unresolved = 3
    oldest = compose(1_700_000_000_000)

    def Status(self, request, context):
        assert request.cluster_id == self.cluster.cluster_id()
        blocker = [Blocker(start_ts=self.oldest)] if self.oldest else []
        return StatusResponse(node_id=self.node_id, unresolved=self.unresolved, oldest_unresolved=blocker)


@pytest.mark.row("O3", "P13")
def test_open_prewrites_that_hold_a_closing_pump_are_named_with_what_to_type(cluster, run, http_pump):
    busy = BusyPump("p:8250", cluster)
    http_pump.on_put = lambda: busy.register(NodeState.CLOSING, http=http_pump.host)
    try:
        busy.register(http=http_pump.host)
        consumer(cluster, "pumphouse-main", 0)
        held = rf"; open prewrite {busy.oldest} \(2023-11-14 22:13:20.000Z\), 3 in all; behind it: pumphouse-main"
        with pytest.raises(PumpError, match=rf"is closing and not offline after 0.1 s{held}") as error:
            run("offline-pump", "p:8250", "--wait", "0.1", code=None)
        for command in ("pump status p:8250", f"pump settle {busy.oldest} --reason WHY", "snapshot"):
            assert f"`pumphouse {command}`" in error.value.hint
        text = run("offline-pump", "p:8250").stdout
        assert re.search(held, text) and "`pumphouse pump status p:8250` lists" in text
        # Written and not indexed yet: it is not known which.
        busy.oldest = 0
        assert "; 3 open prewrites; behind it" in run("offline-pump", "p:8250").stdout
        busy.unresolved = 0
        consumer(cluster, "pumphouse-main", 9)
        assert "catch up.\n" in run("offline-pump", "p:8250").stdout
        # One that pauses waits for none of them, and a Go Pump is not asked.
        busy.unresolved = 3
        http_pump.on_put = lambda: None
        busy.register(http=http_pump.host)
        assert "open prewrite" not in run("pause-pump", "p:8250").stdout
        busy.register(NodeState.CLOSING, go=True)
        assert "open prewrite" not in run("offline-pump", "p:8250").stdout
    finally:
        busy.stop()


class Ticks:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.at = 0.0

    def monotonic(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


class Flaky:
    """A registry in which each look has its own end."""

    def __init__(self, *looks) -> None:
        self.looks = list(looks)

    def node(self, kind, node_id):
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if isinstance(look, Exception):
            raise look
        return NodeStatus(node_id=node_id, host="h:1", state=look)


AWAY = ClusterUnavailable("etcd at h: no answer", url="h")


@pytest.mark.row("O3")
def test_waiting_goes_on_over_a_registry_that_is_away_and_ends_with_it_only_at_its_time():
    closing, offline = NodeState.CLOSING, NodeState.OFFLINE
    silences = []
    found = admin.wait_for_state(
        Flaky(AWAY, closing, AWAY, OSError("stale"), offline), "p", offline, 10, away=silences.append, clock=Ticks()
    )
    assert found is not None and found.state is offline
    assert [str(each) for each in silences] == [str(AWAY), str(AWAY), "stale"]
    assert admin.wait_for_state(Flaky(AWAY, closing), "p", offline, 10, clock=Ticks()) is None
    clock = Ticks()
    with pytest.raises(ClusterUnavailable):
        admin.wait_for_state(Flaky(closing, AWAY), "p", offline, 10, clock=clock)
    assert clock.at == 10
    with pytest.raises(UsageError):  # which no waiting mends
        admin.wait_for_state(Flaky(UsageError("no")), "p", offline, 10, clock=Ticks())


@pytest.mark.row("O3")
def test_a_registry_that_is_away_while_a_command_waits_is_said_once(cluster, run, pump, http_pump, monkeypatch):
    pump.register(http=http_pump.host)
    real, answers = FileCluster.node, []

    def node(self, kind, node_id):
        if answers and not answers.pop(0):
            raise AWAY
        return real(self, kind, node_id)

    def closed() -> None:
        pump.register(NodeState.OFFLINE, http=http_pump.host)
        answers[:] = [False, False, True, False]  # what has been seen needs no further look

    http_pump.on_put = closed
    monkeypatch.setattr(FileCluster, "node", node)
    result = run("offline-pump", "p:8250", "--wait", "30")
    assert "It is offline now." in result.stdout
    assert result.stderr.count("p:8250 was asked to close; the registry does not answer, it is asked again: etcd") == 1
    answers.clear()
    # At its end nothing is known; that the lists cannot be read takes nothing from a wait.
    pump.register(http=http_pump.host)
    http_pump.on_put = lambda: pump.register(NodeState.CLOSING, http=http_pump.host)
    monkeypatch.setattr(FileCluster, "nodes", lambda *_: (_ for _ in ()).throw(AWAY))
    with pytest.raises(PumpError, match=r"is closing and not offline after 0.1 s \(it goes on by itself; see"):
        run("offline-pump", "p:8250", "--wait", "0.1", code=None)


@pytest.mark.row("O3", "P13")
def test_where_nobody_watches_a_spinner_each_thing_that_holds_it_has_a_line(
    cluster, run, http_pump, monkeypatch, tmp_path
):
    busy = BusyPump("p:8250", cluster)
    steps = [
        lambda: None,
        lambda: setattr(busy, "unresolved", 2),  # the same still holds it
        lambda: (setattr(busy, "unresolved", 0), setattr(busy, "oldest", 0)),
        lambda: consumer(cluster, "pumphouse-main", 9),
        lambda: busy.register(NodeState.OFFLINE, http=http_pump.host),
    ]
    monkeypatch.setattr("pumphouse.clock.SystemClock.sleep", lambda *_: steps.pop(0)())
    http_pump.on_put = lambda: busy.register(NodeState.CLOSING, http=http_pump.host)
    try:
        busy.register(http=http_pump.host)
        consumer(cluster, "pumphouse-main", 0)
        result = run("offline-pump", "p:8250", "--wait", "60")
    finally:
        busy.stop()
    lines = [line for line in result.stderr.splitlines() if "waiting for offline" in line]
    assert len(lines) == 3
    assert "3 in all; behind it: pumphouse-main" in lines[0]
    assert "open prewrite" not in lines[1] and "; behind it: pumphouse-main" in lines[1]
    assert "behind" not in lines[2] and "it is closing" in lines[2]


@pytest.mark.row("O3")
def test_what_happens_next_is_said_when_nobody_waits(cluster, run, pump, http_pump):
    pump.register(http=http_pump.host)
    consumer(cluster, "pumphouse-main", 0)
    text = run("offline-pump", "p:8250").stdout
    assert "every consumer has read it to its end" in text and "--wait" in text
    assert "online" not in text
    pump.register(NodeState.CLOSING, http=http_pump.host)
    assert "lets the archive catch up; behind it: pumphouse-main" in run("offline-pump", "p:8250").stdout
    # A Pump that died while it closed is asked, and said to be dead.
    dead = NodeStatus(node_id="dead", host="127.0.0.1:1", state=NodeState.CLOSING, update_ts=compose(1_700_000_000_000))
    cluster.update_node(NodeKind.PUMP, "dead", lambda _: dead)
    with pytest.raises(PumpUnavailable, match="only a running Pump"):
        run("offline-pump", "dead", code=None)


@pytest.mark.row("O3")
def test_a_pump_that_does_not_run_or_is_not_known_is_said_so(run, pump):
    pump.register(http="127.0.0.1:1")
    with pytest.raises(PumpUnavailable, match="only a running Pump"):
        run("pause-pump", "p:8250", code=None)
    with pytest.raises(UsageError, match="registered are: p:8250"):
        run("pause-pump", "q", code=None)


@pytest.mark.row("O3")
def test_a_state_is_forced_only_after_a_warning_and_changes_nothing_else(cluster, run, pump):
    pump.register(http="127.0.0.1:1")
    before = cluster.node(NodeKind.PUMP, "p:8250")
    with pytest.raises(UsageError, match="--yes"):
        run("update-pump", "p:8250", "--state", "offline", code=None)
    assert cluster.node(NodeKind.PUMP, "p:8250") == before
    result = run("update-pump", "p:8250", "--state", "offline", "--yes")
    assert "declare-lost" in result.stderr and "loses every transaction" in result.stderr
    assert cluster.node(NodeKind.PUMP, "p:8250") == before.with_(state=NodeState.OFFLINE)
    run("update-pump", "p:8250", "--state", "gone", "--yes", code=2)
    with pytest.raises(UsageError, match="no Pump 'q'"):
        run("update-pump", "q", "--state", "online", "--yes", code=None)


# Drainers


def drainer(cluster, host: str, state: NodeState = NodeState.ONLINE) -> None:
    status = NodeStatus(node_id="d:8249", host=host, state=state, max_commit_ts=Tso(7 << 18), update_ts=cluster.tso())
    cluster.update_node(NodeKind.DRAINER, "d:8249", lambda _: status)


@pytest.mark.row("O3")
@pytest.mark.parametrize(("command", "action"), [("pause-drainer", "pause"), ("offline-drainer", "close")])
def test_a_drainer_is_asked_by_http_on_its_own_port(cluster, run, http_pump, command, action):
    drainer(cluster, http_pump.host)
    assert run(command, "d:8249", as_json=True)["kind"] == "drainer"
    assert http_pump.asked == [f"/state/d%3A8249/{action}"]
    wanted = NodeState.PAUSED if action == "pause" else NodeState.OFFLINE
    http_pump.on_put = lambda: drainer(cluster, http_pump.host, wanted)
    assert run(command, "d:8249", "--wait", "5", as_json=True)["state"] == wanted
    with pytest.raises(UsageError, match="no Drainer 'x' is registered"):
        run(command, "x", code=None)


@pytest.mark.row("O3")
def test_an_archive_takes_no_orders_by_http(cluster, run):
    consumer(cluster, "pumphouse-main", 1)
    with pytest.raises(UsageError, match=r"an archive.*consumer unregister"):
        run("offline-drainer", "pumphouse-main", code=None)


@pytest.mark.row("O3")
def test_a_drainers_state_is_forced_only_after_a_warning_that_says_what_goes(cluster, run):
    drainer(cluster, "h:1")
    with pytest.raises(UsageError, match="--yes"):
        run("update-drainer", "d:8249", "--state", "offline", code=None)
    result = run("update-drainer", "d:8249", "--state", "offline", "--yes")
    assert "Pumps may free what it has not read" in result.stderr and str(7 << 18) in result.stderr
    assert cluster.node(NodeKind.DRAINER, "d:8249").state is NodeState.OFFLINE
    assert cluster.node(NodeKind.DRAINER, "d:8249").max_commit_ts == 7 << 18
    assert "A new Pump does not start" in run("update-drainer", "d:8249", "--state", "online", "--yes").stderr


@pytest.mark.row("O3")
def test_a_paused_reader_is_explained(cluster, run):
    consumer(cluster, "pumphouse-main", 5 << 18)
    text = run("drainers").stdout
    assert "paused (reader)" in text and "normal state" in text
    assert [each["kind"] for each in run("drainers", as_json=True)] == ["reader"]
    drainer(cluster, "h:1", NodeState.PAUSED)
    assert run("drainers").stdout.count("(reader)") == 1
    assert len(run("drainers", "--show-offline-nodes", as_json=True)) == 2


# Drainer's files


@pytest.mark.row("O3")
def test_a_savepoint_holds_the_clusters_time_and_is_not_overwritten_in_passing(cluster, run, tmp_path):
    before = cluster.tso()
    said = run("generate-meta", "--data-dir", "position", as_json=True)
    path = tmp_path / "position" / "savepoint"
    assert path.read_text() == f"commitTS = {said['commit_ts']}\n"
    assert before < said["commit_ts"] < cluster.tso()
    assert path.stat().st_mode & 0o777 == 0o644
    with pytest.raises(UsageError, match="--yes"):
        run("generate-meta", "--data-dir", "position", code=None)
    run("generate-meta", "--data-dir", "position", "--time-zone", "Asia/Shanghai", "--yes")
    ts, utc, local = path.read_text().split("\n")
    assert int(ts.removeprefix("commitTS = ")) > said["commit_ts"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,3})? \+0000 UTC", utc)
    assert local.endswith(" +0800 CST")
    with pytest.raises(UsageError, match="no time zone"):
        run("generate-meta", "--time-zone", "Mars/Base", "--yes", code=None)


@pytest.mark.row("O3")
def test_the_golden_passwords_are_read_and_ours_read_back(run, monkeypatch):
    monkeypatch.delenv("BINLOG_SECRET_KEY", raising=False)
    golden = json.loads((Path(__file__).parents[2] / "golden" / "misc.json").read_text())["encrypted_password"]
    assert golden
    for each in golden:
        assert decrypt(each["ciphertext_b64"], secret_text.secret_key()) == each["plaintext"]
    hidden = run("encrypt", "--text", "päss", as_json=True)["encrypted"]
    assert decrypt(hidden, secret_text.secret_key()) == "päss"
    assert run("encrypt", "--text", "päss", as_json=True)["encrypted"] != hidden
    result = CliRunner().invoke(cli, ["encrypt"], input="from stdin\n")
    assert decrypt(result.stdout.strip(), secret_text.secret_key()) == "from stdin"
    monkeypatch.setenv("BINLOG_SECRET_KEY", "00" * 16)
    mine = secret_text.encrypt("x" * 40, secret_text.secret_key())
    monkeypatch.setenv("BINLOG_SECRET_KEY", "11" * 16)
    with pytest.raises(UsageError, match="ciphertext not valid"):
        decrypt(mine, secret_text.secret_key())
    for wrong in ("zz", "0011"):
        monkeypatch.setenv("BINLOG_SECRET_KEY", wrong)
        with pytest.raises(ConfigError, match="BINLOG_SECRET_KEY is no key"):
            run("encrypt", "--text", "x", code=None)


# Clock


@pytest.mark.row("O3")
def test_tso_converts_both_ways_and_needs_a_cluster_only_for_now(run, cluster):
    ts = 440104883791855621
    assert run("tso", str(ts), as_json=True) == {
        "tso": ts,
        "time": "2023-03-15T07:54:56.789+00:00",
        "physical_ms": 1678866896789,
        "logical": 5,
    }
    assert run("tso", "2023-03-15T08:54:56.789+01:00", as_json=True)["tso"] == ts - 5
    assert run("tso", str(ts)).stdout == f"{ts} (2023-03-15 07:54:56.789Z)\n"
    first, second = run("tso", as_json=True)["tso"], run("tso", "now", as_json=True)["tso"]
    assert first < second < cluster.tso()
    with pytest.raises(UsageError, match="is no time"):
        run("tso", "noon", code=None)


# GC


@pytest.mark.row("P11")
@pytest.mark.row("O3")
def test_gc_reports_what_each_pump_freed_and_who_holds_the_rest(cluster, run, pump):
    pump.register()
    pump.gc_answer = TriggerGcResponse(
        started=True, gc_point=5 << 18, deletion_limit=4 << 18, held_by=["pumphouse-main"],
        freed_files=2, freed_bytes=1000, kept_files=3, requested_by_retention=8 << 18, requested_by_checkpoints=6 << 18,
    )  # fmt: skip
    go = NodeStatus(node_id="go", host="127.0.0.1:1", state=NodeState.ONLINE)
    cluster.update_node(NodeKind.PUMP, "go", lambda _: go)
    cluster.update_node(NodeKind.PUMP, "off", lambda _: go.with_(node_id="off", state=NodeState.OFFLINE))
    of_go, ours = run("gc", as_json=True)
    assert (of_go["node_id"], of_go["asked"]) == ("go", False)
    assert "cannot be held" in of_go["note"]
    assert "no archive" in of_go["note"]
    assert ours == {
        "node_id": "p:8250", "asked": True, "started": True, "gc_point": 5 << 18, "deletion_limit": 4 << 18,
        "held_by": ["pumphouse-main"], "freed_files": 2, "freed_bytes": 1000, "kept_files": 3, "note": "", "error": "",
        "requested": 6 << 18, "requested_by_retention": 8 << 18, "requested_by_checkpoints": 6 << 18,
        "archived": None, "gone_upto": None, "left_s": None,
    }  # fmt: skip
    *table, below = run("gc").stdout.splitlines()
    heading, of_go, ours = (re.split(r"  +", line.strip()) for line in table)
    assert heading == ["NODE", "FREED FILES", "KEPT", "REQUESTED", "GC POINT", "DELETION LIMIT", "HELD BY"]
    shown = [show(ts << 18) for ts in (6, 5, 4)]
    assert ours == ["p:8250", "2 (1,000 B)", "3", *shown, "pumphouse-main"]
    assert (of_go[:4], of_go[-1]) == (["go", "-", "-", "-"], "its age (see below)")
    assert below.startswith("go: a Go Pump: its GC goes by age alone")
    pump.gc_answer = TriggerGcResponse(started=True, held_by=["pumphouse-main", "retention"])
    assert "pumphouse-main, retention (its setting pump.retention_s)" in run("gc").stdout


@pytest.mark.row("P11")
def test_what_gc_was_asked_for_is_unknown_where_a_pump_does_not_say_and_retention_alone_without_a_consumer(
    cluster, run, pump
):
    pump.register()
    pump.gc_answer = TriggerGcResponse(started=True, gc_point=5 << 18)
    (earlier,) = run("gc", as_json=True)
    assert [earlier[name] for name in REQUESTED] == [None, None, None]
    assert "None" not in run("gc").stdout
    pump.gc_answer = TriggerGcResponse(started=True, gc_point=5 << 18, requested_by_retention=8 << 18)
    (alone,) = run("gc", as_json=True)
    assert [alone[name] for name in REQUESTED] == [8 << 18, 8 << 18, None]


@pytest.mark.row("P11")
def test_a_pump_whose_gc_fails_fails_the_command_after_the_others_were_asked(cluster, run, pump):
    pump.register()
    dead = NodeStatus(
        node_id="a-dead", host="127.0.0.1:1", state=NodeState.ONLINE, extra=cluster.node(NodeKind.PUMP, "p:8250").extra
    )
    cluster.update_node(NodeKind.PUMP, "a-dead", lambda _: dead)
    result = CliRunner().invoke(cli, ["--set", f"cluster.url={cluster.url}", "gc", "--json"])
    assert [report["started"] for report in json.loads(result.stdout)] == [False, True]
    assert isinstance(result.exception, PumpUnavailable)
    assert "a-dead" in str(result.exception)
    pump.gc_answer = TriggerGcResponse(started=False)
    (_, ours) = admin.trigger_gc(cluster)
    assert ours.note == "a GC is running already"
    pump.gc_answer = PumpError("disk on fire")
    assert "disk on fire" in admin.trigger_gc(cluster)[1].error


@pytest.mark.row("O3")
@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("pd://a:1", "pd://a:1"),
        ("etcd://a:1,b:2", "etcd://a:1,b:2"),
        ("http://a:1,http://b:2", "pd://a:1,b:2"),
        ("a:1", "pd://a:1"),
        ("a:1,http://b:2", "pd://a:1,b:2"),
        ("unix://localhost:2379", "pd://localhost:2379"),
        ("HTTP://a:1", "pd://a:1"),
    ],
)
def test_the_cluster_is_named_for_any_command_also_as_binlogctl_does(given, url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr(
        "pumphouse.commands.nodes.open_cluster",
        lambda of, *_, **__: seen.append(getattr(of, "url", of)) or FileCluster(tmp_path),
    )
    for option in ("--cluster", "--pd-urls"):
        result = CliRunner().invoke(cli, [option, given, "pumps", "--json"])
        assert result.exit_code == 0, result.output
    assert seen == [url] * 2


@pytest.mark.row("O3")
def test_a_cluster_of_no_known_kind_and_a_log_level_that_is_none_are_refused(run):
    with pytest.raises(ConfigError, match="file://"):
        run("--cluster", "foo://x", "pumps", code=None)
    refused = run("--log-level", "loud", "pumps", code=2)
    assert "'loud' is not one of" in refused.output


@pytest.mark.row("O3")
def test_the_status_of_a_pump_that_does_not_answer_says_when_it_was_last_seen(cluster, run, pump):
    pump.register(http="127.0.0.1:1")
    pump.stop()
    with pytest.raises(PumpUnavailable, match=r"registered as online at .*, its last heartbeat is \d+ s old"):
        run("pump", "status", "p:8250", code=None)
    with pytest.raises(UsageError, match="no Pump 'q' is registered"):
        run("pump", "settle", "7", "--rolled-back", "--reason", "gone", "--node", "q", code=None)
    run("update-pump", "p:8250", "--state", "offline", "--yes")
    with pytest.raises(PumpUnavailable) as gone:
        run("pump", "status", "p:8250", code=None)
    assert (
        "it is out of the cluster; unless it was declared lost, `pumphouse pump run` on its data directory brings it back"
        in gone.value.hint
    )


@pytest.mark.row("P13")
def test_an_order_that_is_not_answered_may_yet_be_obeyed_and_one_that_was_not_sent_is_not(cluster, monkeypatch):
    monkeypatch.setattr(admin, "HTTP_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listening:  # takes the order, as a stopped process does
        status = NodeStatus(
            node_id="p", host=f"127.0.0.1:{listening.getsockname()[1]}", state=NodeState.ONLINE, update_ts=cluster.tso()
        )
        cluster.update_node(NodeKind.PUMP, "p", lambda _: status)
        with pytest.raises(PumpUnavailable) as silent:
            admin.ask_state(cluster, "p", "close")
    assert "it has the order and may yet obey: see `pumphouse pumps`" in silent.value.hint

    def no_way(*_: object) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", no_way)
    with pytest.raises(PumpUnavailable) as unsent:
        admin.ask_state(cluster, "p", "close")
    assert "only a running Pump can pause or drain: start it" in unsent.value.hint
