"""What the Pump makes of TiKV's answers, and how it finds the store to ask (row P6)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from pump_service.resolve.base import Fate, NoAnswer, Outcome
from pump_service.resolve.gc_hold import GcHold
from pump_service.resolve.tikv import Seen, TikvResolver, is_tidb_key, read_status, read_versions
from pump_service.resolve.tikv_calls import TikvCalls
from pumphouse.model.tso import compose, physical_ms
from pumphouse.proto import errorpb_pb2 as errorpb
from pumphouse.proto import kvrpcpb_pb2 as kvrpcpb
from pumphouse.registry.pd_client import PdClient
from pumphouse.registry.pd_members import PdOptions
from tests.support.pd import GC_WORKER, StandInPd
from tests.support.percolator import Lock, Refused, Write
from tests.support.tikv import StandInTikv

pytestmark = pytest.mark.row("P6")

KEY = b"t\x80" + bytes(6) + b"\x41" + b"_r" + bytes(8)
OTHER = b"t\x80" + bytes(6) + b"\x77" + b"_r" + bytes(8)
S = compose(1_000_000, 5)


def versions(*writes: tuple[int, int, int, bool]) -> kvrpcpb.MvccInfo:
    info = kvrpcpb.MvccInfo()
    for tp, start_ts, commit_ts, overlapped in writes:
        info.writes.add(type=tp, start_ts=start_ts, commit_ts=commit_ts, has_overlapped_rollback=overlapped)
    return info


@pytest.mark.parametrize(
    ("writes", "seen"),
    [
        ((), Seen()),
        (((kvrpcpb.Put, S - 9, S + 9, False),), Seen()),
        (((kvrpcpb.Put, S, S + 1, False),), Seen(commit_ts=S + 1)),
        (((kvrpcpb.Del, S, S + 1, False), (kvrpcpb.Rollback, S + 5, S + 5, False)), Seen(commit_ts=S + 1)),
        (((kvrpcpb.Lock, S, S + 1, False),), Seen(commit_ts=S + 1)),
        (((kvrpcpb.Rollback, S, S, False),), Seen(rolled_back=True)),
        # A rollback whose place another transaction's commit has taken; the flag of another place says nothing.
        (((kvrpcpb.Put, S - 3, S, True),), Seen(rolled_back=True)),
        (((kvrpcpb.Put, S - 3, S, False),), Seen()),
        (((kvrpcpb.Put, S - 3, S + 2, True),), Seen()),
        (((kvrpcpb.Put, S, S + 2, True),), Seen(commit_ts=S + 2)),
    ],
)
def test_versions_of_the_primary_tell_the_outcome(writes, seen) -> None:
    assert read_versions(versions(*writes), S) == seen


@pytest.mark.parametrize(
    "writes",
    [
        ((kvrpcpb.Put, S, S, False),),
        ((kvrpcpb.Put, S, S - 4, False),),
        ((kvrpcpb.PessimisticLock, S, S + 1, False),),
        ((kvrpcpb.Put, S, S + 1, False), (kvrpcpb.Rollback, S, S, False)),
        ((kvrpcpb.Put, S, S + 1, False), (kvrpcpb.Put, S - 1, S, True)),
        ((kvrpcpb.Put, S, S + 1, False), (kvrpcpb.Put, S, S + 2, False)),
    ],
)
def test_versions_that_contradict_each_other_are_no_answer(writes) -> None:
    with pytest.raises(NoAnswer):
        read_versions(versions(*writes), S)


def answer(**fields) -> kvrpcpb.CheckTxnStatusResponse:
    return kvrpcpb.CheckTxnStatusResponse(**fields)


@pytest.mark.parametrize(
    ("said", "fate"),
    [
        (answer(lock_ttl=3000), Fate.PENDING),
        (answer(commit_version=S + 1), Fate.COMMITTED),
        (answer(), Fate.ROLLED_BACK),
        (answer(action=kvrpcpb.TTLExpireRollback), Fate.ROLLED_BACK),
        (answer(action=kvrpcpb.LockNotExistRollback), Fate.ROLLED_BACK),
        # Ways to say that nothing was decided.
        (answer(action=kvrpcpb.MinCommitTSPushed), Fate.PENDING),
        (answer(action=kvrpcpb.TTLExpirePessimisticRollback), Fate.PENDING),
        (answer(action=kvrpcpb.LockNotExistDoNothing), Fate.PENDING),
        (answer(lock_info=kvrpcpb.LockInfo(lock_version=S, use_async_commit=True)), Fate.PENDING),
        (answer(lock_info=kvrpcpb.LockInfo(lock_version=S, secondaries=[b"k"])), Fate.PENDING),
        (answer(lock_info=kvrpcpb.LockInfo(lock_version=S)), Fate.PENDING),
    ],
)
def test_a_status_is_a_rollback_only_when_it_is_plainly_one(said, fate) -> None:
    assert read_status(said, S).fate is fate


@pytest.mark.parametrize(
    "said",
    [
        answer(error=kvrpcpb.KeyError(txn_not_found=kvrpcpb.TxnNotFound(start_ts=S))),
        answer(error=kvrpcpb.KeyError(primary_mismatch=kvrpcpb.PrimaryMismatch())),
        answer(error=kvrpcpb.KeyError(abort="x")),
        answer(commit_version=S),
        answer(commit_version=S + 1, lock_ttl=5),
    ],
)
def test_a_status_with_an_error_is_no_answer(said) -> None:
    with pytest.raises(NoAnswer):
        read_status(said, S)


def test_only_keys_of_tidb_are_asked_of_tikv() -> None:
    assert is_tidb_key(KEY)
    assert is_tidb_key(KEY[:9] + b"_i" + bytes(9))
    assert is_tidb_key(b"mDDLJobHi" + b"\xff" + b"st")
    for wrong in (b"", b"t", b"app/k", b"m", b"money/transfer/1", b"tenant-42/x", KEY[:9], KEY[:18],
                  b"txn-00042_items/7", b"txn-00042_r/orders/17", b"t1234567\xff_i/orders/17"):  # fmt: skip
        assert not is_tidb_key(wrong)


class Rig:
    """A stand-in PD and TiKV, and a resolver on them."""

    def __init__(self, pd: StandInPd, tikv: StandInTikv) -> None:
        self.pd, self.tikv = pd, tikv
        self.client = PdClient(pd.addresses[0], options=PdOptions(timeout_s=0.5, deadline_s=1.0))
        self.oldest: int | None = None
        self.prewrites = (0, 0)  # written, indexed
        self.hold = GcHold(self.client, "pump-1", lambda: self.oldest, lambda: self.prewrites, ttl_s=60)
        self.calls = TikvCalls(self.client, deadline_s=1.5, timeout_s=0.5)
        self.resolver = TikvResolver(self.calls, self.hold, self.client.tso, close=self.calls.close)

    def ask(self, start_ts: int, key: bytes = KEY, *, decide: bool = False) -> Outcome:
        return self.resolver.settle(start_ts, key, decide=decide)

    def begin(self) -> int:
        self.oldest = self.client.tso()
        return self.oldest


@pytest.fixture
def rig() -> Iterator[Rig]:
    with StandInPd() as pd, StandInTikv(pd) as tikv:
        found = Rig(pd, tikv)
        yield found
        asyncio.run(found.resolver.close())
        found.client.close()


def lock(start_ts: int, *, ttl_ms: int = 3000, **fields) -> Lock:
    return Lock(start_ts, KEY, ttl_ms, **fields)


def test_a_commit_is_seen_by_a_look_that_changes_nothing(rig: Rig) -> None:
    start_ts = rig.begin()
    assert rig.ask(start_ts).fate is Fate.PENDING
    rig.tikv.data.prewrite(KEY, lock(start_ts))
    assert rig.ask(start_ts).fate is Fate.PENDING
    commit_ts = rig.client.tso()
    rig.tikv.data.commit(KEY, start_ts, commit_ts)
    assert rig.ask(start_ts) == Outcome(fate=Fate.COMMITTED, commit_ts=commit_ts)
    assert {kind for kind, _, _ in rig.tikv.asked} == {"look"}


def test_deciding_rolls_back_what_never_came_and_no_commit_can_follow(rig: Rig) -> None:
    start_ts = rig.begin()
    assert rig.ask(start_ts, decide=True).fate is Fate.ROLLED_BACK
    with pytest.raises(Refused):
        rig.tikv.data.prewrite(KEY, lock(start_ts))
    assert rig.ask(start_ts).fate is Fate.ROLLED_BACK


def test_a_live_lock_is_waited_for_and_an_expired_one_is_rolled_back(rig: Rig) -> None:
    alive = rig.begin()
    rig.tikv.data.prewrite(KEY, lock(alive, ttl_ms=60_000))
    assert rig.ask(alive, decide=True).fate is Fate.PENDING
    old = compose(physical_ms(alive) - 700_000)
    rig.tikv.data.prewrite(OTHER, Lock(old, OTHER, 3000))
    assert rig.ask(old, OTHER, decide=True).fate is Fate.ROLLED_BACK


def test_an_async_commit_is_never_called_rolled_back(rig: Rig) -> None:
    old = compose(physical_ms(rig.begin()) - 700_000)
    for number, fields in enumerate(({"async_commit": True}, {"secondaries": (b"x",)})):
        key = KEY + bytes([number])
        rig.tikv.data.prewrite(key, Lock(old, key, 3000, **fields))  # type: ignore[arg-type]
        with pytest.raises(NoAnswer, match="async commit"):
            rig.ask(old, key, decide=True)
    assert {kind for kind, _, _ in rig.tikv.asked} == {"look"}


def test_a_key_that_is_not_the_primary_decides_nothing(rig: Rig) -> None:
    start_ts = rig.begin()
    rig.tikv.data.prewrite(KEY, Lock(start_ts, OTHER, 1))
    with pytest.raises(NoAnswer, match="primary_mismatch"):
        rig.ask(start_ts, decide=True)


def test_a_store_that_cannot_show_versions_is_still_asked_for_the_status(rig: Rig) -> None:
    start_ts = rig.begin()
    rig.tikv.look_error = "too many versions"
    with pytest.raises(NoAnswer, match="too many versions"):
        rig.ask(start_ts)
    assert rig.ask(start_ts, decide=True).fate is Fate.ROLLED_BACK


@pytest.mark.parametrize("how", ["safe point", "service"])
def test_after_gc_what_looks_rolled_back_is_no_answer(rig: Rig, how: str) -> None:
    start_ts = rig.begin()
    rig.tikv.data.prewrite(KEY, lock(start_ts))
    rig.tikv.data.commit(KEY, start_ts, rig.client.tso())
    if how == "safe point":
        rig.pd.state.gc_safe_point = start_ts
    else:  # ranges are destroyed before PD hears of the new safe point
        rig.pd.state.services[GC_WORKER] = (start_ts, float("inf"))
    rig.tikv.data.destroy(KEY)
    for decide in (False, True):
        if decide:
            with pytest.raises(NoAnswer, match="GC may have taken it"):
                rig.ask(start_ts, decide=True)
        else:
            assert rig.ask(start_ts).fate is Fate.PENDING
    # A commit that is still there is one, wherever GC is.
    later = rig.client.tso()
    rig.tikv.data.prewrite(OTHER, Lock(later, OTHER, 3000))
    rig.tikv.data.commit(OTHER, later, later + 7)
    rig.pd.state.gc_safe_point = later + 100
    assert rig.ask(later, OTHER) == Outcome(fate=Fate.COMMITTED, commit_ts=later + 7)


def test_gc_just_below_the_start_ts_takes_nothing_away(rig: Rig) -> None:
    start_ts = rig.begin()
    rig.pd.state.gc_safe_point = start_ts - 1
    rig.pd.state.services[GC_WORKER] = (start_ts - 1, float("inf"))
    assert rig.ask(start_ts, decide=True).fate is Fate.ROLLED_BACK


def test_without_a_safe_point_from_pd_nothing_is_dropped(rig: Rig) -> None:
    start_ts = rig.begin()
    rig.client.tso()
    old = rig.hold.reached

    def pd_goes(ts: int) -> int:
        rig.pd.stop(0)
        return old(ts)

    rig.hold.reached = pd_goes  # type: ignore[method-assign, assignment]
    with pytest.raises(NoAnswer, match="gave no answer"):
        rig.ask(start_ts, decide=True)


def test_a_lock_that_appears_against_a_rollback_voids_it(rig: Rig) -> None:
    start_ts = rig.begin()
    old = rig.hold.reached

    def meanwhile(ts: int) -> int:
        rig.tikv.data.key(KEY).writes = {start_ts + 3: Write(kvrpcpb.Put, start_ts)}
        return old(ts)

    rig.hold.reached = meanwhile  # type: ignore[method-assign, assignment]
    with pytest.raises(NoAnswer, match="lock or commit"):
        rig.ask(start_ts, decide=True)


# ---- the way to the store --------------------------------------------------------------------------------------------


def test_regions_that_move_split_and_merge_are_followed(rig: Rig) -> None:
    start_ts = rig.begin()
    assert rig.ask(start_ts).fate is Fate.PENDING
    rig.tikv.move(1, 2)  # PD does not know it yet: the old leader names the new one
    assert rig.ask(start_ts).fate is Fate.PENDING
    assert [store for _, store, _ in rig.tikv.asked] == [1, 1, 2]
    questions = rig.pd.state.region_questions
    assert questions == 1
    rig.tikv.split(1, KEY, 2)
    rig.tikv.tell()
    assert rig.ask(start_ts).fate is Fate.PENDING
    assert rig.tikv.asked[-1] == ("look", 2, 2)
    assert rig.pd.state.region_questions == 2
    region, leader = rig.tikv.regions.pop(2)  # merged into its neighbour
    rig.tikv.regions[1][0].end_key = b""
    rig.tikv.regions[1][0].region_epoch.version += 1
    rig.tikv.tell()
    assert rig.ask(start_ts).fate is Fate.PENDING
    assert rig.tikv.asked[-1][2] == 1
    assert region.id == 2
    assert leader.store_id == 2


def test_the_key_of_a_region_is_in_memcomparable_form_and_that_of_a_question_is_not(rig: Rig) -> None:
    # In raw order OTHER lies behind KEY + 9 bytes; the border between them is found in the form that PD keeps.
    rig.tikv.split(1, OTHER, 2)
    rig.tikv.tell()
    start_ts = rig.begin()
    rig.ask(start_ts, KEY)
    rig.ask(start_ts, OTHER)
    rig.ask(start_ts, OTHER + b"\x00")
    assert [region for _, _, region in rig.tikv.asked] == [1, 2, 2]


@pytest.mark.parametrize(
    "error",
    [
        errorpb.Error(server_is_busy=errorpb.ServerIsBusy(reason="x")),
        errorpb.Error(stale_command=errorpb.StaleCommand()),
        errorpb.Error(not_leader=errorpb.NotLeader(region_id=1)),
        errorpb.Error(store_not_match=errorpb.StoreNotMatch()),
        errorpb.Error(message="a kind that this program does not know"),
    ],
)
def test_region_errors_are_waited_out(rig: Rig, error: errorpb.Error) -> None:
    start_ts = rig.begin()
    rig.tikv.once = [lambda: error, lambda: error]
    assert rig.ask(start_ts, decide=True).fate is Fate.ROLLED_BACK


def test_a_region_error_that_does_not_end_is_no_answer(rig: Rig) -> None:
    start_ts = rig.begin()
    rig.tikv.once = [lambda: errorpb.Error(message="down")] * 1000
    with pytest.raises(NoAnswer, match="down"):
        rig.ask(start_ts, decide=True)


def test_a_store_that_is_gone_is_no_answer_until_another_leads(rig: Rig) -> None:
    start_ts = rig.begin()
    rig.ask(start_ts)
    rig.tikv.stop(1)
    with pytest.raises(NoAnswer, match="does not answer"):
        rig.ask(start_ts, decide=True)
    rig.tikv.move(1, 2)
    rig.tikv.tell()
    assert rig.ask(start_ts, decide=True).fate is Fate.ROLLED_BACK


# ---- GC waits --------------------------------------------------------------------------------------------------------


def test_gc_waits_below_the_oldest_unresolved_prewrite_and_goes_on_when_there_is_none(rig: Rig) -> None:
    start_ts = rig.begin()
    rig.hold.renew()
    now = rig.client.tso()
    assert rig.pd.state.collect(now) == start_ts - 1
    rig.oldest = later = start_ts + 50
    rig.hold.renew()
    assert rig.pd.state.collect(now) == later - 1
    rig.oldest = None
    rig.hold.renew()
    assert list(rig.pd.state.services) == [GC_WORKER]
    assert rig.pd.state.collect(now) == now


def test_where_gc_has_passed_already_the_rest_is_kept_where_it_is(rig: Rig) -> None:
    start_ts = rig.begin()
    rig.pd.state.services[GC_WORKER] = (start_ts + 10, float("inf"))
    rig.hold.renew()
    assert rig.hold.reached(start_ts) == start_ts + 10
    assert rig.pd.state.collect(start_ts + 500) == start_ts + 10
    assert rig.hold.reached(start_ts + 100) == start_ts + 10


@pytest.mark.parametrize("indexed", [True, False])
def test_a_pump_that_ends_leaves_gc_held_for_what_it_wrote_last(rig: Rig, indexed: bool) -> None:
    """The prewrite was answered a moment ago: there is no other renewal in which it would count."""

    async def end() -> None:
        running = asyncio.create_task(rig.hold.run())
        while rig.hold.service_id in rig.pd.state.services or rig.hold._held:
            await asyncio.sleep(0.01)
        rig.prewrites = (1, 0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    start_ts = rig.client.tso()

    def caught_up() -> None:
        if indexed:
            rig.oldest, rig.prewrites = start_ts, (1, 1)

    rig.hold = GcHold(
        rig.client, "pump-1", lambda: rig.oldest, lambda: rig.prewrites, ttl_s=60, caught_up=caught_up
    )  # fmt: skip
    asyncio.run(end())
    held = rig.pd.state.services[rig.hold.service_id][0]
    assert held == (start_ts - 1 if indexed else rig.client.gc_safe_point())


@pytest.mark.parametrize("also", [None, 70])
def test_gc_stands_still_while_prewrites_are_on_disk_that_the_index_does_not_have_yet(
    rig: Rig, also: int | None
) -> None:
    start_ts = rig.begin()  # its P is written, and waits for its index: nobody finds it by its start ts
    rig.pd.state.collect(start_ts - 100)
    rig.oldest = None if also is None else start_ts + also
    rig.prewrites = (8, 5)
    rig.hold.renew()
    rig.hold.renew()
    assert rig.pd.state.collect(start_ts + 500) == start_ts - 100
    rig.prewrites = (9, 7)
    rig.hold.renew()
    assert rig.hold.reached(start_ts + 60) == start_ts - 100
    assert rig.pd.state.collect(start_ts + 500) == start_ts - 100
    rig.prewrites, rig.oldest = (20, 12), start_ts  # all nine are indexed; what came since is new
    rig.hold.renew()
    assert rig.pd.state.collect(start_ts + 500) == start_ts - 1
