"""Rows of a table that are drawn by its primary key and restored by themselves: those that the server chooses from a whole copy."""

from __future__ import annotations

import csv
import io
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence

from pumphouse.errors import LoadError, UsageError
from pumphouse.loader.keys import Predicate
from pumphouse.loader.target import TargetConnection

_BINARY = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
# What a choice of rows by a key is refused for.
_REFUSED = r"has no primary key|had another one up to|cannot be compared with|a range of .* is not known|only a server"


def choose(
    connection: TargetConnection, copy: str, rng: random.Random, restore: Callable[..., object]
) -> tuple[int, list[str]]:
    """Some rows by their keys, and those of a range: how many of the two were restored, and what differs from the copy.

    Args:
        connection: of the server that has the copy.
        copy: of the whole table, as ``database.table``.
        rng: draws.
        restore: called with ``called``, ``where`` and ``anew``: restores such rows of the table.
    """
    db, _, table = copy.partition(".")
    key = connection.query(
        "SELECT k.column_name, c.data_type FROM information_schema.key_column_usage k JOIN information_schema.columns c"
        " USING (table_schema, table_name, column_name) WHERE k.table_schema = %s AND k.table_name = %s"
        " AND k.constraint_name = 'PRIMARY' ORDER BY k.ordinal_position",
        (db, table),
    )
    texts = [_typed(f"`{name}`", kind) for name, kind in key]
    order = ", ".join(f"`{name}`" for name, _ in key)
    rows = connection.query(f"SELECT {', '.join(texts)} FROM `{db}`.`{table}` ORDER BY {order}") if key else [("1",)]
    if not rows:
        return 0, []

    def values(row: Sequence[str]) -> list[str | bytes | int]:
        return [
            bytes.fromhex(v[2:]) if kind in _BINARY else int(v) if kind == "bit" else v
            for v, (_, kind) in zip(row, key, strict=False)
        ]

    some = rng.sample(rows, rng.randint(1, min(3, len(rows))))
    same = " AND ".join(f"`{name}` = %s" for name, _ in key)
    asked = [(" OR ".join(f"({same})" for _ in some), [v for row in some for v in values(row)], _by_key(some))]
    firsts = [*dict.fromkeys(row[0] for row in rows), None]
    low, below = (firsts[at] for at in sorted(rng.sample(range(len(firsts)), 2)))
    if below is not None and rng.random() < 0.3:
        low = None
    bounds = [(sign, each) for sign, each in ((">=", low), ("<", below)) if each is not None]
    within = " AND ".join(f"`{name}` {sign} %s" for sign, _ in bounds for name, _ in key[:1])
    asked.append((within, [v for _, each in bounds for v in values([each])], Predicate(low=low, below=below)))
    restored, wrong = 0, []
    for condition, said, where in asked:
        connection.execute("DROP DATABASE IF EXISTS `some`")
        try:
            restore(called="some.rows", where=where, anew=True)
        except (UsageError, LoadError) as error:
            if not re.search(_REFUSED, error.message):
                wrong.append(f"{copy} {where} stopped: {type(error).__name__}: {error.message}")
            continue
        wanted = Counter(connection.query(f"SELECT * FROM `{db}`.`{table}` WHERE {condition}", said))
        found = Counter(connection.query("SELECT * FROM `some`.`rows`"))
        if found != wanted:
            wrong.append(f"{copy} {where}: missing {wanted - found}, too many {found - wanted}")
        restored += 1
    return restored, wrong


def _typed(name: str, kind: str) -> str:
    """As somebody types a value of a column: an expression of the server."""
    if kind in _BINARY:
        return f"CONCAT('0x', HEX({name}))"
    return f"CAST({f'{name} + 0' if kind == 'bit' else name} AS CHAR)"


def _by_key(rows: Sequence[Sequence[str]]) -> Predicate:
    """As somebody types them: a key of several columns is a line of CSV."""
    lines = []
    for row in rows:
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(row)
        lines.append(line.getvalue() if len(row) > 1 else row[0])
    return Predicate(keys=tuple(lines))
