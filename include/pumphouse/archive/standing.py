"""Which DDL jobs of an archive count, and where they stand: those that genesis keeps, and those that windows bring."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from pumphouse.archive.archive import Archive
from pumphouse.archive.ddl import ArchivedJob, is_final, read_jobs
from pumphouse.archive.windows import Windows
from pumphouse.model.tso import Tso
from pumphouse.schema.versions import TimedJob, running_at_genesis

Ints = np.ndarray[Any, np.dtype[Any]]


class Kept(NamedTuple):
    """Columns of the jobs that genesis keeps."""

    id: Ints
    version: Ints
    finished_ts: Ints
    done: Ints


def at_genesis(kept: Kept, brought: tuple[Ints, Ints], genesis_ts: Tso, end: Tso) -> tuple[Ints, Ints]:
    """The jobs that make the schema at genesis, by schema version, and their commit ts.

    Their true ones are not in the history: any that keep the order and are not above genesis serve. A job that a window
    brings as well is left out: it is folded once, at its window's commit ts. Only jobs that finished after genesis can
    be such, as FinishedTS lies behind the commit ts of a job's binlog.

    Args:
        kept: by genesis.
        brought: ids and commit ts of the jobs that windows bring.
        genesis_ts: of genesis.
        end: of the windows.

    Raises:
        HistoryUnavailable: a job may have committed before genesis or after; a later window tells.
    """
    # A source that does not say when a job finished leaves all its jobs in doubt.
    finished = np.where(kept.finished_ts == 0, end, kept.finished_ts)
    doubtful = finished[(kept.finished_ts > genesis_ts) | (kept.finished_ts == 0)]
    ids, commit_ts = brought
    stays = ~np.isin(kept.id, ids[commit_ts <= min(int(doubtful.max(initial=0)), end)])
    stays &= kept.done
    running = np.flatnonzero(stays & (kept.finished_ts > max(end, genesis_ts)))
    if running.size:
        raise running_at_genesis(int(kept.id[running[0]]), int(kept.finished_ts[running[0]]), end)
    chosen = np.flatnonzero(stays)
    chosen = chosen[np.argsort(kept.version[chosen], kind="stable")]
    return chosen, np.maximum.accumulate(np.minimum(kept.finished_ts[chosen], genesis_ts))


def whole_history(archive: Archive, windows: Windows, upto: Tso) -> tuple[list[TimedJob], list[TimedJob]]:
    """Jobs that make the schema at genesis, and those that windows bring up to a moment, those that are gone too.

    ``windows``: all that are kept.
    """
    genesis = archive.genesis()
    end = windows.end if windows else genesis.ts
    archived = [*archive.past_jobs(windows), *archive.jobs(windows, genesis.ts, end)]
    kept = [(each.job_id, job) for each in read_jobs(archive.store, genesis.ddl) if (job := each.parsed()) is not None]
    brought = [(each.job_id, each.commit_ts) for each in archived if each.job is not None]
    columns = Kept(
        _ints(number for number, _ in kept),
        _ints(job.schema_version for _, job in kept),
        _ints(job.finished_ts for _, job in kept),
        np.fromiter((job.done for _, job in kept), np.bool_),
    )
    pair = _ints(number for number, _ in brought), _ints(ts for _, ts in brought)
    chosen, places = at_genesis(columns, pair, genesis.ts, end)
    begun = [
        TimedJob(Tso(ts), kept[at][1], genesis=True) for at, ts in zip(chosen.tolist(), places.tolist(), strict=True)
    ]
    return begun, list(timed_jobs(each for each in archived if each.commit_ts <= upto))


def timed_jobs(archived: Iterable[ArchivedJob]) -> Iterator[TimedJob]:
    """Jobs that change the schema, at their binlogs' commit ts. A binlog of an intermediate state has none yet."""
    for each in archived:
        job = each.parsed()
        if job is not None and is_final(each, job):
            yield TimedJob(each.commit_ts, job)


def _ints(values: Iterable[int]) -> Ints:
    return np.fromiter(values, np.int64)
