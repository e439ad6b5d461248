"""The objects under schema/ against what they derive from: the DDL jobs of genesis and of the windows (row A4)."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace

from pumphouse.archive.archive import Archive
from pumphouse.archive.genesis import Genesis
from pumphouse.archive.layout import SCHEMA
from pumphouse.archive.manifest import Manifest
from pumphouse.archive.range import Range
from pumphouse.archive.schema_parts import (
    DOCUMENTS,
    FILES,
    REMEDY,
    RULES,
    Part,
    Row,
    SchemaParts,
    read_file,
    read_rows,
    rows_of,
)
from pumphouse.archive.schema_store import fold_schema
from pumphouse.archive.windows import Windows
from pumphouse.errors import BadSegment, BinlogError
from pumphouse.schema.related import whole_from
from pumphouse.schema.timeline import Timeline


def schema_problems(
    archive: Archive, genesis: Genesis, kept: Range, manifests: Sequence[Manifest], keys: Sequence[str], *, deep: bool
) -> Iterator[tuple[str, str]]:
    """(key, what is wrong) of these objects: name, origin, and where ``deep`` its jobs.

    They are listed before the manifests: an object that comes later was made from windows that these do not hold.
    """
    documents: list[SchemaParts] = []
    files: set[str] = set()
    for key in keys:
        try:
            if key.startswith(DOCUMENTS):
                document = SchemaParts.from_json(key, archive.store.get(key))
                if document.upto >= kept.start:  # else it counts no more: nothing that is kept says where it is from
                    documents.append(document)
            elif key.startswith(FILES):
                if deep:
                    read_file(archive.store, key)
                files.add(key)
            else:
                yield key, f"{key} is no part of a stored schema: {REMEDY}"
        except BinlogError as error:
            yield key, str(error)
    for key, what in _links(genesis, kept, manifests, documents):
        yield key, f"{what}: {REMEDY}"
    named = {file.key for document in documents for part in document.parts for file in part.files}
    missing = named.difference(keys)
    if missing:  # A rebuild may have written files since the names were listed.
        missing = missing.difference(each.key for each in archive.store.list(FILES))
    # What is there and damaged was said.
    yield from ((key, f"{key} is missing: {REMEDY}") for key in sorted(missing))
    if deep and documents:
        yield from _content_problems(archive, manifests, documents, files)


def _content_problems(
    archive: Archive,
    manifests: Sequence[Manifest],
    documents: Sequence[SchemaParts],
    files: Container[str],
) -> Iterator[tuple[str, str]]:
    try:
        timeline = fold_schema(archive, Windows.of(manifests), None).timeline
    except BadSegment:
        return  # the jobs cannot be read; that is told of their own object
    except BinlogError as error:
        yield SCHEMA, f"the jobs of genesis and of the windows make no schema: {error}"
        return
    for key in _named_otherwise(timeline, documents):
        yield key, f"its jobs are not those of genesis and of the windows: {REMEDY}"
    for part in dict.fromkeys(part for document in documents for part in document.parts):
        if all(file.key in files for file in part.files):
            yield from _filled_otherwise(archive, timeline, part)


def _links(
    genesis: Genesis, kept: Range, manifests: Sequence[Manifest], documents: Sequence[SchemaParts]
) -> Iterator[tuple[str, str]]:
    """What they were made from."""
    ends = {kept.start: kept.window} | {each.end: each.sha256 for each in manifests}
    for each in documents:
        if each.genesis != genesis.sha256:
            yield each.key, "was made from another genesis"
        elif each.upto not in ends:
            yield each.key, "ends where no window does"
        elif each.window != ends[each.upto]:
            yield each.key, "was made from another window"


def _named_otherwise(timeline: Timeline, documents: Sequence[SchemaParts]) -> Iterator[str]:
    """Documents that do not say of the jobs up to their ts what there is to say."""
    whole = whole_from(timeline)
    for document in documents:
        versions = [each.job.schema_version for each in timeline.jobs if each.commit_ts <= document.upto]
        known = [found[0].table for found in timeline.versions.values() if found[0].commit_ts <= document.upto]
        wanted = (
            max(versions, default=0),
            [sum(part.after < each <= part.upto for each in versions) for part in document.parts],
            sorted(table.id for table in known if table.is_sequence),
            sorted(table.id for table in known if table.is_view),
            whole is not None and whole <= document.upto,
        )
        last = document.parts[-1].upto if document.parts else 0
        jobs = [part.jobs for part in document.parts]
        said = (last, jobs, [*document.sequences], [*document.views], document.whole)
        if document.rules == RULES and said != wanted:
            yield document.key


def _filled_otherwise(archive: Archive, timeline: Timeline, part: Part) -> Iterator[tuple[str, str]]:
    """Files of a part that do not hold just what its jobs give."""
    wanted = [each for each in rows_of(timeline, part.after) if each.schema_version <= part.upto]
    at = 0
    for file in part.files:
        rows = list(read_rows(archive.store, replace(part, files=(file,))))
        ends = (len(rows), rows[0].table_id, rows[-1].table_id) == (file.rows, file.first, file.last)
        if not ends or len(wanted) < at + len(rows) or not all(map(_same, rows, wanted[at : at + len(rows)])):
            yield file.key, f"its jobs are not those of genesis and of the windows: {REMEDY}"
            return
        at += len(rows)
    if at != len(wanted):
        yield SCHEMA, f"jobs of the schema versions {part.after} to {part.upto} lie in no file: {REMEDY}"


def _same(one: Row, two: Row) -> bool:
    """Jobs may be written with other white space."""
    if one == two:
        return True
    if one.job is None or two.job is None or one._replace(job=None) != two._replace(job=None):
        return False
    return bool(json.loads(one.job) == json.loads(two.job))
