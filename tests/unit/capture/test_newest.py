"""A journal is held against what the cluster says of its capture."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pumphouse.capture.journal import Mark
from pumphouse.capture.lease import Lease, Progress
from pumphouse.capture.run import _Run
from pumphouse.clock import SYSTEM_CLOCK
from pumphouse.errors import CaptureRefused
from pumphouse.registry.file import FileCluster
from pumphouse.settings import Settings

pytestmark = pytest.mark.row("Q2")


@pytest.mark.parametrize(
    ("journal", "said", "refused"),
    [
        ((8, "0-2-50"), (7, "0-1-100"), False),  # numbers that did not ascend: the start ts tells
        ((7, "0-1-100"), (7, "0-1-100"), False),
        ((7, "0-1-99"), (7, "0-1-100"), True),
        ((6, "0-1-101"), (7, "0-1-100"), True),
    ],
)
def test_an_older_journal_is_told_by_its_start_ts_and_then_by_its_gtids(
    tmp_path: Path, journal: tuple[int, str], said: tuple[int, str], refused: bool
) -> None:
    cluster, unused = FileCluster(tmp_path), None
    about: Any = [Mark(gtid=gtid, moment=0.0, schema=1, transactions=1, start_ts=ts) for ts, gtid in (journal, said)]
    Lease.take(cluster, "main", source="", server="").say(Progress(mark=about[1]))
    run: Any = _Run(Settings(), cluster, unused, threading.Event(), SYSTEM_CLOCK)  # type: ignore[arg-type]
    run._schemas = SimpleNamespace(load=lambda _: SimpleNamespace(server=SimpleNamespace(version="10.11.19-MariaDB")))
    held = SimpleNamespace(mark=about[0], last_start_ts=journal[0])
    if not refused:
        run._require_newest(held)
        return
    with pytest.raises(CaptureRefused, match="a copy or a backup"):
        run._require_newest(held)
