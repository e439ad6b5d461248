"""Kernels that are compiled by a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pump_service import compiler
from pump_service.compiler import compile_apart

pytestmark = pytest.mark.row("P3")

SCRIPT = """
from pumphouse.codec import jit
from pump_service.compiler import compile_apart
from pump_service.warm import warm
from pump_service.warm_reads import warm_reads

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
