"""The clock of a file cluster: what it promises when clocks jump, files are lost and machines restart."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.errors import CorruptionError
from pumphouse.model.tso import compose, physical_ms
from pumphouse.registry.file_tso import BOUND_AHEAD_MS, PAST_AHEAD_MS, FileTso
from tests.support.setclock import SetClock

BOOT_1, BOOT_2 = b"1" * 16, b"2" * 16


@pytest.fixture
def clock() -> SetClock:
    return SetClock(1_700_000_000.0)


@pytest.fixture
def directory(tmp_path):
    FileTso.create(tmp_path)
    return tmp_path


@pytest.mark.row("W4")
def test_a_timestamp_is_the_clock_in_milliseconds_and_the_next_counts_on(directory, clock):
    tso = FileTso(directory, clock=clock)
    assert tso.next() == compose(1_700_000_000_000)
    assert tso.next() == compose(1_700_000_000_000, 1)
    clock.value += 0.001
    assert tso.next() == compose(1_700_000_000_001)


@pytest.mark.row("W4")
def test_a_clock_that_goes_back_does_not_take_timestamps_back(directory, clock):
    tso = FileTso(directory, clock=clock)
    first = tso.next()
    clock.value -= 3600
    assert tso.next() == first + 1
    assert FileTso(directory, clock=clock).next() == first + 2


@pytest.mark.row("W4")
def test_reopening_on_a_running_machine_does_not_jump_to_the_bound(directory, clock):
    first = FileTso(directory, clock=clock, boot=BOOT_1).next()
    assert FileTso(directory, clock=clock, boot=BOOT_1).next() == first + 1


@pytest.mark.row("W4")
def test_after_a_restart_of_the_machine_it_starts_at_the_bound(directory, clock):
    first = FileTso(directory, clock=clock, boot=BOOT_1).next()
    after = FileTso(directory, clock=clock, boot=BOOT_2).next()
    assert after == first + compose(BOUND_AHEAD_MS) + 1


@pytest.mark.row("W4")
def test_the_bound_is_on_disk_before_a_timestamp_up_to_it_is_given_out(directory, clock):
    tso = FileTso(directory, clock=clock)
    for step in (0.0, 0.5, 2.4, 0.2, 10.0):
        clock.value += step
        given_out = tso.next()
        assert int((directory / "tso.bound").read_text()) >= given_out


@pytest.mark.row("W4")
def test_a_damaged_counter_is_replaced_by_the_bound(directory, clock):
    tso = FileTso(directory, clock=clock)
    first = tso.next()
    for damage in (b"", b"short", b"\xff" * 36):
        (directory / "tso").write_bytes(damage)
        after = tso.next()
        assert after > first
        first = after


@pytest.mark.row("W4")
@pytest.mark.parametrize("content", [None, b"", b"no number"])
def test_without_a_readable_bound_no_timestamp_is_given_out(directory, clock, content):
    tso = FileTso(directory, clock=clock, boot=BOOT_1)
    tso.next()
    if content is None:
        (directory / "tso.bound").unlink()
    else:
        (directory / "tso.bound").write_bytes(content)
    with pytest.raises(CorruptionError, match=r"tso\.bound"):
        FileTso(directory, clock=clock, boot=BOOT_2).next()


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["take", "take at once"]), st.integers(1, 5)),
        st.tuples(st.just("clock"), st.floats(-10_000, 10_000)),
        # The machine loses power: of the unsynced counter any state since the last power loss may be on disk.
        st.tuples(st.just("power loss"), st.integers(0, 100)),
    ),
    max_size=40,
)


@pytest.mark.row("W4")
@given(actions=ACTIONS)
def test_it_never_goes_back_whatever_clock_and_power_do(tmp_path_factory, actions):
    directory = tmp_path_factory.mktemp("tso")
    FileTso.create(directory)
    clock = SetClock(1_700_000_000.0)
    boots = 1
    tso = FileTso(directory, clock=clock, boot=bytes([boots]) * 16)
    last = 0
    on_disk: list[bytes | None] = [None]
    for kind, value in actions:
        if kind.startswith("take"):
            for ts in tso.take(value) if kind == "take at once" else (tso.next() for _ in range(value)):
                assert ts > last
                last = ts
                on_disk.append((directory / "tso").read_bytes())
        elif kind == "clock":
            clock.value = max(0.0, clock.value + value)
        else:
            old = on_disk[value % len(on_disk)]
            if old is None:
                (directory / "tso").unlink(missing_ok=True)
            else:
                (directory / "tso").write_bytes(old)
            on_disk = [old]
            boots += 1
            tso = FileTso(directory, clock=clock, boot=bytes([boots % 256]) * 16)


def past(tso: FileTso) -> int:
    """The largest timestamp of which it says that it is past; 0 = none."""
    low, high = 0, 1 << 62
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if tso.is_past(middle) else (low, middle)
    return low


@pytest.mark.row("W4", "P1")
def test_what_is_past_is_told_without_drawing_a_timestamp(directory, clock):
    tso, other = FileTso(directory, clock=clock), FileTso(directory, clock=clock)
    # None was given out yet: nothing tells where the clock stands.
    assert past(tso) == compose(PAST_AHEAD_MS)
    last = other.next()
    assert past(tso) == last
    clock.value += 0.030
    assert past(tso) == compose(physical_ms(last) + 30) - 1
    clock.value += 3600  # so far it is not followed: it may be wrong, and go back
    assert past(tso) == last + compose(PAST_AHEAD_MS)
    clock.value -= 7200
    assert past(tso) == last
    assert other.next() == last + 1
    assert past(tso) == last + 1


@pytest.mark.row("W4", "P1")
@given(steps=st.lists(st.tuples(st.booleans(), st.floats(0, 0.2)), max_size=30))
def test_no_timestamp_is_given_out_below_what_was_past(tmp_path_factory, steps):
    directory = tmp_path_factory.mktemp("tso")
    FileTso.create(directory)
    clock = SetClock(1_700_000_000.0)
    tso, other = FileTso(directory, clock=clock), FileTso(directory, clock=clock)
    most = 0
    for draws, passes in steps:
        clock.value += passes
        if draws:
            given_out = other.next()
            assert given_out > most
            assert tso.is_past(given_out)
        most = max(most, past(tso))


@pytest.mark.row("W4", "P1")
def test_a_counter_that_does_not_read_back_tells_no_past(directory, clock):
    last = FileTso(directory, clock=clock, boot=BOOT_1).next()
    assert FileTso(directory, clock=clock, boot=BOOT_1).is_past(last)
    assert not FileTso(directory, clock=clock, boot=BOOT_2).is_past(last)
    for damage in (b"", b"short", b"\xff" * 36):
        (directory / "tso").write_bytes(damage)
        assert not FileTso(directory, clock=clock, boot=BOOT_1).is_past(last)
    (directory / "tso").unlink()
    assert not FileTso(directory, clock=clock, boot=BOOT_1).is_past(last)
    assert not (directory / "tso").exists()
    (directory / "tso").mkdir()  # it opens, and cannot be read
    assert not FileTso(directory, clock=clock, boot=BOOT_1).is_past(last)


@pytest.mark.row("W4", "P1")
def test_what_was_seen_once_stays_known_when_the_counter_cannot_be_read(directory, clock):
    tso = FileTso(directory, clock=clock)
    last = tso.next()
    assert tso.is_past(last)
    (directory / "tso").write_bytes(b"short")
    assert not tso.is_past(last + 1)
    assert tso.is_past(last)


@pytest.mark.row("W4", "P1")
def test_the_last_timestamp_is_looked_up_only_where_it_tells_more(directory, monkeypatch):
    """A look costs as much as all else that is done about the times of a group."""
    looks = []
    clock = SetClock(1_700_000_000.0)
    tso = FileTso(directory, clock=clock)
    monkeypatch.setattr(FileTso, "_last", lambda _: looks.append(1) or compose(1_700_000_000_000))
    for _ in range(50):
        clock.value += 0.001
        assert tso.is_past(compose(int(clock.value * 1000)) - 1)
    assert len(looks) == 1


@pytest.mark.row("W4")
def test_threads_of_one_process_get_distinct_rising_timestamps(directory):
    tso = FileTso(directory)
    taken: list[list[int]] = [[] for _ in range(8)]

    def take(mine: list[int]) -> None:
        mine.extend(tso.next() for _ in range(300))

    threads = [threading.Thread(target=take, args=(mine,)) for mine in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = [ts for mine in taken for ts in mine]
    assert len(set(everything)) == 8 * 300
    assert all(mine == sorted(mine) for mine in taken)


FORKS = """
import os, signal, sys, threading
from pathlib import Path
from pumphouse.registry.file_tso import FileTso
tso = FileTso(Path(sys.argv[1]))
stop = threading.Event()
def work():
    while not stop.is_set():
        tso.next()
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
for _ in range(30):
    before = tso.next()
    child = os.fork()
    if child == 0:
        signal.alarm(5)  # a deadlock ends the child by signal
        os._exit(0 if tso.next() > before else 1)
    _, status = os.waitpid(child, 0)
    if status != 0:
        print("child ended with", status)
        os._exit(1)
stop.set()
for thread in threads: thread.join()
"""


@pytest.mark.row("W4")
def test_a_child_forked_while_threads_take_timestamps_can_take_one(directory):
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, str(directory)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.row("W4")
def test_the_real_clock_gives_the_present(directory):
    import time

    assert abs(physical_ms(FileTso(directory).next()) / 1000 - time.time()) < 5
