"""Fixtures of tests that load an archive into a real MariaDB: ``server``, ``target``, ``source``, ``settings``.

A module may set ``LOAD`` to other values of the section [load], ``SOURCE`` to a kind of `MadeSource`; its own fixtures of these names come first.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pumphouse.loader.apart import server_name
from pumphouse.loader.target import TargetConnection, has_checkpoints
from pumphouse.model.tso import Tso
from pumphouse.registry.open import open_cluster
from pumphouse.restore.report import RestoreReport
from pumphouse.runs import restore
from pumphouse.settings import Settings, TargetSettings
from tests.support import mariadb
from tests.support.madearchive import MadeSource

_OF_THE_SERVER = {"mysql", "information_schema", "performance_schema", "metrics_schema", "sys"}


def restored(settings: Settings, **how: Any) -> RestoreReport:
    """A restore of the target itself, whose data may go."""
    return restore.run(settings, into="target", replace=server_name(settings.target), **how)


@pytest.fixture(scope="session")
def server() -> Iterator[TargetSettings]:
    """One MariaDB for all that change nothing of it but databases."""
    with mariadb.in_memory() as settings:
        yield settings


def drop_all(connection: TargetConnection) -> None:
    """Every database of earlier tests."""
    for (name,) in connection.query("SHOW DATABASES"):
        if name.lower() not in _OF_THE_SERVER:
            connection.execute(f"DROP DATABASE `{name}`")


@pytest.fixture
def target(server: TargetSettings) -> Iterator[TargetConnection]:
    """A connection to it, with every database of earlier tests dropped."""
    with TargetConnection.open(server) as connection:
        drop_all(connection)
        yield connection


@pytest.fixture
def source(request: pytest.FixtureRequest, tmp_path: Path) -> MadeSource:
    """A source whose archive is made without Pumps."""
    kind: type[MadeSource] = getattr(request.module, "SOURCE", MadeSource)
    cluster = open_cluster(f"file://{tmp_path}/cluster", create=True)
    made = kind(tmp_path / "archive", cluster.cluster_id())
    cluster.close()
    return made


@pytest.fixture
def settings(request: pytest.FixtureRequest, tmp_path: Path, source: MadeSource, server: TargetSettings) -> Settings:
    """From that source to that server, which is the target of loads and of restores."""
    return Settings.model_validate(
        {
            "cluster": {"url": f"file://{tmp_path}/cluster"},
            "archive": source.settings,
            "target": server,
            "restore_target": server,
            "load": getattr(request.module, "LOAD", {"engine": "local"}),
        }
    )


def read_checkpoint(settings: TargetSettings, task: str) -> Tso | None:
    """Checkpoint of a task on a target; None when it has none yet. Opens a connection of its own."""
    with TargetConnection.open(settings) as connection:
        if not has_checkpoints(connection):
            return None
        ts = connection.value(f"SELECT ts FROM {connection.table('checkpoint')} WHERE task = %s", (task,))
        return None if ts is None else Tso(int(ts))
