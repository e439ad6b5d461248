"""The Python client against a Pump, and what a transaction pays for its binlogs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from pumphouse.client.pump_client import PumpClient
from pumphouse.client.transaction import TransactionBinlog, TransactionRunner
from pumphouse.codec.payload import make_commit, make_prewrite
from pumphouse.model.tso import Tso
from pumphouse.registry.base import Cluster
from pumphouse.registry.open import open_cluster
from tests.bench.h2_load import one_row
from tests.bench.harness import Result, Sample, Watch
from tests.bench.pumps import RunningPump, disk_floor, pump

_BATCH = 2000
_SECONDS = 4.0
_VALUE = one_row(200)
_STORE_PREWRITE_S = 0.002  # what a store's own prewrite takes at least: a round trip and an fsync


def _each(work: Path, runs: int, one: Callable[[RunningPump], Sample]) -> list[Sample]:
    samples = []
    for n in range(runs):
        directory = work / str(n)
        directory.mkdir()
        with pump(directory) as running:
            samples.append(one(running))
    return samples


def _used_up(cluster: Cluster) -> int:
    """The first of ``_BATCH`` timestamps that the cluster has given out, or may be taken to have."""
    first = cluster.tso()
    time.sleep(0.002)
    return first


def _write_batches(running: RunningPump) -> Sample:
    cluster = open_cluster(running.cluster_url)
    written = 0
    with PumpClient(cluster) as client, Watch(running.pid) as watch:
        began, before = time.perf_counter(), time.process_time()
        while time.perf_counter() - began < _SECONDS:
            first = _used_up(cluster)
            batch = [(ts, make_prewrite(ts, b"bench/key", _VALUE)) for ts in range(first, first + _BATCH)]
            outcomes = client.write_prewrites(batch)
            assert outcomes == [None] * _BATCH
            end = _used_up(cluster)
            client.write_commits([(ts, make_commit(ts, Tso(end + n), b"bench/key")) for n, (ts, _) in enumerate(batch)])
            written += 2 * _BATCH
        assert client.flush(60)
        seconds, spent = time.perf_counter() - began, time.process_time() - before
        assert client.stats.commits_lost == 0, client.stats
    watch.seconds = seconds
    return watch.sample(written, client_cpu_s_per_100k=spent / written * 1e5)


def batches(work: Path, runs: int) -> Result:
    """P and C of 256 B through `write_prewrites` and `write_commits`, one thread."""
    samples = _each(work, runs, _write_batches)
    return Result("client_write_batch_256B", "binlogs/s", samples, "append+crc+fdatasync", disk_floor(work, group=1000))


class _Store:
    """A store whose prewrite takes its time and whose commit costs nothing."""

    def prewrite(self) -> None:
        time.sleep(_STORE_PREWRITE_S)

    def commit(self, commit_ts: Tso) -> None:
        pass

    def rollback(self) -> None:
        pass


def _transactions(running: RunningPump) -> Sample:
    cluster = open_cluster(running.cluster_url)
    done = [0] * 16
    with PumpClient(cluster) as client, TransactionRunner(client) as runner, Watch(running.pid) as watch:
        until = time.perf_counter() + _SECONDS

        def work(number: int) -> None:
            while time.perf_counter() < until:
                binlog = TransactionBinlog(start_ts=cluster.tso(), key=b"bench/key", prewrite_value=_VALUE)
                runner.run(binlog, _Store())
                done[number] += 1

        began, before = time.perf_counter(), time.process_time()
        threads = [threading.Thread(target=work, args=(n,)) for n in range(len(done))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds, spent = time.perf_counter() - began, time.process_time() - before
        added = runner.added_latency
    watch.seconds = seconds
    return watch.sample(
        sum(done),
        added_p50_ms=added.p50_s * 1000,
        added_p99_ms=added.p99_s * 1000,
        client_cpu_s_per_100k=spent / sum(done) * 1e5,
    )


def transactions(work: Path, runs: int) -> Result:
    """Whole transactions of 16 threads; what the P adds to a store's prewrite of 2 ms."""
    samples = _each(work, runs, _transactions)
    return Result("client_transaction_c16", "transactions/s", samples, "16 / 2 ms", 16 / _STORE_PREWRITE_S)


BENCHES: dict[str, Callable[[Path, int], Result]] = {
    "client_write_batch_256B": batches,
    "client_transaction_c16": transactions,
}
