"""Keys under which chosen changes had the same row: what becomes of one of them becomes of all."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from pumphouse.codec.columnar import DELETE, INSERT, Mutations

# A key twice, and more: rows of these wait in memory for each other.
MOST_LINKED = 100_000


class Links:
    """Pairs of a link and the hash of a key, by table. A hash that two keys share ties them, too, which harms none."""

    def __init__(self) -> None:
        self._next = 0
        self._last: tuple[int, ...] = ()
        self._links: dict[int, list[np.ndarray]] = defaultdict(list)
        self._hashes: dict[int, list[np.ndarray]] = defaultdict(list)

    def of(
        self, found: Mutations, commit_ts: np.ndarray, start_ts: np.ndarray, clustered: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """A number for each row change, and which have one together: TiDB writes a moved key as DELETE and INSERT.

        Args:
            found: row changes, as they follow each other.
            commit_ts: of each of them; ``start_ts`` the same.
            start_ts: see there.
            clustered: whether its rows lie by their key; others are moved by an UPDATE.
        """
        count = len(found)
        links, paired = np.arange(self._next, self._next + count), np.zeros(count, np.bool_)
        self._next += count
        if not count:
            return links, paired
        places = np.stack([commit_ts, start_ts, found.table_id])
        before = np.roll(places, 1, axis=1)
        deleted = np.roll(found.op, 1) == DELETE
        before[:, 0], deleted[0] = self._last[:3] or (0, 0, 0), bool(self._last) and self._last[3] == DELETE
        ends = (places == before).all(axis=0) & deleted & (found.op == INSERT) & clustered
        paired |= ends
        paired[:-1] |= ends[1:]
        links[ends] -= 1  # numbers go on from one batch to the next
        self._last = (*(int(each) for each in places[:, -1]), int(found.op[-1]))
        # The last DELETE of a batch may have its INSERT in the next one.
        paired[-1] |= bool(found.op[-1] == DELETE and clustered[-1])
        return links, paired

    def new(self) -> int:
        """A number that no row change has."""
        self._next += 1
        self._last = ()
        return self._next - 1

    def add(self, table_id: int, links: np.ndarray, hashes: np.ndarray) -> None:
        """Hashes of keys, each with its link."""
        self._links[table_id].append(links)
        self._hashes[table_id].append(hashes)

    def too_many(self, table_id: int) -> bool:
        """Whether more rows of the table are linked than can wait for each other."""
        return len(self._tied(table_id)[0]) > MOST_LINKED

    def groups(self, table_id: int) -> dict[int, int]:
        """By the hash of a key the group of its row, not 0; none of a key that is linked to no other."""
        above: dict[int, int] = {}

        def top(node: int) -> int:
            while (up := above.setdefault(node, node)) != node:
                above[node] = above[up]
                node = above[node]
            return node

        links, hashes = (each.tolist() for each in self._tied(table_id))
        for link, value in zip(links, hashes, strict=True):
            above[top(value)] = top(-1 - link)
        return {value: top(value) for value in hashes}

    def _tied(self, table_id: int) -> tuple[np.ndarray, np.ndarray]:
        """Links that have several keys: a row that was replaced under its own has but one."""
        if not self._links[table_id]:
            return np.zeros(0, np.int64), np.zeros(0, np.uint64)
        links, hashes = np.concatenate(self._links[table_id]), np.concatenate(self._hashes[table_id])
        order = np.lexsort((hashes, links))
        links, hashes = links[order], hashes[order]
        new = np.ones(len(links), np.bool_)
        new[1:] = (links[1:] != links[:-1]) | (hashes[1:] != hashes[:-1])
        links, hashes = links[new], hashes[new]
        _, which, counts = np.unique(links, return_inverse=True, return_counts=True)
        several = counts[which] > 1
        return links[several], hashes[several]
