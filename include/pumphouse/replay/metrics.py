"""Metrics of the input (row L8); a registry of the caller's, or none."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class InputMetrics:
    """What is queued, and what has come in all; ``registry`` None = counted for nobody."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()
        waiting = {
            "transactions": "Transactions that wait in the input",
            "bytes": "Their bytes in memory, more or less",
            "rows": "Their row changes",
        }
        self._queued = {
            unit: Gauge(f"pumphouse_replay_queued_{unit}", text, registry=registry) for unit, text in waiting.items()
        }
        self._input = {
            unit: Counter(
                f"pumphouse_replay_input_{unit}", f"{unit.capitalize()} put into the input", registry=registry
            )
            for unit in waiting
        }

    def came(self, rows: int, size: int) -> None:
        """One transaction was put."""
        for unit, amount in (("transactions", 1), ("bytes", size), ("rows", rows)):
            self._queued[unit].inc(amount)
            self._input[unit].inc(amount)

    def went(self, rows: int, size: int) -> None:
        """One transaction was taken."""
        for unit, amount in (("transactions", 1), ("bytes", size), ("rows", rows)):
            self._queued[unit].dec(amount)
