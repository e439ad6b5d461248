"""`kill -9` on a Pump that serves a load, in every phase of its life; what was answered is pulled after each restart.

The clients run in a process of their own and keep the journal (tests/support/loadclient.py), the comparison is in
tests/support/oracle.py. `make campaign` runs 200 rounds; PUMPHOUSE_KILL_TRANSPORT and PUMPHOUSE_KILL_SEED choose.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import grpc
import pytest

from pumphouse.client.admin import ask_state
from pumphouse.registry.file import FileCluster
from pumphouse.settings import PumpSettings
from tests.support.oracle import Oracle, load
from tests.support.pumpserver import PumpServer

pytestmark = pytest.mark.row("P3", "P5")

ROUNDS_A_PART = 20
# Seeds whose two rounds are others: a rebuild of the index and GC; a close and plain load, with a queue of one record.
SAMPLES = {"builtin": 13, "grpcio": 22}


def transports() -> list[str]:
    """Those that this release has."""
    field = PumpSettings.model_fields.get("transport")
    found = [str(name) for name in get_args(field.annotation)] if field is not None else ["grpcio"]
    wanted = os.environ.get("PUMPHOUSE_KILL_TRANSPORT")
    return [wanted] if wanted else found


def with_transport(transport: str) -> dict[str, Any]:
    return {"transport": transport} if "transport" in PumpSettings.model_fields else {}


class Campaign:
    """One Pump over many kills."""

    def __init__(self, directory: Path, transport: str, seed: int) -> None:
        self.directory = directory
        self.seed = seed
        self.chance = random.Random(seed)
        self.cluster = FileCluster(directory / "cluster")
        self.oracle = Oracle()
        # Small files and a queue of one record: rotation and slow mode all the time, in some of the parts.
        self.largest = self.chance.choice([2_000, 100_000, 2_000_000])
        self.pump = PumpServer(
            directory, self.cluster,
            value_log_file_bytes=self.chance.choice([4096, 65536, 1 << 20]),
            index_queue_records=self.chance.choice([1, 500, 1 << 20]),
            slow_chaser_threshold_s=self.chance.choice([0.01, 1.0]),
            retention_s=0.2,
            **with_transport(transport),
        )  # fmt: skip
        self.kinds: dict[str, int] = {}

    def run(self, rounds: int) -> None:
        """Start, compare with everything so far, load, kill; and a last comparison of all that must be left."""
        kinds: list[Callable[[], None]] = [
            self.under_load, self.under_load, self.during_gc, self.during_stop, self.during_close,
            self.during_recovery, self.without_index, self.during_recovery_without_index,
        ]  # fmt: skip
        self.chance.shuffle(kinds)
        for number in range(rounds):
            kind = kinds[number % len(kinds)]
            with self.pump.start():
                self.oracle.check(self.pump)
                self._consumer()
                self._load_and(kind, number)
            self.kinds[kind.__name__] = self.kinds.get(kind.__name__, 0) + 1
        with self.pump.start():
            self.oracle.check(self.pump, whole=True)
            assert self.pump.stop() == 0

    def _consumer(self) -> None:
        """An archive that has seen about half of what is left."""
        if self.chance.random() < 0.5:
            known = [ts for ts in self.oracle.pulled if ts > self.cluster.tso() - (60_000 << 18)]
            self.pump.consumer(self.chance.choice(known) if known else self.oracle.verified)

    def _load_and(self, kill: Callable[[], None], number: int) -> None:
        journal = self.directory / f"{number}.journal"
        callers, streams = self.chance.choice([(24, 1), (8, 3), (64, 0)])
        with load(
            self.pump, journal, seed=self.seed * 1000 + number, callers=callers, streams=streams, largest=self.largest
        ):
            give_up = time.monotonic() + 120
            while not (journal.exists() and b"C" in journal.read_bytes()):
                assert time.monotonic() < give_up, "the load did not begin"
                time.sleep(0.02)
            time.sleep(self.chance.uniform(0, 0.8))
            kill()
        assert self.oracle.read(journal) > 0

    # ---- moments -----------------------------------------------------------------------------------------------------

    def under_load(self) -> None:
        self.pump.kill()

    def during_gc(self) -> None:
        trigger = threading.Thread(target=self._trigger_gc)
        trigger.start()
        time.sleep(self.chance.uniform(0, 0.15))
        os.kill(self.pump.pid, signal.SIGKILL)
        trigger.join()
        self.pump.kill()

    def _trigger_gc(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            self.pump.gc()

    def during_stop(self) -> None:
        os.kill(self.pump.pid, signal.SIGTERM)
        time.sleep(self.chance.uniform(0, 0.6))
        self.pump.kill()

    def during_close(self) -> None:
        ask_state(self.cluster, self.pump.node_id, "close")
        time.sleep(self.chance.uniform(0, 0.6))
        self.pump.kill()

    def during_recovery(self) -> None:
        self.pump.kill()
        for _ in range(self.chance.randint(1, 2)):
            self.pump.spawn()
            time.sleep(self.chance.uniform(0.4, 1.6))
            self.pump.kill()

    def without_index(self) -> None:
        self.pump.kill()
        shutil.rmtree(self.pump.data_dir / "kv")

    def during_recovery_without_index(self) -> None:
        self.without_index()
        self.pump.spawn()
        time.sleep(self.chance.uniform(0.4, 1.6))
        self.pump.kill()


@pytest.mark.parametrize("transport", transports())
def test_a_sample_of_kills_loses_nothing_that_was_answered(transport: str, tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, transport, seed=SAMPLES.get(transport, 11))
    campaign.run(2)
    assert campaign.oracle.counted > 50


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("transport", transports())
@pytest.mark.parametrize("part", range(10))
def test_200_kills_lose_nothing_that_was_answered(
    part: int, transport: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = int(os.environ.get("PUMPHOUSE_KILL_SEED", "20261121")) + part
    campaign = Campaign(tmp_path, transport, seed)
    record_property("seed", seed)
    record_property("transport", transport)
    campaign.run(ROUNDS_A_PART)
    record_property("rounds", ROUNDS_A_PART)
    record_property("answered", campaign.oracle.counted)
    record_property("kinds", campaign.kinds)
