"""Compare two MySQL servers: schemas, tables, columns, then every row of every table.

Rows are compared as multisets of whole rows, which serves tables with and without a key alike: by checksums in SQL,
many chunks of a table at once, and what differs by them row by row (`pumphouse.diff.chunks`). Both servers must stand
still meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from pumphouse.diff.chunks import Compared, Comparer
from pumphouse.diff.fix import FixFile
from pumphouse.diff.servers import Pair, dialect_of, pairs, rows, text, value
from pumphouse.diff.sides import Side, in_rows, range_key
from pumphouse.diff.structure import Both, read_structure, unseen_of, users_of
from pumphouse.diff.tables import Table, describe, others_of, tables_of, without_virtual
from pumphouse.errors import UsageError
from pumphouse.mysql import ServerConnection
from pumphouse.mysql.dsn import Dsn
from pumphouse.schema.dialect import Dialect

SYSTEM_SCHEMAS = frozenset({"mysql", "information_schema", "performance_schema", "sys", "metrics_schema"})
# Bookkeeping on a target.
OWN_SCHEMAS = frozenset({"pumphouse"})
# Names in one note.
_SHOWN = 5
# Schema and table.
_Name = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that differs; ``side`` is where a row is, for rows.

    ``kind``: schema, table, columns, keys, foreign keys, triggers, views, rows or row.
    """

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
    lacks: list[str] = field(default_factory=list)
    """What the source has and no copy gets."""

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


def compare(
    source: Dsn,
    target: Dsn,
    *,
    schemas: Mapping[str, str] | None = None,
    ignore: Collection[str] = (),
    own: Collection[str] = (),
    views: bool = True,
    first: int = 5,
    connections: int = 2,
    fix: FixFile | None = None,
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
        first: rows to name on each side, for each table that differs.
        connections: sessions on each server.
        fix: where to write what makes the rows of the target equal to those of the source.
        progress: is called with the name of each table.
        routed: schema and table -> where they are in the target; schemas are then names of the source alone, and one
            that is in the target only is nothing that differs.

    Raises:
        UsageError: a schema is named that neither server has, or neither has any.
    """
    report = DiffReport()
    with pairs(source, target, connections) as sessions:
        left, right = sessions[0].source, sessions[0].target
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
            if schemas is None:
                schemas, alone = _schemas_of_both(names, fold)
            else:
                schemas = {name: to if to in known[1] else places.get(fold(to), to) for name, to in schemas.items()}
                alone = [(name, "source") for name, to in schemas.items() if to not in known[1]]
                alone += [(to, "target") for name, to in schemas.items() if name not in known[0]]
            for name, where in alone:
                report.differences.append(Difference(kind="schema", table=name, detail=f"only in the {where}"))
        if not (schemas or report.differences):
            raise UsageError(
                "there is nothing to compare: neither server has a schema of its own",
                hint="check --source and --target; does the user see the schemas?",
            )

        where_to = _Places(schemas=schemas, known=known[1], places=places, fold=fold, routed=routed)
        place = where_to.place
        tables = {(schema, name): t for schema in schemas for name, t in tables_of(left, schema, views=views).items()}
        theirs_of = {place((schema, ""))[0]: schema for schema in schemas}
        within = theirs_of.keys() | {place(name)[0] for name in tables}
        found = {(schema, name): t for schema in within for name, t in tables_of(right, schema, views=views).items()}
        where_to.names |= {(schema, fold(name)): (schema, name) for schema, name in found}
        both = {name: (table, place(name)) for name, table in tables.items()}
        wanted = {there for _, there in both.values()}
        gone = set() if routed is not None else {to for to in schemas.values() if to not in known[1]}
        missing = [(name, "source") for name, (_, there) in both.items() if there not in found and there[0] not in gone]
        # In a schema that only tables are routed to may lie those of schemas that are not compared now.
        more = [there for there in found if there not in wanted and (everything or there[0] in theirs_of)]
        missing += [((theirs_of[schema] if routed is None else schema, name), "target") for schema, name in more]
        for table, where in sorted(missing):
            report.differences.append(Difference(kind="table", table=".".join(table), detail=f"only in the {where}"))
        dialects = dialect_of(left), dialect_of(right)
        structures = Both(
            source=read_structure(left, schemas, tables, dialects[0]),
            target=read_structure(right, within, found, dialects[1]),
            place=place,
            fold=fold,
            same_kind=dialects[0] is dialects[1],
            prefixes=Dialect.TIDB not in dialects,
        )
        _compare_structures(structures, both, found, report)
        for side, connection, dialect, names_ in (
            ("source", left, dialects[0], schemas),
            ("target", right, dialects[1], within),
        ):
            report.notes += _not_compared(connection, side, dialect, names_)
        if everything:
            _compare_users(left, right, dialects, report)
        _compare_tables(sessions, dialects, both, found, report, first=first, fix=fix, progress=progress)
    _end(report, fix)
    return report


def _schemas_of_both(
    names: tuple[set[str], set[str]], fold: Callable[[str], str]
) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Schema of the source -> that of the target; and those of one side only."""
    theirs = {fold(name): name for name in sorted(names[1])}
    # Two that differ in case alone are one to a server that folds it: each is compared with that one.
    schemas = {
        name: name if name in names[1] else theirs[fold(name)] for name in sorted(names[0]) if fold(name) in theirs
    }
    alone = [(name, "source") for name in names[0] - schemas.keys()]
    alone += [(name, "target") for name in names[1].difference(schemas.values())]
    return schemas, sorted(alone)


@dataclass(slots=True, kw_only=True)
class _Places:
    """Where tables of the source are in the target; ``names``: what they are called there, by what they fold to."""

    schemas: Mapping[str, str]
    known: Collection[str]
    places: Mapping[str, str]
    fold: Callable[[str], str]
    routed: Callable[[str, str], _Name] | None
    names: dict[_Name, _Name] = field(default_factory=dict)

    def place(self, name: _Name) -> _Name:
        """Schema and table there, of a table ('' = of the schema itself); of one that is not compared, its own name."""
        if name[0] not in self.schemas:
            return name
        db, table = (self.schemas[name[0]], name[1]) if self.routed is None else self.routed(*name)
        there = db if db in self.known else self.places.get(self.fold(db), db)
        return self.names.get((there, self.fold(table)), (there, table))


def _end(report: DiffReport, fix: FixFile | None) -> None:
    """UsageError where nothing was compared; the statements are put together."""
    if not report.tables and report.equal:
        raise UsageError(
            "there is nothing to compare: the schemas have no tables", hint="check --schema, --source and --target"
        )
    if fix is not None:
        for each in report.differences:
            if each.kind == "columns":
                fix.note(f"not in this file, nor any row of it: {each.table}: columns: {each.detail}")
            elif each.kind not in ("rows", "row"):
                fix.note(f"not in this file: {each.table}: {each.kind}: {each.detail}")
        fix.end()


def _lower(name: str) -> str:
    return name.lower()


def _same(name: str) -> str:
    return name


def _folds(connection: ServerConnection) -> bool:
    """Whether the server takes names that differ in case for one."""
    return value(connection, "SELECT @@lower_case_table_names") != "0"


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


def user_schemas(connection: ServerConnection, ignore: Collection[str] = ()) -> set[str]:
    """Names of the schemas that are neither the system's nor our own."""
    return {name for name in _schemas(connection) if name.lower() not in OWN_SCHEMAS} - set(ignore)


def _schemas(connection: ServerConnection) -> set[str]:
    found = list(rows(connection, "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA"))
    return {name for (each,) in found if (name := text(each)).lower() not in SYSTEM_SCHEMAS}


def _compare_structures(
    structures: Both, pairs_of: Mapping[_Name, tuple[Table, _Name]], found: Mapping[_Name, Table], report: DiffReport
) -> None:
    for name, (table, there) in sorted(pairs_of.items(), key=lambda each: each[0]):
        if there not in found or table.base is not found[there].base:
            continue
        for kind, told in (structures.of_table if table.base else structures.of_view)(name, there):
            if kind == "lacks":
                report.lacks.append(f"{'.'.join(name)}: {told}")
            else:
                report.differences.append(Difference(kind=kind, table=".".join(name), detail=told))
    for name, kind, told in structures.of_triggers():
        if kind == "lacks":
            report.lacks.append(told)
        else:
            report.differences.append(Difference(kind=kind, table=".".join(name), detail=told))
    report.lacks += structures.of_others()


def _not_compared(connection: ServerConnection, side: str, dialect: Dialect, schemas: Collection[str]) -> list[str]:
    others = [each for schema in sorted(schemas) for each in others_of(connection, schema)]
    named = [f"not compared in the {side}: {_some(others)}"] * bool(others)
    return [*unseen_of(connection, side, dialect, schemas), *named]


def _compare_users(
    left: ServerConnection, right: ServerConnection, dialects: tuple[Dialect, Dialect], report: DiffReport
) -> None:
    ours, theirs = users_of(left, dialects[0]), users_of(right, dialects[1])
    if ours is None or theirs is None:
        report.notes.append("users are not compared: who compares may not read mysql.user on both servers")
    else:
        report.lacks += [f"user {each}" for each in sorted(ours - theirs)]


def _compare_tables(
    sessions: list[Pair],
    dialects: tuple[Dialect, Dialect],
    pairs_of: Mapping[_Name, tuple[Table, _Name]],
    found: Mapping[_Name, Table],
    report: DiffReport,
    *,
    first: int,
    fix: FixFile | None,
    progress: Callable[[str], None],
) -> None:
    """``pairs_of``: tables of the source, and where they are there; ``found``: what is in those schemas there."""
    columns, compared, slow = dict[str, str](), list[Compared](), dict[str, list[str]]()
    for name, (whole, there) in sorted(pairs_of.items(), key=lambda each: each[0]):
        if there not in found:
            continue
        b, title = found[there], ".".join(name)
        if there[1].lower() != name[1].lower():
            title += f" ({'.'.join(there)} in the target)"
        report.tables += 1
        a, absent = without_virtual(whole, b)
        if absent:
            report.notes.append(f"{title}: not compared, because VIRTUAL and not in the target: {', '.join(absent)}")
        columns[title] = describe(a, b, dialects[1])
        if not (a.columns or b.columns):
            report.notes.append(f"{title}: not compared, because the view reads what is not there")
        elif [c.name for c in a.columns] == [c.name for c in b.columns]:
            key, why = range_key(a, b), in_rows(a, b, dialects)
            slow.setdefault(why, []).append(title)
            sides = (
                Side(*name, a, b, dialects[0], key=key, in_sql=not why),
                Side(*there, b, a, dialects[1], key=key, in_sql=not why),
            )
            # A value of another column's type is another value there.
            fixed = fix if a.base and not columns[title] else None
            compared.append(Compared(title=title, sides=sides, key=key, first=first, fix=fixed))
    slow.pop("", None)
    report.notes += [f"compared row by row, because {why}: {_some(titles)}" for why, titles in sorted(slow.items())]
    Comparer(sessions, progress).run(compared)
    by_title = {table.title: table for table in compared}
    for title, told in columns.items():
        if told:
            report.differences.append(Difference(kind="columns", table=title, detail=told))
        table = by_title.get(title)
        if table is None:
            continue
        report.rows += table.rows[0]
        if table.differs:
            detail = f"{table.rows[0]} rows in the source, {table.rows[1]} in the target"
            report.differences.append(Difference(kind="rows", table=title, detail=detail))
            report.differences += [
                Difference(kind="row", table=title, detail=shown, side=side)
                for side, named in zip(("source", "target"), table.found, strict=True)
                for _, _, shown in named
            ]


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
