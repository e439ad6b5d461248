"""Windows side by side as columns: what plans ask of very many windows, without an object for each (row A6).

A row says of a window what plans need of its manifest. Whoever needs more asks for the manifest itself: it is
read then, and held against the digest that the row has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, Self, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pumphouse.archive.manifest import DdlEntry, Manifest, SegmentEntry, TableStat
from pumphouse.model.tso import Tso

Ints = npt.NDArray[np.int64]

_OPTIONAL = ("ddl", "binlog_skipped")


def _required(columns: list[tuple[str, pa.DataType]]) -> list[pa.Field]:
    return [pa.field(name, of, nullable=name in _OPTIONAL) for name, of in columns]


_TABLE = pa.struct(_required([("table_id", pa.int64()), ("rows", pa.int64()), ("bytes", pa.int64())]))
_SEGMENT = pa.struct(
    _required(
        [
            ("node_id", pa.string()),
            ("key", pa.string()),
            ("sha256", pa.string()),
            ("bytes", pa.int64()),
            ("payload_bytes", pa.int64()),
            ("rows", pa.int64()),
            ("changes", pa.int64()),
            ("ddls", pa.int64()),
            ("min_commit_ts", pa.int64()),
            ("max_commit_ts", pa.int64()),
            ("tables", pa.list_(pa.field("element", _TABLE, nullable=False))),
        ]
    )
)
_DDL = pa.struct(
    _required([("key", pa.string()), ("sha256", pa.string()), ("bytes", pa.int64()), ("jobs", pa.int64())])
)
SCHEMA = pa.schema(
    _required(
        [
            ("start", pa.int64()),
            ("end", pa.int64()),
            ("sha256", pa.string()),
            ("segments", pa.list_(pa.field("element", _SEGMENT, nullable=False))),
            ("ddl", _DDL),
            ("declared", pa.int64()),
            ("accepted", pa.int64()),
            ("duplicates", pa.int64()),
            ("unsynced", pa.list_(pa.field("element", pa.string(), nullable=False))),
            ("binlog_skipped", pa.bool_()),
        ]
    )
)
_BOUNDS = ("start", "end", "sha256")
_BOUNDS_SCHEMA = pa.schema([SCHEMA.field(name) for name in _BOUNDS])
_NOTES = ("declared", "accepted", "duplicates")
_FIELDS = tuple(each.name for each in _SEGMENT)[:-1]  # of a segment's entry, in its order
_NO_TABLES: dict[int, TableStat] = {}
_AT_ONCE = 64

Reader = Callable[[Sequence[tuple[Tso, str]]], list[Manifest]]


def row_of(manifest: Manifest) -> dict[str, Any]:
    """What the columns say of a window."""
    return {
        "start": int(manifest.start),
        "end": int(manifest.end),
        "sha256": manifest.sha256,
        "segments": [
            {
                **{name: getattr(each, name) for name in _FIELDS},
                "tables": [
                    {"table_id": table_id, "rows": stat.rows, "bytes": stat.bytes}
                    for table_id, stat in sorted(each.tables.items())
                ],
            }
            for each in manifest.segments
        ],
        "ddl": None if manifest.ddl is None else asdict(manifest.ddl),
        "declared": len(manifest.declared),
        "accepted": len(manifest.accepted),
        "duplicates": len(manifest.duplicates),
        "unsynced": list(manifest.unsynced),
        "binlog_skipped": manifest.binlog_skipped,
    }


class Placed(NamedTuple):
    """A segment and its window. The figures by table are left out; ``manifest``: where that says more of it."""

    start: Tso
    end: Tso
    segment: SegmentEntry
    manifest: Manifest | None


class Changed(NamedTuple):
    """What segments have of tables, an item for each of both; the bounds are the segments'."""

    table_id: Ints
    rows: Ints
    bytes: Ints
    min_commit_ts: Ints
    max_commit_ts: Ints


class Read(NamedTuple):
    """What a plan reads, by window."""

    segments: Ints
    payload_bytes: Ints
    changes: Ints


class Totals(NamedTuple):
    """Sums over windows."""

    segments: int
    rows: int
    changes: int
    bytes: int
    payload_bytes: int
    ddls: int
    declared: int
    accepted: int
    duplicates: int


class Part(NamedTuple):
    """Rows of windows side by side: of a table, or of the Parquet bytes of one, which are read when they are asked for.

    ``first``, ``length``: which rows.
    """

    rows: pa.Table | bytes
    first: int
    length: int

    def read(self, *columns: str) -> pa.RecordBatch:
        """These columns."""
        found = _columns_of(self.rows, columns).slice(self.first, self.length).combine_chunks()
        return found.to_batches()[0]


class Windows(Sequence[Manifest]):
    """Windows that chain to each other. Of each one its bounds and its digest are in memory.

    Args:
        parts: the rows, of `SCHEMA`.
        bounds: start, end and digest of each.
        previous: digest of what the first one hangs on.
        read: reads manifests by start and digest.
    """

    __slots__ = ("_read", "bounds", "ends", "parts", "previous", "starts")

    def __init__(self, parts: Sequence[Part], bounds: pa.Table, previous: str, read: Reader) -> None:
        self.parts, self.bounds, self.previous, self._read = tuple(parts), bounds, previous, read
        self.starts: Ints = bounds["start"].to_numpy()
        self.ends: Ints = bounds["end"].to_numpy()

    @classmethod
    def of(cls, manifests: Iterable[Manifest]) -> Self:
        """Of manifests that are at hand."""
        found = {each.start: each for each in manifests}
        table = pa.Table.from_pylist([row_of(each) for each in found.values()], SCHEMA)
        previous = next((each.previous for each in found.values()), "")
        return cls.held(table, previous, lambda wanted: [found[start] for start, _ in wanted])

    @classmethod
    def held(cls, rows: pa.Table | bytes, previous: str, read: Reader) -> Self:
        """Of their rows."""
        bounds = _columns_of(rows, _BOUNDS)
        return cls([Part(rows, 0, bounds.num_rows)], bounds.replace_schema_metadata(), previous, read)

    def _batches(self, *columns: str) -> Iterator[pa.RecordBatch]:
        return (part.read(*columns) for part in self.parts if part.length)

    @property
    def nbytes(self) -> int:
        """Bytes of the columns in memory."""
        return sum(len(part.rows) if isinstance(part.rows, bytes) else int(part.rows.nbytes) for part in self.parts)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Everything that is said of each."""
        for batch in self._batches(*SCHEMA.names):
            yield from batch.to_pylist()

    def table(self) -> pa.Table:
        """All of it."""
        return pa.Table.from_batches([*self._batches(*SCHEMA.names)], SCHEMA).combine_chunks()

    def packed(self) -> Windows:
        """The same in less memory."""
        sink = pa.BufferOutputStream()
        pq.write_table(self.table(), sink, compression="zstd")
        rows = sink.getvalue().to_pybytes()
        return Windows([Part(rows, 0, len(self))], self.bounds, self.previous, self._read)

    # -- as a sequence ------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, at: int) -> Manifest: ...

    @overload
    def __getitem__(self, at: slice) -> Windows: ...

    def __getitem__(self, at: int | slice) -> Manifest | Windows:
        if isinstance(at, slice):
            begin, end, step = at.indices(len(self))
            if step != 1:
                raise ValueError("windows stay side by side")
            return self._slice(begin, max(begin, end))
        at = range(len(self))[at]
        return self._read([(Tso(int(self.starts[at])), self.bounds["sha256"][at].as_py())])[0]

    def __iter__(self) -> Iterator[Manifest]:
        """Every manifest; some are read at once, and none is kept."""
        for begin in range(0, len(self), _AT_ONCE):
            some = self.bounds.slice(begin, _AT_ONCE)
            starts, digests = some["start"].to_pylist(), some["sha256"].to_pylist()
            yield from self._read(list(zip(starts, digests, strict=True)))

    def _slice(self, begin: int, end: int) -> Windows:
        hangs_on = self.bounds["sha256"][begin - 1].as_py() if 0 < begin <= len(self) else self.previous
        parts, at = [], 0
        for rows, first, count in self.parts:
            low, high = max(begin - at, 0), min(end - at, count)
            if low < high:
                parts.append(Part(rows, first + low, high - low))
            at += count
        return Windows(parts, self.bounds.slice(begin, end - begin), hangs_on, self._read)

    # -- where they lie -----------------------------------------------------------------------------------------

    @property
    def start(self) -> Tso:
        """Where the first one begins."""
        return Tso(int(self.starts[0]))

    @property
    def end(self) -> Tso:
        """Where the last one ends."""
        return Tso(int(self.ends[-1]))

    @property
    def last(self) -> Manifest | None:
        """The newest one; None where there is none."""
        return self[-1] if len(self) else None

    @property
    def digest(self) -> str:
        """Of the last one's manifest; where there is none, of what the first would hang on."""
        return str(self.bounds["sha256"][len(self) - 1].as_py()) if len(self) else self.previous

    def between(self, after: Tso, upto: Tso) -> Windows:
        """Those that hold commit ts in (after, upto]."""
        begin = int(np.searchsorted(self.ends, after, side="right"))
        return self._slice(begin, max(begin, int(np.searchsorted(self.starts, upto, side="left"))))

    def ended(self, upto: Tso) -> Windows:
        """Those that end at ``upto`` or before."""
        return self[: int(np.searchsorted(self.ends, upto, side="right"))]

    def since(self, ts: Tso) -> Windows:
        """From the last one that begins at or below ``ts`` on; all of them where none does."""
        return self[max(int(np.searchsorted(self.starts, ts, side="right")) - 1, 0) :]

    def beginning(self, ts: Tso) -> int | None:
        """Number of the one that begins there."""
        at = int(np.searchsorted(self.starts, ts))
        return at if at < len(self) and self.starts[at] == ts else None

    def digest_at(self, end: Tso) -> str | None:
        """Digest of the manifest of the window that ends there; None = none does."""
        at = int(np.searchsorted(self.ends, end))
        return self.bounds["sha256"][at].as_py() if at < len(self) and self.ends[at] == end else None

    def digests(self) -> Iterator[str]:
        """Of each manifest, in order."""
        for chunk in self.bounds["sha256"].chunks:
            yield from chunk.to_pylist()

    # -- what they have -----------------------------------------------------------------------------------------

    def ddls(self) -> Iterator[DdlEntry]:
        """Objects with DDL jobs, in order."""
        for batch in self._batches("ddl"):
            for each in batch["ddl"].drop_null().to_pylist():
                yield DdlEntry(**each)

    def totals(self) -> Totals:
        """Sums of all."""
        sums = dict.fromkeys(Totals._fields, 0)
        for batch in self._batches("segments", "ddl", *_NOTES):
            segments = batch["segments"].flatten()
            sums["segments"] += len(segments)
            for name in ("rows", "changes", "bytes", "payload_bytes"):
                sums[name] += _sum(segments.field(name))
            sums["ddls"] += _sum(batch["ddl"].drop_null().field("jobs"))
            for name in _NOTES:
                sums[name] += _sum(batch[name])
        return Totals(**sums)

    def noted(self) -> Iterator[Manifest]:
        """Manifests with a declared loss or a commit that was accepted."""
        for batch in self._batches("start", "sha256", *_NOTES):
            has = pc.or_(*(pc.greater(batch[name], 0) for name in ("declared", "accepted")))
            some = batch.filter(has)
            if some.num_rows:
                yield from self._read(list(zip(some["start"].to_pylist(), some["sha256"].to_pylist(), strict=True)))

    def unsynced(self) -> set[str]:
        """Pumps that ran without fsync."""
        return {
            each for batch in self._batches("unsynced") for each in batch["unsynced"].flatten().unique().to_pylist()
        }

    def skipped(self) -> Iterator[tuple[Tso, Tso]]:
        """(start, end] of windows in which TiDB said that it skips binlogs."""
        for batch in self._batches("start", "end", "binlog_skipped"):
            some = batch.filter(batch["binlog_skipped"])
            yield from zip(some["start"].to_pylist(), some["end"].to_pylist(), strict=True)

    # -- segments -----------------------------------------------------------------------------------------------

    def placed(self, tables: Collection[int] | None = None) -> Iterator[Placed]:
        """Segments, in order; with changes under one of these ids; None = all."""
        for batch in self._batches("start", "end", "sha256", "segments", *_NOTES):
            keep = _keeping(batch, tables)
            if not keep.size:
                continue
            at = _owners(batch)[keep]
            noted = np.any([batch[name].to_numpy() > 0 for name in _NOTES], axis=0)
            some = batch.select(["start", "sha256"]).take(pa.array(np.intersect1d(np.flatnonzero(noted), at)))
            read = self._read(list(zip(some["start"].to_pylist(), some["sha256"].to_pylist(), strict=True)))
            manifests = {each.start: each for each in read}
            segments = batch["segments"].flatten().take(pa.array(keep))
            columns = [segments.field(name).to_pylist() for name in _FIELDS]
            starts, ends = (batch[name].to_numpy()[at].tolist() for name in ("start", "end"))
            for start, end, values in zip(starts, ends, zip(*columns, strict=True), strict=True):
                entry = SegmentEntry(**dict(zip(_FIELDS, values, strict=True)), tables=_NO_TABLES)
                yield Placed(start, end, entry, manifests.get(start))

    def read_of(self, after: Tso, upto: Tso, tables: Collection[int] | None = None) -> Read:
        """What of each window's segments has changes with after < commit ts <= upto; under one of these ids."""
        found = [np.zeros((3, 0), np.int64)]
        for batch in self._batches("segments"):
            segments, keep = batch["segments"].flatten(), _keeping(batch, tables)
            size, changes, low, high = (
                segments.field(name).to_numpy()[keep]
                for name in ("payload_bytes", "changes", "min_commit_ts", "max_commit_ts")
            )
            inside = (changes > 0) & (high > after) & (low <= upto)
            sums = np.zeros((3, batch.num_rows), np.int64)
            for into, values in zip(sums, (np.ones_like(size), size, changes), strict=True):
                np.add.at(into, _owners(batch)[keep][inside], values[inside])
            found.append(sums)
        return Read(*np.concatenate(found, axis=1))

    def names(self) -> Iterator[tuple[str, int]]:
        """Key and bytes of every segment."""
        for batch in self._batches("segments"):
            segments = batch["segments"].flatten()
            yield from zip(segments.field("key").to_pylist(), segments.field("bytes").to_pylist(), strict=True)

    def table_ids(self, tables: Collection[int] | None = None) -> frozenset[int]:
        """Ids under which segments have changes; of those that have some under one of ``tables``."""
        found: set[int] = set()
        for batch in self._batches("segments"):
            keep = _keeping(batch, tables)
            stats = batch["segments"].flatten().field("tables").take(pa.array(keep)).flatten()
            found.update(stats.field("table_id").unique().to_pylist())
        return frozenset(found)

    def stats(self) -> dict[int, TableStat]:
        """Row changes of each table, and their bytes."""
        rows: dict[int, int] = {}
        size: dict[int, int] = {}
        for each in self.changed():
            for values, into in ((each.rows, rows), (each.bytes, size)):
                for table_id, value in _summed(each.table_id, values):
                    into[table_id] = into.get(table_id, 0) + value
        return {table_id: TableStat(rows=rows[table_id], bytes=size[table_id]) for table_id in rows}

    def newest(self) -> dict[int, Tso]:
        """Of each table that changes the largest commit ts of a segment that it changes in."""
        found: dict[int, Tso] = {}
        for each in self.changed():
            order = np.argsort(each.max_commit_ts, kind="stable")
            for table_id, ts in dict(
                zip(each.table_id[order].tolist(), each.max_commit_ts[order].tolist(), strict=True)
            ).items():
                found[table_id] = Tso(max(ts, found.get(table_id, 0)))
        return found

    def payload_sizes(self, tables: Collection[int] | None = None) -> Ints:
        """Payload bytes of each window, in segments with changes under one of these ids."""
        found = [np.zeros(0, np.int64)]
        for batch in self._batches("segments"):
            keep, sizes = _keeping(batch, tables), batch["segments"].flatten().field("payload_bytes").to_numpy()
            sums = np.zeros(batch.num_rows, np.int64)
            np.add.at(sums, _owners(batch)[keep], sizes[keep])
            found.append(sums)
        return np.concatenate(found)

    def changed(self) -> Iterator[Changed]:
        """What each segment has of each table, some windows at a time."""
        for batch in self._batches("segments"):
            segments = batch["segments"].flatten()
            stats = segments.field("tables").flatten()
            owner = np.repeat(np.arange(len(segments)), _lengths(segments.field("tables")))
            of_tables = (stats.field(name).to_numpy() for name in ("table_id", "rows", "bytes"))
            bounds = (segments.field(name).to_numpy()[owner] for name in ("min_commit_ts", "max_commit_ts"))
            yield Changed(*of_tables, *bounds)


def _columns_of(rows: pa.Table | bytes, columns: Sequence[str]) -> pa.Table:
    if not isinstance(rows, bytes):
        return rows.select(columns)
    return pq.ParquetFile(pa.BufferReader(rows)).read(columns=[*columns], use_threads=False)


def joined(some: Sequence[Windows], previous: str, read: Reader) -> Windows:
    """Windows behind each other as one; ``previous``: what they hang on where there are none."""
    bounds = pa.concat_tables([each.bounds for each in some]) if some else _BOUNDS_SCHEMA.empty_table()
    parts = [part for each in some for part in each.parts]
    return Windows(parts, bounds, some[0].previous if some else previous, read)


def side_by_side(windows: Windows) -> bool:
    """Whether each begins where the one before ends."""
    return bool(np.all(windows.starts < windows.ends)) and np.array_equal(windows.ends[:-1], windows.starts[1:])


def _keeping(batch: pa.RecordBatch, tables: Collection[int] | None) -> Ints:
    """Numbers of the segments that have changes under one of these ids; None = of all."""
    of = batch["segments"].flatten().field("tables")
    if tables is None:
        return np.arange(len(of))
    wanted = np.fromiter(tables, np.int64, len(tables))
    owner = np.repeat(np.arange(len(of)), _lengths(of))
    return np.unique(owner[np.isin(of.flatten().field("table_id").to_numpy(), wanted)])


def _owners(batch: pa.RecordBatch) -> Ints:
    """Of each segment the number of its window."""
    return np.repeat(np.arange(batch.num_rows), _lengths(batch["segments"]))


def _lengths(lists: pa.ListArray) -> Ints:
    found: Ints = pc.list_value_length(lists).to_numpy()
    return found


def _summed(keys: Ints, values: Ints) -> Iterator[tuple[int, int]]:
    unique, at = np.unique(keys, return_inverse=True)
    sums = np.zeros(len(unique), np.int64)
    np.add.at(sums, at, values)
    return zip(unique.tolist(), sums.tolist(), strict=True)


def _sum(column: pa.Array) -> int:
    return int(pc.sum(column).as_py() or 0)
