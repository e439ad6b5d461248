"""Measuring: run a piece of work several times, take its wall time, CPU time and peak memory, print and keep the medians.

CPU time is the process accounting of the process under test (a child, or this one), never wall time times cores. Every
benchmark carries a baseline measured in the same run: what the machine does for the least that the job needs (an append
with fdatasync, a copy of the bytes, a LOAD DATA of ready text), so a figure can be read on another machine.
"""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil

RESULTS = Path("build/bench.json")


@dataclass
class Sample:
    """One run: units done, wall seconds, CPU seconds and peak resident memory of the process under test."""

    units: float
    seconds: float
    cpu_s: float
    peak_rss_mb: float
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class Result:
    """Medians of the runs of one benchmark, and of its baseline."""

    name: str
    unit: str
    samples: list[Sample]
    baseline: str = ""
    baseline_rate: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """One object of build/bench.json (a contract: docs/performance.md)."""
        median = statistics.median
        rate = median(s.units / s.seconds for s in self.samples)
        extra: dict[str, Any] = {}
        for sample in self.samples:
            for key, value in sample.extra.items():
                extra.setdefault(key, []).append(value)
        return {
            "name": self.name,
            "rate": round(rate, 1),
            "unit": self.unit,
            "cpu_s_per_100k": round(median(s.cpu_s / s.units * 1e5 for s in self.samples), 4),
            "peak_rss_mb": round(max(s.peak_rss_mb for s in self.samples), 1),
            "seconds": round(median(s.seconds for s in self.samples), 3),
            "runs": len(self.samples),
            "rate_min": round(min(s.units / s.seconds for s in self.samples), 1),
            "rate_max": round(max(s.units / s.seconds for s in self.samples), 1),
            "baseline": self.baseline,
            "baseline_rate": round(self.baseline_rate, 1),
            **{k: round(median(v), 3) for k, v in extra.items() if all(isinstance(x, int | float) for x in v)},
        }


def _tree(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


class Watch:
    """CPU and peak memory of a process and its children while a block runs.

    Looking for children reads every process of the machine, 2 ms twenty times a second: without ``tree`` for what has none.
    """

    def __init__(self, pid: int | None = None, *, tree: bool = True) -> None:
        self._process = psutil.Process(pid or os.getpid())
        self._tree = tree
        self._seen: dict[int, float] = {}
        self._start: dict[int, float] = {}
        self._peak = 0.0
        self._stop = threading.Event()
        self.seconds = 0.0

    def _look(self) -> None:
        rss = 0
        for process in _safe_tree(self._process) if self._tree else [self._process]:
            try:
                times = process.cpu_times()
                self._seen[process.pid] = times.user + times.system
                rss += process.memory_info().rss
            except psutil.Error:
                continue  # it ended between the listing and the look
        self._peak = max(self._peak, rss / (1 << 20))

    def _loop(self) -> None:
        while not self._stop.wait(0.05):
            self._look()

    @property
    def cpu_s(self) -> float:
        """CPU seconds of the tree inside the block; a child that ended counts up to its last look."""
        return sum(cpu - self._start.get(pid, 0.0) for pid, cpu in self._seen.items())

    @property
    def peak_rss_mb(self) -> float:
        """Largest sum of resident memory over the tree."""
        return self._peak

    def __enter__(self) -> Self:
        self._look()
        self._start = dict(self._seen)
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._began
        self._stop.set()
        self._thread.join()
        self._look()

    def sample(self, units: float, **extra: Any) -> Sample:
        """What the block did."""
        return Sample(units, self.seconds, self.cpu_s, self.peak_rss_mb, extra)


def _safe_tree(process: psutil.Process) -> list[psutil.Process]:
    try:
        return _tree(process)
    except psutil.Error:
        return []


def repeat(runs: int, run: Callable[[], Sample]) -> list[Sample]:
    """Run several times."""
    return [run() for _ in range(runs)]


def table(rows: list[dict[str, Any]]) -> str:
    """The results as text."""
    lines = [f"{'benchmark':34} {'rate':>14} {'unit':12} {'CPU s/100k':>11} {'peak MB':>8} {'s':>8}  baseline"]
    for row in rows:
        base = f"{row['baseline']} {row['baseline_rate']:,.0f}" if row["baseline"] else ""
        lines.append(
            f"{row['name']:34} {row['rate']:>14,.0f} {row['unit']:12} {row['cpu_s_per_100k']:>11.3f} "
            f"{row['peak_rss_mb']:>8.0f} {row['seconds']:>8.2f}  {base}"
        )
    return "\n".join(lines)


def keep(results: list[dict[str, Any]], path: Path = RESULTS) -> None:
    """Write build/bench.json; results of a part replace those of the same name and leave the others."""
    old = json.loads(path.read_text()) if path.exists() else []
    fresh = {r["name"] for r in results}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([r for r in old if r["name"] not in fresh] + results, indent=1) + "\n")
