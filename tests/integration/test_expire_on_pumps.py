"""Snapshots and the Pumps' GC go on behind a range that moved: real Pumps (rows A5, P11)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pumphouse.archive import layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.base import Base
from pumphouse.archive.expire import Ages, expire
from pumphouse.archive.retention import Policy
from pumphouse.archive.verify import verify
from pumphouse.client import admin
from pumphouse.loader.target import TargetConnection
from pumphouse.model.tso import Tso
from pumphouse.objectstore.open import open_store
from pumphouse.runs import load
from pumphouse.settings import TargetSettings
from tests.integration.test_gc_follows_load import Chain
from tests.support.madearchive import target_rows

pytestmark = [pytest.mark.row("A5"), pytest.mark.row("P11")]


@pytest.fixture
def chain(tmp_path: Path, server: TargetSettings, target: TargetConnection) -> Iterator[Chain]:
    made = Chain(tmp_path, server, target)
    made.settings = made.settings.model_copy(
        update={"airflow": made.settings.airflow.model_copy(update={"gc_follows": "snapshot"})}
    )
    try:
        made.begin()
        yield made
    finally:
        for pump in made.pumps:
            pump.__exit__()


def dumped(chain: Chain) -> Tso:
    """What a dump of a source without tables is: its document alone."""
    low = chain.archive.end()
    ts = chain.snapshot()
    chain.snapshot()
    base = Base(begun=low, ts=ts, low=low, tables=(), columns=True, sha256="")
    data = base.to_json(cluster_id=chain.archive.cluster_id, genesis=chain.archive.genesis().sha256)
    chain.archive.store.put(layout.base_document(low), data)
    return ts


def test_snapshots_loads_and_gc_go_on_when_what_was_before_is_gone(chain: Chain, target: TargetConnection) -> None:
    for _ in range(2):
        chain.fill()
        chain.snapshot()
        load.run(chain.settings)
    ts = dumped(chain)
    before = chain.files()
    done = expire(chain.archive, Ages(), Policy(bases=1), (), now=chain.cluster.tso())
    assert done.restorable_from == ts
    assert done.windows_gone >= 2
    archive = Archive(open_store(chain.settings.archive), chain.archive.cluster_id)
    # Killed before its HEAD and its checkpoint were put: the next snapshot catches up, as ever.
    chain.fill()
    end = chain.snapshot()
    assert archive.end() == end == chain.checkpoint()
    assert verify(archive, checkpoint=end).problems == []
    assert load.run(chain.settings).to_ts == end
    assert target_rows(target) == chain.source.snapshot()
    reports = admin.trigger_gc(chain.cluster)
    assert all(report.freed_files > 0 for report in reports), reports
    assert any(there - now for there, now in zip(before, chain.files(), strict=True))
    archive.store.delete(layout.HEAD)  # the windows that are kept reach the Pumps' checkpoint
    assert chain.snapshot() > end
    assert verify(archive).problems == []
