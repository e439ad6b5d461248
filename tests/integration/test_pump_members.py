"""Pumps that come, go and hang while an archive is registered: real processes, under load (rows P9, P13, A2)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pumphouse.archive.snapshot import run_snapshot
from pumphouse.client import admin
from pumphouse.errors import WindowHeld
from pumphouse.model.node import NodeState
from pumphouse.settings import ArchiveSettings
from tests.integration.test_archive_on_pumps import Chain
from tests.support.frozen import freeze
from tests.support.nojobs import NoJobHistory
from tests.support.oracle import Oracle, load
from tests.support.pumpserver import PumpServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.row("P13", "A2")


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    made = Chain(tmp_path, ArchiveSettings(root=f"file://{tmp_path}/archive"))
    yield made
    made.close()


def wait_for_answers(journal: Path, count: int) -> None:
    eventually(lambda: journal.exists() and journal.read_bytes().count(b"C ") > count, what="the load")


@pytest.mark.row("P9")
def test_a_third_pump_starts_while_the_archive_is_registered_and_nothing_of_it_is_missed(
    chain: Chain, tmp_path: Path
) -> None:
    chain.init()
    chain.write(0), chain.write(1)
    chain.snapshot()
    before = chain.cluster.tso()
    third = PumpServer(tmp_path, chain.cluster, node_id="pump-3")
    with third.start():
        chain.pumps.append(third)
        for _ in range(20):
            chain.write(0), chain.write(2), chain.write(1)
        # An interval that ended before the Pump was there: nothing of it can lie in that.
        chain.snapshot(before)
        chain.snapshot()
        assert chain.archived() == sorted(chain.commits)
        entry = chain.archive.last().pump("pump-3")
        assert entry is not None
        assert entry.start_count == 1


def test_a_pump_that_is_closed_under_load_is_offline_within_two_snapshots_and_loses_nothing(
    chain: Chain, tmp_path: Path
) -> None:
    chain.init()
    stay, leave = chain.pumps
    oracles = [Oracle(), Oracle()]
    journals = [tmp_path / "stay.journal", tmp_path / "leave.journal"]
    with load(stay, journals[0], seed=1, callers=4, streams=1, largest=3000):
        with load(leave, journals[1], seed=2, callers=8, streams=1, largest=3000):
            for journal in journals:
                wait_for_answers(journal, 100)
            chain.snapshot()
            admin.ask_state(chain.cluster, "pump-2", "close")
            eventually(lambda: leave.registered().state is NodeState.CLOSING)
        # Its clients have ended: Ps were refused, every C of theirs was taken.
        for _ in range(2):
            time.sleep(0.5)  # the interval
            chain.snapshot()
        assert leave.wait() == 0
        assert leave.registered().state is NodeState.OFFLINE
        wait_for_answers(journals[0], 300)
        stay.kill()
    chain.pumps[0].start()
    for oracle, journal in zip(oracles, journals, strict=True):
        oracle.read(journal)
    oracles[0].check(stay)
    chain.snapshot()
    archived = chain.archived()
    assert len(archived) == len(set(archived))
    answered = {ts for oracle in oracles for ts in oracle.committed.values()}
    sent = {ts for oracle in oracles for ts in oracle.commit_sent.values()}
    assert answered <= set(archived) <= sent
    assert chain.archive.last().pump("pump-2") is None or chain.archive.last().pump("pump-2").drained


def test_a_pump_that_hangs_is_named_by_the_snapshot_that_waits_for_it(chain: Chain) -> None:
    chain.init()
    chain.write(0), chain.write(1)
    freeze(chain.pumps[1].pid, chain.cluster)
    named: set[tuple[str, str]] = set()
    try:
        chain.write(0)
        settings = chain.settings.model_copy(
            update={"archive": chain.settings.archive.model_copy(update={"pull_timeout_s": 3.0})}
        )
        with pytest.raises(WindowHeld) as held:
            run_snapshot(
                chain.archive, chain.cluster, chain.cluster.tso(), settings, NoJobHistory(),
                lambda pulled: named.add((pulled.node_id, pulled.waiting_for)),
            )  # fmt: skip
        assert [holder["node_id"] for holder in held.value.holders] == ["pump-2"]
        assert "pump-2" in str(held.value)
        assert "pump-1" not in str(held.value)
    finally:
        os.kill(chain.pumps[1].pid, signal.SIGCONT)
    assert any(node == "pump-2" and why for node, why in named), named
    chain.snapshot()
    assert chain.archived() == sorted(chain.commits)
