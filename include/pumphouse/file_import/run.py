"""``archive import --format pb``: binlog files become an archive of their own, window by window.

The archive's cluster has an id that is made from the first frame, and no Pump. A window names the last frame that it
took, by commit ts and digest: a later run reads the files from the begin, has to meet that frame there again, and goes
on behind it. Where a window ends depends on the files alone, so two runs at once make the same windows.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import structlog

from pumphouse.archive import layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.base import BaseTable
from pumphouse.archive.ddl import ArchivedJob, read_jobs, write_jobs
from pumphouse.archive.document import dump, parse
from pumphouse.archive.genesis import Genesis
from pumphouse.archive.indexing import extend_index
from pumphouse.archive.losses import Losses, losses_of
from pumphouse.archive.manifest import Declaration, LastBinlog, Manifest, PumpEntry
from pumphouse.archive.publish import put_once
from pumphouse.archive.segment import SegmentWriter
from pumphouse.codec.payload import make_commit, make_prewrite, merge
from pumphouse.codec.wire import read_field
from pumphouse.errors import ImportRefused, ManifestConflict, UsageError
from pumphouse.file_import.files import Block, Source
from pumphouse.file_import.rows import RowReader, runs_of, zone_table
from pumphouse.file_import.schema import DdlAt, FileDdl, FileSchema, timed
from pumphouse.loader.report import Progress
from pumphouse.model.table import Job
from pumphouse.model.tso import Tso, show
from pumphouse.objectstore.base import ObjectStore
from pumphouse.objectstore.probe import probe_conditional_puts, refuse_losing
from pumphouse.settings import ArchiveSettings

log = structlog.get_logger()

NODE = "binlog-files"
WINDOW_BYTES = 256 << 20  # of files
# Timestamps below the first frame's that are its jobs', where it is a DDL of several.
_BEFORE = 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What files do not say.

    Args:
        schema: statements that make the schema before them; '' = none.
        empty: its tables had no rows then.
        time_zone: of TIMESTAMPs in them; '' = not known.
        instead: statements that run in place of the files' DDLs.
    """

    schema: str = ""
    empty: bool = False
    time_zone: str = ""
    instead: Mapping[DdlAt, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """What a run did.

    Args:
        url: of the archive.
        cluster_id: of the archive.
        begun: whether it is new.
        after: what it holds begins behind this.
        upto: and goes up to here.
        files: in the source.
        windows: that this run wrote; so the others.
        transactions: of rows.
        changes: of rows.
        ddls: statements.
        base: whether moments can be restored.
        losses: what the archive that was exported lacked, and so this one does.
    """

    url: str
    cluster_id: int
    begun: bool
    after: Tso
    upto: Tso
    files: int
    windows: int
    transactions: int
    changes: int
    ddls: int
    base: bool
    losses: Losses = field(default_factory=Losses)

    def to_dict(self) -> dict[str, Any]:
        """JSON object."""
        found = asdict(self)
        losses = found.pop("losses")
        return {**found, **losses}


def import_pb(
    source: ObjectStore,
    store: ObjectStore,
    given: Given,
    settings: ArchiveSettings,
    *,
    program: str,
    most: int,
    window_bytes: int = WINDOW_BYTES,
    tell: Progress,
) -> ImportReport:
    """Make the archive, or go on with it.

    Args:
        source: where the files are.
        store: under which the archive is, in a folder named by its cluster's id.
        given: what files do not say.
        settings: name of the archive, size of parts.
        program: of the shadow server; '' = mariadbd of this machine.
        most: bytes of the largest transaction.
        window_bytes: a window ends behind so many of the files.
        tell: told of each block.

    Raises:
        UsageError: there are no files, or something of the archive was given otherwise before.
        ImportRefused, CorruptionError: the files cannot be read exactly; the archive may have what is before.
        ManifestConflict: another run was faster with a window.
    """
    files = Source.of(source)
    if not files.begins and not given.schema:
        raise UsageError(
            f"the first file is {files.files[0].name}: those before it are not there, and with them the DDLs in them",
            hint="--schema FILE with the CREATE statements of what was there then; or bring the first files back",
        )
    if files.notes:
        given = _with_zone(given)
    last, first = files.last(most), next(files.blocks(most), None)
    if first is None:
        raise UsageError(f"the binlog files in {files.store.url} are empty", hint="nothing was written yet")
    name = hashlib.sha256(first.payload(0)).digest()[:8]
    archive = Archive(store, (int.from_bytes(name) >> 1) | 1, archive_id=settings.archive_id)
    with contextlib.ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="pumphouse-import-")))
        schema = opened.enter_context(FileSchema.start(folder / "shadow", program, given.instead))
        begin = files.notes[0].from_ts if files.notes else Tso(int(first.commit_ts[0]) - _BEFORE)
        beginning = _begin(archive, schema, given, begin)
        run = _Run(archive, files, schema, given, settings, window_bytes, Tso(last), beginning)
        opened.callback(run.close)
        run.run(most, tell)
    after, upto = archive.genesis().ts, archive.end()
    return ImportReport(
        url=archive.url, cluster_id=archive.cluster_id, begun=run.begun, after=after, upto=upto,
        files=len(files.files), windows=run.windows, transactions=run.transactions, changes=run.changes, ddls=run.ddls,
        base=archive.genesis().base is not None, losses=losses_of(archive.windows(), after=after, upto=upto),
    )  # fmt: skip


def _with_zone(given: Given) -> Given:
    if given.time_zone and given.time_zone.upper() not in ("UTC", "+00:00"):
        raise UsageError(
            f"an export of ours wrote these files, with TIMESTAMPs in UTC, and not in {given.time_zone}",
            hint="leave --time-zone out",
        )
    return replace(given, time_zone="UTC")


def _entry(reached: Tso, last: LastBinlog | None, zone: str, *, sync_log: bool = True) -> PumpEntry:
    """The files as a Pump that is gone and held everything. What would be its incarnation is their zone."""
    return PumpEntry(
        node_id=NODE, incarnation=zone, start_count=0, state="gone", reached=reached, drained=True, batch=False,
        last=last, sync_log=sync_log,
    )  # fmt: skip


def _zone(before: PumpEntry, given: str) -> str:
    """The zone of all TIMESTAMPs: the one that the archive has its own in, if it has any.

    Raises:
        UsageError: another one is given now.
    """
    kept = before.incarnation
    if kept and given and not np.array_equal(zone_table(kept), zone_table(given)):
        raise UsageError(
            f"the archive has the TIMESTAMPs of these files as of {kept}, and not of {given}",
            hint=f"leave --time-zone out, or give {kept}; was it wrong, begin in another place: --archive URL",
        )
    return kept or given


@dataclass(frozen=True, slots=True)
class _Beginning:
    """What the archive begins with, once its first window is whole: of files that are refused before, nothing stays."""

    jobs: list[Job]
    tables: tuple[BaseTable, ...] | None
    ts: Tso
    version: int


def _begin(archive: Archive, schema: FileSchema, given: Given, ts: Tso) -> _Beginning | None:
    """The schema before the files. None = the archive was begun, and what was given is what it was begun with."""
    jobs = schema.begin(given.schema, ts, "--schema") if given.schema else []
    if archive.begun():
        _require_same(archive, jobs, given)
        archive.write_head(archive.last())
        return None
    tables = None
    if not jobs or given.empty:
        tables = tuple(
            BaseTable(db=db, table=name, table_id=info.id, rows=0, segments=())
            for (db, name), info in sorted(schema.tables.items())
        )
    return _Beginning(jobs, tables, ts, schema.version)


def _put_genesis(archive: Archive, beginning: _Beginning, given: Given) -> bool:
    """Begin the archive; False = another run has, with the same."""
    refuse_losing(archive.store)
    probe_conditional_puts(archive.store, "")
    attempt = layout.attempt_id()
    genesis = Genesis(
        cluster_id=archive.cluster_id,
        archive_id=archive.archive_id,
        attempt=attempt,
        ts=beginning.ts,
        schema_version=beginning.version,
        pumps=(_entry(beginning.ts, None, given.time_zone),),
        ddl=write_jobs(archive.store, layout.genesis_ddl_key(attempt), map(ArchivedJob.of_history, beginning.jobs)),
        base=beginning.tables,
    )
    data = genesis.to_json()
    try:
        put_once(archive.store, layout.GENESIS, data, lambda found: found == data)
    except ManifestConflict:
        _require_same(archive, beginning.jobs, given)
        return False
    archive.write_head(None)
    return True


def _require_same(archive: Archive, jobs: Sequence[Job], given: Given) -> None:
    genesis = archive.genesis()
    if [each.node_id for each in genesis.pumps] != [NODE]:
        raise UsageError(f"{archive.url} is no archive of imported files", hint="give another place: --archive URL")
    before = [each.parsed() for each in read_jobs(archive.store, genesis.ddl)]
    empty = not jobs or given.empty
    if before != list(jobs) or (genesis.base is not None) != empty:
        raise UsageError(
            f"{archive.url} was begun with another schema",
            hint="give the same --schema, and --empty or not, as at first; or begin in another place: --archive URL",
        )


class _Run:
    """One run over the files."""

    def __init__(
        self, archive: Archive, files: Source, schema: FileSchema, given: Given, settings: ArchiveSettings,
        window_bytes: int, last: Tso, beginning: _Beginning | None,
    ) -> None:  # fmt: skip
        self._archive, self._files, self._schema = archive, files, schema
        self._part_bytes, self._window_bytes = settings.part_bytes, window_bytes
        self._beginning, self._given, self.begun = beginning, given, False
        if beginning is not None:
            begin, entry = beginning.ts, _entry(beginning.ts, None, given.time_zone)
            self._end, self._digest = begin, ""
        else:
            genesis, manifest = archive.genesis(), archive.last()
            begin, entry = genesis.ts, (manifest or genesis).pumps[0]
            self._end = begin if manifest is None else manifest.end
            self._digest = (manifest or genesis).sha256
        self._taken = entry.last
        self._zone = _zone(entry, given.time_zone)
        self._reader = RowReader(zone_table(self._zone))
        self._reader.renew(schema.tables, schema.version)
        self._have = deque(archive.jobs(archive.windows(), begin, self._end) if beginning is None else ())
        self._instead = deque(sorted(given.instead))
        self._planned = max(last, files.notes[-1].to_ts if files.notes else last)
        self._at = begin  # the last time that something has
        self._skipped: tuple[Block, int] | None = None
        self._waiting: list[FileDdl] = []
        self._bytes = 0
        self._last: tuple[Block, int] | None = None
        self._jobs: list[ArchivedJob] = []
        self._writer: SegmentWriter | None = None
        self._attempt = layout.attempt_id()
        self.windows = self.transactions = self.changes = self.ddls = 0

    def run(self, most: int, tell: Progress) -> None:
        """All files, and a window behind the last."""
        total = sum(each.size for each in self._files.files) >> 20
        before, file = 0, self._files.files[0]
        for block in self._files.blocks(most):
            if block.file != file:
                before, file = before + file.size, block.file
            tell("reading files", (before + block.offset) >> 20, total)
            for first, last, ddl in runs_of(block):
                self._take(block, first, last, ddl=ddl)
        self._apply_waiting()
        self._require_taken()
        end = self._files.notes[-1].to_ts if self._files.notes else self._at
        if end > self._end:
            self._publish(Tso(end))
        tell("reading files", total, total)

    def close(self) -> None:
        """Let go of what is not finished."""
        if self._writer is not None:
            self._writer.__exit__(None, None, None)
            self._writer = None

    # -- frames

    def _take(self, block: Block, first: int, last: int, *, ddl: bool) -> None:
        commits = block.commit_ts
        if self._waiting and not (ddl and int(commits[first]) == self._waiting[0].at.commit_ts):
            self._apply_waiting()
        if ddl:
            self._waiting += [
                FileDdl(at=DdlAt(Tso(int(commits[at]))), text=_ddl_text(block, at), place=block.place(at))
                for at in range(first, last)
            ]
            self._note(block, last - 1, first)
            return
        twice = _not_above(commits[first:last], self._at)
        if twice is not None:
            at = first + twice
            raise ImportRefused(
                f"{block.place(at)}: {show(commits[at])} is the time of what stands before it, too",
                hint="two transactions of one commit ts are none of a Drainer's; are files of several in the folder?",
                place=block.place(at),
            )
        self._at = Tso(int(commits[last - 1]))
        self._require_met(self._at + 1)
        behind = first + int((commits[first:last] <= self._end).sum())
        if behind > first:
            self._note(block, behind - 1, first)
        if behind == last:
            return
        self._require_taken()
        rows, changes = self._reader.payloads(block, behind, last)
        if rows.num_rows:
            self._segments().add(rows)
        self.transactions, self.changes = self.transactions + rows.num_rows, self.changes + changes
        self._note(block, last - 1, behind)
        if self._bytes >= self._window_bytes:
            self._publish(self._at)

    def _note(self, block: Block, at: int, first: int) -> None:
        """What the last frame is, of those that the archive has, and of those that go into the window."""
        if int(block.commit_ts[at]) <= self._end:
            self._skipped = (block, at)
            return
        self._last = (block, at)
        self._bytes += int(block.starts[at] + block.lengths[at] - block.starts[first])

    def _apply_waiting(self) -> None:
        """DDLs of one commit ts."""
        some, self._waiting = self._waiting, []
        if not some:
            return
        ts, place = some[0].at.commit_ts, some[0].place
        if len(some) > 1:
            some = [replace(each, at=DdlAt(ts, number)) for number, each in enumerate(some, 1)]
        self._require_met(ts)
        while self._instead and self._instead[0].commit_ts == ts:
            given = self._instead.popleft()
            if given not in {each.at for each in some}:
                raise UsageError(
                    f"--ddl {given}: {len(some)} DDLs of the files were committed at {show(ts)}",
                    hint=f"give a --ddl for each that needs one, of {', '.join(str(each.at) for each in some)}",
                )
        raws = [raw for each in some for raw in self._schema.apply(each)]
        # What the archive holds already ends where an export ended, which may be above the last frame.
        jobs = timed(raws, ts, max(self._at, self._end) if ts > self._end else self._at, place)
        self._at = ts
        self._reader.renew(self._schema.tables, self._schema.version)
        had = []
        while self._have and self._have[0].commit_ts <= ts:
            had.append(self._have.popleft())
        if had != (jobs if ts <= self._end else []):
            raise ImportRefused(
                f"{place}: the archive has another DDL up to {show(ts)}: these are not the files that it was begun "
                "with, or --ddl or the server that runs the DDLs is another one now",
                hint="give --ddl as at first, and the program of then (capture.shadow); or import into another place "
                "(--archive URL)",
                place=place,
            )
        if ts <= self._end:
            return
        self._require_taken()
        self._jobs += jobs
        self.ddls += len(some)
        if jobs:
            self._segments().add(_rows_of(jobs))

    def _require_met(self, below: int) -> None:
        """No statement waits for a DDL that did not come: who gave it meant another one."""
        if self._instead and self._instead[0].commit_ts < below:
            raise UsageError(
                f"--ddl {self._instead[0]}: no DDL of the files was committed at {show(self._instead[0].commit_ts)}",
                hint="TS is the number that the refusal of a DDL names behind --ddl",
            )

    def _require_taken(self) -> None:
        """The last frame that the archive has came again."""
        if self._taken is None:
            return
        taken, self._taken = self._taken, None
        if self._skipped is not None:
            block, at = self._skipped
            if not self._have and (int(block.commit_ts[at]), _digest(block, at)) == (taken.commit_ts, taken.sha256):
                return
        raise ImportRefused(
            f"the archive goes up to a transaction at {show(taken.commit_ts)}, which the files do not have, or "
            "otherwise: they are not those that it was begun with",
            hint="import them into another place (--archive URL)",
            place=self._files.files[0].name,
        )

    # -- windows

    def _segments(self) -> SegmentWriter:
        if self._writer is None:
            self._attempt = layout.attempt_id()
            start, attempt = self._end, self._attempt
            self._writer = SegmentWriter(
                self._archive.store,
                lambda number: layout.segment_key(start, self._planned, NODE, attempt, number),
                NODE,
                part_bytes=self._part_bytes,
            )
        return self._writer

    def _publish(self, end: Tso) -> None:
        """Make a window of what was taken."""
        store, start = self._archive.store, self._end
        if self._beginning is not None:
            self.begun = _put_genesis(self._archive, self._beginning, self._given)
            self._beginning, self._digest = None, self._archive.genesis().sha256
        segments = tuple(self._writer.finish()) if self._writer is not None else ()
        self.close()
        ddl = write_jobs(store, layout.ddl_key(start, self._planned, self._attempt), self._jobs) if self._jobs else None
        if self._last is not None:
            block, at = self._last
            last: LastBinlog | None = LastBinlog(commit_ts=Tso(int(block.commit_ts[at])), sha256=_digest(block, at))
        else:
            manifest = self._archive.last()
            last = None if manifest is None else manifest.pumps[0].last
        losses = self._files.losses(start, end)
        declared = tuple(_declare(store, losses.declared))
        stored = self._archive.publish(
            Manifest(
                cluster_id=self._archive.cluster_id,
                attempt=self._attempt,
                start=start,
                planned_end=self._planned,
                end=end,
                fence=Tso(self._planned + 1),
                previous=self._digest,
                binlog_skipped=bool(losses.binlog_skipped) or None,
                pumps=(_entry(end, last, self._zone, sync_log=not losses.unsynced),),
                segments=segments,
                ddl=ddl,
                declared=declared,
            )
        )
        extend_index(self._archive)
        log.info("window_imported", start=int(start), end=int(end), transactions=self.transactions)
        self._end, self._digest, self._bytes, self._last, self._jobs = stored.end, stored.sha256, 0, None, []
        self.windows += 1


def _declare(store: ObjectStore, losses: Iterable[Declaration]) -> list[Declaration]:
    """What a manifest lists stands in declared/ as well: of one range of a Pump one, with all reasons."""
    found: dict[str, Declaration] = {}
    for each in losses:
        key = layout.extended_key(each.node_id, each.from_ts, each.to_ts)
        before = found.get(key)
        found[key] = each if before is None else replace(before, reason=f"{before.reason}; {each.reason}")
    return [_declared_once(store, key, each) for key, each in found.items()]


def _declared_once(store: ObjectStore, key: str, declaration: Declaration) -> Declaration:
    """What is there then: a run that was killed before its window may have known other reasons for the same range."""
    data = put_once(store, key, dump(Declaration.KIND, declaration.to_dict()), lambda _: True)
    return parse(key, data, Declaration.KIND, Declaration.from_dict)


def _not_above(commits: Any, at: int) -> int | None:
    """The first that is not above the one before it."""
    before = at
    same = (commits[1:] <= commits[:-1]).nonzero()[0]
    if int(commits[0]) <= before:
        return 0
    return int(same[0]) + 1 if same.size else None


def _digest(block: Block, at: int) -> str:
    return hashlib.sha256(block.payload(at)).hexdigest()


def _ddl_text(block: Block, at: int) -> bytes:
    pos, end = int(block.starts[at]), int(block.starts[at] + block.lengths[at])
    while pos < end:
        number, wire, start, length, pos = read_field(block.data, pos, end)
        if pos < 0:
            break
        if number == 4 and wire == 2:
            return block.data[start : start + length].tobytes()
    return b""


def _rows_of(jobs: Iterable[ArchivedJob]) -> pa.RecordBatch:
    """DDL binlogs as rows of a segment."""
    rows = []
    for each in jobs:
        payload = merge(
            make_prewrite(
                each.start_ts, b"", ddl_query=each.query, ddl_job_id=each.job_id, ddl_schema_state=each.schema_state
            ),
            make_commit(
                each.start_ts, each.commit_ts, b"", ddl_query=each.query, ddl_job_id=each.job_id,
                ddl_schema_state=each.schema_state,
            ),
        )  # fmt: skip
        rows.append((int(each.commit_ts), int(each.start_ts), each.job_id, each.query, payload))
    kinds = (pa.int64(), pa.int64(), pa.int64(), pa.large_binary(), pa.large_binary())
    names = ("commit_ts", "start_ts", "ddl_job_id", "ddl_query", "payload")
    return pa.RecordBatch.from_arrays(
        [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)], names=list(names)
    )
