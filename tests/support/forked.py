"""Pumps and captures in forks of a process that has imported them, with the kernels loaded: a start without seconds of CPU.

What it gives is a process of its own, as of `subprocess.Popen`: with its own session, environment and streams, and it goes
on from `pumphouse.cli.main` as one that was begun for it. The server ends with who began it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import select
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from tests.stack.pumps import CLI

_MOST = 1 << 20  # bytes of arguments and environment
_IMPORTED = (
    "pump_service.command.cli",
    "pumphouse.capture.check",
    "pumphouse.capture.run",
    "pumphouse.commands.archive",
    "pumphouse.commands.capture",
    "pumphouse.commands.pump",
    "pumphouse.dump.run",
    "pumphouse.registry.file",
)
_beginning = threading.Lock()


class Forked:
    """One command; ``stdout`` and ``stderr`` are files that are open for writing."""

    def __init__(
        self,
        arguments: list[str],
        *,
        stdout: IO[bytes],
        stderr: IO[bytes],
        env: Mapping[str, str],
        cwd: Path | None = None,
    ) -> None:
        self.args = arguments
        self.returncode: int | None = None
        self._lock = threading.Lock()
        self._ended, theirs = os.pipe()
        asked = json.dumps({"arguments": arguments, "env": dict(env), "cwd": str(cwd or Path.cwd())}).encode()
        try:
            with _beginning:
                server = _server(os.getpid())
            socket.send_fds(server, [asked], [stdout.fileno(), stderr.fileno(), theirs])
        finally:
            os.close(theirs)
        self.pid = _number(self._ended)

    def poll(self) -> int | None:
        """Its exit code, a signal's negative; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The same, once it has ended; subprocess.TimeoutExpired."""
        with self._lock:
            if self.returncode is None:
                told = select.poll()  # of descriptors of any number
                told.register(self._ended)
                if not told.poll(None if timeout is None else timeout * 1000):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
                self.returncode = _number(self._ended)
                os.close(self._ended)
            return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing happens to one that has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


def popen(command: list[str], **options: Any) -> Forked | subprocess.Popen[bytes]:
    """As `subprocess.Popen`: commands of `pumphouse` in forks, everything else as ever."""
    if tuple(command[: len(CLI)]) != CLI:
        return subprocess.Popen(command, **options)
    options = {name: value for name, value in options.items() if name not in ("stdin", "start_new_session")}
    return Forked(command[len(CLI) :], **options)


def run(arguments: list[str], *, timeout: float) -> subprocess.CompletedProcess[str]:
    """A command of `pumphouse` that ends, and what it said."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        code = Forked(arguments, stdout=out.buffer, stderr=err.buffer, env=os.environ).wait(timeout)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(arguments, code, out.read(), err.read())


def _number(fd: int) -> int:
    told = os.read(fd, 4)
    assert told, "the server has ended"
    return int.from_bytes(told, "little", signed=True)


@functools.cache
def _server(of: int) -> socket.socket:
    """Begin it, once in a process; the socket that it is asked on."""
    del of
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST)
    with theirs:
        subprocess.Popen(
            [sys.executable, "-m", __name__],
            # A thread of Arrow's allocator might hold a lock at a fork.
            env={**os.environ, "PYTHONWARNINGS": "default", "JE_ARROW_MALLOC_CONF": "background_thread:false"},
            cwd=Path(__file__).resolve().parents[2],
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        ).returncode = 0  # nobody waits for it: it ends with this process
    return ours


def _serve() -> None:
    """Fork for each message; returns in the child, with its streams, its environment and its arguments."""
    asking = socket.socket(fileno=os.dup(0))
    running: dict[int, tuple[int, int]] = {}  # pidfd -> pid, where its exit code goes
    selector = selectors.DefaultSelector()
    selector.register(asking, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fd in running:
                selector.unregister(key.fd)
                pid, ended = running.pop(key.fd)
                os.close(key.fd)
                _say(ended, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(ended)
                continue
            message, fds, *_ = socket.recv_fds(asking, _MOST, 3)
            if not message:
                sys.exit()
            pid = os.fork()
            if pid == 0:
                selector.close()
                asking.close()
                for pidfd, (_, ended) in running.items():
                    os.close(pidfd)
                    os.close(ended)
                _become(fds, **json.loads(message))
                return
            *streams, ended = fds
            for stream in streams:
                os.close(stream)
            _say(ended, pid)
            running[pidfd := os.pidfd_open(pid)] = pid, ended
            selector.register(pidfd, selectors.EVENT_READ)


def _say(fd: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody asks any more
        os.write(fd, number.to_bytes(4, "little", signed=True))


def _become(fds: list[int], arguments: list[str], env: dict[str, str], cwd: str) -> None:
    os.setsid()
    os.chdir(cwd)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for stream, fd in enumerate((nothing, *fds[:2])):
        os.dup2(fd, stream)
    for fd in (nothing, *fds):
        os.close(fd)
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["-c", *arguments]


if __name__ == "__main__":
    from pump_service.process.warm import warm
    from pump_service.process.warm_reads import warm_reads
    from pumphouse.cli import main

    for module in _IMPORTED:
        importlib.import_module(module)
    warm()
    warm_reads()
    gc.collect()
    gc.freeze()
    _serve()
    main()
