"""Keys, foreign keys, triggers and views of two servers, as information_schema has them.

What no copy gets (triggers, events, routines, users, the foreign keys that `schema import` reads) is no difference
where the target lacks it: it is listed. What the target has beyond the source, or otherwise, is one.
"""

# What is asked for is ours, names are bound.
# ruff: noqa: S608

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from pymysql.err import MySQLError

from pumphouse.diff.servers import Row, rows, text
from pumphouse.diff.tables import Table
from pumphouse.loader.grants import hidden
from pumphouse.mysql import ServerConnection
from pumphouse.schema.dialect import Dialect, key_bytes

Name = tuple[str, str]
# Others (FULLTEXT, SPATIAL, vectors) no binlog and no DDL job of ours says.
_ORDINARY = frozenset({"BTREE", "HASH"})
_SYSTEM_USERS = frozenset({"mysql.sys", "mysql.session", "mysql.infoschema", "mariadb.sys", "root", "PUBLIC", ""})
_LENGTH = re.compile(r"\(\d+\)$")
_QUALIFIED = re.compile(r"`((?:[^`]|``)+)`\.`((?:[^`]|``)+)`")
# What information_schema has, by the words of a list of what the target lacks.
_NAMED = {
    "events": "SELECT EVENT_SCHEMA, EVENT_NAME FROM information_schema.EVENTS WHERE EVENT_SCHEMA IN",
    "routines": "SELECT ROUTINE_SCHEMA, ROUTINE_NAME FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA IN",
}


@dataclass(frozen=True, slots=True)
class Key:
    """An index. ``columns``: in lower case, with the length of a prefix; ``copied``: a load makes such ones.

    ``own``: not every kind of server takes it. A MariaDB's JSON is text, and its unique keys take texts of any length.
    A MySQL's keys over TINYTEXT are short.
    """

    unique: bool
    columns: tuple[str, ...]
    kind: str
    copied: bool
    own: bool = False

    def __str__(self) -> str:
        """For people."""
        kind = "" if self.kind in _ORDINARY else f"{self.kind} "
        return f"{'unique ' * self.unique}{kind}({', '.join(self.columns)})"


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """``to``: the table that it names; ``rules``: on update, on delete."""

    columns: tuple[str, ...]
    to: Name
    there: tuple[str, ...]
    rules: tuple[str, ...]

    def __str__(self) -> str:
        """For people."""
        there = f"{'.'.join(self.to)} ({', '.join(self.there)})"
        return f"({', '.join(self.columns)}) to {there} on update {self.rules[0]} on delete {self.rules[1]}"


@dataclass(slots=True)
class Structure:
    """Of one server. By (schema, table): keys and foreign keys by name. By (schema, name): the others."""

    keys: dict[Name, dict[str, Key]] = field(default_factory=dict)
    foreign: dict[Name, dict[str, ForeignKey]] = field(default_factory=dict)
    triggers: dict[Name, tuple[str, ...]] = field(default_factory=dict)
    views: dict[Name, str] = field(default_factory=dict)
    others: dict[str, set[Name]] = field(default_factory=dict)


def read_structure(
    connection: ServerConnection, schemas: Collection[str], tables: Mapping[Name, Table], dialect: Dialect
) -> Structure:
    """What some schemas with these tables have."""
    found = Structure()
    if not schemas:
        return found

    def of(sql: str, order: str = "1, 2") -> Iterator[Row]:
        marks = ", ".join(["%s"] * len(schemas))
        yield from list(rows(connection, f"{sql} ({marks}) ORDER BY {order}", *schemas))

    _read_keys(found, of, tables, dialect)
    for schema, table, name, column, to, there, column_there, *rules in of(
        "SELECT k.TABLE_SCHEMA, k.TABLE_NAME, k.CONSTRAINT_NAME, k.COLUMN_NAME, k.REFERENCED_TABLE_SCHEMA,"
        " k.REFERENCED_TABLE_NAME, k.REFERENCED_COLUMN_NAME, r.UPDATE_RULE, r.DELETE_RULE"
        " FROM information_schema.KEY_COLUMN_USAGE k JOIN information_schema.REFERENTIAL_CONSTRAINTS r"
        " ON r.CONSTRAINT_SCHEMA = k.CONSTRAINT_SCHEMA AND r.TABLE_NAME = k.TABLE_NAME"
        " AND r.CONSTRAINT_NAME = k.CONSTRAINT_NAME WHERE k.REFERENCED_TABLE_NAME IS NOT NULL AND k.TABLE_SCHEMA IN",
        "1, 2, 3, k.ORDINAL_POSITION",
    ):
        keys = found.foreign.setdefault((text(schema), text(table)), {})
        known = keys.get(text(name))
        # To InnoDB they are one; who says neither gets the one here and the other there.
        acts = tuple(text(rule).replace("NO ACTION", "RESTRICT") for rule in rules)
        keys[text(name)] = ForeignKey(
            columns=(*(known.columns if known else ()), text(column).lower()),
            to=(text(to), text(there)),
            there=(*(known.there if known else ()), text(column_there).lower()),
            rules=acts,
        )
    for schema, name, *what in of(
        "SELECT TRIGGER_SCHEMA, TRIGGER_NAME, ACTION_TIMING, EVENT_MANIPULATION, EVENT_OBJECT_TABLE, ACTION_STATEMENT"
        " FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA IN"
    ):
        found.triggers[text(schema), text(name)] = tuple(text(each).strip() for each in what)
    for schema, name, definition in of(
        "SELECT TABLE_SCHEMA, TABLE_NAME, VIEW_DEFINITION FROM information_schema.VIEWS WHERE TABLE_SCHEMA IN"
    ):
        found.views[text(schema), text(name)] = text(definition)
    for kind, sql in _NAMED.items():
        found.others[kind] = {(text(schema), text(name)) for schema, name in of(sql)}
    return found


def _read_keys(
    found: Structure, of: Callable[..., Iterable[Row]], tables: Mapping[Name, Table], dialect: Dialect
) -> None:
    expression = "NULL" if dialect is Dialect.MARIADB else "EXPRESSION"
    computed = {
        (name, column.name.lower()) for name, table in tables.items() for column in table.columns if column.computed
    }
    texts = {
        (name, column.name.lower()): column
        for name, table in tables.items()
        for column in table.columns
        if dialect is Dialect.MARIADB and (column.json or column.data_type == "tinytext")
    }
    for schema, table, name, repeats, kind, column, length, over in of(
        f"SELECT TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, NON_UNIQUE, INDEX_TYPE, COLUMN_NAME, SUB_PART, {expression}"
        " FROM information_schema.STATISTICS WHERE TABLE_SCHEMA IN",
        "1, 2, 3, SEQ_IN_INDEX",
    ):
        of_table = text(schema), text(table)
        keys = found.keys.setdefault(of_table, {})
        known = keys.get(text(name).lower())
        part = (text(column).lower() or f"({text(over)})") + (f"({text(length)})" if length is not None else "")
        text_of = texts.get((of_table, text(column).lower()))
        by_rows = over is None and (of_table, text(column).lower()) not in computed
        keys[text(name).lower()] = Key(
            unique=text(repeats) == "0",
            columns=(*(known.columns if known else ()), part),
            kind=text(kind).upper(),
            copied=by_rows and text(kind).upper() in _ORDINARY and (known is None or known.copied),
            own=(known is not None and known.own)
            or (dialect is Dialect.MARIADB and text(kind).upper() == "HASH")
            or (text_of is not None and (text_of.json or _too_long(text_of.charset, length))),
        )


def _too_long(charset: str, length: bytes | str | None) -> bool:
    """Whether a MySQL's key over a TINYTEXT is shorter."""
    return length is not None and key_bytes(charset, int(text(length))) > 255


def unseen_of(connection: ServerConnection, side: str, dialect: Dialect, schemas: Iterable[str]) -> list[str]:
    """What of these schemas the user on a server may not see, in words. A TiDB has nothing of it but views."""
    if dialect is Dialect.TIDB:
        return []
    grants = [text(line) for (line,) in list(rows(connection, "SHOW GRANTS"))]
    return [
        f"not compared, because not seen in the {side}: {what}" for db in sorted(schemas) for what in hidden(grants, db)
    ]


def users_of(connection: ServerConnection, dialect: Dialect) -> set[str] | None:
    """Accounts, without those that a server makes itself; None = this user may not see them."""
    people = " WHERE is_role = 'N'" if dialect is Dialect.MARIADB else ""
    with suppress(MySQLError):
        found = list(rows(connection, f"SELECT User, Host FROM mysql.user{people}"))
        return {f"{text(user)}@{text(host)}" for user, host in found if text(user) not in _SYSTEM_USERS}
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Both:
    """Two structures to compare.

    Args:
        source: of the source.
        target: of the target.
        place: where a table or another object of the source is on the target.
        fold: a name as both servers compare it.
        same_kind: both print the text of a view alike, and have the same kinds of keys.
        prefixes: both say how much of a column a key has; a TiDB does not.
    """

    source: Structure
    target: Structure
    place: Callable[[Name], Name]
    fold: Callable[[str], str]
    same_kind: bool
    prefixes: bool

    def of_table(self, name: Name, there: Name) -> Iterator[tuple[str, str]]:
        """What differs between keys and foreign keys of a table: (kind, what). Kind ``lacks``: no difference."""
        ours, theirs = self.source.keys.get(name, {}), self.target.keys.get(there, {})
        foreign = self.target.foreign.get(there, {})
        of_foreign = {key.lower() for key in foreign}
        for key in sorted(ours.keys() | theirs.keys()):
            a, b = ours.get(key), theirs.get(key)
            if a is None and key not in of_foreign:  # for a foreign key a server makes an index of its name
                yield "keys", f"key {key} {b} is only in the target"
            elif a is not None and b is None:
                copied = a.copied and (self.same_kind or not a.own)
                yield "keys" if copied else "lacks", f"key {key} {a} is only in the source"
            elif a is not None and b is not None and self._key(a) != self._key(b):
                yield "keys", f"key {key} is {a} in the source, {b} in the target"
        # By what they say: servers that give names themselves give other ones.
        left = dict(foreign)
        for called, key_ in sorted(self.source.foreign.get(name, {}).items()):
            wanted = ForeignKey(key_.columns, self._folded(self.place(key_.to)), key_.there, key_.rules)
            same = next((each for each, key in left.items() if self._folding(key) == wanted), None)
            if same is not None:
                del left[same]
            elif called in left:
                yield "foreign keys", f"{called} is {key_} in the source, {left.pop(called)} in the target"
            else:
                yield "lacks", f"foreign key {called} {key_}"
        for called, key_ in sorted(left.items()):
            yield "foreign keys", f"{called} {key_} is only in the target"

    def of_triggers(self) -> Iterator[tuple[Name, str, str]]:
        """The same of triggers: (name, kind, what)."""
        theirs = {self._folded(name): (name, what) for name, what in self.target.triggers.items()}
        for name, what in self.source.triggers.items():
            there = self.place((name[0], what[2]))
            found = theirs.pop(self._folded((there[0], name[1])), None)
            if found is None:
                yield name, "lacks", f"trigger {'.'.join(name)}, {what[0]} {what[1]} on {what[2]}"
            elif (*what[:2], self.fold(there[1]), what[3]) != (*found[1][:2], self.fold(found[1][2]), found[1][3]):
                yield name, "triggers", "what it does differs"
        for name, what in theirs.values():
            yield name, "triggers", f"only in the target, {what[0]} {what[1]} on {what[2]}"

    def of_view(self, name: Name, there: Name) -> Iterator[tuple[str, str]]:
        """The same of a view's text."""
        ours, theirs = self.source.views.get(name, ""), self.target.views.get(there, "")
        if not (ours and theirs):
            return  # who may not see the text compares columns and rows alone

        def placed(found: re.Match[str]) -> str:
            db, table = (each.replace("``", "`") for each in found.groups())
            return ".".join(f"`{each.replace('`', '``')}`" for each in self.place((db, table)))

        if self.same_kind and self.fold(_QUALIFIED.sub(placed, ours)) != self.fold(theirs):
            yield "views", f"its text is {ours} in the source, {theirs} in the target"

    def of_others(self) -> Iterator[str]:
        """Events and routines that the target lacks."""
        for kind, names in self.source.others.items():
            theirs = {self._folded(each) for each in self.target.others.get(kind, ())}
            for db, name in sorted(names):
                if self._folded((self.place((db, ""))[0], name)) not in theirs:
                    yield f"{kind.removesuffix('s')} {db}.{name}"

    def _key(self, key: Key) -> tuple[bool, tuple[str, ...]]:
        return key.unique, key.columns if self.prefixes else tuple(_LENGTH.sub("", each) for each in key.columns)

    def _folded(self, name: Name) -> Name:
        return self.fold(name[0]), self.fold(name[1])

    def _folding(self, key: ForeignKey) -> ForeignKey:
        return ForeignKey(key.columns, self._folded(key.to), key.there, key.rules)
