"""Names of tables as rules and searches write them."""

from __future__ import annotations

import re
from functools import lru_cache


def fits(name: str, pattern: str) -> bool:
    """Whether ``database.table`` is one of a pattern: `*` is any text, all else is itself; case does not count."""
    return _regex(pattern).fullmatch(name.lower()) is not None


@lru_cache(maxsize=1024)
def _regex(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.lower().split("*"))), re.DOTALL)
