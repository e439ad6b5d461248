"""What a task read and wrote, for Airflow's OpenLineage provider, which asks an operator for it where it is installed.

Names are those of OpenLineage's naming: https://openlineage.io/docs/spec/naming. None says a user or a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from binlog_airflow.assets import moved
from binlog_airflow.xcom import clock_time

if TYPE_CHECKING:
    from pumphouse.archive.window import PublishedWindow
    from pumphouse.dump.run import DumpReport
    from pumphouse.export.kafkarun import KafkaReport
    from pumphouse.loader.report import LoadReport
    from pumphouse.model.tablerows import TableRows
    from pumphouse.settings import ServerSettings, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """One dataset: ``rows``, ``bytes``: written by the task; ``upto``: commit ts ``(after, upto]``, where it has it."""

    namespace: str
    name: str
    after: int | None = None
    upto: int | None = None
    rows: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What a task read and wrote. ``tables``: of those of a server, how many there are, and how many are named."""

    inputs: Sequence[Dataset]
    outputs: Sequence[Dataset]
    tables: Mapping[str, int] | None = None

    def to_openlineage(self) -> Any:
        """The `OperatorLineage` of it, None where nothing was written; ImportError without the provider, which asks."""
        if not self.outputs:
            return None
        from airflow.providers.openlineage.extractors import OperatorLineage
        from openlineage.client.event_v2 import InputDataset, OutputDataset
        from openlineage.client.facet_v2 import RunFacet, output_statistics_output_dataset

        def written(each: Dataset) -> dict[str, Any]:
            facet = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
            return {} if each.rows is None else {"outputStatistics": facet(rowCount=each.rows, size=each.bytes)}

        return OperatorLineage(
            inputs=[InputDataset(each.namespace, each.name, facets=_facets(each)) for each in self.inputs],
            outputs=[
                OutputDataset(each.namespace, each.name, facets=_facets(each), outputFacets=written(each))
                for each in self.outputs
            ],
            run_facets={}
            if self.tables is None
            else {"pumphouse_tables": RunFacet().with_additional_properties(**self.tables)},
        )


# Made when the provider asks: a mistake in it is no failure of a task that has done its work.
Asked = Callable[[], Flow]


def _facets(dataset: Dataset) -> dict[str, Any]:
    from openlineage.client.facet_v2 import DatasetFacet, dataset_version_dataset

    if dataset.upto is None:
        return {}
    said = moved(dataset.upto)
    if dataset.after is not None:
        said |= {"start": str(dataset.after), "start_time": clock_time(dataset.after)}
    version = dataset_version_dataset.DatasetVersionDatasetFacet(str(dataset.upto))
    return {"version": version, "pumphouse_range": DatasetFacet().with_additional_properties(**said)}


def of_windows(settings: Settings, cluster_id: int, windows: Sequence[PublishedWindow]) -> Flow:
    """Pumps -> archive, of one window or more."""
    after, upto = windows[0].start, windows[-1].end
    written = {"rows": sum(each.changes for each in windows), "bytes": sum(each.bytes for each in windows)}
    return Flow(
        inputs=[Dataset(namespace=f"pumphouse://{cluster_id}", name="binlogs", after=after, upto=upto)],
        outputs=[_archive(settings, cluster_id, after=after, upto=upto, **written)],
    )


def of_dump(settings: Settings, report: DumpReport) -> Flow:
    """Tables of the source -> archive."""
    read = report.read
    return Flow(
        inputs=[Dataset(namespace=_server(settings.source), name=name) for name in read.largest],
        outputs=[_archive(settings, report.cluster_id, upto=report.ts, rows=read.rows, bytes=report.bytes)],
        tables=_counted(read),
    )


def of_load(settings: Settings, server: ServerSettings, report: LoadReport) -> Flow:
    """Archive -> tables of a server; also of a restore."""
    return Flow(
        inputs=[_archive(settings, report.cluster_id, after=report.from_ts, upto=report.to_ts)],
        outputs=[
            Dataset(namespace=_server(server), name=name, upto=report.to_ts, rows=rows)
            for name, rows in report.written.largest.items()
        ],
        tables=_counted(report.written),
    )


def of_kafka(settings: Settings, report: KafkaReport) -> Flow:
    """Archive -> topic."""
    after, upto = report.from_ts, report.to_ts
    broker = settings.kafka.bootstrap_servers.partition(",")[0].rpartition("://")[2].strip()
    topic = Dataset(namespace=f"kafka://{broker}", name=report.topic, upto=upto, rows=report.messages)
    archive = _archive(settings, report.cluster_id, after=after, upto=upto)
    return Flow(inputs=[archive], outputs=[topic] if report.messages else [])


def _archive(settings: Settings, cluster_id: int, **facts: int) -> Dataset:
    """The folder of a cluster under the archive's root."""
    root = urlsplit(settings.archive.root)
    if root.scheme == "file":
        place, folder = "file", str(Path(unquote(root.netloc + root.path)).absolute())
    else:
        place, folder = f"{root.scheme}://{root.netloc}", unquote(root.path).strip("/")
    return Dataset(namespace=place, name=f"{folder}/{cluster_id}".removeprefix("/" * (place != "file")), **facts)


def _server(server: ServerSettings) -> str:
    return f"mysql://{server.unix_socket or f'{server.host}:{server.port}'}"


def _counted(found: TableRows) -> dict[str, int]:
    return {"total": found.tables, "listed": len(found.largest)}
