"""The one place where a name or a text becomes part of SQL. Nothing else in the repository quotes."""

from __future__ import annotations

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


def hex_literal(data: bytes) -> str:
    """Bytes literal ``x'…'``."""
    return f"x'{data.hex()}'"
