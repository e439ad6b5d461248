"""The schema timeline at rest: ``schema/<ts>.json`` in the archive (docs/formats.md, "Schema").

An object holds every DDL job up to its ts, whole (``base`` null) or as the jobs that came after another object. A new
one is written only where a window brought DDL, and every sixteenth is whole, so no reader folds a long chain and no
run writes all of history again. Objects are made from manifests alone: two runs at one archive end make the same
bytes, and a lost object is made again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from include.archive.archive import Archive
from include.archive.ddl import ArchivedJob
from include.archive.document import dump, parse, sha256
from include.archive.layout import FORMAT_VERSION, SCHEMA
from include.errors import BadManifest, HistoryUnavailable, ObjectExists, ObjectNotFound
from include.model.binlog import SchemaState
from include.model.table import Job, JobState
from include.model.tso import Tso, name20, show
from include.schema.timeline import TimedJob, Timeline, genesis_jobs

KIND = "schema"
WHOLE_EVERY = 16
_REMEDY = "delete the objects under schema/, they are made again from the windows"


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """One object: the jobs up to ``upto`` that its base does not hold. ``depth`` 0 = whole."""

    upto: Tso
    genesis: str
    base: Tso | None
    base_sha256: str
    depth: int
    jobs: tuple[TimedJob, ...]
    sha256: str = ""

    def to_json(self) -> bytes:
        """Bytes as stored."""
        return dump(
            {
                "kind": KIND,
                "format_version": FORMAT_VERSION,
                "upto": int(self.upto),
                "genesis_sha256": self.genesis,
                "base": None if self.base is None else int(self.base),
                "base_sha256": self.base_sha256,
                "depth": self.depth,
                "jobs": [job.to_dict() for job in self.jobs],
            }
        )

    @classmethod
    def from_json(cls, key: str, data: bytes) -> StoredSchema:
        """Read a stored object; BadManifest."""

        def read(value: dict[str, Any]) -> StoredSchema:
            return cls(
                upto=Tso(int(value["upto"])),
                genesis=str(value["genesis_sha256"]),
                base=None if value["base"] is None else Tso(int(value["base"])),
                base_sha256=str(value["base_sha256"]),
                depth=int(value["depth"]),
                jobs=tuple(TimedJob.from_dict(job) for job in value["jobs"]),
                sha256=sha256(data),
            )

        return parse(key, data, KIND, read)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A timeline and how it came about: ``jobs`` new ones were folded, ``key`` was written ('' = nothing new)."""

    timeline: Timeline
    upto: Tso
    jobs: int
    key: str


def rebuild_schema(archive: Archive, upto: Tso | None = None) -> Timeline:
    """Timeline of the archive up to ``upto`` (None = its end), and the schema/ objects brought up to date."""
    return rebuild(archive, upto).timeline


def pending_jobs(archive: Archive, upto: Tso | None = None) -> int:
    """How many DDL jobs a rebuild would have to fold; 0 = it needs no Spark session."""
    end = archive.end() if upto is None else upto
    at = _newest(archive, end)
    return len(_window_jobs(archive, archive.genesis().ts if at is None else at, end)) + (at is None)


def rebuild(archive: Archive, upto: Tso | None = None, *, store: bool = True) -> Rebuilt:
    """`rebuild_schema` with what it did. ``store=False`` writes nothing.

    Raises:
        ConfigError: the archive does not cover ``upto``.
        HistoryUnavailable: a job of genesis may belong to a window that is not in the archive yet; run again.
        UnknownDdl, SchemaError: the jobs make no schema.
    """
    end = archive.end() if upto is None else upto
    genesis = archive.genesis()
    stored = _read(archive, end)
    if stored is None:
        at, timeline, depth, base_digest = genesis.ts, _from_genesis(archive), -1, ""
    else:
        newest, timeline = stored
        at, depth, base_digest = newest.upto, newest.depth, newest.sha256
    jobs = _window_jobs(archive, at, end)
    timeline = timeline.fold(jobs)
    if not store or (stored is not None and not jobs) or not _ends_window(archive, end):
        return Rebuilt(timeline, end, len(jobs), "")
    whole = stored is None or depth + 1 >= WHOLE_EVERY
    key = _put(
        archive,
        StoredSchema(
            upto=end,
            genesis=genesis.sha256,
            base=None if whole else at,
            base_sha256="" if whole else base_digest,
            depth=0 if whole else depth + 1,
            jobs=timeline.jobs if whole else tuple(jobs),
        ),
    )
    return Rebuilt(timeline, end, len(jobs), key)


def schema_key(upto: Tso) -> str:
    """Name of the object whose jobs end at ``upto``."""
    return f"{SCHEMA}{name20(upto)}.json"


def _put(archive: Archive, schema: StoredSchema) -> str:
    key = schema_key(schema.upto)
    try:
        archive.store.put_if_absent(key, schema.to_json())
    except ObjectExists:
        # Another run, or our own retried put: what is there says the same, or its digest would not have been made.
        found = StoredSchema.from_json(key, archive.store.get(key))
        if found.genesis != schema.genesis:
            raise _other_genesis(key) from None
    return key


def _read(archive: Archive, upto: Tso) -> tuple[StoredSchema, Timeline] | None:
    """Newest stored schema at or below ``upto``, with its timeline; None when there is none."""
    at = _newest(archive, upto)
    if at is None:
        return None
    chain: list[StoredSchema] = []
    digest = ""
    while at is not None:
        key = schema_key(at)
        try:
            found = StoredSchema.from_json(key, archive.store.get(key))
        except ObjectNotFound as error:
            raise BadManifest(
                f"{key} is missing, another schema builds on it", hint=_REMEDY, path=key, reason="missing"
            ) from error
        if found.genesis != archive.genesis().sha256:
            raise _other_genesis(key)
        if digest and found.sha256 != digest:
            raise BadManifest(f"{key} is not what the next schema builds on", hint=_REMEDY, path=key, reason="sha256")
        chain.append(found)
        at, digest = found.base, found.base_sha256
    timeline = Timeline.empty()
    for found in reversed(chain):
        timeline = timeline.fold(found.jobs)
    return chain[0], timeline


def _other_genesis(key: str) -> BadManifest:
    return BadManifest(f"{key} was made from another genesis", hint=_REMEDY, path=key, reason="genesis")


def _newest(archive: Archive, upto: Tso) -> Tso | None:
    newest = None
    for each in archive.store.list(SCHEMA):
        found = re.fullmatch(rf"{SCHEMA}(\d{{20}})\.json", each.key)
        if found and int(found.group(1)) <= upto:
            newest = Tso(int(found.group(1)))
    return newest


def _from_genesis(archive: Archive) -> Timeline:
    genesis, end = archive.genesis(), archive.end()
    jobs = [job for each in archive.genesis_jobs() if (job := each.parsed()) is not None]
    for job in jobs:
        # Its binlog may have committed just before genesis or just after: the windows up to its end will tell.
        if job.done and job.finished_ts > max(end, genesis.ts):
            raise HistoryUnavailable(
                f"DDL job {job.id} was running at genesis; it is placed when the archive has passed "
                f"{show(job.finished_ts)}, it ends at {show(end)}",
                hint="pumphouse snapshot",
                job_id=job.id,
            )
    return Timeline.empty().fold(genesis_jobs(jobs, genesis.ts))


def _window_jobs(archive: Archive, after: Tso, upto: Tso) -> list[TimedJob]:
    return list(timed_jobs(archive.jobs(after, upto))) if after < upto else []


def timed_jobs(archived: Iterable[ArchivedJob]) -> Iterable[TimedJob]:
    """Jobs that change the schema, at their binlogs' commit ts. A binlog of an intermediate state has none yet."""
    for each in archived:
        job = each.parsed()
        if job is not None and _final(each, job):
            yield TimedJob(each.commit_ts, job)


def _final(archived: ArchivedJob, job: Job) -> bool:
    """DROP COLUMN logs a binlog in delete-only as well; the same job comes with both."""
    if job.state not in (JobState.DONE, JobState.SYNCED):
        return False
    return not (archived.schema_state == SchemaState.DELETE_ONLY and job.schema_state != SchemaState.DELETE_ONLY)


def _ends_window(archive: Archive, ts: Tso) -> bool:
    """Only at a window's end is a name's content the same for every writer, whatever came after."""
    if ts == archive.end() or ts == archive.genesis().ts:
        return True
    windows = archive.windows_between(archive.genesis().ts, ts)
    return bool(windows) and windows[-1].end == ts
