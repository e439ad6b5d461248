"""Foreign keys whose actions InnoDB carries out below the binlog, and the statements that put triggers in their place.

What a trigger changes is in the row binlog as any other change. An action is carried out before the row of the parent
goes, by a BEFORE trigger: then a key that is RESTRICT lets the parent go. As an action, it does nothing in a session
without foreign_key_checks, and an UPDATE that changes the bytes of a key counts, though the collation takes them for
equal. Two actions have no such trigger: ON UPDATE CASCADE (a child cannot have a value before its parent has it), and
any action within one table (a trigger may not change the table that it is of).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass

from pumphouse.capture.source.gtid import Flavor
from pumphouse.mysql import ServerConnection
from pumphouse.schema.ident import qualified, quote

_NO_ACTION = {"NO ACTION", "RESTRICT"}
_LONGEST_NAME = 64
_ACTS = "@@foreign_key_checks"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActingKey:
    """One key. ``columns``: (of the child, of the parent); ``delete``, ``update``: its actions, as SQL has them."""

    name: str
    child: tuple[str, str]
    parent: tuple[str, str]
    columns: tuple[tuple[str, str], ...]
    delete: str
    update: str

    def __str__(self) -> str:
        return f"{'.'.join(self.child)}.{self.name} (ON DELETE {self.delete}, ON UPDATE {self.update})"

    @property
    def lost(self) -> str:
        """What is an error once `instead` was typed, '' = nothing."""
        deletes, updates = self.delete not in _NO_ACTION, self.update not in _NO_ACTION
        if self.child == self.parent:
            verbs = " or ".join(verb for verb, acts in (("DELETE", deletes), ("UPDATE", updates)) if acts)
            return f"a {verbs} of a row that others refer to: no trigger may change its own table"
        return "an UPDATE of a parent's key that is referred to" if self.update == "CASCADE" else ""

    def instead(self) -> list[str]:
        """Statements, in their order: at no moment is the key or its action missing."""
        child, parent = qualified(*self.child), qualified(*self.parent)
        found = []
        if self.child != self.parent:
            equal = " AND ".join(f"{quote(mine)} = OLD.{quote(theirs)}" for mine, theirs in self.columns)
            nulls = ", ".join(f"{quote(mine)} = NULL" for mine, _ in self.columns)
            same = " AND ".join(
                f"BINARY OLD.{quote(theirs)} <=> BINARY NEW.{quote(theirs)}" for _, theirs in self.columns
            )
            does = {
                "CASCADE": f"DELETE FROM {child} WHERE {equal} AND {_ACTS}",  # noqa: S608
                "SET NULL": f"UPDATE {child} SET {nulls} WHERE {equal} AND {_ACTS}",  # noqa: S608
            }
            if self.delete in does:
                found.append(f"{self._trigger('DELETE')} ON {parent} FOR EACH ROW {does[self.delete]}")
            if self.update == "SET NULL":
                when = f"{does['SET NULL']} AND NOT ({same})"
                found.append(f"{self._trigger('UPDATE')} ON {parent} FOR EACH ROW {when}")
        mine, theirs = (", ".join(map(quote, side)) for side in zip(*self.columns, strict=True))
        name = quote(f"{self.name[: _LONGEST_NAME - 9]}_restrict")
        found.append(f"ALTER TABLE {child} ADD CONSTRAINT {name} FOREIGN KEY ({mine}) REFERENCES {parent} ({theirs})")
        found.append(f"ALTER TABLE {child} DROP FOREIGN KEY {quote(self.name)}")
        return found

    def _trigger(self, verb: str) -> str:
        # In the parent's database keys of other databases may have the same name.
        tag = f"_{zlib.crc32(repr((self.child, self.name)).encode()):08x}_{verb.lower()}"
        return f"CREATE TRIGGER {qualified(self.parent[0], self.name[: _LONGEST_NAME - len(tag)] + tag)} BEFORE {verb}"


def writes_actions(connection: ServerConnection, flavor: Flavor) -> bool:
    """Whether the server carries actions out itself, and writes the rows that they change: a MySQL from 9.6 on may."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW VARIABLES LIKE 'innodb_native_foreign_keys'")
        return flavor is Flavor.MYSQL and cursor.fetchall() == (("innodb_native_foreign_keys", "OFF"),)


def acting_keys(
    connection: ServerConnection, own: Collection[str], without: Callable[[str, str], bool]
) -> list[ActingKey]:
    """Foreign keys with actions, whose rows no binlog has where InnoDB carries them out: parents first, by name.

    In this order their statements leave no action out: no trigger runs for rows that an action changes.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT k.TABLE_SCHEMA, k.TABLE_NAME, k.CONSTRAINT_NAME, k.REFERENCED_TABLE_SCHEMA,"
            " k.REFERENCED_TABLE_NAME, r.DELETE_RULE, r.UPDATE_RULE, k.COLUMN_NAME, k.REFERENCED_COLUMN_NAME"
            " FROM information_schema.REFERENTIAL_CONSTRAINTS r JOIN information_schema.KEY_COLUMN_USAGE k"
            " ON k.CONSTRAINT_SCHEMA = r.CONSTRAINT_SCHEMA AND k.TABLE_NAME = r.TABLE_NAME"
            " AND k.CONSTRAINT_NAME = r.CONSTRAINT_NAME AND k.REFERENCED_TABLE_NAME IS NOT NULL"
            " ORDER BY 1, 2, 3, k.ORDINAL_POSITION"
        )
        columns: dict[tuple[str, ...], list[tuple[str, str]]] = {}
        for *key, mine, theirs in cursor.fetchall():
            columns.setdefault(tuple(map(str, key)), []).append((str(mine), str(theirs)))
    left = [
        ActingKey(name=name, child=(db, table), parent=(of_db, of), columns=tuple(pairs), delete=delete, update=update)
        for (db, table, name, of_db, of, delete, update), pairs in columns.items()
        if not {delete, update} <= _NO_ACTION and db.lower() not in own and not without(db, table)
    ]
    found: list[ActingKey] = []
    while left:
        changed = {key.child for key in left if key.child != key.parent}
        first = [key for key in left if key.parent not in changed] or left  # these are a circle, or hang on one
        found += first
        left = [key for key in left if key not in first]
    return found
