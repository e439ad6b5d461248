"""Two questions to TiKV, carried to the leader of the key's region: regions split, merge and move, stores come and go.

Blocking; called on threads of the resolver. A question is put again until its deadline, which is safe for both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import grpc

from pump_service.resolve.base import NoAnswer
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.codec.bytes import append_comparable
from pumphouse.errors import ClusterUnavailable
from pumphouse.proto import errorpb_pb2 as errorpb
from pumphouse.proto import kvrpcpb_pb2 as kvrpcpb
from pumphouse.proto.tikvpb_pb2_grpc import TikvStub
from pumphouse.registry.pd_client import PdClient
from pumphouse.registry.pd_members import reason_of
from pumphouse.registry.regions import Located

R = TypeVar("R", kvrpcpb.MvccGetByKeyResponse, kvrpcpb.CheckTxnStatusResponse)

_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 2.0


class Calls(Protocol):
    """What the resolver asks of TiKV."""

    def look(self, key: bytes) -> kvrpcpb.MvccInfo:
        """Lock and versions of a key, as they are; changes nothing. NoAnswer when TiKV cannot say."""
        ...

    def check(self, key: bytes, start_ts: int, current_ts: int) -> kvrpcpb.CheckTxnStatusResponse:
        """Status of the transaction whose primary is ``key``; one that has neither lock nor record is rolled back."""
        ...


class TikvCalls:
    """`Calls` over gRPC."""

    def __init__(
        self, pd: PdClient, *, deadline_s: float = 30.0, timeout_s: float = 10.0, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._pd = pd
        self._deadline_s = deadline_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._closed = threading.Event()

    def look(self, key: bytes) -> kvrpcpb.MvccInfo:
        """``MvccGetByKey``; the key as TiDB has it, not in memcomparable form."""

        def ask(stub: TikvStub, context: kvrpcpb.Context, timeout: float) -> kvrpcpb.MvccGetByKeyResponse:
            request = kvrpcpb.MvccGetByKeyRequest(context=context, key=key)
            return stub.MvccGetByKey(request, timeout=timeout)  # type: ignore[no-any-return]

        response = self._at_leader(key, ask)
        if response.error:
            raise NoAnswer(f"TiKV cannot show the versions of key {key.hex()}: {response.error}")
        return response.info

    def check(self, key: bytes, start_ts: int, current_ts: int) -> kvrpcpb.CheckTxnStatusResponse:
        """``KvCheckTxnStatus`` with ``rollback_if_not_exist``."""

        def ask(stub: TikvStub, context: kvrpcpb.Context, timeout: float) -> kvrpcpb.CheckTxnStatusResponse:
            request = kvrpcpb.CheckTxnStatusRequest(
                context=context, primary_key=key, lock_ts=start_ts, caller_start_ts=start_ts, current_ts=current_ts,
                rollback_if_not_exist=True, force_sync_commit=False, resolving_pessimistic_lock=False,
                verify_is_primary=True,
            )  # fmt: skip
            return stub.KvCheckTxnStatus(request, timeout=timeout)  # type: ignore[no-any-return]

        return self._at_leader(key, ask)

    def close(self) -> None:
        """Questions under way end without an answer."""
        self._closed.set()

    def _at_leader(self, key: bytes, ask: Callable[[TikvStub, kvrpcpb.Context, float], R]) -> R:
        place = bytearray()
        append_comparable(place, key)  # how regions are bounded; TiKV's own calls take the key as it is
        until = self._clock.monotonic() + self._deadline_s
        wait = _FIRST_WAIT_S
        hinted = False
        while True:
            located: Located | None = None
            moved = False
            try:
                located = self._pd.locate(bytes(place))
                target = self._pd.store_address(located.leader.store_id)
                stub = TikvStub(self._pd.members.channel(target))
                context = kvrpcpb.Context(
                    region_id=located.region.id, region_epoch=located.region.region_epoch, peer=located.leader
                )
                left = max(0.1, until - self._clock.monotonic())
                response = ask(stub, context, min(self._timeout_s, left))
                if not response.HasField("region_error"):
                    return response
                failure = _text_of(response.region_error)
                moved = self._learn(located, response.region_error)
            except grpc.RpcError as error:
                failure = reason_of(error)
                if located is not None:
                    self._pd.forget(located)
            except ClusterUnavailable as error:
                failure = error.message
                if located is not None:
                    self._pd.forget(located)
            if self._closed.is_set() or self._clock.monotonic() + wait > until:
                raise NoAnswer(f"TiKV does not answer for key {key.hex()}: {failure}")
            # A leader that was named is asked at once, but two that name each other are not asked in a circle.
            if moved and not hinted:
                hinted = True
                continue
            hinted = False
            self._closed.wait(wait)
            wait = min(wait * 2, _LONGEST_WAIT_S)

    def _learn(self, located: Located, error: errorpb.Error) -> bool:
        """Take from a region error what it says; True = another peer leads, and is known."""
        if error.HasField("not_leader") and error.not_leader.leader.id:
            self._pd.move_leader(located, error.not_leader.leader)
            return True
        if not error.HasField("server_is_busy") and not error.HasField("stale_command"):
            self._pd.forget(located)
        return False


def _text_of(error: errorpb.Error) -> str:
    kinds = [field.name for field, _ in error.ListFields() if field.name != "message"]
    return f"region error {' '.join(kinds)}: {error.message}"


def show(message: Any, longest: int = 1 << 20) -> str:
    """A message of TiKV as text, cut where it would be too long."""
    return str(message)[:longest]
