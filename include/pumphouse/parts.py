"""The composition root of the batch side: every part that settings name, opened in one way, TLS included.

Commands, DAG tasks and Spark jobs take their cluster, archive, DDL history and engine from here. Who writes to the
archive or to the cluster takes `archive` and `cluster`. Who only reads takes `readable_archive` and `now`, which are
there without a cluster too.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

import structlog

from pumphouse.archive.archive import Archive, clusters_at
from pumphouse.archive.copyof import require_no_copy
from pumphouse.archive.moments import moment_of
from pumphouse.clock import SYSTEM_CLOCK
from pumphouse.errors import ClusterUnavailable, ConfigError
from pumphouse.model.moment import Moment, parse_time, zone_of
from pumphouse.model.tso import Tso, compose
from pumphouse.once import once
from pumphouse.registry.base import Cluster
from pumphouse.registry.open import open_cluster
from pumphouse.rpc.shown import without_secrets
from pumphouse.schema.history import JobSource, open_history
from pumphouse.settings import Settings

if TYPE_CHECKING:
    from pumphouse.loader.engine import Engine

log = structlog.get_logger()


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
        """The archive of that cluster, to be written to; ConfigError where it is a copy of another."""
        require_no_copy(self.archive_there.store)
        return self.archive_there

    @once
    def archive_there(self) -> Archive:
        """The same, also where it is a copy."""
        cluster_id, chosen = self.cluster.cluster_id(), self.settings.archive.cluster_id
        if chosen not in (0, cluster_id):
            raise ConfigError(
                f"archive.cluster_id is {chosen}, and the cluster at {self.cluster.url} is {cluster_id}",
                hint="leave archive.cluster_id out; to read the archive of another cluster, leave cluster.url out",
            )
        return Archive.open(self.settings.archive, cluster_id)

    @once
    def cluster_if_there(self) -> Cluster | None:
        """The cluster that ``cluster.url`` names, for who only reads: None where it names none, or none answers."""
        if "url" not in self.settings.cluster.model_fields_set:
            return None
        try:
            return self.cluster
        except (ClusterUnavailable, ConfigError) as error:
            if isinstance(error, ConfigError) and not error.missing:
                raise
            log.warning("cluster_not_asked", url=without_secrets(self.settings.cluster.url), reason=error.message)
            return None

    @once
    def readable_archive(self) -> Archive:
        """The archive of that cluster where there is one; else the one that lies under ``archive.root``."""
        settings = self.settings.archive
        if self.cluster_if_there is None:
            return Archive.alone(settings)
        archive = self.archive_there
        others = () if archive.begun() else [each for each in clusters_at(settings) if each != archive.cluster_id]
        if others:
            raise ConfigError(
                f"there is no archive of cluster {archive.cluster_id} at {settings.root}, which has those of "
                f"{Archive.told(settings, others)}",
                hint=f"is cluster.url right? Without it, and with --set archive.cluster_id={others[0]}, the archive of "
                "that cluster is read; `pumphouse archive init` begins one",
                missing=True,
            )
        return archive

    def moment(self, text: str, now: Callable[[], Tso] | None = None, word: str = "now") -> Moment:
        """A TIME that somebody typed; who writes gives ``now`` of the cluster. UsageError, which names ``word`` too."""
        return parse_time(
            text,
            now or self.now,
            zone=zone_of(self.settings.archive.time_zone),
            find=lambda kind, what: moment_of(self.readable_archive, kind, what),
            word=word,
        )

    def now(self) -> Tso:
        """The cluster's clock; this machine's where there is no cluster, which is logged."""
        if self.cluster_if_there is not None:
            return self.cluster_if_there.tso()
        at = compose(int(SYSTEM_CLOCK.now() * 1000))
        log.warning("clock_of_this_machine", now=int(at), reason="no cluster is asked")
        return at

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
