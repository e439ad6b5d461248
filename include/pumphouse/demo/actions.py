"""What a transaction does to a table: a random choice of inserts, updates, replaces, key changes, swaps and deletes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from pumphouse.codec.datum import Value
from pumphouse.demo.rows import Row, SourceTable
from pumphouse.demo.tables import Tables
from pumphouse.demo.transaction import SourceTransaction
from pumphouse.demo.values import ValueMaker, fill_generated, unique_columns

# Rows of a table without a key are shared out by this column.
TAG = "tag"
TAGS = 8


class Actor(Protocol):
    """A writer as its actions see it."""

    number: int
    rng: random.Random
    values: ValueMaker
    tables: Tables

    def known(self, transaction: SourceTransaction, table: SourceTable, count: int) -> list[Row]:
        """Some of its rows, read and locked."""
        ...


def act(transaction: SourceTransaction, thread: Actor, table: SourceTable) -> None:
    """Change a table in some ways, about eight rows."""
    if not table.key:
        _keyless(transaction, thread, table)
        return
    if table.info.name == "accounts":
        _accounts(transaction, thread, table)
        return
    rng = thread.rng
    # Read everything first: the rows that are changed in different ways must be different ones.
    rows = thread.known(transaction, table, rng.randint(2, 6))
    cut = rng.randint(0, len(rows))
    updated, rest = rows[:cut], rows[cut:]
    steps: list[Callable[[], None]] = [lambda: _insert(transaction, thread, table, rng.randint(1, 5))]
    if updated:
        steps.append(lambda: _update(transaction, thread, table, updated))
    if rest:
        kind = rng.random()
        if kind < 0.6:
            steps.append(lambda: transaction.delete(table, rest[:3]))
        elif kind < 0.85:
            new = [thread.values.row(table.info, _kept(table, row)) for row in rest]
            steps.append(lambda: transaction.replace(table, rest, new))
        else:
            moved = {**rest[0], **{c.id: thread.values.unique(c) for c in table.key[-1:]}}
            steps.append(lambda: transaction.change_key(table, rest[0], fill_generated(table.info, moved)))
    rng.shuffle(steps)
    for step in steps:
        step()


def big_document(transaction: SourceTransaction, thread: Actor) -> None:
    """A row of several megabytes, or the end of an older one."""
    table = thread.tables.by_name["shop", "docs"]
    rng, values = thread.rng, thread.values
    old = thread.known(transaction, table, 1)
    row = values.row(table.info)
    names = {column.name: column.id for column in table.columns}
    row[names["body"]] = rng.randbytes(1 << 16) * rng.randint(16, 48)
    row[names["text"]] = ("ein langer Text, 水, " * rng.randint(1, 60_000)).encode()
    if old and rng.random() < 0.5:
        key = {column.id: old[0][column.id] for column in table.key}
        transaction.update(table, old, [{**row, **key}])
        return
    transaction.insert(table, [row])
    if old and rng.random() < 0.3:
        transaction.delete(table, old)


def _kept(table: SourceTable, row: Row) -> dict[int, Value]:
    """What a replacing row must keep: the key, and unique values, or it would replace another row too."""
    kept = unique_columns(table.info) | {column.id for column in table.key}
    return {column_id: row[column_id] for column_id in kept}


def _insert(transaction: SourceTransaction, thread: Actor, table: SourceTable, count: int) -> None:
    transaction.insert(table, [_new_row(thread, table) for _ in range(count)])


def _new_row(thread: Actor, table: SourceTable) -> Row:
    row = thread.values.row(table.info)
    first = table.key[0]
    if len(table.key) > 1 and first.type.flen <= 12 and not isinstance(row[first.id], int):
        # The first part of a composite key has few values.
        row[first.id] = thread.rng.choice((b"north", b"south", b"east", b"West End"))
    return row


def _update(transaction: SourceTransaction, thread: Actor, table: SourceTable, rows: list[Row]) -> None:
    unique = unique_columns(table.info)
    fixed = {column.id for column in table.key}
    free = [column for column in table.stored if column.id not in fixed]
    changed = []
    for row in rows:
        new = dict(row)
        for column in thread.rng.sample(free, thread.rng.randint(1, max(1, len(free) // 2))):
            values = thread.values
            new[column.id] = values.unique(column) if column.id in unique else values.value(column)
        changed.append(fill_generated(table.info, new))
    transaction.update(table, rows, changed)


def _accounts(transaction: SourceTransaction, thread: Actor, table: SourceTable) -> None:
    """A transfer between rows that other threads use too, and a swap of their unique slots."""
    rng: random.Random = thread.rng
    ids = sorted(rng.sample(range(1, 401), 2))
    rows = transaction.lock_keys(table, [(number,) for number in ids])
    if len(rows) < 2:
        return
    if rng.random() < 0.5:
        transaction.swap_unique(table, "slot", rows[0], rows[1])
        return
    balance = next(column for column in table.columns if column.name == "balance")
    new = [{**row, balance.id: f"{rng.randrange(10**6)}.{rng.randrange(100):02d}"} for row in rows]
    transaction.update(table, rows, new)


def _keyless(transaction: SourceTransaction, thread: Actor, table: SourceTable) -> None:
    rng = thread.rng
    tag = next(column for column in table.columns if column.name == TAG)
    mine = thread.number % TAGS
    rows = transaction.lock_where(table, TAG, mine, 4)
    new = [{**thread.values.row(table.info), tag.id: mine} for _ in range(rng.randint(1, 4))]
    if rng.random() < 0.3:
        new.append(dict(new[0]))  # the same row twice
    transaction.insert(table, new)
    if not rows:
        return
    if rng.random() < 0.4:
        changed = {**thread.values.row(table.info), tag.id: mine}
        transaction.update_keyless(table, rows[0], changed)
    if len(rows) > 1:
        transaction.delete_keyless(table, rows[1 : rng.randint(2, len(rows))])
