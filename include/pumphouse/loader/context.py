"""What every worker of one plan needs: its reads of the archive, cut to the plan's bounds, and its tables' history.

Picklable and small. Holds the archive's secret, which travels in a closure or a partition, never in an option, a log or
a plan row.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Self

import pyarrow as pa

from pumphouse.archive.archive import Archive
from pumphouse.archive.base import read_columns_of
from pumphouse.archive.segment import peek_segment, read_segment
from pumphouse.archive.view import ArchiveView
from pumphouse.codec.typed import untyped
from pumphouse.loader.plan import Plan
from pumphouse.loader.work import SegmentPart, Work
from pumphouse.objectstore.base import ObjectStore
from pumphouse.once import once
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.route import NO_ROUTES, Routes
from pumphouse.schema.timeline import Timeline
from pumphouse.settings import ArchiveSettings


@dataclass(frozen=True, kw_only=True)
class LoadContext:
    """Picklable; opens the store and reads the timeline where it is used."""

    archive_settings: ArchiveSettings
    cluster_id: int
    plan: Plan
    packed_timeline: bytes
    lows: Mapping[int, int] = field(default_factory=dict)
    dialect: Dialect = Dialect.MARIADB
    routes: Routes = NO_ROUTES
    doubles: bool = False

    @classmethod
    def of(
        cls,
        work: Work,
        view: ArchiveView,
        settings: ArchiveSettings,
        dialect: Dialect = Dialect.MARIADB,
        routes: Routes = NO_ROUTES,
        *,
        doubles: bool = False,
    ) -> Self:
        """What decoding a plan needs; of the schema's history what its tables need.

        ``doubles``: who gets the rows tells a double of JSON without a fraction from an integer.
        """
        return cls(
            archive_settings=settings,
            cluster_id=view.genesis.cluster_id,
            plan=work.plan,
            packed_timeline=zlib.compress(view.timeline.of_tables(work.tables).to_json(), 1),
            lows=work.lows,
            dialect=dialect,
            routes=routes,
            doubles=doubles,
        )

    @property
    def timeline(self) -> Timeline:
        """The schema timeline of the plan's tables (read once in each process)."""
        return _timeline(self.packed_timeline)

    @once
    def archive(self) -> Archive:
        """The archive, for its store: what is in it says the plan."""
        return Archive.open(self.archive_settings, self.cluster_id)

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if key != "archive"}

    def peek(
        self, piece: SegmentPart, columns: Sequence[str] | None, at: Sequence[float], most: int
    ) -> Iterator[pa.RecordBatch]:
        """Rows from some places of a piece's segment: a sample, held against nothing (`peek_segment`)."""
        found = peek_segment(self.archive.store, piece.segment, columns=columns, at=at, most=most)
        yield from found if piece.table_id is None else map(untyped, found)

    def read(self, piece: SegmentPart, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Binlogs of a piece."""
        yield from read_piece(self.archive.store, piece, columns)

    def read_rows(self, piece: SegmentPart) -> Iterator[pa.RecordBatch]:
        """Rows of a dump's piece of columns."""
        yield from read_columns_of(self.archive.store, piece.segment)


def read_piece(store: ObjectStore, piece: SegmentPart, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Binlogs of a piece, held against the digest that the plan was made with."""
    yield from read_segment(store, piece.segment, after=piece.after, upto=piece.upto, columns=columns, drop=piece.drop)


@lru_cache(maxsize=2)
def _timeline(packed: bytes) -> Timeline:
    return Timeline.from_json(zlib.decompress(packed))
