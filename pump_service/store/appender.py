"""Brings a group into the value log, and decides what a failure means (row P15).

No space and no descriptor are states that end by themselves; a failed sync, or any other failed write, ends writing in
this process for good, because what the medium holds is unknown from then on. Whoever has the write lock calls this.
"""

from __future__ import annotations

import numpy as np
import structlog

from pump_service.store.disk import NO_FILES, NO_SPACE, DiskGuard
from pump_service.store.groups import Group, Left, refuse, rows_of, written
from pump_service.store.logfile import SyncFailed
from pump_service.store.valuelog import Appended, ValueLog
from pumphouse.errors import PumpUnavailable, WriterFailed

log = structlog.get_logger(__name__)


class Appender:
    """The value log with a guard before it."""

    def __init__(self, valuelog: ValueLog, guard: DiskGuard) -> None:
        self._valuelog = valuelog
        self._guard = guard
        self.failed: WriterFailed | None = None

    def append(self, group: Group, stored: Appended) -> None:
        """Append what may be appended, and say so in ``stored``; sets all statuses that are known."""
        left: Left = [(request, np.arange(len(request.records))) for request in group if len(request.records)]
        if self.failed is not None:
            refuse(left, self.failed)
            return
        if self._guard.left_to_bookkeeping():
            left = self._only_own(left)
        if self._guard.read_only():
            left = self._refuse_prewrites(left)
        for attempt in (1, 2, 3):
            if not left:
                return
            appended = self._valuelog.append(rows_of(left))
            stored.add(appended)
            left = written(left, appended.records)
            if appended.error is None:
                return
            if appended.error.errno in NO_FILES:
                # Only opening the next file says that, so nothing is half written. The next group tries again.
                refuse(left, _no_files(appended.error))
                return
            if not self._survives(appended.error):
                if self.failed is not None:
                    refuse(left, self.failed)
                return
            left = self._after_full(attempt, self._refuse_prewrites(left))

    def fail(self, error: BaseException) -> None:
        """Writing ends here."""
        if self.failed is None:
            path = str(getattr(error, "filename", None) or "value log")
            self.failed = WriterFailed(
                f"writing failed and this process writes no more: {error!r}",
                hint="check the disk, then restart the Pump",
                path=path,
            )
            log.error("writer_failed", error=repr(error))

    def _survives(self, error: OSError) -> bool:
        """Whether a failed append leaves the log as it was: only a full disk does, and only when the cut works."""
        if error.errno in NO_SPACE and not isinstance(error, SyncFailed):
            self._cut()
        else:
            self.fail(error)
        return self.failed is None

    def _cut(self) -> None:
        try:
            self._valuelog.cut_partial()
        except OSError as error:
            self.fail(error)

    def _after_full(self, attempt: int, left: Left) -> Left:
        """What may be tried once more on a full disk: first everything, then what may use the other reserve."""
        if attempt == 1 and self._guard.went_full():
            return left
        left = self._only_own(left)
        if attempt <= 2 and left and self._guard.make_room():
            return left
        self._refuse(left)
        return []

    def _only_own(self, left: Left) -> Left:
        self._refuse([each for each in left if not each[0].own])
        return [each for each in left if each[0].own]

    def _refuse_prewrites(self, left: Left) -> Left:
        split = [(request, rows, request.records.columns.tp[rows] == 0) for request, rows in left]
        self._refuse([(request, rows[prewrite]) for request, rows, prewrite in split])
        kept = [(request, rows[~prewrite]) for request, rows, prewrite in split]
        return [(request, rows) for request, rows in kept if len(rows)]

    def _refuse(self, which: Left) -> None:
        if any(len(rows) for _, rows in which):
            refuse(which, self._guard.refusal())


def _no_files(error: OSError) -> PumpUnavailable:
    log.warning("no_file_for_the_log", error=str(error))
    return PumpUnavailable(
        f"the next file of the log cannot be opened: {error.strerror}",
        hint="raise the limit of open files of the Pump (LimitNOFILE of systemd, ulimit -n); it goes on by itself",
        path=str(error.filename or ""),
    )
