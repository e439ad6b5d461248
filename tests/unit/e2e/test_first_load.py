"""What the demo does to the processes of a load, on real ones; and what it reads in a real target."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.first_load import stopped, told_of
from tests.e2e.points import Seen

_TICKING = """
import pathlib, subprocess, sys, time
path, depth = pathlib.Path(sys.argv[1]), int(sys.argv[2])
if depth:
    subprocess.Popen([sys.executable, __file__, sys.argv[1], str(depth - 1)])
while True:
    (path / str(depth)).write_text(str(time.monotonic()))
    time.sleep(0.01)
"""


@pytest.fixture
def ticking(tmp_path: Path) -> Iterator[psutil.Process]:
    """A process with a child and a grandchild, which write the time into files."""
    program = tmp_path / "ticking.py"
    program.write_text(_TICKING)
    (tmp_path / "ticks").mkdir()
    with subprocess.Popen([sys.executable, str(program), str(tmp_path / "ticks"), "2"]) as started:
        process = psutil.Process(started.pid)
        limit = time.monotonic() + 30
        while len(list((tmp_path / "ticks").iterdir())) < 3:
            assert time.monotonic() < limit
            time.sleep(0.01)
        yield process
        for each in (*process.children(recursive=True), process):
            each.kill()


def _ticks(path: Path) -> list[str]:
    return [(path / "ticks" / str(depth)).read_text() for depth in range(3)]


@pytest.mark.row("O6")
def test_a_load_and_all_below_it_stand_still_and_then_go_on(ticking: psutil.Process, tmp_path: Path) -> None:
    with stopped(ticking):
        time.sleep(0.1)
        before = _ticks(tmp_path)
        time.sleep(0.3)
        assert _ticks(tmp_path) == before
    limit = time.monotonic() + 10
    while any(now == then for now, then in zip(_ticks(tmp_path), before, strict=True)):
        assert time.monotonic() < limit, "one of them still stands"
        time.sleep(0.01)


def test_a_load_goes_on_also_when_what_was_done_meanwhile_fails(ticking: psutil.Process) -> None:
    with pytest.raises(ValueError, match="no window"), stopped(ticking):
        raise ValueError("no window")
    processes = [ticking, *ticking.children(recursive=True)]
    limit = time.monotonic() + 10
    while any(process.status() == psutil.STATUS_STOPPED for process in processes):
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_a_look_is_told_in_words() -> None:
    assert told_of(Seen(owner="r")) == "it owns the target"
    seen = Seen(owner="r", opened="merge", units=3, intents=1)
    assert told_of(seen) == "units and DDLs of the windows are applied (3 units, 1 DDL statements)"
