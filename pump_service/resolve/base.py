"""The seam behind which somebody knows what became of a transaction (row P6)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from pumphouse.errors import PumpError


class Fate(Enum):
    """What became of a transaction. ROLLED_BACK promises that no commit can follow."""

    PENDING = "pending"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """An answer; ``commit_ts`` only with COMMITTED."""

    fate: Fate
    commit_ts: int = 0


class NoAnswer(PumpError):
    """Nobody answered, or what was answered cannot be. Never the same as "not committed". Facts: start_ts."""


class Resolver(Protocol):
    """Asks whoever knows."""

    async def ask(self, start_ts: int, prewrite_key: bytes, *, decide: bool) -> Outcome:
        """The transaction's fate; with ``decide`` the other side first makes a later commit impossible.

        Raises:
            NoAnswer: nobody knows; the Pump waits and asks again.
        """
        ...

    async def evidence(self, start_ts: int, prewrite_key: bytes) -> str:
        """What the store itself has of the transaction, in words for people; '' = nothing to show.

        Raises:
            NoAnswer: it cannot be shown.
        """
        ...

    async def close(self) -> None:
        """Release connections."""
        ...
