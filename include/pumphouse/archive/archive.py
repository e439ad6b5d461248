"""One archive: genesis, the chain of windows, and what they hold.

The truth is the manifests; everything else is found from them. Nothing here writes except `publish`, which makes a
window visible, and `write_head`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import pyarrow as pa

from pumphouse.advice import Do, Dump, saying
from pumphouse.archive import layout
from pumphouse.archive.base import Base
from pumphouse.archive.ddl import ArchivedJob, read_jobs
from pumphouse.archive.genesis import Genesis
from pumphouse.archive.gone import why_gone
from pumphouse.archive.head import Head, missing_head
from pumphouse.archive.manifest import Manifest, SegmentEntry, check_chain, check_link
from pumphouse.archive.publish import put_once
from pumphouse.archive.range import Range, expired_jobs, read_range
from pumphouse.archive.segment import COLUMNS, read_segment
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import BadManifest, BinlogError, ConfigError, ManifestConflict, ObjectNotFound
from pumphouse.model.tso import Tso, show
from pumphouse.objectstore.base import ObjectStore
from pumphouse.objectstore.open import open_store
from pumphouse.objectstore.prefix import PrefixStore
from pumphouse.settings import ArchiveSettings

_READERS = 8


def clusters_at(settings: ArchiveSettings) -> list[int]:
    """Ids of the clusters that have an archive under the root, ascending."""
    return sorted(int(name) for name in open_store(settings).folders() if name.isdecimal())


class Archive:
    """The archive of one cluster in one store. Holds no state but a cache of objects that never change."""

    def __init__(self, store: ObjectStore, cluster_id: int, *, archive_id: str = "main") -> None:
        self.store: ObjectStore = PrefixStore(store, f"{cluster_id}/")
        self.cluster_id = cluster_id
        self.archive_id = archive_id
        self._genesis: Genesis | None = None
        self._manifests: dict[str, Manifest] = {}

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
                    hint=saying(
                        "is archive.root right? {} begins an archive, and puts a genesis.json that is lost back",
                        Do.BEGIN_ARCHIVE,
                    ),
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

    def chain(self, since: Tso | None = None) -> list[Manifest]:
        """Windows from the last one that begins at or below ``since`` on (None = all kept), in order; BadManifest.

        So the newest one in any case.

        They are held against each other, against where the archive's range begins, and against HEAD. HEAD is read
        before the windows are listed: one that is published meanwhile is no fault.
        """
        head = self.head()
        keys = self._window_keys()
        if head is None and keys:
            raise missing_head(self.url)
        if head is not None:
            # What this object remembers is no proof that it is still there.
            if head.manifest in {layout.GENESIS, *keys}:
                self._named_by(head)
            elif not self._before_range(head):
                head.check(None)
        return self._linked(keys, since)

    def listed(self) -> list[Manifest]:
        """Every window that is there, held against genesis and each other, and not against HEAD; BadManifest.

        What was cut off behind the last does not show: only for the one who knows the end from elsewhere.
        """
        return self._linked(self._window_keys(), None)

    def last(self) -> Manifest | None:
        """The newest window, None before the first: from the one that HEAD names along the chain; BadManifest."""
        genesis, head = self.genesis(), self.head()
        if head is None and self._window_keys():
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

    def windows_between(self, after: Tso, upto: Tso) -> list[Manifest]:
        """Windows that hold commit ts in (after, upto], in order and chained to each other; BadManifest.

        ConfigError when they begin before what is kept or end behind the archive: nothing is cut to fit.
        """
        kept, end = self.range(), self.end()
        if after < kept.start or upto > end:
            raise ConfigError(
                f"the archive covers {show(kept.start)} to {show(end)}, asked for {show(after)} to {show(upto)}"
                f"{kept.aside(after)}",
                hint=Do.LIST_BASES,
                have_from=kept.start,
                have_to=end,
            )
        if after >= upto:
            return []
        # What lies before the first of them is not read here; `archive verify` checks the whole chain.
        manifests = self._linked([key for key in self._window_keys() if layout.window_start(key) < upto], after)
        manifests = [each for each in manifests if each.end > after]
        if not manifests or manifests[0].start > after or manifests[-1].end < upto:
            raise BadManifest(
                f"the windows between {after} and {upto} are not all there", path=layout.WINDOWS, offset=0, reason="gap"
            )
        return manifests

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
            begun: key of the `BaseBegun` that whoever makes it put before it chose what it takes from earlier ones: an
                expiry keeps that for it. The range is read afterwards, because an expiry may have crossed it all the
                same.
            clock: for tests.

        Raises:
            ManifestConflict: it was given up, or what it needs expired, meanwhile. It is not seen then.
            UnsafeStore: the store honours no conditional puts.
        """
        what = "dump" if base.folded is None else "fold"
        again = ("begin anew: ", Dump() if base.folded is None else Do.FOLD)
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
        return found

    def jobs(self, windows: Iterable[Manifest], after: Tso, upto: Tso) -> list[ArchivedJob]:
        """DDL binlogs of these windows with commit ts in (after, upto] and their jobs, in commit order."""
        found: list[ArchivedJob] = []
        for manifest in windows:
            if manifest.ddl is not None:
                found.extend(read_jobs(self.store, manifest.ddl))
        return sorted(
            (each for each in found if after < each.commit_ts <= upto), key=lambda each: (each.commit_ts, each.start_ts)
        )

    def past_jobs(self, windows: Sequence[Manifest]) -> list[ArchivedJob]:
        """DDL binlogs of the windows that were before these and are gone, in commit order.

        The range may have moved since the windows were read: what they have themselves is left out.
        """
        kept = self.range()
        return expired_jobs(self.store, kept, windows[0].start if windows else kept.start)

    # -- reading ------------------------------------------------------------------------------------------------

    def _manifest(self, key: str) -> Manifest:
        if key not in self._manifests:
            self._manifests[key] = Manifest.from_json(key, self.store.get(key))
        return self._manifests[key]

    def _read(self, keys: Sequence[str]) -> list[Manifest]:
        if len(keys) < 2:
            return [self._manifest(key) for key in keys]
        with ThreadPoolExecutor(_READERS) as pool:
            return list(pool.map(self._manifest, keys))

    def _window_keys(self) -> list[str]:
        return [each.key for each in self.store.list(layout.WINDOWS)]

    def _linked(self, keys: Sequence[str], since: Tso | None) -> list[Manifest]:
        """The windows from the one that begins at or below ``since`` on; the chain from there on is checked.

        Where one is missing the range may have moved above it meanwhile: then they are what is kept by now.
        """
        kept = self.range()
        try:
            return self._kept(kept, keys, since)
        except (BadManifest, ObjectNotFound) as error:
            now = self.range()
            if now.start != kept.start:
                return self._kept(now, keys, since)
            why = why_gone(self.store, str(error.facts["path"]))[0] if error.facts.get("reason") == "gap" else ""
            error.message += f"; {why}" if why else ""
            raise

    def _kept(self, kept: Range, keys: Sequence[str], since: Tso | None) -> list[Manifest]:
        keys = [key for key in keys if layout.window_start(key) >= kept.start]
        starts = [layout.window_start(key) for key in keys]
        first = max((i for i, start in enumerate(starts) if since is not None and start <= since), default=0)
        manifests = self._read(keys[first:])
        start, digest = kept.start, kept.window
        if first and starts[first] != kept.start:
            start, digest = manifests[0].start, manifests[0].previous
        check_chain(manifests, cluster_id=self.cluster_id, start=start, digest=digest)
        return manifests

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
