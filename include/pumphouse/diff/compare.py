"""Compare two MySQL servers: schemas, tables, columns, then every row of every table.

Rows are compared as multisets of whole rows, which serves tables with and without a key alike. A first pass adds up
16-byte digests of the rows on each side (constant memory); only a table whose sums differ is read again to name rows.
Both servers must stand still meanwhile: each side is read in one consistent snapshot.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace

from pymysql.converters import encoders
from pymysql.cursors import Cursor, SSCursor

from pumphouse.diff.rows import Column, Encode, encoder, quote, row_digest, select_expression
from pumphouse.errors import SchemaError, UsageError
from pumphouse.mysql import DUMP, ServerConnection, connect
from pumphouse.mysql.dsn import Dsn
from pumphouse.schema.dialect import Dialect, charset_sql

SYSTEM_SCHEMAS = frozenset({"mysql", "information_schema", "performance_schema", "sys", "metrics_schema"})
# Bookkeeping on a target.
OWN_SCHEMAS = frozenset({"pumphouse"})
_MODULUS = 1 << 128
# Schema and table.
_Name = tuple[str, str]
_DISPLAY_WIDTH = re.compile(r"^((?:tiny|small|medium|big)?int|year)\(\d+\)")
_JSON_CHECK = re.compile(r"json_valid\(`((?:[^`]|``)+)`\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that differs. ``kind``: schema, table, columns, rows or row; ``side`` is where a row is, for rows."""

    kind: str
    table: str
    detail: str
    side: str = ""


@dataclass(slots=True, kw_only=True)
class DiffReport:
    """Outcome of a comparison."""

    tables: int = 0
    rows: int = 0
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    columns: tuple[Column, ...]
    base: bool


def compare(
    source: Dsn,
    target: Dsn,
    *,
    schemas: Mapping[str, str] | None = None,
    ignore: Collection[str] = (),
    own: Collection[str] = (),
    views: bool = True,
    first: int = 5,
    progress: Callable[[str], None] = lambda _: None,
    routed: Callable[[str, str], tuple[str, str]] | None = None,
) -> DiffReport:
    """Compare everything, or the given schemas (source name -> target name).

    Args:
        source: one server.
        target: the other.
        schemas: names to compare; None = all but the system's, our own and those in ignore.
        ignore: schemas to leave out when ``schemas`` is None.
        own: and those of restores of parts, in lower case, which a note names.
        views: whether views are compared as well.
        first: rows to name for each table that differs.
        progress: is called with the name of each table.
        routed: schema and table -> where they are in the target; schemas are then names of the source alone, and one
            that is in the target only is nothing that differs.

    Raises:
        UsageError: a schema is named that neither server has, or neither has any.
    """
    report = DiffReport()
    with closing(_connect(source, "source")) as left, closing(_connect(target, "target")) as right:
        everything = schemas is None
        known = _schemas(left), _schemas(right)
        report.notes += [
            f"--ignore {each}: neither server has it" for each in ignore if each not in known[0] | known[1]
        ]
        parts = {each for each in known[0] | known[1] if each.lower() in own}
        if everything:
            report.notes += [f"left out: {each}, in which restores of tables are made" for each in sorted(parts)]
        # A server that folds case has a name of the source in lower case; so either side may find the other's.
        fold = _lower if _folds(left) or _folds(right) else _same
        places = {fold(name): name for name in sorted(known[1])}
        if schemas is not None:
            _require_known(schemas, known, fold, routed)
        names = user_schemas(left, {*ignore, *parts}), user_schemas(right, {*ignore, *parts})
        if routed is not None:
            schemas = dict.fromkeys(sorted(names[0]) if schemas is None else schemas, "")
        else:
            theirs = {fold(name): name for name in sorted(names[1])}
            if schemas is None:
                # Two that differ in case alone are one to a server that folds it: each is compared with that one.
                schemas = {
                    name: name if name in names[1] else theirs[fold(name)]
                    for name in sorted(names[0])
                    if fold(name) in theirs
                }
                alone = [(name, "source") for name in names[0] - schemas.keys()]
                alone += [(name, "target") for name in names[1].difference(schemas.values())]
                alone.sort()
            else:
                there = {name: to if to in known[1] else places.get(fold(to), to) for name, to in schemas.items()}
                alone = [(name, "source") for name, to in there.items() if to not in known[1]]
                alone += [(to, "target") for name, to in there.items() if name not in known[0]]
                schemas = there
            for name, where in alone:
                report.differences.append(Difference(kind="schema", table=name, detail=f"only in the {where}"))
        if not (schemas or report.differences):
            raise UsageError(
                "there is nothing to compare: neither server has a schema of its own",
                hint="check --source and --target; does the user see the schemas?",
            )

        def place(schema: str, name: str) -> _Name:
            db, table = (schemas[schema], name) if routed is None else routed(schema, name)
            return db if db in known[1] else places.get(fold(db), db), table

        tables = {(schema, name): t for schema in schemas for name, t in _tables(left, schema, views=views).items()}
        own = {place(schema, "")[0]: schema for schema in schemas}
        within = own.keys() | {place(*name)[0] for name in tables}
        found = {(schema, name): t for schema in within for name, t in _tables(right, schema, views=views).items()}
        index = {(schema, fold(name)): (schema, name) for schema, name in found}

        def actual(there: _Name) -> _Name:
            return index.get((there[0], fold(there[1])), there)

        pairs = {name: (table, actual(place(*name))) for name, table in tables.items()}
        wanted = {there for _, there in pairs.values()}
        gone = set() if routed is not None else {to for to in schemas.values() if to not in known[1]}
        missing = [
            (name, "source") for name, (_, there) in pairs.items() if there not in found and there[0] not in gone
        ]
        # In a schema that only tables are routed to may lie those of schemas that are not compared now.
        more = [there for there in found if there not in wanted and (everything or there[0] in own)]
        missing += [((own[schema] if routed is None else schema, name), "target") for schema, name in more]
        for table, where in sorted(missing):
            report.differences.append(Difference(kind="table", table=".".join(table), detail=f"only in the {where}"))
        _compare_tables(left, right, pairs, found, report, first=first, progress=progress)
    return report


def _lower(name: str) -> str:
    return name.lower()


def _same(name: str) -> str:
    return name


def _folds(connection: ServerConnection) -> bool:
    """Whether the server takes names that differ in case for one."""
    return _text(next(iter(list(_rows(connection, "SELECT @@lower_case_table_names"))))[0]) != "0"


def _require_known(
    schemas: Mapping[str, str],
    known: tuple[Collection[str], Collection[str]],
    fold: Callable[[str], str],
    routed: Callable[[str, str], tuple[str, str]] | None,
) -> None:
    """UsageError for a schema that neither side has: nothing is equal because nobody has it."""
    sides = [{fold(name) for name in side} for side in known]
    for ours, to in schemas.items():
        theirs = to if routed is None else routed(ours, "")[0]
        if fold(ours) not in sides[0] and fold(theirs) not in sides[1]:
            raise UsageError(
                f"neither server has a schema {ours}" + f" or {theirs}" * (theirs != ours),
                hint=f"the source has {', '.join(sorted(known[0])) or 'none'}",
            )


def _connect(dsn: Dsn, side: str) -> ServerConnection:
    # No converters for what is read and no decoding: values arrive as the bytes that the server printed.
    connection = connect(dsn.server, DUMP, side, conv=encoders, use_unicode=False, cursorclass=SSCursor)
    with connection.cursor(Cursor) as cursor:
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    return connection


def _rows(connection: ServerConnection, sql: str, *values: str) -> Iterator[tuple[bytes | None, ...]]:
    with closing(connection.cursor()) as cursor, connection.making_sense():
        cursor.execute(sql, values or None)
        while batch := cursor.fetchmany(1000):
            yield from batch


def _text(value: bytes | str | None) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")


def user_schemas(connection: ServerConnection, ignore: Collection[str] = ()) -> set[str]:
    """Names of the schemas that are neither the system's nor our own."""
    return {name for name in _schemas(connection) if name.lower() not in OWN_SCHEMAS} - set(ignore)


def _schemas(connection: ServerConnection) -> set[str]:
    rows = list(_rows(connection, "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA"))
    return {name for (value,) in rows if (name := _text(value)).lower() not in SYSTEM_SCHEMAS}


def _json_checked(connection: ServerConnection, schema: str) -> set[tuple[str, str]]:
    """MariaDB keeps JSON as LONGTEXT with a check; MySQL and TiDB have a type, and may lack the view."""
    named = "SELECT COUNT(*) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'information_schema' "
    named += "AND TABLE_NAME = 'CHECK_CONSTRAINTS' AND COLUMN_NAME = 'TABLE_NAME'"
    if _text(next(iter(list(_rows(connection, named))))[0]) == "0":
        return set()
    sql = "SELECT TABLE_NAME, CHECK_CLAUSE FROM information_schema.CHECK_CONSTRAINTS WHERE CONSTRAINT_SCHEMA = %s"
    found = set()
    for table, clause in list(_rows(connection, sql, schema)):
        for name in _JSON_CHECK.findall(_text(clause)):
            found.add((_text(table), name.replace("``", "`")))
    return found


def _tables(connection: ServerConnection, schema: str, *, views: bool) -> dict[str, _Table]:
    sql = "SELECT TABLE_NAME, TABLE_TYPE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s"
    kinds = {_text(name): _text(kind) for name, kind in list(_rows(connection, sql, schema))}
    checked = _json_checked(connection, schema)
    columns: dict[str, list[Column]] = {name: [] for name in kinds}
    sql = (
        "SELECT TABLE_NAME, COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, CHARACTER_SET_NAME, COLLATION_NAME, EXTRA "
        "FROM information_schema.COLUMNS "
        "WHERE TABLE_SCHEMA = %s ORDER BY TABLE_NAME, ORDINAL_POSITION"
    )
    for table, name, data_type, full, charset, collation, extra in list(_rows(connection, sql, schema)):
        kind = _text(data_type).lower()
        is_json = kind == "json" or (_text(table), _text(name)) in checked
        columns[_text(table)].append(
            Column(
                name=_text(name),
                data_type=kind,
                type="json" if is_json else _DISPLAY_WIDTH.sub(r"\1", _text(full)),
                json=is_json,
                charset=_text(charset),
                collation=_text(collation).replace("utf8mb3_", "utf8_"),
                virtual="VIRTUAL GENERATED" in _text(extra).upper(),
            )
        )
    return {
        name: _Table(columns=tuple(columns[name]), base=kind == "BASE TABLE")
        for name, kind in kinds.items()
        if kind == "BASE TABLE" or (views and kind == "VIEW")
    }


def _compare_tables(
    left: ServerConnection,
    right: ServerConnection,
    pairs: Mapping[_Name, tuple[_Table, _Name]],
    found: Mapping[_Name, _Table],
    report: DiffReport,
    *,
    first: int,
    progress: Callable[[str], None],
) -> None:
    """``pairs``: tables of the source, and where they are in the target; ``found``: what is in those schemas there."""
    version = _text(next(iter(list(_rows(right, "SELECT VERSION()"))))[0])
    for name, (whole, there) in sorted(pairs.items(), key=lambda each: each[0]):
        if there not in found:
            continue
        b = found[there]
        title = ".".join(name)
        if there[1].lower() != name[1].lower():
            title += f" ({'.'.join(there)} in the target)"
        progress(title)
        report.tables += 1
        there_too = {column.name.lower() for column in b.columns}
        absent = [column.name for column in whole.columns if column.virtual and column.name.lower() not in there_too]
        a = replace(whole, columns=tuple(column for column in whole.columns if column.name not in absent))
        if absent:
            report.notes.append(f"{title}: not compared, because VIRTUAL and not in the target: {', '.join(absent)}")
        told = _describe(a, b, Dialect.of_version(version))
        if told:
            report.differences.append(Difference(kind="columns", table=title, detail=told))
        if [c.name for c in a.columns] != [c.name for c in b.columns]:
            continue
        sides = _Side(left, *name, a, b), _Side(right, *there, b, a)
        counts = sides[0].sum(), sides[1].sum()
        report.rows += counts[0][0]
        if counts[0] != counts[1]:
            detail = f"{counts[0][0]} rows in the source, {counts[1][0]} in the target"
            report.differences.append(Difference(kind="rows", table=title, detail=detail))
            report.differences += _name_rows(title, *sides, first=first)


def _describe(a: _Table, b: _Table, dialect: Dialect) -> str:
    if a.base != b.base:
        return "a table on one side, a view on the other"
    names = [c.name for c in a.columns], [c.name for c in b.columns]
    if names[0] != names[1]:
        return f"source ({', '.join(names[0])}), target ({', '.join(names[1])})"
    pairs = list(zip(a.columns, b.columns, strict=True))
    told = [f"{x.name} is {x.type} in the source, {y.type} in the target" for x, y in pairs if x.type != y.type]
    if a.base:
        told += [
            f"{x.name} is {x.collation or 'binary'} in the source, {y.collation or 'binary'} in the target"
            for x, y in pairs
            if not (x.json or y.json) and y.collation not in (x.collation, _twin(x, dialect))
        ]
    return "; ".join(told)


def _twin(column: Column, dialect: Dialect) -> str:
    """The collation that a load gives a column where the target has not the source's."""
    if not column.charset or dialect is Dialect.TIDB:
        return column.collation
    try:
        return charset_sql(dialect, column.charset, column.collation).split()[-1].replace("utf8mb3_", "utf8_")
    except SchemaError:
        return column.collation


class _Side:
    """One table on one server, read as digests or as rows."""

    def __init__(self, connection: ServerConnection, schema: str, name: str, table: _Table, other: _Table) -> None:
        self.connection = connection
        self.columns = table.columns
        self.encoders: list[Encode | None] = [
            encoder(x, as_json=x.json or y.json) for x, y in zip(table.columns, other.columns, strict=True)
        ]
        fields = ", ".join(select_expression(column) for column in table.columns)
        self.sql = f"SELECT {fields} FROM {quote(schema)}.{quote(name)}"  # noqa: S608 - names are quoted

    def sum(self) -> tuple[int, int]:
        """Number of rows and the sum of their digests: equal for equal multisets, whatever the order."""
        count = total = 0
        for row in _rows(self.connection, self.sql):
            count += 1
            total += int.from_bytes(row_digest(row, self.encoders), "little")
        return count, total % _MODULUS

    def digests(self) -> Counter[bytes]:
        """Digest -> how often."""
        return Counter(row_digest(row, self.encoders) for row in _rows(self.connection, self.sql))

    def find(self, wanted: Counter[bytes], first: int) -> list[str]:
        """The first rows whose digests are wanted, printed."""
        left = wanted.copy()
        found: list[str] = []
        for row in _rows(self.connection, self.sql):
            key = row_digest(row, self.encoders)
            if left[key] > 0 and len(found) < first:
                left[key] -= 1
                found.append(self._show(row))
        return found

    def _show(self, row: tuple[bytes | None, ...]) -> str:
        cells = []
        for column, value in zip(self.columns, row, strict=True):
            cells.append(f"{column.name}={'NULL' if value is None else _shown(value)}")
        return ", ".join(cells)


def _shown(value: bytes) -> str:
    """Text as it is, anything else as bytes."""
    try:
        text = value.decode()
        return repr(text[:40]) + "…" * (len(text) > 40)
    except UnicodeDecodeError:
        return repr(value[:40])[1:] + "…" * (len(value) > 40)


def _name_rows(title: str, left: _Side, right: _Side, *, first: int) -> list[Difference]:
    ours, theirs = left.digests(), right.digests()
    found: list[Difference] = []
    for side, name, wanted in ((left, "source", ours - theirs), (right, "target", theirs - ours)):
        found += [Difference(kind="row", table=title, detail=text, side=name) for text in side.find(wanted, first)]
    return found
