"""Transactions that several Pumps have (row A7): found at the commit of a window, read once ever after.

A prewrite that timed out is written again to another Pump, and both complete it; a writer with copies gives each one
to several. They are one transaction when their content is equal (`pumphouse.archive.content`); the same (start, commit)
with another content holds the window.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from pumphouse.archive.content import content_digest
from pumphouse.archive.holders import holder
from pumphouse.archive.manifest import AcceptedCommit, Duplicate, SegmentEntry
from pumphouse.archive.segment import read_columns, read_segment
from pumphouse.codec.columnar import binary_buffers, valid_of
from pumphouse.codec.hashing import hash_bytes
from pumphouse.codec.jit import UInts
from pumphouse.model.tso import Tso, show
from pumphouse.objectstore.base import ObjectStore

_Ints = np.ndarray[Any, np.dtype[np.int64]]
_Mask = np.ndarray[Any, np.dtype[np.bool_]]

# A manifest lists so many; where there are more, segments are written again without them.
_LISTED = 1000
_COMPARED = ("commit_ts", "start_ts", "part", "payload")


@dataclass(frozen=True, slots=True)
class Transactions:
    """Timestamps of transactions, in order (commit_ts, start_ts)."""

    commit_ts: _Ints
    start_ts: _Ints

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> Transactions:
        """Of (start ts, commit ts)."""
        each = np.array(sorted((commit, start) for start, commit in pairs), np.int64).reshape(-1, 2)
        return cls(each[:, 0], each[:, 1])

    def has(self, commit_ts: _Ints, start_ts: _Ints) -> _Mask:
        """Of each of others, whether it is one of these."""
        return self.places(commit_ts, start_ts) >= 0

    def places(self, commit_ts: _Ints, start_ts: _Ints) -> _Ints:
        """Of each of others, which one it is of these; -1 = none."""
        first = np.searchsorted(self.commit_ts, commit_ts, "left")
        behind = np.searchsorted(self.commit_ts, commit_ts, "right")
        places = np.full(len(commit_ts), -1, np.int64)
        for step in range(int((behind - first).max(initial=0))):  # few share a commit ts
            at = np.minimum(first + step, len(self.start_ts) - 1)
            places = np.where((first + step < behind) & (self.start_ts[at] == start_ts), at, places)
        return places


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Transactions of several Pumps.

    Attributes:
        found: how each is read.
        many: by Pump, what its segments are written again without, as it is too much for ``found``.
        settled: those whose contents differ, and that were settled by name.
        holders: those whose contents differ, and that hold the window.
    """

    found: tuple[Duplicate, ...] = ()
    many: Mapping[str, Transactions] = field(default_factory=dict)
    settled: tuple[AcceptedCommit, ...] = ()
    holders: tuple[dict[str, Any], ...] = ()


def find_duplicates(
    store: ObjectStore,
    segments: Sequence[SegmentEntry],
    accepted: Sequence[AcceptedCommit] = (),
    pending: Iterable[tuple[int, int]] = (),
) -> Duplicates:
    """Transactions that lie in segments of more than one Pump.

    Where their contents differ, the one that was accepted by name is read; without such a name they hold the window.
    What is left out as unreadable is no content.

    ``pending``: (start ts, commit ts) of what Pumps show beside their streams. These stay in the segments of each: that
    a Pump's own are there settles what it goes on to show.
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
    many: dict[str, Transactions] = {}
    if np.count_nonzero(same) > _LISTED:
        of = np.concatenate([[False], same]) | np.concatenate([same, [False]])
        equal = _equal(store, segments, nodes, (commit_ts[of], start_ts[of], owner[of]))
        equal &= ~Transactions.of(pending).has(commit_ts[of], start_ts[of])
        many = {
            node: Transactions(commit_ts[of][mine], start_ts[of][mine])
            for at, node in enumerate(nodes)
            if (mine := equal & (owner[of] == at)).any()
        }
        same[np.flatnonzero(of)[equal] - 1] = False
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
    return Duplicates(tuple(found), many, tuple(settled), tuple(holders))


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


def _equal(
    store: ObjectStore,
    segments: Sequence[SegmentEntry],
    nodes: Sequence[str],
    twice: tuple[_Ints, _Ints, _Ints],
) -> _Mask:
    """Of transactions that several Pumps have, (commit_ts, start_ts, owner) in order: which are to be left out.

    These are all but the first of each whose payloads are equal on all its Pumps, by a hash of 64 bits. The hash guards
    against faults, not against who writes to Pumps on purpose: what is compared has the same timestamps.
    """
    commit_ts, start_ts, _ = twice
    first = (np.diff(commit_ts, prepend=-1) != 0) | (np.diff(start_ts, prepend=-1) != 0)
    begins, of = np.flatnonzero(first), np.cumsum(first) - 1
    digests = _digests(store, segments, nodes, twice)
    equal = np.logical_and.reduceat(digests == digests[begins][of], begins)[of]
    left_out: _Mask = equal & ~first
    return left_out


def _digests(
    store: ObjectStore, segments: Sequence[SegmentEntry], nodes: Sequence[str], twice: tuple[_Ints, _Ints, _Ints]
) -> UInts:
    """Hash of each one's payload, whatever the order of its parts."""
    commit_ts, start_ts, owner = twice
    digests = np.zeros(len(owner), np.uint64)
    for at, node in enumerate(nodes):
        mine = np.flatnonzero(owner == at)
        wanted = Transactions(commit_ts[mine], start_ts[mine])
        for entry in segments:
            if entry.node_id != node:
                continue
            for batch in read_segment(store, entry, after=Tso(0), upto=entry.max_commit_ts, columns=_COMPARED):
                place = wanted.places(batch.column("commit_ts").to_numpy(), batch.column("start_ts").to_numpy())
                np.add.at(digests, mine[place[place >= 0]], _hashed(batch)[place >= 0])
    return digests


def _hashed(batch: pa.RecordBatch) -> UInts:
    """Of each row, with the number of its part."""
    payload = batch.column("payload")
    hashes: UInts = batch.column("part").to_numpy().astype(np.uint64)
    hash_bytes(*binary_buffers(payload), valid_of(payload), hashes)
    return hashes


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
