"""What kind of statement a query event has, by its first words.

A row binlog has DDL and control statements as text, and nothing else. Rows that come as a statement were written by a
session with binlog_format = STATEMENT or MIXED.
"""

from __future__ import annotations

import re
from enum import Enum, auto


class Word(Enum):
    """What a statement does to the transaction that it is in."""

    BEGIN = auto()
    COMMIT = auto()
    ROLLBACK = auto()
    ROLLBACK_TO = auto()
    SAVEPOINT = auto()
    NOTHING = auto()
    XA = auto()
    ROWS = auto()
    OTHER = auto()


# Spaces, comments, and the begin of one that the server executes (/*!50100, /*M!100401).
_LEAD = re.compile(rb"(?:\s+|#[^\n]*\n|--\s[^\n]*\n|/\*(?!M?!).*?\*/|/\*M?!\d*)*", re.DOTALL)
_WORD = re.compile(rb"[A-Za-z]+|\(")
# Texts, quoted names and comments: what is in them is no word of the statement.
_QUOTED = re.compile(
    rb"""'(?:[^'\\]|''|\\.)*'|"(?:[^"\\]|""|\\.)*"|`(?:[^`]|``)*`|/\*(?!M?!).*?\*/|#[^\n]*|--\s[^\n]*""", re.DOTALL
)
_SAVEPOINT = re.compile(
    rb"^(?:SAVEPOINT|ROLLBACK\s+(?:WORK\s+)?TO(?:\s+SAVEPOINT)?)\s*(?:`((?:[^`]|``)+)`|(\S+))", re.IGNORECASE
)
_CREATE_TABLE = re.compile(rb"(?:OR\s+REPLACE\s+)?(?:TEMPORARY\s+)?TABLE\b", re.IGNORECASE)
_QUERY = re.compile(rb"\bSELECT\b|\bVALUES\s+ROW\b", re.IGNORECASE)
_FOR = re.compile(rb"STATEMENT\b.*?\bFOR\b", re.IGNORECASE | re.DOTALL)

_KINDS = {
    b"BEGIN": Word.BEGIN,
    b"COMMIT": Word.COMMIT,
    b"SAVEPOINT": Word.SAVEPOINT,
    b"RELEASE": Word.NOTHING,
    b"XA": Word.XA,
    **dict.fromkeys(
        (b"INSERT", b"UPDATE", b"DELETE", b"REPLACE", b"LOAD", b"WITH", b"CALL", b"DO", b"SELECT", b"VALUES", b"(",
         b"EXECUTE", b"HANDLER", b"IMPORT", b"BINLOG"),
        Word.ROWS,
    ),
}  # fmt: skip


def savepoint_of(text: bytes) -> bytes:
    """The name that SAVEPOINT or ROLLBACK TO has; b"" of another statement."""
    match = _SAVEPOINT.search(text)
    return b"" if match is None else (match[1] or match[2]).replace(b"``", b"`").lower()


def word_of(text: bytes) -> Word:
    """What kind it is."""
    begin = _LEAD.match(text)
    at = begin.end() if begin else 0
    match = _WORD.match(text, at)
    if match is None:
        return Word.OTHER if text[at:].strip() else Word.NOTHING
    word, rest = match[0].upper(), text[match.end() :].lstrip()
    if word == b"ROLLBACK":
        return Word.ROLLBACK_TO if re.match(rb"(?:WORK\s+)?TO\b", rest, re.IGNORECASE) else Word.ROLLBACK
    if word == b"START" and rest[:11].upper() == b"TRANSACTION":
        return Word.BEGIN
    if word == b"SET" and (run := _FOR.match(rest)):
        return word_of(rest[run.end() :])
    if word == b"CREATE" and _CREATE_TABLE.match(rest) and _QUERY.search(_QUOTED.sub(b" ", rest)):
        return Word.ROWS
    return _KINDS.get(word, Word.OTHER)
