"""What a user may do on a server, as SHOW GRANTS says it."""

from __future__ import annotations

import re
from collections.abc import Sequence

# What a load needs on a database.
LOADING = ("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "ALTER", "INDEX", "CREATE VIEW")
_GRANT = re.compile(r"^GRANT (.+?) ON (?:TABLE )?(`(?:[^`]|``)*`|\*)\.(`(?:[^`]|``)*`|\*) TO ", re.IGNORECASE)


def missing_privileges(grants: Sequence[str], database: str, wanted: Sequence[str] = LOADING) -> list[str]:
    """What is wanted on a database and these lines of SHOW GRANTS do not give. Names of databases are patterns."""
    have: set[str] = set()
    for line in grants:
        found = _GRANT.match(line)
        if found is None or found[3] != "*":
            continue
        pattern = found[2]
        if pattern != "*" and not _like(pattern[1:-1].replace("``", "`"), database):
            continue
        have |= {each.strip().upper() for each in found[1].split(",")}
    if have & {"ALL PRIVILEGES", "ALL"}:
        return []
    return [each for each in wanted if each not in have]


def _like(pattern: str, name: str) -> bool:
    """SQL's LIKE with a backslash as escape, as GRANT reads the name of a database."""
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    regex = "".join({"%": ".*", "_": "."}.get(each, re.escape(each.removeprefix("\\") or each)) for each in parts)
    return re.fullmatch(regex, name, re.DOTALL) is not None
