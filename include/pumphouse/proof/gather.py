"""The archive's rows at a moment, a bucket of a table at a time: decoded once, laid on disk by bucket, then folded.

In memory are the entries that decoders hold (`pumphouse.loader.held`) and one bucket a thread. On disk lies what was
decoded, in a folder that goes with the run.
"""

from __future__ import annotations

import struct
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from pumphouse.loader.context import LoadContext
from pumphouse.loader.decode import Decoder
from pumphouse.loader.fold import ORDER_FIELDS, LastOfKeys, check_keys
from pumphouse.loader.keyless import COUNT
from pumphouse.loader.unit import UnitHead
from pumphouse.loader.work import SegmentPart

_LENGTH = struct.Struct("<Q")


class Spill:
    """Entries on disk, by table and bucket. Written by several threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._found: dict[int, set[int]] = defaultdict(set)

    @classmethod
    @contextmanager
    def made(cls) -> Iterator[Self]:
        """An empty one, which is gone at the end."""
        with tempfile.TemporaryDirectory(prefix="pumphouse-spill-") as folder:
            yield cls(Path(folder))

    def put(self, context: LoadContext, pieces: Sequence[SegmentPart], told: Callable[[SegmentPart], None]) -> None:
        """Decode pieces."""

        def each() -> Iterator[SegmentPart]:
            for piece in pieces:
                yield piece
                told(piece)

        for blob in Decoder(context).run(each()):
            self.add(blob.table_id, blob.bucket, blob.data)

    def add(self, table_id: int, bucket: int, data: bytes) -> None:
        """Entries of a bucket, as an Arrow IPC stream."""
        with self._lock:
            self._found[table_id].add(bucket)
            with self._path(table_id, bucket).open("ab") as file:
                file.write(_LENGTH.pack(len(data)))
                file.write(data)

    def buckets(self, table_id: int) -> list[int]:
        """Those of a table that have anything."""
        return sorted(self._found.get(table_id, ()))

    def take(self, table_id: int, bucket: int) -> tuple[pa.Table | None, np.ndarray | None]:
        """Rows of a bucket that stand at the end; of a table without a key what came, and with -1 what went.

        Then it is gone. (None, None) where there never was any.
        """
        if bucket not in self._found.get(table_id, ()):
            return None, None
        entries = self.take_entries(table_id, bucket)
        head = UnitHead.of(entries.schema)
        if head.key:
            folded = LastOfKeys.of(entries, head.key).changed()
            check_keys(folded, head.key, f"{head.db}.{head.table}")
            values = entries.drop_columns([field.name for field in ORDER_FIELDS])
            return values.take(pa.array(folded.at[folded.stands])), None
        # What came and what went need not have the same text (a default has fewer digits): checksums cancel out.
        return entries.drop_columns([COUNT]), entries.column(COUNT).to_numpy()

    def take_entries(self, table_id: int, bucket: int, *, keep: bool = False) -> pa.Table:
        """All entries of a bucket that has any; then it is gone, unless it is to be kept."""
        path = self._path(table_id, bucket)
        entries = pa.concat_tables(_read(path)).combine_chunks()
        if not keep:
            path.unlink()
        return entries

    def _path(self, table_id: int, bucket: int) -> Path:
        return self._folder / f"{table_id}-{bucket}"


def _read(path: Path) -> Iterator[pa.Table]:
    with path.open("rb") as file:
        while size := file.read(_LENGTH.size):
            with pa.ipc.open_stream(file.read(_LENGTH.unpack(size)[0])) as reader:
                yield reader.read_all()
