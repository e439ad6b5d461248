"""`pumphouse archive export`: a range of an archive as binlog files that Reparo reads."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pumphouse.archive.archive import Archive
from pumphouse.archive.losses import Losses
from pumphouse.errors import ObjectNotFound, UsageError
from pumphouse.export.ddls import ExportedDdl
from pumphouse.export.extract import Before, Extract, view_upto
from pumphouse.export.pbfiles import FILE_BYTES, Note, Origin, PbFiles, read_notes
from pumphouse.export.pbframes import PbFrames, ddl_payload
from pumphouse.loader.report import Progress, silent
from pumphouse.model.tso import Tso, show
from pumphouse.objectstore.base import ObjectStore

_OF_ALL = {"origin", "table_ids", "losses"}  # what the notes of a destination have in common, or the report sums up


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
    skipped: frozenset[int] = frozenset(),
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
        skipped: ids of tables that no DDL names and whose rows are left out.
        file_bytes: from so many on a file ends.
        tell: told of each segment.

    Raises:
        UsageError: the destination holds something else, or lacks rows of a table that is wanted now; or the range is
            none of the archive.
        UnknownTable: no table of the range is called as ``tables`` say, or rows are of a table that no DDL names.
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
    way_on = f"go on in another directory: --from {max(after, kept.start)}" if notes else f"--from {kept.start}"
    view, end = view_upto(archive, begin, upto, kept, way_on)
    if not notes and after >= end:
        raise UsageError(
            f"nothing lies between {show(after)} and {show(end)} in the archive",
            hint=f"it covers {show(kept.start)} to {show(view.end)}",
        )
    before = Before(end=notes[-1].to_ts, table_ids=notes[-1].table_ids) if notes else None
    extract = replace(Extract.of(archive, view, begin, Tso(max(after, end)), origin.tables, before), skipped=skipped)
    ranges = [
        _Range(note.number, note.from_ts, note.to_ts, note.table_ids, _UNLIMITED)
        for note in notes
        if not _is_there(store, note)
    ]
    if after < end:
        ranges.append(_Range(len(notes), after, end, extract.table_ids, file_bytes))
    written: list[Note] = []
    for each in ranges:
        written += _exported(extract, store, origin, each, tell)
    return ExportReport(
        destination=store.url,
        after=begin,
        upto=extract.upto,
        notes=tuple(written),
        refused=tuple(each for each in extract.ddls if each.refused),
        losses=extract.losses,
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


def _exported(extract: Extract, store: ObjectStore, origin: Origin, wanted: _Range, tell: Progress) -> list[Note]:
    notes = list[Note]()
    with tempfile.TemporaryDirectory(prefix="pumphouse-export-") as folder:
        files = PbFiles(
            store, origin, wanted.table_ids, wanted.number, wanted.after, Path(folder), wanted.file_bytes, notes.append,
            extract.lost,
        )  # fmt: skip
        try:
            for each in extract.encoded(PbFrames(), wanted.after, wanted.upto, tell, wanted.table_ids):
                if isinstance(each, ExportedDdl):
                    for text in each.texts:
                        files.ddl(each.commit_ts, ddl_payload(each.commit_ts, text.in_its_database))
                else:
                    files.add(each)
            files.finish(wanted.upto)
        finally:
            files.close()
    return notes
