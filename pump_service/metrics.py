"""Every metric of the Pump, declared here (row P14). One registry an app, so tests can run several.

Names of the Go Pump are kept where the meaning is the same, so that its dashboards and alerts go on working; gauges of
timestamps carry physical milliseconds, as there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

# From one small binlog to the largest group of a writer.
_SIZE_BUCKETS = tuple(float(1 << bits) for bits in range(8, 32, 2))
# An fsync takes 0.1 ms on NVMe and 10-30 ms on a busy disk; the write time-out of TiDB's client is 15 s.
_LATENCY_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0)

# A gauge beside each counter and histogram that says when it was made: the text format has no use for them.
disable_created_metrics()  # type: ignore[no-untyped-call]

Sample = tuple[str, str, dict[str, str], float]  # name, help, labels, value


class _Plain:
    """What a histogram reads when it is scraped. One thread may change it: a second one would lose counts."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def get(self) -> float:
        return self.value

    def get_exemplar(self) -> None:
        return None


class GroupHistogram(Histogram):
    """A histogram that takes many equal observations at once: what came and was answered together.

    Only the event loop's thread may observe: each group of writes is observed three times, and the library's own values
    take a lock each time. Its mode for several processes is not served (private parts of the library are replaced).
    """

    def _metric_init(self) -> None:
        super()._metric_init()
        self._sum = _Plain()
        self._buckets = [_Plain() for _ in self._upper_bounds]

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """Count one."""
        del exemplar
        self.observe_many(amount, 1)

    def observe_many(self, amount: float, count: int) -> None:
        """As ``count`` times ``observe(amount)``."""
        self._sum.value += amount * count
        self._buckets[bisect_left(self._upper_bounds, amount)].value += count


class PumpMetrics:
    """Counters that the stages move themselves; the rest is read from the store when somebody scrapes."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        times = partial(GroupHistogram, buckets=_LATENCY_BUCKETS, registry=registry)
        sizes = partial(GroupHistogram, buckets=_SIZE_BUCKETS, registry=registry)
        pump, storage = "binlog_pump_", "binlog_pump_storage_"
        by_method, by_type = ("method", "label"), ("type",)

        text = "Time of one call, from its arrival to its answer"
        self.rpc_seconds = times(pump + "rpc_duration_seconds", text, by_method)
        text = "Writes and pulls that were refused, by reason"
        self.refused = counter(pump + "refused_total", text, ("reason",))
        self.fakes = counter(pump + "fake_binlogs_total", "Fake binlogs by how they were published", ("how",))
        text = "Questions about the outcome of a prewrite, by answer"
        self.resolver_questions = counter(pump + "resolver_questions_total", text, ("answer",))
        text = "Prewrites older than max-txn-timeout whose outcome nobody answers; they hold the watermark"
        self.unanswered = gauge(pump + "unanswered_prewrites", text)
        text = "Heartbeats that did not reach the registry"
        self.heartbeat_failures = counter(pump + "heartbeat_failures_total", text)
        self.gc_runs = counter(pump + "gc_runs_total", "GC runs by result", ("result",))
        self.gc_freed_bytes = counter(pump + "gc_freed_bytes_total", "Value-log bytes that GC freed")
        self.pull_streams = gauge(pump + "pull_streams", "Pull streams that are open now")
        self.pulled_bytes = counter(pump + "pulled_bytes_total", "Payload bytes sent to pullers")
        text = "Time from handing a group of binlogs to the writer to its fsync"
        self.write_seconds = times(storage + "write_binlog_duration_time", text, by_type)
        text = "Payload bytes of a group of binlogs with one fsync"
        self.write_bytes = sizes(storage + "write_binlog_size", text, by_type)
        self.deleted_keys = counter(storage + "deleted_kv_total", "Index keys that GC deleted")
        self.done_gc_ts = gauge(storage + "done_gc_ts", "GC point of the last run that ended")
        text = "Checkpoint of each consumer that holds GC; an archive's checkpoint is its end"
        self.consumers = gauge(pump + "consumer_checkpoint_ts", text, ("consumer",))
        text = "Pushes of metrics that a Pushgateway did not take"
        self.push_failures = counter(pump + "push_failures_total", text)
        self.queued_bytes = gauge(pump + "queued_bytes", "Bytes of writes that wait for their fsync")

        self.watch(self.of_the_go_pump)

    def of_the_go_pump(self) -> list[Sample]:
        """Counters that the Go Pump names without ``_total``, which our library would add: shown as gauges."""
        asked = sum(
            sample.value
            for family in self.resolver_questions.collect()
            for sample in family.samples
            if sample.name.endswith("_total")
        )
        return [("binlog_pump_storage_query_tikv_count", "Questions about the outcome of a prewrite", {}, asked)]

    def watch(self, read: Callable[[], list[Sample]]) -> None:
        """Add gauges whose values are read at each scrape."""
        self.registry.register(_OnScrape(read))

    def text(self) -> bytes:
        """Prometheus text format 0.0.4."""
        return generate_latest(self.registry)


class _OnScrape(Collector):
    def __init__(self, read: Callable[[], list[Sample]]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        families: dict[str, GaugeMetricFamily] = {}
        for name, text, labels, value in self._read():
            family = families.setdefault(name, GaugeMetricFamily(name, text, labels=list(labels)))
            family.add_metric(list(labels.values()), value)
        return families.values()
