"""Prewrites without an outcome: how many, which ones, what holds the watermark."""

from __future__ import annotations

from dataclasses import replace

import structlog

from pump_service.store.indexer import Indexer
from pump_service.store.order import Unresolved
from pump_service.store.valuelog import ValueLog
from pump_service.store.writer import Writer
from pumphouse.errors import BadRecord
from pumphouse.model.position import Pointer
from pumphouse.model.tso import Tso

log = structlog.get_logger(__name__)

_KEYS_KEPT = 1024


class OpenPrewrites:
    """Looks at what the writer has written and the indexer has paired. Any thread."""

    def __init__(self, *, writer: Writer, indexer: Indexer, valuelog: ValueLog) -> None:
        self._writer = writer
        self._indexer = indexer
        self._valuelog = valuelog
        self._keys: dict[Pointer, bytes] = {}  # of those that were shown lately

    @property
    def count(self) -> int:
        """Prewrites without an outcome, those included that are written but not indexed yet."""
        # In this order: a prewrite that is indexed in between is counted twice rather than not at all.
        behind = self._writer.prewrites - self._indexer.prewrites
        return max(behind, 0) + len(self._indexer.waiting)

    def is_open(self, start_ts: int) -> bool:
        """Whether a prewrite waits for its outcome, among those that are indexed."""
        return self._indexer.waiting.is_waiting(start_ts)

    def oldest(self, limit: int = 100, *, keys: bool = True) -> list[Unresolved]:
        """Prewrites without an outcome, in order of arrival: the first holds the watermark.

        Their keys are read from the value log, unless they are not wanted: from the first bytes of the records alone,
        however large those are, so they are for showing. One that cannot be read is left empty here.
        """
        found = self._indexer.waiting.oldest(limit)
        return [replace(each, prewrite_key=self._shown_key(each)) for each in found] if keys else found

    def key(self, prewrite: Unresolved) -> bytes:
        """Key of an unresolved prewrite, from the value log, checked with its record. Raises BadRecord, OSError."""
        return self._valuelog.file(prewrite.pointer.fid).stored(prewrite.pointer.offset).meta().prewrite_key

    def _shown_key(self, prewrite: Unresolved) -> bytes:
        known = self._keys.get(prewrite.pointer)
        if known is None:
            try:
                known = self._peeked_key(prewrite)
            except BadRecord as error:  # as it will be at the next look: said once
                log.warning("prewrite_key_unread", start_ts=prewrite.start_ts, error=str(error))
                known = b""
            except OSError as error:
                log.warning("prewrite_key_unread", start_ts=prewrite.start_ts, error=str(error))
                return b""
            if len(self._keys) >= _KEYS_KEPT:
                self._keys.clear()
            self._keys[prewrite.pointer] = known
        return known

    def _peeked_key(self, prewrite: Unresolved) -> bytes:
        file = self._valuelog.file(prewrite.pointer.fid)
        meta = file.peek(prewrite.pointer.offset)
        if (meta.tp, meta.start_ts) != (0, prewrite.start_ts):
            raise file.bad(prewrite.pointer.offset, f"it is not the prewrite of start ts {prewrite.start_ts}")
        return meta.prewrite_key

    def lowest(self) -> Tso | None:
        """Smallest start ts of them."""
        lowest = self._indexer.waiting.min_start()
        return None if lowest is None else Tso(lowest)

    def written_and_indexed(self) -> tuple[int, int]:
        """Prewrites that this process has written, and how many of them are indexed. Both only grow."""
        indexed = self._indexer.prewrites  # first: it never looks as if more were indexed than written
        return self._writer.prewrites, indexed

    def lowest_unsettled(self) -> Tso | None:
        """Smallest start ts whose outcome is not on disk: of prewrites without one, and of those kept in memory."""
        lowest = self._indexer.lowest_unsettled()
        return None if lowest is None else Tso(lowest)
