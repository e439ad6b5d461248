"""ALTER clauses that turn one version of a table into the next, found by comparing the two (pure)."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

from include.errors import SchemaError
from include.model.table import ColumnInfo, IndexInfo, TableInfo, cistr
from include.schema.column_sql import column_sql, default_sql, definition, fill_sql
from include.schema.dialect import Dialect
from include.schema.ident import literal, quote
from include.schema.table_sql import (
    auto_increment_column,
    checks,
    index_sql,
    partition_definitions,
    plain_indexes,
    primary_sql,
    table_charset,
)


@dataclass(frozen=True, slots=True)
class AlterClauses:
    """``first``: one ALTER TABLE. ``then``: clauses of a second one, after it.

    The second sets defaults that differ from the value which the first gave to the rows that were there.
    """

    first: tuple[str, ...]
    then: tuple[str, ...] = ()


def alter_clauses(before: TableInfo, after: TableInfo, dialect: Dialect) -> AlterClauses:
    """Compare columns, keys, checks and options; not names of tables, and not partitions."""
    pairs = match_columns(before, after)
    first: list[str] = []
    first += _dropped_keys(before, after, dialect)
    first += [f"DROP CONSTRAINT {quote(name)}" for name in _dropped_checks(before, after)]
    kept = {old.id for old, _ in pairs if old is not None}
    first += [f"DROP COLUMN {quote(c.name)}" for c in before.public_columns if c.id not in kept]
    columns, then = _columns(before, after, pairs, dialect)
    first += columns
    first += _added_keys(before, after, dialect)
    old_checks = checks(before)
    first += [
        f"ADD CONSTRAINT {quote(name)} CHECK ({text})"
        for name, text in checks(after).items()
        if old_checks.get(name) != text
    ]
    first += _options(before, after, dialect)
    return AlterClauses(tuple(first), tuple(then))


def match_columns(before: TableInfo, after: TableInfo) -> list[tuple[ColumnInfo | None, ColumnInfo]]:
    """For each column of `after`, in order, the column of `before` that it was; None = it is new.

    By id. A MODIFY that rewrites the rows gives the column a new id: then by name, and a single pair that is left with
    a new name as well (CHANGE a b …) at the same place is that column.
    """
    by_id = {c.id: c for c in before.public_columns}
    ids = {c.id for c in after.public_columns}
    gone = {c.name.lower(): c for c in before.public_columns if c.id not in ids}
    found: dict[int, ColumnInfo] = {}
    for column in after.public_columns:
        old = by_id.get(column.id) or gone.pop(column.name.lower(), None)
        if old is not None:
            found[column.id] = old
    fresh = [c for c in after.public_columns if c.id not in found]
    if len(fresh) == 1 and len(gone) == 1:
        (old,) = gone.values()
        if list(before.public_columns).index(old) == list(after.public_columns).index(fresh[0]):
            found[fresh[0].id] = old
    return [(found.get(c.id), c) for c in after.public_columns]


def _columns(
    before: TableInfo, after: TableInfo, pairs: list[tuple[ColumnInfo | None, ColumnInfo]], dialect: Dialect
) -> tuple[list[str], list[str]]:
    """ADD, CHANGE and MODIFY clauses, and the second MODIFYs."""
    was_automatic, automatic = auto_increment_column(before), auto_increment_column(after)
    place = {c.id: at for at, c in enumerate(before.public_columns)}
    still = _unmoved([place[old.id] if old else -1 for old, _ in pairs])
    clauses, then = [], []
    previous = ""
    for at, (old, new) in enumerate(pairs):
        where = f" AFTER {quote(previous)}" if previous else " FIRST"
        text = column_sql(new, dialect, auto_increment=automatic is not None and automatic.id == new.id)
        if old is None:
            last = at == len(pairs) - 1
            fill = fill_sql(new, dialect)
            if fill != default_sql(new, dialect) and not new.generated:
                then.append(f"MODIFY COLUMN {text}")
                clauses.append(f"ADD COLUMN {definition(new, dialect, fill)}" + ("" if last else where))
            else:
                clauses.append(f"ADD COLUMN {text}" + ("" if last else where))
        else:
            was = column_sql(old, dialect, auto_increment=was_automatic is not None and was_automatic.id == old.id)
            moved = "" if at in still else where
            if old.name != new.name:
                clauses.append(f"CHANGE COLUMN {quote(old.name)} {text}{moved}")
            elif was != text or moved:
                clauses.append(f"MODIFY COLUMN {text}{moved}")
        previous = new.name
    return clauses, then


def _unmoved(places: list[int]) -> set[int]:
    """Positions of a longest rising run of `places` (-1 = new, never in it): what need not move."""
    tails: list[int] = []
    ends: list[int] = []
    back: dict[int, int] = {}
    for at, place in enumerate(places):
        if place < 0:
            continue
        slot = bisect_left(tails, place)
        if slot == len(tails):
            tails.append(place)
            ends.append(at)
        else:
            tails[slot], ends[slot] = place, at
        if slot:
            back[at] = ends[slot - 1]
    kept: set[int] = set()
    at_ = ends[-1] if ends else -1
    while at_ >= 0:
        kept.add(at_)
        at_ = back.get(at_, -1)
    return kept


def _key_texts(info: TableInfo, dialect: Dialect) -> dict[str, tuple[IndexInfo, str]]:
    return {index.name.lower(): (index, index_sql(index, dialect)) for index in plain_indexes(info)}


def _renamed(before: TableInfo, after: TableInfo, dialect: Dialect) -> dict[str, str]:
    """Indexes with a new name and nothing else new: old name -> new name."""
    new = {index.id: index for index in plain_indexes(after)}
    out = {}
    for index in plain_indexes(before):
        other = new.get(index.id)
        if other is None or other.name == index.name:
            continue
        same = index_sql(index, dialect).replace(quote(index.name), "", 1)
        if same == index_sql(other, dialect).replace(quote(other.name), "", 1):
            out[index.name] = other.name
    return out


def _columns_renamed(before: TableInfo, after: TableInfo) -> dict[str, str]:
    return {
        old.name.lower(): new.name
        for old, new in match_columns(before, after)
        if old is not None and old.name.lower() != new.name.lower()
    }


def _as_carried(index: IndexInfo, names: dict[str, str], dialect: Dialect) -> str:
    """Definition that an old index has after the columns were renamed under it."""
    text = index_sql(index, dialect)
    for part in index.columns:
        if part.name.lower() in names:
            text = text.replace(quote(part.name), quote(names[part.name.lower()]))
    return text


def _key_changes(before: TableInfo, after: TableInfo, dialect: Dialect) -> tuple[list[str], list[str]]:
    """Names of the indexes to drop; definitions of those to add."""
    renamed = _renamed(before, after, dialect)
    names = _columns_renamed(before, after)
    old = {key: _as_carried(index, names, dialect) for key, (index, _) in _key_texts(before, dialect).items()}
    new = _key_texts(after, dialect)
    moved_from = {name.lower() for name in renamed}
    moved_to = {name.lower() for name in renamed.values()}
    drop = [
        index.name
        for key, (index, _) in _key_texts(before, dialect).items()
        if key not in moved_from and (key not in new or new[key][1] != old[key])
    ]
    add = [text for key, (_, text) in new.items() if key not in moved_to and old.get(key) != text]
    return drop, add


def _primary_carried(before: TableInfo, after: TableInfo) -> str:
    text, names = primary_sql(before), _columns_renamed(before, after)
    for part in before.primary_key():
        if part.name.lower() in names:
            text = text.replace(quote(part.name), quote(names[part.name.lower()]))
    return text


def _dropped_keys(before: TableInfo, after: TableInfo, dialect: Dialect) -> list[str]:
    drop, _ = _key_changes(before, after, dialect)
    out = [f"DROP INDEX {quote(name)}" for name in drop]
    if primary_sql(before) and _primary_carried(before, after) != primary_sql(after):
        out.insert(0, "DROP PRIMARY KEY")
    return out


def _added_keys(before: TableInfo, after: TableInfo, dialect: Dialect) -> list[str]:
    _, add = _key_changes(before, after, dialect)
    out = [f"ADD {text}" for text in add]
    out += [f"RENAME INDEX {quote(a)} TO {quote(b)}" for a, b in _renamed(before, after, dialect).items()]
    if primary_sql(after) and _primary_carried(before, after) != primary_sql(after):
        out.insert(0, f"ADD {primary_sql(after)}")
    return out


def _dropped_checks(before: TableInfo, after: TableInfo) -> list[str]:
    new = checks(after)
    return [name for name, text in checks(before).items() if new.get(name) != text]


def _options(before: TableInfo, after: TableInfo, dialect: Dialect) -> list[str]:
    out = []
    if table_charset(before, dialect) != table_charset(after, dialect):
        out.append(table_charset(after, dialect))
    if before.comment != after.comment:
        out.append(f"COMMENT={literal(after.comment)}")
    return out


def partition_names(before: TableInfo, after: TableInfo) -> tuple[list[str], list[dict[str, Any]]]:
    """Names of the partitions of `before` whose ids are gone, and definitions of `after` whose ids are new."""
    old, new = partition_definitions(before), partition_definitions(after)
    old_ids, new_ids = {int(d["id"]) for d in old}, {int(d["id"]) for d in new}
    gone = [cistr(d["name"]) for d in old if int(d["id"]) not in new_ids]
    fresh = [d for d in new if int(d["id"]) not in old_ids]
    if not gone and not fresh:
        raise SchemaError(f"table {after.name}: the job does not say which partitions it changed")
    return gone, fresh
