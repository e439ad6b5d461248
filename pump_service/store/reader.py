"""Pulls: a range of the stream with each commit's prewrite merged in, as columns (row P7). Any thread.

From a range of the index to one buffer of payloads without a Python object for each binlog: pointers as arrays, the
log read in few runs, records checked and merged by kernels (`pump_service.store.gather`). A range with late or orphan
commits, or with outcomes that are in memory only, and whatever the kernels do not take, goes through
`pump_service.store.plain`, which is their reference.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pump_service.store import gather
from pump_service.store.batch import I64, NONE, U8, Binlog, Binlogs, LargeBinlog
from pump_service.store.index import Index
from pump_service.store.pending import PendingCommits
from pump_service.store.plain import PlainReader
from pump_service.store.regions import Regions, bytes_of, places
from pump_service.store.valuelog import ValueLog
from pumphouse.errors import BadRecord

Memory = Mapping[int, tuple[int, bytes]]

_HEADER = 16
# What is read of a record whose length is not known yet.
_HEAD = 4096
_FEWEST_KEYS, _MOST_KEYS = 64, 1 << 16
# A transaction above this is read straight to where it is needed.
_LARGE = 8 << 20
# Late, orphan and unwritten commits that are looked at together.
_EXTRAS = 64


@dataclass(frozen=True, slots=True)
class Found:
    """Binlogs up to and with ``last``. ``closer``: the first ts behind ``last`` that the kernels do not take, or 0."""

    binlogs: Binlogs
    last: int
    closer: int = 0


@dataclass(slots=True, eq=False)
class _Records:
    """Records of one pull: those of the index range, then prewrites from before it."""

    at: I64
    room: I64
    place: I64
    kind: U8
    start: I64
    size: I64

    @classmethod
    def look(cls, regions: Regions, ts: I64, place: I64) -> _Records:
        """Read and classify what the index has under some timestamps."""
        n = len(place)
        at, room = regions.load(place, np.full(n, _HEAD, np.int64))
        found = cls(at, room, place, np.empty(n, np.uint8), np.empty(n, np.int64), np.empty(n, np.int64))
        gather.classify(regions.data, at, room, ts, found.kind, found.start, found.size)
        # The checksum does not cover the length: nothing is made or read of a size that the file does not have.
        found.kind[_HEADER + found.size > regions.ahead(place)] = gather.BAD
        return found

    def with_more(self, other: _Records) -> _Records:
        """Both."""
        names = _Records.__slots__
        return _Records(*(np.concatenate((getattr(self, name), getattr(other, name))) for name in names))

    def complete(self, regions: Regions, rows: I64) -> None:
        """Read those of some records that are not wholly there."""
        short = np.unique(rows[self.room[rows] < _HEADER + self.size[rows]])
        self.at[short], self.room[short] = regions.load(self.place[short], _HEADER + self.size[short])

    def whole(self, rows: I64) -> int:
        """How many of some records, from the first on, are wholly there."""
        short = np.flatnonzero(self.room[rows] < _HEADER + self.size[rows])
        return int(short[0]) if len(short) else len(rows)


class Reader:
    """Ranges of the stream."""

    def __init__(self, index: Index, valuelog: ValueLog, pending: PendingCommits) -> None:
        self._index = index
        self._valuelog = valuelog
        self._pending = pending
        self.plain = PlainReader(index, valuelog, pending)
        self._own = threading.local()
        # Guesses from the last pulls: how many keys of the index a batch takes, and how large a binlog is.
        self._keys = 4096
        self._mean = 256

    def read(self, after: int, upto: int, memory: Memory, *, max_bytes: int, most: int | None = None) -> Found:
        """Binlogs with after < commit ts <= upto from the first on: at least one, then what fits into ``max_bytes``.

        ``last`` is ``upto`` when there are no more. ``memory``: outcomes that are on no file, by commit ts.

        Raises:
            LargeBinlog: the first one alone may be larger than ``most``.
            BadRecord, OrphanCommit: the first one cannot be served.
        """
        # One look for all of it: an outcome moves from memory to the index at any time, into which is looked later.
        memory = dict(memory)
        while after < upto:
            extra = self._extra(after, upto, memory)
            stop = extra[0] - 1 if extra else upto
            found = self._by_columns(after, stop, max_bytes, most) if stop > after else Found(NONE, stop)
            if self._extra(after, found.last, memory):
                continue  # a late commit came in between: it is noted before it is in the index
            if len(found.binlogs):
                return found
            after = found.last
            if found.closer or (extra and after == stop):
                until = found.closer or (upto if len(extra) > _EXTRAS else extra[-1])
                found = self._one_by_one(after, until, memory, max_bytes)
                if len(found.binlogs):
                    return found
                after = found.last
        return Found(NONE, max(after, upto))

    def _extra(self, after: int, upto: int, memory: Memory) -> list[int]:
        """Commit ts that need a closer look, ascending."""
        if not self._pending and not memory:
            return []
        found = {item.commit_ts for item in self._pending.between(after, upto)}
        return sorted(found | {commit for commit in memory if after < commit <= upto})

    def _one_by_one(self, after: int, upto: int, memory: Memory, max_bytes: int) -> Found:
        binlogs: list[Binlog] = []
        size = 0
        try:
            for binlog in self.plain.binlogs(after, upto, dict(memory)):
                size += len(binlog.payload)
                # The next pull goes on behind a commit ts, so what shares one stays together.
                if binlogs and size > max_bytes and binlog.commit_ts != binlogs[-1].commit_ts:
                    return Found(Binlogs.of(binlogs), binlogs[-1].commit_ts)
                binlogs.append(binlog)
        except (BadRecord, OSError):
            if not binlogs:
                raise
            return Found(Binlogs.of(binlogs), binlogs[-1].commit_ts)
        return Found(Binlogs.of(binlogs), upto)

    # -- by columns ----------------------------------------------------------------------------------------------------

    def _by_columns(self, after: int, upto: int, max_bytes: int, most: int | None) -> Found:
        keys = self._keys
        ts, fid, offset = self._index.columns(after, upto, keys)
        if not len(ts):
            return Found(NONE, upto)
        place = places(fid, offset)
        n = _fitting(place, max_bytes + max_bytes // 2 + _HEAD)
        last = int(ts[n - 1]) if n < len(ts) or len(ts) == keys else upto
        try:
            found = self._merged(ts[:n], place[:n], last, max_bytes, most)
        except (BadRecord, OSError):
            # Some record cannot be read; the one that cannot is named by itself.
            return Found(NONE, after, closer=int(ts[n - 1]))
        used = int(np.searchsorted(ts, found.last, side="right"))
        wanted = used
        if used == keys:  # there was room for more
            wanted = min(2 * keys, keys * max_bytes // max(found.binlogs.size, 1))
        # What is read beyond the batch is read again for the next.
        self._keys = min(max(wanted + wanted // 8, _FEWEST_KEYS), _MOST_KEYS)
        if len(found.binlogs):
            self._mean = found.binlogs.size // len(found.binlogs) + 1
        return found

    def _merged(self, ts: I64, place: I64, last: int, max_bytes: int, most: int | None) -> Found:
        regions = self._regions()
        records = _Records.look(regions, ts, place)
        closer = 0
        bad = np.flatnonzero(records.kind == gather.BAD)
        upto = int(bad[0]) if len(bad) else len(ts)
        if len(bad):
            closer = int(ts[upto])
        commits = np.flatnonzero(records.kind[:upto] == gather.COMMIT)
        likely = max_bytes // self._mean * 2 + 16
        if likely < len(commits):
            # Their prewrites may lie anywhere: those that will not fit are not looked for.
            commits, closer, last = commits[:likely], 0, int(ts[commits[likely - 1]])
        prewrites, records = self._prewrites_of(commits, ts, records, regions)
        lost = np.flatnonzero(prewrites == _LOST)
        if len(lost):
            closer = int(ts[commits[lost[0]]])
            commits, prewrites = commits[: lost[0]], prewrites[: lost[0]]
        # How many fit; a merged binlog is a little smaller than its two records.
        sizes = records.size[commits] + np.where(prewrites >= 0, records.size[prewrites], 0)
        fit = int(np.searchsorted(np.cumsum(sizes), max_bytes, side="right"))
        fit = min(max(fit, 1), len(commits))
        if fit < len(commits):
            commits, prewrites, closer, last = commits[:fit], prewrites[:fit], 0, int(ts[commits[fit - 1]])
        if fit == 1 and most is not None and sizes[0] > most:
            raise LargeBinlog(int(sizes[0]))
        if fit == 1 and prewrites[0] >= 0 and sizes[0] > _LARGE:
            binlogs = self._large(int(commits[0]), int(prewrites[0]), ts, records, regions)
        else:
            binlogs = _merge(commits, prewrites, ts, records, regions)
        if len(binlogs) < len(commits):
            closer = int(ts[commits[len(binlogs)]])
        return Found(binlogs, closer - 1 if closer else last, closer)

    def _prewrites_of(self, commits: I64, ts: I64, records: _Records, regions: Regions) -> tuple[I64, _Records]:
        """Row of each commit's prewrite among the records, `_FAKE` or `_LOST`; the records with those from before."""
        start = records.start[commits]
        among = np.flatnonzero(records.kind == gather.PREWRITE)
        prewrites = np.full(len(commits), _LOST, np.int64)
        prewrites[start == ts[commits]] = _FAKE
        if len(among):
            near = np.minimum(np.searchsorted(ts[among], start), len(among) - 1)
            here = (ts[among[near]] == start) & (prewrites == _LOST)
            prewrites[here] = among[near[here]]
        # Sorted: neighbours of the index lie in one of LevelDB's blocks.
        wanted = np.unique(start[prewrites == _LOST]).tolist()
        found_all = zip(wanted, self._index.get_all(wanted), strict=True)
        pointers = [(each, found) for each, found in found_all if found is not None]
        if not pointers:
            return prewrites, records
        before = np.array([each for each, _ in pointers], np.int64)
        place = places(
            np.array([found.fid for _, found in pointers], np.uint32),
            np.array([found.offset for _, found in pointers], np.int64),
        )
        more = _Records.look(regions, before, place)
        near = np.minimum(np.searchsorted(before, start), len(before) - 1)
        here = (before[near] == start) & (prewrites == _LOST) & (more.kind[near] == gather.PREWRITE)
        prewrites[here] = len(records.at) + near[here]
        return prewrites, records.with_more(more)

    def _large(self, commit: int, prewrite: int, ts: I64, records: _Records, regions: Regions) -> Binlogs:
        """One large transaction: the prewrite is read to where its bytes belong, so they are in memory once."""
        one = np.array([commit])
        records.complete(regions, one)
        data = regions.data
        if not records.whole(one) or not gather.is_good(data, int(records.at[commit]), int(records.size[commit])):
            return NONE
        begin = int(records.at[commit]) + _HEADER
        head = gather.tail_of(data, begin, begin + int(records.size[commit])) - begin
        at, size = int(records.at[prewrite]) + _HEADER, int(records.size[prewrite])
        seen = min(size, int(records.room[prewrite]) - _HEADER)
        skip = gather.tail_of(data, at, at + seen) - at
        if head < 0 or skip < 0 or (skip == seen and seen < size):
            return _merge(one, np.array([prewrite]), ts, records, regions)
        out = np.empty(head + size - skip, np.uint8)
        out[:head] = data[begin : begin + head]
        whole = regions.read(int(records.place[prewrite]), _HEADER + skip, out.data[head:])
        job = gather.job_of(out, head, len(out)) if whole and gather.is_good_in_two(data, at, skip, out, head) else -1
        if job < 0:
            return NONE
        return Binlogs(
            commit_ts=ts[one], start_ts=records.start[one], ddl_job_id=np.array([job]), flags=np.zeros(1, np.uint8),
            data=out, offsets=np.array([0, len(out)]),
        )  # fmt: skip

    def _regions(self) -> Regions:
        found: Regions | None = getattr(self._own, "regions", None)
        if found is None:
            found = self._own.regions = Regions(self._valuelog)
        found.begin()
        return found


_FAKE, _LOST = -1, -2


def _fitting(place: I64, budget: int) -> int:
    """How many places from the first on are read with about ``budget`` bytes; at least one."""
    n = len(place)
    while n > 1:
        size = bytes_of(place[:n], np.full(n, _HEAD, np.int64))
        if size <= budget:
            break
        n = max(min(n * budget // size, n * 7 // 8), 1)
    return n


def _merge(commits: I64, prewrites: I64, ts: I64, records: _Records, regions: Regions) -> Binlogs:
    """Merged binlogs of commits, from the first on, as long as they are good."""
    real = prewrites >= 0
    records.complete(regions, np.concatenate((commits, prewrites[real])))
    whole = records.whole(commits)
    short = np.flatnonzero(real)[records.whole(prewrites[real]) :]
    n = min(whole, int(short[0])) if len(short) else whole
    commits, prewrites = commits[:n], prewrites[:n]
    columns = np.empty((4, n), np.int64)
    head, tail_at, tail, job = columns
    at, start = records.at[commits], records.start[commits]
    n = gather.measure(
        regions.data, at, records.size[commits], np.where(prewrites >= 0, records.at[prewrites], -1),
        np.where(prewrites >= 0, records.size[prewrites], 0), start, head, tail_at, tail, job,
    )  # fmt: skip
    offsets = np.zeros(n + 1, np.int64)
    np.cumsum(head[:n] + tail[:n], out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    gather.merge_all(regions.data, at[:n], head[:n], tail_at[:n], tail[:n], offsets, data)
    return Binlogs(
        commit_ts=ts[commits[:n]], start_ts=start[:n], ddl_job_id=job[:n].copy(), flags=np.zeros(n, np.uint8),
        data=data, offsets=offsets,
    )  # fmt: skip
