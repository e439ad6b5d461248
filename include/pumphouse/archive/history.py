"""DDL jobs of a window: the binlogs say which and when, the job history says what (rows A3, S1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pumphouse.archive.content import parse_binlog
from pumphouse.archive.ddl import ArchivedJob
from pumphouse.archive.holders import DDL_HISTORY, holder
from pumphouse.archive.manifest import AcceptedCommit, Duplicate, SegmentEntry
from pumphouse.archive.segment import read_segment
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import ConfigError, WindowHeld
from pumphouse.model.binlog import SchemaState
from pumphouse.model.tso import Tso, physical_ms, show
from pumphouse.objectstore.base import ObjectStore
from pumphouse.schema.history import JobSource


class DdlBinlog(NamedTuple):
    """A DDL binlog, without its job, and the Pump that has it."""

    node_id: str
    binlog: ArchivedJob


def ddl_binlogs(
    store: ObjectStore, segments: Sequence[SegmentEntry], duplicates: Sequence[Duplicate], upto: Tso
) -> list[DdlBinlog]:
    """DDL binlogs of the segments, without their jobs, in commit order, duplicates once."""
    found = []
    for entry in segments:
        if not entry.ddls:
            continue
        drop = [each for each in duplicates if entry.node_id in each.drop]
        for batch in read_segment(
            store, entry, after=Tso(0), upto=upto, columns=["commit_ts", "start_ts", "ddl_job_id", "payload"], drop=drop
        ):
            for row in np.flatnonzero(batch.column("ddl_job_id").to_numpy() > 0):
                at = int(row)
                binlog = parse_binlog(batch.column("payload")[at].as_py())
                job = ArchivedJob(
                    commit_ts=Tso(batch.column("commit_ts")[at].as_py()),
                    start_ts=Tso(batch.column("start_ts")[at].as_py()),
                    job_id=binlog.ddl_job_id,
                    schema_state=binlog.ddl_schema_state,
                    query=binlog.ddl_query,
                    job=None,
                )
                found.append(DdlBinlog(entry.node_id, job))
    return sorted(found, key=lambda each: (each.binlog.commit_ts, each.binlog.start_ts))


def needs_job(binlog: ArchivedJob) -> bool:
    """Whether a DDL binlog has a job in the history.

    A drop of a column writes a binlog in state delete-only and another one, with the same job id, when it is done;
    ``select setval`` of a sequence is no DDL at all.
    """
    return binlog.schema_state != SchemaState.DELETE_ONLY and not binlog.query.strip().lower().startswith(
        b"select setval"
    )


def with_jobs(
    binlogs: Sequence[DdlBinlog],
    history: JobSource | None,
    *,
    wait_s: float,
    poll_s: float,
    accepted: Sequence[AcceptedCommit] = (),
    waiting: Callable[[str], None] = lambda _: None,
    clock: Clock = SYSTEM_CLOCK,
) -> tuple[list[ArchivedJob], list[AcceptedCommit]]:
    """The binlogs with their jobs, and which go without one, as ``accepted`` says of kind ``ddl``.

    A job reaches the history after its binlog: waits, then WindowHeld names it and its way on.
    """
    deadline = clock.monotonic() + wait_s
    by_name = {
        (each.node_id, each.start_ts, each.commit_ts): each for each in accepted if each.kind == AcceptedCommit.DDL
    }
    found, without = [], []
    for node_id, binlog in binlogs:
        named = by_name.get((node_id, binlog.start_ts, binlog.commit_ts))
        job = None
        if needs_job(binlog):
            while (job := None if history is None else history.job(binlog.job_id)) is None and named is None:
                accept = f"pumphouse archive accept {node_id} {binlog.start_ts} {binlog.commit_ts} --reason …"
                if history is None:
                    raise ConfigError(
                        f"the window has DDL job {binlog.job_id}, and there is no job history to ask",
                        hint="set schema.history to the status API of a TiDB server or to the source's table; if no "
                        f"history will ever have this job: {accept}",
                        job_id=binlog.job_id,
                    )
                age_s = max(clock.now() - physical_ms(binlog.commit_ts) / 1000, 0.0)
                why = (
                    f"DDL job {binlog.job_id} of {show(binlog.commit_ts)}, {age_s:.0f} s ago, is not in the history yet"
                )
                waiting(why)
                if clock.monotonic() >= deadline:
                    raise WindowHeld(
                        f"the window waits: {why}",
                        hint="is schema.history the history of this cluster? If it will never have this job, as for a "
                        f"binlog that no TiDB wrote: {accept}",
                        holders=[holder(DDL_HISTORY, f"{why}; it goes without it with {accept}", binlog.start_ts)],
                        job_id=binlog.job_id,
                    )
                clock.sleep(poll_s)
            if job is None and named is not None:
                without.append(named)
        found.append(binlog if job is None else replace(binlog, job=job.text))
    return found, without
