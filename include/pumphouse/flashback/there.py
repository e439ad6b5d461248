"""A table as the server has it: how its values are compared and written in SQL, and why its rows cannot be put back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pumphouse.codec.datum import Kind, kind_of
from pumphouse.errors import LoadError
from pumphouse.flashback.plan import Subject
from pumphouse.loader.grants import missing_privileges
from pumphouse.loader.target import TargetConnection
from pumphouse.loader.unfit import require_transactional, triggers_of
from pumphouse.model.table import ColumnInfo, MysqlType
from pumphouse.proof.archived import scaled
from pumphouse.proof.forms import Form, proven
from pumphouse.proof.readable import of_server
from pumphouse.proof.servers import ColumnThere, columns_there
from pumphouse.proof.sides import actual
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.ident import literal, qualified, quote
from pumphouse.schema.route import Routes

# MariaDB has JSON_EQUALS from here on.
_JSON_EQUALS = (10, 7)
_FOREIGN_KEYS = (
    "SELECT table_schema, table_name, constraint_name, column_name, referenced_table_schema,"
    " referenced_table_name, referenced_column_name FROM information_schema.key_column_usage"
    " WHERE (referenced_table_schema = %s AND referenced_table_name = %s)"
    " OR (table_schema = %s AND table_name = %s AND referenced_table_name IS NOT NULL)"
)
# Of a foreign key to another database, a TiDB names the child's own, in which there may be no such table.
_STRAYS = (
    "(referenced_table_name = %s AND (referenced_table_schema, referenced_table_name) NOT IN"
    " (SELECT table_schema, table_name FROM information_schema.tables))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A column that images have.

    Args:
        name: as the server spells it, quoted.
        info: as the source has it.
        kind: how images hold its values.
        form: how values are compared; ``scale``: digits behind the point of a `FIXED` one.
        readable: SQL of its value, for people.
        json: condition that it has a JSON value, with places for the column and the text; '' of others.
        stamped: an UPDATE that does not name it changes it.
    """

    name: str
    info: ColumnInfo
    kind: Kind
    form: Form
    scale: int
    readable: str
    json: str = ""
    stamped: bool = False

    def literal(self, value: Any) -> str:
        """A value of an image, as SQL that the column takes as that value."""
        if value is None:
            return "NULL"
        kind, elems = self.kind, self.info.type.elems
        if kind is Kind.ENUM and 0 < value <= len(elems):
            return literal(elems[value - 1])
        if kind is Kind.SET and value < 1 << len(elems):
            return literal(",".join(each for at, each in enumerate(elems) if value >> at & 1))
        if isinstance(value, bytes):
            return _text(value) if self.form is Form.TEXT else f"X'{value.hex()}'"
        if isinstance(value, float):
            shown = repr(value)
            return shown if "e" in shown else f"{shown}e0"
        return literal(value) if isinstance(value, str) and kind is not Kind.DECIMAL else str(value)

    def same(self, value: Any) -> str:
        """Condition: the column has exactly this value."""
        name, text = self.name, self.literal(value)
        if value is None:
            return f"{name} IS NULL"
        if self.json:
            return self.json.format(name, text)
        if text[0] == "'" and self.form in (Form.TEXT, Form.UNSIGNED):  # an ENUM's or a SET's is text, too
            name = f"CAST(CONVERT({name} USING utf8mb4) AS BINARY)"
        elif self.form is Form.TEXT:
            name = f"CAST({name} AS BINARY)"
        elif self.form is Form.FIXED and self.kind is not Kind.DECIMAL:
            name, text = f"CAST({name} AS CHAR)", literal(scaled(value, self.scale))
        elif self.form is Form.REAL:
            name = f"{name} + 0e0"
        elif self.info.type.tp == MysqlType.YEAR:  # 0 would be the year 2000
            name = f"{name} + 0"
        return f"{name} = {text}"

    def find(self, value: Any) -> str:
        """Condition that an index serves: no row with exactly this value is left out."""
        if self.form is Form.REAL or self.info.type.tp == MysqlType.YEAR:
            return self.same(value)
        return f"{self.name} = {self.literal(value)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A foreign key of another table's rows, or of its own: ``columns`` there -> columns of the table it refers to."""

    child: tuple[str, str]
    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableThere:
    """A table of a flashback on the server.

    Args:
        subject: it, in the archive.
        place: its (database, name) there.
        cells: columns of its images, by their names in these.
        unique: columns of its other unique keys, by the same names.
        references: what refers to its rows.
        parents: tables that its rows refer to.
    """

    subject: Subject
    place: tuple[str, str]
    cells: Mapping[str, Cell]
    unique: tuple[tuple[str, ...], ...] = ()
    references: tuple[Reference, ...] = ()
    parents: tuple[tuple[str, str], ...] = ()

    @property
    def collated(self) -> tuple[str, ...]:
        """Columns of its key that have text, of which a server may hold several for one."""
        return tuple(name for name in self.subject.key if self.cells[name].form is Form.TEXT)

    @property
    def target(self) -> str:
        """Quoted, qualified."""
        return qualified(*self.place)


def look_at(
    connection: TargetConnection, subjects: Sequence[Subject], routes: Routes
) -> tuple[dict[int, TableThere], dict[str, str]]:
    """The tables as the server has them, by id; and of others why their rows cannot be put back, by name."""
    places = {each.name: routes.table(*each.version.name) for each in subjects}
    there = columns_there(connection, [db for db, _ in places.values()])
    blind = not _sees_all(connection)
    found, problems = {}, {}
    for subject in subjects:
        place = actual(places[subject.name], there)
        if place is None:
            problems[subject.name] = f"the server has no table {'.'.join(places[subject.name])}"
            continue
        cells, wrong = _cells(connection, subject, place, there[place])
        wrong += list(_unfit(connection, subject, place))
        references, parents = _foreign_keys(connection, place, cells)
        wrong += [
            f"the foreign key of {'.'.join(each.child)} refers to a column of it that is generated, which has no image"
            for each in references
            if any(not own for _, own in each.columns)
        ]
        if blind:
            wrong.append(
                f"user {connection.settings.user} does not see the tables of every database, whose foreign keys may "
                "refer to its rows: grant it SELECT ON *.* there"
            )
        if wrong:
            problems[subject.name] = "; ".join(wrong)
            continue
        found[subject.version.table.id] = TableThere(
            subject=subject,
            place=place,
            cells=cells,
            unique=tuple(each for each in _unique(connection, place, cells) if set(each) != set(subject.key)),
            references=references,
            parents=parents,
        )
    return found, problems


def _sees_all(connection: TargetConnection) -> bool:
    """Whether this user sees the tables of every database, and so every foreign key."""
    grants = [str(row[0]) for row in connection.query("SHOW GRANTS")]
    partly = any(each.upper().startswith("REVOKE ") for each in grants)
    return not partly and not missing_privileges(grants, "", ("SELECT",))  # '' fits what fits every name


def _cells(
    connection: TargetConnection, subject: Subject, place: tuple[str, str], there: Sequence[ColumnThere]
) -> tuple[dict[str, Cell], list[str]]:
    by_name = {each.name.lower(): each for each in there}
    stamped = {
        str(name).lower()
        for (name,) in connection.query(
            "SELECT column_name FROM information_schema.columns"
            " WHERE table_schema = %s AND table_name = %s AND LOWER(extra) LIKE '%%on update%%'",
            place,
        )
    }
    json = _json(connection)
    cells, wrong = {}, []
    for column in subject.version.table.public_columns:
        at = by_name.pop(column.name.lower(), None)
        if column.generated:
            if at is not None and not at.computed:
                wrong.append(f"its generated column {column.name} is a plain one there, whose value no binlog has")
            continue
        if at is None or at.computed:
            wrong.append(f"its column {column.name} is {'generated' if at else 'not there'}")
            continue
        is_json = kind_of(column.type) is Kind.JSON
        how = proven(column, Dialect.MARIADB)  # of a MySQL it leaves JSON out
        if isinstance(how, str) or at.type not in how.called | ({"json"} if is_json else set()):
            wrong.append(f"its column {column.name} is {at.type} there")
            continue
        cells[column.name] = Cell(
            name=quote(at.name),
            info=column,
            kind=kind_of(column.type),
            form=how.form,
            scale=how.scale,
            readable=of_server(quote(at.name), at.type, zerofill=at.zerofill),
            json=json if is_json else "",
            stamped=column.name.lower() in stamped,
        )
    extra = sorted(each.name for each in by_name.values() if not each.computed)
    if extra:
        wrong.append(f"it has columns there that the history does not know ({', '.join(extra)}): a DDL since?")
    return cells, wrong


def _json(connection: TargetConnection) -> str:
    """Condition that a JSON column has a text's value; '' where texts are compared."""
    if connection.dialect is not Dialect.MARIADB:
        return "{} = CAST({} AS JSON)"
    numbers = re.match(r"(\d+)\.(\d+)", str(connection.value("SELECT VERSION()")))
    known = numbers is not None and (int(numbers[1]), int(numbers[2])) >= _JSON_EQUALS
    return "JSON_EQUALS({}, {})" if known else ""


def _unfit(connection: TargetConnection, subject: Subject, place: tuple[str, str]) -> Iterator[str]:
    key = {name.lower() for name in subject.key}
    if not any({name.lower() for name, _ in each} == key for each in _keys(connection, place)):
        yield f"it has no unique key ({', '.join(subject.key)}) there"
    if found := triggers_of(connection, *place):
        yield (
            f"it has triggers there, which the rows would fire ({', '.join(found)}): drop them, and create them again "
            "afterwards"
        )
    try:
        require_transactional(connection, *place)
    except LoadError as error:
        yield error.message


def _keys(connection: TargetConnection, place: tuple[str, str]) -> list[list[tuple[str, Any]]]:
    """(column, prefix length) of each unique key, as the server spells them; those over whole columns alone."""
    found: dict[str, list[tuple[str, Any]]] = {}
    for index, column, part in connection.query(
        "SELECT index_name, column_name, sub_part FROM information_schema.statistics"
        " WHERE table_schema = %s AND table_name = %s AND non_unique = 0 ORDER BY index_name, seq_in_index",
        place,
    ):
        found.setdefault(str(index), []).append((str(column), part))
    return [each for each in found.values() if all(part is None for _, part in each)]


def _unique(
    connection: TargetConnection, place: tuple[str, str], cells: Mapping[str, Cell]
) -> Iterator[tuple[str, ...]]:
    names = {name.lower(): name for name in cells}
    for each in _keys(connection, place):
        if all(name.lower() in names for name, _ in each):
            yield tuple(names[name.lower()] for name, _ in each)


def _foreign_keys(
    connection: TargetConnection, place: tuple[str, str], cells: Mapping[str, Cell]
) -> tuple[tuple[Reference, ...], tuple[tuple[str, str], ...]]:
    """What refers to the table's rows, and the tables that these refer to."""
    names = {name.lower(): name for name in cells}
    children: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    parents = set()
    strays = connection.dialect is Dialect.TIDB
    for db, table, constraint, column, parent_db, parent, referenced in connection.query(
        " OR ".join([_FOREIGN_KEYS, *[_STRAYS] * strays]) + " ORDER BY 1, 2, 3, ordinal_position",
        (*place, *place, *[place[1]] * strays),
    ):
        if (str(parent_db), str(parent)) == place or (str(db), str(table)) != place:
            own = names.get(str(referenced).lower(), "")
            children.setdefault((str(db), str(table), str(constraint)), []).append((str(column), own))
        if (str(db), str(table)) == place:
            parents.add((str(parent_db), str(parent)))
    references = tuple(
        Reference(child=(db, table), columns=tuple(columns)) for (db, table, _), columns in children.items()
    )
    return references, tuple(sorted(parents))


def _text(value: bytes) -> str:
    """Text in quotes; what is none, by its bytes."""
    try:
        return literal(value.decode())
    except UnicodeDecodeError:
        return f"X'{value.hex()}'"
