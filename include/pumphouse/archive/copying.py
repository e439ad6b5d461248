"""``archive copy``: brings a second store up to what the archive has (row A5; docs/formats.md, "Copy").

What is copied is what documents name, held against its digest on the way. Order: what a document names, then the
document; windows one after the other along the chain, then HEAD, then the bases that end there. ``copy.json`` claims
the place, and the copy is an archive from its ``genesis.json`` on, which is put behind all that it needs. So a run that
is killed leaves an archive that ends earlier, and the next run goes on there. Nothing is deleted, nothing that is sound
is replaced, and two runs at once put the same bytes. At its end each run holds what the copy's own documents name
against a listing of the copy.

The copy keeps a range of its own, that of the archive when the copy was begun: what expires later stays in the copy.
The archive's marks come into it, and ``copy.json`` has its text, to put it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import structlog

from pumphouse.archive import layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.base import Base
from pumphouse.archive.copied import damaged, require_copied
from pumphouse.archive.copyof import CopyOf, read_copy_of
from pumphouse.archive.declare import default_who, read_declared, read_settled
from pumphouse.archive.document import sha256
from pumphouse.archive.genesis import Genesis
from pumphouse.archive.head import Head
from pumphouse.archive.indexing import extend_index
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
from pumphouse.model import strict
from pumphouse.model.tso import MAX_TSO, Tso, show
from pumphouse.objectstore.base import ObjectStore
from pumphouse.objectstore.probe import probe_conditional_puts, refuse_losing

log = structlog.get_logger()

_TRIES = 5
_COPIERS, _IN_MEMORY_BYTES = 8, 16 << 20
# Their objects are copied side by side, then their manifests one after the other, then HEAD.
_WINDOWS = 64
_ELSEWHERE = "give an empty place for a new copy, and keep this one for the moments that it has"
_SHOWN = 5

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
        full: also read back everything that the copy has, and put again what is damaged or lost there.
        dry_run: only say what would be copied.
        tick: called with (what, done, total).
        clock: for tests.

    Raises:
        ConfigError: what lies there is no copy of this archive, or one of the two places lies in the other.
        BadManifest: the copy is damaged, goes further, is of another history, or ends before what the archive has.
        BadSegment: an object of the archive is damaged or missing; the copy ends before it. With ``full``: so is one
            that the copy alone has.
        UnsafeStore: the place honours no conditional puts, or deletes objects by a rule.
    """
    require_apart(archive, copy)
    started, done = clock.monotonic(), _Done()
    first: Tso | None = None
    for turn in range(1, _TRIES + 1):
        seen = archive.range().number
        try:
            with ThreadPoolExecutor(_COPIERS, thread_name_prefix="copy") as pool:
                run = _Copying(archive, copy, pool, done, full=full, dry_run=dry_run, tick=tick, clock=clock)
                was, start, end, of_start = run.run()
            break
        except BinlogError:
            first = first or run.was
            # An expiry may have deleted what this run was about to read.
            if turn == _TRIES or archive.range().number == seen:
                raise
    listed = (layout.window_start(each.key) for each in copy.store.list(layout.WINDOWS))
    was = first or was
    report = CopyReport(
        url=copy.url, of=archive.url, dry_run=dry_run, was=was, start=start, end=end, of_start=of_start,
        windows=done.windows, bases=done.bases, objects=done.objects, bytes=done.bytes, mended=done.mended,
        only_here=sum(start <= each < of_start for each in listed), seconds=round(clock.monotonic() - started, 3),
    )  # fmt: skip
    if not dry_run:
        log.info("archive_copied", url=copy.url, end=int(end), windows=report.windows, bytes=report.bytes)
    return report


def require_apart(archive: Archive, copy: Archive) -> None:
    """ConfigError where one of the two places is the other, or lies in it: either would take objects for its own."""
    ours, theirs = (_place(each) for each in (archive, copy))
    if copy.url == archive.url or ours == theirs:
        raise ConfigError(f"{copy.url} is the archive itself", hint="give another place for the copy")
    if ours.startswith(f"{theirs}/") or theirs.startswith(f"{ours}/"):
        raise ConfigError(
            f"of {archive.url} and {copy.url} one lies in the other: a copy lies beside its archive",
            hint="give another bucket, or a prefix that is no part of the archive's",
        )


def _place(archive: Archive) -> str:
    """Its root, without what a file system may call it besides."""
    root = archive.url.removesuffix(f"/{archive.cluster_id}")
    return f"file://{Path(root.removeprefix('file://')).resolve()}" if root.startswith("file://") else root


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
        self.was: Tso | None = None

    def run(self) -> tuple[Tso | None, Tso, Tso, Tso]:
        """Copy; what the copy reached to, where it starts and ends then, and where the archive starts."""
        archive, kept = self._archive, self._kept
        begun = self._claimed().range is not None
        archive.last()  # says so where the newest windows are lost
        # What follows its manifest is listed before the windows, what goes before it after them.
        settled = self._lacking(layout.SETTLED)
        keys = [key for key in self._keys(layout.WINDOWS) if layout.window_start(key) >= kept.start]
        bases = [base for base in archive.every_base() if kept.has(base)]
        self._documents(self._lacking(layout.DECLARED), read_declared)
        start = kept.start
        if begun:
            self._again()
            if self._full:
                self._mend(keys)
            end, digest = self._joint()
            self.was, start = end, self._copy.range().start
        else:
            end, digest = self._first(keys, bases)
        end, _ = self._windows([key for key in keys if layout.window_start(key) >= end], end, digest, bases)
        self._documents(settled, read_settled)
        self._schema(end)
        if not self._dry_run:
            last = self._copy.last()
            if self._copy.head() != Head.of(last or self._genesis):  # a run that was killed has left it behind
                self._copy.write_head(last)
            self._marks()
            self._index()
            require_copied(self._archive, self._copy)
            if self._full:
                self._read_only_here(bases)
        return self.was, start, end, kept.start

    # -- what lies there --------------------------------------------------------------------------------------------

    def _claimed(self) -> CopyOf:
        """``copy.json``, which is this archive's: put by whoever is first, and nothing before it."""
        self._refuse_losing()
        mine = CopyOf(
            cluster_id=self._archive.cluster_id, genesis_sha256=self._genesis.sha256, url=self._archive.url, range=None
        )
        try:
            found = read_copy_of(self._to)
        except BadManifest as error:
            found = self._claimed_again(mine, error)
        if found is None:
            if any(not each.key.startswith("probe/") for each in self._to.list("")):
                raise ConfigError(
                    f"the archive at {self._copy.url} is no copy: nothing is written to it (there is no copy.json)",
                    hint=_ELSEWHERE,
                )
            if self._dry_run:
                return mine
            probe_conditional_puts(self._to, "")
            try:
                self._to.put_if_absent(layout.COPY, mine.to_json())
                self._count(len(mine.to_json()), mended=False)
            except ObjectExists:
                log.info("copy_begun_by_another", url=self._copy.url)
            found = read_copy_of(self._to) or mine
        if found.genesis_sha256 != self._genesis.sha256:
            raise ConfigError(f"{self._copy.url} is a copy of another archive, that of {found.url}", hint=_ELSEWHERE)
        return found

    def _refuse_losing(self) -> None:
        if not self._dry_run:
            refuse_losing(self._to)

    def _claimed_again(self, mine: CopyOf, error: BadManifest) -> CopyOf:
        """In the place of one that is damaged, where ``genesis.json`` proves that the copy is this archive's."""
        try:
            proven = sha256(self._to.get(layout.GENESIS)) == self._genesis.sha256
        except ObjectNotFound:
            proven = False
        if not proven:
            error.advice = (f"nothing there says of which archive it is a copy: {_ELSEWHERE}",)
            raise error
        if not self._full:
            raise damaged(self._copy, error) from error
        newest = max(self._keys(layout.RANGE, self._to), default="")
        text = "" if not newest else self._to.get(newest).decode(errors="replace")
        if newest:
            self._range(newest, text.encode())
        made = replace(mine, range=text)
        if not self._dry_run:
            self._to.put(layout.COPY, made.to_json())
        self._count(len(made.to_json()), mended=True)
        return made

    def _again(self) -> None:
        """``genesis.json`` and the range of a copy that was begun, where they are lost: both are in other objects."""
        if not self._keys(layout.GENESIS, self._to):
            self._documents([layout.GENESIS], self._same_genesis, known=True)
        of = read_copy_of(self._to)
        said = "" if of is None else of.range or ""
        key = layout.range_key(strict.integer(strict.loads(said.encode())["number"])) if said else ""
        newest = max(self._keys(layout.RANGE, self._to), default="")
        if newest > key:  # a run was killed between the two
            self._note_range(self._to.get(newest), newest)
        elif said:
            there = self._to.get(newest) if newest == key else None
            if there == said.encode():
                return
            self._range(key, said.encode())
            if there is not None and not self._full:
                self._range(key, there)
                raise self._another(key)
            if not self._dry_run:
                self._to.put(key, said.encode())
            self._count(len(said.encode()), mended=True)

    def _note_range(self, data: bytes, key: str = "") -> None:
        """Let ``copy.json`` have the range of the copy; ``data``: of its document, b'' = everything from genesis on."""
        if key:
            self._range(key, data)
        of = read_copy_of(self._to)
        if of is not None and not self._dry_run:
            self._to.put(layout.COPY, replace(of, range=data.decode()).to_json())

    def _joint(self) -> tuple[Tso, str]:
        """Where the copy ends, and the digest that the next window hangs on; BadManifest where that is not ours."""
        kept = self._kept
        try:
            last, own = self._copy.last(), self._copy.range()
        except BadManifest as error:
            raise damaged(self._copy, error) from error
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
                        hint="put them back from the copy: the objects under windows/, segments/, ddl/ and packs/, "
                        "then HEAD",
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
        # What the first moment needs: the base, the windows up to it, and one window at least, by which the end shows.
        upto = genesis.ts if kept.base is None else kept.base.ts
        first = [key for key in keys if layout.window_start(key) < upto] or ([] if kept.base is None else keys[:1])
        end, digest = self._windows(first, kept.start, kept.window, bases)
        self._put(layout.HEAD, Head.of(genesis).to_json())
        of = None if self._dry_run else read_copy_of(self._to)
        if of is not None and of.range is None:  # else another run has begun it meanwhile
            data = self._from.get(kept.key) if kept.number else b""
            if kept.number:
                self._documents([kept.key], self._range)
            self._note_range(data)
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
            if known and (not self._full or self._has_another(base)):
                continue
            segments = [each for table in base.tables for each in table.segments]
            lacking = segments if self._full else [each for each in segments if there.get(each.key) != each.bytes]
            self._objects(f"base {show(base.ts)}", lacking, known=known)
            if base.objects:
                self._documents([base.objects_key], partial(_of_base, base), known=known)
            self._documents([base.key], partial(self._base, base), known=known)
            there |= {each.key: each.bytes for each in segments}
            self._done.bases += not known

    def _has_another(self, base: Base) -> bool:
        """Whether the copy has a sound base of its own there: the archive has folded that moment again since."""
        try:
            data = self._to.get(base.key)
            found = Base.from_json(base.key, data, cluster_id=self._copy.cluster_id, genesis=self._genesis.sha256)
        except (ObjectNotFound, CorruptionError):
            return False
        return found.sha256 != base.sha256

    def _schema(self, end: Tso) -> None:
        """The newest stored schema: it is derived, and a copy without it reads on, only more slowly.

        One that the copy has stays, whatever the archive has made of its windows since.
        """
        try:
            ts = newest_schema(self._archive, end)
            if ts is None or parts_key(ts) in self._keys(layout.SCHEMA, self._to):
                return
            found = SchemaParts.from_json(parts_key(ts), self._from.get(parts_key(ts)))
            files = [file for part in found.parts for file in part.files]
            self._objects("schema", [DdlEntry(key=f.key, sha256=f.sha256, bytes=f.bytes, jobs=0) for f in files])
            self._documents([parts_key(ts)], SchemaParts.from_json)
        except BinlogError as error:
            log.warning("schema_not_copied", why=error.message)

    def _index(self) -> None:
        """The copy's own index of its windows: with it they are held against a listing without being read."""
        try:
            while extend_index(self._copy) is not None:
                pass
        except BinlogError as error:  # nothing depends on it
            log.warning("index_not_extended", why=error.message)

    def _marks(self) -> None:
        """What is marked in the archive is marked in the copy: it may have to take the archive's place."""
        own = self._copy.range()
        if own.marks == self._kept.marks:
            return
        moved = own.next(who=default_who(), at_ms=int(self._clock.now() * 1000), marks=self._kept.marks)
        data = moved.to_json()
        try:
            self._to.put_if_absent(moved.key, data)
        except ObjectExists:  # another run does the same
            return
        self._count(len(data), mended=False)
        self._note_range(data)

    def _read_only_here(self, bases: Sequence[Base]) -> None:
        """Read what the copy has and the archive has let go of; BadSegment and BadManifest name what is lost."""
        own, ours, bad = self._copy.range(), {base.sha256 for base in bases}, list[str]()
        keys = [
            key
            for key in self._keys(layout.WINDOWS, self._to)
            if own.start <= layout.window_start(key) < self._kept.start
        ]
        end, digest = own.start, own.window
        entries: list[Entry] = [each for each in own.ddl if each not in self._kept.ddl]
        for base in self._copy.bases(MAX_TSO):
            if base.sha256 not in ours:
                entries += [each for table in base.tables for each in table.segments]
                if base.objects:
                    _of_base(base, base.objects_key, self._to.get(base.objects_key))
        genesis_gone = self._kept.base is not None and self._kept.base.begun != self._genesis.ts
        if genesis_gone and (own.base is None or own.base.begun == self._genesis.ts):
            entries += [each for table in self._genesis.base or () for each in table.segments]
        for at in range(0, len(keys) or 1, _WINDOWS):
            for data, key in zip(self._pool.map(self._to.get, some := keys[at : at + _WINDOWS]), some, strict=True):
                manifest = Manifest.from_json(key, data)
                check_link(manifest, cluster_id=self._copy.cluster_id, end=end, digest=digest)
                end, digest = manifest.end, manifest.sha256
                entries += _named(manifest)
            bad += [why for why in self._pool.map(self._why_bad, entries) if why]
            entries = []
            self._tick("read what only the copy has", at + len(some), len(keys))
        if bad:
            more = f"; and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
            raise BadSegment(
                f"of what the copy at {self._copy.url} alone has {len(bad)} objects are damaged or lost: "
                f"{'; '.join(bad[:_SHOWN])}{more}",
                hint="the archive has let go of them: only another copy, or a version that the store has kept, can "
                "bring them back",
                path=bad[0].split()[0], offset=0, reason="sha256",
            )  # fmt: skip

    def _why_bad(self, entry: Entry) -> str:
        try:
            with fetched(self._to, entry, in_memory=_IN_MEMORY_BYTES):
                return ""
        except BadSegment as error:
            return error.message

    def _mend(self, keys: Sequence[str]) -> None:
        """Hold what the copy should have against the archive, from what readers need first."""
        self._documents([layout.GENESIS], self._same_genesis, known=True)
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
            self._to.put(layout.HEAD, Head.of(self._newest_there(own)).to_json())

    def _newest_there(self, own: Range) -> Genesis | Manifest:
        """The end of the chain in the copy, where HEAD does not say it."""
        end, digest, last = own.start, own.window, None
        for key in self._keys(layout.WINDOWS, self._to):
            if layout.window_start(key) >= own.start:
                last = Manifest.from_json(key, self._to.get(key))
                check_link(last, cluster_id=self._copy.cluster_id, end=end, digest=digest)
                end, digest = last.end, last.sha256
        return last or self._genesis

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
            seldom = entry.key.startswith(layout.BASE)
            with fetched(self._from, entry, in_memory=0 if seldom else _IN_MEMORY_BYTES) as found:
                if isinstance(found, Path):
                    self._to.put_file(entry.key, found, move=True, seldom=seldom)
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
        if found is None:
            self._put_absent(key, data)
            return len(data), known
        # One document of each name: what parses there is somebody's, whatever it says.
        if _is_sound(_sound_genesis if key == layout.GENESIS else check, key, found):
            raise self._another(key)
        if not self._full:
            why = f"{key} is damaged"
            raise damaged(self._copy, BadManifest(why, path=key, offset=0, reason="sha256"))
        if not self._dry_run:
            self._to.put(key, data)
        return len(data), True

    def _put(self, key: str, data: bytes) -> None:
        """Put a document once; ManifestConflict where another one is there. HEAD may be further."""
        if self._put_absent(key, data):
            self._count(len(data), mended=False)

    def _put_absent(self, key: str, data: bytes) -> bool:
        if self._dry_run:
            return True
        try:
            self._to.put_if_absent(key, data)
        except ObjectExists:
            if key != layout.HEAD and self._to.get(key) != data:
                raise self._another(key) from None
            return False
        return True

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


def _sound_genesis(key: str, data: bytes) -> Genesis:
    return Genesis.from_json(key, data)


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
