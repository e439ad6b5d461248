"""Metrics to a Prometheus Pushgateway, by interval (row P14); job and grouping are those of the Go Pump."""

from __future__ import annotations

import asyncio

import structlog
from prometheus_client import pushadd_to_gateway

from pump_service.metrics import PumpMetrics
from pumphouse.rpc.shown import without_secrets

log = structlog.get_logger()

JOB = "binlog"
TIMEOUT_S = 5.0


async def push(metrics: PumpMetrics, addr: str, interval_s: float, node_id: str) -> None:
    """Push for ever; a gateway that does not answer is logged when that begins and ends, and costs nothing else."""
    failing = False
    shown = without_secrets(addr)
    while True:
        await asyncio.sleep(interval_s)
        try:
            await asyncio.to_thread(
                pushadd_to_gateway,
                addr,
                job=JOB,
                registry=metrics.registry,
                grouping_key={"instance": node_id},
                timeout=TIMEOUT_S,
            )
        # Everything that a wrong address or a strange answer can raise: metrics must never end a Pump.
        except Exception as error:  # noqa: BLE001
            metrics.push_failures.inc()
            if not failing:
                reason = str(error) if shown == addr else type(error).__name__  # its text may quote the password
                log.warning("metrics_push_failed", addr=shown, error=reason, again_in_s=interval_s)
            failing = True
        else:
            if failing:
                log.info("metrics_pushed_again", addr=shown)
            failing = False
