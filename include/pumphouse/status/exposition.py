"""A look in Prometheus' text format: what the Pumps' own metrics do not know of archive and targets."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from pumphouse.model.tso import Tso, physical_ms
from pumphouse.status.report import Severity, Status

_SEVERITIES = {None: 0, Severity.WARNING: 1, Severity.ERROR: 2}


def exposition(found: Status) -> bytes:
    """Gauges named ``pumphouse_…``; moments are seconds since 1970, and a moment that is not known has no sample."""
    registry = CollectorRegistry()

    def gauge(name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"pumphouse_{name}", text, labels, registry=registry)

    gauge("looked_seconds", "When this look was taken").set(_seconds(found.now))
    gauge("severity", "0 = all is well, 1 = something needs attention, 2 = something stands still").set(
        _SEVERITIES[found.severity]
    )
    moments = gauge("archive_seconds", "Moments of the archive", "what")
    archive = found.archive
    for what, ts in (
        ("end", archive.end),
        ("restorable_from", archive.restorable_from),
        ("verified", archive.verified_to),
    ):
        if ts is not None:
            moments.labels(what).set(_seconds(ts))
    gauge("archive_lost_ranges", "Ranges of Pumps that were declared lost").set(archive.declared_lost)
    held = gauge("archive_held", "1 = the next window waits for this one", "who")
    for each in archive.held_by:
        held.labels(each.who).set(1)
    lag = gauge("capture_lag_seconds", "How far a capture is behind its source", "capture")
    runs = gauge("capture_running", "1 = it runs, and says so", "capture")
    for capture in found.captures:
        lag.labels(capture.capture_id).set(capture.lag_s)
        runs.labels(capture.capture_id).set(capture.state == "running")
    at = gauge("target_at_seconds", "The moment that a target has", "target", "task")
    trouble = gauge("target_trouble", "1 = the last load failed, or it cannot be looked at", "target", "task")
    for target in found.targets:
        if target.at is not None:
            at.labels(target.section, target.task).set(_seconds(target.at))
        trouble.labels(target.section, target.task).set(bool(target.failed or target.problem))
    return generate_latest(registry)


def _seconds(ts: Tso) -> float:
    return physical_ms(ts) / 1000
