"""The keys that one writer thread knows to be its own: rows that it changes without meeting another thread."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable
from typing import Any

from pumphouse.codec.datum import Kind, Value, kind_of
from pumphouse.demo.rows import SourceTable

Key = tuple[Value, ...]
# Threads that share the rows of before; a thread adopts those whose key falls to it.
SHARES = 8
_MOST = 3000


class KnownKeys:
    """By table id, so a truncated table starts with none."""

    def __init__(self, number: int, rng: random.Random) -> None:
        self._number = number
        self._rng = rng
        self._lists: dict[int, list[Key]] = {}
        self._places: dict[int, dict[Key, int]] = {}

    def adopt(self, table: SourceTable, rows: Iterable[tuple[Any, ...]]) -> None:
        """Take our share of existing rows; cells are the server's bytes."""
        kinds = [kind_of(column.type) for column in table.key]
        for cells in rows:
            if zlib.crc32(b"\0".join(cells)) % SHARES == self._number % SHARES:
                pairs = zip(kinds, cells, strict=True)
                self.add(table, tuple(int(c) if k in (Kind.INT, Kind.UINT) else bytes(c) for k, c in pairs))

    def add(self, table: SourceTable, key: Key) -> None:
        """Remember a key; beyond the limit another one is forgotten."""
        keys = self._lists.setdefault(table.info.id, [])
        places = self._places.setdefault(table.info.id, {})
        if key in places:
            return
        if len(keys) >= _MOST:
            self.remove(table, self._rng.choice(keys))
        places[key] = len(keys)
        keys.append(key)

    def remove(self, table: SourceTable, key: Key) -> None:
        """Forget a key."""
        keys = self._lists.get(table.info.id, [])
        places = self._places.get(table.info.id, {})
        at = places.pop(key, None)
        if at is None:
            return
        last = keys.pop()
        if at < len(keys):
            keys[at] = last
            places[last] = at

    def sample(self, table: SourceTable, count: int) -> list[Key]:
        """Some different keys."""
        keys = self._lists.get(table.info.id, [])
        return self._rng.sample(keys, min(count, len(keys)))
