"""Bases: all rows of the source at one moment, where a restore and a first load begin (docs/formats.md, "Base").

Three kinds, one value. The dump of genesis lies in ``genesis.json`` and holds Binlogs of inserts. A later one lies
under ``base/<low>/``, holds typed columns, and is taken while the source is written to: its rows were read after
``low``, so what the log has of each table above the table's own low is laid over them, and from ``ts`` on the result is
exact (the watermark method of DBLog). A folded one (`pumphouse.folding`) is made of an older base and the windows
behind it: it is exact at its ``low``, and names the segments of the older one where nothing changed. ``base.json``, put
last, makes a dump visible, ``folded.json`` a folded base.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq

from pumphouse.archive import layout
from pumphouse.archive.document import dump, parse, sha256
from pumphouse.archive.manifest import SegmentEntry, TableStat
from pumphouse.archive.segment import verified
from pumphouse.errors import BadManifest, BadSegment
from pumphouse.model import strict
from pumphouse.model.record import ASIDE, UNSAID, Int64, Named, Record, Uint64
from pumphouse.model.table import TableInfo
from pumphouse.model.tso import Tso, show
from pumphouse.objectstore.base import ObjectStore

KIND, CHUNK_KIND, BEGUN_KIND = "base", "base chunk", "base begun"
NODE = "base"
_ROW_GROUP_BYTES = 8 << 20
_GIVE_UP = "delete the folder of this unfinished dump, then dump again"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseTable(Record):
    """Rows of one table. ``low``: the log above it counts, and nothing of the table at or below it.

    ``ranks``: where the segments but the first begin, ascending, as ranks of the key's first column
    (`pumphouse.codec.columnar.key_rank`); None = the segments are no ranges of the key.
    """

    db: str
    table: str
    table_id: Int64
    rows: int
    low: Annotated[Tso, UNSAID] = Tso(0)
    ranks: Annotated[tuple[Uint64, ...] | None, UNSAID] = None
    segments: tuple[SegmentEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWithout(Record):
    """A table whose rows a dump lacks, because a rule left it out.

    In the document it is an entry of ``tables`` whose ``rows`` are null: a release that knows none such refuses it.
    """

    db: str
    table: str
    table_id: Int64
    why: str

    @property
    def name(self) -> str:
        """``database.table``."""
        return f"{self.db}.{self.table}"

    def to_dict(self) -> dict[str, Any]:
        """JSON object."""
        return {"db": self.db, "table": self.table, "table_id": self.table_id, "rows": None, "why": self.why}


@dataclass(frozen=True, slots=True, kw_only=True)
class Base(Record):
    """A dump, or a folded base. ``columns``: its segments hold Arrow columns, else Binlogs.

    ``begun`` names it. ``low == ts``: no log is laid over it. ``low`` lies below ``begun`` where a dump took tables
    over from an earlier base. ``without``: what it lacks. ``objects``: digest of what was kept as text with it
    (`pumphouse.archive.objects`); '' = nothing was. ``objects_of``: what names the dump that it was kept with, if
    another. ``folded``: the moment from which on the base is exact that it was
    folded from; None = it is a dump. ``descends``: `since` of the base that rows were taken over from.
    """

    begun: Tso
    low: Tso
    ts: Tso
    tables: tuple[BaseTable, ...]
    columns: Annotated[bool, ASIDE]
    sha256: Annotated[str, ASIDE]
    without: Annotated[tuple[TableWithout, ...], ASIDE] = ()
    objects: Annotated[str, UNSAID, Named("objects_sha256")] = ""
    objects_of: Annotated[Tso | None, UNSAID] = None
    folded: Annotated[Tso | None, UNSAID, Named("folded_ts")] = None
    descends: Annotated[Tso | None, UNSAID, Named("since_ts")] = None

    @property
    def since(self) -> Tso:
        """What the log lacks above it, the base lacks: the low of the dump that the base descends from."""
        return self.low if self.descends is None else self.descends

    @property
    def key(self) -> str:
        """Key of its document."""
        if not self.columns:
            return layout.GENESIS
        return layout.base_document(self.begun) if self.folded is None else layout.folded_document(self.begun)

    @property
    def objects_key(self) -> str:
        """Key of what was kept as text."""
        return layout.base_objects(self.begun if self.objects_of is None else self.objects_of)

    @property
    def keys(self) -> frozenset[str]:
        """Keys of all objects that a restore from it reads: its document, what was kept with it, and its segments.

        Those of a folded base lie in the folders of older ones, too.
        """
        kept = {self.objects_key} if self.objects else set()
        return frozenset({self.key, *kept, *(each.key for table in self.tables for each in table.segments)})

    @property
    def rows(self) -> int:
        """Rows that were read."""
        return sum(table.rows for table in self.tables)

    @property
    def lows(self) -> dict[int, Tso]:
        """Low of each table that has one of its own, by table id."""
        return {table.table_id: table.low for table in self.tables if table.low}

    def to_json(self, *, cluster_id: int, genesis: str) -> bytes:
        """Bytes of ``base.json``; ``genesis``: digest of the archive's."""
        found = self.to_dict()
        found["tables"] += [each.to_dict() for each in self.without]
        return dump(KIND, {"cluster_id": cluster_id, "genesis_sha256": genesis, **found})

    @classmethod
    def from_json(cls, key: str, data: bytes, *, cluster_id: int, genesis: str) -> Base:
        """Read ``base.json``; BadManifest, also when it is another archive's."""

        def read(value: dict[str, Any]) -> tuple[Base, int, str]:
            tables = strict.array(value["tables"])
            whole = {**value, "tables": [each for each in tables if each["rows"] is not None]}
            without = tuple(TableWithout.from_dict(each) for each in tables if each["rows"] is None)
            base = cls.read(whole, columns=True, sha256=sha256(data), without=without)
            return (
                base,
                strict.integer(value["cluster_id"], high=strict.MAX_UINT64),
                strict.text(value["genesis_sha256"]),
            )

        base, of_cluster, of_genesis = parse(key, data, KIND, read)
        if (of_cluster, of_genesis) != (cluster_id, genesis) or key != base.key:
            raise BadManifest(f"{key} is of another archive or another dump", path=key, offset=0, reason="archive")
        if not base.low <= base.begun <= base.ts or any(not base.low <= table.low <= base.ts for table in base.tables):
            raise BadManifest(f"{key} holds a table from beyond its own range", path=key, offset=0, reason="range")
        if base.since > base.low or (base.folded is not None and not base.folded < base.low == base.ts):
            raise BadManifest(f"{key} is exact at no moment of its own", path=key, offset=0, reason="folded")
        for table in base.tables:
            ranged = table.ranks is None or len(table.ranks) == max(len(table.segments) - 1, 0)
            if not ranged or (table.ranks is not None and not all(segment.rows for segment in table.segments)):
                raise BadManifest(
                    f"{key}: segments of {table.db}.{table.table} have no range", path=key, offset=0, reason="ranks"
                )
        return base


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseBegun(Record):
    """A dump that was begun: after ``low``, of the tables with these names (None = of all). Or a fold of ``low``.

    ``over``: the earlier base that the other tables come from, or that is folded, by what names it (its ``begun``).
    ``server``: identity of the server that is read; '' = it is not known, or no matter.
    """

    cluster_id: Uint64
    low: Tso
    tables: tuple[str, ...] | None
    over: Tso | None
    server: str = ""

    @property
    def folds(self) -> bool:
        """Whether it is a fold: a dump that has an earlier one beside it names its tables."""
        return self.tables is None and self.over is not None

    def to_json(self) -> bytes:
        """Bytes as stored."""
        return dump(BEGUN_KIND, self.to_dict())

    @classmethod
    def from_json(cls, key: str, data: bytes) -> BaseBegun:
        """Read the stored object; BadManifest."""
        begun = parse(key, data, BEGUN_KIND, cls.from_dict, remedy=_GIVE_UP)
        folding = layout.is_fold_note(key) and layout.base_low(key) == begun.low
        _require_name(key, key if folding else layout.base_begun(begun.low))
        return begun


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseChunk(Record):
    """A part of one table that a dump under way has read: from the chunk before up to the key ``upto``, inclusive.

    Keys are as the server prints them. ``number`` counts from 0. ``last``: nothing lies behind it, and ``upto`` is
    None. ``segment`` None: no rows.
    """

    db: str
    table: str
    table_id: Int64
    low: Tso
    number: int
    upto: tuple[bytes, ...] | None
    last: bool
    segment: SegmentEntry | None

    @property
    def rows(self) -> int:
        """Rows in it."""
        return 0 if self.segment is None else self.segment.rows

    def to_json(self) -> bytes:
        """Bytes as stored."""
        return dump(CHUNK_KIND, self.to_dict())

    @classmethod
    def from_json(cls, key: str, data: bytes) -> BaseChunk:
        """Read the stored object; BadManifest."""
        chunk = parse(key, data, CHUNK_KIND, cls.from_dict, remedy=_GIVE_UP)
        of = (layout.base_low(key), chunk.db, chunk.table, chunk.table_id, chunk.low)
        names = [layout.chunk_note(layout.chunk_folder(*of, whole=each), chunk.number) for each in (False, True)]
        _require_name(key, key if key in names else names[0])
        return chunk


def _require_name(key: str, name: str) -> None:
    """BadManifest for a document that lies under another one's name."""
    if key != name:
        raise BadManifest(f"{key} belongs to {name}", hint=_GIVE_UP, path=key, offset=0, reason="name")


def require_named(store: ObjectStore, base: Base) -> None:
    """What a base names is there, as large as it says: one listing; BadSegment."""
    sizes = {each.key: each.size for each in store.list(layout.BASE)}
    lacking = [base.objects_key] if base.objects and base.objects_key not in sizes else []
    segments = (each for table in base.tables for each in table.segments)
    lacking += [each.key for each in segments if sizes.get(each.key) != each.bytes]
    if lacking:
        again = f"remove {layout.base_begun(base.begun)} from the archive, then dump anew: pumphouse archive dump"
        raise BadSegment(
            f"{lacking[0]} is not there as the base of {show(base.folded or base.ts)} names it",
            hint=again if base.folded is None else "pumphouse archive verify",
            path=lacking[0], offset=0, reason="missing",
        )  # fmt: skip


def write_columns(
    store: ObjectStore, key: str, info: TableInfo, low: Tso, batches: Sequence[pa.RecordBatch]
) -> SegmentEntry:
    """Store rows of one table as a segment of typed columns; its entry.

    Args:
        store: where to.
        key: name of the object.
        info: the table as the rows have it.
        low: the log above it counts.
        batches: in the loader's form.
    """
    from pumphouse.codec.typed import low_cardinality, typed  # with the kernels: most commands need none

    size = sum(batch.nbytes for batch in batches)
    table = typed(pa.Table.from_batches(batches), {column.id: column for column in info.columns})
    with tempfile.TemporaryDirectory(prefix="pumphouse-base-") as folder:
        path = Path(folder, "rows.parquet")
        group = max(1, int(table.num_rows * _ROW_GROUP_BYTES // max(size, 1)))
        pq.write_table(table, path, compression="zstd", compression_level=1,
                       use_dictionary=low_cardinality(table.schema), row_group_size=group)  # fmt: skip
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        store.put_file(key, path, seldom=True)
        stored = path.stat().st_size
    return SegmentEntry(
        node_id=NODE,
        key=key,
        sha256=digest,
        bytes=stored,
        payload_bytes=size,
        rows=table.num_rows,
        changes=table.num_rows,
        ddls=0,
        min_commit_ts=low,
        max_commit_ts=low,
        tables={info.id: TableStat(rows=table.num_rows, bytes=size)},
    )


def read_columns_of(store: ObjectStore, entry: SegmentEntry) -> Iterator[pa.RecordBatch]:
    """Rows of a segment of columns in the loader's form, held against its digest first; BadSegment.

    About 8 MiB a batch.
    """
    from pumphouse.codec.typed import untyped  # with the kernels, as above

    with verified(store, entry) as source:
        try:
            file = pq.ParquetFile(source, memory_map=False)
            if file.metadata.num_rows != entry.rows:
                raise BadSegment(
                    f"{entry.key} has {file.metadata.num_rows} rows, the base says {entry.rows}",
                    path=entry.key, offset=0, reason="shape",
                )  # fmt: skip
            for number in range(file.metadata.num_row_groups):
                group = file.read_row_group(number, use_threads=False).combine_chunks()
                yield from map(untyped, group.to_batches())
        except (pa.ArrowException, OSError) as error:
            raise BadSegment(
                f"{entry.key} cannot be read: {error}", path=entry.key, offset=0, reason="parquet"
            ) from error
