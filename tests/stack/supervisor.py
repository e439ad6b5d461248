"""Processes of the local stack: started in groups of their own, remembered on disk, ended to the last one.

A record ``<run dir>/<name>.json`` is written at once, so whoever comes next, also after a ``kill -9`` of ours, finds
and ends what was left. A pid is only believed together with the process's start time. Every process carries the tag of
its stack in its environment; children that left their group (Airflow's tasks, the JVM of Spark) are found by it.
Nothing is ever ended by its name.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from pumphouse.durable import write_atomic
from pumphouse.errors import BinlogError

TAG = "PUMPHOUSE_STACK_TAG"


class StackError(BinlogError):
    """A part of the local stack does not start, or is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """What is remembered of a process. ``created`` is its start time, in seconds since the epoch."""

    name: str
    pid: int
    created: float
    log: str

    def process(self) -> psutil.Process | None:
        """The process, None when it has ended (also when its pid was given to another one)."""
        try:
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.created) < 1.0 and process.status() != psutil.STATUS_ZOMBIE:
                return process
        except psutil.Error:
            pass
        return None


class Supervisor:
    """Starts and ends the processes of one stack. ``run_dir`` holds their records and logs; ``popen`` begins them."""

    def __init__(self, run_dir: Path, popen: Callable[..., Any] = subprocess.Popen) -> None:
        self._popen = popen
        self.run_dir = run_dir.absolute()
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self.tag = str(self.run_dir)
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def log_path(self, name: str) -> Path:
        """Where stdout and stderr of a process go."""
        return self.run_dir / f"{name}.log"

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a program in a session of its own; its output is appended to ``log_path(name)``.

        ``env`` is added to ours.
        """
        if self.alive(name):
            raise StackError(f"{name} runs already", hint="make down", name=name)
        if (before := self._children.pop(name, None)) is not None:
            before.wait()  # it has ended; who drops it before it is reaped is warned
        environment = {**os.environ, **(env or {}), TAG: self.tag}
        with self.log_path(name).open("ab") as log:
            process: subprocess.Popen[bytes] = self._popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=cwd,
                start_new_session=True,
            )
        with suppress(psutil.Error):
            # A program that ended at once needs no record; the caller finds out by waiting for its service.
            created = psutil.Process(process.pid).create_time()
            record = ProcessRecord(name=name, pid=process.pid, created=created, log=str(self.log_path(name)))
            write_atomic(self.run_dir / f"{name}.json", json.dumps(asdict(record)).encode())
        self._children[name] = process
        return process

    def records(self) -> list[ProcessRecord]:
        """Every remembered process, in the order of starting; ended ones too."""
        found = []
        for path in self.run_dir.glob("*.json"):
            with suppress(ValueError, TypeError, OSError):
                found.append(ProcessRecord(**json.loads(path.read_bytes())))
        return sorted(found, key=lambda record: record.created)

    def record(self, name: str) -> ProcessRecord | None:
        """The record of one process."""
        return next((record for record in self.records() if record.name == name), None)

    def alive(self, name: str) -> bool:
        """Whether it runs now."""
        child = self._children.get(name)
        if child is not None:
            child.poll()  # reaps it, or it would be seen as a zombie
        record = self.record(name)
        return record is not None and record.process() is not None

    def pid(self, name: str) -> int | None:
        """Pid of a running process."""
        record = self.record(name)
        return record.pid if record is not None and record.process() is not None else None

    def kill(self, name: str) -> None:
        """``kill -9`` of the process itself, and wait until it is gone."""
        record = self.record(name)
        process = record.process() if record else None
        if process is None:
            raise StackError(f"{name} does not run", name=name)
        process.kill()
        self._reap(name)
        psutil.wait_procs([process], timeout=10)

    def stop(self, name: str, *, timeout_s: float = 15.0) -> None:
        """End a process and its session: SIGTERM, ``timeout_s`` to obey, then SIGKILL. No error when it is gone."""
        record = self.record(name)
        if record is not None:
            self._stop([record], timeout_s)

    def stop_all(self, *, timeout_s: float = 15.0) -> list[str]:
        """End everything at once, then whatever still carries the tag. Returns the names of those that ran."""
        records = self.records()
        ran = [record.name for record in records if self.alive(record.name)]
        self._stop(records, timeout_s)
        self.sweep()
        return ran

    def _stop(self, records: list[ProcessRecord], timeout_s: float) -> None:
        # Leaders first: a scheduler or a server ends its children in order. Then what they left behind.
        members = _members(records)
        leaders = {record.pid for record in records}
        for member in members:
            if member.pid in leaders:
                _signal(member, signal.SIGTERM)
        self._wait([member for member in members if member.pid in leaders], timeout_s)
        left = _living({*members, *_members(records)})
        for member in left:
            _signal(member, signal.SIGTERM)
        self._wait(left, min(timeout_s, 3.0))
        left = _living({*left, *_members(records)})
        for member in left:
            _signal(member, signal.SIGKILL)
        self._wait(left, 5.0)
        for record in records:
            (self.run_dir / f"{record.name}.json").unlink(missing_ok=True)
            self._reap(record.name)
            self._children.pop(record.name, None)

    def sweep(self) -> int:
        """Kill what carries this stack's tag, except ourselves and our ancestors; returns how many there were."""
        spared = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
        count = 0
        for _ in range(5):
            found = [process for process in tagged(self.tag) if process.pid not in spared]
            if not found:
                break
            count += len(found)
            for process in found:
                _signal(process, signal.SIGKILL)
            psutil.wait_procs(found, timeout=3)
        return count

    def log_size(self, name: str) -> int:
        """Bytes in a log now: a later look can begin there."""
        try:
            return self.log_path(name).stat().st_size
        except OSError:
            return 0

    def tail(self, name: str, lines: int = 15) -> str:
        """The last lines of a log, for messages."""
        try:
            text = self.log_path(name).read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def wait_until(self, name: str, ready: Callable[[], Any], *, timeout_s: float, what: str = "") -> None:
        """Wait until ``ready()`` is true; StackError with the end of the log when the process ends or time is up.

        An OSError of ``ready`` (connection refused) means not yet.
        """
        limit = time.monotonic() + timeout_s
        while True:
            with suppress(OSError):
                if ready():
                    return
            if not self.alive(name):
                raise StackError(f"{name} ended while starting:\n{self.tail(name)}", name=name)
            if time.monotonic() > limit:
                raise StackError(
                    f"{name} is not ready after {timeout_s:.0f} s{what and ': ' + what}:\n{self.tail(name)}", name=name
                )
            time.sleep(0.05)

    def _reap(self, name: str) -> None:
        child = self._children.get(name)
        if child is not None:
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout=5)

    def _wait(self, members: Iterable[psutil.Process], timeout_s: float) -> None:
        limit = time.monotonic() + timeout_s
        waiting = list(members)
        while waiting and time.monotonic() < limit:
            for child in self._children.values():
                child.poll()  # reaps our own
            waiting = _living(waiting)
            if waiting:
                time.sleep(0.02)


def tagged(tag: str) -> list[psutil.Process]:
    """Processes of this user whose environment carries the tag."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(TAG) == tag and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def descendants(supervisor: Supervisor, name: str) -> list[psutil.Process]:
    """Every living process below a supervised one."""
    record = supervisor.record(name)
    process = record.process() if record else None
    return [] if process is None else _living(process.children(recursive=True))


def _living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    found = []
    for process in processes:
        with suppress(psutil.Error):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _members(records: list[ProcessRecord]) -> set[psutil.Process]:
    """Living processes of the sessions that the records' processes lead, and all their descendants.

    The pid of a leader is the number of its session, also when it has ended itself (start_new_session). Descendants are
    looked up too: some programs overwrite their environment (process titles), so a tag does not find them.
    """
    began = {record.pid: record.created for record in records if not _reused(record)}
    found: set[psutil.Process] = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            session = process.pid if process.pid in began else os.getsid(process.pid)
            if session in began and process.create_time() >= began[session] - 1.0:
                found |= {process, *process.children(recursive=True)}
    alive = {record.pid for record in records if record.process() is not None}
    return {process for process in _living(found) if process.pid not in began or process.pid in alive}


def _reused(record: ProcessRecord) -> bool:
    """Whether the pid is another program's by now. The system gives it away only after our session is gone."""
    try:
        process = psutil.Process(record.pid)
        return abs(process.create_time() - record.created) >= 1.0
    except psutil.Error:
        return False


def _signal(process: psutil.Process, sign: signal.Signals) -> None:
    with suppress(psutil.Error):
        process.send_signal(sign)
