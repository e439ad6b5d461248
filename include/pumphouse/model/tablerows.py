"""Rows by table that a load or a dump moved: those with the most, and how many there are. For lineage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Self

# Tables that are named: what collects events of lineage refuses large ones.
MOST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """``largest``: by ``database.table``, of the `MOST` tables with the most rows. ``tables``, ``rows``: of all."""

    largest: Mapping[str, int] = field(default_factory=dict)
    tables: int = 0
    rows: int = 0

    @classmethod
    def of(cls, found: Mapping[str, int]) -> Self:
        """Of all tables."""
        largest = nsmallest(MOST, found.items(), key=lambda each: (-each[1], each[0]))
        return cls(largest=dict(largest), tables=len(found), rows=sum(found.values()))
