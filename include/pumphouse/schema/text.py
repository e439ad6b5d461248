"""The source's own DDL text, made fit for another TiDB: the little that the Go loader changes in it, and no more.

TiDB re-renders a statement before it logs it, with what only TiDB knows in comments ``/*T![feature] … */``. So the
changes are made on whole comments, found by reading quotes and comments, without parsing SQL.
"""

from __future__ import annotations

import re

_PIECE = re.compile(
    r"""(?P<quoted>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`)
      | /\*T!\[(?P<feature>\w+)\](?P<body>(?:'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`|(?!\*/).)*)\*/
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_TTL_ENABLE = re.compile(r"^\s*TTL_ENABLE\s*=")
_TTL = re.compile(r"^\s*TTL\s*=")
_TIFLASH = re.compile(r"^\s*ALTER\s+TABLE\s+\S+\s+SET\s+TIFLASH\s+REPLICA\b", re.IGNORECASE)


def executed_text(ddl_query: str) -> str:
    """What a TiDB target executes: no placement options (its policies are its own), and TTL off (rows go by binlog).

    The text stays as it is, final ``;`` included, unless something was taken out or changed.
    """
    pieces = list(_PIECE.finditer(ddl_query))
    off = any(_TTL_ENABLE.match(p["body"]) for p in pieces if p["feature"] == "ttl")
    alter = ddl_query.lstrip()[:11].upper() == "ALTER TABLE"
    out, changed = "", False
    for piece in pieces:
        if piece["feature"] == "placement":
            # A clause of ALTER TABLE goes with what divides it from the one before; an option leaves its blank.
            out = re.sub(r",?\s*$", "", out) if alter else out
            changed = True
        elif piece["feature"] == "ttl" and _TTL_ENABLE.match(piece["body"]):
            out += "/*T![ttl] TTL_ENABLE = 'OFF' */"
            changed = True
        elif piece["feature"] == "ttl" and _TTL.match(piece["body"]) and not off:
            out += piece[0] + " /*T![ttl] TTL_ENABLE = 'OFF' */"
            changed = True
        else:
            out += piece[0]
    if not changed:
        return ddl_query
    if alter:
        # The first clause is gone and another follows.
        out = re.sub(r"^(\s*ALTER TABLE (?:`(?:[^`]|``)*`\.)?`(?:[^`]|``)*`),\s*", r"\1 ", out, flags=re.IGNORECASE)
    return out.rstrip(";") if out.endswith(";") else out


def is_tiflash(ddl_query: str) -> bool:
    """Whether it is a single ``ALTER TABLE … SET TIFLASH REPLICA``, which targets may refuse without harm."""
    return _TIFLASH.match(ddl_query) is not None
