"""DDL jobs of a window: the binlogs say which and when, the job history says what (rows A3, S1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pumphouse.archive.content import parse_binlog
from pumphouse.archive.ddl import ArchivedJob
from pumphouse.archive.holders import DDL_HISTORY, holder
from pumphouse.archive.manifest import Duplicate, SegmentEntry
from pumphouse.archive.segment import read_segment
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import ConfigError, WindowHeld
from pumphouse.model.binlog import SchemaState
from pumphouse.model.tso import Tso, physical_ms, show
from pumphouse.objectstore.base import ObjectStore
from pumphouse.schema.history import JobSource


def ddl_binlogs(
    store: ObjectStore, segments: Sequence[SegmentEntry], duplicates: Sequence[Duplicate], upto: Tso
) -> list[ArchivedJob]:
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
                found.append(
                    ArchivedJob(
                        commit_ts=Tso(batch.column("commit_ts")[at].as_py()),
                        start_ts=Tso(batch.column("start_ts")[at].as_py()),
                        job_id=binlog.ddl_job_id,
                        schema_state=binlog.ddl_schema_state,
                        query=binlog.ddl_query,
                        job=None,
                    )
                )
    return sorted(found, key=lambda each: (each.commit_ts, each.start_ts))


def needs_job(binlog: ArchivedJob) -> bool:
    """Whether a DDL binlog has a job in the history.

    A drop of a column writes a binlog in state delete-only and another one, with the same job id, when it is done;
    ``select setval`` of a sequence is no DDL at all.
    """
    return binlog.schema_state != SchemaState.DELETE_ONLY and not binlog.query.strip().lower().startswith(
        b"select setval"
    )


def with_jobs(
    binlogs: Sequence[ArchivedJob],
    history: JobSource | None,
    *,
    wait_s: float,
    poll_s: float,
    waiting: Callable[[str], None] = lambda _: None,
    clock: Clock = SYSTEM_CLOCK,
) -> list[ArchivedJob]:
    """The binlogs with their jobs. A job reaches the history after its binlog: waits, then WindowHeld names it."""
    deadline = clock.monotonic() + wait_s
    found = []
    for binlog in binlogs:
        if not needs_job(binlog):
            found.append(binlog)
            continue
        if history is None:
            raise ConfigError(
                f"the window has DDL job {binlog.job_id}, and there is no job history to ask",
                hint="set schema.history to the status API of a TiDB server or to the source's table",
                job_id=binlog.job_id,
            )
        while (job := history.job(binlog.job_id)) is None:
            age_s = max(clock.now() - physical_ms(binlog.commit_ts) / 1000, 0.0)
            why = f"DDL job {binlog.job_id} of {show(binlog.commit_ts)}, {age_s:.0f} s ago, is not in the history yet"
            waiting(why)
            if clock.monotonic() >= deadline:
                raise WindowHeld(
                    f"the window waits: {why}",
                    hint="is schema.history the history of this cluster?",
                    holders=[holder(DDL_HISTORY, why, binlog.start_ts)],
                    job_id=binlog.job_id,
                )
            clock.sleep(poll_s)
        found.append(
            ArchivedJob(
                commit_ts=binlog.commit_ts,
                start_ts=binlog.start_ts,
                job_id=binlog.job_id,
                schema_state=binlog.schema_state,
                query=binlog.query,
                job=job.text,
            )
        )
    return found
