"""``archive copy``: brings a second store up to what the archive has (row A5; docs/formats.md, "Copy").

What is copied is what documents name, held against its digest on the way. Order: what a document names, then the
document; windows one after the other along the chain, then HEAD, then the bases that end there. A copy is begun by
``copy.json``, and is an archive from its ``genesis.json`` on, which is put behind all that it needs. So a run that is
killed leaves an archive that ends earlier, and the next run goes on there. Nothing is deleted, nothing that is sound is
replaced, and two runs at once put the same bytes.

The copy keeps a range of its own, that of the archive when the copy was begun: what expires later stays in the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from pumphouse.archive import layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.base import Base
from pumphouse.archive.copyof import CopyOf, read_copy_of
from pumphouse.archive.declare import read_declared, read_settled
from pumphouse.archive.document import sha256
from pumphouse.archive.head import Head
from pumphouse.archive.manifest import DdlEntry, Manifest, SegmentEntry, check_link
from pumphouse.archive.range import Range
from pumphouse.archive.schema_parts import SchemaParts, parts_key
from pumphouse.archive.schema_store import newest_schema
from pumphouse.archive.segment import fetched
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import (
    BadManifest,
    BadSegment,
    BinlogError,
    ConfigError,
    CorruptionError,
    ManifestConflict,
    ObjectExists,
    ObjectNotFound,
)
from pumphouse.model.tso import Tso, show
from pumphouse.objectstore.base import ObjectStore
from pumphouse.objectstore.probe import probe_conditional_puts, refuse_losing

log = structlog.get_logger()

_TRIES = 5
_COPIERS, _IN_MEMORY_BYTES = 8, 16 << 20
# Their objects are copied side by side, then their manifests one after the other, then HEAD.
_WINDOWS = 64
_ELSEWHERE = "give an empty place for a new copy, and keep this one for the moments that it has"

# Whoever was first, or further.
_OTHERS_MAY_DIFFER = (layout.COPY, layout.HEAD)

Tick = Callable[[str, int, int], None]
Entry = SegmentEntry | DdlEntry
Check = Callable[[str, bytes], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    """What was copied, or would be.

    Args:
        url: of the copy.
        of: of the archive.
        dry_run: nothing was done.
        was: the copy reached to here before; None = there was none.
        start: windows are kept in the copy from here on.
        end: and up to here, then.
        of_start: windows are kept in the archive from here on.
        windows: how many were copied.
        bases: how many dumps and folded bases.
        objects: all that were copied, documents too.
        bytes: theirs.
        mended: those of them that the copy had, and that were damaged or lost.
        only_here: windows that the copy has and the archive has let go of.
        seconds: how long it took.
    """

    url: str
    of: str
    dry_run: bool
    was: Tso | None
    start: Tso
    end: Tso
    of_start: Tso
    windows: int
    bases: int
    objects: int
    bytes: int
    mended: int
    only_here: int
    seconds: float


def copy_archive(
    archive: Archive,
    copy: Archive,
    *,
    full: bool = False,
    dry_run: bool = False,
    tick: Tick = lambda _what, _done, _total: None,
    clock: Clock = SYSTEM_CLOCK,
) -> CopyReport:
    """Bring a copy up to the archive's end.

    Args:
        archive: what is copied.
        copy: where to; of the same cluster and name.
        full: also read back what the copy has, and put again what is damaged or lost there.
        dry_run: only say what would be copied.
        tick: called with (what, done, total).
        clock: for tests.

    Raises:
        ConfigError: what lies there is no copy of this archive.
        BadManifest: the copy goes further, is of another history, or ends before what the archive still has.
        BadSegment: an object of the archive is damaged or missing; the copy ends before it.
        UnsafeStore: the place honours no conditional puts, or deletes objects by a rule.
    """
    started, done = clock.monotonic(), _Done()
    for turn in range(1, _TRIES + 1):
        seen = archive.range().number
        try:
            with ThreadPoolExecutor(_COPIERS, thread_name_prefix="copy") as pool:
                run = _Copying(archive, copy, pool, done, full=full, dry_run=dry_run, tick=tick, clock=clock)
                was, start, end, of_start = run.run()
            break
        except BinlogError:
            # An expiry may have deleted what this run was about to read.
            if turn == _TRIES or archive.range().number == seen:
                raise
    listed = (layout.window_start(each.key) for each in copy.store.list(layout.WINDOWS))
    report = CopyReport(
        url=copy.url, of=archive.url, dry_run=dry_run, was=was, start=start, end=end, of_start=of_start,
        windows=done.windows, bases=done.bases, objects=done.objects, bytes=done.bytes, mended=done.mended,
        only_here=sum(each < of_start for each in listed), seconds=round(clock.monotonic() - started, 3),
    )  # fmt: skip
    if not dry_run:
        log.info("archive_copied", url=copy.url, end=int(end), windows=report.windows, bytes=report.bytes)
    return report


@dataclass(slots=True)
class _Done:
    """What was copied, by all tries."""

    windows: int = 0
    bases: int = 0
    objects: int = 0
    bytes: int = 0
    mended: int = 0


class _Copying:
    """One try."""

    def __init__(
        self,
        archive: Archive,
        copy: Archive,
        pool: ThreadPoolExecutor,
        done: _Done,
        *,
        full: bool,
        dry_run: bool,
        tick: Tick,
        clock: Clock,
    ) -> None:
        self._archive, self._copy = archive, copy
        self._from, self._to = archive.store, copy.store
        self._pool, self._done, self._tick, self._clock = pool, done, tick, clock
        self._full, self._dry_run = full, dry_run
        self._genesis, self._kept = archive.genesis(), archive.range()

    def run(self) -> tuple[Tso | None, Tso, Tso, Tso]:
        """Copy; what the copy reached to, where it starts and ends then, and where the archive starts."""
        archive, kept = self._archive, self._kept
        begun = self._begun()
        archive.last()  # says so where the newest windows are lost
        # What follows its manifest is listed before the windows, what goes before it after them.
        settled = self._lacking(layout.SETTLED)
        keys = [key for key in self._keys(layout.WINDOWS) if layout.window_start(key) >= kept.start]
        bases = [base for base in archive.every_base() if kept.has(base)]
        self._documents(self._lacking(layout.DECLARED), read_declared)
        was, start = None, kept.start
        if begun:
            if self._full:
                self._mend(keys)
            end, digest = self._joint()
            was, start = end, self._copy.range().start
        else:
            end, digest = self._first(keys, bases)
        end, _ = self._windows([key for key in keys if layout.window_start(key) >= end], end, digest, bases)
        self._documents(settled, read_settled)
        self._schema(end)
        return was, start, end, kept.start

    # -- what lies there --------------------------------------------------------------------------------------------

    def _begun(self) -> bool:
        """Whether the copy is an archive already; it is one that was begun, then."""
        if self._copy.url == self._archive.url:
            raise ConfigError(f"{self._copy.url} is the archive itself", hint="give another place for the copy")
        genesis, of = self._genesis.sha256, read_copy_of(self._to)
        begun = self._keys(layout.GENESIS, self._to) == [layout.GENESIS]
        if of is None and begun:
            raise ConfigError(f"the archive at {self._copy.url} is no copy: nothing is written to it", hint=_ELSEWHERE)
        if of is not None and of.genesis_sha256 != genesis:
            raise ConfigError(f"{self._copy.url} is a copy of another archive, that of {of.url}", hint=_ELSEWHERE)
        if of is None and not self._dry_run:
            refuse_losing(self._to)
            probe_conditional_puts(self._to, "")
            made = CopyOf(cluster_id=self._archive.cluster_id, genesis_sha256=genesis, url=self._archive.url)
            self._put(layout.COPY, made.to_json())
        return begun

    def _joint(self) -> tuple[Tso, str]:
        """Where the copy ends, and the digest that the next window hangs on; BadManifest where that is not ours."""
        kept = self._kept
        try:
            last, own = self._copy.last(), self._copy.range()
        except BadManifest as error:
            error.message = f"the copy at {self._copy.url} is damaged: {error.message}"
            error.hint = "pumphouse archive copy --full puts again what is damaged there"
            raise
        end, digest = (own.start, own.window) if last is None else (last.end, last.sha256)
        if end < kept.start:
            raise BadManifest(
                f"the copy at {self._copy.url} ends at {show(end)}, and the archive has let go of the windows from "
                f"there to {show(kept.start)} since: {kept.told()}",
                hint=f"{_ELSEWHERE}; copy more often than windows expire",
                path=layout.window_key(end), offset=0, reason="gap",
            )  # fmt: skip
        if end == kept.start:
            ours = digest == kept.window
        else:
            try:
                found = self._from.get(last.key) if last is not None else b""
            except ObjectNotFound:
                found = b""
                if end > self._archive.end():
                    raise BadManifest(
                        f"the copy at {self._copy.url} reaches to {show(end)}, and the archive ends at "
                        f"{show(self._archive.end())}: the archive has lost its newest windows",
                        hint="put them back from the copy: the objects under windows/, segments/ and ddl/, then HEAD",
                        path=layout.window_key(end), offset=0, reason="missing",
                    ) from None  # fmt: skip
            ours = sha256(found) == digest
        if not ours:
            raise BadManifest(
                f"the copy at {self._copy.url} is of another history: it ends at {show(end)} with a window that the "
                "archive does not have",
                hint=_ELSEWHERE, path=layout.window_key(end), offset=0, reason="chain",
            )  # fmt: skip
        return end, digest

    # -- what is copied ---------------------------------------------------------------------------------------------

    def _first(self, keys: Sequence[str], bases: Sequence[Base]) -> tuple[Tso, str]:
        """All that the first moment needs which is kept, and ``genesis.json`` at last; as `_windows`."""
        genesis, kept = self._genesis, self._kept
        self._objects("genesis", [*self._of_genesis(), *kept.ddl])
        self._documents(self._lacking(layout.GENESIS_COPIES), _by_name)
        upto = genesis.ts if kept.base is None else kept.base.ts
        keys = [key for key in keys if layout.window_start(key) < upto]
        end, digest = self._windows(keys, kept.start, kept.window, bases) if keys else (kept.start, kept.window)
        if kept.number:
            self._documents([kept.key], self._range)
        self._put(layout.HEAD, Head.of(genesis).to_json())
        self._documents([layout.GENESIS], self._same_genesis)
        return end, digest

    def _windows(self, keys: Sequence[str], end: Tso, digest: str, bases: Sequence[Base]) -> tuple[Tso, str]:
        """Windows behind ``end``, and the bases that are exact by then; where the copy ends then, and its digest."""
        left = sorted(bases, key=lambda base: base.ts)
        for at in range(0, len(keys) or 1, _WINDOWS):
            some = list(self._pool.map(self._manifest, keys[at : at + _WINDOWS]))
            for manifest, _ in some:
                check_link(manifest, cluster_id=self._archive.cluster_id, end=end, digest=digest)
                end, digest = manifest.end, manifest.sha256
            self._objects("", [entry for manifest, _ in some for entry in _named(manifest)])
            for manifest, data in some:
                self._put(manifest.key, data)
            self._done.windows += len(some)
            if some and not self._dry_run:
                self._copy.write_head(some[-1][0])
            self._tick("windows", at + len(some), len(keys))
            self._bases([base for base in left if base.ts <= end])
            left = [base for base in left if base.ts > end]
        return end, digest

    def _bases(self, bases: Sequence[Base]) -> None:
        """Objects of each, then its document."""
        there = {each.key: each.size for each in self._to.list(layout.BASE)} if bases else {}
        for base in bases:
            known = base.key in there
            if known and not self._full:
                continue
            segments = [each for table in base.tables for each in table.segments]
            lacking = segments if self._full else [each for each in segments if there.get(each.key) != each.bytes]
            self._objects(f"base {show(base.ts)}", lacking, known=known)
            if base.objects:
                self._documents([base.objects_key], partial(_of_base, base), known=known)
            self._documents([base.key], partial(self._base, base), known=known)
            there |= {each.key: each.bytes for each in segments}
            self._done.bases += not known

    def _schema(self, end: Tso) -> None:
        """The newest stored schema: it is derived, and a copy without it reads on, only more slowly."""
        try:
            ts = newest_schema(self._archive, end)
            if ts is None:
                return
            found = SchemaParts.from_json(parts_key(ts), self._from.get(parts_key(ts)))
            files = [file for part in found.parts for file in part.files]
            self._objects("schema", [DdlEntry(key=f.key, sha256=f.sha256, bytes=f.bytes, jobs=0) for f in files])
            self._documents([parts_key(ts)], SchemaParts.from_json)
        except (ObjectNotFound, CorruptionError) as error:
            log.warning("schema_not_copied", why=error.message)

    def _mend(self, keys: Sequence[str]) -> None:
        """Hold what the copy should have against the archive, from what readers need first."""
        self._documents([layout.GENESIS], self._same_genesis, known=True)
        self._documents(self._keys(layout.RANGE, self._to)[-1:], self._range, known=True)
        try:
            head = self._copy.head()
        except BadManifest:
            head = None
        own = self._copy.range()
        self._objects(
            "genesis", [*self._of_genesis(), *(each for each in own.ddl if each in self._kept.ddl)], known=True
        )
        reached = [head.manifest] if head is not None and head.manifest != layout.GENESIS else []
        reached = [*self._keys(layout.WINDOWS, self._to)[-1:], *reached]
        there = [key for key in keys if own.start <= layout.window_start(key) and key <= max(reached, default="")]
        for at in range(0, len(there), _WINDOWS):
            some = list(self._pool.map(self._manifest, there[at : at + _WINDOWS]))
            self._objects("", [entry for manifest, _ in some for entry in _named(manifest)], known=True)
            self._documents([manifest.key for manifest, _ in some], Manifest.from_json, known=True)
            self._tick("read back", at + len(some), len(there))
        if head is None and not self._dry_run:
            self._to.put(layout.HEAD, Head.of(self._genesis).to_json())
            self._copy.write_head(self._copy.last())

    # -- objects ----------------------------------------------------------------------------------------------------

    def _objects(self, what: str, entries: Sequence[Entry], *, known: bool = False) -> None:
        """Copy them, side by side. ``known``: the copy should have them."""
        for number, (size, mended) in enumerate(self._pool.map(partial(self._object, known=known), entries)):
            self._count(size, mended=mended)
            if what:
                self._tick(what, number + 1, len(entries))

    def _object(self, entry: Entry, *, known: bool) -> tuple[int | None, bool]:
        """Bytes that were copied, None = it was there; and whether it should have been there as it is."""
        mended = False
        if known:
            try:
                with fetched(self._to, entry, in_memory=_IN_MEMORY_BYTES):
                    return None, False
            except BadSegment:
                mended = True
        elif self._has_size(entry):
            return None, False
        if not self._dry_run:
            with fetched(self._from, entry, in_memory=_IN_MEMORY_BYTES) as found:
                if isinstance(found, Path):
                    self._to.put_file(entry.key, found, move=True)
                else:
                    self._to.put(entry.key, found)
        return entry.bytes, mended

    def _has_size(self, entry: Entry) -> bool:
        try:
            return self._to.size(entry.key) == entry.bytes
        except ObjectNotFound:
            return False

    def _documents(self, keys: Iterable[str], check: Check, *, known: bool = False) -> None:
        """Copy documents, side by side; ``check`` raises where one is not what its name says."""
        for size, mended in self._pool.map(partial(self._document, check, known=known), keys):
            self._count(size, mended=mended)

    def _document(self, check: Check, key: str, *, known: bool) -> tuple[int | None, bool]:
        data = self._from.get(key)
        check(key, data)
        try:
            found = self._to.get(key)
        except ObjectNotFound:
            found = None
        if found == data:
            return None, False
        if found is not None and _is_sound(check, key, found):
            raise self._another(key)
        if not self._dry_run:
            self._to.put(key, data)
        return len(data), known or found is not None

    def _put(self, key: str, data: bytes) -> None:
        """Put a document once; ManifestConflict where another one is there."""
        if not self._dry_run:
            try:
                self._to.put_if_absent(key, data)
            except ObjectExists:
                if key not in _OTHERS_MAY_DIFFER and self._to.get(key) != data:
                    raise self._another(key) from None
                return
        self._count(len(data), mended=False)

    def _another(self, key: str) -> ManifestConflict:
        return ManifestConflict(f"{self._copy.url}/{key} is not the archive's", hint=_ELSEWHERE, key=key)

    def _count(self, size: int | None, *, mended: bool) -> None:
        if size is not None:
            self._done.objects += 1
            self._done.bytes += size
            self._done.mended += mended

    # -- what there is ----------------------------------------------------------------------------------------------

    def _keys(self, prefix: str, store: ObjectStore | None = None) -> list[str]:
        return [each.key for each in (store or self._from).list(prefix)]

    def _lacking(self, prefix: str) -> list[str]:
        """What the copy lacks; everything, where everything is read back."""
        there = set() if self._full else {*self._keys(prefix, self._to)}
        return [key for key in self._keys(prefix) if key not in there]

    def _manifest(self, key: str) -> tuple[Manifest, bytes]:
        data = self._from.get(key)
        return Manifest.from_json(key, data), data

    def _of_genesis(self) -> list[Entry]:
        """Its DDL jobs, and its dump while that is kept."""
        genesis, oldest = self._genesis, self._kept.base
        kept = oldest is None or oldest.begun == genesis.ts
        return [genesis.ddl, *(each for table in (kept and genesis.base) or () for each in table.segments)]

    def _same_genesis(self, key: str, data: bytes) -> None:
        if sha256(data) != self._genesis.sha256:
            raise BadManifest(f"{key} is not the archive's", path=key, offset=0, reason="sha256")

    def _range(self, key: str, data: bytes) -> Range:
        return Range.from_json(key, data, self._genesis)

    def _base(self, base: Base, key: str, data: bytes) -> None:
        if sha256(data) != base.sha256:
            raise BadManifest(f"{key} is another one than it was", path=key, offset=0, reason="sha256")


def _named(manifest: Manifest) -> list[Entry]:
    return [*manifest.segments, *([] if manifest.ddl is None else [manifest.ddl])]


def _is_sound(check: Check, key: str, data: bytes) -> bool:
    try:
        check(key, data)
    except CorruptionError:
        return False
    return True


def _of_base(base: Base, key: str, data: bytes) -> None:
    if sha256(data) != base.objects:
        raise BadManifest(f"{key} is not what its dump names: another digest", path=key, offset=0, reason="sha256")


def _by_name(key: str, data: bytes) -> None:
    if key != layout.genesis_copy(sha256(data)):
        raise BadManifest(f"{key} is not what its name says: another digest", path=key, offset=0, reason="sha256")
