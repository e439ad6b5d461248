"""A capture's publisher killed at every step of P, journal and C: the Pump has each transaction once, in order."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pumphouse.archive.archive import Archive
from pumphouse.capture.journal import Journal, Mark, open_journal
from pumphouse.capture.lease import Lease, Progress, new_owner
from pumphouse.capture.publish import Entry, Publisher
from pumphouse.capture.recover import Recovery
from pumphouse.capture.source.gtid import Flavor
from pumphouse.client.pump_client import PumpClient
from pumphouse.client.resolver import ResolverServer
from pumphouse.codec.payload import PrewriteValueBuilder
from pumphouse.registry.file import FileCluster
from pumphouse.settings import ArchiveSettings, TlsSettings
from tests.support.killed import Killed
from tests.support.pumpserver import PumpServer
from tests.support.rowreference import parse_prewrite_value

PREFIX = b"capture/main/"
# Seed and kills of a test; those of `make campaign` are more than 300 of each kind.
WITH_ITS_JOURNAL = [(4, 60), *(pytest.param(seed, 100, marks=pytest.mark.slow) for seed in range(5, 9))]
WITHOUT_IT = [(1, 30), *(pytest.param(seed, 60, marks=pytest.mark.slow) for seed in range(2, 8))]
STEPS = ("prewrites", "prewrites done", "append", "append done", "commits", "commits done")


class Life:
    """One process of a capture, of which a call kills it at a step."""

    def __init__(self, cluster: FileCluster, directory: Path, step: str, after: int) -> None:
        self._left = after
        self._step = step
        identity = {"capture": "main", "cluster_id": cluster.cluster_id()}
        mark = Mark(gtid="0-1-0", moment=0.0, schema=1, transactions=0)
        self.journal = open_journal(directory, identity) or Journal.begin(directory, identity, mark)
        self.client = PumpClient(cluster)
        self.publisher = Publisher(
            self.client,
            self.journal,
            PREFIX,
            held=lambda: None,
            add_jobs=lambda _: None,
            stop=threading.Event(),
        )
        for owner, name, step_name in (
            (self.client, "write_prewrites", "prewrites"),
            (self.journal, "append", "append"),
            (self.client, "write_commits", "commits"),
        ):
            setattr(owner, name, self._deadly(getattr(owner, name), step_name))
        self.resolver = ResolverServer(cluster, "capture-main", [PREFIX], self.publisher.answer)

    def _deadly(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self._reach(name)
            answer = original(*arguments)
            self._reach(f"{name} done")
            return answer

        return call

    def _reach(self, step: str) -> None:
        if step == self._step:
            self._left -= 1
            if self._left == 0:
                raise Killed

    def end(self) -> None:
        """As a killed process: nothing is flushed, nothing is taken back."""
        self.client.close(flush_s=0)
        self.resolver.close()
        self.journal.close()


def entries(first: int, count: int) -> Sequence[Entry]:
    numbers = range(first, first + count)
    return [Entry(f"0-1-{number}".encode(), value=PrewriteValueBuilder(number).build()) for number in numbers]


def _record(record_property: Callable[[str, object], None], at: Counter[str], wanted: int) -> None:
    """As many as were wanted, and at each step as many as at any other."""
    assert at.total() == wanted
    assert max(at.values()) - min(at[step] for step in STEPS) <= 1
    record_property("rounds", wanted)
    for step, times in at.items():
        record_property(f"kills at: {step}", times)


@pytest.mark.row("Q2")
@pytest.mark.parametrize(("seed", "wanted"), WITHOUT_IT)
def test_killed_at_every_step_with_its_journal_lost_it_goes_on_from_the_pumps_and_the_archive(
    tmp_path: Path, seed: int, wanted: int, record_property: Callable[[str, object], None]
) -> None:
    rng, transactions, at = random.Random(seed), 16 * wanted, Counter[str]()
    cluster = FileCluster(tmp_path / "cluster")
    archive = Archive.open(ArchiveSettings(root=f"file://{tmp_path / 'archive'}"), cluster.cluster_id())
    directory, owner, kills = tmp_path / "capture", "", 0
    with ExitStack() as stack:
        pumps = [
            stack.enter_context(PumpServer(tmp_path, cluster, node_id=name, max_txn_timeout_s=600.0))
            for name in ("pump-1", "pump-2")
        ]
        done = 0
        while done < transactions:
            dead, owner = owner, new_owner()
            lease = Lease.take(cluster, "main", source="", server="", owner=owner, dead=dead)
            (said,) = cluster.captures()
            mark = Mark(gtid="0-1-0", moment=0.0, schema=1, transactions=0, start_ts=cluster.tso())
            if said.gtid:
                found = Recovery(cluster, archive, [], said, PREFIX, lease.held, TlsSettings()).run(Flavor.MARIADB)
                mark = replace(mark, gtid=str(found.gtids), start_ts=found.start_ts, commit_ts=found.commit_ts)
            Journal.begin(directory, {"capture": "main", "cluster_id": cluster.cluster_id()}, mark).close()
            lease.say(Progress(mark=mark))
            step = STEPS[kills % len(STEPS)] if kills < wanted else ""
            life = Life(cluster, directory, step, rng.randrange(1, 5))
            try:
                done = int(life.journal.mark.gtid.rpartition("-")[2])
                while done < transactions:
                    count = rng.randrange(1, 9)
                    mark = Mark(gtid=f"0-1-{done + count}", moment=0.0, schema=1, transactions=done + count)
                    life.publisher.publish(entries(done + 1, count), mark)
                    done += count
                    if rng.random() < 0.3:
                        lease.say(Progress(mark=life.publisher.said))
                    if rng.random() < 0.3:
                        life.client.flush(10)
                life.client.flush(10)
            except Killed:
                kills += 1
                at[step] += 1
            finally:
                if done < transactions:
                    life.end()
                    shutil.rmtree(directory)
        _record(record_property, at, wanted)
        fence = cluster.tso()
        life.client.flush(20)
        found = sorted((each for pump in pumps for each in pump.pull_until(fence)), key=lambda each: each.commit_ts)
        life.end()
    assert [parse_prewrite_value(each.prewrite_value).schema_version for each in found] == list(range(1, done + 1))
    assert len({each.commit_ts for each in found}) == len(found)


@pytest.mark.row("Q2")
@pytest.mark.parametrize(("seed", "wanted"), WITH_ITS_JOURNAL)
def test_killed_at_every_step_nothing_is_lost_doubled_or_out_of_order(
    tmp_path: Path, seed: int, wanted: int, record_property: Callable[[str, object], None]
) -> None:
    rng, transactions, at = random.Random(seed), 16 * wanted, Counter[str]()
    cluster = FileCluster(tmp_path / "cluster")
    kills = 0
    with PumpServer(tmp_path, cluster, max_txn_timeout_s=1.0) as pump:
        done = 0
        while done < transactions:
            step = STEPS[kills % len(STEPS)] if kills < wanted else ""
            life = Life(cluster, tmp_path / "capture", step, rng.randrange(1, 4))
            try:
                done = int(life.journal.mark.gtid.rpartition("-")[2])
                while done < transactions:
                    count = rng.randrange(1, 5)
                    mark = Mark(gtid=f"0-1-{done + count}", moment=0.0, schema=1, transactions=done + count)
                    life.publisher.publish(entries(done + 1, count), mark)
                    done += count
                life.client.flush(10)
            except Killed:
                kills += 1
                at[step] += 1
            finally:
                if done < transactions:
                    life.end()
        _record(record_property, at, wanted)
        fence = cluster.tso()
        until = time.monotonic() + 60
        while pump.registered().max_commit_ts <= fence:  # every P has its outcome, told by the last resolver
            assert time.monotonic() < until
            time.sleep(0.1)
        found = pump.pull_until(fence)
        life.end()
    # A C that a Pump wrote by itself has no key: the value says which transaction it is.
    assert [parse_prewrite_value(each.prewrite_value).schema_version for each in found] == list(range(1, done + 1))
    assert [each.commit_ts for each in found] == sorted({each.commit_ts for each in found})
