"""`kill -9` of a process that writes: every answer that reached the other end of a pipe is kept."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pumphouse.model.position import ZERO_POINTER
from tests.support.storekit import (
    find,
    open_store,
    pull_all,
    rollback,
    settle,
    until,
    value_log,
    write,
)

_WRITER = """
import contextlib, json, os, random, sys, threading
from pathlib import Path
import pytest, structlog
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
from tests.support.storekit import commit, open_store, prewrite, rollback, submit
from tests.support.writers import written_here
data_dir, first = Path(sys.argv[1]), int(sys.argv[2])
stack = contextlib.ExitStack()
if sys.argv[3] == "here":
    stack.enter_context(written_here(pytest.MonkeyPatch()))
store = open_store(data_dir, value_log_file_bytes=1 << 16)
clock, room, out = [first], threading.Semaphore(64), threading.Lock()

def tso():
    with out:
        clock[0] += 1
        return clock[0]

def say(*what):
    os.write(1, json.dumps(what).encode() + b"\\n")

def answered(statuses, *what):
    assert statuses == [None]
    say(*what)

def run(seed):
    chance = random.Random(seed)
    while True:
        start = tso()
        done = threading.Event()
        submit(store, [prewrite(start, chance.randbytes(chance.randint(0, 2000)))], lambda s: (answered(s, "p", start), done.set()))
        done.wait()
        done = threading.Event()
        if chance.random() < 0.1:
            submit(store, [rollback(start)], lambda s: (answered(s, "r", start), done.set()))
        else:
            ts = tso()
            submit(store, [commit(start, ts)], lambda s: (answered(s, "c", start, ts), done.set()))
        done.wait()

for seed in range(8):
    threading.Thread(target=run, args=(first + seed,), daemon=True).start()
threading.Event().wait()
"""


@pytest.mark.row("P3", "P5")
@pytest.mark.parametrize("who", ["thread", "here"])
def test_no_answered_binlog_is_lost_over_kills(who: str, tmp_path: Path) -> None:
    chance = random.Random(int(os.environ.get("KILL_SEED", "3")))
    prewrites: set[int] = set()
    outcomes: dict[int, int] = {}
    first = 1000
    for _ in range(int(os.environ.get("KILL_ROUNDS", "2"))):
        said = _run_and_kill(tmp_path / "data", first, chance.uniform(0.1, 0.4), who)
        assert said
        for kind, start, *ts in said:
            if kind == "p":
                prewrites.add(start)
            else:
                outcomes[start] = ts[0] if ts else 0
        first += 1_000_000
        _check(tmp_path / "data", prewrites, outcomes)


def _run_and_kill(data_dir: Path, first: int, seconds: float, who: str) -> list[list[int | str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(data_dir), str(first), who],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    os.set_blocking(process.stdout.fileno(), False)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        lines += process.stdout.readlines()
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    os.set_blocking(process.stdout.fileno(), True)
    text = b"".join(lines) + process.stdout.read()
    process.stdout.close()
    # The last line may be cut by the kill: it was not said.
    return [json.loads(line) for line in text.split(b"\n")[:-1]]


def _check(data_dir: Path, prewrites: set[int], outcomes: dict[int, int]) -> None:
    store = open_store(data_dir, value_log_file_bytes=1 << 16)
    try:
        waiting = {each.start_ts for each in store.prewrites.oldest(1 << 20)}
        in_log = [entry for entries in value_log(store).scan(ZERO_POINTER) for entry in entries]
        assert prewrites <= {entry.start_ts for entry in in_log if entry.tp == 0}
        assert not waiting & set(outcomes)
        for start, ts in outcomes.items():
            assert ts == 0 or find(store, ts) is not None, f"the commit of {start} was answered and is gone"
        # What was not answered is settled as a resolver would, so that the stream can be read to its end.
        assert write(store, *map(rollback, waiting or {1})) == [None] * len(waiting or {1})
        until(lambda: store.prewrites.count == 0)
        settle(store)
        served = {(start, ts) for ts, start, _, _ in pull_all(store)}
        assert {(start, ts) for start, ts in outcomes.items() if ts} <= served
        assert store.late() == store.orphans() == []
    finally:
        store.close()
