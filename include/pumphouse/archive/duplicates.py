"""Transactions that several Pumps have (row A7): found at the commit of a window, read once ever after.

A prewrite that timed out is written again to another Pump, and both complete it; a writer with copies gives each one
to several. They are one transaction when their content is equal (`pumphouse.archive.content`); the same (start, commit)
with another content holds the window.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from pumphouse.archive.content import content_digest
from pumphouse.archive.holders import holder
from pumphouse.archive.manifest import AcceptedCommit, Duplicate, SegmentEntry
from pumphouse.archive.segment import Reader, read_segment
from pumphouse.codec.columnar import binary_buffers, valid_of
from pumphouse.codec.hashing import hash_bytes
from pumphouse.codec.jit import UInts
from pumphouse.model.tso import Tso, show
from pumphouse.objectstore.base import ObjectStore

_Ints = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

# A manifest lists so many; where there are more, segments are written again without them.
_LISTED = 1000
_KEY = ("commit_ts", "start_ts")
_COMPARED = ("part", "payload")


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Transactions of several Pumps.

    Attributes:
        found: how each is read.
        left_out: by key of a segment, which of its rows the window goes without, where ``found`` would be too long.
        settled: those whose contents differ, and that were settled by name.
        holders: those whose contents differ, and that hold the window.
    """

    found: tuple[Duplicate, ...] = ()
    left_out: Mapping[str, Mask] = field(default_factory=dict)
    settled: tuple[AcceptedCommit, ...] = ()
    holders: tuple[dict[str, Any], ...] = ()


def find_duplicates(
    read: Reader,
    segments: Sequence[SegmentEntry],
    accepted: Sequence[AcceptedCommit] = (),
    pending: Collection[tuple[int, int]] = (),
) -> Duplicates:
    """Transactions that lie in segments of more than one Pump.

    Where their contents differ, the one that was accepted by name is read; without such a name they hold the window.
    What is left out as unreadable is no content.

    ``pending``: (start ts, commit ts) of what Pumps show beside their streams. These stay in the segments of each: that
    a Pump's own are there settles what it goes on to show.
    """
    segments = [each for each in segments if _overlaps(each, segments)]
    if not segments:
        return Duplicates()
    nodes = sorted({each.node_id for each in segments})
    keys = [_keys(read, each) for each in segments]
    cuts = np.cumsum([each.shape[1] for each in keys])[:-1]
    commit_ts, start_ts = np.concatenate(keys, axis=1)
    owner = np.repeat([nodes.index(each.node_id) for each in segments], [each.shape[1] for each in keys])
    order = np.lexsort((owner, start_ts, commit_ts))
    commit_ts, start_ts, owner = commit_ts[order], start_ts[order], owner[order]
    # A copy is what one Pump has of a transaction: a row, or its parts.
    new = (np.diff(commit_ts, prepend=-1) != 0) | (np.diff(start_ts, prepend=-1) != 0)
    begins = np.flatnonzero(new | (np.diff(owner, prepend=-1) != 0))
    first = new[begins]
    transaction = np.cumsum(first) - 1
    listed = (np.bincount(transaction) > 1)[transaction]
    left_out: dict[str, Mask] = {}
    if np.count_nonzero(~first) > _LISTED:

        def by_segment(copies: Mask) -> list[Mask]:
            rows = np.empty(len(order), bool)
            rows[order] = np.repeat(copies, np.diff(begins, append=len(order)))
            return np.split(rows, cuts)

        hashes = np.concatenate(list(map(partial(_hashes, read), segments, keys, by_segment(listed))))
        digests, heads = np.add.reduceat(hashes[order], begins), np.flatnonzero(first)
        equal = np.logical_and.reduceat(digests == digests[heads][transaction], heads)[transaction]
        equal &= ~_among(pending, commit_ts[begins], start_ts[begins])
        rows = by_segment(equal & ~first)
        left_out = {each.key: mine for each, mine in zip(segments, rows, strict=True) if mine.any()}
        listed &= ~equal
    pairs: dict[tuple[int, int], list[str]] = {}
    for at in begins[listed]:
        pairs.setdefault((int(start_ts[at]), int(commit_ts[at])), []).append(nodes[owner[at]])
    contents = _contents(read, segments, set(pairs))
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
    return Duplicates(tuple(found), left_out, tuple(settled), tuple(holders))


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
    contents = _contents(partial(read_segment, store), near, {(int(start_ts), int(commit_ts))})
    for (node, _, _), digests in contents.items():
        found[node] = tuple(digests)
    return found


def _keys(read: Reader, entry: SegmentEntry) -> _Ints:
    """Commit and start ts of each row."""
    batches = read(entry, after=Tso(0), upto=entry.max_commit_ts, columns=_KEY)
    return np.concatenate([np.stack([each.column(name).to_numpy() for name in _KEY]) for each in batches], axis=1)


def _overlaps(entry: SegmentEntry, segments: Sequence[SegmentEntry]) -> bool:
    return any(
        other.node_id != entry.node_id
        and other.min_commit_ts <= entry.max_commit_ts
        and entry.min_commit_ts <= other.max_commit_ts
        for other in segments
    )


def _hashes(read: Reader, entry: SegmentEntry, keys: _Ints, wanted: Mask) -> UInts:
    """Of each row's payload and its number among the parts, 64 bits; of what is wanted, and of some beside it.

    They guard against faults, not against who writes to Pumps on purpose: what is compared has the same timestamps.
    """
    hashes = np.zeros(len(wanted), np.uint64)
    near = keys[0, wanted]
    if not near.size:
        return hashes
    at = int(np.searchsorted(keys[0], near[0]))
    for batch in read(entry, after=Tso(int(near[0]) - 1), upto=Tso(int(near[-1])), columns=_COMPARED):
        payload, mine = batch.column("payload"), hashes[at : at + batch.num_rows]
        mine[:] = batch.column("part").to_numpy()
        hash_bytes(*binary_buffers(payload), valid_of(payload), mine)
        at += batch.num_rows
    return hashes


def _among(pairs: Collection[tuple[int, int]], commit_ts: _Ints, start_ts: _Ints) -> Mask:
    """Of each transaction, whether it is one of the (start ts, commit ts)."""
    found: Mask = np.isin(commit_ts, [commit for _, commit in pairs])
    for at in np.flatnonzero(found):
        found[at] = (int(start_ts[at]), int(commit_ts[at])) in pairs
    return found


def _contents(
    read: Reader, segments: Iterable[SegmentEntry], pairs: set[tuple[int, int]]
) -> dict[tuple[str, int, int], list[str]]:
    """(node, start, commit) -> digests of its parts, in order."""
    commits = np.array(sorted({commit for _, commit in pairs}), np.int64)
    found: dict[tuple[str, int, int], list[str]] = {}
    for entry in segments:
        near = commits[(commits >= entry.min_commit_ts) & (commits <= entry.max_commit_ts)]
        if not near.size:
            continue
        columns = ["commit_ts", "start_ts", "payload"]
        for batch in read(entry, after=Tso(int(near[0]) - 1), upto=Tso(int(near[-1])), columns=columns):
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
