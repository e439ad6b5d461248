"""``archive compact``: small objects of old windows go into packs (row A5; docs/formats.md, "Pack").

Order: read a run of windows' objects, each against the digest of its manifest; put them as one object; put the document
that names it, by a conditional put; read the pack back as it lies there, and hold each object in it against the
manifests once more; delete what lies by itself and is in the pack as it should be. A run that is killed leaves an
object that no document names, or objects that lie in both places: the next one goes on. Of two at once one puts the
document. Manifests, HEAD and the index stay as they are.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pyarrow as pa
import structlog

from pumphouse.archive import layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.indexing import NEWEST, RUN
from pumphouse.archive.manifest import DdlEntry, Manifest, SegmentEntry
from pumphouse.archive.packs import Block, Member, Pack, packs_of, unpacked
from pumphouse.archive.publish import put_once
from pumphouse.archive.segment import fetched
from pumphouse.archive.windows import Windows
from pumphouse.errors import BinlogError, ManifestConflict
from pumphouse.model.tso import Tso

log = structlog.get_logger()

SMALL_BYTES = 1 << 20  # larger objects stay by themselves
PACK_BYTES = 32 << 20  # of objects in one pack, about
BLOCK_BYTES = 512 << 10  # that are packed together: what is read for one of them
_LEVEL = 9
_AT_ONCE, _TRIES = 8, 3

Tick = Callable[[str, int, int], None]
Entry = SegmentEntry | DdlEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactReport:
    """What was compacted, or would be.

    Args:
        dry_run: nothing was done.
        left: windows behind the packs, the newest ones too, that are in none yet.
        needed: of these for a pack.
        packs: how many were made.
        windows: of these.
        objects: that went into them.
        bytes: theirs.
        packed_bytes: of the packs; 0 where nothing was done.
        deleted: objects that lay by themselves and do not any more, of earlier packs too.
    """

    dry_run: bool
    left: int
    needed: int
    packs: int
    windows: int
    objects: int
    bytes: int
    packed_bytes: int
    deleted: int


def compact(
    archive: Archive,
    *,
    dry_run: bool = False,
    run: int = RUN,
    newest: int = NEWEST,
    tick: Tick = lambda _what, _done, _total: None,
) -> CompactReport:
    """Pack the small objects of windows that are in no pack.

    Args:
        archive: which one; a copy is one, too.
        dry_run: only say what would be packed, or what is missing.
        run: windows of a pack, unless their objects have `PACK_BYTES` before.
        newest: so many windows stay as they are; and so do those that are too few for a pack.
        tick: called with (what, done, total).

    Raises:
        BadManifest, BadSegment: an object is damaged or missing: it, and what is behind it, stays as it is.
        UnsafeStore: the store honours no conditional puts.
    """
    for turn in range(1, _TRIES + 1):
        seen = archive.range().number
        try:
            return _Compaction(archive.by_manifests(), run, newest, tick).run(dry_run=dry_run)
        except BinlogError:
            # An expiry may have deleted what this run was about to read.
            if turn == _TRIES or archive.range().number == seen:
                raise
    raise AssertionError


class _Compaction:
    def __init__(self, archive: Archive, run: int, newest: int, tick: Tick) -> None:
        self._archive, self._store = archive, archive.store
        self._run, self._newest, self._tick = run, newest, tick

    def run(self, *, dry_run: bool) -> CompactReport:
        """Finish what earlier runs have begun, then pack."""
        windows = self._archive.windows()
        alone = {each.key for prefix in (layout.SEGMENTS, layout.DDL) for each in self._store.list(prefix)}
        at, deleted = self._finish(windows, alone, dry_run=dry_run)
        packs = done = objects = size = packed = 0
        behind = windows.between(at, windows.end) if windows else ()
        for manifests in self._runs(behind[: -self._newest or None]):
            entries = small(manifests)
            if len(entries) < 2:
                continue
            packs, done, objects = packs + 1, done + len(manifests), objects + len(entries)
            size += sum(each.bytes for each in entries)
            if dry_run:  # what is missing is said before, too
                for each in entries:
                    if each.key not in alone:
                        self._fetched(each)
            else:
                pack = self._packed(manifests, entries)
                packed += pack.size
                deleted += self._settle(pack, {each.key for each in entries}, manifests)
                log.info("windows_compacted", key=pack.key, objects=len(entries), bytes=pack.size)
        return CompactReport(
            dry_run=dry_run, left=len(behind) - done, needed=self._run + self._newest, packs=packs, windows=done,
            objects=objects, bytes=size, packed_bytes=packed, deleted=deleted,
        )  # fmt: skip

    def _runs(self, windows: Iterable[Manifest]) -> Iterator[list[Manifest]]:
        """Windows of a pack each; what is too little for one is left out."""
        some, size = list[Manifest](), 0
        for manifest in windows:
            some.append(manifest)
            size += sum(each.bytes for each in small([manifest]))
            if len(some) >= self._run or size >= PACK_BYTES:
                yield some
                some, size = [], 0

    def _packed(self, manifests: Sequence[Manifest], entries: Sequence[Entry]) -> Pack:
        """Put a pack, or find that another run has."""
        start, end = manifests[0].start, manifests[-1].end
        key = layout.pack_data(start, end, layout.attempt_id())
        with tempfile.TemporaryDirectory(prefix="pumphouse-pack-") as folder:
            path, digest, blocks = Path(folder, "data"), hashlib.sha256(), list[Block]()
            with path.open("wb") as file:
                for members, raw in self._blocks(entries):
                    data = pa.Codec("zstd", _LEVEL).compress(raw, asbytes=True)
                    blocks.append(Block(len(data), tuple(members)))
                    digest.update(data)
                    file.write(data)
            self._store.put_file(key, path)
        pack = Pack(
            cluster_id=self._archive.cluster_id, start=start, end=end, data=key, digest=digest.hexdigest(),
            blocks=tuple(blocks),
        )  # fmt: skip
        try:
            put_once(self._store, pack.key, pack.to_json(), lambda found: found == pack.to_json())
        except ManifestConflict:
            self._store.delete(key)
            log.info("windows_compacted_by_another", key=pack.key)
            return Pack.from_json(pack.key, self._store.get(pack.key))
        return pack

    def _blocks(self, entries: Sequence[Entry]) -> Iterator[tuple[list[Member], bytes]]:
        members, parts, size = list[Member](), list[bytes](), 0
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="compact") as pool:
            for at in range(0, len(entries), _AT_ONCE):
                some = entries[at : at + _AT_ONCE]
                for entry, data in zip(some, pool.map(self._fetched, some), strict=True):
                    members.append(Member(entry.key, entry.sha256, entry.bytes))
                    parts.append(data)
                    size += len(data)
                    if size >= BLOCK_BYTES:
                        yield members, b"".join(parts)
                        members, parts, size = [], [], 0
                self._tick("packing", at + len(some), len(entries))
        if members:
            yield members, b"".join(parts)

    def _fetched(self, entry: Entry) -> bytes:
        with fetched(self._store, entry) as found:
            return bytes(found)

    # -- what lies in both places

    def _finish(self, windows: Windows, alone: set[str], *, dry_run: bool) -> tuple[Tso, int]:
        """Of packs that earlier runs have put: where the last one ends, and how many objects were deleted."""
        at, deleted = Tso(0), 0
        for pack in packs_of(self._store):
            if windows.digest_at(pack.end) is None:
                continue
            at = max(at, pack.end)
            left = alone & {member.key for member in pack.members}
            if left and not dry_run:
                deleted += self._settle(pack, left, windows.between(pack.start, pack.end))
        return at, deleted

    def _settle(self, pack: Pack, alone: Iterable[str], manifests: Iterable[Manifest]) -> int:
        """Delete what the pack has as the manifests say; it is read back whole before. How many that were.

        Raises:
            BadSegment: the pack is not what its document says; nothing was deleted.
        """
        named = {Member(each.key, each.sha256, each.bytes) for each in small(manifests)}
        held = {member.key for member in unpacked(self._store, pack) if member in named}
        going = sorted(held.intersection(alone))
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="compact") as pool:
            for number, _ in enumerate(pool.map(self._store.delete, going)):
                self._tick("deleting", number + 1, len(going))
        return len(going)


def small(manifests: Iterable[Manifest]) -> list[Entry]:
    """Objects of windows that a pack takes, in order."""
    every: Iterator[Entry] = chain.from_iterable(
        (*manifest.segments, *([] if manifest.ddl is None else [manifest.ddl])) for manifest in manifests
    )
    return [each for each in every if each.bytes < SMALL_BYTES]
