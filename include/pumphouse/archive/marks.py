"""Marks: moments that stay restorable, with the reason, until somebody takes the mark away (row A5)."""

from __future__ import annotations

from collections.abc import Callable

from pumphouse.archive.archive import Archive
from pumphouse.archive.declare import default_who
from pumphouse.archive.range import Mark, Range, put_range, with_mark, without_mark
from pumphouse.archive.view import read_view
from pumphouse.clock import SYSTEM_CLOCK
from pumphouse.errors import ManifestConflict, UsageError
from pumphouse.model.tso import Tso, show

_TRIES = 5


def mark(archive: Archive, ts: Tso, reason: str, *, who: str = "") -> Mark:
    """Keep a moment restorable: its dump, and the windows from there on.

    Raises:
        UsageError: no reason, or the moment cannot be restored as it is.
    """
    made = Mark(ts=ts, reason=reason.strip(), who=who or default_who(), at_ms=_now_ms())
    _put(archive, lambda kept: with_mark(kept, made, archive.end()))
    # Put first: what leads there may have expired otherwise between the look and the put.
    if read_view(archive, upto=ts).base_for(ts) is None:
        unmark(archive, ts)
        raise UsageError(
            f"{show(ts)} cannot be marked: no dump leads there",
            hint="`pumphouse archive ls` says from when on moments can be restored",
        )
    return made


def unmark(archive: Archive, ts: Tso, *, who: str = "") -> None:
    """Let a moment expire with the others; UsageError where it is not marked."""
    _put(archive, lambda kept: without_mark(kept, ts, who=who or default_who(), at_ms=_now_ms()))


def _put(archive: Archive, changed: Callable[[Range], Range]) -> None:
    for turn in range(_TRIES):
        try:
            put_range(archive.store, changed(archive.range()))
        except ManifestConflict:
            if turn == _TRIES - 1:
                raise
        else:
            return


def _now_ms() -> int:
    return int(SYSTEM_CLOCK.now() * 1000)
