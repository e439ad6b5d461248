"""Whatever clients, readers, GC and the Pump do to a primary, and in whatever order: an outcome once told is the truth.

`rolled_back` may never be answered for a transaction that was committed, or that any message still under way can commit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from include.model.tso import compose, physical_ms
from include.proto import kvrpcpb_pb2 as kvrpcpb
from pump_service.resolve.base import Fate, NoAnswer, Outcome
from pump_service.resolve.gc_hold import GcHold
from pump_service.resolve.tikv import TikvResolver
from tests.support.pd import PdState
from tests.support.percolator import Lock, Percolator, Refused

pytestmark = pytest.mark.row("P6")

KEYS = [b"t" + bytes(8) + b"_r" + bytes([n]) * 8 for n in range(2)]
KINDS = ("optimistic", "pessimistic", "async")


@dataclass
class Txn:
    """A transaction as its client has it; its messages may come late, twice or never."""

    start_ts: int
    key: bytes
    kind: str
    prewritten: bool = False
    commit_ts: int = 0
    told: Outcome | None = None


@dataclass
class World:
    """TiKV, PD and time; what the resolver asks passes through here, and things happen in between."""

    data: Percolator = field(default_factory=Percolator)
    pd: PdState = field(default_factory=PdState)
    now_ms: int = 10_000_000
    meanwhile: list[Callable[[], None]] = field(default_factory=list)

    def tso(self) -> int:
        self.pd.last = max(self.pd.last + 1, compose(self.now_ms))
        return self.pd.last

    def between(self) -> None:
        if self.meanwhile:
            self.meanwhile.pop(0)()

    # Calls
    def look(self, key: bytes) -> kvrpcpb.MvccInfo:
        self.between()
        return self.data.look(key)

    def check(self, key: bytes, start_ts: int, current_ts: int) -> kvrpcpb.CheckTxnStatusResponse:
        self.between()
        answer = self.status(key, start_ts, current_ts, roll_back=True)
        self.between()
        return answer

    def status(self, key: bytes, start_ts: int, now: int, *, roll_back: bool) -> kvrpcpb.CheckTxnStatusResponse:
        return self.data.check(
            kvrpcpb.CheckTxnStatusRequest(
                primary_key=key, lock_ts=start_ts, caller_start_ts=start_ts, current_ts=now,
                rollback_if_not_exist=roll_back, verify_is_primary=True,
            )
        )  # fmt: skip

    # SafePoints
    def gc_safe_point(self) -> int:
        self.between()
        return self.pd.gc_safe_point

    def hold_gc(self, service_id: str, safe_point: int, ttl_s: int) -> int:
        del ttl_s
        self.between()
        return self.pd.hold(service_id, safe_point, 1 << 30)

    def release_gc(self, service_id: str) -> None:
        self.pd.hold(service_id, 0, 0)


class Outcomes(RuleBasedStateMachine):
    """Random histories."""

    @initialize(holds=st.booleans())
    def begin(self, holds: bool) -> None:
        self.world = World()
        self.txns: list[Txn] = []
        self.gc: list[Callable[[], None]] = []  # steps of a GC run that has begun
        self.holds = holds  # else the Pump was down too long: its service safe point is gone
        self.hold = GcHold(self.world, "p", self.oldest, ttl_s=60)
        self.resolver = TikvResolver(self.world, self.hold, self.world.tso, close=lambda: None)

    def oldest(self) -> int | None:
        return min((txn.start_ts for txn in self.txns if txn.told is None), default=None)

    # ---- clients -----------------------------------------------------------------------------------------------

    @rule(key=st.sampled_from(KEYS), kind=st.sampled_from(KINDS))
    def start(self, key: bytes, kind: str) -> None:
        self.txns.append(Txn(self.world.tso(), key, kind))

    def prewrite_of(self, txn: Txn) -> None:
        lock = Lock(txn.start_ts, txn.key, 3000)
        if txn.kind == "async":
            lock.async_commit, lock.secondaries = True, (b"other",)
        if txn.kind == "pessimistic":
            lock.for_update_ts = txn.start_ts
        with contextlib.suppress(Refused):
            self.world.data.prewrite(txn.key, lock)
            txn.prewritten = True

    def commit_of(self, txn: Txn) -> None:
        if not txn.prewritten:
            return
        txn.commit_ts = txn.commit_ts or self.world.tso()
        with contextlib.suppress(Refused):
            self.world.data.commit(txn.key, txn.start_ts, txn.commit_ts)

    @precondition(lambda self: self.txns)
    @rule(data=st.data())
    def prewrite(self, data: st.DataObject) -> None:
        self.prewrite_of(data.draw(st.sampled_from(self.txns)))

    @precondition(lambda self: self.txns)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        self.commit_of(data.draw(st.sampled_from(self.txns)))

    @precondition(lambda self: self.txns)
    @rule(data=st.data(), gone=st.booleans())
    def a_reader_meets_the_lock(self, data: st.DataObject, gone: bool) -> None:
        txn = data.draw(st.sampled_from(self.txns))
        self.world.status(txn.key, txn.start_ts, self.world.tso(), roll_back=gone)

    @precondition(lambda self: self.txns)
    @rule(data=st.data())
    def the_client_rolls_back(self, data: st.DataObject) -> None:
        txn = data.draw(st.sampled_from(self.txns))
        record = self.world.data.key(txn.key).record(txn.start_ts)
        if record is None and txn.kind != "async":
            self.world.data.roll_back(txn.key, txn.start_ts, protected=txn.kind == "pessimistic")

    # ---- time and GC -------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 2_000, 4_000, 700_000]))
    def time_passes(self, ms: int) -> None:
        self.world.now_ms += ms

    @precondition(lambda self: not self.gc)
    @rule(back=st.sampled_from([0, 1_000, 600_000]), dropped=st.sets(st.sampled_from(KEYS)))
    def gc_begins(self, back: int, dropped: set[bytes]) -> None:
        """As TiDB's worker: a safe point, locks resolved, dropped ranges destroyed, then PD told, then versions go.

        It never passes a transaction whose client still lives: TiDB's servers report theirs.
        """
        world = self.world
        alive = [txn.start_ts for txn in self.txns if not txn.commit_ts and txn.told is None and self.may_live(txn)]
        wanted = min([compose(world.now_ms - back), *(ts - 1 for ts in alive)])
        safe_point = world.pd.collect(wanted)

        def destroy() -> None:
            for key in dropped:
                state = world.data.key(key)
                if (state.lock is None or state.lock.start_ts > safe_point) and all(
                    ts <= safe_point for ts in state.writes
                ):
                    world.data.destroy(key)

        def tell() -> None:
            world.pd.gc_safe_point = max(world.pd.gc_safe_point, safe_point)

        self.gc = [lambda: world.data.resolve_locks(safe_point), destroy, tell, lambda: world.data.collect(safe_point)]

    def may_live(self, txn: Txn) -> bool:
        return self.world.now_ms - physical_ms(txn.start_ts) < 650_000

    @precondition(lambda self: self.gc)
    @rule()
    def gc_goes_on(self) -> None:
        self.gc.pop(0)()

    # ---- the Pump ----------------------------------------------------------------------------------------------

    @rule()
    def the_hold_is_renewed(self) -> None:
        if self.holds:
            self.hold.renew()

    @precondition(lambda self: any(txn.told is None for txn in self.txns))
    @rule(data=st.data(), decide=st.booleans(), gap=st.integers(0, 6))
    def the_pump_asks(self, data: st.DataObject, decide: bool, gap: int) -> None:
        txn = data.draw(st.sampled_from([txn for txn in self.txns if txn.told is None]))
        other = data.draw(st.sampled_from(self.txns))
        steps: list[Callable[[], None]] = [lambda: None] * gap
        for _ in range(data.draw(st.integers(0, 3))):
            steps.append(
                data.draw(
                    st.sampled_from(
                        [
                            lambda: self.prewrite_of(other),
                            lambda: self.commit_of(other),
                            lambda: self.gc.pop(0)() if self.gc else None,
                        ]
                    )
                )
            )
        self.world.meanwhile = steps
        try:
            outcome = self.resolver.settle(txn.start_ts, txn.key, decide=decide)
        except NoAnswer:
            return
        finally:
            self.world.meanwhile = []
        if outcome.fate is Fate.PENDING:
            return
        txn.told = outcome
        committed = self.world.data.committed.get(txn.start_ts, 0)
        if outcome.fate is Fate.ROLLED_BACK:
            assert not committed, f"{txn} was committed at {committed}"
        else:
            assert outcome.commit_ts == committed

    def teardown(self) -> None:
        """Everything that was still under way arrives: nothing of it may commit what was called rolled back."""
        if not hasattr(self, "txns"):
            return
        for txn in self.txns:
            if txn.told is not None and txn.told.fate is Fate.ROLLED_BACK and self.may_live(txn):
                self.prewrite_of(txn)
                txn.prewritten = True
                self.commit_of(txn)
                assert txn.start_ts not in self.world.data.committed, f"{txn} committed after all"


Outcomes.TestCase.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
test_an_outcome_once_told_is_the_truth = Outcomes.TestCase
