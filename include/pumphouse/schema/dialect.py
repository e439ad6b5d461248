"""What a target's SQL can say: its kind, its names of character sets and collations, and how a MariaDB keeps JSON."""

from __future__ import annotations

import re
from enum import StrEnum

from pumphouse.errors import SchemaError


class Dialect(StrEnum):
    """Kind of target."""

    MARIADB = "mariadb"
    MYSQL = "mysql"
    TIDB = "tidb"

    @classmethod
    def of_version(cls, version: str) -> Dialect:
        """Kind of a server, by its ``SELECT VERSION()``."""
        if "mariadb" in version.lower():
            return cls.MARIADB
        return cls.TIDB if "tidb" in version.lower() else cls.MYSQL


# TiDB's character sets. What it stores in a latin1 column is not checked against latin1, so nothing but a set that
# takes every text keeps it as it is. MySQL and MariaDB check, and what depends on bytes or order depends on the set.
_CHARSETS = {
    Dialect.MARIADB: {
        "utf8mb4": "utf8mb4",
        "utf8": "utf8mb3",
        "utf8mb3": "utf8mb3",
        "latin1": "utf8mb4",
        "ascii": "ascii",
        "gbk": "gbk",
        "gb18030": "utf8mb4",
        "binary": "binary",
    },
    Dialect.MYSQL: {
        "utf8mb4": "utf8mb4",
        "utf8": "utf8",
        "utf8mb3": "utf8",
        "latin1": "utf8mb4",
        "ascii": "ascii",
        "gbk": "gbk",
        "gb18030": "gb18030",
        "binary": "binary",
    },
    Dialect.TIDB: {
        name: name for name in ("utf8mb4", "utf8", "utf8mb3", "latin1", "ascii", "gbk", "gb18030", "binary")
    },
}

# Bytes of the longest character; of other sets one.
_LONGEST = {"utf8mb4": 4, "gb18030": 4, "utf8": 3, "utf8mb3": 3, "gbk": 2}

# MariaDB 10.11 has none of MySQL 8's collations. UCA 9.0.0 has no twin in it: 14.0.0 orders newer characters otherwise,
# NO PAD and the strengths are the same. A key that is unique there and not here is found by the loader's row count.
_COLLATIONS = {
    Dialect.MARIADB: {
        "utf8mb4_0900_ai_ci": "utf8mb4_uca1400_nopad_ai_ci",
        "utf8mb4_0900_as_ci": "utf8mb4_uca1400_nopad_as_ci",
        "utf8mb4_0900_as_cs": "utf8mb4_uca1400_nopad_as_cs",
        "utf8mb4_0900_bin": "utf8mb4_nopad_bin",
    },
    # Nor has MySQL MariaDB's; what it has without NO PAD takes spaces at the end for equal.
    Dialect.MYSQL: {
        "utf8mb4_uca1400_ai_ci": "utf8mb4_0900_ai_ci",
        "utf8mb4_uca1400_as_ci": "utf8mb4_0900_as_ci",
        "utf8mb4_uca1400_as_cs": "utf8mb4_0900_as_cs",
        "utf8mb4_uca1400_nopad_ai_ci": "utf8mb4_0900_ai_ci",
        "utf8mb4_uca1400_nopad_as_ci": "utf8mb4_0900_as_ci",
        "utf8mb4_uca1400_nopad_as_cs": "utf8mb4_0900_as_cs",
        "utf8mb4_nopad_bin": "utf8mb4_0900_bin",
        "latin1_swedish_nopad_ci": "latin1_swedish_ci",
        "latin1_nopad_bin": "latin1_bin",
    },
    Dialect.TIDB: {},
}

_KINDS = ("_bin", "_general_ci", "_unicode_ci")


def charset_sql(dialect: Dialect, charset: str, collate: str, *, checked: bool = False) -> str:
    """``CHARACTER SET x COLLATE y`` in the target's names; '' when the source names no character set.

    ``checked``: the source takes only text of the character set, as any but a TiDB does (`TableInfo.of_tidb`).
    """
    if not charset:
        return ""
    target = charset_there(dialect, charset, checked=checked)
    if target == "binary":
        return "CHARACTER SET binary"
    return f"CHARACTER SET {target} COLLATE {_collation(dialect, charset, target, collate)}"


def key_bytes(charset: str, length: int) -> int:
    """Bytes that a key keeps for so many characters of one of a target's character sets."""
    return length * _LONGEST.get(charset, 1)


def charset_there(dialect: Dialect, charset: str, *, checked: bool) -> str:
    """The target's character set; arguments as of `charset_sql`."""
    known = _CHARSETS[dialect] | {"latin1": "latin1"} if checked else _CHARSETS[dialect]
    if charset not in known:
        raise SchemaError(f"the character set {charset} has no twin on {dialect}", charset=charset)
    return known[charset]


def _collation(dialect: Dialect, charset: str, target: str, collate: str) -> str:
    if not collate:
        return f"{target}_bin"
    if collate in _COLLATIONS[dialect]:
        return _COLLATIONS[dialect][collate]
    if charset == target:
        return collate
    # utf8_bin becomes utf8mb3_bin, latin1_swedish_ci becomes utf8mb4_general_ci: both ignore case, and accents alike.
    suffix = next((kind for kind in _KINDS if collate.endswith(kind)), "_general_ci")
    return target + suffix


_JSON_CHECK = re.compile(r"json_valid\(`((?:[^`]|``)+)`\)", re.IGNORECASE)
# What a MariaDB makes of JSON, beside the check. In another collation it is a text with a check.
JSON_TYPE = ("longtext", "utf8mb4_bin")


def json_of_check(level: str, clause: str) -> str:
    """The column that a MariaDB's CHECK says to be JSON, '' = none. It keeps its name when the column gets another."""
    found = _JSON_CHECK.fullmatch(clause) if level == "Column" else None
    return found[1].replace("``", "`") if found else ""
