"""A look in Prometheus' text format: what the Pumps' own metrics do not know of archive and targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http.server import HTTPServer
from threading import Thread

from prometheus_client import CollectorRegistry, Gauge, Metric, generate_latest, start_http_server
from prometheus_client.registry import Collector

from pumphouse.model.tso import Tso, physical_ms
from pumphouse.status.report import Severity, Status

_SEVERITIES = {None: 0, Severity.WARNING: 1, Severity.ERROR: 2}


def exposition(found: Status) -> bytes:
    """Gauges named ``pumphouse_…``; moments are seconds since 1970, and a moment that is not known has no sample."""
    return generate_latest(gauges(found))


def serve(look: Callable[[], Status], host: str, port: int) -> tuple[HTTPServer, Thread]:
    """``GET /metrics`` from now on: each scrape takes a look. OSError where nobody can listen there."""

    class Look(Collector):
        def collect(self) -> Iterable[Metric]:
            return gauges(look()).collect()

    registry = CollectorRegistry()
    registry.register(Look())
    server, thread = start_http_server(port, host, registry)
    return server, thread


def gauges(found: Status) -> CollectorRegistry:
    """What of a look is a number; a family whose value is not known is left out."""
    registry = CollectorRegistry()

    def gauge(name: str, text: str, value: float | None) -> None:
        if value is not None:
            each(name, text, [((), value)])

    def each(name: str, text: str, samples: Iterable[tuple[tuple[str, ...], float | None]], *labels: str) -> None:
        family = Gauge(f"pumphouse_{name}", text, labels, registry=registry)
        for values, value in samples:
            if value is not None:
                (family.labels(*values) if labels else family).set(value)

    archive, drill = found.archive, found.archive.drill
    gauge("looked_seconds", "When this look was taken", _seconds(found.now))
    gauge(
        "severity", "0 = all is well, 1 = something needs attention, 2 = something stands still",
        _SEVERITIES[found.severity],
    )  # fmt: skip
    moments = {
        "end": archive.end,
        "restorable_from": archive.restorable_from,
        "verified": archive.verified_to,
        "copy_end": archive.copy.end if archive.copy else None,
    }
    shown = [((what,), _seconds(ts)) for what, ts in moments.items()]
    each("archive_seconds", "Moments of the archive", shown, "what")
    gauge("archive_late_after_seconds", "An end of the archive that is older than this is late", archive.late_s)
    failed = [((what,), 1) for what in archive.failed]
    each("archive_failed", "1 = the last one failed, and none has ended well since", failed, "what")
    gauge("archive_lost_ranges", "Ranges of Pumps that were declared lost", archive.declared_lost)
    gauge("archive_binlogs_skipped", "1 = TiDB said at the newest window that it skips binlogs", archive.binlog_skipped)
    held = [((by.who,), 1) for by in archive.held_by]
    each("archive_held", "1 = the next window waits for this one", held, "who")
    gauge("drill_age_seconds", "Since the last drill ended", drill.age_s if drill else None)
    gauge("drill_failed", "1 = the last one failed, or found a difference", not drill.green if drill else None)
    red = [((target.section, target.task), 1) for _, target in found.red]
    each("proof_red", "1 = the newest proof found a difference", red, "target", "task")
    silent = [((pump.node_id,), pump.silent) for pump in found.pumps]
    each("pump_silent", "1 = its heartbeat is overdue, and it has not left", silent, "pump")
    lag = [((capture.capture_id,), capture.lag_s) for capture in found.captures]
    each("capture_lag_seconds", "How far a capture is behind its source", lag, "capture")
    runs = [((capture.capture_id,), capture.state == "running") for capture in found.captures]
    each("capture_running", "1 = it runs, and says so", runs, "capture")
    at = [((target.section, target.task), _seconds(target.at)) for target in found.targets]
    each("target_at_seconds", "The moment that a target has", at, "target", "task")
    trouble = [((target.section, target.task), bool(target.failed or target.problem)) for target in found.targets]
    each("target_trouble", "1 = the last load failed, or it cannot be looked at", trouble, "target", "task")
    return registry


def _seconds(ts: Tso | None) -> float | None:
    return None if ts is None else physical_ms(ts) / 1000
