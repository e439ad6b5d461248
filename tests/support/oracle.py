"""What a Pump must still know after it was killed, from the journals of the clients that wrote to it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc

from pumphouse.proto.binlog_pb2 import Binlog
from tests.support.loadclient import value_of
from tests.support.pumpserver import PumpServer, commit, rollback
from tests.support.waiting import eventually


class Oracle:
    """Answered and sent binlogs of all rounds; `check` holds a running Pump against them."""

    def __init__(self) -> None:
        self.size: dict[int, int] = {}  # start ts -> size of every prewrite that was sent
        self.prewritten: set[int] = set()  # answered
        self.commit_sent: dict[int, int] = {}
        self.committed: dict[int, int] = {}  # answered
        self.ended: set[int] = set()  # a rollback was sent
        self.rolled_back: set[int] = set()  # answered
        self.verified = 0  # everything up to here was pulled and compared
        self.pulled: dict[int, int] = {}  # commit ts -> start ts, all that was ever pulled
        self.counted = 0

    def read(self, journal: Path) -> int:
        """Take in a journal; the number of answers in it."""
        answers = 0
        for line in journal.read_text().splitlines():
            what, start_text, value_text = line.split()
            start, value = int(start_text), int(value_text)
            if what == "p":
                self.size[start] = value
            elif what == "P":
                self.prewritten.add(start)
            elif what == "c":
                self.commit_sent[start] = value
            elif what == "C":
                self.committed[start] = value
            else:
                self.ended.add(start)
                if what == "R":
                    self.rolled_back.add(start)
            answers += what.isupper()
        self.counted += answers
        return answers

    def check(self, pump: PumpServer, *, whole: bool = False) -> int:
        """Settle what is open as its client would, pull, compare; the ts up to which everything was compared.

        ``whole``: pull again from the GC point on, not only what is new.
        """
        # A subchannel of this process may still wait out its last failure to reach the Pump before.
        grpc.channel_ready_future(pump.channel).result(timeout=60)
        self._settle(pump)
        fence = int(pump.cluster.tso())
        eventually(lambda: pump.status().watermark > fence, within_s=60, what="the watermark passes what was settled")
        status = pump.status()
        assert not status.late, f"late commits: {status.late}"
        assert not status.orphans, f"orphans: {status.orphans}"
        floor = int(status.gc_point) if whole else max(self.verified, int(status.gc_point))
        rows = pump.pull_batches(until=fence, after=floor)
        found = {row["commit_ts"]: row["start_ts"] for row in rows}
        assert [row["commit_ts"] for row in rows] == sorted(found), "the stream is not in order, or has one twice"
        for row in rows:
            self._check_row(row["start_ts"], row["commit_ts"], row["payload"])
        lost = {s: c for s, c in self.committed.items() if floor < c <= fence and found.get(c) != s}
        assert not lost, f"answered and gone: {sorted(lost.items())[:5]} of {len(lost)}"
        again = {c: s for c, s in self.pulled.items() if c > floor and found.get(c) != s}
        assert not again, f"pulled before and gone now: {sorted(again.items())[:5]} of {len(again)}"
        self.pulled |= found
        self.verified = fence
        return fence

    def _check_row(self, start: int, ts: int, payload: bytes) -> None:
        assert self.commit_sent.get(start) == ts, f"({start}, {ts}) was never sent"
        binlog = Binlog.FromString(payload)
        assert (binlog.start_ts, binlog.commit_ts) == (start, ts)
        assert binlog.prewrite_value == value_of(start, self.size[start]), f"({start}, {ts}) has other bytes"

    def _settle(self, pump: PumpServer) -> None:
        """As the clients would have: a commit is repeated, whatever else is open is rolled back."""
        open_starts = {s for s in self.prewritten if s not in self.commit_sent and s not in self.ended}
        seen: set[int] = set()
        while (status := pump.status()).unresolved:
            for blocker in status.oldest_unresolved:
                start = blocker.start_ts
                assert start in self.size, f"prewrite {start} was never sent"
                if start in seen:
                    continue
                seen.add(start)
                assert start not in self.rolled_back, f"the rollback of {start} was answered and is gone"
                assert start not in self.committed, f"the commit of {start} was answered and is gone"
                if start in self.commit_sent:
                    self.committed[start] = self.commit_sent[start]
                    pump.write(commit(start, self.commit_sent[start]))
                else:
                    self.ended.add(start)
                    pump.write(rollback(start))
        assert open_starts <= seen, f"answered prewrites are forgotten: {sorted(open_starts - seen)[:5]}"


@contextlib.contextmanager
def load(pump: PumpServer, journal: Path, *, seed: int, callers: int, streams: int, largest: int) -> Iterator[None]:
    """A client in another process while the body runs; it must end by itself when the Pump did."""
    arguments = [pump.addr, str(pump.directory / "cluster"), str(journal), seed, callers, streams, largest]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.loadclient", *map(str, arguments)],
        cwd=Path(__file__).parents[2], stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said.decode()[-2000:]
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
