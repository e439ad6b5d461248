"""`pumphouse archive export`: a range of an archive as binlog files that Reparo reads."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pumphouse.archive.archive import Archive
from pumphouse.archive.view import ArchiveView, read_view
from pumphouse.errors import ObjectNotFound, UsageError
from pumphouse.export.pbddl import ExportedDdl, ddls_of
from pumphouse.export.pbfiles import FILE_BYTES, Note, Origin, PbFiles, read_notes
from pumphouse.export.pbframes import Encoder, ddl_payload
from pumphouse.export.transactions import transactions
from pumphouse.loader.losses import Losses, losses_of
from pumphouse.loader.report import Progress, silent
from pumphouse.model.tso import Tso, show
from pumphouse.objectstore.base import ObjectStore
from pumphouse.restore.find import Sought, lived_as, tables_called

_OF_ALL = {"origin", "table_ids"}  # what the notes of a destination have in common


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """What an export did.

    Args:
        destination: URL, without secrets.
        after: what the files hold begins behind this.
        upto: and goes up to here.
        notes: of the files that this run wrote.
        refused: DDLs at which Reparo ends, of all that the files hold.
        losses: what the archive lacks of that range.
    """

    destination: str
    after: Tso
    upto: Tso
    notes: tuple[Note, ...] = ()
    refused: tuple[ExportedDdl, ...] = ()
    losses: Losses = field(default_factory=Losses)

    def to_dict(self) -> dict[str, Any]:
        """JSON object."""
        return {
            "destination": self.destination,
            "from_ts": self.after,
            "to_ts": self.upto,
            "files": [
                {name: each for name, each in asdict(note).items() if name not in _OF_ALL} for note in self.notes
            ],
            "refused_by_reparo": [
                {"commit_ts": each.commit_ts, "action": each.action, "text": each.text} for each in self.refused
            ],
            **asdict(self.losses),
        }  # fmt: skip


def export_pb(
    archive: Archive,
    store: ObjectStore,
    *,
    since: Tso | None,
    upto: Tso | None,
    tables: Sequence[str] = (),
    file_bytes: int = FILE_BYTES,
    tell: Progress = silent,
) -> ExportReport:
    """Export (since, upto] of an archive; where the destination has files already, go on behind them.

    Args:
        archive: which one.
        store: the destination.
        since: where the files begin; None = where those that are there end.
        upto: None = the archive's end; no later moment counts.
        tables: ``database.table`` or patterns; () = all but the system's.
        file_bytes: from so many on a file ends.
        tell: told of each segment.

    Raises:
        UsageError: the destination holds something else, or lacks rows of a table that is wanted now; or the range is
            none of the archive.
        UnknownTable: no table of the range is called as ``tables`` say.
        UnknownDdl: a DDL of the range cannot be exported; nothing was written.
        ManifestConflict: another export writes to the destination.
    """
    origin = Origin(
        cluster_id=archive.cluster_id,
        archive_id=archive.archive_id,
        tables=tuple(sorted({each.lower() for each in tables})),
    )
    notes = read_notes(store, origin)
    begin, after = _begin(store, notes, since)
    kept = archive.range()
    if begin < kept.start:
        raise UsageError(
            f"the archive is kept from {show(kept.start)} on, and {show(begin)} is before that{kept.aside(begin)}",
            hint=f"go on in another directory: --from {max(after, kept.start)}" if notes else f"--from {kept.start}",
        )
    view = read_view(archive, since=begin)
    if upto is not None and upto > view.end:
        raise UsageError(f"the archive ends at {show(view.end)}, and {show(upto)} is after that", hint="--to latest")
    end = view.end if upto is None else upto
    if not notes and after >= end:
        raise UsageError(
            f"nothing lies between {show(after)} and {show(end)} in the archive",
            hint=f"it covers {show(kept.start)} to {show(view.end)}",
        )
    reached = Tso(max(after, end))
    sought = Sought(after=begin, upto=reached, tables=origin.tables)
    chosen = _chosen(view, sought, notes)
    jobs = archive.jobs(view.between(begin, reached), begin, reached)
    ddls = ddls_of(view.timeline, jobs, begin, reached, sought, chosen)
    ranges = [
        _Range(note.number, note.from_ts, note.to_ts, note.table_ids, _UNLIMITED)
        for note in notes
        if not _is_there(store, note)
    ]
    if after < end:
        ranges.append(_Range(len(notes), after, end, tuple(sorted(chosen)), file_bytes))
    written: list[Note] = []
    for each in ranges:
        written += _exported(archive, view, store, origin, each, ddls, tell)
    return ExportReport(
        destination=store.url,
        after=begin,
        upto=reached,
        notes=tuple(written),
        refused=tuple(each for each in ddls if each.refused),
        losses=losses_of(view.windows, after=begin, upto=reached),
    )


_UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True)
class _Range:
    """(after, upto], into files from ``number`` on; a file that is missing has all of its own range."""

    number: int
    after: Tso
    upto: Tso
    table_ids: tuple[int, ...]
    file_bytes: int


def _begin(store: ObjectStore, notes: Sequence[Note], since: Tso | None) -> tuple[Tso, Tso]:
    """Where the files of a destination begin, and where they go on."""
    if not notes:
        if since is None:
            raise UsageError(f"{store.url} is empty: where are its files to begin?", hint="--from TIME")
        return since, since
    begin, end = notes[0].from_ts, notes[-1].to_ts
    if since not in (None, begin, end):
        raise UsageError(
            f"the files in {store.url} begin at {show(begin)} and end at {show(end)}",
            hint="leave --from out, and the export goes on where they end; or export into an empty directory",
        )
    return begin, end


def _is_there(store: ObjectStore, note: Note) -> bool:
    try:
        return store.size(note.name) == note.size
    except ObjectNotFound:
        return False


def _chosen(view: ArchiveView, sought: Sought, notes: Sequence[Note]) -> frozenset[int]:
    """Ids of the tables that are wanted, over all files of the destination; none = all tables.

    Raises:
        UnknownTable: no table of the range is called so.
        UsageError: a table that was there in the range of the files got a wanted name only now: they lack its rows.
    """
    if not sought.tables:
        return frozenset()
    before = frozenset(notes[-1].table_ids if notes else ())
    found = tables_called(view.timeline, sought) | before
    for table_id in sorted(found - before) if notes else ():
        ends = notes[-1].to_ts
        for was in lived_as(view.timeline.versions[table_id], sought.after, ends):
            raise UsageError(
                f"a table that was called {'.'.join(was.name)} before {show(ends)} is now one of "
                f"{', '.join(sought.tables)}, and the files up to that moment have none of its rows",
                hint=f"export into an empty directory, or up to before it got that name (--to), or name it "
                f"(--table {'.'.join(was.name)}) in a new export",
            )
    return found


def _exported(
    archive: Archive,
    view: ArchiveView,
    store: ObjectStore,
    origin: Origin,
    wanted: _Range,
    ddls: Sequence[ExportedDdl],
    tell: Progress,
) -> list[Note]:
    chosen = frozenset(wanted.table_ids)
    ids = chosen | {part for part, of in view.timeline.partitions.items() if of in chosen} if chosen else None
    windows = view.between(wanted.after, wanted.upto)
    encoder, notes = Encoder(view.timeline, chosen or None), list[Note]()
    with tempfile.TemporaryDirectory(prefix="pumphouse-export-") as folder:
        files = PbFiles(
            store, origin, wanted.table_ids, wanted.number, wanted.after, Path(folder), wanted.file_bytes, notes.append,
        )  # fmt: skip
        try:
            batches = transactions(archive.store, windows, wanted.after, wanted.upto, ids, tell)
            for each in _in_order(batches, [each for each in ddls if wanted.after < each.commit_ts <= wanted.upto]):
                if isinstance(each, ExportedDdl):
                    for text in each.texts:
                        files.ddl(each.commit_ts, ddl_payload(each.commit_ts, text))
                else:
                    for part in encoder.encode(each):
                        files.add(part)
            files.finish(wanted.upto)
        finally:
            files.close()
    return notes


def _in_order(batches: Iterator[pa.RecordBatch], ddls: Sequence[ExportedDdl]) -> Iterator[pa.RecordBatch | ExportedDdl]:
    """Transactions with the DDLs at their places."""
    at = 0
    for batch in batches:
        ts, rest = batch.column("commit_ts").to_numpy(), 0
        while at < len(ddls) and ddls[at].commit_ts < ts[-1]:
            stop = int(np.searchsorted(ts, ddls[at].commit_ts, "right"))
            if stop > rest:
                yield batch.slice(rest, stop - rest)
            yield ddls[at]
            at, rest = at + 1, max(stop, rest)
        if rest < batch.num_rows:
            yield batch.slice(rest)
    yield from ddls[at:]
