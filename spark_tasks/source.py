"""Python Data Source ``binlog``: the archive's transactions as rows, read by Arrow without any jar.

``session.dataSource.register(BinlogSource)``, then ``session.read.format("binlog").option("config", path)
.option("after", ts).option("upto", ts).load()``. The options are shown in plans and UIs, so they name a settings file
and carry no secret; what is in it reaches the executors inside the partitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from pumphouse.archive.archive import Archive
from pumphouse.archive.layout import window_key
from pumphouse.archive.manifest import Manifest
from pumphouse.archive.segment import COLUMNS
from pumphouse.errors import BadSegment, ConfigError
from pumphouse.model.tso import Tso
from pumphouse.parts import Parts
from pumphouse.settings import ArchiveSettings, Settings

_BINARY = frozenset({"ddl_query", "payload"})


@dataclass
class SegmentPartition(InputPartition):  # type: ignore[misc]  # pyspark comes without types for strict mode
    """One segment; tiny, and opened where it is read."""

    settings: ArchiveSettings
    cluster_id: int
    window: int
    key: str
    after: int
    upto: int


class BinlogSource(DataSource):  # type: ignore[misc]  # pyspark comes without types for strict mode
    """The archive as a table; see the module."""

    @classmethod
    def name(cls) -> str:
        """Format name."""
        return "binlog"

    def schema(self) -> str:
        """Columns of a segment."""
        return (
            "commit_ts bigint, start_ts bigint, part int, parts int, ddl_job_id bigint, "
            "ddl_query binary, payload binary"
        )

    def reader(self, schema: object) -> DataSourceReader:
        """The reader; Spark passes the argument by this name."""
        del schema
        return BinlogReader(dict(self.options))


class BinlogReader(DataSourceReader):  # type: ignore[misc]  # pyspark comes without types for strict mode
    """One partition a segment."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def partitions(self) -> list[SegmentPartition]:
        """Segments of the range; ConfigError when the archive does not cover it."""
        config = self._options.get("config")
        settings = Settings.read(Path(config) if config else None)
        with Parts(settings) as parts:
            archive = parts.archive
            after = Tso(int(self._options.get("after") or archive.range().start))
            upto = Tso(int(self._options.get("upto") or archive.end()))
            windows = archive.windows_between(after, upto)
        return [
            SegmentPartition(settings.archive, archive.cluster_id, int(start), segment.key, int(after), int(upto))
            for start, _, segment, _ in windows.placed()
            if segment.rows and segment.max_commit_ts > after and segment.min_commit_ts <= upto
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Verified rows of one segment, in order."""
        if not isinstance(partition, SegmentPartition):
            raise ConfigError("this is no partition of the binlog source")
        archive = Archive.open(partition.settings, partition.cluster_id)
        key = window_key(Tso(partition.window))
        manifest = Manifest.from_json(key, archive.store.get(key))
        segment = next((s for s in manifest.segments if s.key == partition.key), None)
        if segment is None:
            raise BadSegment(f"{key} does not name {partition.key}", path=partition.key, reason="not named")
        schema = pa.schema(
            [
                pa.field(
                    name, pa.binary() if name in _BINARY else pa.int32() if name.startswith("part") else pa.int64()
                )
                for name in COLUMNS
            ]
        )
        for batch in archive.segment_batches(manifest, segment, after=Tso(partition.after), upto=Tso(partition.upto)):
            yield batch.cast(schema)
