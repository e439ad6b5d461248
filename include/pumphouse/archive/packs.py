"""Packs: small objects of old windows in one object, found by who asks for them by name (docs/formats.md, "Pack").

Manifests name segments and DDL jobs as ever, by key and digest. A pack holds the bytes of some, as they were, so
whatever reads them, a moment inside of it too, reads the same and holds it against the same digests. `PackedStore` is
the one place that knows where an object lies: whoever has an archive has one. An object that lies by itself may be
deleted when a pack has it, and not before (`pumphouse.archive.compact`).
"""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from pumphouse.archive import layout
from pumphouse.archive.document import dump, parse, sha256
from pumphouse.errors import BadManifest, BadSegment, ObjectNotFound
from pumphouse.model.record import Record, Uint64
from pumphouse.model.tso import Tso
from pumphouse.objectstore.base import ObjectStore
from pumphouse.objectstore.prefix import PrefixStore

KIND = "pack"
# What to do about `lost_documents`.
PUT_BACK = "put the .json back, from a backup of the bucket or a version that the store has kept"
_CODEC = "zstd"
_MOST_BYTES = 64 << 20  # of a block, packed or not, that is believed
_PACKS = 16  # whose objects a store remembers
_BLOCKS = 32  # that are held unpacked; of `compact.BLOCK_BYTES` each, or of one object


@dataclass(frozen=True, slots=True)
class Member(Record):
    """An object in a pack, as a manifest names it."""

    key: str
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Block(Record):
    """Objects that are packed together; ``size``: bytes of the block in the pack."""

    size: int
    members: tuple[Member, ...]

    @property
    def raw_bytes(self) -> int:
        """Unpacked."""
        return sum(each.bytes for each in self.members)

    def unpacked(self, key: str, data: bytes) -> Iterator[tuple[Member, bytes]]:
        """Its objects; BadSegment where one is not what was packed. ``key``: of the pack's data."""
        try:
            raw = pa.decompress(data, self.raw_bytes, codec=_CODEC, asbytes=True) if len(data) == self.size else b""
        except (pa.ArrowException, OSError, ValueError):
            raw = b""
        at = 0
        for each in self.members:
            found, at = raw[at : at + each.bytes], at + each.bytes
            if sha256(found) != each.sha256:
                raise BadSegment(
                    f"{key} is damaged: {each.key} in it is not what was packed",
                    hint=f"put {each.key} back from a copy of the archive; pumphouse archive verify lists all of them",
                    path=key, offset=0, reason="sha256",
                )  # fmt: skip
            yield each, found


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack(Record):
    """Small objects of the windows from ``start`` to ``end``.

    Args:
        cluster_id: of the archive.
        start: of the first window.
        end: of the last one.
        data: key of the object that has the blocks, one behind the other.
        digest: of its bytes.
        blocks: what it has.
    """

    cluster_id: Uint64
    start: Tso
    end: Tso
    data: str
    digest: str
    blocks: tuple[Block, ...]

    @property
    def key(self) -> str:
        """Of the document, which makes the pack count."""
        return layout.pack_key(self.start, self.end)

    @property
    def size(self) -> int:
        """Bytes of its data."""
        return sum(each.size for each in self.blocks)

    @property
    def members(self) -> Iterator[Member]:
        """All objects in it."""
        return (member for block in self.blocks for member in block.members)

    def to_json(self) -> bytes:
        """The document."""
        return dump(KIND, self.to_dict())

    @classmethod
    def from_json(cls, key: str, data: bytes) -> Pack:
        """Read it; BadManifest."""
        pack = parse(key, data, KIND, cls.from_dict)
        if pack.key != key or layout.pack_range(pack.data) != (pack.start, pack.end):
            raise BadManifest(f"{key} is the document of {pack.key}", path=key, offset=0, reason="name")
        if any(max(block.size, block.raw_bytes) > _MOST_BYTES for block in pack.blocks):
            raise BadManifest(f"{key} has a block of more than {_MOST_BYTES} bytes", path=key, offset=0, reason="size")
        for each in pack.members:  # or a pack could stand for any object
            if not pack.start <= (layout.folder_start(each.key) or -1) < pack.end:
                what = f"{key} has {each.key}, which is no object of its windows"
                raise BadManifest(what, path=key, offset=0, reason="name")
        return pack


def packs_of(store: ObjectStore, keys: Iterable[str] | None = None) -> Iterator[Pack]:
    """All packs, or those of these documents, one after the other; what expires meanwhile is left out. BadManifest."""
    for key in (each.key for each in store.list(layout.PACKS)) if keys is None else keys:
        if key.endswith(".json"):
            with suppress(ObjectNotFound):
                yield Pack.from_json(key, store.get(key))


def lost_documents(store: ObjectStore, missing: Iterable[str]) -> dict[str, str]:
    """Key -> what it is, of each document that is not there and may name objects that are missing: its data is there.

    Data alone says nothing: a compaction that was killed leaves it, and all objects lie by themselves then.
    """
    starts = {layout.folder_start(key) for key in missing} - {None}
    there, found = {each.key for each in store.list(layout.PACKS)} if starts else set[str](), dict[str, str]()
    for data in sorted(there):
        covers = layout.pack_range(data)
        if covers is None or (key := layout.pack_key(*covers)) in there:
            continue
        if any(start is not None and covers[0] <= start < covers[1] for start in starts):
            found[key] = f"the pack {data} lacks its .json, {key}, which says what it has"
    return found


def unpacked(store: ObjectStore, pack: Pack) -> list[Member]:
    """Objects that a pack has, each as its document says: the whole of it was read from the store; BadSegment."""
    with tempfile.TemporaryDirectory(prefix="pumphouse-pack-") as folder:
        path = Path(folder, "data")
        store.get_file(pack.data, path)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != pack.digest:
                raise BadSegment(
                    f"{pack.data} has the digest {digest}, {pack.key} says {pack.digest}",
                    path=pack.data, offset=0, reason="sha256",
                )  # fmt: skip
            file.seek(0)
            return [member for block in pack.blocks for member, _ in block.unpacked(pack.data, file.read(block.size))]


def require_pack(store: ObjectStore, pack: Pack, cluster_id: int, *, deep: bool) -> None:
    """BadManifest, BadSegment or ObjectNotFound unless a pack is this cluster's and has what its document says."""
    if pack.cluster_id != cluster_id:
        raise BadManifest(f"{pack.key} is of cluster {pack.cluster_id}", path=pack.key, offset=0, reason="cluster")
    if (size := store.size(pack.data)) != pack.size:
        what = f"{pack.data} has {size} bytes, {pack.key} says {pack.size}"
        raise BadSegment(what, path=pack.data, offset=min(size, pack.size), reason="size")
    if deep:
        unpacked(store, pack)


class _Place(NamedTuple):
    """Where an object lies in a pack: in which block, that begins where."""

    pack: Pack
    number: int
    offset: int
    member: Member


class PackedStore(PrefixStore):
    """The objects of an archive; those that a pack has are there by their own names, too. `list` leaves these out.

    Safe for threads. A pack that has expired since it was read is forgotten; one that is damaged is passed over where
    the object lies by itself.
    """

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        super().__init__(store, prefix)
        self._lock = threading.Lock()
        self._packs: OrderedDict[str, Pack] = OrderedDict()  # by key, those that were read last
        self._places: dict[str, _Place] = {}
        self._blocks: OrderedDict[tuple[str, int], dict[str, bytes]] = OrderedDict()

    def get(self, key: str) -> bytes:
        """Whole object, wherever it lies; BadSegment where a pack of it is damaged."""
        place, passed, bad = self._places.get(key), set[str](), None
        while True:
            if place is not None:
                try:
                    return self._member(place)
                except ObjectNotFound:
                    pass
                except BadSegment as error:
                    bad = error
                self._forget(place.pack)
                passed.add(place.pack.data)
            try:
                return super().get(key)
            except ObjectNotFound:
                place = self._looked_for(key, passed)
                if place is None and bad is not None:
                    raise bad from None
                if place is None:
                    raise

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Bytes [start, start+length)."""
        if key not in self._places:
            try:
                return super().get_range(key, start, length)
            except ObjectNotFound:
                if self._looked_for(key) is None:
                    raise
        return self.get(key)[start : start + length]

    def size(self, key: str) -> int:
        """Bytes of an object."""
        place = self._places.get(key)
        if place is None:
            try:
                return super().size(key)
            except ObjectNotFound:
                place = self._looked_for(key)
                if place is None:
                    raise
        return place.member.bytes

    def get_file(self, key: str, path: Path) -> None:
        """Download to a local file."""
        if key not in self._places:
            try:
                return super().get_file(key, path)
            except ObjectNotFound:
                if self._looked_for(key) is None:
                    raise
        path.write_bytes(self.get(key))
        return None

    def _looked_for(self, key: str, passed: Container[str] = ()) -> _Place | None:
        """Where a pack has it, of those that came since, too; ``passed``: data that does not have it."""
        start = layout.folder_start(key)
        if start is None:
            return None
        for each in self.list(layout.PACKS):
            covers = layout.pack_range(each.key)
            if covers is not None and covers[0] <= start < covers[1]:
                for pack in packs_of(self, [each.key]):
                    place = None if pack.data in passed else self._learned(pack).get(key)
                    if place is not None:
                        return place
        return None

    def _learned(self, pack: Pack) -> dict[str, _Place]:
        """Where the objects of a pack are, which is remembered from now on; {} where it lacks its data."""
        try:
            if super().size(pack.data) != pack.size:
                return {}
        except ObjectNotFound:
            return {}
        offsets = accumulate((block.size for block in pack.blocks), initial=0)
        places = {
            member.key: _Place(pack, number, offset, member)
            for number, (block, offset) in enumerate(zip(pack.blocks, offsets, strict=False))
            for member in block.members
        }
        with self._lock:
            self._places |= places
            self._packs[pack.key] = pack
            self._packs.move_to_end(pack.key)
            oldest = next(iter(self._packs.values())) if len(self._packs) > _PACKS else None
        if oldest is not None:
            self._forget(oldest)
        return places

    def _forget(self, pack: Pack) -> None:
        with self._lock:
            self._packs.pop(pack.key, None)
            for member in pack.members:
                self._places.pop(member.key, None)

    def _member(self, place: _Place) -> bytes:
        at = place.pack.data, place.number
        with self._lock:
            if at in self._blocks:
                self._blocks.move_to_end(at)
                return self._blocks[at][place.member.key]
        block = place.pack.blocks[place.number]
        data = super().get_range(place.pack.data, place.offset, block.size)
        found = {member.key: part for member, part in block.unpacked(place.pack.data, data)}
        with self._lock:
            self._blocks[at] = found
            while len(self._blocks) > _BLOCKS:
                self._blocks.popitem(last=False)
        return found[place.member.key]
