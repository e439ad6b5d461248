"""Transactions whose C got lost: the Pump asks the application's resolver."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pumphouse.cli import Context
from pumphouse.client.resolver import PENDING, ROLLED_BACK, Outcome, ResolverServer, committed
from pumphouse.commands.pump import pump as pump_command
from pumphouse.errors import UsageError
from pumphouse.model.node import NodeKind, NodeState, NodeStatus
from pumphouse.model.tso import Tso, compose, physical_ms, show
from pumphouse.registry.base import ResolverRecord
from pumphouse.registry.file import FileCluster
from tests.support import formats
from tests.support.pumpserver import PumpServer, commit, prewrite
from tests.support.waiting import eventually

pytestmark = pytest.mark.row("P6")


class Application:
    """Outcomes of transactions, and the questions that came."""

    def __init__(self) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self.asked: list[tuple[int, bool, float]] = []
        self._lock = threading.Lock()

    def answer(self, start_ts: Tso, key: bytes, decide: bool) -> Outcome:
        assert key.startswith(b"app/")
        with self._lock:
            self.asked.append((start_ts, decide, time.monotonic()))
            known = self.outcomes.get(start_ts)
            if known is None and decide:
                known = self.outcomes[start_ts] = ROLLED_BACK
            return known or PENDING

    def questions(self, start_ts: int) -> list[bool]:
        return [decide for asked, decide, _ in self.asked if asked == start_ts]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pump")


@pytest.fixture(scope="module")
def cluster(directory: Path) -> FileCluster:
    return FileCluster(directory / "cluster")


@pytest.fixture
def application(cluster: FileCluster) -> Iterator[Application]:
    app = Application()
    with ResolverServer(cluster, "app", [b"app/"], app.answer):
        yield app


@pytest.fixture(scope="module")
def pump(directory: Path, cluster: FileCluster) -> Iterator[PumpServer]:
    """One Pump for all: each test leaves nothing open, and looks only above its own start ts."""
    with PumpServer(directory, cluster, max_txn_timeout_s=2.5) as server:
        yield server


def test_a_lost_commit_is_completed_by_the_pump_early_and_without_power(
    pump: PumpServer, application: Application
) -> None:
    start_ts = pump.cluster.tso()
    pump.write(prewrite(start_ts, b"rows"))
    commit_ts = pump.cluster.tso()
    application.outcomes[start_ts] = committed(commit_ts)
    (found,) = pump.pull_until(commit_ts, after=start_ts)
    assert (found.start_ts, found.commit_ts, found.prewrite_value) == (start_ts, commit_ts, b"rows")
    assert set(application.questions(start_ts)) == {False}
    # The C that was only slow comes after all: counted, and ignored.
    before = pump.status().duplicate_commits
    pump.write(commit(start_ts, commit_ts))
    eventually(lambda: pump.status().duplicate_commits == before + 1)
    assert not pump.status().late
    assert not pump.status().orphans


def test_an_open_transaction_is_rolled_back_only_after_the_time_out_and_by_decision(
    pump: PumpServer, application: Application
) -> None:
    began = time.monotonic()
    start_ts = pump.cluster.tso()
    pump.write(prewrite(start_ts))
    eventually(lambda: pump.status().unresolved == 0)
    assert time.monotonic() - began >= 2.4
    asked = application.questions(start_ts)
    assert asked[0] is False
    assert asked[-1] is True
    assert asked == sorted(asked)
    fence = pump.cluster.tso()
    eventually(lambda: pump.status().watermark > fence)
    assert pump.pull_until(fence, after=start_ts) == []


def test_no_question_is_asked_about_a_prewrite_whose_commit_comes_at_once(
    pump: PumpServer, application: Application
) -> None:
    for _ in range(20):
        pump.transaction()
    time.sleep(0.5)
    assert application.asked == []


def test_without_an_answer_the_pump_holds_names_the_start_ts_and_raises_a_metric(pump: PumpServer) -> None:
    _, before = pump.transaction()
    eventually(lambda: pump.status().watermark >= before)
    start_ts = pump.cluster.tso()
    pump.write(prewrite(start_ts, b"rows", key=b"nobody/1"))
    fence = pump.cluster.tso()
    eventually(lambda: f'"start_ts": {start_ts}' in pump.log(), what="the log names the start ts", within_s=40)
    assert "prewrite_unanswered" in pump.log()
    assert pump.status().watermark < fence
    from urllib.request import urlopen

    with urlopen(f"http://{pump.http}/metrics") as page:
        assert "binlog_pump_unanswered_prewrites 1.0" in page.read().decode()

    context = Context(None, {"cluster.url": pump.cluster.url})
    said = CliRunner().invoke(pump_command, ["status", "pump-1", "--json"], obj=context)
    assert said.exit_code == 0, said.output
    formats.check("pump-status-output", json.loads(said.stdout))
    (waiting,) = json.loads(said.stdout)["oldest_unresolved"]
    assert (waiting["start_ts"], bytes.fromhex(waiting["key"])) == (start_ts, b"nobody/1")
    text = CliRunner().invoke(pump_command, ["status", "pump-1"], obj=context).stdout
    assert re.search(r"^watermark +\d+ \(\d{4}-", text, re.MULTILINE)
    assert re.search(r"^unresolved prewrites +1$", text, re.MULTILINE)
    assert show(start_ts) in text

    def settle(*args: str) -> Result:
        return CliRunner().invoke(pump_command, ["settle", str(start_ts), *args], obj=context)

    assert settle("--reason", "x").exit_code == 2  # neither committed nor rolled back
    assert settle("--rolled-back").exit_code == 2  # no reason
    commit_ts = pump.cluster.tso()
    silent = NodeStatus(node_id="pump-9", host="127.0.0.1:1", state=NodeState.ONLINE)
    pump.cluster.update_node(NodeKind.PUMP, "pump-9", lambda _: silent)
    ended = settle("--committed", str(commit_ts), "--reason", "seen in the store", "--json")
    pump.cluster.update_node(NodeKind.PUMP, "pump-9", lambda _: None)
    assert ended.exit_code == 0, ended.output
    told = json.loads(ended.stdout)
    assert "pump-9" in told.pop("silent")
    assert told == {"start_ts": start_ts, "commit_ts": commit_ts, "pumps": ["pump-1"]}
    assert "pump-9: a prewrite that was sent twice waits there too" in ended.stderr
    (found,) = pump.pull_until(commit_ts, after=start_ts)
    assert found.prewrite_value == b"rows"
    eventually(lambda: "prewrite_settled_by_hand" in pump.log())
    assert isinstance(settle("--rolled-back", "--reason", "again").exception, UsageError)


def test_settling_what_a_registered_resolver_will_answer_for_needs_a_yes(
    pump: PumpServer, cluster: FileCluster, application: Application
) -> None:
    context = Context(None, {"cluster.url": pump.cluster.url})

    def settle(start_ts: int, *args: str) -> Result:
        command = ["settle", str(start_ts), "--rolled-back", "--reason", "x", *args]
        return CliRunner().invoke(pump_command, command, obj=context)

    first, second = pump.cluster.tso(), pump.cluster.tso()
    with ResolverServer(cluster, "shop", [b"shop/"], lambda *_: PENDING):
        for start_ts in (first, second):
            pump.write(prewrite(start_ts, key=b"shop/1"))
        eventually(lambda: len(pump.status().oldest_unresolved) == 2)
        asked = settle(first, "--node", "pump-1")
        assert isinstance(asked.exception, UsageError)
        assert "shop (live): a resolver that answers for its key is registered" in asked.stderr
    cluster.put_resolver(ResolverRecord(resolver_id="shop", host="127.0.0.1:1", prefixes=(b"shop/",), heartbeat=1.0))
    asked = settle(first)
    assert isinstance(asked.exception, UsageError)
    assert "shop (down): a resolver that answers for its key" in asked.stderr
    assert pump.status().unresolved == 2
    for start_ts, more in ((first, ()), (second, ("--node", "pump-1"))):
        assert settle(start_ts, "--yes", *more).exit_code == 0
    eventually(lambda: pump.status().unresolved == 0)
    cluster.delete_resolver("shop")


def test_settling_one_of_more_than_a_pump_shows_needs_a_yes_while_any_resolver_is_registered(
    pump: PumpServer, cluster: FileCluster, application: Application
) -> None:
    context = Context(None, {"cluster.url": pump.cluster.url})
    opened = [pump.cluster.tso() for _ in range(101)]
    for start_ts in opened:
        application.outcomes[start_ts] = PENDING
        pump.write(prewrite(start_ts))
    eventually(lambda: len(pump.status().oldest_unresolved) == 100)
    command = ["settle", str(opened[-1]), "--rolled-back", "--reason", "x", "--node", "pump-1"]
    asked = CliRunner().invoke(pump_command, command, obj=context)
    assert isinstance(asked.exception, UsageError)
    assert "app (live): a resolver that may answer for it" in asked.stderr
    for start_ts in opened:
        application.outcomes[start_ts] = ROLLED_BACK
    eventually(lambda: pump.status().unresolved == 0, within_s=40)


def test_a_hand_settled_rollback_lets_the_stream_go_on(pump: PumpServer) -> None:
    import getpass

    from pumphouse.proto import pumphouse_pb2 as v1

    start_ts = pump.cluster.tso()
    pump.write(prewrite(start_ts, key=b"nobody/1"))
    after = pump.transaction()
    pump.batch.Settle(
        v1.SettleRequest(cluster_id=pump.cluster_id, start_ts=start_ts, reason="lost host", who=getpass.getuser())
    )
    assert [b.commit_ts for b in pump.pull_until(after[1], after=start_ts)] == [after[1]]


def test_a_settled_rollback_is_remembered_over_kill_9(pump: PumpServer, application: Application) -> None:
    start_ts = pump.cluster.tso()
    application.outcomes[start_ts] = ROLLED_BACK
    pump.write(prewrite(start_ts))
    eventually(lambda: pump.status().unresolved == 0)
    asked = len(application.asked)
    pump.kill()
    pump.start()
    fence = pump.cluster.tso()
    eventually(lambda: pump.status().watermark > fence)
    assert len(application.asked) >= asked


def test_a_resolver_that_fails_is_no_answer(pump: PumpServer, cluster: FileCluster) -> None:
    def fail(*_: Any) -> Outcome:
        raise RuntimeError("the store is away")

    start_ts = pump.cluster.tso()
    with ResolverServer(cluster, "app", [b"app/"], fail):
        pump.write(prewrite(start_ts))
        time.sleep(3.5)
        assert pump.status().unresolved == 1
    commit_ts = cluster.tso()
    with ResolverServer(cluster, "app", [b"app/"], lambda ts, key, decide: committed(commit_ts)):
        (found,) = pump.pull_until(commit_ts, after=start_ts)
    assert found.start_ts == start_ts


def test_age_is_taken_from_the_start_ts_so_a_restart_does_not_begin_it_again(
    tmp_path: Path, cluster: FileCluster, application: Application
) -> None:
    with PumpServer(tmp_path, cluster, node_id="pump-2", max_txn_timeout_s=60.0) as pump:
        start_ts = compose(physical_ms(cluster.tso()) - 61_000)
        pump.write(prewrite(start_ts))
        eventually(lambda: pump.status().unresolved == 0)
    assert True in application.questions(start_ts)
