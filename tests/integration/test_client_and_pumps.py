"""The pump client, transactions, resolver and commands on real Pump processes."""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from pumphouse.cli import cli
from pumphouse.client.pump_client import PumpClient
from pumphouse.client.resolver import PENDING, ROLLED_BACK, Outcome, ResolverServer, committed
from pumphouse.client.transaction import TransactionBinlog, TransactionRunner
from pumphouse.errors import PumpUnavailable
from pumphouse.model.tso import Tso
from pumphouse.registry.file import FileCluster
from tests.support.pumpserver import PumpServer
from tests.support.waiting import eventually


class Bank:
    """An application: outcomes by start ts, and a mark that makes a later commit fail."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.outcomes: dict[int, Outcome] = {}
        self.asked: set[int] = set()

    def answer(self, start_ts: Tso, _key: bytes, decide: bool) -> Outcome:
        with self.lock:
            self.asked.add(start_ts)
            if decide:
                self.outcomes.setdefault(start_ts, ROLLED_BACK)
            return self.outcomes.get(start_ts, PENDING)

    def finish(self, start_ts: int, outcome: Outcome) -> None:
        with self.lock:
            if self.outcomes.setdefault(start_ts, outcome) != outcome:
                raise RuntimeError("marked as rolled back")


class Transfer:
    """One transaction of the bank."""

    def __init__(self, bank: Bank, start_ts: int, *, fails: bool) -> None:
        self.bank, self.start_ts, self.fails = bank, start_ts, fails

    def prewrite(self) -> None:
        if self.fails:
            raise RuntimeError("conflict")

    def commit(self, commit_ts: Tso) -> None:
        self.bank.finish(self.start_ts, committed(commit_ts))

    def rollback(self) -> None:
        self.bank.finish(self.start_ts, ROLLED_BACK)


@pytest.fixture
def cluster(tmp_path: Path) -> FileCluster:
    return FileCluster(tmp_path / "cluster")


@pytest.mark.row("W7")
@pytest.mark.row("C3")
@pytest.mark.row("C4")
@pytest.mark.row("P6")
def test_every_committed_transaction_reaches_a_stream_once_its_pump_is_back_and_no_other_does(
    tmp_path: Path, cluster: FileCluster
) -> None:
    bank = Bank()
    contents: dict[int, bytes] = {}
    errors: list[BaseException] = []

    def work(runner: TransactionRunner, seed: int) -> None:
        rng = random.Random(seed)
        for number in range(60):
            start_ts = cluster.tso()
            value = rng.randbytes(rng.choice((20, 200, 20_000)))
            contents[start_ts] = value
            fails = number % 10 == 3
            try:
                runner.run(
                    TransactionBinlog(start_ts=start_ts, key=b"bank/%d" % start_ts, prewrite_value=value),
                    Transfer(bank, start_ts, fails=fails),
                )
            except RuntimeError:
                if not fails:
                    errors.append(AssertionError(f"{start_ts} was rolled back"))
            except BaseException as error:
                errors.append(error)
            if number % 10 == 7:
                time.sleep(0.02)

    settings = {"max_txn_timeout_s": 2.0}
    with (
        PumpServer(tmp_path, cluster, node_id="a", **settings).start() as a,
        PumpServer(tmp_path, cluster, node_id="b", **settings).start() as b,
        ResolverServer(cluster, "bank", [b"bank/"], bank.answer),
        PumpClient(cluster, write_timeout_s=2.0, watch_interval_s=0.1, probe_interval_s=0.3) as client,
        TransactionRunner(client) as runner,
    ):
        threads = [threading.Thread(target=work, args=(runner, seed)) for seed in range(6)]
        for thread in threads:
            thread.start()
        eventually(lambda: len(contents) > 60)
        a.kill()
        assert len(contents) < 300  # well under way
        time.sleep(0.3)
        a.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert client.stats.prewrite_retries > 0
        eventually(lambda: {pump.node_id for pump in client.available()} == {"a", "b"})
        # A transaction whose C is lost: P only.
        lost = cluster.tso()
        contents[lost] = b"lost"
        client.write_prewrite(
            TransactionBinlog(start_ts=lost, key=b"bank/lost", prewrite_value=b"lost").prewrite(), lost
        )
        client.forget(lost)
        bank.finish(lost, committed(cluster.tso()))
        assert client.flush(60)
        end = cluster.tso()
        found: dict[int, tuple[int, bytes]] = {}
        for pump in (a, b):
            for binlog in pump.pull_until(end):
                assert found.setdefault(binlog.start_ts, (binlog.commit_ts, binlog.prewrite_value))
    expected = {ts: (out.commit_ts, contents[ts]) for ts, out in bank.outcomes.items() if out.commit_ts}
    assert found == expected
    assert len(expected) == 6 * 54 + 1
    assert lost in bank.asked
    assert runner.added_latency.count == 6 * 54


@pytest.mark.row("W7")
def test_with_no_pump_left_transactions_abort(tmp_path: Path, cluster: FileCluster) -> None:
    bank = Bank()
    with (
        PumpServer(tmp_path, cluster).start() as pump,
        PumpClient(cluster, write_timeout_s=0.3) as client,
        TransactionRunner(client) as runner,
    ):
        pump.kill()
        start_ts = cluster.tso()
        with pytest.raises(PumpUnavailable):
            runner.run(
                TransactionBinlog(start_ts=start_ts, key=b"bank/1", prewrite_value=b"v"),
                Transfer(bank, start_ts, fails=False),
            )
    assert bank.outcomes == {start_ts: ROLLED_BACK}


@pytest.mark.row("O3")
@pytest.mark.row("P13")
@pytest.mark.row("C1")
def test_the_commands_list_pause_drain_and_collect_real_pumps(tmp_path: Path, cluster: FileCluster) -> None:
    def run(*args: str) -> list[dict] | dict:
        result = CliRunner().invoke(cli, ["--set", f"cluster.url={cluster.url}", *args, "--json"])
        assert result.exit_code == 0, (result.output, result.exception)
        return json.loads(result.stdout)

    with (
        PumpServer(tmp_path, cluster, node_id="a").start() as a,
        PumpServer(tmp_path, cluster, node_id="b").start() as b,
        PumpClient(cluster, watch_interval_s=0.05) as client,
    ):
        a.transaction()
        assert [(each["node_id"], each["state"], each["silent"]) for each in run("pumps")] == [
            ("a", "online", False),
            ("b", "online", False),
        ]
        run("consumer", "register", "mine", "--checkpoint", "now")
        reports = run("gc")
        assert [report["started"] for report in reports] == [True, True]
        assert all(report["error"] == "" for report in reports)
        assert run("pause-pump", "a", "--wait", "15")["state"] == "paused"
        assert a.wait() == 0
        eventually(lambda: [pump.node_id for pump in client.available()] == ["b"])
        run("consumer", "unregister", "mine", "--yes")
        assert run("offline-pump", "b", "--wait", "20")["state"] == "offline"
        assert b.wait() == 0
        assert [(each["node_id"], each["state"]) for each in run("pumps", "--show-offline")] == [
            ("a", "paused"),
            ("b", "offline"),
        ]
