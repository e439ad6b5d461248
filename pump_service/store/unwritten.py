"""Outcomes that are on no file, because nothing could be written: served from memory, asked for after a restart."""

from __future__ import annotations


class Unwritten:
    """Changed by the indexer's thread, read by any."""

    def __init__(self) -> None:
        self.commits: dict[int, tuple[int, bytes]] = {}  # commit ts -> (start ts, bare commit)
        self._starts: set[int] = set()  # of commits and rollbacks

    def __bool__(self) -> bool:
        return bool(self._starts)

    def add(self, start_ts: int, commit_ts: int = 0, payload: bytes = b"") -> None:
        """A commit, or a rollback (commit ts 0)."""
        self._starts.add(start_ts)
        if commit_ts:
            self.commits[commit_ts] = (start_ts, payload)

    def is_commit(self, start_ts: int, commit_ts: int) -> bool:
        """Whether this commit is one of them."""
        return bool(self.commits) and self.commits.get(commit_ts, (None,))[0] == start_ts

    def is_on_file(self, start_ts: int, commit_ts: int) -> None:
        """It was written and indexed after all."""
        self.commits.pop(commit_ts, None)
        self._starts.discard(start_ts)

    def lowest(self) -> int | None:
        """Smallest start ts."""
        return min(list(self._starts), default=None)
