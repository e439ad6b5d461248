"""ALTER clauses that turn one version of a table into the next, found by comparing the two (pure)."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pumphouse.errors import SchemaError
from pumphouse.model.table import ColumnFlag, ColumnInfo, IndexColumn, IndexInfo, Job, MysqlType, TableInfo, cistr
from pumphouse.schema.actions import Action
from pumphouse.schema.column_sql import column_sql, default_sql, definition, fill_sql, type_sql
from pumphouse.schema.conversion import Cast, Conversion, conversion, unlike
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.generated import Pairs, computed_anew, named_anew, on_target, ways_after, ways_there
from pumphouse.schema.ident import literal, quote
from pumphouse.schema.table_sql import (
    auto_increment_column,
    checks,
    foreign_keys,
    index_sql,
    partition_definitions,
    partition_sql,
    plain_indexes,
    primary_sql,
    table_charset,
    tidb_options,
    visibility_sql,
)

_MOVES = re.compile(r"\b(first|after)\b", re.IGNORECASE)
_LITERAL = re.compile(r"DEFAULT (?:'|b'|NULL$)")
# How a TiDB is told that an option is gone.
_OPTIONS_OFF = {"ttl": "REMOVE TTL", "shard": "SHARD_ROW_ID_BITS=0"}


@dataclass(frozen=True, slots=True)
class Fill:
    """A column of a new type whose values the target is told, beside the old one, until it takes that one's place.

    ``column``: its definition for ADD COLUMN. ``steps``: assignments for UPDATE, one after the other.
    ``zoned``: they depend on the time zone of the source's session.
    """

    column: str
    steps: tuple[str, ...]
    zoned: bool


@dataclass(frozen=True, slots=True)
class AlterClauses:
    """``first``: one ALTER TABLE. ``then``: clauses of a second one, after it. ``zoned``: of one before both.

    The second sets defaults that differ from the value which the first gave to the rows that were there. The one before
    turns TIMESTAMP into other types and back, which depends on the session's time zone; it sets no defaults, because
    those of the table infos are in UTC. ``unbound`` and ``bound``: foreign keys that go before all of these and come
    after, each a statement of its own. ``fills``: columns that are there before ``first``, which puts them into places
    of old ones. ``stamps``: assignments that keep an UPDATE from setting times. ``doubts``: changes of types that
    are not known to be TiDB's here, in words, and a condition on rows: where there are no such rows, they are right.
    ``partitions``: what ``first`` ends with where a MySQL renames a column by which the table is partitioned.
    """

    first: tuple[str, ...]
    then: tuple[str, ...] = ()
    zoned: tuple[str, ...] = ()
    unbound: tuple[str, ...] = ()
    bound: tuple[str, ...] = ()
    fills: tuple[Fill, ...] = ()
    stamps: tuple[str, ...] = ()
    doubts: tuple[tuple[str, str], ...] = ()
    partitions: str = ""


def alter_clauses(
    job: Job,
    db: str,
    before: TableInfo,
    after: TableInfo,
    dialect: Dialect,
    *,
    strict: bool = True,
    there: Mapping[str, bool] | None = None,
    bare: bool = False,
) -> AlterClauses:
    """Compare columns, keys, checks, foreign keys and options; not names of tables, and not partitions.

    ``db``: the table's database. ``strict``: False where the source ran it without a strict sql_mode. ``there``: the
    target's columns before it, and which of them it computes; None = as a load makes them. ``bare``: as in `on_target`.
    """
    has = None if there is None else ways_there(before, there)
    goes_on = None if has is None else ways_after(before, after, has, dialect)
    anew = {c.id for c in recomputed(job, before, after)}
    before, after = on_target(before, dialect, has), on_target(after, dialect, goes_on, bare=bare)
    pairs = match_columns(job, before, after)
    renamed = {old.name.lower(): new.name for old, new in pairs if old and old.name.lower() != new.name.lower()}
    old_keys, new_keys = foreign_keys(db, before, dialect), foreign_keys(db, after, dialect)
    checked = not after.of_tidb
    told = partial(type_sql, dialect=dialect, checked=checked)
    # A TiDB converts as the source did.
    rewritten = [] if dialect is Dialect.TIDB else _retyped(pairs)
    cast = [(old, new, conversion(old.type, new.type, strict=strict, dialect=dialect)) for old, new in rewritten]
    filled = {old.id: new for old, new, how in cast if how is not None and how.steps}
    keyed = _without_keys_over(before, {old.name.lower() for old, _, _ in cast if old.id in filled})
    first: list[str] = []
    first += _dropped_keys(keyed, after, renamed, dialect)
    old_checks, new_checks = checks(before, dialect), checks(after, dialect)
    same_checks = {} if filled else {name: text for name, text in old_checks.items() if new_checks.get(name) == text}
    first += [f"DROP CONSTRAINT {quote(name)}" for name in old_checks if name not in same_checks]
    kept = {old.id for old, _ in pairs if old is not None}
    gone = {c.name.lower() for c in before.public_columns if c.id not in kept}
    first += [f"DROP COLUMN {quote(c.name)}" for c in before.public_columns if c.id not in kept - filled.keys()]
    columns, then = _columns(before, after, pairs, dialect, filled, gone)
    first += columns
    first += _added_keys(keyed, after, renamed, dialect)
    first += [
        f"ADD CONSTRAINT {quote(name)} CHECK ({text})" for name, text in new_checks.items() if name not in same_checks
    ]
    first += _options(before, after, dialect)
    shown, shown_then = _visibility(keyed, after, renamed, dialect)
    # A target changes no type under a foreign key, and no name where it copies the table: the key goes and comes again.
    moved = {new.name.lower() for old, new in pairs if old is not None and old.type != new.type}
    if dialect is not Dialect.TIDB and (moved or len(first) > len(renamed)):
        moved |= {name.lower() for name in renamed.values()}
    stay = {id_ for id_, key in new_keys.items() if id_ in old_keys and not moved & key.columns}
    return AlterClauses(
        (*first, *shown),
        (*then, *shown_then),
        _zoned([pair for pair in pairs if pair[0] is None or pair[0].id not in filled], dialect, checked=checked),
        unbound=tuple(f"DROP FOREIGN KEY {quote(key.name)}" for id_, key in old_keys.items() if id_ not in stay),
        bound=tuple(f"ADD {key.sql}" for id_, key in new_keys.items() if id_ not in stay),
        fills=tuple(
            _fill(old, new, how, dialect, checked=checked) for old, new, how in cast if how is not None and how.steps
        ),
        stamps=tuple(
            f"{quote(c.name)} = {quote(c.name)}"
            for c in before.public_columns
            if c.type.flag & ColumnFlag.ON_UPDATE_NOW
        ),
        doubts=tuple(
            (f"{new.name} from {told(old.type)} to {told(new.type)}", where.replace("{old}", quote(old.name)))
            for old, new, where in (
                *((old, new, "" if how is None else how.unless) for old, new, how in cast if how is None or how.unless),
                *(
                    ()
                    if after.of_tidb
                    else _unlike(pairs, Cast.of(job.raw.get("reorg_meta") or {}, strict=strict), dialect)
                ),
            )
        )
        + tuple(
            (f"{new.name}, a STORED column that is computed anew, is a plain one here: no binlog has its values", "")
            for new in after.public_columns
            if new.id in anew and not new.generated
        ),
        partitions=partition_sql(after) if dialect is Dialect.MYSQL and _partitioned_by(before, renamed) else "",
    )


def _partitioned_by(table: TableInfo, names: Iterable[str]) -> bool:
    """Whether one of the columns, in lower case, decides in which partition a row lies."""
    partition = table.raw.get("partition") or {}
    columns = {cistr(each).lower() for each in partition.get("columns") or ()}
    return bool(partition.get("enable")) and (
        not columns.isdisjoint(names) or _names_any(str(partition.get("expr") or ""), names)
    )


def _unlike(pairs: Pairs, cast: Cast, dialect: Dialect) -> Iterator[tuple[ColumnInfo, ColumnInfo, str]]:
    """Columns that a MySQL or MariaDB cast, and rows in which the target may make another value."""
    for old, new in pairs:
        if old is not None and old.id == new.id and old.type != new.type and not (old.generated or new.generated):
            where = unlike(old.type, new.type, cast, dialect)
            if where is not None:
                yield old, new, where


def _names_any(expression: str, names: Iterable[str]) -> bool:
    return named_anew(expression, dict.fromkeys(names, "")) != expression


def _retyped(pairs: Pairs) -> list[tuple[ColumnInfo, ColumnInfo]]:
    """Columns that TiDB rewrote, which gave them new ids. Where the id is the same, no value was cast.

    Applications whose binlogs are not of a TiDB keep ids, and cast as MySQL and MariaDB do.
    """
    return [
        (old, new)
        for old, new in pairs
        if old is not None and not old.generated and not new.generated and old.id != new.id
    ]


def _waiting(new: ColumnInfo) -> str:
    """What a column is called until it takes the place of the old one."""
    return f"pumphouse_new_{new.id}"


def _fill(old: ColumnInfo, new: ColumnInfo, how: Conversion, dialect: Dialect, *, checked: bool) -> Fill:
    name = quote(_waiting(new))
    return Fill(
        column=f"{name} {type_sql(new.type, dialect, checked=checked)} NULL",
        steps=tuple(f"{name} = {step.replace('{old}', quote(old.name)).replace('{new}', name)}" for step in how.steps),
        zoned=MysqlType.TIMESTAMP in (old.type.tp, new.type.tp),
    )


def _without_keys_over(table: TableInfo, names: set[str]) -> TableInfo:
    """The table with other keys in place of those over some columns: they are dropped and made again."""
    return replace(
        table,
        indexes=tuple(
            replace(index, id=-index.id, unique=not index.unique)
            if any(part.name.lower() in names for part in index.columns)
            else index
            for index in table.indexes
        ),
    )


def recomputed(job: Job, before: TableInfo, after: TableInfo) -> list[ColumnInfo]:
    """As `computed_anew`, of a job."""
    if not any(column.generated_stored for column in after.columns):
        return []
    return computed_anew(before, after, match_columns(job, before, after))


def match_columns(job: Job, before: TableInfo, after: TableInfo) -> Pairs:
    """For each column of `after`, in order, the column of `before` that it was; None = it is new.

    By id. A MODIFY that rewrites the rows gives the column a new id: then by name; and where such a MODIFY renames as
    well (CHANGE a b …), by what is left when the columns that the job adds and drops are set aside: one column, or
    several that no FIRST and no AFTER moved, each by its place. To take a drop and an add for a rename would move
    values between columns, so a job that leaves a doubt is a SchemaError.
    """
    ids_before, ids_after = {c.id for c in before.public_columns}, {c.id for c in after.public_columns}
    by_id = {c.id: c for c in before.public_columns}
    gone = {c.name.lower(): c for c in before.public_columns if c.id not in ids_after}
    fresh = {c.name.lower(): c for c in after.public_columns if c.id not in ids_before}
    rewritten: dict[int, ColumnInfo] = {fresh[name].id: gone[name] for name in gone.keys() & fresh.keys()}
    gone = {name: c for name, c in gone.items() if name not in fresh}
    fresh = {name: c for name, c in fresh.items() if c.id not in rewritten}
    modifies, added, dropped, named = _said(job)
    gone = {name: c for name, c in gone.items() if name not in dropped}
    fresh = {name: c for name, c in fresh.items() if name not in added}
    if modifies and (gone or fresh):
        if len(gone) == len(fresh) == 1:
            renamed = {next(iter(fresh.values())).id: next(iter(gone.values()))}
        else:
            stayed = [c for c in before.public_columns if c.name.lower() not in dropped]
            came = [c for c in after.public_columns if c.name.lower() not in added]
            pairs = list(zip(stayed, came, strict=False))
            renamed = {new.id: old for old, new in pairs if new.name.lower() in fresh}
            known = {**by_id, **rewritten, **renamed}
            if (
                not named
                or _MOVES.search(job.query)
                or len(stayed) != len(came)
                or {c.name.lower() for c in renamed.values()} != gone.keys()
                or any(known.get(new.id) is not old for old, new in pairs)
            ):
                raise SchemaError(
                    f"DDL job {job.id} does not say which column of {after.name} became which", job_id=job.id
                )
        rewritten |= renamed
    return [(by_id.get(c.id) or rewritten.get(c.id), c) for c in after.public_columns]


def _said(job: Job) -> tuple[bool, set[str], set[str], bool]:
    """Whether a job may rewrite columns; the names that its parts add and drop, and whether it says all of them."""
    if job.type != Action.MULTI_SCHEMA_CHANGE:
        return job.type == Action.MODIFY_COLUMN, set(), set(), True
    parts = (job.raw.get("multi_schema_info") or {}).get("sub_jobs") or ()
    added, dropped = set(), set()
    for part in parts:
        args = part.get("raw_args")
        args = args if isinstance(args, list) and args else [None]
        if part.get("type") == Action.ADD_COLUMN and isinstance(args[0], dict):
            added.add(cistr(args[0].get("name")).lower())
        elif part.get("type") == Action.DROP_COLUMN:
            dropped.add(cistr(args[0]).lower())
    kinds = [part.get("type") for part in parts]
    named = sum(kind in {Action.ADD_COLUMN, Action.DROP_COLUMN} for kind in kinds) == len(added | dropped)
    return not parts or Action.MODIFY_COLUMN in kinds, added, dropped, bool(parts) and named


def _columns(
    before: TableInfo,
    after: TableInfo,
    pairs: Pairs,
    dialect: Dialect,
    filled: Mapping[int, ColumnInfo],
    gone: Iterable[str],
) -> tuple[list[str], list[str]]:
    """ADD, CHANGE and MODIFY clauses, and the second MODIFYs.

    ``filled``: ids of columns that another one replaces. ``gone``: names of columns that are dropped.
    """
    was_automatic, automatic = auto_increment_column(before), auto_increment_column(after)
    place = {c.id: at for at, c in enumerate(before.public_columns)}
    still = _unmoved([place[old.id] if old else -1 for old, _ in pairs])

    def said(column: ColumnInfo, table: TableInfo, counting: ColumnInfo | None, default: str | None = None) -> str:
        counts = counting is not None and counting.id == column.id
        return column_sql(column, dialect, auto_increment=counts, table=table, default=default)

    clauses, then = [], []
    # Beside an ADD COLUMN a MySQL takes no default for which it may need an unsafe function, whatever column has it.
    alone = dialect is Dialect.MYSQL and any(old is None for old, _ in pairs)
    previous = ""
    for at, (old, new) in enumerate(pairs):
        where = f" AFTER {quote(previous)}" if previous else " FIRST"
        text = said(new, after, automatic)
        if old is None:
            last = at == len(pairs) - 1
            fill = fill_sql(new, dialect)
            if fill != default_sql(new, dialect) and not new.generated:
                then.append(_redefault(new, text, dialect))
                clauses.append(
                    f"ADD COLUMN {definition(new, dialect, fill, checked=not after.of_tidb)}" + ("" if last else where)
                )
            else:
                clauses.append(f"ADD COLUMN {text}" + ("" if last else where))
        else:
            was = said(old, before, was_automatic)
            moved = "" if at in still else where
            later, count = alone and new.default_is_expr, len(clauses)
            told = said(new, after, automatic, "") if later else text
            if old.id in filled:
                clauses.append(f"CHANGE COLUMN {quote(_waiting(new))} {told}{where}")
            elif old.name != new.name and (
                dialect is Dialect.TIDB
                and not moved
                and was.removeprefix(quote(old.name)) == text.removeprefix(quote(new.name))
            ):
                # Told as a CHANGE, an AUTO_RANDOM column is refused where its ids are large.
                clauses.append(f"RENAME COLUMN {quote(old.name)} TO {quote(new.name)}")
            elif old.name != new.name:
                clauses.append(f"CHANGE COLUMN {quote(old.name)} {told}{moved}")
            elif (
                moved
                or said(old, before, was_automatic, "") != said(new, after, automatic, "")
                # Another column has the name now. A MariaDB would keep the values that are there.
                or _names_any(old.generated_expr, gone)
            ):
                clauses.append(f"MODIFY COLUMN {told}{moved}")
            elif was != text:
                (then if later else clauses).append(_redefault(new, text, dialect))
            if later and len(clauses) > count:
                then.append(_redefault(new, text, dialect))
        previous = new.name
    return clauses, then


def _redefault(column: ColumnInfo, text: str, dialect: Dialect) -> str:
    """Clause that changes a column's default alone; ``text``: its definition.

    A TiDB takes no MODIFY of a column by which its table is partitioned.
    """
    default = default_sql(column, dialect)
    if dialect is not Dialect.TIDB or not (default == "" or _LITERAL.match(default)):
        return f"MODIFY COLUMN {text}"
    return f"ALTER COLUMN {quote(column.name)} {f'SET {default}' if default else 'DROP DEFAULT'}"


def _zoned(pairs: Pairs, dialect: Dialect, *, checked: bool) -> tuple[str, ...]:
    """Type changes that move values between UTC and the time zone of the session."""
    out = []
    for old, new in pairs:
        if old is None or old.generated or new.generated:
            continue
        if (old.type.tp == MysqlType.TIMESTAMP) != (new.type.tp == MysqlType.TIMESTAMP):
            as_named = replace(new, name=old.name)
            out.append(f"MODIFY COLUMN {definition(as_named, dialect, '', checked=checked)}")
    return tuple(out)


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
    return {i.name.lower(): (i, index_sql(i, dialect, visibility=False)) for i in plain_indexes(info, dialect)}


def _renamed(before: TableInfo, after: TableInfo, dialect: Dialect) -> dict[str, str]:
    """Indexes with a new name and nothing else new: old name -> new name."""
    new = {index.id: index for index in plain_indexes(after, dialect)}
    out = {}
    for index in plain_indexes(before, dialect):
        other = new.get(index.id)
        if other is None or other.name == index.name:
            continue
        if index_sql(replace(index, name=other.name), dialect) == index_sql(other, dialect):
            out[index.name] = other.name
    return out


def _carried(parts: tuple[IndexColumn, ...], names: dict[str, str]) -> tuple[IndexColumn, ...]:
    """Parts of an old key after the columns were renamed under it."""
    return tuple(replace(part, name=names.get(part.name.lower(), part.name)) for part in parts)


def _key_changes(
    before: TableInfo, after: TableInfo, names: dict[str, str], dialect: Dialect
) -> tuple[list[str], list[str]]:
    """Names of the indexes to drop; definitions of those to add."""
    renamed = _renamed(before, after, dialect)
    old = {
        key: index_sql(replace(index, columns=_carried(index.columns, names)), dialect, visibility=False)
        for key, (index, _) in _key_texts(before, dialect).items()
    }
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


def _visibility(
    before: TableInfo, after: TableInfo, names: dict[str, str], dialect: Dialect
) -> tuple[list[str], list[str]]:
    """ALTER INDEX for indexes that stay, and, in the second statement, for invisible ones that are new.

    MariaDB makes a new one visible when the same statement drops an index of that name.
    """
    old = {index.name.lower(): index for index in plain_indexes(before, dialect)}
    replaced = {name.lower() for name in _key_changes(before, after, names, dialect)[0]}
    first, then = [], []
    for index in plain_indexes(after, dialect):
        clause = f"ALTER INDEX {quote(index.name)} {visibility_sql(index, dialect)}"
        was = old.get(index.name.lower())
        if was is None or index.name.lower() in replaced:
            then += [clause] if index.invisible else []
        elif was.invisible != index.invisible:
            first.append(clause)
    return first, then


def _primary_changes(before: TableInfo, after: TableInfo, names: dict[str, str]) -> bool:
    return primary_sql(_carried(before.primary_key(), names)) != primary_sql(after.primary_key())


def _dropped_keys(before: TableInfo, after: TableInfo, names: dict[str, str], dialect: Dialect) -> list[str]:
    drop, _ = _key_changes(before, after, names, dialect)
    out = [f"DROP INDEX {quote(name)}" for name in drop]
    if before.primary_key() and _primary_changes(before, after, names):
        out.insert(0, "DROP PRIMARY KEY")
    return out


def _added_keys(before: TableInfo, after: TableInfo, names: dict[str, str], dialect: Dialect) -> list[str]:
    _, add = _key_changes(before, after, names, dialect)
    out = [f"ADD {text}" for text in add]
    out += [f"RENAME INDEX {quote(a)} TO {quote(b)}" for a, b in _renamed(before, after, dialect).items()]
    if after.primary_key() and _primary_changes(before, after, names):
        out.insert(0, f"ADD {primary_sql(after.primary_key())}")
    return out


def _options(before: TableInfo, after: TableInfo, dialect: Dialect) -> list[str]:
    out = []
    if table_charset(before, dialect) != table_charset(after, dialect):
        out.append(table_charset(after, dialect))
    if before.comment != after.comment:
        out.append(f"COMMENT={literal(after.comment)}")
    if dialect is Dialect.TIDB:
        was, now = tidb_options(before), tidb_options(after)
        out += [text for what, text in now.items() if was.get(what) != text]
        out += [_OPTIONS_OFF[what] for what in was.keys() - now.keys() if what in _OPTIONS_OFF]
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
