"""Kernels that are compiled by a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pump_service.process import compiler
from pump_service.process.compiler import compile_apart
from pumphouse.model.node import NodeKind
from pumphouse.registry.file import FileCluster
from tests.support.waiting import eventually

pytestmark = pytest.mark.row("P3")

SCRIPT = """
from pumphouse.codec import jit
from pump_service.process.compiler import compile_apart
from pump_service.process.warm import warm
from pump_service.process.warm_reads import warm_reads

print(len(jit.not_on_disk("pump_service")))
compile_apart()
print(len(jit.not_on_disk("pump_service")))
warm()
warm_reads()
print(sum(sum(kernel.stats.cache_misses.values()) for kernel in jit._KERNELS))
"""


def test_with_an_empty_cache_another_process_compiles_and_this_one_only_loads(tmp_path: Path) -> None:
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=500, check=True
    )
    before, after, compiled_here = (line for line in done.stdout.splitlines() if line.isdigit())
    assert int(before) > 30
    assert (after, compiled_here) == ("0", "0")
    assert "compiled " in done.stdout


def test_an_installation_compiles_whatever_its_standard_input_is() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pump_service.process.compiler"], stdin=subprocess.DEVNULL, check=False
    )
    assert done.returncode == 0


def test_with_all_in_the_cache_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "not_on_disk", lambda package: [] if package == "pump_service" else ["other.kernel"])
    monkeypatch.setattr(compiler.subprocess, "run", None)
    with capture_logs() as logs:
        compile_apart()
    assert logs == []


@pytest.mark.parametrize("outcome", ["fails", "cannot start", "takes too long", "leaves nothing"])
def test_where_that_fails_the_pump_starts_all_the_same_and_says_why(
    outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], **_more: object) -> subprocess.CompletedProcess[str]:
        if outcome == "cannot start":
            raise PermissionError(13, "Permission denied")
        if outcome == "takes too long":
            raise subprocess.TimeoutExpired(command, 900)
        return subprocess.CompletedProcess(command, int(outcome == "fails"), "", "No space left on device")

    monkeypatch.setattr(compiler, "not_on_disk", lambda _package: ["pump_service.kernel"])
    monkeypatch.setattr(compiler.subprocess, "run", run)
    with capture_logs() as logs:
        compile_apart()
    (_, said) = logs
    assert said["event"] == "compiled_nothing"
    expected = {
        "fails": "No space left on device",
        "cannot start": "Permission denied",
        "takes too long": "timed out after 900",
        "leaves nothing": "nothing came into the cache",
    }
    assert expected[outcome] in said["reason"]


def test_a_pump_that_is_told_to_stop_while_kernels_compile_ends_then_and_never_serves(tmp_path: Path) -> None:
    code, log, compilers = _ended_while_compiling(tmp_path, signal.SIGTERM)
    assert code == 0
    assert "it has not served" in log
    assert "pump_serving" not in log
    assert not compilers()
    assert FileCluster(tmp_path / "cluster").node(NodeKind.PUMP, "pump-1") is None


def test_a_killed_pump_leaves_no_compiler_behind(tmp_path: Path) -> None:
    code, _, compilers = _ended_while_compiling(tmp_path, signal.SIGKILL)
    assert code == -signal.SIGKILL
    eventually(lambda: not compilers())


def _ended_while_compiling(directory: Path, number: signal.Signals) -> tuple[int, str, Callable[[], list[int]]]:
    """A Pump with an empty cache gets a signal as soon as its compiler runs: exit code, log, compilers of its own."""
    env = {**os.environ, "NUMBA_CACHE_DIR": str(directory / "cache")}
    command = ["--cluster", f"file://{directory}/cluster", "--node-id", "pump-1"]
    command += ["--data-dir", str(directory / "data"), "--addr", "127.0.0.1:0"]
    log = directory / "log"
    with log.open("wb") as out:
        pump = subprocess.Popen(
            [sys.executable, "-c", "from pumphouse.cli import main; main()", "pump", "run", *command],
            env=env, stdout=out, stderr=out,
        )  # fmt: skip
    try:

        def compilers() -> list[int]:
            found = []
            for each in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    mine = str(directory).encode() in (each / "environ").read_bytes()
                    if mine and b"pump_service.process.compiler" in (each / "cmdline").read_bytes():
                        found.append(int(each.name))
            return found

        eventually(lambda: bool(compilers()), within_s=120)
        pump.send_signal(number)
        code = pump.wait(60)
    finally:
        pump.kill()
    return code, log.read_text(), compilers
