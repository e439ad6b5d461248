"""Writes as they come from the wire: groups of ``WriteBinlog`` calls, and batches of ``WriteBinlogs`` streams.

Nearly all of them pass as they are, by columns. What does not goes through the same checks one by one
(`pump_service.intake.ingest`), which give each its own refusal.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import grpc
import structlog
from google.protobuf.message import DecodeError

from pump_service.door.group import Answer, AnswerGroup, Refusal, Requests
from pump_service.intake.ingest import Ingest
from pump_service.intake.payloads import Intake, read_batch, read_group
from pump_service.intake.submit import Statuses, Submitter
from pump_service.metrics import PumpMetrics
from pump_service.store.groups import Done
from pumphouse.errors import BadBinlog, BinlogError
from pumphouse.proto.pump_pb2 import WriteBinlogReq, WriteBinlogResp
from pumphouse.proto.pumphouse_pb2 import WriteBinlogsRequest, WriteBinlogsResponse
from pumphouse.rpc.status import code_and_reason, go_abort, item_status

log = structlog.get_logger()
DURABLE = WriteBinlogResp().SerializeToString()
_STATUS_OK = b"\x12\x00"  # field 2 of WriteBinlogsResponse, an empty ItemStatus


class GroupWrites:
    """``WriteBinlog`` calls of which many come at once. On the event loop."""

    def __init__(self, ingest: Ingest, submitter: Submitter, metrics: PumpMetrics) -> None:
        self._ingest = ingest
        self._submitter = submitter
        self._metrics = metrics
        self._written = metrics.rpc_seconds.labels("WriteBinlog", "succ")
        self._failed = metrics.rpc_seconds.labels("WriteBinlog", "fail")
        self._careful: set[asyncio.Task[None]] = set()

    def write_group(self, requests: Requests, answer: AnswerGroup) -> None:
        """Serialized ``WriteBinlogReq`` messages; every one is answered when all of them are durable or refused."""
        began = time.perf_counter()
        intake = read_group(requests.data, requests.starts, requests.sizes, self._ingest.cluster_id)

        def done(statuses: Statuses | None) -> None:
            seconds = time.perf_counter() - began
            if statuses is None:
                self._written.observe_many(seconds, len(requests))
                answer([DURABLE] * len(requests))
            else:
                answer(self._answers(statuses, seconds))

        if not self._ingest.take(intake, done):
            task = asyncio.get_running_loop().create_task(self._later(requests, intake, done, answer, began))
            self._careful.add(task)
            held = self._submitter.hold(len(requests.data), len(requests))

            def ended(task: asyncio.Task[None]) -> None:
                self._careful.discard(task)
                self._submitter.release(held)

            task.add_done_callback(ended)

    async def _later(
        self,
        requests: Requests,
        intake: Intake,
        done: Done,
        answer: AnswerGroup,
        began: float,
    ) -> None:
        try:
            if await self._ingest.take_soon(intake, done):
                return
            statuses = await asyncio.gather(*(self._one(request) for request in requests))
            answers = self._answers(statuses, time.perf_counter() - began)
        except Exception as error:
            # Nobody waits for this task: without an answer its callers would wait for ever.
            log.exception("write_failed", calls=len(requests))
            self._failed.observe_many(time.perf_counter() - began, len(requests))
            answers = [Refusal(grpc.StatusCode.UNKNOWN, _unexpected(error))] * len(requests)
        answer(answers)

    async def _one(self, request: bytes) -> BinlogError | None:
        try:
            message = WriteBinlogReq.FromString(request)
        except DecodeError as error:
            return BadBinlog(f"a request of {len(request)} bytes is no WriteBinlogReq: {error}", size=len(request))
        try:
            self._ingest.check_cluster(message.clusterID)
            await self._ingest.write(message.payload)
        except BinlogError as error:
            return error
        except Exception as error:  # the others of its group go on and have answers of their own
            log.exception("write_failed", calls=1)
            return BinlogError(_unexpected(error))
        return None

    def _answers(self, statuses: Statuses, seconds: float) -> list[Answer]:
        """One each, also where an error is one that cannot be put into words: without it a caller waits for ever."""
        answers: list[Answer] = []
        for status in statuses:
            try:
                answers.append(self._answered(status, seconds))
            except Exception as error:
                log.exception("refusal_failed")
                answers.append(Refusal(grpc.StatusCode.UNKNOWN, _unexpected(error)))
        return answers

    def _answered(self, status: BinlogError | None, seconds: float) -> Answer:
        if status is None:
            self._written.observe(seconds)
            return DURABLE
        self._failed.observe(seconds)
        self._metrics.refused.labels(code_and_reason(status)[1]).inc()
        return Refusal(*go_abort(status))


class BatchWrites:
    """Batches of ``WriteBinlogs`` streams. On the event loop."""

    def __init__(self, ingest: Ingest, submitter: Submitter) -> None:
        self._ingest = ingest
        self._submitter = submitter

    async def write_batch(self, request: bytes) -> asyncio.Future[bytes]:
        """A serialized ``WriteBinlogsRequest``, handed over as soon as there is room; the future has the response.

        Raises ClusterMismatch, and BadBinlog when it is no such message.
        """
        # A stream waits for room by itself; but of many streams each holds a batch meanwhile.
        held = self._submitter.hold(len(request), 1)
        try:
            return await self._hand_over(request)
        finally:
            self._submitter.release(held)

    async def _hand_over(self, request: bytes) -> asyncio.Future[bytes]:
        found = read_batch(request)
        if found is not None:
            cluster_id, batch_id, intake = found
            self._ingest.check_cluster(cluster_id)
            if len(intake.records):
                await self._submitter.room(len(request))
                answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

                def done(statuses: Statuses | None) -> None:
                    _set(answer, lambda: _response(batch_id, statuses, len(intake.records)))

                if self._ingest.take(intake, done) or await self._ingest.take_soon(intake, done):
                    return answer
        return await self._carefully(request)

    async def _carefully(self, request: bytes) -> asyncio.Future[bytes]:
        try:
            message = WriteBinlogsRequest.FromString(request)
        except DecodeError as error:
            raise BadBinlog(f"a request of {len(request)} bytes is no WriteBinlogsRequest: {error}") from error
        self._ingest.check_cluster(message.cluster_id)
        statuses = await self._ingest.write_batch(message.payloads)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def arrange(stored: asyncio.Future[Statuses]) -> None:
            _set(answer, lambda: _response(message.batch_id, stored.result(), len(message.payloads)))

        statuses.add_done_callback(arrange)
        return answer


def _set(answer: asyncio.Future[bytes], make: Callable[[], bytes]) -> None:
    """Set what is made, or the error of making it: the stream waits for one of them."""
    if answer.done():
        return
    try:
        answer.set_result(make())
    except Exception as error:  # noqa: BLE001 - raised where the stream waits
        answer.set_exception(error)


def _unexpected(error: Exception) -> str:
    return f"Unexpected {type(error)}: {error}"


def _response(batch_id: int, statuses: Sequence[BinlogError | None] | None, count: int) -> bytes:
    """A serialized ``WriteBinlogsResponse``."""
    if statuses is None or not any(statuses):
        return WriteBinlogsResponse(batch_id=batch_id).SerializeToString() + _STATUS_OK * count
    return WriteBinlogsResponse(batch_id=batch_id, statuses=[item_status(s) for s in statuses]).SerializeToString()
