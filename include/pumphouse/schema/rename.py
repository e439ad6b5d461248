"""Which tables a ``RENAME TABLE a TO b, c.d TO e.f`` renamed, by its arguments or by its statement.

This is the one DDL whose job may not say in structure what it did: after a multi-table rename the history holds the
tables with their new names, but no longer the databases. The statement does, and it is a plain list of names.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pumphouse.errors import SchemaError
from pumphouse.model.table import Job

# In the order tried: quoted names (either quote: ANSI_QUOTES makes " a name, and no text can stand in this statement),
# comments, bare names (also keywords), punctuation.
_TOKEN = re.compile(
    r"""\s+ | /\*.*?\*/ | --[ \t][^\n]*
      | `(?P<tick>(?:[^`]|``)*)` | "(?P<double>(?:[^"]|"")*)"
      | (?P<bare>[0-9A-Za-z_$\u0080-\uffff]+) | (?P<mark>[.,;])""",
    re.VERBOSE | re.DOTALL,
)


class Renamed(NamedTuple):
    """One table of the statement; databases are '' where the statement names none."""

    old_db: str
    old: str
    new_db: str
    new: str


def rename_args(job: Job) -> list[tuple[int, int, str]] | None:
    """What RENAME of several tables did to each, (table id, new schema id, new name).

    From its arguments (old schema ids, new schema ids, new names, table ids, …), where the history kept them.
    """
    args = job.raw.get("raw_args")
    if not isinstance(args, list) or len(args) < 4:
        return None
    try:
        names = [str(name["O"] if isinstance(name, dict) else name) for name in args[2]]
        return list(zip(map(int, args[3]), map(int, args[1]), names, strict=True))
    except (TypeError, ValueError, KeyError):
        return None


def parse_rename(query: str) -> list[Renamed]:
    """Read the statement; SchemaError when it is not a multi-table rename."""
    words = _words(query)
    try:
        return _pairs(words)
    except (IndexError, ValueError):
        raise SchemaError(f"cannot read which tables were renamed in {query!r}", query=query) from None


def _words(query: str) -> list[tuple[str, bool]]:
    """(text, is it a quoted name)."""
    words: list[tuple[str, bool]] = []
    at = 0
    while at < len(query):
        match = _TOKEN.match(query, at)
        if match is None:
            raise SchemaError(f"cannot read which tables were renamed in {query!r}", query=query)
        at = match.end()
        if match["tick"] is not None:
            words.append((match["tick"].replace("``", "`"), True))
        elif match["double"] is not None:
            words.append((match["double"].replace('""', '"'), True))
        elif (text := match["bare"] or match["mark"]) is not None:
            words.append((text, False))
    return words


def _pairs(words: list[tuple[str, bool]]) -> list[Renamed]:
    _keyword(words, 0, "RENAME")
    if words[1][1] or words[1][0].upper() not in {"TABLE", "TABLES"}:
        raise ValueError(words[1])
    at, pairs = 2, []
    while True:
        old_db, old, at = _name(words, at)
        _keyword(words, at, "TO")
        new_db, new, at = _name(words, at + 1)
        pairs.append(Renamed(old_db, old, new_db, new))
        if at >= len(words) or words[at] == (";", False):
            return pairs
        if words[at] != (",", False):
            raise ValueError(words[at])
        at += 1


def _keyword(words: list[tuple[str, bool]], at: int, word: str) -> None:
    if words[at][1] or words[at][0].upper() != word:
        raise ValueError(words[at])


def _name(words: list[tuple[str, bool]], at: int) -> tuple[str, str, int]:
    first = _part(words, at)
    if at + 1 < len(words) and words[at + 1] == (".", False):
        return first, _part(words, at + 2), at + 3
    return "", first, at + 1


def _part(words: list[tuple[str, bool]], at: int) -> str:
    text, quoted = words[at]
    if not quoted and text in {".", ",", ";"}:
        raise ValueError(text)
    return text
