"""Outcomes that the store writes by itself: of prewrites whose transaction says nothing any more."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

import structlog

from pump_service.store.bookkeeping import Bookkeeping
from pump_service.store.fs import FileSystem
from pump_service.store.groups import Status
from pump_service.store.indexer import Indexer
from pump_service.store.records import Item, Records, commit, rollback
from pump_service.store.writer import Writer
from pumphouse.clock import Clock

log = structlog.get_logger(__name__)


class Settling:
    """Writes commits and rollbacks. Any thread."""

    def __init__(
        self, *, writer: Writer, indexer: Indexer, bookkeeping: Bookkeeping, fs: FileSystem, own: Path, clock: Clock
    ) -> None:
        self._writer = writer
        self._indexer = indexer
        self._bookkeeping = bookkeeping
        self._fs = fs
        self._path = own / "settled.jsonl"
        self._clock = clock
        self._unwritten: deque[Callable[[], None]] = deque()
        writer.on_written = self._write_again

    def committed(
        self,
        start_ts: int,
        commit_ts: int,
        *,
        key: bytes = b"",
        reason: str = "",
        who: str = "",
        done: Callable[[Status], None] | None = None,
    ) -> None:
        """The outcome of a prewrite is known: write its commit, as the Go Pump would, and with its key, if given.

        The key is what a transaction is known by in the archive: a captured one by its source's GTID.
        Where nothing can be written, the outcome is kept in memory and served; it is asked for again after a restart.
        One that would be late, or has another's commit ts, is not kept: ``done`` gets the error, the prewrite stays
        open.
        """
        self._settle(commit(start_ts, commit_ts, key), reason, who, done)

    def rolled_back(
        self, start_ts: int, *, reason: str = "", who: str = "", done: Callable[[Status], None] | None = None
    ) -> None:
        """The transaction can never commit: its prewrite is dropped by a rollback record of our own.

        The record makes the outcome part of the value log, so a rebuilt index knows it too. Where nothing can be
        written it is kept in memory. ``reason`` and ``who`` of a settlement by hand go to pumphouse/settled.jsonl.
        """
        self._settle(rollback(start_ts), reason, who, done)

    def _settle(self, item: Item, reason: str, who: str, done: Callable[[Status], None] | None) -> None:
        if reason and who != "resolver":
            self._record(item, reason, who)
        records = Records.of([item])
        answer = done or (lambda _status: None)

        def keep(status: Status) -> None:  # indexer thread
            if self._indexer.remember(item.start_ts, item.commit_ts, item.payload):
                log.warning("outcome_kept_in_memory", start_ts=item.start_ts, commit_ts=item.commit_ts)
                self._unwritten.append(partial(self._writer.submit, records, written, own=True))
                answer(None)
            else:
                log.error("outcome_not_taken", start_ts=item.start_ts, commit_ts=item.commit_ts, error=str(status))
                answer(status)

        def written(statuses: list[Status] | None) -> None:
            if statuses is None:
                answer(None)
            else:
                self._indexer.queue.call(partial(keep, statuses[0]))

        self._writer.submit(records, written, own=True)

    def _write_again(self) -> None:
        """After a group was written, by whoever wrote it: outcomes that a full disk did not take may go now."""
        for _ in range(len(self._unwritten)):
            self._unwritten.popleft()()

    def _record(self, item: Item, reason: str, who: str) -> None:
        line = {
            "start_ts": item.start_ts, "commit_ts": item.commit_ts, "reason": reason, "who": who,
            "at": self._clock.now(),
        }  # fmt: skip
        self._bookkeeping(lambda: self._fs.append_line(self._path, json.dumps(line).encode() + b"\n"))
