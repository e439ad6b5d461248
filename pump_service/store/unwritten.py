"""Outcomes that are on no file, because nothing could be written: served from memory, asked for after a restart."""

from __future__ import annotations


class Unwritten:
    """Changed by the indexer's thread, read by any."""

    def __init__(self) -> None:
        self.commits: dict[int, tuple[int, bytes]] = {}  # commit ts -> (start ts, bare commit)
        self._outcomes: dict[int, int] = {}  # start ts -> commit ts; 0 = a rollback

    def __bool__(self) -> bool:
        return bool(self._outcomes)

    def add(self, start_ts: int, commit_ts: int = 0, payload: bytes = b"") -> None:
        """A commit, or a rollback (commit ts 0)."""
        self._outcomes[start_ts] = commit_ts
        if commit_ts:
            self.commits[commit_ts] = (start_ts, payload)

    def is_commit(self, start_ts: int, commit_ts: int) -> bool:
        """Whether this commit is one of them."""
        return bool(self.commits) and self._outcomes.get(start_ts) == commit_ts

    def has_other(self, start_ts: int, commit_ts: int) -> bool:
        """Whether another transaction has this commit ts here."""
        return bool(self.commits) and self.commits.get(commit_ts, (start_ts,))[0] != start_ts

    def is_on_file(self, start_ts: int, commit_ts: int) -> None:
        """This outcome was written and indexed after all."""
        if self._outcomes.get(start_ts) == commit_ts:
            self.commits.pop(commit_ts, None)
            del self._outcomes[start_ts]

    def lowest(self) -> int | None:
        """Smallest start ts."""
        return min(list(self._outcomes), default=None)
