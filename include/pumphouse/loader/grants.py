"""What a user may do on a server, as SHOW GRANTS says it."""

from __future__ import annotations

import re
from collections.abc import Sequence

# What a load needs on a database.
LOADING = ("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "ALTER", "INDEX", "CREATE VIEW")
# What a server lists only for who has a right on the database, and hides from others without a word.
_SEEN_BY = {"TRIGGER": "triggers", "EVENT": "events", "SHOW VIEW": "texts of views", "EXECUTE": "routines"}
# Those that lie in a database without any table.
HOLDING = ("EVENT", "EXECUTE")
_ALL = {"ALL PRIVILEGES", "ALL"}
_GRANT = re.compile(r"^GRANT (.+?) ON (?:TABLE )?(`(?:[^`]|``)*`|\*)\.(`(?:[^`]|``)*`|\*) TO ", re.IGNORECASE)


def missing_privileges(grants: Sequence[str], database: str, wanted: Sequence[str] = LOADING) -> list[str]:
    """What is wanted on all of a database and these lines do not give. Names of databases are patterns."""
    have: set[str] = set()
    for line in grants:
        found = _GRANT.match(line)
        if found is None or found[3] != "*":
            continue
        pattern = found[2]
        if pattern != "*" and not _like(_unquoted(pattern), database):
            continue
        have |= {each.strip().upper() for each in found[1].split(",")}
    return [] if have & _ALL else [each for each in wanted if each not in have]


def hidden(grants: Sequence[str], database: str, wanted: Sequence[str] = tuple(_SEEN_BY)) -> list[str]:
    """What these lines do not show of a database, in words."""
    missing = missing_privileges(grants, database, wanted)
    return [f"{_SEEN_BY[right]} of {database}: it takes {right}" for right in missing]


def in_columns_alone(grants: Sequence[str], privilege: str = "SELECT") -> list[tuple[str, str]]:
    """Tables, as (database, table), of which lines give a privilege on some columns, and none on the whole table."""
    some: set[tuple[str, str]] = set()
    whole: set[tuple[str, str]] = set()
    for line in grants:
        found = _GRANT.match(line)
        if found is None or "*" in (found[2], found[3]):
            continue
        table = _unquoted(found[2]), _unquoted(found[3])
        given = {each.strip().upper() for each in re.sub(r"\([^)]*\)", "()", found[1]).split(",")}
        some |= {table} if any(each.replace(" ", "") == f"{privilege}()" for each in given) else set()
        whole |= {table} if given & {privilege, *_ALL} else set()
    return sorted(table for table in some - whole if missing_privileges(grants, table[0], [privilege]))


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`")


def _like(pattern: str, name: str) -> bool:
    """SQL's LIKE with a backslash as escape, as GRANT reads the name of a database."""
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    regex = "".join({"%": ".*", "_": "."}.get(each, re.escape(each.removeprefix("\\") or each)) for each in parts)
    return re.fullmatch(regex, name, re.DOTALL) is not None
