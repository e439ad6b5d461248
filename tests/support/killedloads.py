"""Loads and restores in processes of their own that are killed with -9: at a line of the loader, around a statement, at a moment.

Children come from a fork server (`tests.support.loadserver`). The only thread that it has, jemalloc's (of pyarrow), is
taken care of by jemalloc itself at a fork.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Self

import psutil
import structlog
from pymysql.connections import Connection as Session

import pumphouse
from pumphouse.runs import drill, load, restore, restore_parts
from pumphouse.settings import Settings

_HOME = Path(pumphouse.__file__).parent
# Whose lines are counted: those of a load, without what reads and writes bytes for everybody.
_TRACED = tuple(str(_HOME / room) for room in ("executor", "loader", "replay", "restore", "runs"))
_SERVER = "tests.support.loadserver"
_RUNS: dict[str, Callable[..., object]] = {
    "load": load.run,
    "restore": restore.run,
    "parts": restore_parts.run,
    "drill": drill.run,
}
# OpenBLAS starts no thread, and no connection reads the certificates of the whole world for a server on this machine.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "SSL_CERT_FILE": os.devnull}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a child ended.

    Args:
        killed: by SIGKILL.
        place: ``file:line`` before which it sent itself a signal, or the statement around which; '' = it did not.
        lines: lines of the loader that ran, where it ended well.
        moments: and moments around statements that change a server: two each.
        places: and which ones, as ``file:line``.
        error: type of what it raised; '' = it ended well.
        message: what that says.
    """

    killed: bool
    place: str = ""
    lines: int = 0
    moments: int = 0
    places: frozenset[str] = frozenset()
    error: str = ""
    message: str = ""

    def __str__(self) -> str:
        if self.killed:
            return f"killed at {self.place or 'a moment'}"
        return f"{self.error}: {self.message}" if self.error else f"ended well after {self.lines} lines"


class KilledLoad:
    """One load in a child of the fork server, under way from here on."""

    def __init__(
        self,
        settings: Settings,
        *,
        what: Literal["load", "restore", "parts", "drill"] = "load",
        at_line: int = 0,
        place: str = "",
        at_moment: int = 0,
        sends: int = signal.SIGKILL,
        **how: Any,
    ) -> None:
        """``at_line``: it sends itself a signal before this line of the loader, counted over its threads; 0 = none.

        ``place``: only those of this ``file:line`` count.
        ``at_moment``: instead of a line: 1 = before the first statement that changes a server, 2 = behind it, and so on.
        ``sends``: that signal: SIGKILL, or SIGSTOP, for one that stands still.
        ``how``: arguments of `pumphouse.runs.load.run`, or of that of `restore`, `restore_parts` or `drill` there.
        """
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([_SERVER])
        chosen = Chosen(at_line, place, at_moment)
        with _environment():
            self._said, theirs = context.Pipe(duplex=False)
            self._process = context.Process(target=_child, args=(settings, what, chosen, sends, how, theirs))
            self._process.start()
        theirs.close()

    def java(self) -> psutil.Process | None:
        """The JVM of its Spark, where it has one by now."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in psutil.Process(self._process.pid).children(recursive=True):
                if each.name() == "java":
                    return each
        return None

    def alive(self) -> bool:
        """Whether it is under way."""
        return self._process.is_alive()

    def kill(self) -> None:
        """Now; nothing happens to one that has ended."""
        self._process.kill()

    def stands(self) -> bool:
        """Wait until it has ended or stands still; whether it stands still."""
        while self._process.is_alive():
            with contextlib.suppress(psutil.NoSuchProcess):
                if psutil.Process(self._process.pid).status() == psutil.STATUS_STOPPED:
                    return True
            self._process.join(0.01)
        return False

    def wake(self) -> None:
        """One that stands still goes on."""
        if self._process.pid is not None:
            os.kill(self._process.pid, signal.SIGCONT)

    def end(self, limit_s: float = 400) -> Ended:
        """Wait for it: for 300 s the server keeps the fence for a unit that stands still, if nobody may end that."""
        said: dict[str, Any] = {}
        with contextlib.suppress(EOFError, OSError):
            while self._said.poll(limit_s):
                said |= self._said.recv()
        self._process.join(1)
        if self._process.is_alive():
            self.kill()
            self._process.join()
            raise AssertionError(f"a load did not end within {limit_s} s")
        self._said.close()
        killed = self._process.exitcode == -signal.SIGKILL
        assert killed or self._process.exitcode == 0, f"a child ended with {self._process.exitcode}"
        return Ended(killed=killed, **said)


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """For the fork server, which keeps what it is started with."""
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@dataclass(frozen=True, slots=True)
class Chosen:
    """Where a child sends itself a signal: see `KilledLoad`."""

    line: int
    place: str
    moment: int


def _child(settings: Settings, what: str, chosen: Chosen, sends: int, how: dict[str, Any], said: Connection) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    # The traceback of a thread goes where ours does, to the caller.
    threading.excepthook = lambda _: None

    def send(place: str) -> None:
        said.send({"place": place})
        os.kill(os.getpid(), sends)

    lines = Lines(chosen.line, chosen.place, send)
    moments = Moments(chosen.moment, send)
    try:
        with lines, moments:
            _RUNS[what](settings, **how)
    except Exception as error:
        said.send({"error": type(error).__name__, "message": f"{error}"[:500]})
    else:
        places = frozenset(map(shown, lines.places))
        said.send({"lines": lines.count, "moments": moments.count, "places": places})


Place = tuple[str, int]


def shown(place: Place) -> str:
    """``file:line``, the file from its package on."""
    return f"{Path(place[0]).relative_to(_HOME)}:{place[1]}"


class Lines:
    """Counts the loader's lines over all threads that begin meanwhile, and calls something before a chosen one."""

    def __init__(self, chosen: int, place: str, reached: Callable[[str], None]) -> None:
        self.count = 0
        self.places: set[Place] = set()
        self._left, self._reached = chosen, reached
        file, _, line = place.rpartition(":")
        self._only = (str(_HOME / file), int(line)) if place else None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        threading.settrace(self._call)
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(_TRACED) else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            with self._lock:
                self.count += 1
                place = (frame.f_code.co_filename, frame.f_lineno)
                self.places.add(place)
                if self._only in (None, place):
                    self._left -= 1
                    if self._left == 0:
                        self._reached(shown(place))
        return self._line


# A server is the same before and behind these.
_READS = ("SELECT", "SHOW", "SET", "BEGIN", "START")


class Moments:
    """Counts the moments before and behind each statement that changes a server, and calls something at a chosen one."""

    def __init__(self, chosen: int, reached: Callable[[str], None]) -> None:
        self.count = 0
        self._chosen, self._reached = chosen, reached
        self._lock = threading.Lock()
        self._sends = {name: getattr(Session, name) for name in ("query", "commit", "rollback")}

    def __enter__(self) -> Self:
        for name, send in self._sends.items():
            setattr(Session, name, self._around(name, send))
        return self

    def __exit__(self, *_: object) -> None:
        for name, send in self._sends.items():
            setattr(Session, name, send)

    def _around(self, name: str, send: Callable[..., Any]) -> Callable[..., Any]:
        def between(session: Session[Any], *sent: Any) -> Any:
            sql = sent[0] if sent else name
            text = sql.decode(errors="replace") if isinstance(sql, bytes | bytearray) else sql
            if text.lstrip().upper().startswith(_READS):
                return send(session, *sent)
            self._pass(f"before {text[:80]}")
            answer = send(session, *sent)
            self._pass(f"behind {text[:80]}")
            return answer

        return between

    def _pass(self, place: str) -> None:
        with self._lock:
            self.count += 1
            if self.count == self._chosen:
                self._reached(place)
