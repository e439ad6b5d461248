"""fdatasyncs by Linux's asynchronous I/O beside a real event loop (rows P3, P15)."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from caio import linux_aio

from pump_service.loop_syncs import LoopSyncs, loop_syncs

AT_ONCE = 8


@pytest.fixture(params=["asyncio", "uvloop"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(kind: str, main: Coroutine[Any, Any, None]) -> None:
    factory = uvloop.new_event_loop if kind == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(asyncio.wait_for(main, 20))


def mine() -> LoopSyncs:
    syncs = loop_syncs()
    assert syncs is not None, "this system has no asynchronous fdatasync"
    return syncs


def with_context() -> tuple[LoopSyncs, Any]:
    """And the kernel's context, of which a number tells that something has ended."""
    context = linux_aio.Context(AT_ONCE)
    library = SimpleNamespace(Operation=linux_aio.Operation, Context=lambda _at_once: context)
    return LoopSyncs(library, asyncio.get_running_loop()), context


class Library:
    """The library, where the kernel says what the test wants."""

    def __init__(self, refuses: Exception | None = None, begins: int = 1) -> None:
        self.Operation = SimpleNamespace(fdsync=lambda _fd: self)
        self.Context = lambda _at_once: self
        self.fileno = os.eventfd(0, os.EFD_NONBLOCK)
        self.ends: list[Callable[[int], None]] = []
        self._refuses, self._begins = refuses, begins

    def set_callback(self, ended: Callable[[int], None]) -> None:
        self.ends.append(ended)

    def submit(self, _operation: object) -> int:
        if self._refuses is not None:
            raise self._refuses
        return self._begins


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT, 0o600)
    os.write(fd, b"v" * 10_000)
    yield fd
    os.close(fd)


class Ends:
    """What `begin` was told, in which thread."""

    def __init__(self) -> None:
        self.found: list[tuple[int, OSError | None, int]] = []
        self.came = asyncio.Event()

    def done(self, number: int, error: OSError | None) -> None:
        self.found.append((number, error, threading.get_ident()))
        self.came.set()

    async def are(self, number: int) -> None:
        while len(self.found) < number:
            self.came.clear()
            await self.came.wait()


@pytest.mark.row("P3")
def test_a_sync_ends_on_the_loops_thread_and_later(kind: str, fd: int) -> None:
    async def main() -> None:
        (syncs, context), ends = with_context(), Ends()
        for number in range(3):
            os.pwrite(fd, b"w" * 5000, 5000 * number)
            assert syncs.begin(fd, partial(ends.done, number))
            assert len(ends.found) == number, "never in the call"
            await ends.are(number + 1)
        assert ends.found == [(number, None, threading.get_ident()) for number in range(3)]
        await asyncio.sleep(0.02)
        assert len(ends.found) == 3, "once"
        assert select.select([context.fileno], [], [], 0)[0] == [], "the loop is not woken again and again"
        syncs.close()

    run(kind, main())


@pytest.mark.row("P3")
def test_the_loop_runs_while_a_sync_is_under_way_and_ends_that_come_together_are_all_told(kind: str, fd: int) -> None:
    async def main() -> None:
        syncs, ends = mine(), Ends()
        for turn in range(20):
            ends.found.clear()
            begun = [number for number in range(8 * AT_ONCE) if syncs.begin(fd, partial(ends.done, number))]
            assert begun[:AT_ONCE] == list(range(AT_ONCE)), "so many are allowed at once"
            if turn % 2:
                threading.Event().wait(0.01)  # all of them end before the loop looks
            await ends.are(len(begun))
            assert sorted(number for number, _, _ in ends.found) == begun
            assert {error for _, error, _ in ends.found} == {None}
        syncs.close()

    run(kind, main())


@pytest.mark.row("P3")
def test_a_sync_that_is_begun_when_another_ends_is_told_too(kind: str, fd: int) -> None:
    async def main() -> None:
        syncs, ends = mine(), Ends()

        def again(number: int, error: OSError | None) -> None:
            ends.done(number, error)
            if number < 200:
                assert syncs.begin(fd, partial(again, number + 1))

        assert syncs.begin(fd, partial(again, 0))
        await ends.are(201)
        assert [number for number, _, _ in ends.found] == list(range(201))
        syncs.close()

    run(kind, main())


@pytest.mark.row("P3")
def test_a_wake_up_for_nothing_harms_nothing(fd: int) -> None:
    async def main() -> None:
        (syncs, context), ends = with_context(), Ends()
        os.eventfd_write(context.fileno, 1)
        await asyncio.sleep(0.02)
        assert syncs.begin(fd, partial(ends.done, 0))
        threading.Event().wait(0.05)
        for _ in range(2):
            os.eventfd_write(context.fileno, 1)
            await asyncio.sleep(0.02)
        assert [number for number, _, _ in ends.found] == [0]
        syncs.close()

    run("asyncio", main())


@pytest.mark.row("P3")
def test_what_cannot_be_synced_is_refused_and_nothing_is_called(kind: str, fd: int) -> None:
    async def main() -> None:
        syncs, ends = mine(), Ends()
        closed = os.dup(fd)
        os.close(closed)
        reader, writer = os.pipe()
        for number, each in enumerate((closed, -1, reader, writer)):
            assert syncs.begin(each, partial(ends.done, number)) is False
        os.close(reader)
        os.close(writer)
        assert syncs.begin(fd, partial(ends.done, 9)), "others are not harmed"
        await ends.are(1)
        await asyncio.sleep(0.02)
        assert [number for number, _, _ in ends.found] == [9]
        syncs.close()

    run(kind, main())


@pytest.mark.row("P3")
@pytest.mark.parametrize(
    "error", [OverflowError("EAGAIN"), OSError(errno.EPERM, "no"), SystemError("?"), ValueError("EBADF"), None]
)
def test_what_the_kernel_refuses_is_not_begun(error: Exception | None, fd: int) -> None:
    async def main() -> None:
        syncs, ends = LoopSyncs(Library(error, begins=0), asyncio.get_running_loop()), Ends()
        assert syncs.begin(fd, partial(ends.done, 0)) is False
        assert ends.found == []
        syncs.close()

    run("asyncio", main())


@pytest.mark.row("P3", "P15")
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EPERM, 0])
def test_an_error_of_the_kernel_is_told_by_its_number_and_none_as_none(number: int, fd: int) -> None:
    async def main() -> None:
        library, ends = Library(), Ends()
        syncs = LoopSyncs(library, asyncio.get_running_loop())
        assert syncs.begin(fd, partial(ends.done, 0))
        library.ends[0]((1 << 64) - number if number else 0)  # as the library gives it
        ((_, error, _),) = ends.found
        assert (error and (error.errno, error.strerror)) == ((number, os.strerror(number)) if number else None)
        syncs.close()

    run("asyncio", main())


@pytest.mark.row("P3")
def test_a_descriptor_may_be_closed_while_its_sync_is_under_way(kind: str, fd: int) -> None:
    async def main() -> None:
        syncs, ends = mine(), Ends()
        for number in range(20):
            file = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
            os.pwrite(file, b"w" * 5000, 0)
            assert syncs.begin(file, partial(ends.done, number))
            os.close(file)
            await ends.are(number + 1)
        assert [(number, error) for number, error, _ in ends.found] == [(number, None) for number in range(20)]
        syncs.close()

    run(kind, main())


@pytest.mark.row("P3")
def test_what_is_called_from_anywhere_runs_on_the_loops_thread_in_order(kind: str) -> None:
    async def main() -> None:
        syncs = mine()
        ran: list[tuple[int, bool]] = []
        heard: list[bool] = []

        came = asyncio.Event()

        def other() -> None:
            threading.Event().wait(0.05)  # by then the loop sleeps
            heard.append(syncs.mine())
            heard.extend(syncs.call(partial(lambda n: ran.append((n, syncs.mine())), n)) for n in range(100))
            heard.append(syncs.call(came.set))

        assert syncs.mine()
        assert syncs.call(lambda: ran.append((-1, syncs.mine())))
        assert ran == [], "soon, not now"
        thread = threading.Thread(target=other, daemon=True)
        thread.start()
        await asyncio.wait_for(came.wait(), 5)
        thread.join(5)
        assert ran == [(n, True) for n in range(-1, 100)]
        assert heard == [False] + [True] * 101
        syncs.close()

    run(kind, main())


@pytest.mark.row("P3")
def test_when_the_loop_is_closed_nothing_is_called_and_that_is_said(kind: str) -> None:
    made: list[LoopSyncs] = []

    async def main() -> None:
        made.append(mine())
        made[0].close()

    run(kind, main())
    called: list[int] = []
    assert made[0].call(lambda: called.append(1)) is False
    assert called == []


@pytest.mark.row("P3")
def test_once_closed_the_loop_is_told_of_no_end(kind: str, fd: int) -> None:
    async def main() -> None:
        syncs, ends = mine(), Ends()
        assert syncs.begin(fd, partial(ends.done, 0))
        syncs.close()
        await asyncio.sleep(0.05)
        assert ends.found == []

    run(kind, main())


def test_where_the_library_is_missing_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "caio", None)

    async def main() -> None:
        assert loop_syncs() is None

    run("asyncio", main())


@pytest.mark.parametrize(
    "error",
    [
        ImportError("Error on io_setup with code 38"),
        SystemError(errno.EAGAIN, "fs.aio-max-nr"),
        OSError(errno.EPERM, "a sandbox"),
        NotImplementedError("no readers here"),
    ],
)
def test_where_the_kernel_refuses_there_is_none(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_at_once: int) -> None:
        raise error

    aio = SimpleNamespace(Context=refused, Operation=SimpleNamespace(fdsync=None))
    monkeypatch.setitem(sys.modules, "caio", SimpleNamespace(linux_aio=aio))

    async def main() -> None:
        assert loop_syncs() is None

    run("asyncio", main())


@pytest.mark.row("P3")
def test_the_thread_of_a_loop_that_is_closed_is_not_its_own_any_more(kind: str) -> None:
    """Its number is given to another."""
    found: list[LoopSyncs] = []

    async def main() -> None:
        found.append(mine())
        assert found[0].mine()
        assert not await asyncio.to_thread(found[0].mine)
        found[0].close()

    run(kind, main())
    assert not found[0].mine()
