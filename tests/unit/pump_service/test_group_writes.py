"""Groups of unary writes: the fast way by columns gives what the careful way gives, call by call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from pump_service.api import writes
from pump_service.api.batch_api import PumpBatchApi
from pump_service.api.rights import Rights
from pump_service.api.writes import DURABLE, BatchWrites, GroupWrites
from pump_service.door.group import Answer, Refusal, Requests
from pump_service.intake import convert
from pump_service.intake.payloads import read_group
from pump_service.intake.submit import Statuses
from pump_service.node.lifecycle import Action
from pump_service.store.groups import Done
from pump_service.store.records import Records
from pump_service.store.store import Store
from pumphouse.errors import WriterFailed
from pumphouse.model.tso import Tso, compose
from pumphouse.proto.pump_pb2 import WriteBinlogReq
from pumphouse.proto.pumphouse_pb2 import WriteBinlogsRequest, WriteBinlogsResponse
from pumphouse.registry.file import FileCluster
from pumphouse.settings import TlsSettings
from tests.support.crashfs import FaultyFs
from tests.support.intakekit import CLUSTER, Intake, on_a_store
from tests.support.setclock import SetClock
from tests.support.storekit import (
    commit,
    log_payloads,
    prewrite,
    rollback,
    settle,
    until,
    write_lock,
    writer_of,
)

pytestmark = pytest.mark.usefixtures("who_writes")


class Bench(Intake):
    """Group and batch writes on a real store."""

    def __init__(self, store: Store, cluster: FileCluster, queue_bytes: int) -> None:
        super().__init__(store, cluster, queue_bytes)
        self.groups = GroupWrites(self.ingest, self.submitter, self.metrics)
        self.batches = BatchWrites(self.ingest, self.submitter)

    async def write(self, *payloads: bytes, cluster_id: int = CLUSTER) -> Sequence[Answer]:
        """One group."""
        answered: asyncio.Future[Sequence[Answer]] = asyncio.get_running_loop().create_future()
        requests = [WriteBinlogReq(clusterID=cluster_id, payload=payload).SerializeToString() for payload in payloads]
        self.groups.write_group(Requests.of(requests), answered.set_result)
        return await answered


def run(tmp_path: Path, test: Callable[[Bench], Awaitable[None]], queue_bytes: int = 1 << 20, **opening: Any) -> None:
    on_a_store(tmp_path, lambda store, cluster: test(Bench(store, cluster, queue_bytes)), **opening)


def _code_and_text(answer: Answer) -> tuple[grpc.StatusCode, str]:
    assert isinstance(answer, Refusal)
    return answer.code, answer.details


@pytest.mark.row("P3", "W1")
def test_a_group_is_durable_in_order_when_it_is_answered(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        items = [prewrite(10, b"a" * 300), commit(10, 11), prewrite(12), rollback(12)]
        sent = [item.payload for item in items]
        # What leaves the last fields out is stored with them.
        answers = await bench.write(sent[0], sent[1][:-4], sent[2], sent[3][:-2])
        assert [answer is DURABLE for answer in answers] == [True] * 4
        assert log_payloads(bench.store) == sent
        assert (await bench.write(sent[0][:-4]))[0] is DURABLE

    run(tmp_path, test)


@pytest.mark.row("W1")
def test_each_call_of_a_mixed_group_has_its_own_answer(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        answers = await bench.write(prewrite(10).payload, b"\xff", b"", commit(10, 9).payload, prewrite(11).payload)
        assert [answer is DURABLE for answer in answers] == [True, False, True, False, True]
        code, text = _code_and_text(answers[1])
        assert code is grpc.StatusCode.UNKNOWN
        assert text.startswith("proto: ")
        assert {bytes(payload) for payload in log_payloads(bench.store)} == {prewrite(10).payload, prewrite(11).payload}
        (refused,) = await bench.write(prewrite(20).payload, cluster_id=5)
        assert _code_and_text(refused) == (grpc.StatusCode.UNKNOWN, "cluster ID are mismatch, 5 vs 77")

    run(tmp_path, test)


@pytest.mark.row("W1", "P13")
def test_prewrites_of_a_closing_pump_are_refused_and_outcomes_taken(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        assert await bench.write(prewrite(10).payload) == [DURABLE]
        bench.life.apply(Action.CLOSE)
        answers = await bench.write(prewrite(20).payload, commit(10, 11).payload)
        assert _code_and_text(answers[0]) == (grpc.StatusCode.UNKNOWN, "no online: closing")
        assert answers[1] is DURABLE
        bench.life.refuse_outcomes()
        (refused,) = await bench.write(rollback(10).payload)
        assert isinstance(refused, Refusal)

    run(tmp_path, test)


@pytest.mark.row("P8", "W1")
def test_times_of_the_future_are_refused_and_those_of_now_asked_about_once(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        now = bench.cluster.tso()
        assert await bench.write(prewrite(now).payload, prewrite(now - 5).payload) == [DURABLE, DURABLE]
        far = compose((now >> 18) + 3_600_000)
        answers = await bench.write(prewrite(now - 9).payload, prewrite(far).payload)
        assert answers[0] is DURABLE
        assert "from the future" in _code_and_text(answers[1])[1]

    run(tmp_path, test)


@pytest.mark.row("P3", "P6")
def test_batches_of_one_stream_are_stored_in_its_order_though_one_is_checked_item_by_item(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        first = WriteBinlogsRequest(cluster_id=CLUSTER, payloads=[prewrite(10).payload, b"\xff", prewrite(11).payload])
        second = WriteBinlogsRequest(cluster_id=CLUSTER, payloads=[commit(10, 12).payload, commit(11, 13).payload])
        answers = [await bench.batches.write_batch(request.SerializeToString()) for request in (first, second)]
        await asyncio.gather(*answers)
        settle(bench.store)
        assert log_payloads(bench.store) == [*(first.payloads[at] for at in (0, 2)), *second.payloads]
        assert not bench.store.prewrites.oldest()

    run(tmp_path, test)


@pytest.mark.row("P15")
def test_reading_is_held_back_while_the_queue_is_full(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        calls: list[str] = []
        bench.submitter.hold_back(lambda: calls.append("pause"), lambda: calls.append("resume"))
        writes = [asyncio.create_task(bench.write(prewrite(n, b"v" * 60_000).payload)) for n in range(1, 30)]
        await asyncio.gather(*writes)
        assert "pause" in calls
        assert calls[-1] == "resume"
        await bench.submitter.settled()

    run(tmp_path, test)


@pytest.mark.row("W2", "P3")
def test_a_batch_has_a_status_for_each_payload(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        async def write(payloads: list[bytes]) -> WriteBinlogsResponse:
            request = WriteBinlogsRequest(cluster_id=CLUSTER, batch_id=9, payloads=payloads)
            return WriteBinlogsResponse.FromString(await (await bench.batches.write_batch(request.SerializeToString())))

        good = [prewrite(n).payload for n in range(1, 400)]
        answer = await write(good)
        assert (answer.batch_id, [status.code for status in answer.statuses]) == (9, [0] * 399)
        answer = await write([commit(1, 500).payload, b"\xff", b"", commit(2, 501).payload])
        assert [status.reason for status in answer.statuses] == ["", "BAD_BINLOG", "", ""]
        assert list((await write([])).statuses) == []
        assert len(log_payloads(bench.store)) == 401
        await asyncio.to_thread(settle, bench.store)

    run(tmp_path, test)


@pytest.mark.row("W1")
def test_an_error_that_nobody_expects_refuses_the_group_and_the_others_go_on(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        future = prewrite(1 << 60).payload

        def broken() -> Tso:
            raise RuntimeError("no clock")

        assert await bench.write(prewrite(9).payload) == [DURABLE]  # the cluster's time is known from here on
        bench.cluster.tso = broken  # type: ignore[method-assign]
        with capture_logs() as logs:
            answers = await asyncio.wait_for(bench.write(future, future), 5)
            mixed = await asyncio.wait_for(bench.write(prewrite(10).payload, b"\xff", future), 5)
        for refused in (*answers, mixed[2]):
            code, text = _code_and_text(refused)
            assert code is grpc.StatusCode.UNKNOWN
            assert "no clock" in text
        assert mixed[0] is DURABLE
        assert {entry["event"] for entry in logs} == {"write_failed"}

    run(tmp_path, test)


@pytest.mark.row("W1", "P15")
def test_an_answer_that_fails_keeps_no_other_back(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        calls: list[str] = []
        bench.submitter.hold_back(lambda: calls.append("pause"), lambda: calls.append("resume"))

        def fail(answers: Sequence[Answer]) -> None:
            raise RuntimeError("a group that cannot be answered")

        request = WriteBinlogReq(clusterID=CLUSTER, payload=prewrite(9, b"v" * (2 << 20)).payload).SerializeToString()
        with capture_logs() as logs, write_lock(bench.store):
            bench.groups.write_group(Requests.of([request]), fail)
            after = [asyncio.ensure_future(bench.write(prewrite(n).payload)) for n in (10, 11)]
            await asyncio.sleep(0)
        with capture_logs() as logs:
            answers = await asyncio.wait_for(asyncio.gather(*after), 5)
        assert [list(each) for each in answers] == [[DURABLE], [DURABLE]]
        assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == ["answer_failed"]
        await asyncio.wait_for(bench.submitter.room(1 << 20), 5)
        assert (calls[0], calls[-1]) == ("pause", "resume")

    run(tmp_path, test)


@pytest.mark.row("W2")
@pytest.mark.parametrize("broken", ["the clock", "the store"])
def test_a_stream_of_batches_ends_with_an_error_that_nobody_expects(tmp_path: Path, broken: str) -> None:
    async def test(bench: Bench) -> None:
        def fail(*args: object, **named: object) -> Tso:
            raise RuntimeError("nobody expects this")

        if broken == "the clock":
            bench.cluster.tso = fail  # type: ignore[method-assign]
        else:
            bench.store.submit = fail  # type: ignore[method-assign,assignment]
        api = PumpBatchApi(
            bench.ingest, bench.batches, None, None, bench.metrics, pull_bytes=1 << 20, rights=Rights(TlsSettings())
        )  # type: ignore[arg-type]
        payloads = [prewrite(1 << 60 if broken == "the clock" else 5).payload]

        async def requests() -> AsyncIterator[bytes]:
            yield WriteBinlogsRequest(cluster_id=CLUSTER, batch_id=1, payloads=payloads).SerializeToString()

        answers = api.WriteBinlogs(requests(), None)  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="nobody expects"):
            await asyncio.wait_for(anext(answers), 5)
        assert bench.submitter.queued == 0
        await asyncio.wait_for(bench.submitter.settled(), 5)

    run(tmp_path, test)


@pytest.mark.row("W1")
def test_a_store_that_fails_in_its_own_way_refuses_what_was_handed_over(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        def fail(*args: object, **named: object) -> None:
            raise RuntimeError("nobody expects this")

        bench.store.submit = fail  # type: ignore[method-assign,assignment]
        with capture_logs():
            answers = await asyncio.wait_for(bench.write(prewrite(5).payload, b"\xff"), 5)
        assert "nobody expects this" in _code_and_text(answers[0])[1]
        assert bench.submitter.queued == 0

    run(tmp_path, test)


@pytest.mark.row("W1")
def test_items_that_cannot_be_handed_over_leave_the_room_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(bench: Bench) -> None:
        def fail(*args: object) -> Records:
            raise MemoryError("no memory for the records")

        monkeypatch.setattr(Records, "of", fail)
        waits = bench.submitter.submit([prewrite(5)])
        with capture_logs():
            (refused,) = await asyncio.wait_for(waits, 5)
        assert "no memory for the records" in str(refused)
        await asyncio.wait_for(bench.submitter.room(1 << 20), 5)

    run(tmp_path, test)


@pytest.mark.row("P15")
@pytest.mark.parametrize("tail", [b"", b"\xa8\x06\x01"], ids=["by columns", "one by one"])
def test_groups_that_wait_for_the_disk_hold_readers_back_whichever_way_they_go(tmp_path: Path, tail: bytes) -> None:
    async def test(bench: Bench) -> None:
        calls: list[str] = []
        bench.submitter.hold_back(lambda: calls.append("pause"), lambda: calls.append("resume"))
        payload = prewrite(10, b"v" * 200_000).payload + tail  # with a field that is unknown
        with write_lock(bench.store):
            under_way: list[asyncio.Future[Sequence[Answer]]] = []
            while "pause" not in calls:
                assert len(under_way) < 4
                under_way.append(asyncio.ensure_future(bench.write(payload, payload)))
                await asyncio.sleep(0)
            assert "resume" not in calls
        # The groups are more than the whole queue, and wait for room in it all the same.
        under_way += [asyncio.ensure_future(bench.write(payload, payload)) for _ in range(4)]
        assert await asyncio.wait_for(asyncio.gather(*under_way), 20) == [[DURABLE, DURABLE]] * len(under_way)
        await asyncio.sleep(0)
        assert calls[-1] == "resume"
        assert bench.submitter.queued + bench.submitter.held == 0

    run(tmp_path, test)


@pytest.mark.row("P15")
@pytest.mark.parametrize("tail", [b"", b"\xa8\x06\x01"], ids=["by columns", "one by one"])
def test_batches_that_wait_for_room_hold_readers_back(tmp_path: Path, tail: bytes) -> None:
    """Each stream waits by itself; all that are read meanwhile would be in memory with a batch each."""

    async def test(bench: Bench) -> None:
        calls: list[str] = []
        bench.submitter.hold_back(lambda: calls.append("pause"), lambda: calls.append("resume"))
        payload = prewrite(10, b"v" * 300_000).payload + tail
        request = WriteBinlogsRequest(cluster_id=CLUSTER, payloads=[payload]).SerializeToString()
        with write_lock(bench.store):
            writes: list[asyncio.Future[asyncio.Future[bytes]]] = []
            while "pause" not in calls:
                assert len(writes) < 8
                writes.append(asyncio.ensure_future(bench.batches.write_batch(request)))
                await asyncio.sleep(0)
            assert bench.submitter.queued <= 1 << 20
        for write in writes:
            assert await (await asyncio.wait_for(write, 20)) == b"\x12\x00"
        await asyncio.sleep(0)
        assert calls[-1] == "resume"
        assert bench.submitter.queued + bench.submitter.held == 0

    run(tmp_path, test)


@pytest.mark.row("W1", "P15")
@pytest.mark.parametrize("tail", [b"", b"\xa8\x06\x01"], ids=["by columns", "one by one"])
def test_a_refusal_that_cannot_be_told_is_an_answer_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail: bytes
) -> None:
    async def test(bench: Bench) -> None:
        def submit(records: Records, done: Done, *, here: bool) -> None:
            # As the path of a data directory that is no UTF-8 has it.
            asyncio.get_running_loop().call_soon(done, [WriterFailed("EIO on /data/\udcff")] * len(records))

        assert await bench.write(prewrite(4).payload) == [DURABLE]  # the cluster's clock was asked
        stores = bench.store.submit
        bench.store.submit = submit  # type: ignore[method-assign]

        def fail(error: object) -> None:
            raise UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed")

        api = PumpBatchApi(
            bench.ingest, bench.batches, None, None, bench.metrics, pull_bytes=1 << 20, rights=Rights(TlsSettings())
        )  # type: ignore[arg-type]
        payloads = [prewrite(n).payload + tail for n in (5, 6)]

        async def requests() -> AsyncIterator[bytes]:
            yield WriteBinlogsRequest(cluster_id=CLUSTER, batch_id=1, payloads=payloads).SerializeToString()

        with pytest.raises(ValueError, match="surrogates not allowed"):  # which ends the stream
            await asyncio.wait_for(anext(api.WriteBinlogs(requests(), None)), 5)  # type: ignore[arg-type]
        monkeypatch.setattr(writes, "go_abort", fail)
        with capture_logs():
            answers = await asyncio.wait_for(bench.write(*payloads), 5)
        assert all("surrogates not allowed" in _code_and_text(answer)[1] for answer in answers)
        bench.store.submit = stores  # type: ignore[method-assign]
        assert await asyncio.wait_for(bench.write(*payloads), 5) == [DURABLE, DURABLE]

    run(tmp_path, test)


@pytest.mark.row("P17", "W1")
def test_a_binlog_over_the_limit_is_refused_so_that_tidb_does_not_send_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(bench: Bench) -> None:
        monkeypatch.setattr(convert, "MAX_TRANSACTION_BYTES", 300)
        # What the kernel leaves to protobuf, as it does with all that is over the limit (test_parse).
        small, large = (prewrite(ts, bytes(size)).payload + b"\x7a\x03new" for ts, size in ((5, 200), (6, 300)))
        answers = await bench.write(small, large)
        assert answers[0] is DURABLE
        code, text = _code_and_text(answers[1])
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"received message larger than max ({len(large)} vs. 300)" in text
        assert f"a binlog of {len(large)} bytes is over the limit of 300" in text

    run(tmp_path, test)


@pytest.mark.row("P13")
def test_settled_waits_for_the_groups_that_were_sent_before_it_and_for_no_later_one(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        held: list[Callable[[], None]] = []
        real = bench.store.submit

        def submit(*args: Any, here: bool) -> None:
            held.append(lambda: real(*args))

        await bench.write(prewrite(9).payload)  # the cluster's clock was asked
        bench.store.submit = submit  # type: ignore[method-assign]
        writes = [asyncio.create_task(bench.write(prewrite(ts).payload)) for ts in (1, 2)]
        await asyncio.sleep(0)
        assert len(held) == 2
        settled = asyncio.create_task(bench.submitter.settled())
        await asyncio.sleep(0)
        later = asyncio.create_task(bench.write(prewrite(3).payload))
        await asyncio.sleep(0.05)
        assert len(held) == 3
        assert f"binlog_pump_queued_bytes {float(bench.submitter.queued)}".encode() in bench.metrics.text()
        assert bench.submitter.queued > 0
        held[0]()
        await writes[0]
        assert not settled.done()
        held[1]()
        await asyncio.wait_for(settled, 5)
        assert writes[1].done()
        assert not later.done()
        held[2]()
        await later
        assert b"binlog_pump_queued_bytes 0.0" in bench.metrics.text()

    run(tmp_path, test)


@pytest.mark.row("P3")
def test_between_a_small_group_and_its_answer_no_thread_changes(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    fs = FaultyFs()

    async def test(bench: Bench) -> None:
        assert await bench.write(prewrite(1).payload) == [DURABLE]  # a file is begun, the disk was looked at
        await asyncio.to_thread(until, lambda: writer_of(bench.store).groups == 1)
        writes_here: list[bool] = []
        fs.faults["write"] = lambda _: writes_here.append(threading.current_thread() is threading.main_thread())
        for ts in range(10, 30):
            assert await bench.write(prewrite(ts).payload, rollback(ts).payload) == [DURABLE] * 2
        assert writes_here == ["[loop]" in request.node.name] * 20

    # However busy this machine: no disk is slow, and it is looked at once.
    run(tmp_path, test, opening={"fs": fs}, clock=SetClock())


@pytest.mark.row("W1", "P13")
def test_a_store_that_closes_answers_after_the_call_not_in_it(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        await asyncio.to_thread(bench.store.close)
        answers: list[Statuses | None] = []
        requests = Requests.of([WriteBinlogReq(clusterID=CLUSTER, payload=prewrite(1).payload).SerializeToString()])
        bench.submitter.send(
            read_group(requests.data, requests.starts, requests.sizes, CLUSTER).records, answers.append
        )
        assert answers == []
        while not answers:
            await asyncio.sleep(0)
        assert [type(status) for status in answers[0] or ()] == [WriterFailed]
        assert bench.submitter.queued == 0

    run(tmp_path, test)
