"""The server's side of a proof: checksums in SQL, and the snapshot in which they are all of one moment.

Nothing is locked, and a load may go on meanwhile. A snapshot of the target shows its rows together with our own tables:
where those say that it is ready at the moment and that no plan is open, its rows are those of the moment.
"""

# Names in statements are quoted by pumphouse.schema.ident; numbers are ours.
# ruff: noqa: S608

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from pumphouse import advice
from pumphouse.archive.proofs import MODULUS, ProvenRange, Sums
from pumphouse.errors import LoadError, TargetAhead, TargetBusy, TargetIncomplete, UsageError
from pumphouse.loader.state import TargetState, open_plan, read_all
from pumphouse.loader.target import StatementFailed, TargetConnection, has_checkpoints
from pumphouse.model.tso import Tso, show
from pumphouse.mysql import DUMP
from pumphouse.proof.forms import LONGEST, Form, Proven
from pumphouse.proof.readable import of_server
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.ident import qualified, quote
from pumphouse.settings import TargetSettings

# Their bytes are those of utf8mb4.
AS_UTF8 = frozenset({"utf8mb4", "utf8mb3", "utf8", "ascii"})
# Kinds of tables, as information_schema calls them. Where a MariaDB keeps versions of rows, a query reads those of now.
TABLES = ("BASE TABLE", "SYSTEM VERSIONED")
# A DDL came between the snapshot and the first look at a table.
_CHANGED = 1412


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """Where a target stands: the checkpoint of a task, and the number of its owner."""

    task: str
    at: Tso
    fence: int
    cluster_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnThere:
    """A column as the server has it; ``computed``: by itself."""

    name: str
    type: str
    zerofill: bool
    charset: str
    computed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RowThere:
    """A row of the server.

    Args:
        checksum: of all columns that are compared.
        plain: of those that are not JSON; 0 where there is no JSON, or nothing else.
        json: texts of the others.
        named: the columns that name it.
    """

    checksum: int
    plain: int
    json: tuple[str | None, ...]
    named: Mapping[str, Any]


def known_dialect(connection: TargetConnection) -> Dialect:
    """What kind of server it is; UsageError where this release has no checksums in its SQL."""
    require_known(connection.dialect, connection.name)
    return connection.dialect


def require_known(dialect: Dialect, name: str) -> None:
    """UsageError for a kind of server that no proof can ask."""
    if dialect is Dialect.TIDB:
        raise UsageError(
            f"target {name} is a TiDB, whose checksums this release cannot ask for",
            hint="`pumphouse diff` compares it with the source",
        )


def stand_of(connection: TargetConnection, task: str) -> Stand:
    """Where a target stands, in this session's snapshot.

    Raises:
        LoadError: nothing was loaded there by the task.
        TargetIncomplete: it is not whole.
        TargetBusy: a load is under way.
    """
    name = connection.name
    found = {each.task: each for each in read_all(connection)} if has_checkpoints(connection) else {}
    checkpoint = found.get(task)
    if checkpoint is None:
        others = f"; there are {', '.join(sorted(found))}" if found else ""
        raise LoadError(
            f"target {name} has no checkpoint of task {task}{others}: it is at no moment that could be proved",
            hint="name the load's task with --task" if found else "load or restore it first",
            target=name,
        )
    if checkpoint.state is not TargetState.READY:
        raise TargetIncomplete(
            f"target {name} is {checkpoint.state}: {checkpoint.reason}",
            hint="finish the load or the restore, then prove",
            target=name,
            state=str(checkpoint.state),
        )
    plan = open_plan(connection, task)
    if plan is not None:
        raise TargetBusy(
            f"target {name} is between {show(plan.from_ts)} and {show(plan.to_ts)}: plan {plan.number} of task {task} "
            "is under way",
            hint=("run this again when the load has ended; if it was killed, ", advice.load(), " ends it"),
            target=name,
            holder=task,
        )
    fence = connection.value(f"SELECT number FROM {connection.table('fence')}")
    return Stand(task=task, at=checkpoint.ts, fence=int(fence or 0), cluster_id=checkpoint.cluster_id)


@contextmanager
def snapshots(
    settings: TargetSettings, count: int, stand: Stand | None, section: str
) -> Iterator[list[TargetConnection]]:
    """Sessions that all see the target as it stands there; None = as it is.

    Raises:
        TargetAhead: it has gone on.
    """
    with ExitStack() as stack:
        sessions = []
        for _ in range(count):
            session = TargetConnection.open(settings, owner=True, session=DUMP, section=section)
            stack.callback(session.close)
            begin_snapshot(session)
            found = None if stand is None else stand_of(session, stand.task)
            if stand is not None and found is not None and found != stand:
                raise TargetAhead(
                    f"target {session.name} went on to {show(found.at)} since the proof of {show(stand.at)} began",
                    hint="prove where it stands now: leave --to out",
                    target=session.name,
                    checkpoint=found.at,
                    to=stand.at,
                )
            sessions.append(session)
        yield sessions


def begin_snapshot(session: TargetConnection) -> None:
    """From here on the session sees the server as it is now."""
    session.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")


def columns_there(connection: TargetConnection, databases: Iterable[str]) -> dict[tuple[str, str], list[ColumnThere]]:
    """Columns of the tables in these databases, by (database, table)."""
    names = sorted(set(databases))
    if not names:
        return {}
    marks = ",".join(["%s"] * len(names))
    found: dict[tuple[str, str], list[ColumnThere]] = {}
    for db, table, name, kind, full, charset, computed in connection.query(
        "SELECT c.table_schema, c.table_name, c.column_name, c.data_type, c.column_type, c.character_set_name,"
        " COALESCE(c.generation_expression, '') <> '' FROM information_schema.columns c"
        " JOIN information_schema.tables t ON t.table_schema = c.table_schema AND t.table_name = c.table_name"
        f" WHERE t.table_type IN %s AND c.table_schema IN ({marks})"
        " ORDER BY c.table_schema, c.table_name, c.ordinal_position",
        (TABLES, *names),
    ):
        there = ColumnThere(
            name=str(name),
            type=_text(kind).lower(),
            zerofill="zerofill" in _text(full).lower(),
            charset=_text(charset),
            computed=bool(computed),
        )
        found.setdefault((str(db), str(table)), []).append(there)
    return found


def sums(
    session: TargetConnection,
    table: tuple[str, str],
    columns: Sequence[tuple[Proven, ColumnThere]],
    key: str,
    bounds: ProvenRange,
) -> Sums:
    """Rows of one range of a table."""
    found = f"COUNT(*), COALESCE(SUM({checksum(columns, session.dialect)}), 0)"
    ((rows, total),) = _asked(session, f"SELECT {found} FROM {qualified(*table)}{_where(key, bounds)}", table)
    return Sums(int(rows), int(total) % MODULUS)


def rows_of(
    session: TargetConnection,
    table: tuple[str, str],
    columns: Sequence[tuple[Proven, ColumnThere]],
    named: Sequence[ColumnThere],
    key: str,
    bounds: ProvenRange,
) -> Iterator[RowThere]:
    """Each row of a range; ``named``: the columns that name it."""
    plain = [each for each in columns if not each[0].json]
    json = [quote(there.name) for column, there in columns if column.json]
    asked = [checksum(columns, session.dialect), checksum(plain, session.dialect) if json and plain else "0"]
    asked += [*json, *(of_server(quote(each.name), each.type, zerofill=each.zerofill) for each in named)]
    names = [each.name for each in named]
    statement = f"SELECT {', '.join(asked)} FROM {qualified(*table)}{_where(key, bounds)}"
    with _unchanged(session, table):
        for some in session.stream(statement):
            for number, without, *rest in some:
                yield RowThere(
                    checksum=int(number),
                    plain=int(without),
                    json=tuple(None if text is None else _text(text) for text in rest[: len(json)]),
                    named=dict(zip(names, rest[len(json) :], strict=True)),
                )


def _asked(session: TargetConnection, statement: str, table: tuple[str, str]) -> list[tuple[Any, ...]]:
    with _unchanged(session, table):
        return session.query(statement)


@contextmanager
def _unchanged(session: TargetConnection, table: tuple[str, str]) -> Iterator[None]:
    """TargetBusy where a DDL has changed a table."""
    try:
        yield
    except StatementFailed as error:
        if error.code == _CHANGED:
            raise TargetBusy(
                f"target {session.name}: a DDL changed {'.'.join(table)} while its rows were read",
                hint="run this again when the load has ended",
                target=session.name,
                holder="a DDL",
            ) from error
        raise


def _where(key: str, bounds: ProvenRange) -> str:
    found = [] if bounds.low is None else [f"{quote(key)} >= {bounds.low}"]
    found += [] if bounds.below is None else [f"{quote(key)} < {bounds.below}"]
    return f" WHERE {' AND '.join(found)}" if found else ""


def checksum(columns: Iterable[tuple[Proven, ColumnThere]], dialect: Dialect, more: Iterable[str] = ()) -> str:
    """The checksum of a row in SQL; ``more``: texts that stand behind those of the columns."""
    texts = [*(expression(column, there, dialect) for column, there in columns), *more]
    text = f"CONCAT({', '.join(texts)})"
    return f"CAST(CONV(LEFT(SHA2({text}, 256), 16), 16, 10) AS UNSIGNED)"


def expression(column: Proven, there: ColumnThere, dialect: Dialect) -> str:
    """The text of a value (`pumphouse.proof.forms`) in SQL."""
    name = quote(there.name)
    if column.form is Form.REAL and dialect is Dialect.MYSQL:
        # As a text of its own a double has no more than 22 characters there, whatever digits that costs.
        shown = f"SUBSTR(CAST(JSON_ARRAY({name} + 0e0) AS CHAR), 2)"
        return f"IF({name} IS NULL, 'N,', REPLACE(REPLACE({shown}, '.0]', ','), ']', ','))"
    if column.form in (Form.BYTES, Form.TEXT):
        value = name
        if column.form is Form.TEXT:
            value = utf8_bytes(name, there.charset)
        size = f"OCTET_LENGTH({value})"
        return (
            f"CASE WHEN {name} IS NULL THEN 'N,' WHEN {size} > {LONGEST} THEN CONCAT('#', SHA2({value}, 256), ',')"
            f" ELSE CONCAT({size}, ':', {value}) END"
        )
    number = {
        Form.SIGNED: f"CAST({name} AS SIGNED)",
        Form.UNSIGNED: f"CAST({name} AS UNSIGNED)",
        Form.REAL: f"{name} + 0e0",
        Form.FIXED: f"{name} + 0" if there.zerofill else name,
    }[column.form]
    return f"IFNULL(CONCAT({number}, ','), 'N,')"


def utf8_bytes(name: str, charset: str) -> str:
    """SQL of a text as bytes of utf8mb4. ``name``: of its column, quoted.

    A server puts "?" for each character that Unicode lacks. Such a value is the byte FF, which no UTF-8 has, and its
    own bytes.
    """
    if charset in AS_UTF8:
        return f"CAST({name} AS BINARY)"
    converted = f"CONVERT({name} USING utf8mb4)"
    if not charset:
        return f"CAST({converted} AS BINARY)"
    left = [f"CHAR_LENGTH(REPLACE({text}, '?', ''))" for text in (converted, name)]
    return f"IF({left[0]} < {left[1]}, CONCAT(x'ff', CAST({name} AS BINARY)), CAST({converted} AS BINARY))"


def _text(value: bytes | str | None) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")
