"""Rows of both sides whose checksums differ, and that have the same values: their JSON is only written differently.

A client's binlog has JSON in TiDB's binary form, a dump of a MariaDB has the text that its server keeps.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from pumphouse.proof.archived import checksums
from pumphouse.proof.forms import Proven
from pumphouse.proof.jsonvalue import canonical_json


def values_of(rows: pa.Table, columns: Sequence[Proven], at: np.ndarray) -> list[bytes]:
    """The value of each of the archive's rows at these places."""
    taken = rows.take(pa.array(at))
    plain, json = [each for each in columns if not each.json], [each.name for each in columns if each.json]
    numbers = checksums(taken, plain).tolist() if plain else [0] * len(at)
    texts = zip(*(taken.column(name).to_pylist() for name in json), strict=True)
    return [value_of(number, each) for number, each in zip(numbers, texts, strict=True)]


def value_of(plain: int, json: Iterable[str | None]) -> bytes:
    """A row by value: checksum of its other columns, and its JSON."""
    texts = [None if each is None else canonical_json(each.encode()) for each in json]
    return hashlib.sha256(repr((plain, texts)).encode()).digest()


def pair(
    ours: Counter[int], theirs: Counter[int], our_values: Mapping[int, bytes], their_values: Mapping[int, bytes]
) -> int:
    """Take rows of one value out of what only one side has; returns by how much the sum of theirs is larger."""
    waiting: dict[bytes, list[int]] = defaultdict(list)
    for number in ours.elements():
        waiting[our_values[number]].append(number)
    more = 0
    for number in list(theirs.elements()):
        if same := waiting.get(their_values[number]):
            one = same.pop()
            ours[one] -= 1
            theirs[number] -= 1
            more += number - one
    return more
