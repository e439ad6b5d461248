"""What every worker of one plan needs: where the archive is, the plan, the schema timeline. Picklable, small.

Holds the archive's secret: it travels in a closure or a partition, never in an option, a log or a plan row.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import pyarrow as pa

from include.archive.archive import Archive
from include.archive.layout import window_key
from include.archive.manifest import Manifest, SegmentEntry
from include.errors import BadManifest, BadSegment
from include.loader.plan import Mode, Plan
from include.model.tso import Tso
from include.objectstore.open import open_store
from include.schema.timeline import Timeline
from include.settings import ArchiveSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One segment of a plan's range. ``window`` None = of the base snapshot at genesis."""

    window: Tso | None
    digest: str
    key: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class LoadContext:
    """Picklable; opens the store and reads the timeline where it is used."""

    archive_settings: ArchiveSettings
    cluster_id: int
    plan: Plan
    packed_timeline: bytes

    @property
    def timeline(self) -> Timeline:
        """The schema timeline (read once in each process)."""
        return _timeline(self.packed_timeline)

    @cached_property
    def archive(self) -> Archive:
        """The archive."""
        return Archive(open_store(self.archive_settings), self.cluster_id, archive_id=self.archive_settings.archive_id)

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if key != "archive"}

    def read(self, piece: Piece, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Binlogs of a piece that lie in the plan's range, verified against the digests in the plan's manifests."""
        if piece.window is None:
            yield from self.archive.base_batches(self._base_segment(piece), columns=columns)
            return
        manifest = Manifest.from_json(window_key(piece.window), self.archive.store.get(window_key(piece.window)))
        if manifest.sha256 != piece.digest:
            raise BadManifest(f"{manifest.key} changed while it was being loaded", path=manifest.key, reason="changed")
        segment = next((s for s in manifest.segments if s.key == piece.key), None)
        if segment is None:
            raise BadSegment(f"{manifest.key} does not name {piece.key}", path=piece.key, reason="not named")
        plan = self.plan
        yield from self.archive.segment_batches(
            manifest,
            segment,
            after=Tso(max(plan.from_ts, manifest.start)),
            upto=Tso(min(plan.to_ts, manifest.end)),
            columns=columns,
        )

    def _base_segment(self, piece: Piece) -> SegmentEntry:
        for table in self.archive.genesis().base or ():
            for segment in table.segments:
                if segment.key == piece.key:
                    return segment
        raise BadSegment(f"genesis does not name {piece.key}", path=piece.key, reason="not named")


@lru_cache(maxsize=2)
def _timeline(packed: bytes) -> Timeline:
    return Timeline.from_json(zlib.decompress(packed))


def pack(timeline: Timeline) -> bytes:
    """For `LoadContext.packed_timeline`."""
    return zlib.compress(timeline.to_json(), 1)


def pieces_of(archive: Archive, plan: Plan) -> list[Piece]:
    """Segments that a plan reads: of the base, or of the windows in its range that hold anything of it."""
    if plan.mode is Mode.BASE:
        genesis = archive.genesis()
        return [
            Piece(window=None, digest=genesis.sha256, key=segment.key, bytes=segment.payload_bytes)
            for table in genesis.base or ()
            for segment in table.segments
            if segment.rows
        ]
    return [
        Piece(window=manifest.start, digest=manifest.sha256, key=segment.key, bytes=segment.payload_bytes)
        for manifest in archive.windows_between(plan.from_ts, plan.to_ts)
        for segment in manifest.segments
        if segment.changes and segment.max_commit_ts > plan.from_ts and segment.min_commit_ts <= plan.to_ts
    ]
