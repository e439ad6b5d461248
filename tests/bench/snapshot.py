"""One window of a Pump's binlogs into the archive: MB/s of payload, on file:// and on an S3 server (moto)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from pumphouse.archive.archive import Archive
from pumphouse.archive.init import init_archive
from pumphouse.archive.snapshot import run_snapshot
from pumphouse.model.table import Job
from pumphouse.objectstore.open import open_store
from pumphouse.registry.open import open_cluster
from pumphouse.settings import ArchiveSettings, Settings
from tests.bench.fill import fill
from tests.bench.harness import Result, Watch
from tests.bench.pumps import pump
from tests.support.motoserver import MotoServer

_COUNT, _SIZE = 60_000, 1024


class _NoJobs:
    """A job history without DDL."""

    def job(self, job_id: int) -> Job | None:
        del job_id

    def jobs(self, *, after_id: int = 0) -> Iterator[Job]:
        del after_id
        yield from ()


def _put_floor(settings: ArchiveSettings) -> float:
    """MB/s of putting the same number of bytes as one object."""
    store = open_store(settings)
    data = os.urandom(32 << 20)
    began = time.perf_counter()
    store.put("floor", data)
    rate = len(data) / 1e6 / (time.perf_counter() - began)
    store.delete("floor")
    return rate


def _runs(work: Path, runs: int, name: str, roots: Callable[[], ArchiveSettings]) -> Result:
    samples = []
    for n in range(runs):
        each = work / str(n)
        each.mkdir()
        with pump(each) as running:
            cluster = open_cluster(running.cluster_url)
            archive_settings = roots()
            archive = Archive(open_store(archive_settings), cluster.cluster_id())
            settings = Settings(archive=archive_settings)
            init_archive(archive, cluster, _NoJobs(), settings=settings)
            fill(running, int(cluster.tso()), _COUNT, _SIZE)
            until = cluster.tso()
            with Watch() as watch:
                windows = run_snapshot(archive, cluster, until, settings, _NoJobs())
            rows = sum(s.rows for m in archive.windows() for s in m.segments)
            if rows != _COUNT:
                raise RuntimeError(f"{rows} of {_COUNT} transactions are in the archive")
        sample = watch.sample(_COUNT * _SIZE / 1e6, windows=len(windows), binlogs_per_s=_COUNT / watch.seconds)
        samples.append(sample)
    return Result(name, "MB/s", samples, "put of random bytes, MB/s", _put_floor(roots()))


def _file(work: Path, runs: int) -> Result:
    numbers = iter(range(1000))
    return _runs(
        work, runs, "snapshot_file", lambda: ArchiveSettings(root=f"file://{work / f'archive{next(numbers)}'}")
    )


def _s3(work: Path, runs: int) -> Result:
    with MotoServer() as server:
        return _runs(work, runs, "snapshot_s3", partial(server.archive_settings))


BENCHES: dict[str, Callable[[Path, int], Result]] = {"snapshot_file": _file, "snapshot_s3": _s3}
