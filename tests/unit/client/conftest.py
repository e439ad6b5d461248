"""Pumps that fail in every way, and clients of theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pumphouse.client import commits
from pumphouse.client.pump_client import PumpClient
from pumphouse.registry.base import Cluster
from pumphouse.registry.file import FileCluster
from tests.support.fakepump import FakePump


@pytest.fixture(autouse=True)
def _commits_are_tried_again_soon() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commits, "RETRY_INTERVAL_S", 0.05)
        yield


@pytest.fixture
def cluster(tmp_path: Path) -> FileCluster:
    return FileCluster(tmp_path)


@pytest.fixture
def start(cluster: FileCluster) -> Iterator[Callable[..., FakePump]]:
    """Begins a Pump and registers it."""
    running: list[FakePump] = []

    def start_pump(name: str, *, addr: str = "127.0.0.1:0", **registered: Any) -> FakePump:
        pump = FakePump(name, cluster, addr=addr)
        running.append(pump)
        return pump.register(**registered)

    yield start_pump
    for pump in running:
        pump.stop()


@pytest.fixture
def connect(request: pytest.FixtureRequest, cluster: FileCluster) -> Iterator[Callable[..., PumpClient]]:
    """Makes clients; a module may set ``CLIENT`` to options of all of its own."""
    clients: list[PumpClient] = []
    usual = {"write_timeout_s": 1.0, "watch_interval_s": 0.05} | getattr(request.module, "CLIENT", {})

    def make(on: Cluster | None = None, **more: Any) -> PumpClient:
        client = PumpClient(on or cluster, **(usual | more))
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close(flush_s=0)
