"""Groups of transactions into the Pumps, exactly once and in the source's order (rows Q1, Q2).

The order is that of row W7 for a store whose commit is already visible: timestamps, P of all on stable storage of the
Pumps, then the decision (`pumphouse.capture.journal`), then the Cs in the background. Whoever is killed before the
decision has published nothing: a Pump that asks is told so, and the transactions are read again. Whoever is killed
behind it has published all: a Pump that lost a C asks, and the journal says the commit ts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import structlog

from pumphouse.capture.journal import NOTHING, Decisions, Journal, Mark
from pumphouse.capture.spool import Spool, SpooledPrewrite
from pumphouse.client.pump_client import PumpClient
from pumphouse.client.resolver import PENDING, ROLLED_BACK, Outcome, committed
from pumphouse.client.transaction import TransactionBinlog
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import BadBinlog, BinlogError, CaptureRefused, PumpUnavailable
from pumphouse.model.captured import key_of
from pumphouse.model.tso import Tso
from pumphouse.schema_import.columns import Raw

log = structlog.get_logger()

# Cs of the group before are answered, or waited for so long, before those of the next go out.
_COMMITS_S = 5.0
_AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One transaction of the binlog to be: rows, or a DDL job.

    ``name`` goes behind the capture's prefix in the key, and ``micros``, the source's clock, to its end.
    """

    name: bytes
    micros: int = 0
    value: bytes | Spool | None = None
    job: Raw | None = None


class Publisher:
    """Writes entries; owns the journal's end. One thread at a time publishes, any may ask for outcomes.

    Args:
        client: not closed here.
        journal: not closed here.
        prefix: of the keys: ``capture/<id>/``.
        held: raises CaptureFenced where this process may not decide any more.
        add_jobs: brings decided DDL jobs into the history; repeatable.
        stop: ends retries.
    """

    def __init__(
        self,
        client: PumpClient,
        journal: Journal,
        prefix: bytes,
        *,
        held: Callable[[], None],
        add_jobs: Callable[[Sequence[Raw]], None],
        stop: threading.Event,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._client = client
        self._journal = journal
        self._prefix = prefix
        self._held = held
        self._add_jobs = add_jobs
        self._stop = stop
        self._clock = clock
        self._lock = threading.Lock()
        self._open: frozenset[int] = frozenset()
        self._done = self._told = journal.mark

    def publish(self, entries: Sequence[Entry], mark: Mark, decided: Callable[[], None] | None = None) -> None:
        """Bring entries, in this order, and with them the mark: durable on Pumps and decided on return.

        Args:
            entries: of a group; none: the mark alone.
            mark: how far the source was read with them.
            decided: called as soon as they are, before any C goes out: somebody waits for that alone.

        Raises:
            CaptureFenced: another process runs this capture.
            CaptureRefused: a Pump refuses a transaction for what it is.
            Stopped: it was asked to stop before the decision; nothing was published.
        """
        if not entries:
            self._held()
            self._journal.append(NOTHING, mark)
            self._done = mark
            if decided is not None:
                decided()
            return
        while True:
            starts = self._client.cluster.tsos(len(entries))
            before = [self._journal.mark.decided, *starts[:-1]]
            binlogs = [
                self._binlog(entry, ts, key_of(entry.name, ts, starts[0], last, mark.schema, entry.micros))
                for entry, ts, last in zip(entries, starts, before, strict=True)
            ]
            with self._lock:
                self._open = frozenset(map(int, starts))
            failure = self._prewrite(entries, binlogs)
            if failure is None:
                break
            # Some may be on a Pump: nobody commits them any more, and the next try has timestamps of its own.
            with self._lock:
                self._open = frozenset()
            self._client.write_commits([(each.start_ts, each.rollback()) for each in binlogs])
            if isinstance(failure, BadBinlog):
                raise CaptureRefused(
                    f"the Pumps do not take a transaction: {failure.message}",
                    hint="`pumphouse capture run --anew` goes on behind it (docs/capture.md)",
                ) from failure
            log.warning("prewrites_not_taken", error=str(failure), again_in_s=_AGAIN_S)
            if self._stop.wait(_AGAIN_S):
                raise Stopped
        commits = self._client.cluster.tsos(len(entries))
        self._decide(entries, binlogs, commits, mark, decided)

    @property
    def said(self) -> Mark:
        """How far everybody may be told that it is: its jobs are in the history, and its Cs on the Pumps.

        Neither is lost with the journal then.
        """
        with self._lock:
            done = self._done
            if self._client.flush(0):
                self._told = done
            return self._told

    def flush(self) -> None:
        """Wait until the Cs are answered, for some seconds."""
        self._client.flush(_COMMITS_S)

    def _prewrite(self, entries: Sequence[Entry], binlogs: Sequence[TransactionBinlog]) -> BinlogError | None:
        prewrites = [
            (each.start_ts, SpooledPrewrite(each.start_ts, each.key, entry.value))
            if isinstance(entry.value, Spool)
            else (each.start_ts, each.prewrite())
            for entry, each in zip(entries, binlogs, strict=True)
        ]
        try:
            outcomes = self._client.write_prewrites(prewrites)
        except PumpUnavailable as error:
            return error
        refused = [error for error in outcomes if isinstance(error, BadBinlog)]
        return next(iter(refused), None) or next((error for error in outcomes if error is not None), None)

    def _decide(
        self,
        entries: Sequence[Entry],
        binlogs: Sequence[TransactionBinlog],
        commits: Sequence[Tso],
        mark: Mark,
        decided: Callable[[], None] | None,
    ) -> None:
        jobs = []
        for entry, binlog, commit_ts in zip(entries, binlogs, commits, strict=True):
            if entry.job is not None:
                entry.job["start_ts"] = int(binlog.start_ts)
                entry.job["binlog"]["FinishedTS"] = int(commit_ts)
                jobs.append(entry.job)
        self._held()
        mark = replace(mark, start_ts=int(binlogs[-1].start_ts), commit_ts=int(commits[-1]))
        self._journal.append(_decisions(binlogs, commits, jobs, self._prefix), mark)
        self._held()  # whoever was stopped meanwhile for longer than its lease sends nothing
        if decided is not None:
            decided()
        if jobs:
            self._add_jobs(jobs)
        with self._lock:  # no Pump is told of a job that is not in the history: it would be lost with the journal
            self._open = frozenset()
        self.flush()
        with self._lock:
            self._told = self._done  # without them, too: a Pump that is away holds back nobody who waits
        self._client.write_commits([(b.start_ts, b.commit(ts)) for b, ts in zip(binlogs, commits, strict=True)])
        self._done = mark

    def answer(self, start_ts: Tso, key: bytes, decide: bool) -> Outcome:
        """What became of a transaction, for a Pump (`ResolverServer`).

        Nothing that an earlier process left open is ever decided: this one holds its lease and its journal.
        """
        del key, decide
        with self._lock:
            if int(start_ts) in self._open:
                return PENDING
        commit_ts = self._journal.outcome(start_ts)
        if commit_ts is not None:
            return committed(commit_ts)
        self._held()  # what another process has decided since is not in this journal
        return ROLLED_BACK

    def _binlog(self, entry: Entry, start_ts: Tso, name: bytes) -> TransactionBinlog:
        key = self._prefix + name
        if entry.job is None:
            value = None if isinstance(entry.value, Spool) else entry.value
            return TransactionBinlog(start_ts=start_ts, key=key, prewrite_value=value)
        return TransactionBinlog(
            start_ts=start_ts,
            key=key,
            ddl_query=entry.job["query"].encode(),
            ddl_job_id=entry.job["id"],
            ddl_schema_state=entry.job["schema_state"],
        )


class Stopped(Exception):
    """Asked to stop, before a decision."""


def _decisions(
    binlogs: Sequence[TransactionBinlog], commits: Sequence[Tso], jobs: Sequence[dict[str, Any]], prefix: bytes
) -> Decisions:
    return Decisions(
        start_ts=np.fromiter((each.start_ts for each in binlogs), np.uint64, len(binlogs)),
        commit_ts=np.fromiter(commits, np.uint64, len(commits)),
        keys=tuple(each.key[len(prefix) :] for each in binlogs),
        jobs=tuple(jobs),
    )
