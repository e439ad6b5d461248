"""A capture's publisher killed at every step of P, journal and C: the Pump has each transaction once, in order."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pumphouse.capture.journal import Journal, Mark, open_journal
from pumphouse.capture.publish import Entry, Publisher
from pumphouse.client.pump_client import PumpClient
from pumphouse.client.resolver import ResolverServer
from pumphouse.codec.payload import PrewriteValueBuilder, parse_prewrite_value
from pumphouse.registry.file import FileCluster
from tests.support.killed import Killed
from tests.support.pumpserver import PumpServer

PREFIX = b"capture/main/"
TRANSACTIONS = 300
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


@pytest.mark.row("Q2")
def test_killed_at_every_step_nothing_is_lost_doubled_or_out_of_order(tmp_path: Path) -> None:
    rng = random.Random(4)
    cluster = FileCluster(tmp_path / "cluster")
    kills = 0
    with PumpServer(tmp_path, cluster, max_txn_timeout_s=1.0) as pump:
        done = 0
        while done < TRANSACTIONS:
            step = STEPS[kills % len(STEPS)] if kills < 60 else ""
            life = Life(cluster, tmp_path / "capture", step, rng.randrange(1, 4))
            try:
                done = int(life.journal.mark.gtid.rpartition("-")[2])
                while done < TRANSACTIONS:
                    count = rng.randrange(1, 5)
                    mark = Mark(gtid=f"0-1-{done + count}", moment=0.0, schema=1, transactions=done + count)
                    life.publisher.publish(entries(done + 1, count), mark)
                    done += count
                life.client.flush(10)
            except Killed:
                kills += 1
            finally:
                if done < TRANSACTIONS:
                    life.end()
        assert kills >= 40
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
