"""Commits that cannot go into the stream as they are: late ones and orphans, until they are accepted by name.

A prewrite that has the start ts of another one, with other content, is kept here as well: as an orphan whose commit ts
is its start ts. No commit has such times, so it holds every window by its name, and no stream has it.

Kept in <data_dir>/pumphouse/commits.jsonl, one event a line, synced before the index moves past the record. Events:
``pending`` (start_ts, commit_ts, fid, offset, late, orphan, watermark), ``accepted`` (start_ts, commit_ts, reason, at),
``healed`` (start_ts: the missing prewrite came after all). Written by the indexer and by `accept`; read by any thread.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pump_service.store.block import I64
from pump_service.store.fs import FileSystem
from pumphouse.errors import CorruptionError, UsageError
from pumphouse.model import strict
from pumphouse.model.position import Pointer

FILE_NAME = "commits.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCommit:
    """One commit that was kept out of the stream."""

    start_ts: int
    commit_ts: int
    fid: int
    offset: int
    # At or below a watermark that had been published; or another commit has its commit ts; or its transaction has
    # another outcome already.
    late: bool
    orphan: bool  # its prewrite is on no file; the payload is the bare commit
    watermark: int  # the one published when it came
    accepted: bool = False

    @property
    def pointer(self) -> Pointer:
        """Where the record lies."""
        return Pointer(self.fid, self.offset)

    @property
    def is_prewrite(self) -> bool:
        """Whether it is a prewrite whose start ts another one has."""
        return self.start_ts == self.commit_ts

    @property
    def holds(self) -> bool:
        """Whether pulls and the deletion limit still mind it."""
        return not self.accepted and (self.late or self.orphan)

    @property
    def holds_as_late(self) -> bool:
        """Whether pulls still say that it is late."""
        return not self.accepted and self.late


def _in_order(items: Iterable[PendingCommit]) -> list[PendingCommit]:
    return sorted(items, key=lambda item: (item.commit_ts, item.start_ts))


class PendingCommits:
    """All late and orphan commits that are still on file."""

    def __init__(self, fs: FileSystem, directory: Path) -> None:
        self._fs = fs
        self._path = directory / FILE_NAME
        self._lock = threading.Lock()
        self._items: dict[tuple[int, int], PendingCommit] = {}
        self._orphans: dict[int, set[int]] = {}  # start ts -> commit ts
        self._orphan_starts: I64 | None = None  # None = it has to be made anew

    def load(self) -> None:
        """Read the events. A last line without newline was never synced, so nothing relied on it."""
        if not self._fs.exists(self._path):
            return
        lines = self._fs.read(self._path).split(b"\n")
        tail = lines.pop()
        for number, line in enumerate(lines, 1):
            try:
                self._apply(strict.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise CorruptionError(
                    f"{self._path} line {number} cannot be read: {error}", path=str(self._path), reason=str(error)
                ) from error
        if tail:
            self._rewrite()

    def _apply(self, event: dict[str, Any]) -> None:
        kind = event.pop("event")
        if kind == "pending":
            item = PendingCommit(**event)
            for value in (item.start_ts, item.commit_ts, item.fid, item.offset, item.watermark):
                strict.integer(value)
            self._put(item)
        elif kind == "accepted":
            key = (int(event["start_ts"]), int(event["commit_ts"]))
            if key in self._items:
                self._put(replace(self._items[key], accepted=True))
        elif kind == "healed":
            self._heal(int(event["start_ts"]))
        else:
            raise ValueError(f"unknown event {kind!r}")

    def _put(self, item: PendingCommit) -> None:
        self._items[item.start_ts, item.commit_ts] = item
        self._count(item.start_ts, item.commit_ts, orphan=item.orphan)

    def _count(self, start_ts: int, commit_ts: int, *, orphan: bool) -> None:
        mine = self._orphans.get(start_ts, set())
        if (commit_ts in mine) == orphan:
            return
        self._orphan_starts = None
        if orphan:
            self._orphans[start_ts] = mine | {commit_ts}
        elif len(mine) > 1:
            self._orphans[start_ts] = mine - {commit_ts}
        else:
            del self._orphans[start_ts]

    def _heal(self, start_ts: int) -> None:
        for commit_ts in self._healed_by(start_ts):
            self._put(replace(self._items[start_ts, commit_ts], orphan=False))

    def _healed_by(self, start_ts: int) -> list[int]:
        """Commit ts of orphans that miss the prewrite with this start ts."""
        return [commit_ts for commit_ts in self._orphans.get(start_ts, ()) if commit_ts != start_ts]

    def add(self, items: Sequence[PendingCommit]) -> None:
        """Keep commits, durably. Known ones stay as they are. Raises OSError."""
        with self._lock:
            new = [item for item in items if (item.start_ts, item.commit_ts) not in self._items]
            if not new:
                return
            events = ({"event": "pending"} | asdict(item) for item in new)
            self._append(events)
            for item in new:
                self._put(item)

    def heal(self, start_ts: int) -> None:
        """The prewrite of an orphan came. Raises OSError."""
        with self._lock:
            if self._healed_by(start_ts):
                self._append([{"event": "healed", "start_ts": start_ts}])
                self._heal(start_ts)

    def accept(self, start_ts: int, commit_ts: int, reason: str, at: float) -> None:
        """Accept one by name; a second time is no error. Raises UsageError when there is none."""
        with self._lock:
            item = self._items.get((start_ts, commit_ts))
            if item is None:
                raise UsageError(
                    f"no late or orphan commit with start ts {start_ts} and commit ts {commit_ts}",
                    hint="`pumphouse pumps --json` lists them",
                    start_ts=start_ts, commit_ts=commit_ts,
                )  # fmt: skip
            if item.accepted:
                return
            self._append(
                [{"event": "accepted", "start_ts": start_ts, "commit_ts": commit_ts, "reason": reason, "at": at}]
            )
            self._put(replace(item, accepted=True))

    def forget_below(self, first_fid: int) -> None:
        """Drop settled ones whose record was deleted with its file. Raises OSError."""
        with self._lock:
            gone = [key for key, item in self._items.items() if item.fid < first_fid and not item.holds]
            if gone:
                for key in gone:
                    del self._items[key]
                    self._count(*key, orphan=False)
                self._rewrite()

    def _append(self, events: Iterable[dict[str, Any]]) -> None:
        lines = b"".join(json.dumps(event, separators=(",", ":")).encode() + b"\n" for event in events)
        self._fs.append_line(self._path, lines)

    def _rewrite(self) -> None:
        lines = [{"event": "pending"} | asdict(item) for item in self._items.values()]
        data = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
        self._fs.write_atomic(self._path, data)

    # -- any thread ----------------------------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return bool(self._items)

    def has_orphans(self) -> bool:
        """Whether a prewrite may still be missed."""
        return bool(self._orphans)

    def orphan_starts(self) -> I64:
        """Start ts of commits whose prewrite may still come, and of prewrites that came with several contents."""
        with self._lock:
            if self._orphan_starts is None:
                self._orphan_starts = np.array(sorted(self._orphans), np.int64)
            return self._orphan_starts

    def knows(self, start_ts: int, commit_ts: int) -> bool:
        """Whether this commit is one of them."""
        return (start_ts, commit_ts) in self._items

    def is_second_prewrite(self, start_ts: int, pointer: Pointer) -> bool:
        """Whether the prewrite at a place was noted because another one has its start ts."""
        item = self._items.get((start_ts, start_ts))
        return item is not None and item.pointer == pointer

    def is_accepted(self, start_ts: int, commit_ts: int) -> bool:
        """Whether this commit is one of them, and was accepted by name."""
        item = self._items.get((start_ts, commit_ts))
        return item is not None and item.accepted

    def all(self) -> list[PendingCommit]:
        """All of them, in order of (commit ts, start ts)."""
        with self._lock:
            return _in_order(self._items.values())

    def between(self, after: int, upto: int) -> list[PendingCommit]:
        """Those with after < commit ts <= upto, in order. It walks all of them: not once a record."""
        if not self._items:
            return []
        with self._lock:
            return _in_order(item for item in self._items.values() if after < item.commit_ts <= upto)

    def lowest(self) -> int | None:
        """Smallest timestamp that must stay on file because of one."""
        with self._lock:
            return min((min(i.start_ts, i.commit_ts) for i in self._items.values() if i.holds), default=None)
