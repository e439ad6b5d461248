"""The one place where a name or a text becomes part of SQL, or is read from it. Nothing else here quotes."""

from __future__ import annotations

import re

# A text as servers print it.
LITERAL = re.compile(r"'(?:[^'\\]|\\.|'')*'", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)|''", re.DOTALL)
_PRINTED = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "Z": "\x1a"}
_ESCAPES = str.maketrans({"\\": "\\\\", "'": "\\'", "\0": "\\0", "\n": "\\n", "\r": "\\r", "\x1a": "\\Z"})


def quote(name: str) -> str:
    """Back-quoted identifier; a back-quote inside is doubled."""
    return "`" + name.replace("`", "``") + "`"


def qualified(db: str, name: str) -> str:
    """```db`.`name```."""
    return f"{quote(db)}.{quote(name)}"


def columns(names: list[str] | tuple[str, ...]) -> str:
    """Comma list of quoted names."""
    return ",".join(map(quote, names))


def literal(text: str) -> str:
    """Text literal for a session without NO_BACKSLASH_ESCAPES."""
    return "'" + text.translate(_ESCAPES) + "'"


def unquote(text: str) -> str:
    """What a literal says, as servers print one; ``text``: without its quotes."""
    return _ESCAPED.sub(lambda m: "'" if m[1] is None else _PRINTED.get(m[1], m[1]), text)


def elements_of(kind: str) -> tuple[str, ...]:
    """Elements of an ENUM or SET whose type is as servers print it."""
    return tuple(unquote(each[1:-1]) for each in LITERAL.findall(kind))
