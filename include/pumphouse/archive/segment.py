"""Segments: Parquet objects with transactions in order (commit_ts, start_ts, part) (docs/formats.md, "Segment").

A row is a transaction, or a part of one that is too large for one cell: each part is a valid Binlog of its own with a
fragment of the PrewriteValue. Batches in, batches out; no Python object per row.
"""

from __future__ import annotations

import hashlib
import io
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pumphouse.archive.gone import why_gone
from pumphouse.archive.manifest import DdlEntry, Duplicate, SegmentEntry, TableStat
from pumphouse.archive.parts import split_payload
from pumphouse.archive.stats import table_stats
from pumphouse.errors import BadBinlog, BadSegment, ObjectNotFound
from pumphouse.model.tso import Tso
from pumphouse.objectstore.base import ObjectStore

MIB = 1 << 20
# A row group is what a reader holds at once; a segment is what a Spark task reads and what one digest covers.
ROW_GROUP_BYTES = 8 * MIB
SEGMENT_BYTES = 64 * MIB
# Larger objects are checked and read from a local file, not from memory.
_IN_MEMORY_BYTES = 256 * MIB

SCHEMA = pa.schema(
    [
        pa.field("commit_ts", pa.int64(), nullable=False),
        pa.field("start_ts", pa.int64(), nullable=False),
        pa.field("part", pa.int32(), nullable=False),
        pa.field("parts", pa.int32(), nullable=False),
        pa.field("ddl_job_id", pa.int64(), nullable=False),
        pa.field("ddl_query", pa.large_binary(), nullable=True),
        pa.field("payload", pa.large_binary(), nullable=False),
    ],
    metadata={b"pumphouse.kind": b"segment", b"pumphouse.format_version": b"1"},
)
COLUMNS = tuple(SCHEMA.names)


class SegmentWriter:
    """Writes the rows of one Pump, in order, into as many segments as their size asks for.

    ``with SegmentWriter(…) as writer: writer.add(batch) …; entries = writer.finish()``. A batch has the columns
    commit_ts, start_ts, ddl_job_id, payload and, where it has DDLs, ddl_query.

    A payload whose rows cannot be read is a BadBinlog; with ``raw`` it is written as it is and named in ``unreadable``.
    """

    def __init__(
        self,
        store: ObjectStore,
        key_of: Callable[[int], str],
        node_id: str,
        *,
        part_bytes: int = 64 * MIB,
        raw: bool = False,
    ) -> None:
        self._store = store
        self._key_of = key_of
        self._node_id = node_id
        self._part_bytes = part_bytes
        self._raw = raw
        self._folder = tempfile.TemporaryDirectory(prefix="pumphouse-segment-")
        self._entries: list[SegmentEntry] = []
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._file: _OpenSegment | None = None
        self._last = 0
        self.unreadable: dict[tuple[int, int], str] = {}  # (start ts, commit ts) -> why, of what was written raw

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.abandon()
        self._folder.cleanup()

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the next rows; BadSegment when they are below the ones before."""
        self._check_order(batch)
        for piece in self._cut(batch):
            self._append(piece)

    def add_rows(self, batch: pa.RecordBatch) -> None:
        """Take rows of another segment as they are, parts included."""
        self._check_order(batch)
        self._append(batch.cast(SCHEMA))

    def finish(self) -> list[SegmentEntry]:
        """Upload what is left; the entries of all segments."""
        self._flush()
        self._close()
        return self._entries

    def _cut(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The batch in the segment's columns, large payloads in parts, pieces of about a row group."""
        if batch.num_rows == 0:
            return
        payload = batch.column("payload").cast(pa.large_binary())
        sizes = lengths(payload)
        batch = _conform(batch, payload)
        # A piece ends before a payload that is too large for one cell, and when it is a row group's worth.
        at = 0
        while at < batch.num_rows:
            if sizes[at] > self._part_bytes:
                yield from _parts_of(batch.slice(at, 1), self._part_bytes)
                at += 1
                continue
            large = np.flatnonzero(sizes[at:] > self._part_bytes)
            stop = at + int(large[0]) if large.size else batch.num_rows
            full = int(np.searchsorted(np.cumsum(sizes[at:stop]), ROW_GROUP_BYTES)) + 1
            stop = min(stop, at + full)
            yield batch.slice(at, stop - at)
            at = stop

    def _append(self, piece: pa.RecordBatch) -> None:
        self._pending.append(piece)
        self._pending_bytes += piece.column("payload").nbytes
        if self._pending_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _check_order(self, batch: pa.RecordBatch) -> None:
        ts = np.concatenate([[self._last], batch.column("commit_ts").to_numpy()])
        back = np.flatnonzero(np.diff(ts) < 0)
        if back.size:
            raise BadSegment(
                f"binlogs of {self._node_id} came out of order: {ts[back[0] + 1]} after {ts[back[0]]}",
                path=self._node_id,
                offset=0,
                reason="order",
            )
        self._last = int(ts[-1])

    def _flush(self) -> None:
        if not self._pending:
            return
        group = pa.Table.from_batches(self._pending, SCHEMA).combine_chunks()
        self._pending, self._pending_bytes = [], 0
        if self._file is None:
            path = Path(self._folder.name, f"{len(self._entries)}.parquet")
            self._file = _OpenSegment(path, self._node_id)
        for row, why in self._file.write(group).items():
            if not self._raw:
                raise BadBinlog(f"a payload of {self._node_id} cannot be read: {why}")
            self.unreadable[group.column("start_ts")[row].as_py(), group.column("commit_ts")[row].as_py()] = why
        if self._file.payload_bytes >= SEGMENT_BYTES:
            self._close()

    def _close(self) -> None:
        if self._file is None:
            return
        segment, self._file = self._file, None
        entry = segment.close(self._key_of(len(self._entries)))
        self._store.put_file(entry.key, segment.path)
        segment.path.unlink()
        self._entries.append(entry)


class _OpenSegment:
    """A Parquet file that is being written, and what its manifest entry will say."""

    def __init__(self, path: Path, node_id: str) -> None:
        self.path = path
        self.payload_bytes = 0
        self._node_id = node_id
        self._rows = self._changes = self._ddls = 0
        self._min: int | None = None
        self._max = 0
        self._tables: dict[int, TableStat] = {}
        self._writer = pq.ParquetWriter(
            path,
            SCHEMA,
            compression="zstd",
            compression_level=1,
            use_dictionary=False,
            # Statistics of payloads would copy whole transactions into the footer.
            write_statistics=["commit_ts", "start_ts", "ddl_job_id"],
            column_encoding={"commit_ts": "DELTA_BINARY_PACKED", "start_ts": "DELTA_BINARY_PACKED"},
        )

    def write(self, group: pa.Table) -> dict[int, str]:
        """One row group; why a payload in it cannot be read, by its row."""
        commit_ts = group.column("commit_ts").to_numpy()
        payload = group.column("payload").combine_chunks()
        payload = payload.chunk(0) if isinstance(payload, pa.ChunkedArray) else payload
        changes, tables, unreadable = table_stats(payload)
        for table_id, stat in tables.items():
            have = self._tables.get(table_id, TableStat(rows=0, bytes=0))
            self._tables[table_id] = TableStat(rows=have.rows + stat.rows, bytes=have.bytes + stat.bytes)
        self._rows += group.num_rows
        self._changes += changes
        self._ddls += int(np.count_nonzero(group.column("ddl_job_id").to_numpy() > 0))
        self.payload_bytes += int(lengths(payload).sum())
        self._min = int(commit_ts[0]) if self._min is None else self._min
        self._max = int(commit_ts[-1])
        self._writer.write_table(group, row_group_size=max(group.num_rows, 1))
        return unreadable

    def close(self, key: str) -> SegmentEntry:
        """Finish the file."""
        self._writer.close()
        with self.path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return SegmentEntry(
            node_id=self._node_id,
            key=key,
            sha256=digest,
            bytes=self.path.stat().st_size,
            payload_bytes=self.payload_bytes,
            rows=self._rows,
            changes=self._changes,
            ddls=self._ddls,
            min_commit_ts=Tso(self._min or 0),
            max_commit_ts=Tso(self._max),
            tables=self._tables,
        )

    def abandon(self) -> None:
        """Give the file up after an error."""
        self._writer.close()


def read_segment(
    store: ObjectStore,
    entry: SegmentEntry,
    *,
    after: Tso,
    upto: Tso,
    columns: Sequence[str] = COLUMNS,
    drop: Sequence[Duplicate] = (),
) -> Iterator[pa.RecordBatch]:
    """Rows of a segment with ``after < commit_ts <= upto``, in order, those in ``drop`` left out.

    The whole object is held against the digest of the manifest before anything of it is given out. BadSegment names
    the object; a batch is a row group (about 8 MiB of payload, one transaction part at least).
    """
    if entry.min_commit_ts > upto or entry.max_commit_ts <= after:
        return
    with verified(store, entry) as source:
        yield from _rows(source, entry, after=after, upto=upto, columns=columns, drop=drop)


def _rows(
    source: Any,
    entry: SegmentEntry,
    *,
    after: Tso,
    upto: Tso,
    columns: Sequence[str] = COLUMNS,
    drop: Sequence[Duplicate] = (),
) -> Iterator[pa.RecordBatch]:
    wanted = list(columns)
    needed = wanted + [name for name in ("commit_ts", "start_ts") if name not in wanted]
    try:
        file = pq.ParquetFile(source, memory_map=False)
        if file.metadata.num_rows != entry.rows or file.schema_arrow.names != list(COLUMNS):
            raise BadSegment(
                f"{entry.key} has {file.metadata.num_rows} rows of {file.schema_arrow.names}, the manifest says "
                f"{entry.rows}",
                path=entry.key, offset=0, reason="shape",
            )  # fmt: skip
        for number in range(file.metadata.num_row_groups):
            if _outside(file.metadata.row_group(number), after, upto):
                continue
            group = file.read_row_group(number, columns=needed, use_threads=False)  # ddl.py says why
            keep = _keep(group, after, upto, drop)
            if keep is not None:
                group = group.filter(pa.array(keep))
            for batch in group.select(wanted).combine_chunks().to_batches():
                if batch.num_rows:
                    yield batch
    except (pa.ArrowException, OSError) as error:
        raise BadSegment(f"{entry.key} cannot be read: {error}", path=entry.key, offset=0, reason="parquet") from error


Reader = Callable[..., Iterator[pa.RecordBatch]]  # as read_segment of a store


@contextmanager
def read_nearby(store: ObjectStore) -> Iterator[Reader]:
    """``read_segment``, which fetches a segment at its first use alone: its file stays on this disk until the end."""
    with ExitStack() as opened:
        sources: dict[str, Any] = {}

        def read(entry: SegmentEntry, **which: Any) -> Iterator[pa.RecordBatch]:
            if entry.key not in sources:
                sources[entry.key] = opened.enter_context(verified(store, entry, in_memory=0))
            return _rows(sources[entry.key], entry, **which)

        yield read


def peek_segment(
    store: ObjectStore, entry: SegmentEntry, *, columns: Sequence[str] | None, at: Sequence[float], most: int
) -> Iterator[pa.RecordBatch]:
    """Rows from some places of a segment, read by themselves: for estimates alone, as no digest holds them.

    Args:
        store: where it is.
        entry: the segment.
        columns: which; None = all.
        at: each place, from 0 (its begin) to 1; those in one row group are one.
        most: bytes, about, that are wanted from the begin of each place's row group; whole pages are read.
    """
    try:
        with io.BufferedReader(_Ranges(store, entry), 64 << 10) as source:
            file = pq.ParquetFile(source, buffer_size=min(most, ROW_GROUP_BYTES), pre_buffer=False)
            count = file.metadata.num_row_groups
            for number in sorted({min(int(place * count), count - 1) for place in at if count}):
                group = file.metadata.row_group(number)
                rows = max(1, group.num_rows * most // max(group.total_byte_size, 1))
                wanted = None if columns is None else list(columns)
                yield from islice(file.iter_batches(rows, [number], wanted, use_threads=False), 1)
    except (pa.ArrowException, OSError, ValueError, ObjectNotFound) as error:
        raise BadSegment(f"{entry.key} cannot be read: {error}", path=entry.key, offset=0, reason="parquet") from error


class _Ranges(io.RawIOBase):
    """An object as a file of which only what is read is fetched."""

    def __init__(self, store: ObjectStore, entry: SegmentEntry) -> None:
        super().__init__()
        self._store = store
        self._entry = entry
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = offset + (0, self._at, self._entry.bytes)[whence]
        return self._at

    def readinto(self, into: Any, /) -> int:
        data = self._store.get_range(self._entry.key, self._at, min(len(into), self._entry.bytes - self._at))
        into[: len(data)] = data
        self._at += len(data)
        return len(data)


def read_columns(store: ObjectStore, entry: SegmentEntry, columns: Sequence[str]) -> pa.Table:
    """A few columns of a whole segment, after its digest was found right; BadSegment."""
    with verified(store, entry) as source:
        try:
            return pq.ParquetFile(source, memory_map=False).read(columns=list(columns), use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise BadSegment(
                f"{entry.key} cannot be read: {error}", path=entry.key, offset=0, reason="parquet"
            ) from error


def lengths(array: pa.LargeBinaryArray) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Bytes of each value."""
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int64)
    return np.diff(offsets[array.offset : array.offset + len(array) + 1])


class fetched:  # noqa: N801 -- a context manager that reads as a phrase
    """The object's bytes, or a file where they are many, after their digest was found right; BadSegment."""

    def __init__(
        self, store: ObjectStore, entry: SegmentEntry | DdlEntry, *, in_memory: int = _IN_MEMORY_BYTES
    ) -> None:
        self._store = store
        self._entry = entry
        self._in_memory = in_memory
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Any:
        entry = self._entry
        try:
            if entry.bytes <= self._in_memory:
                data = self._store.get(entry.key)
                self._check(len(data), hashlib.sha256(data).hexdigest())
                return data
            self._folder = tempfile.TemporaryDirectory(prefix="pumphouse-segment-")
            path = Path(self._folder.name, "segment.parquet")
            self._store.get_file(entry.key, path)
            with path.open("rb") as file:
                self._check(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())
            return path  # noqa: TRY300
        except ObjectNotFound as error:
            self.__exit__()
            why, hint = why_gone(self._store, entry.key)
            raise BadSegment(
                f"{entry.key} is named by the manifest and is not there{f'; {why}' if why else ''}",
                hint=hint, path=entry.key, offset=0, reason="missing",
            ) from error  # fmt: skip
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *exc: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def _check(self, size: int, digest: str) -> None:
        entry = self._entry
        if size != entry.bytes:
            raise BadSegment(
                f"{entry.key} has {size} bytes, the manifest says {entry.bytes}",
                path=entry.key, offset=min(size, entry.bytes), reason="size",
            )  # fmt: skip
        if digest != entry.sha256:
            raise BadSegment(
                f"{entry.key} has the digest {digest}, the manifest says {entry.sha256}",
                path=entry.key, offset=0, reason="sha256",
            )  # fmt: skip


class verified(fetched):  # noqa: N801 -- as above
    """The same as an Arrow source."""

    def __enter__(self) -> Any:
        found = super().__enter__()
        return pa.memory_map(str(found)) if isinstance(found, Path) else pa.BufferReader(pa.py_buffer(found))


def _conform(batch: pa.RecordBatch, payload: pa.LargeBinaryArray) -> pa.RecordBatch:
    count = batch.num_rows
    query = (
        batch.column("ddl_query").cast(pa.large_binary())
        if "ddl_query" in batch.schema.names
        else pa.nulls(count, pa.large_binary())
    )
    columns = [
        batch.column("commit_ts"),
        batch.column("start_ts"),
        pa.array(np.zeros(count, np.int32)),
        pa.array(np.ones(count, np.int32)),
        batch.column("ddl_job_id"),
        query,
        payload,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _parts_of(row: pa.RecordBatch, part_bytes: int) -> Iterator[pa.RecordBatch]:
    if table_stats(row.column("payload")).unreadable:
        yield row  # as it is: what cannot be read cannot be cut
        return
    parts = split_payload(row.column("payload")[0].as_buffer(), part_bytes)
    for number, part in enumerate(parts):
        columns = [row.column(i) for i in range(row.num_columns)]
        columns[2] = pa.array([number], pa.int32())
        columns[3] = pa.array([len(parts)], pa.int32())
        columns[6] = pa.array([part], pa.large_binary())
        yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _outside(group: Any, after: Tso, upto: Tso) -> bool:
    stats = group.column(0).statistics
    return stats is not None and stats.has_min_max and (stats.min > upto or stats.max <= after)


def _keep(
    group: pa.Table, after: Tso, upto: Tso, drop: Sequence[Duplicate]
) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    """Mask of the rows to give out; None = all."""
    commit_ts = group.column("commit_ts").to_numpy()
    keep = (commit_ts > after) & (commit_ts <= upto)
    if drop:
        twice = np.flatnonzero(np.isin(commit_ts, np.array([int(each.commit_ts) for each in drop])))
        if twice.size:
            pairs = {(int(each.start_ts), int(each.commit_ts)) for each in drop}
            start_ts = group.column("start_ts").to_numpy()
            for row in twice:
                if (int(start_ts[row]), int(commit_ts[row])) in pairs:
                    keep[row] = False
    return None if keep.all() else keep
