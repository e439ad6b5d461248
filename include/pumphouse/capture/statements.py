"""What a DDL statement says that its outcome does not show: what was dropped, renamed or emptied (pure).

The shadow runs the statement, so its meaning for columns and keys is never read from the text. But a table that is gone
may have been dropped or renamed, and one that looks as before may have been emptied: this the text alone says. What it
says in a way that is not known here is refused by name, or makes the tables new ones (`Meaning.anew`): their rows are
not followed across the statement then, and whoever reads the history is told so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from pumphouse.errors import CaptureRefused

Name = tuple[str, str]


class Does(Enum):
    """What a statement is to the schema."""

    NOTHING = "nothing"
    ROUTINE = "routine"  # views may call it
    CHANGES = "changes"


@dataclass(slots=True, kw_only=True)
class Meaning:
    """What a statement does beside what the shadow shows.

    Args:
        does: whether the shadow has to run it.
        creates: tables that come with it have no rows but those that follow in the binlog.
        drops: whatever is gone afterwards was dropped.
        gone: what a DROP TABLE or DROP DATABASE names; a database is a name of one part.
        emptied: tables that have no rows of before, if they were there.
        replaces: CREATE OR REPLACE TABLE: the old one is gone, also where the new one was refused.
        renamed: tables, old name -> new one, of all pairs together.
        columns: of one table: (old, new) of those that were renamed.
        dropped: of one table: columns and partitions that were dropped.
        anew: tables whose rows the statement changes in a way that no binlog says.
        ignores: ALTER IGNORE TABLE: rows that clash are gone, and no binlog says which.
        reorganizes: partitions, into others whose last range may go further.
        table: what `columns` and `dropped` are of.
        made: the table that a CREATE TABLE makes, or whose index comes or goes.
        fresh: what a CREATE TABLE makes whatever was there; None with IF NOT EXISTS, which may have made nothing.
    """

    does: Does = Does.CHANGES
    creates: bool = False
    drops: bool = False
    gone: list[tuple[str, ...]] = field(default_factory=list)
    emptied: list[Name] = field(default_factory=list)
    replaces: bool = False
    renamed: dict[Name, Name] = field(default_factory=dict)
    columns: list[tuple[str, str]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    anew: list[Name] = field(default_factory=list)
    ignores: bool = False
    reorganizes: bool = False
    table: Name | None = None
    made: Name | None = None
    fresh: Name | None = None

    @property
    def ended(self) -> set[tuple[str, ...]]:
        """Names that no table has any more once it is done; a database is a name of one part."""
        return {*self.gone, *(self.renamed.keys() - self.renamed.values())}

    @property
    def changed(self) -> set[Name]:
        """The tables of before whose form or rows are in what it leaves."""
        return {*self.renamed, *self.anew} | ({self.table} if self.table is not None else set())

    @property
    def names(self) -> set[Name]:
        """The tables that it is about; empty where it is not about some alone."""
        if self.does is not Does.CHANGES or any(len(each) < 2 for each in self.gone):
            return set()
        found = {self.table, self.made, *self.renamed, *self.renamed.values(), *self.emptied, *self.anew}
        return {(db, name) for db, name in self.gone} | {each for each in found if each is not None}


@dataclass(frozen=True, slots=True)
class _Token:
    """A word in upper case, a quoted name, a text, or a sign."""

    kind: str  # word, name, text, sign
    text: str
    at: int = field(default=0, compare=False)  # of the statement's text
    end: int = field(default=0, compare=False)

    def name(self, what: str) -> str:
        if self.kind not in ("word", "name"):
            raise _Unread(what)
        return self.text


class _Unread(Exception):
    """The statement is not of the form that its first words promise."""


_SPACE = re.compile(r"\s+")
_WORD = re.compile(r"[0-9A-Za-z_$\u0080-\uffff@.]+")
_NUMBER = re.compile(r"[0-9.]+")
_OPENS = re.compile(r"/\*M?!(?!9999)\d*")  # of the version 999999, it is a comment to every server
_NOTHING = {
    "GRANT", "REVOKE", "SET", "FLUSH", "ANALYZE", "OPTIMIZE", "REPAIR", "CHECK", "INSTALL", "UNINSTALL", "KILL",
    "RESET", "LOCK", "UNLOCK", "PURGE", "CHANGE", "START", "STOP", "BINLOG", "XA", "SAVEPOINT", "RELEASE", "COMMIT",
    "BEGIN", "CACHE", "RESTART", "SHUTDOWN", "CLONE", "IMPORT", "DO", "SIGNAL",
}  # fmt: skip
# Options of tables and databases that need the source's keys, and what they are without.
_OFF = {"ENCRYPTED": "NO", "ENCRYPTION_KEY_ID": "1", "ENCRYPTION": "'N'"}
# Before an object that is no table's. What is before a table is the shadow's to judge.
_BEFORE = {"OR", "REPLACE", "TEMPORARY", "GLOBAL", "AGGREGATE"}
# Behind CREATE, ALTER and DROP: the first of these words says what the statement is about.
_OBJECTS = {
    "TABLE": Does.CHANGES, "TABLES": Does.CHANGES, "DATABASE": Does.CHANGES, "SCHEMA": Does.CHANGES,
    "INDEX": Does.CHANGES, "VIEW": Does.CHANGES, "SEQUENCE": Does.CHANGES,
    "FUNCTION": Does.ROUTINE, "PROCEDURE": Does.ROUTINE, "PACKAGE": Does.ROUTINE,
    "TRIGGER": Does.NOTHING, "EVENT": Does.NOTHING, "USER": Does.NOTHING, "ROLE": Does.NOTHING, "SERVER": Does.NOTHING,
    "TABLESPACE": Does.NOTHING, "LOGFILE": Does.NOTHING, "UNDO": Does.NOTHING, "INSTANCE": Does.NOTHING,
    "SPATIAL": Does.CHANGES, "RESOURCE": Does.NOTHING, "CATALOG": Does.NOTHING, "LIBRARY": Does.ROUTINE,
}  # fmt: skip


def meaning(text: str, schema: str, *, ansi_quotes: bool = False, backslash: bool = True) -> Meaning:
    """Read a statement; ``schema`` is its default database, the others are of its sql_mode.

    Raises:
        CaptureRefused: it is none that is known here.
    """
    tokens = list(_tokens(text, ansi_quotes=ansi_quotes, backslash=backslash))
    try:
        return _Reader(tokens, schema).read()
    except (_Unread, IndexError) as error:
        raise CaptureRefused(
            f"the statement {text[:200]!r} is none that is known here{f' ({error})' if str(error) else ''}",
            hint="what it did to the schema cannot be told; `pumphouse capture run --anew` goes on behind it "
            "(docs/capture.md)",
        ) from None


def unencrypted(text: str, *, ansi_quotes: bool = False, backslash: bool = True) -> str:
    """A statement of a table or a database with its options that ask for encryption turned off: they need keys."""
    if "ENCRYPT" not in text.upper():
        return text
    tokens = list(_tokens(text, ansi_quotes=ansi_quotes, backslash=backslash))
    words = (each.text.upper() for each in tokens if each.kind == "word")
    if next((word for word in words if word in _OBJECTS), "") not in ("TABLE", "DATABASE", "SCHEMA"):
        return text
    out, depth, behind = "", 0, 0
    equals = _Token("sign", "=")
    for at, token in enumerate(tokens):
        if token.kind == "sign" and token.text in "()":
            depth += 1 if token.text == "(" else -1
        off = _OFF.get(token.text.upper()) if token.kind in ("word", "name") else None
        if off is None or depth:
            continue
        given = tokens[at + 1 : at + 3]
        if given[:1] == [equals]:
            del given[0]
        elif not given or given[0].kind != "text":  # a MySQL needs no sign before a text
            continue
        if given:
            out, behind = out + text[behind : given[0].at] + off, given[0].end
    return out + text[behind:]


class _Reader:
    def __init__(self, tokens: Sequence[_Token], schema: str) -> None:
        self._tokens = tokens
        self._schema = schema
        self._at = 0

    def read(self) -> Meaning:
        verb = self._word()
        if verb == "SET" and self._skip("STATEMENT"):  # SET STATEMENT name = value FOR …
            while (word := self._word()) != "FOR":
                if word == "SQL_MODE":  # the text behind it is read in that mode
                    raise _Unread("SET STATEMENT sql_mode")
                if self._at >= len(self._tokens):
                    raise _Unread("FOR is missing")
            return self.read()
        if verb in _NOTHING or not self._tokens:
            return Meaning(does=Does.NOTHING)
        if verb == "TRUNCATE":
            self._skip("TABLE")
            return Meaning(creates=True, emptied=[self._name()])
        if verb == "RENAME":
            return self._rename()
        if verb not in ("CREATE", "ALTER", "DROP"):
            raise _Unread(verb or "it begins with no word")
        return self._about(verb)

    def _about(self, verb: str) -> Meaning:
        """CREATE, ALTER or DROP of something."""
        before, what = self._object()
        does = _OBJECTS[what]
        if "TEMPORARY" in before or (what == "SPATIAL" and self._peek() not in ("INDEX", "KEY")):
            does = Does.NOTHING  # also of SPATIAL REFERENCE SYSTEM
        if does is not Does.CHANGES:
            if other := [word for word in before if word not in _BEFORE]:
                raise _Unread(f"{verb} {' '.join(other)}")
            return Meaning(does=does)
        if what in ("INDEX", "SPATIAL"):
            while self._at < len(self._tokens) and self._word() != "ON":
                pass
            return Meaning(made=self._any_name())
        if verb == "DROP":
            return Meaning(drops=True, gone=self._gone(what))
        if verb == "CREATE":
            return self._create(before, what)
        return self._alter(ignores="IGNORE" in before) if what == "TABLE" else Meaning()

    def _gone(self, what: str) -> list[tuple[str, ...]]:
        if what not in ("TABLE", "TABLES", "DATABASE", "SCHEMA"):
            return []
        self._if_exists()
        if what in ("DATABASE", "SCHEMA"):
            return [(self._next().name("database"),)]
        names: list[tuple[str, ...]] = [self._name()]
        while self._sign(","):
            names.append(self._name())
        return names

    def _object(self) -> tuple[list[str], str]:
        """Words up to the kind of object. Behind DEFINER = a user's name may be any word."""
        before: list[str] = []
        while True:
            if self._at >= len(self._tokens):
                raise _Unread("nothing that it is about")
            word = self._word()
            if word == "DEFINER":
                self._definer()
            elif word in _OBJECTS:
                return before, word
            else:
                before.append(word)

    def _definer(self) -> None:
        if not self._sign("="):  # SQL SECURITY DEFINER
            return
        self._next()
        if self._sign("@"):
            self._next()
            while self._sign("."):  # of a host's name
                self._next()
        elif self._sign("("):
            self._take(")")

    def _create(self, before: list[str], what: str) -> Meaning:
        if what not in ("TABLE", "SEQUENCE"):
            return Meaning()
        replaces = "REPLACE" in before
        fresh = not self._if_exists()
        name = self._name() if replaces else self._any_name()
        return Meaning(
            creates=True,
            emptied=[name] if replaces and name is not None else [],
            replaces=replaces and what == "TABLE",
            made=name,
            fresh=name if fresh else None,
        )

    def _rename(self) -> Meaning:
        what = self._word()
        if what not in ("TABLE", "TABLES"):
            return Meaning(does=Does.NOTHING)
        out = Meaning()
        self._if_exists()
        while True:
            old = self._name()
            self._wait()
            self._take("TO")
            new = self._name()
            # Through a name in between: a TO tmp, b TO a, tmp TO b.
            first = next((was for was, now in out.renamed.items() if now == old), old)
            out.renamed[first] = new
            if self._at >= len(self._tokens) or not self._sign(","):
                break
        out.renamed = {old: new for old, new in out.renamed.items() if old != new}
        return out

    # -- ALTER TABLE

    def _alter(self, *, ignores: bool) -> Meaning:
        self._if_exists()
        table = self._name()
        self._wait()
        out = Meaning(table=table, ignores=ignores)
        for clause in self._clauses():
            self._clause(clause, table, out)
        return out

    def _clause(self, clause: list[_Token], table: Name, out: Meaning) -> None:
        reader = _Reader(clause, self._schema)
        verb = reader._word()
        following = reader._peek()
        if verb == "RENAME":
            reader._rename_clause(table, out)
        elif verb == "CHANGE":
            reader._skip("COLUMN")
            reader._if_exists()
            old, new = reader._column(), reader._column()
            if old.lower() != new.lower():
                out.columns.append((old, new))
        elif verb == "DROP":
            reader._drop_clause(out)
        elif verb in ("EXCHANGE", "CONVERT") and ("PARTITION" in reader._words() or following == "TABLE"):
            out.anew += [table, *reader._tables_named()]
        elif verb in ("DISCARD", "IMPORT") or (verb == "TRUNCATE" and following == "PARTITION"):
            out.anew.append(table)
        elif verb == "REORGANIZE":
            out.reorganizes = True

    def _rename_clause(self, table: Name, out: Meaning) -> None:
        if self._skip("COLUMN"):
            self._if_exists()
            old = self._column()
            self._take("TO")
            new = self._column()
            if old.lower() != new.lower():
                out.columns.append((old, new))
        elif self._peek() in ("INDEX", "KEY"):
            return
        else:
            self._skip("TO") or self._skip("AS") or self._sign("=")
            new_name = self._name()
            if new_name != table:
                out.renamed[table] = new_name

    def _drop_clause(self, out: Meaning) -> None:
        word = self._peek()
        if word in ("PRIMARY", "FOREIGN", "INDEX", "KEY", "CONSTRAINT", "CHECK"):
            return
        if [token.text.upper() for token in self._tokens[self._at :][:2]] in (
            ["SYSTEM", "VERSIONING"],
            ["PERIOD", "FOR"],
        ):
            return
        if word == "PARTITION":
            self._word()
            self._if_exists()
            out.dropped.append(self._column())
            out.dropped += [token.name("partition") for token in self._tokens[self._at :] if token.kind != "sign"]
            return
        self._skip("COLUMN")
        self._if_exists()
        out.dropped.append(self._column())

    def _clauses(self) -> Iterator[list[_Token]]:
        """The rest, cut at commas outside parentheses. Of DROP PARTITION a, b the names stay together."""
        depth, clause = 0, list[_Token]()
        for token in self._tokens[self._at :]:
            if token.kind == "sign" and token.text in "()":
                depth += 1 if token.text == "(" else -1
            if token.kind == "sign" and token.text == "," and depth == 0:
                if [each.text.upper() for each in clause[:2] if each.kind == "word"] != ["DROP", "PARTITION"]:
                    yield clause
                    clause = []
                continue
            clause.append(token)
        if clause:
            yield clause

    def _tables_named(self) -> list[Name]:
        """Names behind the word TABLE."""
        out = []
        while self._at < len(self._tokens):
            if self._word() == "TABLE":
                self._if_exists()
                out.append(self._name())
        return out

    # -- tokens

    def _next(self) -> _Token:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _word(self) -> str:
        """The next word in upper case; '' of anything else, and at the end."""
        if self._at >= len(self._tokens):
            return ""
        token = self._next()
        return token.text.upper() if token.kind == "word" else ""

    def _words(self) -> set[str]:
        return {token.text.upper() for token in self._tokens if token.kind == "word"}

    def _peek(self) -> str:
        if self._at >= len(self._tokens):
            return ""
        token = self._tokens[self._at]
        return token.text.upper() if token.kind == "word" else ""

    def _skip(self, word: str) -> bool:
        if self._peek() != word:
            return False
        self._at += 1
        return True

    def _sign(self, sign: str) -> bool:
        if self._at >= len(self._tokens) or self._tokens[self._at] != _Token("sign", sign):
            return False
        self._at += 1
        return True

    def _take(self, what: str) -> None:
        token = self._next()
        if token.text.upper() != what:
            raise _Unread(f"{what} is expected before {token.text!r}")

    def _if_exists(self) -> bool:
        if not self._skip("IF"):
            return False
        self._skip("NOT")
        self._take("EXISTS")
        return True

    def _wait(self) -> None:
        if self._skip("WAIT"):
            self._next()
        else:
            self._skip("NOWAIT")

    def _column(self) -> str:
        return self._next().name("column")

    def _any_name(self) -> Name | None:
        """As `_name`; None where there is none: the shadow judges that."""
        try:
            return self._name()
        except (_Unread, IndexError):
            return None

    def _name(self) -> Name:
        first = self._next().name("table")
        if self._sign("."):
            return first, self._next().name("table")
        if not self._schema:
            raise _Unread(f"{first} is in no database")
        return self._schema, first


def _tokens(text: str, *, ansi_quotes: bool, backslash: bool) -> Iterator[_Token]:
    """Words, names, texts and signs; what MySQL's version comments hold is text like any other."""
    at, end = 0, len(text)
    while at < end:
        sign = text[at]
        if (match := _SPACE.match(text, at)) or (match := _OPENS.match(text, at)):
            at = match.end()
        elif text.startswith("*/", at):
            at += 2
        elif text.startswith("/*", at):
            at = _behind(text, "*/", at + 2)
        elif sign == "#" or (text.startswith("--", at) and (at + 2 == end or text[at + 2].isspace())):
            at = _behind(text, "\n", at)
        elif sign in "`'\"":
            begin = at
            value, at = _quoted(text, at, backslash=backslash and sign != "`")
            named = sign == "`" or (sign == '"' and ansi_quotes)
            yield _Token("name" if named else "text", value, begin, at)
        elif match := _WORD.match(text, at):
            yield from _split(match.group(), at)
            at = match.end()
        elif sign == ";":
            at += 1
        else:
            yield _Token("sign", sign, at, at + 1)
            at += 1


def _split(word: str, at: int) -> Iterator[_Token]:
    """``db.table`` as three tokens; a number stays whole."""
    if _NUMBER.fullmatch(word):
        yield _Token("sign" if word == "." else "text", word, at, at + len(word))
        return
    for part in re.split(r"([.@])", word):
        if part:
            yield _Token("sign" if part in ".@" else "word", part, at, at + len(part))
            at += len(part)


def _behind(text: str, what: str, at: int) -> int:
    found = text.find(what, at)
    return len(text) if found < 0 else found + len(what)


def _quoted(text: str, at: int, *, backslash: bool) -> tuple[str, int]:
    quote, out = text[at], []
    at += 1
    while at < len(text):
        sign = text[at]
        if sign == "\\" and backslash:
            out.append(text[at + 1 : at + 2])
            at += 2
        elif sign == quote:
            if text[at + 1 : at + 2] != quote:
                return "".join(out), at + 1
            out.append(quote)
            at += 2
        else:
            out.append(sign)
            at += 1
    return "".join(out), at
