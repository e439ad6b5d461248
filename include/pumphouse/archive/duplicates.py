"""Transactions that several Pumps have (row A7): found at the commit of a window, read once ever after.

A prewrite that timed out is written again to another Pump, and both complete it. The two are one transaction when
their content is equal (`pumphouse.archive.content`); the same (start, commit) with another content fails the window.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pumphouse.archive.content import content_digest
from pumphouse.archive.manifest import Duplicate, SegmentEntry
from pumphouse.archive.segment import read_columns, read_segment
from pumphouse.errors import CorruptionError
from pumphouse.model.tso import Tso, show
from pumphouse.objectstore.base import ObjectStore

_Ints = np.ndarray[Any, np.dtype[np.int64]]


def find_duplicates(store: ObjectStore, segments: Sequence[SegmentEntry]) -> tuple[Duplicate, ...]:
    """Transactions that lie in segments of more than one Pump; CorruptionError when their contents differ."""
    nodes = sorted({each.node_id for each in segments})
    if len(nodes) < 2:
        return ()
    commit_ts, start_ts, owner = _keys(store, segments, nodes)
    order = np.lexsort((owner, start_ts, commit_ts))
    commit_ts, start_ts, owner = commit_ts[order], start_ts[order], owner[order]
    same = (commit_ts[1:] == commit_ts[:-1]) & (start_ts[1:] == start_ts[:-1])
    if not same.any():
        return ()
    pairs: dict[tuple[int, int], list[str]] = {}
    for at in np.flatnonzero(same):
        key = (int(start_ts[at]), int(commit_ts[at]))
        pairs.setdefault(key, [nodes[owner[at]]]).append(nodes[owner[at + 1]])
    contents = _contents(store, segments, set(pairs))
    found = []
    for (start, commit), owners in sorted(pairs.items(), key=lambda each: (each[0][1], each[0][0])):
        digests = {node: tuple(contents[node, start, commit]) for node in owners}
        if len(set(digests.values())) != 1:
            raise CorruptionError(
                f"the transaction that began at {show(start)} and was committed at {show(commit)} has different "
                f"contents on {' and '.join(owners)}",
                hint="one of these Pumps holds what is not the cluster's data; find out which before anything else",
                path="/".join(owners),
                offset=0,
                reason="duplicate",
                start_ts=start,
                commit_ts=commit,
            )
        found.append(Duplicate(start_ts=Tso(start), commit_ts=Tso(commit), keep=owners[0], drop=tuple(owners[1:])))
    return tuple(found)


def digest_of(
    store: ObjectStore, segments: Iterable[SegmentEntry], start_ts: Tso, commit_ts: Tso
) -> dict[str, tuple[str, ...]]:
    """Content of one transaction by Pump, {} where no segment has it."""
    found: dict[str, tuple[str, ...]] = {}
    near = [each for each in segments if each.min_commit_ts <= commit_ts <= each.max_commit_ts]
    for (node, _, _), digests in _contents(store, near, {(int(start_ts), int(commit_ts))}).items():
        found[node] = tuple(digests)
    return found


def _keys(store: ObjectStore, segments: Sequence[SegmentEntry], nodes: Sequence[str]) -> tuple[_Ints, _Ints, _Ints]:
    commits, starts, owners = [], [], []
    for entry in segments:
        if not _overlaps(entry, segments):
            continue
        table = read_columns(store, entry, ["commit_ts", "start_ts", "part"])
        first = table.column("part").to_numpy() == 0
        commits.append(table.column("commit_ts").to_numpy()[first])
        starts.append(table.column("start_ts").to_numpy()[first])
        owners.append(np.full(int(first.sum()), nodes.index(entry.node_id), np.int64))
    if not commits:
        empty = np.zeros(0, np.int64)
        return empty, empty, empty
    return np.concatenate(commits), np.concatenate(starts), np.concatenate(owners)


def _overlaps(entry: SegmentEntry, segments: Sequence[SegmentEntry]) -> bool:
    return any(
        other.node_id != entry.node_id
        and other.min_commit_ts <= entry.max_commit_ts
        and entry.min_commit_ts <= other.max_commit_ts
        for other in segments
    )


def _contents(
    store: ObjectStore, segments: Iterable[SegmentEntry], pairs: set[tuple[int, int]]
) -> dict[tuple[str, int, int], list[str]]:
    """(node, start, commit) -> digests of its parts, in order."""
    commits = np.array(sorted({commit for _, commit in pairs}), np.int64)
    found: dict[tuple[str, int, int], list[str]] = {}
    for entry in segments:
        near = commits[(commits >= entry.min_commit_ts) & (commits <= entry.max_commit_ts)]
        if not near.size:
            continue
        columns = ["commit_ts", "start_ts", "payload"]
        for batch in read_segment(store, entry, after=Tso(int(near[0]) - 1), upto=Tso(int(near[-1])), columns=columns):
            _collect(entry.node_id, batch, near, pairs, found)
    return found


def _collect(
    node_id: str,
    batch: pa.RecordBatch,
    commits: _Ints,
    pairs: set[tuple[int, int]],
    found: dict[tuple[str, int, int], list[str]],
) -> None:
    commit_ts = batch.column("commit_ts").to_numpy()
    start_ts = batch.column("start_ts").to_numpy()
    for row in np.flatnonzero(np.isin(commit_ts, commits)):
        key = (int(start_ts[row]), int(commit_ts[row]))
        if key in pairs:
            digest = content_digest(batch.column("payload")[int(row)].as_py())
            found.setdefault((node_id, *key), []).append(digest)
