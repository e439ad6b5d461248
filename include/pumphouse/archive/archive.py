"""One archive: genesis, the chain of windows, and what they hold.

The truth is the manifests; everything else is found from them. Nothing here writes except `publish`, which makes a
window visible, and `write_head`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import numpy as np
import pyarrow as pa
import structlog

from pumphouse import advice
from pumphouse.archive import layout
from pumphouse.archive.base import Base, require_named
from pumphouse.archive.ddl import ArchivedJob, read_jobs
from pumphouse.archive.document import LISTS_ALL
from pumphouse.archive.genesis import Genesis
from pumphouse.archive.gone import why_gone
from pumphouse.archive.head import Head, missing_head
from pumphouse.archive.index import REMEDY, Run, read_runs, runs_in
from pumphouse.archive.manifest import Manifest, SegmentEntry, check_chain, check_link
from pumphouse.archive.packs import PackedStore
from pumphouse.archive.publish import put_once
from pumphouse.archive.range import Range, expired_jobs, read_range
from pumphouse.archive.segment import COLUMNS, read_segment
from pumphouse.archive.windows import Ints, Windows, joined
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import BadManifest, BadSegment, BinlogError, ConfigError, ManifestConflict, ObjectNotFound
from pumphouse.model.tso import MAX_TSO, Tso, show
from pumphouse.objectstore.base import ObjectStore
from pumphouse.objectstore.open import open_store
from pumphouse.settings import ArchiveSettings

log = structlog.get_logger()

_READERS = 8
_AT_ONCE = 64  # manifests
_REMEMBERED = 16 << 20  # bytes of manifests
_PACKED, _PART = 1_000, 8 << 20  # windows, and bytes of their columns, that are packed together


def clusters_at(settings: ArchiveSettings) -> list[int]:
    """Ids of the clusters that have an archive under the root, ascending."""
    return sorted(int(name) for name in open_store(settings).folders() if name.isdecimal())


class Archive:
    """The archive of one cluster in one store. Holds no state but a cache of objects that never change."""

    def __init__(self, store: ObjectStore, cluster_id: int, *, archive_id: str = "main") -> None:
        self.store = PackedStore(store, f"{cluster_id}/")
        self.cluster_id = cluster_id
        self.archive_id = archive_id
        self._genesis: Genesis | None = None
        self._manifests: dict[str, Manifest] = {}
        self._remembered = 0  # bytes of these
        self._index = True

    @classmethod
    def open(cls, settings: ArchiveSettings, cluster_id: int) -> Self:
        """The archive of a cluster where the settings say that it lies."""
        return cls(open_store(settings), cluster_id, archive_id=settings.archive_id)

    @classmethod
    def alone(cls, settings: ArchiveSettings) -> Self:
        """The archive that lies where the settings say, whatever became of its cluster.

        ConfigError where there is none, and where there are several and ``archive.cluster_id`` names none of them.
        """
        found = clusters_at(settings)
        chosen = [each for each in found if settings.cluster_id in (0, each)]
        if len(chosen) == 1:
            return cls.open(settings, chosen[0])
        store = open_store(settings)
        if not found:
            above, _, last = store.url.rpartition("/")
            inside = last.isdecimal() and any(store.list(layout.GENESIS))
            raise ConfigError(
                f"there is no archive at {store.url}",
                hint=f"it is that of cluster {last} itself: give the folder above it, {above}"
                if inside
                else "is archive.root right? It is the folder that holds one folder for each cluster, named by its id",
                missing=True,
            )
        told = cls.told(settings, found)
        raise ConfigError(
            f"there is no archive of cluster {settings.cluster_id} at {store.url}; there are: {told}"
            if settings.cluster_id
            else f"{len(found)} clusters have archives at {store.url}: {told}",
            hint=f"choose one: archive.cluster_id in the settings, or --set archive.cluster_id={found[0]}",
            clusters=found,
        )

    @classmethod
    def told(cls, settings: ArchiveSettings, clusters: Iterable[int]) -> str:
        """Each cluster's id, and from when to when its archive reaches."""
        said = []
        for cluster_id in clusters:
            try:
                archive = cls.open(settings, cluster_id)
                said.append(f"{cluster_id} ({show(archive.range().start)} to {show(archive.end())})")
            except BinlogError as error:  # it is named all the same
                said.append(f"{cluster_id} ({error.message})")
        return ", ".join(said)

    def by_manifests(self) -> Self:
        """The same without its index: whoever deletes, gives up or proves by what is read takes the manifests' word."""
        found = copy.copy(self)
        vars(found).update(_manifests={}, _remembered=0, _index=False)
        return found

    @property
    def url(self) -> str:
        """Where it lies, without secrets."""
        return self.store.url

    # -- genesis ------------------------------------------------------------------------------------------------

    def genesis(self) -> Genesis:
        """Where the chain begins; ConfigError when the archive was not begun yet, or has another name."""
        if self._genesis is None:
            try:
                data = self.store.get(layout.GENESIS)
            except ObjectNotFound as error:
                rules = "".join(f"; {each}" for each in self.store.losing(layout.GENESIS))
                raise ConfigError(
                    f"there is no archive of cluster {self.cluster_id} at {self.url}{rules}",
                    hint="is archive.root right? `pumphouse archive init` begins an archive, and puts a genesis.json "
                    "that is lost back",
                    missing=True,
                ) from error
            genesis = Genesis.from_json(layout.GENESIS, data)
            if genesis.cluster_id != self.cluster_id:
                raise BadManifest(
                    f"{self.url}/{layout.GENESIS} belongs to cluster {genesis.cluster_id}, not {self.cluster_id}",
                    path=layout.GENESIS,
                    offset=0,
                    reason="cluster",
                )
            if genesis.archive_id != self.archive_id:
                # Under another name it would be a second consumer, which holds the Pumps' GC for ever.
                raise ConfigError(
                    f"the archive at {self.url} is called {genesis.archive_id!r}, not {self.archive_id!r}",
                    hint=f'set archive.archive_id = "{genesis.archive_id}", or give a new archive an archive.root of '
                    "its own",
                    archive_id=genesis.archive_id,
                )
            self._genesis = genesis
        return self._genesis

    def begun(self) -> bool:
        """Whether there is a genesis; ConfigError when it is that of an archive of another name."""
        try:
            self.genesis()
        except ConfigError as error:
            if not error.missing:
                raise
            return False
        return True

    def range(self) -> Range:
        """From when on it is kept, as it is said now; BadManifest where that cannot be read."""
        return read_range(self.store, self.genesis())

    # -- windows ------------------------------------------------------------------------------------------------

    def windows(self, since: Tso | None = None) -> Windows:
        """Windows from the last one that begins at or below ``since`` on (None = all kept), in order; BadManifest.

        So the newest one in any case.

        They are held against each other, against where the archive's range begins, and against HEAD. HEAD is read
        before the windows are listed: one that is published meanwhile is no fault.
        """
        head, named = self.head(), None
        if head is not None and not self._before_range(head):
            self._manifests.pop(head.manifest, None)  # what is remembered is no proof that it is still there
            named = self._named_by(head)
        found = self._linked(since)
        if head is None and len(found):
            raise missing_head(self.url)
        if named is not None and not _has(found, named):
            found = self._linked(since, index=False)
            if not _has(found, named):
                raise BadManifest(
                    f"{layout.HEAD} names {named.key} with the digest {named.sha256}, and the windows that are there "
                    "chain without it", path=layout.HEAD, offset=0, reason="chain",
                )  # fmt: skip
        return found

    def listed(self) -> Windows:
        """Every window that is there, held against genesis and each other, and not against HEAD; BadManifest.

        Every manifest is read. What was cut off behind the last does not show: only for the one who knows the end from
        elsewhere.
        """
        return self._linked(None, index=False)

    def last(self) -> Manifest | None:
        """The newest window, None before the first: from the one that HEAD names along the chain; BadManifest."""
        genesis, head = self.genesis(), self.head()
        if head is None and any(self.store.list(layout.WINDOWS)):
            raise missing_head(self.url)
        kept = self.range()
        at = None if head is None or self._before_range(head) else self._named_by(head)
        if at is not None and at.start < genesis.ts:
            raise BadManifest(f"{at.key} begins before genesis {genesis.ts}", path=at.key, offset=0, reason="genesis")
        end, digest = (kept.start, kept.window) if at is None else (at.end, at.sha256)
        while True:
            try:
                manifest = self._manifest(layout.window_key(end))
            except ObjectNotFound:
                if at is None and kept.start != genesis.ts:  # the newest windows never expire
                    head = Head(manifest=layout.window_key(kept.start), manifest_sha256="")
                    head.check(None)
                return at
            check_link(manifest, cluster_id=self.cluster_id, end=end, digest=digest)
            at, end, digest = manifest, manifest.end, manifest.sha256

    def end(self) -> Tso:
        """Everything with commit ts up to this lies in the archive."""
        last = self.last()
        return self.genesis().ts if last is None else last.end

    def windows_between(self, after: Tso, upto: Tso) -> Windows:
        """Windows that hold commit ts in (after, upto], in order and chained to each other; BadManifest.

        ConfigError when they begin before what is kept or end behind the archive: nothing is cut to fit.
        """
        kept, end = self.range(), self.end()
        if after < kept.start or upto > end:
            raise ConfigError(
                f"the archive covers {show(kept.start)} to {show(end)}, asked for {show(after)} to {show(upto)}"
                f"{kept.aside(after)}",
                hint="pumphouse archive ls",
                have_from=kept.start,
                have_to=end,
            )
        if after >= upto:
            return Windows.of(())
        # What lies before the first of them is not read here; `archive verify` checks the whole chain.
        windows = self._linked(after, upto).between(after, upto)
        if not windows or windows.start > after or windows.end < upto:
            raise BadManifest(
                f"the windows between {after} and {upto} are not all there", path=layout.WINDOWS, offset=0, reason="gap"
            )
        return windows

    def publish(self, manifest: Manifest) -> Manifest:
        """Make a window visible: one conditional put decides between writers. ManifestConflict, UnsafeStore."""
        data = manifest.to_json()
        put_once(
            self.store,
            manifest.key,
            data,
            lambda found: Manifest.from_json(manifest.key, found).attempt == manifest.attempt,
        )
        stored = Manifest.from_json(manifest.key, data)
        self._manifests[stored.key] = stored
        self.write_head(stored)
        return stored

    # -- HEAD ---------------------------------------------------------------------------------------------------

    def head(self) -> Head | None:
        """What HEAD says, None where there is none; BadManifest when it is damaged."""
        try:
            return Head.from_json(self.store.get(layout.HEAD))
        except ObjectNotFound:
            return None

    def write_head(self, newest: Manifest | None) -> None:
        """Let HEAD name the archive's end (None = genesis). It stays where it names a later one: a writer was slow."""
        head, found = Head.of(newest or self.genesis()), self.head()
        if found is None or not found.comes_after(head):
            self.store.put(layout.HEAD, head.to_json())

    # -- content ------------------------------------------------------------------------------------------------

    def segment_batches(
        self,
        manifest: Manifest,
        segment: SegmentEntry,
        *,
        after: Tso | None = None,
        upto: Tso | None = None,
        columns: Sequence[str] = COLUMNS,
    ) -> Iterator[pa.RecordBatch]:
        """Rows of one segment with ``after < commit_ts <= upto`` (the whole window by default), in order.

        The object is held against its digest first; transactions that another Pump's segment brings are left out.
        """
        return read_segment(
            self.store,
            segment,
            after=manifest.start if after is None else max(after, manifest.start),
            upto=manifest.end if upto is None else min(upto, manifest.end),
            columns=columns,
            drop=manifest.dropped(segment.node_id),
        )

    def bases(self, upto: Tso) -> list[Base]:
        """Later bases that are kept, exact from a moment at or below ``upto`` on, in order of it; BadManifest.

        Of two with the same moment a folded one is the one: nothing is laid over it.
        """
        kept, found = self.range(), dict[Tso, Base]()
        for base in self.every_base():
            if base.ts <= upto and kept.has(base) and (base.ts not in found or base.folded is not None):
                found[base.ts] = base
        return [found[ts] for ts in sorted(found)]

    def every_base(self) -> list[Base]:
        """All that lie there, kept or not, in order of their moments; BadManifest."""
        genesis, found = self.genesis(), []
        for key in layout.base_documents(each.key for each in self.store.list(layout.BASE)):
            try:
                data = self.store.get(key)
            except ObjectNotFound:  # it expired since it was listed
                continue
            found.append(Base.from_json(key, data, cluster_id=self.cluster_id, genesis=genesis.sha256))
        return sorted(found, key=lambda base: base.ts)

    def publish_base(self, base: Base, *, begun: str, clock: Clock = SYSTEM_CLOCK) -> Base:
        """Make a base visible, or the one of that name that another run has put: read back.

        Args:
            base: of a dump or a fold.
            begun: key of the `BaseBegun` that whoever makes it put before it saw that what it takes from earlier ones
                is kept: an expiry keeps that for it. The range is read afterwards, because an expiry may have crossed
                it all the same.
            clock: for tests.

        Raises:
            ManifestConflict: it was given up, or what it needs expired, meanwhile. It is not seen then.
            BadSegment: what it names is not there any more. It is withdrawn then.
            UnsafeStore: the store honours no conditional puts.
        """
        what = "dump" if base.folded is None else "fold"
        again = "begin anew: pumphouse archive " + ("dump" if base.folded is None else "base")
        try:
            self.store.size(begun)
        except ObjectNotFound as error:
            why = f"{self.url}/{begun} is not there any more: the {what} was given up while it was made"
            raise ManifestConflict(why, hint=again, key=begun) from error
        genesis = self.genesis().sha256
        data = base.to_json(cluster_id=self.cluster_id, genesis=genesis)
        try:
            put_once(self.store, base.key, data, lambda found: found == data, clock=clock)
        except ManifestConflict:
            data = self.store.get(base.key)
        found, kept = Base.from_json(base.key, data, cluster_id=self.cluster_id, genesis=genesis), self.range()
        if not kept.has(found):
            why = f"what the {what} begun at {show(base.begun)} needs expired while it was made: {kept.told()}"
            raise ManifestConflict(why, hint=again, key=base.key)
        try:
            require_named(self.store, found)  # it may have been deleted before the base named it
        except BadSegment:
            self.store.delete(found.key)
            raise
        return found

    def jobs(self, windows: Windows, after: Tso, upto: Tso) -> list[ArchivedJob]:
        """DDL binlogs of these windows with commit ts in (after, upto] and their jobs, in commit order."""
        found: list[ArchivedJob] = []
        for each in windows.ddls():
            found.extend(read_jobs(self.store, each))
        return sorted(
            (each for each in found if after < each.commit_ts <= upto), key=lambda each: (each.commit_ts, each.start_ts)
        )

    def past_jobs(self, windows: Windows) -> list[ArchivedJob]:
        """DDL binlogs of the windows that were before these and are gone, in commit order.

        The range may have moved since the windows were read: what they have themselves is left out.
        """
        kept = self.range()
        return expired_jobs(self.store, kept, windows.start if windows else kept.start)

    # -- reading ------------------------------------------------------------------------------------------------

    def _manifest(self, key: str) -> Manifest:
        found = self._manifests.get(key)
        if found is None:
            data = self.store.get(key)
            found = Manifest.from_json(key, data)
            if self._remembered > _REMEMBERED:
                self._manifests.clear()
                self._remembered = 0
            self._manifests[key] = found
            self._remembered += len(data)
        return found

    def read(self, keys: Sequence[str]) -> list[Manifest]:
        """Manifests by their keys; BadManifest, ObjectNotFound."""
        if len(keys) < 2:
            return [self._manifest(key) for key in keys]
        with ThreadPoolExecutor(_READERS) as pool:
            return list(pool.map(self._manifest, keys))

    def read_named(self, wanted: Sequence[tuple[Tso, str]]) -> list[Manifest]:
        """Manifests that have these digests; BadManifest, ObjectNotFound."""
        try:
            found = self.read([layout.window_key(start) for start, _ in wanted])
        except ObjectNotFound as error:
            self._tell_gone(error, str(error.facts.get("key")).removeprefix(f"{self.cluster_id}/"))
            raise
        for manifest, (_, digest) in zip(found, wanted, strict=True):
            if manifest.sha256 != digest:
                raise BadManifest(
                    f"{manifest.key} has the digest {manifest.sha256}, and what follows it names {digest}",
                    hint=LISTS_ALL, path=manifest.key, offset=0, reason="chain",
                )  # fmt: skip
        return found

    def _linked(self, since: Tso | None, upto: Tso = MAX_TSO, *, index: bool = True) -> Windows:
        """The windows from the one that begins at or below ``since`` on; the chain from there on is checked.

        Where one is missing the range may have moved above it meanwhile: then they are what is kept by now.
        """
        runs, kept = runs_in(self.store) if index and self._index else [], self.range()
        try:
            return self._kept(kept, runs, since, upto)
        except (BadManifest, ObjectNotFound) as error:
            now = self.range()
            if now.start != kept.start:
                return self._kept(now, (), since, upto)
            if error.facts.get("reason") == "gap":
                self._tell_gone(error, str(error.facts["path"]))
            raise

    def _kept(self, kept: Range, runs: Sequence[Run], since: Tso | None, upto: Tso) -> Windows:
        """The windows whose manifests are listed, from runs of the index as far as these have them.

        A run counts where it holds exactly the windows that are listed, hangs on what lies before it, and the manifest
        behind it hangs on it (`read_runs`). Otherwise the manifests are read in its place.
        """
        low = kept.start if since is None else max(since, kept.start)
        starts = self._starts(kept.start)
        number = max(int(np.searchsorted(starts, low, side="right")) - 1, 0)  # of the next window
        # What lies before the first one is not read: then whatever it hangs on is right.
        at, digest = kept.start, None if number else kept.window
        parts: list[Windows] = []

        def add(some: Windows) -> None:
            nonlocal at, digest
            if some:
                parts.append(some)
                at, digest = some.end, some.digest

        runs = _ending_at(starts, [run for run in runs if run.end > kept.start])
        for run in read_runs(self.store, runs, self.genesis(), self.read, self.read_named, since=low, upto=upto):
            some = run.between(kept.start, run.end)
            begins, ends = (int(np.searchsorted(starts, ts)) for ts in (some.start, run.end))
            if not np.array_equal(some.starts, starts[begins:ends]):
                _left_out(run, "its windows are not those whose manifests are listed")
                continue
            if ends <= number:
                continue
            if begins > number:
                add(self._from_manifests(starts[number:begins], at, digest))
                number = begins
            some = some[number - begins :]
            if digest in (None, some.previous):
                add(some)
                number = ends
            else:
                _left_out(run, "it does not hang on the windows before it")
        add(self._from_manifests(starts[number : int(np.searchsorted(starts, upto))], at, digest))
        return joined(parts, kept.window, self.read_named)

    def _starts(self, start: Tso) -> Ints:
        """Where the windows from ``start`` on begin whose manifests are listed."""
        listed = self.store.list(layout.WINDOWS, after=layout.before_window(start))
        return np.fromiter((layout.window_start(each.key) for each in listed), np.int64)

    def _from_manifests(self, starts: Ints, at: Tso, digest: str | None) -> Windows:
        """Windows that begin there.

        The first one begins at ``at`` and hangs on ``digest``; None = on whatever it says, wherever it begins.
        """
        parts: list[Windows] = []
        fresh: list[Windows] = []  # not packed yet
        for begin in range(0, len(starts), _AT_ONCE):
            some = starts[begin : begin + _AT_ONCE].tolist()
            manifests = self.read([layout.window_key(Tso(start)) for start in some])
            if digest is None:
                at, digest = manifests[0].start, manifests[0].previous
            check_chain(manifests, cluster_id=self.cluster_id, start=at, digest=digest)
            at, digest = manifests[-1].end, manifests[-1].sha256
            fresh.append(joined([Windows.of(manifests)], digest, self.read_named))  # which does not hold on to them
            if len(fresh) * _AT_ONCE >= _PACKED or sum(each.nbytes for each in fresh) >= _PART:
                parts.append(joined(fresh, digest, self.read_named).packed())
                fresh.clear()
        return joined([*parts, *fresh], digest or "", self.read_named)

    def _tell_gone(self, error: BinlogError, key: str) -> None:
        why, hint = why_gone(self.store, key)
        error.message += f"; {why}" if why else ""
        error.advice = error.advice or advice.hint_of(hint)

    def _before_range(self, head: Head) -> bool:
        """Whether HEAD names what was before the range: a writer was slow, and the windows from there on say more."""
        start = self.genesis().ts if head.manifest == layout.GENESIS else layout.window_start(head.manifest)
        return start < self.range().start

    def _named_by(self, head: Head) -> Manifest | None:
        """The manifest that HEAD names, held against it; None = genesis."""
        if head.manifest == layout.GENESIS:
            head.check(self.genesis())
            return None
        try:
            manifest = self._manifest(head.manifest)
        except ObjectNotFound:
            manifest = None
        head.check(manifest)
        return manifest


def _has(windows: Windows, named: Manifest) -> bool:
    """Whether a window is one of these; one that lies before them is not asked for."""
    before = bool(windows) and named.start < windows.start
    return before or windows.digest_at(named.end) == named.sha256


def _ending_at(starts: Ints, runs: Sequence[Run]) -> list[Run]:
    """Runs that end where a window begins: no run has the newest ones."""
    there = np.isin([int(run.end) for run in runs], starts).tolist()
    for run, has in zip(runs, there, strict=True):
        if not has:
            log.warning("index_run_left_out", key=run.key, why="no window begins where it ends", hint=REMEDY)
    return [run for run, has in zip(runs, there, strict=True) if has]


def _left_out(windows: Windows, why: str) -> None:
    log.warning("index_run_left_out", start=int(windows.start), end=int(windows.end), why=why, hint=REMEDY)
