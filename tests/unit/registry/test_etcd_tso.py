"""The clock of an etcd cluster over a store in memory: who shares an allocation, and what failures leave behind."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.errors import ClusterUnavailable, CorruptionError
from pumphouse.model.tso import compose
from pumphouse.registry.etcd_client import KeyValue, RangeResult, TxnResult
from pumphouse.registry.etcd_tso import EtcdTso

KEY = b"/pumphouse/v1/tso"
NOW = 1_700_000_000.0


class SetClock:
    def __init__(self) -> None:
        self.value = NOW
        self.uptime = 0.0

    def now(self) -> float:
        return self.value

    def monotonic(self) -> float:
        return self.uptime

    def sleep(self, seconds: float) -> None:
        self.uptime += seconds


class OneKey:
    """As much of an EtcdClient as the clock uses. ``faults``: what the next calls do before they answer."""

    def __init__(self, value: bytes | None = b"0") -> None:
        self.value = value
        self.lock = threading.Lock()
        self.faults: list[str] = []
        self.written = 0
        self.hold = threading.Event()
        self.hold.set()
        self.entered = threading.Semaphore(0)

    def get(self, key: bytes) -> KeyValue | None:
        self._fault()
        with self.lock:
            return self._kv()

    def txn(self, compare, success, failure):
        self.entered.release()
        assert self.hold.wait(60)
        late = self._fault()
        with self.lock:
            done = self.value == compare[0].value
            if done:
                self.value = success[0].request_put.value
                self.written += 1
            kv = self._kv()
        if late:
            raise ClusterUnavailable("lost", sent=True)
        return TxnResult(done, 1, () if done else (RangeResult((kv,) if kv else (), 1),))

    def _kv(self) -> KeyValue | None:
        return None if self.value is None else KeyValue(KEY, self.value, 1, 1)

    def _fault(self) -> bool:
        fault = self.faults.pop() if self.faults else ""
        if fault == "refused":
            raise ClusterUnavailable("refused", sent=False)
        if fault == "lost before":
            raise ClusterUnavailable("lost", sent=True)
        return fault == "lost after"


@pytest.mark.row("W4")
def test_a_timestamp_is_the_clock_in_milliseconds_and_the_next_counts_on():
    clock = SetClock()
    tso = EtcdTso(OneKey(), KEY, clock=clock)
    assert tso.next() == compose(1_700_000_000_000)
    assert tso.next() == compose(1_700_000_000_000, 1)
    clock.value += 0.001
    assert tso.next() == compose(1_700_000_000_001)
    clock.value -= 3600
    assert tso.next() == compose(1_700_000_000_001, 1)


def until_waiting(tso: EtcdTso, callers: int) -> None:
    """So many wait for the next allocation."""
    while (tso._local.waiting.size if tso._local.waiting is not None else 0) < callers:
        pass


@pytest.mark.row("W4")
def test_an_allocation_serves_those_who_wait_and_those_who_come_meanwhile_wait_for_the_next():
    store = OneKey()
    tso = EtcdTso(store, KEY, clock=SetClock())
    tso.next()
    assert store.entered.acquire(timeout=60)
    store.hold.clear()
    taken: list[int] = []
    threads = [threading.Thread(target=lambda: taken.append(tso.next())) for _ in range(6)]
    threads[0].start()
    assert store.entered.acquire(timeout=60)  # its allocation is under way and covers it alone
    for thread in threads[1:]:
        thread.start()
    until_waiting(tso, 5)
    assert not taken
    store.hold.set()
    for thread in threads:
        thread.join(60)
    assert store.written == 3
    assert sorted(taken) == [compose(1_700_000_000_000, n) for n in range(1, 7)]
    assert store.value == b"%d" % max(taken)  # and nothing is kept for later


@pytest.mark.row("W4")
def test_another_process_moves_the_key_and_ours_go_on_above_it():
    store, clock = OneKey(), SetClock()
    one, other = EtcdTso(store, KEY, clock=clock), EtcdTso(store, KEY, clock=clock)
    taken = [each.next() for _ in range(5) for each in (one, other, other)]
    assert taken == sorted(set(taken))


@pytest.mark.row("W4")
@pytest.mark.parametrize("value", [None, b"", b"x7"])
def test_without_a_readable_key_no_timestamp_is_given_out(value):
    store = OneKey()
    tso = EtcdTso(store, KEY, clock=SetClock())
    tso.next()
    store.value = value
    with pytest.raises(CorruptionError, match="pumphouse/v1/tso"):
        tso.next()


@pytest.mark.row("W4")
def test_all_who_wait_hear_that_etcd_does_not_answer():
    store = OneKey()
    tso = EtcdTso(store, KEY, clock=SetClock())
    store.faults = ["refused"] * 10_000
    with pytest.raises(ClusterUnavailable):
        tso.next()
    store.faults = []
    assert tso.next() == compose(1_700_000_000_000)


class Interrupted(BaseException):
    """What a signal handler raises: the time-out of a task, or Ctrl-C."""


def _taken_by(tso: EtcdTso, callers: int) -> list[int]:
    taken: list[int] = []
    threads = [threading.Thread(target=lambda: taken.append(tso.next()), daemon=True) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return sorted(taken)


@pytest.mark.row("W4")
def test_a_caller_that_is_interrupted_before_it_asks_for_the_others_leaves_nobody_waiting(monkeypatch):
    tso = EtcdTso(OneKey(), KEY, clock=SetClock())
    serve, signals = EtcdTso._serve, [Interrupted()]

    def interrupted(*given):
        if signals:
            raise signals.pop()
        return serve(*given)

    monkeypatch.setattr(EtcdTso, "_serve", interrupted)
    with pytest.raises(Interrupted):
        tso.next()
    assert len(set(_taken_by(tso, 3))) == 3


@pytest.mark.row("W4")
def test_those_who_wait_with_a_caller_that_is_interrupted_while_it_asks_are_served_all_the_same():
    store = OneKey()
    tso = EtcdTso(store, KEY, clock=SetClock())
    tso.next()
    assert store.entered.acquire(timeout=60)
    fault, interrupted = store._fault, []
    joined = threading.Event()

    def once() -> bool:
        if not interrupted:
            interrupted.append(True)
            assert joined.wait(60)
            raise Interrupted
        return fault()

    store._fault = once
    store.hold.clear()

    def lead() -> None:
        with pytest.raises(Interrupted):
            tso.next()

    first = threading.Thread(target=lead)
    with tso._local.turn:  # so that all of them wait for the same allocation
        first.start()
        until_waiting(tso, 1)
        taken: list[int] = []
        others = [threading.Thread(target=lambda: taken.append(tso.next()), daemon=True) for _ in range(3)]
        for other in others:
            other.start()
        until_waiting(tso, 4)
    store.hold.set()
    joined.set()
    for thread in (first, *others):
        thread.join(60)
    assert len(set(taken)) == 3


ACTIONS = st.lists(
    st.one_of(
        st.sampled_from(["one", "other", "many", "new process", "refused", "lost before", "lost after"]),
        st.floats(-10_000, 10_000),
    ),
    max_size=60,
)


@pytest.mark.row("W4")
@given(actions=ACTIONS)
def test_it_never_goes_back_whatever_clocks_and_connections_do(actions):
    store, clock = OneKey(), SetClock()
    users = {"one": EtcdTso(store, KEY, clock=clock), "other": EtcdTso(store, KEY, clock=clock)}
    last = 0
    for action in actions:
        if isinstance(action, float):
            clock.value = max(0.0, clock.value + action)
        elif action == "new process":
            users["one"] = EtcdTso(store, KEY, clock=clock)
        elif action == "many":
            found = users["one"].take(5)
            assert [last, *found] == sorted({last, *found})
            last = found[-1]
            assert int(store.value) == last
        elif action in users:
            ts = users[action].next()
            assert ts > last
            last = ts
            assert int(store.value) == ts
        else:
            store.faults.append(action)


def test_a_clock_that_was_put_back_gives_nothing_out_any_more():
    """etcd restored from a copy: what would come next was given out before."""
    etcd = OneKey()
    clock = EtcdTso(etcd, KEY, clock=SetClock())
    copy = etcd.value
    given = [clock.next(), clock.next()]
    etcd.value = copy
    for _ in range(2):
        with pytest.raises(CorruptionError, match="below"):
            clock.next()
    etcd.value = b"%d" % (given[-1] + 10)
    assert clock.next() > given[-1] + 10
