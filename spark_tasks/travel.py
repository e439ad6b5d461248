"""How blobs travel between the stages on Spark: as rows, or as files that the rows name.

In a local session, whose workers all run on this machine, a file that one writes and the next one maps costs no copy
through the JVM, which takes longer than what is done with the blob. The files lie in Spark's own directory, which ends
with the session.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pumphouse.errors import LoadError
from pumphouse.loader.blob import Blob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEMA = pa.schema(
    [
        pa.field("epoch", pa.int32(), nullable=False),
        pa.field("table_id", pa.int64(), nullable=False),
        pa.field("bucket", pa.int32(), nullable=False),
        pa.field("phase", pa.int32(), nullable=False),
        pa.field("number", pa.int32(), nullable=False),
        pa.field("row_count", pa.int64(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("data", pa.binary(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
    ]
)
SPARK_SCHEMA = (
    "epoch int not null, table_id bigint not null, bucket int not null, phase int not null, number int not null, "
    "row_count bigint not null, size bigint not null, data binary not null, file string not null"
)


@dataclass(frozen=True, slots=True)
class Travel:
    """How blobs go from worker to worker.

    Args:
        directory: where files are put; None = blobs are in the rows.
    """

    directory: Path | None

    @classmethod
    def of(cls, session: SparkSession) -> Travel:
        """By files where the session's workers are this machine's."""
        from pyspark import SparkFiles
        from pyspark.sql import SparkSession

        if not isinstance(session, SparkSession) or not session.sparkContext.master.startswith("local"):
            return cls(None)  # on a Connect server, whose workers may be anywhere, or in a cluster
        directory = Path(SparkFiles.getRootDirectory()) / f"blobs-{uuid.uuid4().hex}"
        directory.mkdir()
        return cls(directory)

    def pack(self, blob: Blob) -> pa.RecordBatch:
        """The blob as one row."""
        data, file, size = b"", "", blob.size
        if self.directory is None or isinstance(blob.content, bytes):
            data = blob.data
        else:
            path, table = self.directory / uuid.uuid4().hex, blob.table()
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            file = str(path)
        row = (blob.epoch, blob.table_id, blob.bucket, blob.phase, blob.number, blob.rows, size, data, file)
        return pa.RecordBatch.from_arrays(
            [pa.array([value], field.type) for value, field in zip(row, _SCHEMA, strict=True)], schema=_SCHEMA
        )

    def end(self) -> None:
        """Remove the files."""
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)

    @staticmethod
    def unpack(batch: pa.RecordBatch) -> Iterator[Blob]:
        """The blobs of rows that `pack` made."""
        for values in zip(*(batch.column(name) for name in _SCHEMA.names), strict=True):
            yield Travel.blob({name: value.as_py() for name, value in zip(_SCHEMA.names, values, strict=True)})

    @staticmethod
    def blob(row: Mapping[str, Any]) -> Blob:
        """The blob of one row; LoadError when its file has not all of it."""
        content: pa.Table | bytes = bytes(row["data"])
        if row["file"]:
            with pa.memory_map(row["file"]) as source, pa.ipc.open_stream(source) as reader:
                content = reader.read_all()
            if content.num_rows != row["row_count"]:
                raise LoadError(
                    f"{row['file']} has {content.num_rows} rows of {row['row_count']}",
                    hint="is its disk full, or does something empty that directory? Run the load again",
                )
        return Blob(
            row["epoch"], row["table_id"], row["bucket"], row["phase"], row["number"], row["row_count"], content
        )
