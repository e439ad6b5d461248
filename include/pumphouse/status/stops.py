"""Which DDLs no restore of the whole can pass, as the archive stands now."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from pumphouse.archive.archive import Archive
from pumphouse.archive.view import read_view
from pumphouse.loader.rules import Rules
from pumphouse.model.tso import MAX_TSO, Tso
from pumphouse.schema.timeline import Timeline
from pumphouse.settings import LoadRule
from pumphouse.status.report import Stop

# The last answers of this process: an archive is read again when it has grown, or has another dump.
_KEPT = 16
_known: dict[tuple[object, ...], tuple[Stop, ...]] = {}
_lock = threading.Lock()


def stops_of(archive: Archive, rules: Sequence[LoadRule]) -> tuple[Stop, ...]:
    """Those behind the newest dump, in order. ``rules``: of loads, by which a DDL need not stop them."""
    genesis, end = archive.genesis(), archive.end()
    since = max((base.ts for base in archive.bases(MAX_TSO) if base.ts <= end), default=genesis.ts)
    key = (archive.url, genesis.sha256, since, end, tuple(each.model_dump_json() for each in rules))
    with _lock:
        found = _known.get(key)
    if found is None:
        found = tuple(stopping(read_view(archive, since=since, end=end).timeline, since, end, Rules.of(rules, Tso(0))))
        with _lock:
            if len(_known) >= _KEPT:
                _known.clear()
            _known[key] = found
    return found


def stopping(timeline: Timeline, after: Tso, upto: Tso, rules: Rules) -> Iterator[Stop]:
    """Those of a range, in order."""
    for event in timeline.ddls(after, upto):
        if why := rules.ruled(event).problem:
            yield Stop(at=Tso(event.commit_ts - 1), why=why)
