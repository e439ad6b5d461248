"""The way on where a target refused a row or a DDL: what it is asked, and the history, for the hint of the error."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

from pumphouse import advice
from pumphouse.archive.view import ArchiveView
from pumphouse.errors import DdlRefused, RowRejected
from pumphouse.loader import state
from pumphouse.loader.rules import Rules
from pumphouse.loader.tables import only_takes_away
from pumphouse.loader.target import TargetConnection
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.ident import qualified, quote
from pumphouse.schema.render import render
from pumphouse.schema.route import Routes
from pumphouse.schema.versions import DdlEvent

# A column is used in a foreign key: of its own table, of another one; what else cannot be done under one.
# MySQL: the columns would be of two types, and it has no key between such.
_TWO_TYPES = 3780
_UNDER_A_KEY = frozenset({1832, 1833, 1846, _TWO_TYPES})
_KEY = re.compile(r"^ *(CONSTRAINT `((?:[^`]|``)+)` FOREIGN KEY .*?),?$", re.MULTILINE)
# What a server, or what counts its rows, says where two rows have one key.
_COLLISION = re.compile(r"Duplicate entry|collide|share a unique key")


@contextmanager
def offering_resync(connection: TargetConnection, view: ArchiveView, rules: Rules, task: str) -> Iterator[None]:
    """An error of the block that may come of what others did on the target says how its table is made anew."""
    try:
        yield
    except (RowRejected, DdlRefused) as error:
        table = error.facts.get("table")
        if isinstance(table, str):
            collided = _COLLISION.search(str(error.facts.get("reason"))) is not None
            going = collided and _key_was_going(connection, view, task, table)
            if collided and not going:
                error.add_hint(_collations(connection, rules.routes, table))
            error.add_hint(_past_a_drop(table) if going else _anew(table))
        raise


def _anew(table: str) -> advice.Hint:
    what = "where somebody else changed the table on the target: {} makes it anew, while the others go on"
    return advice.saying(what, advice.load(resync=table))


def _past_a_drop(table: str) -> advice.Hint:
    return advice.saying(
        "at TiDB, a DROP INDEX of this table was under way where this plan ends, so it cannot have these rows: park it "
        "and load; then take the rule away, and {} makes it anew, as it is behind that DDL",
        advice.load(resync=table),
    )


def _key_was_going(connection: TargetConnection, view: ArchiveView, task: str, table: str) -> bool:
    """Whether the next DDL of a table behind the open plan takes a key away: rows before it may share the key."""
    plan = state.open_plan(connection, task)
    if plan is None:
        return False
    events = view.timeline.ddls(plan.to_ts, view.end)
    behind = (change for event in events for change in event.changes if ".".join(change.known.name) == table)
    change = next(behind, None)
    if change is None or change.before is None or change.after is None:
        return False
    before, after = (sum(i.unique and i.public for i in v.table.indexes) for v in (change.before, change.after))
    return after < before and only_takes_away(change.before, change.after)


def _collations(connection: TargetConnection, routes: Routes, table: str) -> str:
    """What to do about keys that differ at the source and are one under the collations of a table there."""
    db, name = routes.table(*table.split(".", 1))
    rows = connection.query(
        "SELECT DISTINCT c.column_name, c.collation_name FROM information_schema.statistics s"
        " JOIN information_schema.columns c ON c.table_schema = s.table_schema AND c.table_name = s.table_name"
        " AND c.column_name = s.column_name"
        " WHERE s.non_unique = 0 AND c.collation_name IS NOT NULL AND s.table_schema = %s AND s.table_name = %s"
        " ORDER BY 1",
        (db, name),
    )
    if not rows:
        return ""
    binary = "utf8mb4_nopad_bin" if connection.dialect is Dialect.MARIADB else "utf8mb4_0900_bin"
    texts = ", ".join(f"{column} by {collation}" for column, collation in rows)
    return (
        f"its unique keys compare {texts}: where values that differ at the source are one there, ALTER TABLE "
        f"{qualified(db, name)} MODIFY the column with COLLATE {binary}, which tells all apart, and load again"
    )


def keys_in_the_way(connection: TargetConnection, routes: Routes, event: DdlEvent, error: DdlRefused) -> str:
    """Where foreign keys of a table, or to it, are in the way: which ones, and the statements around them."""
    table, statement = error.facts.get("table"), error.facts.get("statement")
    if error.facts.get("code") not in _UNDER_A_KEY or not isinstance(table, str):
        return ""
    there = routes.table(*table.split(".", 1))
    children = connection.query(
        "SELECT DISTINCT constraint_schema, table_name FROM information_schema.referential_constraints"
        " WHERE (unique_constraint_schema, referenced_table_name) = (%s, %s)"
        " OR (constraint_schema, table_name) = (%s, %s) ORDER BY 1, 2",
        (*there, *there),
    )
    names, drop, add = [], [], []
    for db, child in children:
        create = str(connection.query(f"SHOW CREATE TABLE {qualified(db, child)}")[0][1])
        for text, name in _KEY.findall(create):
            parent = quote(there[1]) if db == there[0] else qualified(*there)
            if (db, child) == there or f" REFERENCES {parent} " in text:
                plain = name.replace("``", "`")
                names.append(f"{plain} of {db}.{child}")
                drop.append(f"ALTER TABLE {qualified(db, child)} DROP FOREIGN KEY {quote(plain)}")
                add.append(f"ALTER TABLE {qualified(db, child)} ADD {text}")
    rendered = render(routes.event(event), connection.dialect, keep_schema=connection.settings.schema_name)
    said = [each.sql for each in rendered]
    rest = said[said.index(statement) :] if statement in said else [str(statement)]
    again = [] if error.facts["code"] == _TWO_TYPES else add
    sql = json.dumps([*drop, *rest, *again], ensure_ascii=False)
    return f"the target does not do that under a foreign key ({', '.join(names)}): sql = {sql} goes around it"
