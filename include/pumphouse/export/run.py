"""`pumphouse archive export`: a range of an archive as binlog files that Reparo reads."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
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
from pumphouse.restore.find import Sought, tables_called


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """What an export did.

    Args:
        destination: URL, without secrets.
        after: what the files hold begins behind this.
        upto: and goes up to here.
        notes: of the files that this run wrote.
        refused: DDLs at which Reparo ends, of those that this run wrote.
        losses: what the archive lacks of what this run read.
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
                {name: each for name, each in asdict(note).items() if name != "origin"} for note in self.notes
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
        UsageError: the destination holds something else, or the range is none of the archive.
        UnknownDdl: a DDL of the range cannot be exported; nothing was written.
        ManifestConflict: another export writes to the destination.
    """
    origin = Origin(cluster_id=archive.cluster_id, archive_id=archive.archive_id, tables=tuple(sorted(tables)))
    notes = read_notes(store, origin)
    begin, after = _begin(store, notes, since)
    lost = [note for note in notes if not _is_there(store, note)]
    low = min([after, *(note.from_ts for note in lost)])
    genesis = archive.genesis().ts
    if low < genesis:
        raise UsageError(
            f"the archive begins at {show(genesis)}, and {show(low)} is before that", hint=f"--from {genesis}"
        )
    view = read_view(archive, since=low)
    end = view.end if upto is None else Tso(min(upto, view.end))
    if not notes and after >= end:
        raise UsageError(
            f"nothing lies between {show(after)} and {show(end)} in the archive",
            hint=f"it covers {show(genesis)} to {show(view.end)}",
        )
    report = ExportReport(destination=store.url, after=begin, upto=max(after, end))
    ranges = [_Range(origin, note.number, note.from_ts, note.to_ts, note) for note in lost]
    if after < end:
        ranges.append(_Range(origin, len(notes), after, end, None))
    for each in ranges:
        report = _added(report, _exported(archive, view, store, each, file_bytes, tell))
    return report


@dataclass(frozen=True, slots=True)
class _Range:
    """(after, upto], into files from ``number`` on; ``lost``: into the one file that is missing, as its note says."""

    origin: Origin
    number: int
    after: Tso
    upto: Tso
    lost: Note | None


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


def _added(report: ExportReport, more: ExportReport) -> ExportReport:
    return replace(
        report,
        notes=report.notes + more.notes,
        refused=report.refused + more.refused,
        losses=more.losses or report.losses,
    )


def _exported(
    archive: Archive, view: ArchiveView, store: ObjectStore, wanted: _Range, file_bytes: int, tell: Progress
) -> ExportReport:
    sought = Sought(after=wanted.after, upto=wanted.upto, tables=wanted.origin.tables)
    chosen = tables_called(view.timeline, sought)
    windows = view.between(wanted.after, wanted.upto)
    jobs = archive.jobs(windows, wanted.after, wanted.upto)
    ddls = ddls_of(view.timeline, jobs, wanted.after, wanted.upto, sought, chosen)
    ids = chosen | {part for part, of in view.timeline.partitions.items() if of in chosen} if chosen else None
    encoder, notes = Encoder(view.timeline, chosen or None), list[Note]()
    with tempfile.TemporaryDirectory(prefix="pumphouse-export-") as folder:
        files = PbFiles(
            store, wanted.origin, wanted.number, wanted.after, Path(folder),
            file_bytes if wanted.lost is None else _UNLIMITED, notes.append,
        )  # fmt: skip
        try:
            batches = transactions(archive.store, windows, wanted.after, wanted.upto, ids, tell)
            for each in _in_order(batches, ddls):
                if isinstance(each, ExportedDdl):
                    for text in each.texts:
                        files.ddl(each.commit_ts, ddl_payload(each.commit_ts, text))
                else:
                    for part in encoder.encode(each):
                        files.add(part)
            files.finish(wanted.upto)
        finally:
            files.close()
    return ExportReport(
        destination=store.url,
        after=wanted.after,
        upto=wanted.upto,
        notes=tuple(notes),
        refused=tuple(each for each in ddls if each.refused),
        losses=losses_of(windows, after=wanted.after, upto=wanted.upto),
    )


_UNLIMITED = 1 << 62


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
