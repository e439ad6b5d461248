"""What the tables of a server hold, kept to be held against another server later: by the comparer's rules of what a row is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from pymysql.converters import encoders
from pymysql.cursors import SSCursor

from pumphouse.diff.rows import encoder, quote, row_digest, select_expression
from pumphouse.diff.servers import Row, dialect_of, rows
from pumphouse.diff.tables import Table, describe, tables_of, without_virtual
from pumphouse.mysql import DUMP, ServerConnection, connect
from pumphouse.mysql.dsn import Dsn
from pumphouse.schema.dialect import Dialect

_SHOWN = 3


@dataclass(slots=True)
class Image:
    """Tables of some databases and all their rows, as the server printed them."""

    dialect: Dialect
    tables: dict[str, Table] = field(default_factory=dict)
    rows: dict[str, list[Row]] = field(default_factory=dict)


@contextmanager
def looker(dsn: Dsn) -> Iterator[ServerConnection]:
    """A session that reads values as the server prints them, in UTC."""
    with closing(connect(dsn.server, DUMP, "source", conv=encoders, use_unicode=False, cursorclass=SSCursor)) as made:
        yield made


def image(connection: ServerConnection, databases: Sequence[str]) -> Image:
    """Everything that the server has of these databases now; nothing may change meanwhile."""
    found = Image(dialect_of(connection))
    for database in databases:
        for name, table in tables_of(connection, database, views=False).items():
            title = f"{database}.{name}"
            # A VIRTUAL column may be missing on a target, and is in no binlog.
            fields = ", ".join(select_expression(column) for column in table.columns)
            found.tables[title] = table
            found.rows[title] = list(rows(connection, f"SELECT {fields} FROM {quote(database)}.{quote(name)}"))
    return found


def differences(kept: Image, there: Image) -> list[str]:
    """What differs between a source and a server that was made from its archive."""
    told = [f"{name}: only in the source" for name in kept.tables.keys() - there.tables.keys()]
    told += [f"{name}: only in the target" for name in there.tables.keys() - kept.tables.keys()]
    for name in sorted(kept.tables.keys() & there.tables.keys()):
        whole, table = kept.tables[name], there.tables[name]
        ours, _ = without_virtual(whole, table)
        if why := describe(ours, table, there.dialect):
            told.append(f"{name}: {why}")
        if [each.name for each in ours.columns] != [each.name for each in table.columns]:
            continue
        places = [at for at, column in enumerate(whole.columns) if column in ours.columns]
        as_json = [x.json or y.json for x, y in zip(ours.columns, table.columns, strict=True)]
        codes = [encoder(each, as_json=json) for each, json in zip(ours.columns, as_json, strict=True)]
        theirs = [encoder(each, as_json=json) for each, json in zip(table.columns, as_json, strict=True)]
        left = {row_digest(row, codes): row for row in (tuple(r[at] for at in places) for r in kept.rows[name])}
        right = {row_digest(row, theirs): row for row in there.rows[name]}
        count = Counter(row_digest(tuple(row[at] for at in places), codes) for row in kept.rows[name])
        count.subtract(row_digest(row, theirs) for row in there.rows[name])
        names = [each.name for each in ours.columns]
        wrong = [(digest, number) for digest, number in count.items() if number]
        for digest, number in wrong[:_SHOWN]:
            row = left.get(digest) or right[digest]
            where = "source" if number > 0 else "target"
            told.append(f"{name}: {abs(number)} more in the {where}: {dict(zip(names, row, strict=True))}")
    return told
