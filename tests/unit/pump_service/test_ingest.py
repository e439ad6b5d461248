"""What a write passes, and how many callers become one group. On a real store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pump_service.intake.payloads import read_batch, read_group
from pump_service.node.lifecycle import Action
from pump_service.store.groups import Done
from pump_service.store.records import Records
from pump_service.store.store import Store
from pumphouse.errors import BadBinlog, ClusterMismatch, PumpDraining, PumpReadOnly, PumpUnavailable
from pumphouse.model.node import NodeState
from pumphouse.model.tso import compose, physical_ms
from pumphouse.proto.binlog_pb2 import PrewriteValue, TableMutation
from pumphouse.proto.pump_pb2 import WriteBinlogReq
from pumphouse.proto.pumphouse_pb2 import WriteBinlogsRequest
from pumphouse.registry.file import FileCluster
from tests.support.crashfs import FaultyFs
from tests.support.intakekit import CLUSTER, Intake, on_a_store
from tests.support.pumpserver import commit, prewrite, rollback
from tests.support.setclock import SetClock
from tests.support.storekit import fake as fake_item

pytestmark = pytest.mark.usefixtures("who_writes")


def fake(ts: int) -> bytes:
    return fake_item(ts).payload


class Bench(Intake):
    """An Ingest over a store that counts its groups and can be held."""

    def __init__(self, store: Store, queue_bytes: int, cluster: FileCluster) -> None:
        self.groups: list[int] = []
        self.held: list[Callable[[], None]] = []
        self.hold = False
        real = store.submit

        def submit(records: Records, done: Done, *, here: bool) -> None:
            self.groups.append(len(records))
            if self.hold:
                self.held.append(lambda: real(records, done))
            else:
                real(records, done, here=here)

        store.submit = submit  # type: ignore[method-assign]
        super().__init__(store, cluster, queue_bytes)

    async def indexed(self, prewrites: int) -> None:
        """That many Ps are open, no more and no less, once the index has caught up."""
        while self.store.status().queued_records or len(self.store.prewrites.oldest()) < prewrites:
            await asyncio.sleep(0.01)
        assert len(self.store.prewrites.oldest()) == prewrites

    async def holding(self) -> None:
        """Something was submitted and is held; whoever came with it waits for it, or for room."""
        while not self.held:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.02)

    def release(self) -> None:
        self.hold = False
        held, self.held = self.held, []
        for go in held:
            go()


def run(tmp_path: Path, test: Callable[[Bench], Awaitable[None]], *, queue_bytes: int = 1 << 20, **values: Any) -> None:
    on_a_store(tmp_path, lambda store, cluster: test(Bench(store, queue_bytes, cluster)), **values)


@pytest.mark.row("P3")
def test_what_one_turn_of_the_loop_brings_goes_as_one_group(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        await asyncio.gather(*(bench.ingest.write(prewrite(ts)) for ts in range(10, 60)))
        assert bench.groups == [50]
        await bench.indexed(50)

    run(tmp_path, test)


@pytest.mark.row("P3")
def test_calls_that_come_one_by_one_gather_while_the_disk_syncs(tmp_path: Path) -> None:
    fs = FaultyFs()

    async def test(bench: Bench) -> None:
        await bench.ingest.write(prewrite(1))
        before = fs.syncs
        fs.faults["sync"] = lambda _: time.sleep(0.01)
        calls = []
        for ts in range(10, 30):
            calls.append(asyncio.create_task(bench.ingest.write(prewrite(ts))))
            for _turn in range(10):  # of the loop, as a grpcio server takes for each call
                await asyncio.sleep(0)
        await asyncio.gather(*calls)
        assert fs.syncs - before < 8

    run(tmp_path, test, opening={"fs": fs}, clock=SetClock())  # no disk is slow, however busy this machine


def test_one_bad_payload_does_not_touch_its_neighbours(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        results = await asyncio.gather(
            bench.ingest.write(prewrite(10)),
            bench.ingest.write(b"\xff"),
            bench.ingest.write(prewrite(11)),
            return_exceptions=True,
        )
        assert [type(r) for r in results] == [type(None), BadBinlog, type(None)]
        statuses = await (await bench.ingest.write_batch([prewrite(12), b"\xff", b"", prewrite(13)]))
        assert [type(s) for s in statuses] == [type(None), BadBinlog, type(None), type(None)]
        await bench.indexed(4)
        assert await (await bench.ingest.write_batch([b"", b""])) == [None, None]
        assert await (await bench.ingest.write_batch([])) == []

    run(tmp_path, test)


def test_callers_wait_for_room_and_keep_their_order(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        bench.hold = True
        big = b"x" * 600_000
        first = asyncio.create_task(bench.ingest.write(prewrite(10, big)))
        second = asyncio.create_task(bench.ingest.write(prewrite(11, big)))
        third = asyncio.create_task(bench.ingest.write(prewrite(12, big)))
        await bench.holding()
        assert bench.groups == [1]  # the others do not fit beside the first
        bench.release()
        await asyncio.gather(first, second, third)
        await bench.indexed(3)
        assert [p.start_ts for p in bench.store.prewrites.oldest()] == [10, 11, 12]
        assert b"binlog_pump_queued_bytes 0.0" in bench.metrics.text()

    run(tmp_path, test)


def test_one_that_is_larger_than_the_queue_goes_alone(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        await asyncio.gather(bench.ingest.write(prewrite(10)), bench.ingest.write(prewrite(11, b"x" * 3_000_000)))
        await bench.indexed(2)

    run(tmp_path, test)


def test_a_caller_that_goes_away_leaves_the_others_their_answers(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        bench.hold = True
        gone = asyncio.create_task(bench.ingest.write(prewrite(10)))
        stays = asyncio.create_task(bench.ingest.write(prewrite(11)))
        await bench.holding()
        gone.cancel()
        bench.release()
        await stays
        await bench.submitter.settled()
        await bench.indexed(2)

    run(tmp_path, test)


@pytest.mark.row("P13")
def test_settled_waits_for_what_was_taken_before(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        bench.hold = True
        taken = asyncio.create_task(bench.ingest.write(prewrite(10)))
        await bench.holding()
        bench.life.apply(Action.CLOSE)
        settled = asyncio.create_task(bench.submitter.settled())
        await asyncio.sleep(0.05)
        assert not settled.done()
        bench.release()
        await settled
        await taken
        await bench.indexed(1)

    run(tmp_path, test)


@pytest.mark.row("P13", "W3")
def test_closing_refuses_prewrites_and_probes_and_takes_outcomes_until_the_end(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        await bench.ingest.write(prewrite(10))
        await bench.ingest.write(prewrite(11))
        bench.life.apply(Action.CLOSE)
        for payload in (prewrite(12), b""):
            with pytest.raises(PumpDraining, match="no online: closing") as refused:
                await bench.ingest.write(payload)
            assert refused.value.state == "closing"
        await bench.ingest.write(commit(10, 20))
        await bench.ingest.write(rollback(11))
        bench.life.refuse_outcomes()
        with pytest.raises(PumpDraining):
            await bench.ingest.write(rollback(13))

    run(tmp_path, test)


@pytest.mark.row("P13")
def test_a_prewrite_that_waited_for_room_is_judged_by_the_state_after_the_wait(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        bench.hold = True
        first = asyncio.create_task(bench.ingest.write(prewrite(10, b"x" * 900_000)))
        late = asyncio.create_task(bench.ingest.write(prewrite(11, b"x" * 900_000)))
        await bench.holding()
        bench.life.apply(Action.CLOSE)
        bench.release()
        await first
        with pytest.raises(PumpDraining):
            await late
        await bench.indexed(1)

    run(tmp_path, test)


@pytest.mark.row("P15")
def test_the_checks_come_in_the_order_of_the_go_pump(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        with pytest.raises(ClusterMismatch, match=f"cluster ID are mismatch, 5 vs {CLUSTER}"):
            bench.ingest.check_cluster(5)
        bench.ingest.check_cluster(CLUSTER)
        with pytest.raises(BadBinlog):  # before state and space
            await bench.ingest.write(b"\xff")
        with pytest.raises(PumpReadOnly, match="no available space"):  # a probe too
            await bench.ingest.write(b"")
        await bench.ingest.write(rollback(9))
        bench.life.apply(Action.PAUSE)
        with pytest.raises(PumpDraining):  # state before space
            await bench.ingest.write(prewrite(10))
        assert bench.life.state is NodeState.PAUSING

    run(tmp_path, test, stop_write_at_available_bytes=1 << 60)


@pytest.mark.row("P6", "W5")
def test_binlogs_from_the_future_are_refused_and_their_neighbours_taken(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        start = bench.cluster.tso()
        soon = compose(physical_ms(start) + 60_000)
        await bench.ingest.write(prewrite(start))
        for payload in (commit(start, soon), commit(start, 1 << 62), fake(soon), prewrite(soon), rollback(soon)):
            with pytest.raises(BadBinlog, match="future"):
                await bench.ingest.write(payload)
        other = bench.cluster.tso()
        statuses = await (
            await bench.ingest.write_batch(
                [prewrite(other), commit(start, soon), b"\xff", commit(other, bench.cluster.tso()), fake(1 << 62)]
            )
        )
        assert [type(status) for status in statuses] == [type(None), BadBinlog, BadBinlog, type(None), BadBinlog]
        await bench.ingest.write(commit(start, bench.cluster.tso()))
        while bench.store.watermark <= other:
            await asyncio.sleep(0.01)
        assert bench.store.watermark < bench.cluster.tso()
        assert bench.store.late() == []

    run(tmp_path, test)


def test_a_fresh_timestamp_is_never_refused_and_the_cluster_is_seldom_asked(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        asked = 0
        real = bench.cluster.tso

        def counted() -> Any:
            nonlocal asked
            asked += 1
            return real()

        bench.cluster.tso = counted  # type: ignore[method-assign]
        drawn = real()
        for _ in range(100):
            fresh = real()
            await bench.ingest.write(fake(fresh))
        await asyncio.sleep(0.01)
        asked_before = asked
        await asyncio.gather(*(bench.ingest.write(prewrite(drawn + n)) for n in range(200)))
        await asyncio.gather(*(bench.ingest.write(fake(real())) for _ in range(200)))
        assert asked - asked_before <= 3
        await bench.ingest.write(commit(drawn, real()))

    run(tmp_path, test)


def test_what_cannot_be_compared_is_refused_for_now(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        def down() -> Any:
            raise OSError(5, "down")

        fresh, bench.cluster.tso = bench.cluster.tso(), down  # type: ignore[method-assign]
        with pytest.raises(PumpUnavailable):
            await bench.ingest.write(fake(fresh))
        statuses = await (await bench.ingest.write_batch([fake(fresh), b""]))
        assert [type(status) for status in statuses] == [PumpUnavailable, type(None)]

    run(tmp_path, test)


NO_ROW = PrewriteValue(schema_version=1, mutations=[TableMutation(table_id=5, sequence=[0])]).SerializeToString()
OBSOLETE = PrewriteValue(schema_version=1, mutations=[TableMutation(table_id=5, deleted_ids=[7])]).SerializeToString()
ROWS = PrewriteValue(schema_version=1, mutations=[TableMutation(table_id=5, inserted_rows=[b"row"], sequence=[0])])


@pytest.mark.row("W2", "P1")
@pytest.mark.parametrize(
    ("value", "why"),
    [(b"\xff\xff\xff", "do not parse"), (NO_ROW, "has no row"), (OBSOLETE, "obsolete")],
    ids=["garbage", "no row", "obsolete"],
)
def test_a_prewrite_whose_rows_nobody_can_read_is_refused_at_every_door(value: bytes, why: str, tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        def grouped(*payloads: bytes) -> Any:
            requests = [WriteBinlogReq(clusterID=CLUSTER, payload=each).SerializeToString() for each in payloads]
            sizes = np.array([len(each) for each in requests])
            return read_group(np.frombuffer(b"".join(requests), np.uint8), np.cumsum(sizes) - sizes, sizes, CLUSTER)

        ts = bench.cluster.tso
        bad = prewrite(ts(), value)
        good, ddl = (
            prewrite(ts(), ROWS.SerializeToString()),
            prewrite(ts(), b"", ddl_query=b"create table t (a int)", ddl_job_id=7),
        )
        intake = grouped(good, bad, ddl, commit(1, 2))
        assert (intake.others, intake.unreadable) == (0, 1)
        bench.ingest._check_rows = True
        with pytest.raises(BadBinlog, match=why):
            await bench.ingest.write(bad)
        batch = WriteBinlogsRequest(cluster_id=CLUSTER, batch_id=1, payloads=[good, bad]).SerializeToString()
        for taken in (intake, grouped(bad), read_batch(batch)[2]):  # type: ignore[index]
            assert not bench.ingest.take(taken, lambda _: None)
            assert not await bench.ingest.take_soon(taken, lambda _: None)
        statuses = await (await bench.ingest.write_batch((good, bad, ddl)))
        assert [status is None for status in statuses] == [True, False, True]
        await bench.indexed(prewrites=2)
        bench.ingest._check_rows = False
        await bench.ingest.write(bad)
        assert bench.ingest.take(grouped(bad), lambda _: None)
        await bench.indexed(prewrites=3)

    run(tmp_path, test)
