"""What a transaction sees of its binlogs (row W7): order, abort, and the latency that is added."""

from __future__ import annotations

import threading
import time

import pytest

from pumphouse.client.pump_client import PumpClient
from pumphouse.client.transaction import LatencyMeter, TransactionBinlog, TransactionRunner
from pumphouse.errors import PumpReadOnly, PumpUnavailable
from pumphouse.proto.binlog_pb2 import Binlog
from tests.support.awaycluster import AwayCluster
from tests.support.fakepump import FakePump


class StoreError(Exception):
    pass


class SureError(StoreError):
    pass


class Store:
    """Remembers what was done to it, and when."""

    def __init__(self, *, prewrite=None, commit=None, rollback=None) -> None:
        self.calls: list[str] = []
        self.commit_ts = None
        self.prewritten_at = 0
        self.threads: set[int] = set()
        self._prewrite, self._commit, self._rollback = prewrite, commit, rollback

    def prewrite(self) -> None:
        self.calls.append("prewrite")
        self.threads.add(threading.get_ident())
        if self._prewrite:
            self._prewrite()
        self.prewritten_at = time.monotonic()

    def commit(self, commit_ts) -> None:
        self.calls.append("commit")
        self.threads.add(threading.get_ident())
        self.commit_ts = commit_ts
        if self._commit:
            self._commit()

    def rollback(self) -> None:
        self.calls.append("rollback")
        self.threads.add(threading.get_ident())
        if self._rollback:
            self._rollback()


@pytest.fixture
def cluster(tmp_path):
    return AwayCluster(tmp_path)


@pytest.fixture
def pump(cluster):
    pump = FakePump("a", cluster).register()
    yield pump
    pump.stop()


@pytest.fixture
def client(cluster, pump):
    client = PumpClient(cluster, write_timeout_s=1.0)
    yield client
    client.close(flush_s=0)


@pytest.fixture
def runner(client):
    with TransactionRunner(client, threads=4, not_committed=(SureError,)) as runner:
        yield runner


def fail(error):
    def raise_it():
        raise error

    return raise_it


def binlog(cluster) -> TransactionBinlog:
    return TransactionBinlog(start_ts=cluster.tso(), key=b"bank/1", prewrite_value=b"value")


@pytest.mark.row("W7")
def test_a_transaction_leaves_a_prewrite_and_a_commit_with_the_ts_that_the_store_committed_with(
    cluster, pump, client, runner
):
    store, binlog_ = Store(), binlog(cluster)
    commit_ts = runner.run(binlog_, store)
    assert client.flush(60)
    assert store.calls == ["prewrite", "commit"]
    assert store.commit_ts == commit_ts > binlog_.start_ts
    assert store.threads == {threading.get_ident()}
    assert [(b.tp, b.start_ts, b.commit_ts, b.prewrite_key, b.prewrite_value) for b in pump.taken] == [
        (Binlog(tp="Prewrite").tp, binlog_.start_ts, 0, b"bank/1", b"value"),
        (Binlog(tp="Commit").tp, binlog_.start_ts, commit_ts, b"bank/1", b""),
    ]


@pytest.mark.row("W7")
def test_a_ddl_repeats_its_job_in_the_commit(cluster, pump, client, runner):
    ddl = TransactionBinlog(
        start_ts=cluster.tso(), key=b"k", ddl_query=b"create table t (a int)", ddl_job_id=9, ddl_schema_state=5
    )
    runner.run(ddl, Store())
    assert client.flush(60)
    assert [(b.ddl_query, b.ddl_job_id, b.ddl_schema_state) for b in pump.taken] == [
        (b"create table t (a int)", 9, 5)
    ] * 2


@pytest.mark.row("W7")
def test_the_prewrite_binlog_is_sent_beside_the_stores_own_prewrite(cluster, pump, runner):
    both = threading.Barrier(2)  # one after the other would wait for ever

    def meet(binlog_: Binlog) -> None:
        if binlog_.tp == Binlog(tp="Prewrite").tp:
            both.wait(60)

    pump.behave = meet
    runner.run(binlog(cluster), Store(prewrite=lambda: both.wait(60)))
    assert not both.broken


@pytest.mark.row("W7")
@pytest.mark.parametrize(("pump_s", "store_s"), [(0.2, 0.0), (0.0, 0.2)])
def test_the_commit_ts_is_taken_after_both_whichever_is_later(cluster, pump, runner, pump_s, store_s):
    answered: list[int] = []

    def behave(b):
        if b.tp == Binlog(tp="Prewrite").tp:
            time.sleep(pump_s)
            answered.append(cluster.tso())

    pump.behave = behave
    prewritten: list[int] = []

    def prewrite():
        time.sleep(store_s)
        prewritten.append(cluster.tso())

    commit_ts = runner.run(binlog(cluster), Store(prewrite=prewrite))
    assert commit_ts > answered[0]
    assert commit_ts > prewritten[0]


@pytest.mark.row("W7")
def test_a_failing_prewrite_of_the_store_aborts_and_the_pump_hears_of_it(cluster, pump, client, runner):
    store = Store(prewrite=fail(StoreError("conflict")))
    binlog_ = binlog(cluster)
    with pytest.raises(StoreError, match="conflict"):
        runner.run(binlog_, store)
    assert store.calls == ["prewrite", "rollback"]
    runner.close()
    assert client.flush(60)
    assert pump.of_type("Rollback") == [binlog_.start_ts]
    assert pump.of_type("Commit") == []


@pytest.mark.row("W7")
def test_a_failing_store_does_not_wait_for_a_slow_pump(cluster, pump, client, runner):
    answer = threading.Event()

    def late(_: Binlog) -> None:
        answer.wait(60)

    pump.behave = late
    with pytest.raises(StoreError):
        runner.run(binlog(cluster), Store(prewrite=fail(StoreError("x"))))
    assert pump.taken == []
    answer.set()
    runner.close()
    assert client.flush(60)
    assert len(pump.of_type("Rollback")) == 1


@pytest.mark.row("W7")
def test_a_pump_that_takes_no_prewrite_aborts_the_transaction(cluster, pump, client, runner):
    pump.behave = lambda _: PumpReadOnly("x", available=1, limit=2)
    store = Store()
    with pytest.raises(PumpUnavailable):
        runner.run(binlog(cluster), store)
    assert store.calls == ["prewrite", "rollback"]
    assert client.flush(60)
    assert pump.taken == []


@pytest.mark.row("W7")
@pytest.mark.row("P6")
def test_after_a_commit_of_unknown_outcome_the_pump_is_told_nothing(cluster, pump, client, runner):
    store = Store(commit=fail(StoreError("connection lost")))
    with pytest.raises(StoreError):
        runner.run(binlog(cluster), store)
    assert store.calls == ["prewrite", "commit"]
    assert client.flush(60)
    assert (len(pump.taken), len(pump.of_type("Prewrite"))) == (1, 1)


@pytest.mark.row("W7")
def test_a_commit_that_certainly_did_not_happen_is_rolled_back(cluster, pump, client, runner):
    store = Store(commit=fail(SureError("deadlock")))
    with pytest.raises(SureError):
        runner.run(binlog(cluster), store)
    assert store.calls == ["prewrite", "commit", "rollback"]
    assert client.flush(60)
    assert len(pump.of_type("Rollback")) == 1


def test_a_rollback_that_fails_does_not_hide_why_it_was_needed(cluster, runner):
    store = Store(prewrite=fail(StoreError("first")), rollback=fail(StoreError("second")))
    with pytest.raises(StoreError, match="first"):
        runner.run(binlog(cluster), store)


@pytest.mark.row("W7")
def test_the_added_latency_is_what_the_pump_answers_later_than_the_store(cluster, pump, runner):
    prewritten, sent = threading.Event(), threading.Event()

    def later(b):
        if b.tp == Binlog(tp="Prewrite").tp:
            assert prewritten.wait(60)
            time.sleep(0.5)

    def slow():
        time.sleep(0.2)
        prewritten.set()

    def answered():
        assert sent.wait(60)
        time.sleep(0.5)

    pump.behave = later
    began = time.monotonic()
    runner.run(binlog(cluster), Store(prewrite=slow))
    added = runner.added_latency
    assert added.count == 1
    assert 0.1 < added.max_s <= time.monotonic() - began - 0.2
    pump.behave = lambda _: sent.set()
    runner.run(binlog(cluster), Store(prewrite=answered))
    assert runner.added_latency.count == 2
    assert runner.added_latency.p50_s == added.max_s  # the second added nothing
    assert runner.added_latency.mean_s == pytest.approx(added.max_s / 2)


def test_the_meter_gives_quantiles_and_zeros_when_empty():
    meter = LatencyMeter()
    assert meter.read().max_s == meter.read().p99_s == meter.read().mean_s == 0
    for milliseconds in range(1, 101):
        meter.add(milliseconds / 1000)
    read = meter.read()
    assert (read.count, read.p50_s, read.p99_s, read.max_s) == (100, 0.051, 0.1, 0.1)
    assert read.mean_s == pytest.approx(0.0505)


def test_no_timestamp_after_both_is_an_abort(client, pump, runner, cluster):
    binlog_ = binlog(cluster)
    cluster.fails("tso", OSError("disk"))
    store = Store()
    with pytest.raises(OSError, match="disk"):
        runner.run(binlog_, store)
    assert store.calls == ["prewrite", "rollback"]
    assert client.flush(60)
    assert pump.of_type("Rollback") == [binlog_.start_ts]
