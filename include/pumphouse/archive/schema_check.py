"""The objects under schema/ against what they derive from: the DDL jobs of genesis and of the windows (row A4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from pumphouse.archive.archive import Archive
from pumphouse.archive.ddl import ArchivedJob, read_jobs
from pumphouse.archive.genesis import Genesis
from pumphouse.archive.layout import SCHEMA
from pumphouse.archive.manifest import Manifest
from pumphouse.archive.schema_store import REMEDY, StoredSchema, jobs_at_genesis, schema_key, timed_jobs
from pumphouse.errors import BadSegment, BinlogError
from pumphouse.model.tso import Tso
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import TimedJob, genesis_jobs


def schema_problems(
    archive: Archive, genesis: Genesis, manifests: Sequence[Manifest], keys: Sequence[str], *, deep: bool
) -> Iterator[tuple[str, str]]:
    """(key, what is wrong) of these objects: name, origin, what it builds on, and where ``deep`` its jobs.

    They are listed before the manifests: an object that comes later was made from windows that these do not hold.
    """
    stored: dict[Tso, StoredSchema] = {}
    for key in keys:
        try:
            found = StoredSchema.from_json(key, archive.store.get(key))
            stored[found.upto] = found
        except BinlogError as error:
            yield key, str(error)
    ends = {genesis.ts: genesis.sha256} | {each.end: each.sha256 for each in manifests}
    for schema in stored.values():
        for what in _links(schema, stored, genesis, ends):
            yield schema_key(schema.upto), f"{what}: {REMEDY}"
    if not deep or not stored:
        return
    try:
        wrong = [each.upto for each in _derived_otherwise(archive, genesis, manifests, stored)]
    except BadSegment:
        return  # the jobs cannot be read; that is told of their own object
    except BinlogError as error:
        yield SCHEMA, f"the jobs of genesis and of the windows make no schema: {error}"
        return
    for upto in wrong:
        yield schema_key(upto), f"its jobs are not those of genesis and of the windows: {REMEDY}"


def _links(
    schema: StoredSchema, stored: dict[Tso, StoredSchema], genesis: Genesis, ends: dict[Tso, str]
) -> Iterator[str]:
    if schema.genesis != genesis.sha256:
        yield "was made from another genesis"
    elif schema.upto not in ends:
        yield "ends where no window does"
    elif schema.window and schema.window != ends[schema.upto]:
        yield "was made from another window"
    if schema.base is None:
        return
    base = stored.get(schema.base)
    if base is None:
        yield f"builds on {schema_key(schema.base)}, which is not there"
    elif base.sha256 != schema.base_sha256 or base.depth + 1 != schema.depth or base.upto >= schema.upto:
        yield f"builds on another {schema_key(schema.base)}"


def _derived_otherwise(
    archive: Archive, genesis: Genesis, manifests: Sequence[Manifest], stored: dict[Tso, StoredSchema]
) -> Iterator[StoredSchema]:
    """Objects whose jobs are not what genesis and the windows up to their ts give."""
    archived = list(chain.from_iterable(read_jobs(archive.store, each.ddl) for each in manifests if each.ddl))
    archived.sort(key=lambda each: (each.commit_ts, each.start_ts))
    jobs = [job for each in jobs_at_genesis(archive, manifests) if (job := each.parsed()) is not None]
    timeline, at = Timeline.empty().fold(genesis_jobs(jobs, genesis.ts)), Tso(0)
    for schema in sorted(stored.values(), key=lambda each: each.upto):
        timeline, at = timeline.fold(_between(archived, at, schema.upto)), schema.upto
        wanted = timeline.jobs if schema.base is None else tuple(_between(archived, schema.base, schema.upto))
        if schema.jobs != wanted:
            yield schema


def _between(archived: Sequence[ArchivedJob], after: Tso, upto: Tso) -> list[TimedJob]:
    return list(timed_jobs(each for each in archived if after < each.commit_ts <= upto))
