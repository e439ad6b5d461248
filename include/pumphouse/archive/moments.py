"""The moment of a DDL or a transaction of an archive, for who knows what happened and not when."""

from __future__ import annotations

from datetime import datetime

from pumphouse.archive.archive import Archive
from pumphouse.archive.ddl import is_final, read_jobs
from pumphouse.archive.segment import read_columns
from pumphouse.archive.sourced import at_source_time, of_gtid
from pumphouse.errors import UsageError
from pumphouse.model.tso import Tso, physical_ms, show

# A start ts is looked for in the windows of so long after it: no transaction is open longer.
_OPEN_H = 24


def moment_of(archive: Archive, kind: str, what: str) -> Tso:
    """The moment that words mean (`pumphouse.model.moment`); UsageError where the archive has no such one.

    ``before ddl``: the newest moment without the DDL of a job. ``before txn``, ``before gtid``: that without a
    transaction, by its start or its commit ts, or its source's GTID. ``gtid``: the oldest moment with it. ``source
    time``: a captured source's state at an ISO time of its own clock.
    """
    if kind == "gtid":
        return of_gtid(archive, what)[1]
    if kind == "before gtid":
        return Tso(of_gtid(archive, what)[0] - 1)
    if kind == "source time":
        return at_source_time(archive, datetime.fromisoformat(what))
    return before_ddl(archive, int(what)) if kind == "before ddl" else before_txn(archive, int(what))


def before_ddl(archive: Archive, number: int) -> Tso:
    """Before the binlog of the job that changes the schema; the binlogs of its states on the way there change none."""
    for entry in reversed([*archive.windows().ddls()]):
        for each in read_jobs(archive.store, entry):
            job = each.parsed() if number in (each.job_id, each.commit_ts) else None
            if job is not None and is_final(each, job):
                return Tso(each.commit_ts - 1)
    raise UsageError(
        f"no window of the archive has a DDL job {number} that was carried out",
        hint="`pumphouse schema show --history` lists the jobs; those from before the archive have no moment in it",
    )


def before_txn(archive: Archive, ts: int) -> Tso:
    """Before its commit. Windows are read from the one that holds ``ts`` on, a segment at a time."""
    kept, end = archive.range(), archive.end()
    if not kept.start <= ts <= end:
        raise UsageError(
            f"the archive covers {show(kept.start)} to {show(end)}, and {show(ts)} is not in it{kept.aside(Tso(ts))}"
        )
    for start, _, segment, _ in archive.windows(Tso(ts)).placed():
        if physical_ms(start) > physical_ms(ts) + _OPEN_H * 3_600_000:
            break
        if not segment.rows or segment.max_commit_ts < ts:
            continue
        found = read_columns(archive.store, segment, ("start_ts", "commit_ts"))
        start_ts, commit_ts = (found.column(name).to_numpy() for name in ("start_ts", "commit_ts"))
        hits = commit_ts[(start_ts == ts) | (commit_ts == ts)]
        if len(hits):
            return Tso(int(hits[0]) - 1)
    raise UsageError(
        f"the archive has no transaction whose start or commit ts is {show(ts)}",
        hint=f"a start ts is looked for in the {_OPEN_H} hours after it; `pumphouse archive find` lists transactions",
    )
