"""The time that a call may take grows with what it carries (row P17), on Pumps that are slow (real gRPC)."""

from __future__ import annotations

import threading

import pytest

from pumphouse.client.pump import WRITE_BYTES_PER_S, time_for
from pumphouse.codec.payload import make_prewrite
from pumphouse.errors import ConfigError, PumpUnavailable
from pumphouse.model.binlog import MAX_TRANSACTION_BYTES

# Of 30,000 bytes the rate makes 30 s; what a Pump takes lies between that and the time-out, far from both.
_VALUE = bytes(30_000)
_RATE = 1000.0
_TIMEOUT_S = 0.2
_SLOW_S = 0.8


CLIENT = {"write_timeout_s": _TIMEOUT_S, "write_bytes_per_s": _RATE}


def prewrites(*start_ts: int) -> list[tuple[int, bytes]]:
    return [(each, make_prewrite(each, b"key", _VALUE)) for each in start_ts]


@pytest.mark.row("P17")
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("go", [False, True], ids=["ours", "go"])
def test_a_slow_pump_has_the_time_that_the_bytes_need(start, connect, count: int, go: bool) -> None:
    slow, other = start("a", go=go), start("b", go=go)
    slow.batches = other.batches = not go
    slow.behave = other.behave = lambda _: _SLOW_S
    client = connect()
    assert client.write_prewrites(prewrites(*range(1, count + 1))) == [None] * count
    assert sorted(slow.of_type("Prewrite")) == list(range(1, count + 1))
    assert other.asked == 0 and other.batched == []
    assert client.stats.prewrite_retries == 0


@pytest.mark.row("P17", "C4")
def test_a_try_at_the_next_pump_has_as_much_time(start, connect) -> None:
    broken, slow = start("a"), start("b")
    broken.behave = lambda _: PumpUnavailable("leveldb: closed")
    slow.behave = lambda _: _SLOW_S
    client = connect()
    ((start_ts, payload),) = prewrites(1)
    assert client.write_prewrite(payload, start_ts) == "b"
    assert (broken.asked, slow.asked) == (1, 1)


@pytest.mark.row("P17", "C4")
def test_a_large_prewrite_goes_round_for_as_long_as_one_call_of_it_may_take(start, connect) -> None:
    pump = start("a")
    refused = [PumpUnavailable("leveldb: closed")] * 8
    pump.behave = lambda _: refused.pop() if refused else None
    ((start_ts, payload),) = prewrites(1)
    assert connect(write_timeout_s=0.05).write_prewrite(payload, start_ts) == "a"
    assert pump.asked == 9


@pytest.mark.row("P17", "C4")
def test_a_small_one_does_not_wait_longer_for_a_pump_that_hangs(start, connect, request) -> None:
    go_on = threading.Event()
    request.addfinalizer(go_on.set)
    hangs, _ = start("a"), start("b")
    hangs.behave = lambda _: PumpUnavailable("it hung") if go_on.wait(60) else None
    client = connect(write_timeout_s=0.5, write_bytes_per_s=WRITE_BYTES_PER_S)
    assert client.write_prewrite(make_prewrite(1, b"key", b"v"), 1) == "b"
    assert hangs.asked >= 1
    assert not go_on.is_set()


@pytest.mark.row("P17")
def test_the_defaults_give_a_transaction_at_the_limit_two_minutes() -> None:
    class Largest(bytes):
        def __len__(self) -> int:
            return MAX_TRANSACTION_BYTES

    assert 130 < time_for([Largest()], 15.0, WRITE_BYTES_PER_S) < 140
    assert time_for([b""], 15.0, WRITE_BYTES_PER_S) == 15.0


def test_a_rate_that_is_none_is_refused_by_name(start, connect) -> None:
    start("a")
    with pytest.raises(ConfigError, match="write_bytes_per_s"):
        connect(write_bytes_per_s=0.0)
