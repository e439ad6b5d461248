"""Which row changes may run at once (row L3): changes that share a key are one group, groups are independent.

Keys of a change are those of its old and its new image: the values of the primary key and of each unique key, with
table and index. A key with a NULL in it conflicts with nothing. An image without any such key has one key of all its
columns. Groups are numbered and not hashed to workers by CRC-32 as in the Go loader, whose keys also leave out single
NULLs of a composite key and count an index only by its columns; the rule of conflicts is the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable


class Causality:
    """The groups of one round: key -> group."""

    __slots__ = ("_group_of", "_groups")

    def __init__(self) -> None:
        self._group_of: dict[Hashable, int] = {}
        self._groups = 0

    def join(self, keys: Iterable[Hashable]) -> int | None:
        """Group of a change with these keys, which they join. None: they are of two or more groups; nothing changes.

        Then all groups have to be flushed, and `reset`, before the change is added.
        """
        group_of, found = self._group_of, -1
        for key in keys:
            group = group_of.get(key, -1)
            if group >= 0 and group != found:
                if found >= 0:
                    return None
                found = group
        if found < 0:
            found = self._groups
            self._groups += 1
        for key in keys:
            group_of[key] = found
        return found

    def reset(self) -> None:
        """Forget all groups: what they held is on the target."""
        self._group_of.clear()
        self._groups = 0
