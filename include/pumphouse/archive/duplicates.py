"""Transactions that several Pumps have (row A7): found at the commit of a window, read once ever after.

A prewrite that timed out is written again to another Pump, and both complete it. The two are one transaction when
their content is equal (`pumphouse.archive.content`); the same (start, commit) with another content holds the window.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pumphouse.archive.content import content_digest
from pumphouse.archive.holders import holder
from pumphouse.archive.manifest import AcceptedCommit, Duplicate, SegmentEntry
from pumphouse.archive.segment import read_columns, read_segment
from pumphouse.model.tso import Tso, show
from pumphouse.objectstore.base import ObjectStore

_Ints = np.ndarray[Any, np.dtype[np.int64]]


class Duplicates(NamedTuple):
    """Transactions of several Pumps: how each is read, those whose contents differ and were settled, and who holds."""

    found: tuple[Duplicate, ...] = ()
    settled: tuple[AcceptedCommit, ...] = ()
    holders: tuple[dict[str, Any], ...] = ()


def find_duplicates(
    store: ObjectStore, segments: Sequence[SegmentEntry], accepted: Sequence[AcceptedCommit] = ()
) -> Duplicates:
    """Transactions that lie in segments of more than one Pump.

    Where their contents differ, the one that was accepted by name is read; without such a name they hold the window.
    What is left out as unreadable is no content.
    """
    nodes = sorted({each.node_id for each in segments})
    if len(nodes) < 2:
        return Duplicates()
    commit_ts, start_ts, owner = _keys(store, segments, nodes)
    order = np.lexsort((owner, start_ts, commit_ts))
    commit_ts, start_ts, owner = commit_ts[order], start_ts[order], owner[order]
    same = (commit_ts[1:] == commit_ts[:-1]) & (start_ts[1:] == start_ts[:-1])
    if not same.any():
        return Duplicates()
    pairs: dict[tuple[int, int], list[str]] = {}
    for at in np.flatnonzero(same):
        key = (int(start_ts[at]), int(commit_ts[at]))
        pairs.setdefault(key, [nodes[owner[at]]]).append(nodes[owner[at + 1]])
    contents = _contents(store, segments, set(pairs))
    by_name = {(each.node_id, int(each.start_ts), int(each.commit_ts)): each for each in accepted}
    found, settled, holders = list[Duplicate](), list[AcceptedCommit](), list[dict[str, Any]]()
    for (start, commit), everyone in sorted(pairs.items(), key=lambda each: (each[0][1], each[0][0])):
        names = {node: by_name.get((node, start, commit)) for node in everyone}
        owners = [node for node in everyone if (name := names[node]) is None or name.kind != AcceptedCommit.UNREADABLE]
        keep = owners[0] if owners else ""
        if len({tuple(contents[node, start, commit]) for node in owners}) > 1:
            named = [each for each in names.values() if each is not None and each.kind == AcceptedCommit.DIFFERS]
            if len(named) != 1:
                holders.append(_differs(owners, start, commit))
                continue
            settled.append(named[0])
            keep = named[0].node_id
        if len(owners) > 1:
            drop = tuple(node for node in owners if node != keep)
            found.append(Duplicate(start_ts=Tso(start), commit_ts=Tso(commit), keep=keep, drop=drop))
    return Duplicates(tuple(found), tuple(settled), tuple(holders))


def _differs(owners: Sequence[str], start: int, commit: int) -> dict[str, Any]:
    return holder(
        owners[0],
        f"the transaction that began at {show(start)} and was committed at {show(commit)} has different contents on "
        f"{' and '.join(owners)}: find out which of these Pumps holds what is not the cluster's data; the one that is "
        f"right is taken with pumphouse archive accept NODE {start} {commit} --reason …",
        Tso(start),
        commit_ts=commit,
    )


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
