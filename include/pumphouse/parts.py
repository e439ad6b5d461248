"""The composition root of the batch side: every part that settings name, opened in one way, TLS included.

Commands, DAG tasks and Spark jobs take their cluster, archive, DDL history and engine from here.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from pumphouse.archive.archive import Archive
from pumphouse.once import once
from pumphouse.registry.base import Cluster
from pumphouse.registry.open import open_cluster
from pumphouse.schema.history import JobSource, open_history
from pumphouse.settings import Settings

if TYPE_CHECKING:
    from pumphouse.loader.engine import Engine


class Parts:
    """``with Parts(settings) as parts: parts.archive …``: each part is opened on first use, all are closed together."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @once
    def cluster(self) -> Cluster:
        """The cluster; one that is not there is never made."""
        return open_cluster(self.settings.cluster, self.settings.tls, create=False)

    @once
    def archive(self) -> Archive:
        """The archive of that cluster."""
        return Archive.open(self.settings.archive, self.cluster.cluster_id())

    @once
    def history(self) -> JobSource | None:
        """The cluster's DDL job history; None where the settings name none."""
        return open_history(self.settings.history, self.settings.tls)

    @once
    def engine(self) -> Engine:
        """Where the stages of a load run: this process, or Spark. A session is made when there is something to do."""
        from pumphouse.loader.engine import (
            AutoEngine,
            LocalEngine,
        )  # with the kernels: many commands need not load them

        load = self.settings.load
        if load.engine == "local":
            return LocalEngine(load.connections)
        if load.engine == "spark":
            return self._spark()
        return AutoEngine(LocalEngine(load.connections), self._spark, load.local_bytes, self.settings.spark.master)

    def _spark(self) -> Engine:
        from spark_tasks.engine import SparkEngine

        return SparkEngine(self.settings.spark, connections=self.settings.load.connections)

    def close(self) -> None:
        """Close what was opened."""
        opened = vars(self)
        try:
            if "engine" in opened:
                self.engine.stop()
        finally:
            if "cluster" in opened:
                self.cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
