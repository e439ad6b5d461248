"""Who publishes a window extends the index, a run at a time; and how a verification holds it against the manifests.

Whatever is missing is written by the next snapshots: runs that were never written, or were deleted. Two that do so at
once write the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice, takewhile

import structlog

from pumphouse.archive import layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.index import REMEDY, Run, decode, encode, runs_in
from pumphouse.archive.manifest import Manifest, check_chain
from pumphouse.archive.windows import Windows, row_of
from pumphouse.errors import BadManifest, ObjectNotFound
from pumphouse.model.tso import MAX_TSO, Tso

log = structlog.get_logger()

RUN = 1_000  # windows of one object
FIGURES = 100_000  # of one object: what segments have, and what they have of tables; else wide windows fill the memory
_AT_ONCE = 16
NEWEST = 24  # windows that no run has: HEAD may name one of them, and expiry keeps them


def extend_index(archive: Archive, *, size: int = RUN, newest: int = NEWEST) -> Run | None:
    """Write the next run where so many windows are in none, or what lacks between two; None = there is nothing to do.

    Args:
        archive: which one.
        size: windows of a run.
        newest: how many windows stay in none.

    Raises:
        BadManifest, ObjectNotFound: the windows are damaged, or expire meanwhile.
    """
    genesis, start, runs = archive.genesis(), archive.range().start, runs_in(archive.store)
    while True:
        at, stop = _lacking(runs, start)
        most = size + (0 if stop < MAX_TSO else newest)
        found = list(islice(_between(archive, at, stop), most))
        if at == start or (found and layout.window_start(found[0]) == at):
            break
        runs = [each for each in runs if each.end != at]  # there is no such window: a run of another chain
    if not found or (stop == MAX_TSO and len(found) < most):
        return None
    manifests = list(_some(archive, found[:size]))
    check_chain(manifests, cluster_id=archive.cluster_id, start=at, digest=manifests[0].previous)
    run, data = encode(Windows.of(manifests), genesis)
    for what in _differs(decode(run, data, genesis, archive.read_named), {m.start: m for m in manifests}):
        raise BadManifest(f"{run.key} {what}", path=run.key, offset=0, reason="content")
    archive.store.put(run.key, data)
    log.info("index_extended", key=run.key, windows=len(manifests), bytes=len(data))
    return run


def _between(archive: Archive, at: Tso, stop: Tso) -> Iterator[str]:
    """Manifests of windows that begin in [at, stop)."""
    keys = (each.key for each in archive.store.list(layout.WINDOWS, after=layout.before_window(at)))
    return takewhile(lambda key: layout.window_start(key) < stop, keys)


def _some(archive: Archive, keys: Sequence[str]) -> Iterator[Manifest]:
    """The first of these manifests, at least one, with so many figures."""
    figures = 0
    for begin in range(0, len(keys), _AT_ONCE):
        for manifest in archive.read(keys[begin : begin + _AT_ONCE]):
            figures += sum(len(each.tables) + 1 for each in manifest.segments)
            if figures > FIGURES and layout.window_key(manifest.start) != keys[0]:
                return
            yield manifest


def _lacking(runs: Sequence[Run], start: Tso) -> tuple[Tso, Tso]:
    """Where the first windows begin that are in no run, and where the next run begins."""
    at = start
    for run in runs:
        if run.start > at:
            return at, run.start
        at = max(at, run.end)
    return at, MAX_TSO


def index_problems(
    archive: Archive, keys: Sequence[str], start: Tso, manifests: Sequence[Manifest], damaged: Collection[str]
) -> Iterator[tuple[str, str]]:
    """(key, what is wrong) of these objects.

    Args:
        archive: which one.
        keys: listed before the windows.
        start: windows are kept from here on.
        manifests: of all windows that can be read.
        damaged: keys of the others, which are named as what they are.
    """
    known = {each.start: each for each in manifests}
    for key in keys:
        named = layout.index_range(key)
        if named is None:
            yield key, f"{key} is no run of the index: delete it"
            continue
        run = Run(*named)
        try:
            found = decode(run, archive.store.get(key), archive.genesis(), archive.read_named)
        except ObjectNotFound:  # its windows expired meanwhile
            continue
        except BadManifest as error:
            yield key, str(error)
            continue
        if found.end > start:
            kept = found.between(start, found.end)
            yield from ((key, f"{what}: {REMEDY}") for what in islice(_differs(kept, known, damaged), 1))


def _differs(windows: Windows, manifests: dict[Tso, Manifest], damaged: Collection[str] = ()) -> Iterator[str]:
    """What a run says otherwise than the manifests."""
    for row in windows.rows():
        start = Tso(row["start"])
        manifest, key = manifests.get(start), layout.window_key(start)
        if manifest is None and key not in damaged:
            yield f"holds {key}, which is not there"
        if manifest is not None and row != row_of(manifest):
            yield f"says otherwise than {key} does"
    first = manifests.get(windows.start)
    if first is not None and first.previous != windows.previous:
        yield f"hangs on {windows.previous}, {first.key} on {first.previous}"
