"""``archive verify``: proves coverage and content (row A4). Collects everything that is wrong, stops at nothing.

Coverage: the windows chain from genesis without gap or overlap, and in each every Pump that the one before names is
pulled, drained or declared lost. Content: every object has the digest that the chain gives it, holds rows in order
inside its window, and its figures are those of the manifest; duplicates are where the manifest says; every DDL binlog
has its job. HEAD and declared/ are held against the manifests; what is derived, schema/, is derived again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from pumphouse.archive import layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.base import Base, BaseBegun, BaseChunk, read_columns_of
from pumphouse.archive.coverage import GONE, accounted_for, is_done, replaced_since, same_incarnation
from pumphouse.archive.ddl import read_groups, read_jobs
from pumphouse.archive.declare import accepted_commits, read_declared, read_settled
from pumphouse.archive.document import sha256
from pumphouse.archive.drills import Drill
from pumphouse.archive.duplicates import digest_of
from pumphouse.archive.failed import of_json
from pumphouse.archive.genesis import Genesis
from pumphouse.archive.head import Head, missing_head
from pumphouse.archive.history import ddl_binlogs, needs_job
from pumphouse.archive.indexing import index_problems
from pumphouse.archive.manifest import (
    AcceptedCommit,
    DdlEntry,
    Declaration,
    Manifest,
    PumpEntry,
    SegmentEntry,
    TableStat,
    check_link,
)
from pumphouse.archive.objects import objects_of
from pumphouse.archive.packs import PUT_BACK, Pack, lost_documents, packs_of, require_pack
from pumphouse.archive.proofs import Proof
from pumphouse.archive.range import Range
from pumphouse.archive.schema_check import schema_problems
from pumphouse.archive.segment import lengths, read_segment
from pumphouse.archive.stats import table_stats
from pumphouse.archive.verified import AGAIN, read_verified
from pumphouse.errors import BinlogError, ObjectNotFound
from pumphouse.model.node import NodeState
from pumphouse.model.tso import Tso, show
from pumphouse.objectstore.probe import KEEP

_READERS = 4
_KEYS = ("commit_ts", "start_ts", "part", "parts")
_Keys = np.ndarray[Any, np.dtype[np.int64]]

Tick = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong, and the object that it lies in."""

    key: str
    what: str


@dataclass(slots=True, kw_only=True)
class VerifyReport:
    """What was looked at, and what is wrong. ``deep``: contents were read, not only names and sizes."""

    deep: bool
    start: Tso = Tso(0)
    end: Tso = Tso(0)
    windows: int = 0
    objects: int = 0
    rows: int = 0
    changes: int = 0
    dumped: int = 0  # rows of dumps
    payload_bytes: int = 0
    problems: list[Problem] = field(default_factory=list)
    declared: list[dict[str, Any]] = field(default_factory=list)
    unsynced: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # windows in which TiDB said that it wrote no binlogs
    orphans: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def count(self, *, rows: int = 0, changes: int = 0, dumped: int = 0, payload_bytes: int = 0) -> None:
        """Add to the figures; from several threads."""
        with self._lock:
            self.rows += rows
            self.changes += changes
            self.dumped += dumped
            self.payload_bytes += payload_bytes

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """JSON object."""
        return {
            "sound": self.sound,
            "deep": self.deep,
            "start": int(self.start),
            "end": int(self.end),
            "windows": self.windows,
            "objects": self.objects,
            "rows": self.rows,
            "changes": self.changes,
            "dumped": self.dumped,
            "payload_bytes": self.payload_bytes,
            "problems": [{"key": each.key, "what": each.what} for each in self.problems],
            "declared": self.declared,
            "unsynced": self.unsynced,
            "skipped": self.skipped,
            "orphans": self.orphans,
        }


def verify(
    archive: Archive,
    *,
    checkpoint: Tso | None = None,
    deep: bool = True,
    tick: Tick = lambda _what, _done, _total: None,
) -> VerifyReport:
    """Check the whole archive, as far as it is kept; what expires meanwhile is no fault.

    Args:
        archive: which one.
        checkpoint: what the Pumps believe is archived, where it is known.
        deep: read contents, not only names, chain and sizes.
        tick: called with (what, done, total) for each object.
    """
    while True:
        kept = _start(archive)
        report = _verify(archive, checkpoint, deep=deep, tick=tick)
        if report.sound or _start(archive) == kept:
            return report


def _start(archive: Archive) -> Tso | None:
    try:
        return archive.range().start
    except BinlogError:  # the look itself tells
        return None


def _verify(archive: Archive, checkpoint: Tso | None, *, deep: bool, tick: Tick) -> VerifyReport:
    report = VerifyReport(deep=deep)
    report.problems += [Problem(key=archive.url, what=f"{each} ({KEEP})") for each in archive.store.losing()]
    try:
        genesis = archive.genesis()
    except BinlogError as error:
        report.problems.append(Problem(key=layout.GENESIS, what=str(error)))
        return report
    kept = _read_range(archive, genesis, report)
    report.start = report.end = kept.start
    report.declared += [each.to_dict() for each in kept.losses.declared]
    report.unsynced += kept.losses.unsynced
    # What is derived and dumps first, then HEAD, then the windows: what is published meanwhile has all that it needs.
    schema = [each.key for each in archive.store.list(layout.SCHEMA)]
    index = [each.key for each in archive.store.list(layout.INDEX)]
    packs = [each.key for each in archive.store.list(layout.PACKS)]
    dumps = [each.key for each in archive.store.list(layout.BASE)]
    bases = layout.base_documents(dumps)
    settled = [each.key for each in archive.store.list(layout.SETTLED)]
    chunks = _check_notes(archive, dumps, report)
    _check_failed(archive, report)
    _check_proofs(archive, report)
    head = _read_head(archive, report)
    manifests = list(_walk_chain(archive, kept, report))
    _check_newest(archive, genesis, manifests, head, checkpoint, report)
    _check_index(archive, index, kept, manifests, report)
    _check_verified(archive, kept, manifests, report)
    _check_declared(archive, manifests, report)
    _check_settled(archive, settled, kept, manifests, report)
    _check_pumps(kept, manifests, report)
    jobs = list(_work(archive, genesis, kept, manifests, schema, bases, report, deep))
    jobs += [(_check_chunk, (archive, key, each, report, deep)) for key, each in chunks.items()]
    jobs += [(_check_pack, (archive, key, kept, deep)) for key in packs if not key.endswith(".bin")]
    with ThreadPoolExecutor(_READERS) as pool:
        for number, problems in enumerate(pool.map(_run, jobs)):
            report.problems.extend(problems)
            report.objects += 1
            tick("objects", number + 1, len(jobs))
    lost = lost_documents(archive.store, [each.key for each in report.problems])
    report.problems += [Problem(key=key, what=f"{what} ({PUT_BACK})") for key, what in lost.items()]
    _count_orphans(archive, genesis, kept, manifests, report)
    report.orphans += _unnamed_packs(archive, kept, packs)
    return report


# -- chain and coverage ------------------------------------------------------------------------------------------------


def _read_range(archive: Archive, genesis: Genesis, report: VerifyReport) -> Range:
    """What is kept by the newest version that can be read; each is held against the one before."""
    kept = Range.whole(genesis)
    for each in archive.store.list(layout.RANGE):
        report.objects += 1
        try:
            found = Range.from_json(each.key, archive.store.get(each.key), genesis)
        except BinlogError as error:
            report.problems.append(Problem(key=each.key, what=str(error)))
            continue
        follows = kept.number == 0 or found.number > kept.number + 1 or found.previous == kept.sha256
        if not follows or found.start < kept.start:
            what = "does not follow the version before it" if not follows else "begins before the version before it"
            report.problems.append(Problem(key=each.key, what=what))
        kept = found
    return kept


def _walk_chain(archive: Archive, kept: Range, report: VerifyReport) -> Iterator[Manifest]:
    end, digest = kept.start, kept.window
    for each in archive.store.list(layout.WINDOWS):
        try:
            if layout.window_start(each.key) < kept.start:
                continue  # it expired
            manifest = Manifest.from_json(each.key, archive.store.get(each.key))
        except BinlogError as error:
            report.problems.append(Problem(key=each.key, what=str(error)))
            # What follows is held against this window's name alone; its own bounds are not known.
            end, digest = Tso(0), ""
            continue
        if end:
            try:
                check_link(manifest, cluster_id=archive.cluster_id, end=end, digest=digest)
            except BinlogError as error:
                report.problems.append(Problem(key=each.key, what=str(error)))
        end, digest = manifest.end, manifest.sha256
        report.windows += 1
        report.end = manifest.end
        report.declared.extend(declared.to_dict() for declared in manifest.declared)
        report.unsynced = sorted({*report.unsynced, *manifest.unsynced})
        if manifest.binlog_skipped:
            report.skipped.append(manifest.key)
        yield manifest


def _read_head(archive: Archive, report: VerifyReport) -> Head | None:
    try:
        return archive.head()
    except BinlogError as error:
        report.problems.append(Problem(key=layout.HEAD, what=str(error)))
        return None


def _check_newest(
    archive: Archive,
    genesis: Genesis,
    manifests: Sequence[Manifest],
    head: Head | None,
    checkpoint: Tso | None,
    report: VerifyReport,
) -> None:
    """The newest window has none behind it that would miss it; HEAD and the consumer's checkpoint do."""
    objects: dict[str, Genesis | Manifest | None] = {layout.GENESIS: genesis}
    objects |= {each.key: each for each in manifests}
    broken = {each.key for each in report.problems} - objects.keys()
    try:
        if head is None and manifests and layout.HEAD not in {each.key for each in report.problems}:
            raise missing_head(archive.url)
        old = head is not None and _named_start(genesis, head) < report.start  # a writer was slow
        if head is not None and not old and head.manifest not in broken:
            head.check(objects.get(head.manifest))
    except BinlogError as error:
        report.problems.append(Problem(key=str(error.facts.get("path") or layout.HEAD), what=str(error)))
    if checkpoint is not None and checkpoint > report.end:
        what = f"the checkpoint on the Pumps is {show(checkpoint)}, the archive ends at {show(report.end)}"
        report.problems.append(Problem(key=layout.WINDOWS, what=what))


def _named_start(genesis: Genesis, head: Head) -> Tso:
    return genesis.ts if head.manifest == layout.GENESIS else layout.window_start(head.manifest)


def _check_index(
    archive: Archive, keys: Sequence[str], kept: Range, manifests: Sequence[Manifest], report: VerifyReport
) -> None:
    """What runs of the index say is what the manifests say."""
    report.objects += len(keys)
    damaged = {each.key for each in report.problems}
    found = index_problems(archive, keys, kept.start, manifests, damaged)
    report.problems += [Problem(key=key, what=what) for key, what in found]


def _check_verified(archive: Archive, kept: Range, manifests: Sequence[Manifest], report: VerifyReport) -> None:
    """The note of an earlier verification is whole, and names a window that is still there as it was."""
    try:
        noted = read_verified(archive)
    except BinlogError as error:
        report.problems.append(Problem(key=layout.VERIFIED, what=str(error)))
        return
    ends = {kept.start: kept.window} | {each.end: each.sha256 for each in manifests}
    if noted is not None and noted.end >= kept.start and ends.get(noted.end) != noted.window_sha256:
        what = f"says that the archive was sound up to {show(noted.end)}; no window there is the one it names ({AGAIN})"
        report.problems.append(Problem(key=layout.VERIFIED, what=what))


def _check_declared(archive: Archive, manifests: Sequence[Manifest], report: VerifyReport) -> None:
    """What a manifest goes on without, or took, by name: the object that says so is there and says the same."""
    found: list[Declaration | AcceptedCommit] = []
    for each in archive.store.list(layout.DECLARED):
        report.objects += 1
        try:
            found.append(read_declared(each.key, archive.store.get(each.key)))
        except BinlogError as error:
            report.problems.append(Problem(key=each.key, what=str(error)))
    for manifest in manifests:
        named: list[Declaration | AcceptedCommit] = list(manifest.declared)
        named += [each for each in manifest.accepted if each.who != AcceptedCommit.ARCHIVE]
        for record in named:
            if not any(each in found for each in _as_said(record)):
                what = f"carries {record.KIND} of {record.node_id}, of which there is no equal object in declared/"
                report.problems.append(Problem(key=manifest.key, what=what))


def _as_said(listed: Declaration | AcceptedCommit) -> Iterator[Declaration | AcceptedCommit]:
    """The objects that a manifest's record may come from: what is an orphan may have been accepted as late."""
    yield listed
    if isinstance(listed, AcceptedCommit) and listed.kind == AcceptedCommit.ORPHAN:
        yield replace(listed, kind=AcceptedCommit.LATE)


def _check_settled(
    archive: Archive, keys: Sequence[str], kept: Range, manifests: Sequence[Manifest], report: VerifyReport
) -> None:
    """What a Pump shows as accepted is believed where such an object is: a manifest lists the commit as it says.

    That of a commit from before the range may have expired.
    """
    listed = {each for manifest in manifests for each in manifest.accepted}
    for key in keys:
        report.objects += 1
        try:
            record = read_settled(key, archive.store.get(key))
        except BinlogError as error:
            report.problems.append(Problem(key=key, what=str(error)))
            continue
        if record not in listed and record.commit_ts > kept.start:
            what = "says that a window took the commit, and none did; delete it: the next snapshot looks again"
            report.problems.append(Problem(key=key, what=what))


def _check_pumps(kept: Range, manifests: Sequence[Manifest], report: VerifyReport) -> None:
    before = {each.node_id: each for each in kept.pumps}
    for manifest in manifests:
        declared = {each.node_id for each in manifest.declared}
        for entry in manifest.pumps:
            why = _why_incomplete(entry, before.get(entry.node_id), manifest, entry.node_id in declared)
            if why:
                report.problems.append(Problem(key=manifest.key, what=f"Pump {entry.node_id} {why}"))
        for node_id in sorted(before.keys() - {each.node_id for each in manifest.pumps}):
            report.problems.append(
                Problem(key=manifest.key, what=f"Pump {node_id} is missing, the one before names it")
            )
        for each in manifest.segments:
            if manifest.pump(each.node_id) is None:
                report.problems.append(Problem(key=manifest.key, what=f"{each.key} belongs to no Pump of the window"))
        before = {each.node_id: each for each in manifest.pumps}


def _why_incomplete(entry: PumpEntry, before: PumpEntry | None, manifest: Manifest, declared: bool) -> str:
    if entry.reached < manifest.end:
        return f"reached {show(entry.reached)} only, the window ends at {show(manifest.end)}"
    if entry.lost and not declared and not (before is not None and before.lost):
        return "is given up without a declaration"
    if entry.state in (GONE, str(NodeState.OFFLINE)) and not is_done(entry):
        return f"is {entry.state} and was not drained"
    other = before is not None and not same_incarnation(before, entry)
    if other and not declared and before is not None and not is_done(before):
        return "became another incarnation without a declaration"
    fresh = replaced_since(entry.replaced, before)
    if fresh and not declared and not (other and before is not None and accounted_for(fresh, before)):
        return f"replaced incarnation {fresh[-1].incarnation}, start {fresh[-1].start_count}, without a declaration"
    return ""


def _count_orphans(
    archive: Archive, genesis: Genesis, kept: Range, manifests: Sequence[Manifest], report: VerifyReport
) -> None:
    """Segments that no manifest names: of killed tasks, or of a window that is under way. What expired is none."""
    named = {segment.key for manifest in manifests for segment in manifest.segments}
    named |= {segment.key for table in genesis.base or () for segment in table.segments}
    for each in archive.store.list(layout.SEGMENTS):
        start = layout.folder_start(each.key)
        report.orphans += each.key not in named and (start is None or start >= kept.start)
    # A later dump keeps the notes of its chunks beside it; one that is under way is told by `archive ls`.
    dumped = layout.base_folder(genesis.ts)
    if _has_genesis(kept, genesis):
        report.orphans += sum(1 for each in archive.store.list(dumped) if each.key not in named)
    # A fold has no notes: what it left is in no dump's folder, and no base names it.
    keys = [each.key for each in archive.store.list(layout.BASE) if not each.key.startswith(dumped)]
    for key in layout.base_documents(keys):
        try:
            base = Base.from_json(key, archive.store.get(key), cluster_id=archive.cluster_id, genesis=genesis.sha256)
        except BinlogError:
            return  # it is named as what it is, and what it names is not known
        named |= base.keys
    dumps = {layout.base_low(key) for key in keys if key == layout.base_begun(layout.base_low(key))}
    report.orphans += sum(
        1
        for key in keys
        if key not in named and layout.base_low(key) not in dumps and layout.base_low(key) > kept.start
    )


# -- content -----------------------------------------------------------------------------------------------------------

_Job = tuple[Callable[..., list[Problem]], tuple[Any, ...]]


def _run(job: _Job) -> list[Problem]:
    check, arguments = job
    return check(*arguments)


def _has_genesis(kept: Range, genesis: Genesis) -> bool:
    """Whether the dump of genesis is kept, where there is one."""
    return kept.base is None or kept.base.begun == genesis.ts


def _work(
    archive: Archive,
    genesis: Genesis,
    kept: Range,
    manifests: Sequence[Manifest],
    schema: Sequence[str],
    bases: Sequence[str],
    report: VerifyReport,
    deep: bool,
) -> Iterator[_Job]:
    yield _check_genesis_ddl, (archive, genesis)
    for entry in kept.ddl:
        yield _check_expired_ddl, (archive, entry, kept.start)
    if kept.base is not None:
        yield _check_oldest, (archive, genesis, kept)
    for table in (genesis.base or ()) if _has_genesis(kept, genesis) else ():
        for segment in table.segments:
            yield _segment_check(deep), (archive, segment, Tso(genesis.ts - 1), genesis.ts, report)
    named: dict[tuple[str, str, int, int], SegmentEntry] = {}  # each is read once, however many bases name it
    for key in bases:
        try:
            base = Base.from_json(key, archive.store.get(key), cluster_id=archive.cluster_id, genesis=genesis.sha256)
        except BinlogError as error:
            yield list, ((Problem(key=key, what=str(error)),),)
            continue
        if not kept.has(base):
            continue  # it expired
        yield _check_base, (archive, kept, base, report)
        segments = [segment for table in base.tables for segment in table.segments]
        named |= {(each.key, each.sha256, each.bytes, each.rows): each for each in segments}
    for segment in named.values():
        yield _check_columns, (archive, segment, report, deep)
    for manifest in manifests:
        for segment in manifest.segments:
            ends = (segment.min_commit_ts, segment.max_commit_ts)
            cut = [_is_shared(manifest.segments, segment, ts) for ts in ends]
            yield _segment_check(deep), (archive, segment, manifest.start, manifest.end, report, *cut)
        if deep:
            yield _check_window, (archive, manifest)
    yield _check_schema, (archive, genesis, kept, manifests, schema, deep)


def _check_base(archive: Archive, kept: Range, base: Base, report: VerifyReport) -> list[Problem]:
    """What the document of a later dump, or of a folded base, says; its segments are looked at apart."""
    key, problems = base.key, []
    if not kept.start <= base.low <= base.ts <= report.end:
        what = f"covers {show(base.low)} to {show(base.ts)}, the windows {show(kept.start)} to {show(report.end)}"
        problems.append(Problem(key=key, what=what))
    try:
        objects_of(archive, base)
    except BinlogError as error:
        problems.append(Problem(key=base.objects_key, what=str(error)))
    problems += [
        Problem(key=key, what=f"says {table.rows} rows of {table.db}.{table.table}, not as many")
        for table in base.tables
        if sum(segment.rows for segment in table.segments) != table.rows
    ]
    return problems


def _check_pack(archive: Archive, key: str, kept: Range, deep: bool) -> list[Problem]:
    """What a pack says of itself, and its bytes; that it has what manifests name shows where their objects are read."""
    covers = layout.pack_range(key)
    if covers is None:
        return [Problem(key=key, what="is no pack: delete it")]
    try:
        pack = Pack.from_json(key, archive.store.get(key))
        if pack.end > kept.start:
            require_pack(archive.store, pack, archive.cluster_id, deep=deep)
    except BinlogError as error:
        expired = isinstance(error, ObjectNotFound) and covers[1] <= archive.range().start
        return [] if expired else [Problem(key=key, what=str(error))]
    return []


def _unnamed_packs(archive: Archive, kept: Range, keys: Sequence[str]) -> int:
    """Data of packs that no document names."""
    try:
        named = {pack.data for pack in packs_of(archive.store)}
    except BinlogError:
        return 0  # it is named as what it is
    ends = {key: found[1] for key in keys if key.endswith(".bin") and (found := layout.pack_range(key))}
    return sum(key not in named and end > kept.start for key, end in ends.items())


def _check_failed(archive: Archive, report: VerifyReport) -> None:
    """What is noted of failures is what was noted."""
    for each in archive.store.list(layout.FAILED):
        try:
            of_json(each.key, archive.store.get(each.key))
        except BinlogError as error:
            report.problems.append(Problem(key=each.key, what=str(error)))


def _check_proofs(archive: Archive, report: VerifyReport) -> None:
    """Proofs and drills are what was written, of this cluster."""
    for prefix, kind in ((layout.PROOFS, Proof), (layout.DRILLS, Drill)):
        for each in archive.store.list(prefix):
            try:
                found = kind.from_json(each.key, archive.store.get(each.key))
            except BinlogError as error:
                report.problems.append(Problem(key=each.key, what=str(error)))
                continue
            if found.cluster_id != archive.cluster_id:
                report.problems.append(Problem(key=each.key, what=f"is of cluster {found.cluster_id}; delete it"))


def _check_notes(archive: Archive, keys: Sequence[str], report: VerifyReport) -> dict[str, SegmentEntry]:
    """What dumps noted of their begin and chunks; the segments of those that are not done, which go on from there.

    By the keys of their notes. One that is gone since it was listed is none: a fold that ends takes its own away, and a
    sweep those of a dump that was given up.
    """
    done = {layout.base_low(key) for key in keys if key == layout.base_document(layout.base_low(key))}
    segments = {}
    for key in keys:
        low = layout.base_low(key)
        if not key.endswith(".json") or key in (layout.base_document(low), layout.folded_document(low)):
            continue
        try:
            if key == layout.base_begun(low) or layout.is_fold_note(key):
                BaseBegun.from_json(key, archive.store.get(key))
                continue
            chunk = BaseChunk.from_json(key, archive.store.get(key))
        except ObjectNotFound:
            continue
        except BinlogError as error:
            report.problems.append(Problem(key=key, what=str(error)))
            continue
        if chunk.segment is not None and low not in done:
            segments[key] = chunk.segment
    return segments


def _check_chunk(archive: Archive, note: str, segment: SegmentEntry, report: VerifyReport, deep: bool) -> list[Problem]:
    """A chunk of a dump that is not done; a note that went meanwhile asks for none."""
    problems = _check_columns(archive, segment, report, deep)
    if problems and all(each.key != note for each in archive.store.list(note)):
        return []
    return problems


def _check_columns(archive: Archive, segment: SegmentEntry, report: VerifyReport, deep: bool) -> list[Problem]:
    """A segment of a dump: its bytes and number of rows."""
    if not deep:
        return _check_size(archive, segment, segment.min_commit_ts, segment.max_commit_ts, report)
    try:
        rows = sum(batch.num_rows for batch in read_columns_of(archive.store, segment))
    except BinlogError as error:
        return [Problem(key=segment.key, what=str(error))]
    report.count(dumped=rows, payload_bytes=segment.payload_bytes)
    return []


def _segment_check(deep: bool) -> Callable[..., list[Problem]]:
    return _check_segment if deep else _check_size


def _check_size(
    archive: Archive, segment: SegmentEntry, _start: Tso, _end: Tso, _report: VerifyReport, *_cut: bool
) -> list[Problem]:
    try:
        size = archive.store.size(segment.key)
    except BinlogError as error:
        return [Problem(key=segment.key, what=str(error))]
    if size != segment.bytes:
        return [Problem(key=segment.key, what=f"has {size} bytes, the manifest says {segment.bytes}")]
    return []


def _check_segment(
    archive: Archive,
    segment: SegmentEntry,
    start: Tso,
    end: Tso,
    report: VerifyReport,
    begins_cut: bool = False,
    ends_cut: bool = False,
) -> list[Problem]:
    """Digest, order, bounds, parts and figures of one segment.

    ``begins_cut``, ``ends_cut``: parts of its first, or last, transaction may lie in the segment beside it, to which
    `_cuts_of` holds them.
    """
    seen = _Figures(begins_cut)
    try:
        for batch in read_segment(archive.store, segment, after=Tso(0), upto=Tso((1 << 63) - 1)):
            seen.add(batch)
    except BinlogError as error:
        return [Problem(key=segment.key, what=str(error))]
    problems = list(seen.problems)
    if seen.ends_amid and not ends_cut:
        problems.append("parts of its last transaction are missing")
    if not start < segment.min_commit_ts <= segment.max_commit_ts <= end:
        problems.append("reaches outside of its window")
    if seen.unreadable:
        records = accepted_commits(archive)
        left_out = {(each.start_ts, each.commit_ts) for each in records if each.kind == AcceptedCommit.UNREADABLE}
        problems += [
            f"transaction {commit_ts} that began at {start_ts} cannot be read, and nobody has accepted that"
            for start_ts, commit_ts in dict.fromkeys(seen.unreadable)
            if (start_ts, commit_ts) not in left_out
        ]
    wanted = (
        segment.rows, segment.changes, segment.ddls, segment.payload_bytes,
        int(segment.min_commit_ts), int(segment.max_commit_ts), segment.tables,
    )  # fmt: skip
    if wanted != seen.figures():
        problems.append(f"holds {seen.figures()}, the manifest says {wanted}")
    report.count(rows=seen.rows, changes=seen.changes, payload_bytes=seen.payload_bytes)
    return [Problem(key=segment.key, what=what) for what in problems]


def _keys(batch: pa.RecordBatch) -> _Keys:
    """`_KEYS` of each row."""
    return np.stack([batch.column(name).to_numpy().astype(np.int64) for name in _KEYS], axis=1)


class _Figures:
    """Counts a segment again, from its rows."""

    def __init__(self, begins_cut: bool = False) -> None:
        self._begins_cut = begins_cut
        self.rows = self.changes = self.ddls = self.payload_bytes = 0
        self.first: int | None = None
        self.tables: dict[int, TableStat] = {}
        self.problems: list[str] = []
        self.unreadable: list[tuple[int, ...]] = []  # (start ts, commit ts)
        self._last = (-1, -1, 0, 1)

    def follow(self, keys: _Keys) -> None:
        """Hold the keys of the next rows to those before."""
        keys = np.concatenate([np.array([self._last], np.int64), keys])
        same = (keys[1:, :2] == keys[:-1, :2]).all(axis=1)
        later = (keys[1:, 0] > keys[:-1, 0]) | ((keys[1:, 0] == keys[:-1, 0]) & (keys[1:, 1] > keys[:-1, 1]))
        # A transaction is one row, or its parts one after the other from 0 on; dumps repeat (G, G-1) in whole rows.
        whole = (keys[1:, 3] == 1) & (keys[1:, 2] == 0)
        next_part = same & (keys[1:, 2] == keys[:-1, 2] + 1) & (keys[1:, 3] == keys[:-1, 3])
        fresh = (later | (same & whole)) & (keys[1:, 2] == 0) & (keys[:-1, 2] == keys[:-1, 3] - 1)
        wrong = np.flatnonzero(~(next_part | fresh))
        if wrong.size and not self.problems:
            at = wrong[0] + 1
            self.problems.append(f"rows are out of order or parts are missing at {keys[at].tolist()}")
        self._last = tuple(keys[-1].tolist())

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the next rows."""
        keys = _keys(batch)
        if self.first is None:
            self.first = int(keys[0, 0])
            if self._begins_cut:
                self._last = (*keys[0, :2].tolist(), int(keys[0, 2]) - 1, int(keys[0, 3]))
        self.follow(keys)
        self.rows += batch.num_rows
        self.ddls += int(np.count_nonzero(batch.column("ddl_job_id").to_numpy() > 0))
        payload = batch.column("payload")
        self.payload_bytes += int(lengths(payload).sum())
        changes, tables, unreadable = table_stats(payload)
        for row in unreadable:
            self.unreadable.append(tuple(keys[row, 1::-1].tolist()))
        self.changes += changes
        for table_id, stat in tables.items():
            have = self.tables.get(table_id, TableStat(rows=0, bytes=0))
            self.tables[table_id] = TableStat(rows=have.rows + stat.rows, bytes=have.bytes + stat.bytes)

    @property
    def ends_amid(self) -> bool:
        """Whether more parts of the last transaction have to come."""
        return self._last[2] != self._last[3] - 1

    def figures(self) -> tuple[Any, ...]:
        """As the manifest has them."""
        return self.rows, self.changes, self.ddls, self.payload_bytes, self.first or 0, self._last[0], self.tables


def _check_window(archive: Archive, manifest: Manifest) -> list[Problem]:
    """Duplicates, transactions in two segments, and DDL jobs of one window."""
    problems: list[Problem] = []
    for check in (_duplicates_of, _cuts_of, _jobs_of):
        try:
            problems.extend(Problem(key=manifest.key, what=what) for what in check(archive, manifest))
        except BinlogError as error:
            problems.append(Problem(key=error.facts.get("path") or manifest.key, what=str(error)))
    return problems


def _duplicates_of(archive: Archive, manifest: Manifest) -> Iterator[str]:
    for each in manifest.duplicates:
        found = digest_of(archive.store, manifest.segments, each.start_ts, each.commit_ts)
        settled = any(
            record.kind == AcceptedCommit.DIFFERS
            and (record.node_id, record.start_ts, record.commit_ts) == (each.keep, each.start_ts, each.commit_ts)
            for record in manifest.accepted
        )
        if set(found) != {each.keep, *each.drop} or (len(set(found.values())) != 1 and not settled):
            yield (
                f"duplicate {each.start_ts} {each.commit_ts} lies on {sorted(found)}, "
                f"the manifest says {each.keep} and {list(each.drop)}, with equal contents"
            )


def _is_shared(segments: Sequence[SegmentEntry], one: SegmentEntry, ts: Tso) -> bool:
    """Whether another segment of its Pump may have parts of what was committed then."""
    return any(
        each is not one and each.node_id == one.node_id and each.min_commit_ts <= ts <= each.max_commit_ts
        for each in segments
    )


def _cuts_of(archive: Archive, manifest: Manifest) -> Iterator[str]:
    """Parts that are missing of transactions that lie in several segments of one Pump."""
    segments = manifest.segments
    ends = ((each, ts) for each in segments for ts in (each.min_commit_ts, each.max_commit_ts))
    for node_id, ts in sorted({(each.node_id, ts) for each, ts in ends if _is_shared(segments, each, ts)}):
        keys = np.concatenate([
            _keys(batch)
            for each in segments
            if each.node_id == node_id
            for batch in read_segment(archive.store, each, after=Tso(ts - 1), upto=ts, columns=_KEYS)
        ])  # fmt: skip
        seen = _Figures()
        seen.follow(keys[np.lexsort((keys[:, 2], keys[:, 1]))])
        yield from (f"{node_id}: {each}" for each in seen.problems)
        if seen.ends_amid:
            yield f"{node_id}: parts of the transaction at {ts} are missing"


def _jobs_of(archive: Archive, manifest: Manifest) -> Iterator[str]:
    jobs = [] if manifest.ddl is None else read_jobs(archive.store, manifest.ddl)
    if manifest.ddl is not None and manifest.ddl.jobs != len(jobs):
        yield f"its DDL jobs are {len(jobs)}, the manifest says {manifest.ddl.jobs}"
    without = {(each.start_ts, each.commit_ts) for each in manifest.accepted if each.kind == AcceptedCommit.DDL}
    for each in jobs:
        parsed = each.parsed()
        lacks = parsed is None and needs_job(each) and (each.start_ts, each.commit_ts) not in without
        if lacks or (parsed is not None and parsed.id != each.job_id):
            yield f"DDL job {each.job_id} is missing"
    found = ddl_binlogs(archive.store, manifest.segments, manifest.duplicates, manifest.end)
    binlogs = [each.binlog for each in found]
    if [(each.commit_ts, each.job_id) for each in binlogs] != [(each.commit_ts, each.job_id) for each in jobs]:
        yield "its DDL jobs are not those of its DDL binlogs"


def _check_schema(
    archive: Archive, genesis: Genesis, kept: Range, manifests: Sequence[Manifest], schema: Sequence[str], deep: bool
) -> list[Problem]:
    found = schema_problems(archive, genesis, kept, manifests, schema, deep=deep)
    return [Problem(key=key, what=what) for key, what in found]


def _check_oldest(archive: Archive, genesis: Genesis, kept: Range) -> list[Problem]:
    """The dump that the moments of the range begin from."""
    oldest = kept.base
    if oldest is None or (oldest.begun == genesis.ts and oldest.sha256 == genesis.sha256):
        return []
    key = oldest.key
    try:
        digest = sha256(archive.store.get(key))
    except BinlogError as error:
        return [Problem(key=key, what=f"{kept.key} begins from it: {error}")]
    return [] if digest == oldest.sha256 else [Problem(key=key, what=f"is not the dump that {kept.key} begins from")]


def _check_expired_ddl(archive: Archive, entry: DdlEntry, start: Tso) -> list[Problem]:
    """DDL jobs of windows that are gone."""
    count, last = 0, Tso(0)
    try:
        for _, jobs in read_groups(archive.store, entry):
            for each in jobs:
                if not last <= each.commit_ts <= start:
                    return [Problem(key=entry.key, what=f"its jobs are out of order or beyond {show(start)}")]
                count, last = count + 1, each.commit_ts
    except BinlogError as error:
        return [Problem(key=entry.key, what=str(error))]
    return [] if count == entry.jobs else [Problem(key=entry.key, what=f"holds {count} jobs, and not {entry.jobs}")]


def _check_genesis_ddl(archive: Archive, genesis: Genesis) -> list[Problem]:
    count = version = 0
    try:
        for _, jobs in read_groups(archive.store, genesis.ddl):
            count += len(jobs)
            found = (job.schema_version for each in jobs if (job := each.parsed()) is not None and job.done)
            version = max([version, *found])
    except BinlogError as error:
        return [Problem(key=genesis.ddl.key, what=str(error))]
    if count != genesis.ddl.jobs or version != genesis.schema_version:
        return [Problem(key=genesis.ddl.key, what=f"holds {count} jobs up to version {version}")]
    return []
