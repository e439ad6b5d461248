"""The lock of who writes: groups give way to whoever waits."""

from __future__ import annotations

import threading

import pytest

from pump_service.store.writelock import WriteLock
from tests.support.storekit import until


class _Interrupted:
    """A lock for which the wait ends by an exception, as Ctrl-C ends it."""

    def acquire(self) -> bool:
        raise KeyboardInterrupt


@pytest.mark.row("P3")
def test_a_group_takes_the_lock_only_when_it_is_free() -> None:
    lock = WriteLock()
    assert lock.try_for_group()
    assert not lock.try_for_group()
    assert not lock.try_for(0)
    lock.release()
    with lock:
        assert not lock.try_for_group()
        assert not lock.try_for(0)
    assert lock.try_for(0)
    assert not lock.try_for_group()
    lock.release()
    assert lock.try_for_group()


@pytest.mark.row("P3")
def test_what_one_thread_took_another_may_let_go() -> None:
    lock = WriteLock()
    assert lock.try_for_group()
    other = threading.Thread(target=lock.release, daemon=True)
    other.start()
    other.join(60)
    assert lock.try_for_group()


@pytest.mark.row("P3")
def test_the_lock_is_let_go_when_what_was_done_under_it_fails() -> None:
    lock = WriteLock()
    with pytest.raises(ZeroDivisionError), lock:
        raise ZeroDivisionError
    assert lock.try_for_group()


@pytest.mark.row("P3", "P4")
def test_a_group_gives_way_to_who_waits_until_the_last_of_them_has_been_inside() -> None:
    for _ in range(50):
        lock = WriteLock()
        leave = threading.Semaphore(0)
        inside: list[int] = []

        def enter(
            n: int, lock: WriteLock = lock, leave: threading.Semaphore = leave, inside: list[int] = inside
        ) -> None:
            with lock:
                inside.append(n)
                leave.acquire()

        assert lock.try_for_group()
        others = [threading.Thread(target=enter, args=(n,), daemon=True) for n in range(2)]
        for other in others:
            other.start()
        until(lambda lock=lock: lock.waiting == 2)  # type: ignore[misc]
        assert not inside
        lock.release()
        assert not lock.try_for_group(), "one of them waits, or is inside"
        for number in (1, 2):
            until(lambda inside=inside, number=number: len(inside) == number)  # type: ignore[misc]
            assert not lock.try_for_group()
            leave.release()
            if number == 1:
                assert not lock.try_for_group(), "the other one is not forgotten"
        for other in others:
            other.join(60)
        assert sorted(inside) == [0, 1]
        assert lock.try_for_group()


@pytest.mark.row("P15")
def test_who_only_wants_to_look_does_not_give_way() -> None:
    lock = WriteLock()
    lock.waiting = 1  # woken, and not there yet
    assert not lock.try_for_group()
    assert lock.try_for(0)


@pytest.mark.row("P4")
def test_who_gives_up_waiting_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = WriteLock()
    with monkeypatch.context() as patch:
        patch.setattr(lock, "_lock", _Interrupted())
        with pytest.raises(KeyboardInterrupt), lock:
            pytest.fail("it is not inside")
    assert lock.try_for_group()


@pytest.mark.row("P3")
@pytest.mark.parametrize("who", ["the loop", "the thread"])
def test_one_at_a_time_is_inside_and_nobody_starves(who: str) -> None:
    lock = WriteLock()
    inside = 0
    most = 0
    groups = 0
    stop = threading.Event()

    def look() -> None:
        nonlocal inside, most
        for _ in range(200):
            with lock:
                inside += 1
                most = max(most, inside)
                inside -= 1

    def write() -> None:
        nonlocal inside, most, groups
        while not stop.is_set():
            if who == "the thread":
                lock.wait_for_group()
            if who == "the thread" or lock.try_for_group():
                inside += 1
                most = max(most, inside)
                groups += 1
                inside -= 1
                lock.release()

    writer = threading.Thread(target=write, daemon=True)
    others = [threading.Thread(target=look, daemon=True) for _ in range(3)]
    for thread in (writer, *others):
        thread.start()
    for thread in others:
        thread.join(60)
        assert not thread.is_alive()
    before = groups
    until(lambda: groups > before)
    stop.set()
    writer.join(60)
    assert most == 1
    assert not lock.waiting


@pytest.mark.row("P3", "P4")
def test_a_thread_that_writes_group_after_group_lets_who_waits_in_before_the_next() -> None:
    lock = WriteLock()
    done = threading.Event()
    groups = 0

    def wait() -> None:
        with lock:
            done.set()

    other = threading.Thread(target=wait, daemon=True)
    lock.wait_for_group()
    other.start()
    until(lambda: lock.waiting == 1)
    while not done.is_set() and groups < 1000:
        lock.release()
        lock.wait_for_group()
        groups += 1
    lock.release()
    other.join(60)
    assert groups <= 2
