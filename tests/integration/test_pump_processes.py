"""Several Pumps on one host, one process each (row P16): they share the cluster and nothing else."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pumphouse.client.pump_client import PumpClient
from pumphouse.client.resolver import PENDING, ROLLED_BACK, Outcome, ResolverServer, committed
from pumphouse.codec.payload import make_commit, make_prewrite
from pumphouse.model.tso import Tso
from pumphouse.proto.binlog_pb2 import Binlog, BinlogType
from pumphouse.registry.file import FileCluster
from tests.support.frozen import freeze
from tests.support.pumpserver import PumpServer, Writers
from tests.support.waiting import eventually

_ENOUGH = 40


class Application:
    """Threads that write transactions through the client, and what they know of each."""

    def __init__(self, client: PumpClient, threads: int = 3) -> None:
        self.client = client
        self.committed: dict[int, int] = {}
        self.taken_by: dict[int, str] = {}
        self.errors: list[BaseException] = []
        self.over = threading.Event()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def outcome(self, start_ts: Tso, _key: bytes, _decide: bool) -> Outcome:
        """What a Pump is told of a prewrite whose C it does not have. While anything is written no C is ruled out."""
        if start_ts in self.committed:
            return committed(Tso(self.committed[start_ts]))
        return ROLLED_BACK if self.over.is_set() else PENDING

    def at(self, node_id: str) -> int:
        """Transactions of which that Pump took the prewrite."""
        return list(self.taken_by.values()).count(node_id)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                start_ts = self.client.cluster.tso()
                payload = make_prewrite(start_ts, b"client/k", b"%d" % start_ts)
                self.taken_by[start_ts] = self.client.write_prewrite(payload, start_ts)
                self.committed[start_ts] = commit_ts = self.client.cluster.tso()
                self.client.write_commit(make_commit(start_ts, commit_ts, b"client/k"), start_ts)
        except BaseException as error:
            self.errors.append(error)


def _commits(payloads: list[bytes]) -> set[tuple[int, int]]:
    found = map(Binlog.FromString, payloads)
    return {(each.start_ts, each.commit_ts) for each in found if each.tp == BinlogType.Commit}


@pytest.mark.row("P16", "P3", "C4")
def test_pumps_of_one_host_take_writes_side_by_side_and_the_end_of_one_is_not_the_others(tmp_path: Path) -> None:
    cluster = FileCluster(tmp_path / "cluster")
    settings = {"max_txn_timeout_s": 3.0}
    a = PumpServer(tmp_path, cluster, node_id="a", **settings)
    b = PumpServer(tmp_path, cluster, node_id="b", **settings)
    with ThreadPoolExecutor(2) as starting:
        list(starting.map(PumpServer.start, (a, b)))
    with a, b, PumpClient(cluster, write_timeout_s=20.0, watch_interval_s=0.1, probe_interval_s=0.3) as client:
        assert len({a.pid, b.pid}) == len({a.addr, b.addr}) == len({a.data_dir, b.data_dir}) == 2
        application = Application(client)
        # Unary HTTP/2 calls beside it, to each Pump by its address.
        writers = {pump.node_id: Writers(pump, threads=2).start() for pump in (a, b)}
        with ResolverServer(cluster, "application", [b"client/", b"app/"], application.outcome):
            for pump in "ab":
                eventually(
                    lambda pump=pump: application.at(pump) > _ENOUGH and len(writers[pump].answered) > _ENOUGH,
                    within_s=60,
                    what=f"{pump} takes writes",
                )
            a.kill()
            writers["a"].stop()
            before = len(application.taken_by), len(writers["b"].answered)
            eventually(
                lambda: len(application.taken_by) > before[0] + _ENOUGH, within_s=60, what="the client goes on at b"
            )
            eventually(lambda: len(writers["b"].answered) > before[1] + _ENOUGH, within_s=60, what="b goes on")
            a.start()
            at_a = application.at("a")
            eventually(lambda: application.at("a") > at_a + 3, within_s=60, what="a takes prewrites again")
            application.stop()
            writers["b"].stop()
            application.over.set()
            assert application.errors == []
            assert client.flush(60)
            end = cluster.tso()
            found = {pump.node_id: pump.pull_until(end) for pump in (a, b)}
    everything: dict[int, Binlog] = {}
    for node_id, binlogs in found.items():
        ours = [each for each in binlogs if each.commit_ts <= end]
        assert [each.commit_ts for each in ours] == sorted(each.commit_ts for each in ours)
        pairs = {(each.start_ts, each.commit_ts) for each in ours}
        assert _commits(writers[node_id].answered) <= pairs
        assert len(pairs) == len(ours)
        for each in ours:
            # The prewrite that was on its way when "a" was killed may be on both; then both say the same of it.
            twin = everything.setdefault(each.start_ts, each)
            assert (twin.commit_ts, twin.prewrite_value) == (each.commit_ts, each.prewrite_value)
    assert {ts: everything[ts].commit_ts for ts in application.committed} == application.committed
    assert all(everything[ts].prewrite_value == b"%d" % ts for ts in application.committed)
    assert {ts for ts, node_id in application.taken_by.items() if node_id == "b"} <= {e.start_ts for e in found["b"]}
    assert everything.keys() - application.committed.keys() <= {
        Binlog.FromString(payload).start_ts for writer in writers.values() for payload in writer.sent
    }


@pytest.mark.row("C4", "C5", "P3")
def test_a_frozen_pump_is_left_and_what_it_has_of_a_prewrite_is_the_same_as_the_other(tmp_path: Path) -> None:
    cluster = FileCluster(tmp_path / "cluster")
    a, b = (PumpServer(tmp_path, cluster, node_id=name, max_txn_timeout_s=3.0) for name in "ab")
    with ThreadPoolExecutor(2) as starting:
        list(starting.map(PumpServer.start, (a, b)))
    # With ten minutes for a call nobody would get anywhere who waited for them.
    with a, b, PumpClient(cluster, write_timeout_s=600.0, leave_min_s=0.5, watch_interval_s=0.1) as client:
        application = Application(client)
        with ResolverServer(cluster, "application", [b"client/"], application.outcome):
            eventually(
                lambda: application.at("a") > 3 and application.at("b") > 3, within_s=60, what="both take writes"
            )
            freeze(a.pid, cluster)
            try:
                at_b = application.at("b")
                eventually(lambda: application.at("b") > at_b + _ENOUGH, within_s=60, what="writers leave it")
                assert [pump.node_id for pump in client.available()] == ["b"]
            finally:
                os.kill(a.pid, signal.SIGCONT)
            at_a = application.at("a")
            eventually(lambda: application.at("a") > at_a + 3, within_s=60, what="it takes prewrites again")
            application.stop()
            assert application.errors == []
            assert client.flush(60)
            application.over.set()
            end = cluster.tso()
            found = [each for pump in (a, b) for each in pump.pull_until(end) if each.commit_ts <= end]
    outcomes: dict[int, set[tuple[int, bytes]]] = {}
    for each in found:
        outcomes.setdefault(each.start_ts, set()).add((each.commit_ts, each.prewrite_value))
    assert outcomes == {ts: {(commit_ts, b"%d" % ts)} for ts, commit_ts in application.committed.items()}
