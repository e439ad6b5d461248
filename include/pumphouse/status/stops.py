"""What no restore of the whole passes, as the archive stands now: DDLs, and what is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from pumphouse.archive.archive import Archive
from pumphouse.archive.losses import Losses
from pumphouse.archive.view import read_view
from pumphouse.loader.rules import Rules
from pumphouse.model.tso import MAX_TSO, Tso, show
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
    base = max((base for base in archive.bases(MAX_TSO) if base.ts <= end), key=lambda base: base.ts, default=None)
    begin, since = (genesis.ts, genesis.ts) if base is None else (base.ts, base.since)
    key = (archive.url, genesis.sha256, begin, since, end, tuple(each.model_dump_json() for each in rules))
    with _lock:
        found = _known.get(key)
    if found is None:
        view = read_view(archive, since=Tso(max(since, archive.range().start)), end=end)
        some = [*stopping(view.timeline, begin, end, Rules.of(rules, Tso(0))), *lost(view.losses(since, end))]
        found = tuple(sorted(some, key=lambda stop: stop.at))
        with _lock:
            if len(_known) >= _KEPT:
                _known.clear()
            _known[key] = found
    return found


def stopping(timeline: Timeline, after: Tso, upto: Tso, rules: Rules) -> Iterator[Stop]:
    """DDLs of a range, in order."""
    for event in timeline.ddls(after, upto):
        if why := rules.ruled(event).problem:
            yield Stop(at=Tso(event.commit_ts - 1), why=why)


def lost(losses: Losses) -> Iterator[Stop]:
    """What a restore passes only with ``--accept-losses``."""
    for each in losses.declared:
        yield Stop(at=each.from_ts, why=f"declared lost of Pump {each.node_id} up to {show(each.to_ts)}: {each.reason}")
    for some in losses.binlog_skipped:
        yield Stop(at=some.start, why=f"TiDB skipped binlogs up to {show(some.end)}")
