"""Whatever clients, readers, GC and the Pump do to a primary, and in whatever order: an outcome once told is the truth.

`rolled_back` may never be answered for a transaction that was committed, or that any message still under way can commit.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import structlog

from pump_service.resolve.base import Fate, NoAnswer, Outcome
from pump_service.resolve.gc_hold import GcHold
from pump_service.resolve.tikv import TikvResolver
from pumphouse.model.tso import compose, physical_ms
from pumphouse.proto import kvrpcpb_pb2 as kvrpcpb
from tests.support.pd import PdState
from tests.support.percolator import Lock, Percolator, Refused

pytestmark = pytest.mark.row("P6")

KEYS = [b"t\x80" + bytes(7) + b"_r" + bytes([n]) * 8 for n in range(2)]
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


class History:
    """One random history; what happened is kept for whoever must understand a failure."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = World()
        self.txns: list[Txn] = []
        self.gc: list[Callable[[], None]] = []  # steps of a GC run that has begun
        self.holds = self.chance.random() < 0.3  # else the Pump was down too long: its service safe point is gone
        self.hold = GcHold(self.world, "p", self.oldest, lambda: (0, 0), ttl_s=60)
        self.resolver = TikvResolver(self.world, self.hold, self.world.tso, close=lambda: None)
        self.trace: list[str] = []
        self.answers = dict.fromkeys(Fate, 0)

    def oldest(self) -> int | None:
        return min((txn.start_ts for txn in self.txns if txn.told is None), default=None)

    def run(self, steps: int) -> None:
        """Take some steps; AssertionError when an answer was not the truth."""
        self.start()
        for _ in range(steps):
            step = self.chance.choice(STEPS)
            self.trace.append(step.__name__)
            step(self)
        self.what_is_under_way_arrives()

    def any_txn(self) -> Txn:
        return self.chance.choice(self.txns)

    # ---- clients -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.txns.append(Txn(self.world.tso(), self.chance.choice(KEYS), self.chance.choice(KINDS)))

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

    def prewrite(self) -> None:
        self.prewrite_of(self.any_txn())

    def commit(self) -> None:
        self.commit_of(self.any_txn())

    def a_client_goes_through_with_it(self) -> None:
        self.start()
        self.prewrite_of(self.txns[-1])
        self.commit_of(self.txns[-1])

    def a_reader_meets_the_lock(self) -> None:
        txn = self.any_txn()
        self.world.status(txn.key, txn.start_ts, self.world.tso(), roll_back=self.chance.random() < 0.5)

    def the_client_rolls_back(self) -> None:
        txn = self.any_txn()
        record = self.world.data.key(txn.key).record(txn.start_ts)
        if record is None and txn.kind != "async":
            self.world.data.roll_back(txn.key, txn.start_ts, protected=txn.kind == "pessimistic")

    # ---- time and GC -------------------------------------------------------------------------------------------

    def time_passes(self) -> None:
        self.world.now_ms += self.chance.choice([1, 2_000, 4_000, 700_000])

    def gc_begins(self) -> None:
        """As TiDB's worker: a safe point, locks resolved, dropped ranges destroyed, then PD told, then versions go.

        It never passes a transaction whose client still lives, or of which messages can be under way: TiDB's servers
        report theirs, and GC comes ten minutes behind.
        """
        if self.gc:
            return
        world = self.world
        ended = world.data.committed
        alive = [txn.start_ts for txn in self.txns if txn.start_ts not in ended and self.may_live(txn)]
        wanted = min([compose(world.now_ms - self.chance.choice([0, 1_000, 600_000])), *(ts - 1 for ts in alive)])
        safe_point = world.pd.collect(wanted)
        dropped = self.chance.sample(KEYS, self.chance.randint(0, len(KEYS)))

        def destroy() -> None:
            for key in dropped:
                state = world.data.key(key)
                locked = state.lock is not None and state.lock.start_ts <= safe_point
                if not locked and all(ts <= safe_point for ts in state.writes):
                    world.data.destroy(key)

        def tell() -> None:
            world.pd.gc_safe_point = max(world.pd.gc_safe_point, safe_point)

        steps = [lambda: world.data.resolve_locks(safe_point), destroy, tell, lambda: world.data.collect(safe_point)]
        self.gc = steps
        for _ in range(self.chance.randint(0, 4)):
            self.gc_goes_on()

    def may_live(self, txn: Txn) -> bool:
        return self.world.now_ms - physical_ms(txn.start_ts) < 650_000

    def gc_goes_on(self) -> None:
        if self.gc:
            self.gc.pop(0)()

    # ---- the Pump ----------------------------------------------------------------------------------------------

    def the_hold_is_renewed(self) -> None:
        if self.holds:
            self.hold.renew()

    def the_pump_asks(self) -> None:
        open_ones = [txn for txn in self.txns if txn.told is None]
        if not open_ones:
            return
        txn, other = self.chance.choice(open_ones), self.any_txn()
        happens = [lambda: self.prewrite_of(other), lambda: self.commit_of(other), self.gc_goes_on, self.gc_begins]
        nothing: Callable[[], None] = lambda: None  # noqa: E731
        gap = [nothing] * self.chance.randint(0, 6)
        self.world.meanwhile = [*gap, *self.chance.choices(happens, k=self.chance.randint(0, 3))]
        try:
            outcome = self.resolver.settle(txn.start_ts, txn.key, decide=self.chance.random() < 0.7)
        except NoAnswer:
            return
        finally:
            self.world.meanwhile = []
        self.answers[outcome.fate] += 1
        if outcome.fate is Fate.PENDING:
            return
        txn.told = outcome
        committed = self.world.data.committed.get(txn.start_ts, 0)
        if outcome.fate is Fate.ROLLED_BACK:
            assert not committed, f"{txn} was committed at {committed}"
        else:
            assert outcome.commit_ts == committed

    def what_is_under_way_arrives(self) -> None:
        """Nothing of it may commit what was called rolled back."""
        for txn in self.txns:
            if txn.told is not None and txn.told.fate is Fate.ROLLED_BACK and self.may_live(txn):
                self.prewrite_of(txn)
                txn.prewritten = True
                self.commit_of(txn)
                assert txn.start_ts not in self.world.data.committed, f"{txn} committed after all"


STEPS = [
    History.start,
    History.prewrite,
    History.prewrite,
    History.commit,
    History.a_client_goes_through_with_it,
    History.a_client_goes_through_with_it,
    History.a_reader_meets_the_lock,
    History.the_client_rolls_back,
    History.time_passes,
    History.gc_begins,
    History.gc_goes_on,
    History.the_hold_is_renewed,
    History.the_pump_asks,
    History.the_pump_asks,
    History.the_pump_asks,
]


def test_an_outcome_once_told_is_the_truth() -> None:
    """The same histories each time; in a campaign many more that nobody has seen."""
    campaign = bool(os.environ.get("PUMPHOUSE_CAMPAIGN"))
    first = random.SystemRandom().randrange(1 << 40) if campaign else 0
    answers = Counter[Fate]()
    with structlog.testing.capture_logs():
        for seed in range(first, first + (100_000 if campaign else 4_000)):
            history = History(seed)
            try:
                history.run(25)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {error}; {history.trace}") from error
            answers.update(history.answers)
    # All of them come up, or nothing was tested.
    assert min(answers[fate] for fate in Fate) > 1000
