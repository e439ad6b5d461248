"""Insert Arrow batches, and find out whether the server took each row exactly as it was.

By LOAD DATA, the fastest that MySQL and MariaDB have. On a TiDB that is no part of a transaction: there by INSERT
statements of many rows.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pumphouse.loader import literals, textrows
from pumphouse.loader.columns import Column
from pumphouse.loader.target import Loaded, StatementFailed, TargetConnection
from pumphouse.mysql import LOOSE_MODE, SQL_MODE
from pumphouse.schema.dialect import Dialect

SAVEPOINT = "before_rows"
_SAMPLE = 5
_AT_ROW = re.compile(r"at row (\d+)")
_OF_COLUMN = re.compile(r"for column (.*) at row -?\d+$", re.DOTALL)
# What a server says of a column's value that it bends, and of an argument that a function bends.
_BENT, _BENT_BY_FUNCTION = {1264, 1265, 1292, 1366, 1406}, {1292, 1411, 4038}
_TRUNCATED, _DUPLICATE = 1265, 1062
Warnings = list[tuple[str, int, str]]


class Rejected(Exception):
    """The rows were not taken as they are; the transaction is rolled back."""

    def __init__(self, reason: str, batch: pa.RecordBatch, row: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.batch = batch
        self.row = row


class Collided(Rejected):
    """Rows removed others, or are not there because of others."""


def insert_rows(connection: TargetConnection, table: str, batch: pa.RecordBatch) -> None:
    """Insert a batch; Rejected when a row is bent or refused, Collided when another one has its key.

    StatementFailed where the server refuses it for no row's sake.
    """
    if not _by_statements(connection):
        connection.execute(f"SAVEPOINT {SAVEPOINT}")
    columns = textrows.columns_in(batch)
    load = _insert if _by_statements(connection) else _load
    zero = _enum_zero_rows(batch, columns)
    if zero is None:
        load(connection, table, batch, columns)
        return
    load(connection, table, batch.filter(pc.invert(zero)), columns)
    _put_enum_zero(connection, table, batch.filter(zero), columns)


def insert_loosely(connection: TargetConnection, table: str, batch: pa.RecordBatch) -> None:
    """Insert a batch into a table that nobody keeps: what does not fit is bent. Rejected where it cannot be sent."""
    with loosely(connection):
        _put_loosely(connection, table, batch, textrows.columns_in(batch))


@contextlib.contextmanager
def loosely(connection: TargetConnection) -> Iterator[None]:
    """The session without strict mode."""
    connection.execute("SET sql_mode = %s", (LOOSE_MODE,))
    try:
        yield
    finally:
        connection.execute("SET sql_mode = %s", (SQL_MODE,))


def take_back(connection: TargetConnection) -> None:
    """After a `Collided`, before the rows of the batch are deleted by their keys: undo what came of its insert.

    Where rows are inserted by statements those that came are the batch's own, and go by their keys with the others.
    """
    if not _by_statements(connection):
        connection.execute(f"ROLLBACK TO SAVEPOINT {SAVEPOINT}")


def _by_statements(connection: TargetConnection) -> bool:
    return connection.dialect is Dialect.TIDB


def _enum_zero_rows(batch: pa.RecordBatch, columns: Sequence[Column]) -> pa.Array | None:
    """Mask of the rows with an ENUM of value 0, or None."""
    mask = None
    for column, values in zip(columns, batch.columns, strict=True):
        if column.is_enum:
            found = pc.fill_null(pc.equal(values, 0), False)
            mask = found if mask is None else pc.or_(mask, found)
    return mask if mask is not None and pc.any(mask).as_py() else None


def _load(connection: TargetConnection, table: str, batch: pa.RecordBatch, columns: list[Column]) -> None:
    if batch.num_rows == 0:
        return
    connection.execute("SAVEPOINT part")
    statement, lines = textrows.statement(table, columns, connection.dialect), textrows.render(batch)
    try:
        done, shown = put(connection, lambda: connection.load_local(statement, [lines]), columns)
    except StatementFailed as error:
        if not error.of_a_row:
            raise
        found = _AT_ROW.search(error.message)
        raise Rejected(error.message, batch, int(found[1]) - 1 if found else None) from error
    if done.warnings:
        ours = of_sent(shown, columns, connection.dialect)
        if not ours and len(shown) < done.warnings and batch.num_rows > 1:
            # The server keeps so many and no more: all of them are seen of fewer rows.
            connection.execute("ROLLBACK TO SAVEPOINT part")
            half = batch.num_rows // 2
            _load(connection, table, batch.slice(0, half), columns)
            _load(connection, table, batch.slice(half), columns)
            return
        if not ours and len(shown) == done.warnings and done.affected == batch.num_rows:
            return
        texts = "; ".join(f"{text} [{code}]" for _, code, text in (ours or shown)[:_SAMPLE])
        found = _AT_ROW.search(texts)
        raise Rejected(f"the server warned: {texts}", batch, int(found[1]) - 1 if found else None)
    if done.affected != batch.num_rows:
        raise Collided(f"{batch.num_rows} rows were sent, {done.affected} were affected: some collide", batch)


def _insert(connection: TargetConnection, table: str, batch: pa.RecordBatch, columns: list[Column]) -> None:
    at = 0
    for statement, rows in _statements(connection, table, batch):
        part = batch.slice(at, rows)
        done, shown = _run(connection, statement, part, columns)
        if of_sent(shown, columns, connection.dialect) or len(shown) < done.warnings:
            texts = "; ".join(f"{text} [{code}]" for _, code, text in shown[:_SAMPLE])
            found = _AT_ROW.search(texts)
            raise Rejected(f"the server warned: {texts}", part, int(found[1]) - 1 if found else None)
        at += rows


def _statements(connection: TargetConnection, table: str, batch: pa.RecordBatch) -> Iterator[tuple[bytes, int]]:
    return literals.inserts(table, batch, most=min(literals.STATEMENT_BYTES, connection.max_packet - 1))


def _run(
    connection: TargetConnection, statement: bytes, part: pa.RecordBatch, columns: Sequence[Column]
) -> tuple[Loaded, Warnings]:
    """One INSERT of these rows; Collided, Rejected where it is refused or does not insert them all."""
    if len(statement) >= connection.max_packet:
        raise Rejected(
            f"as a statement it has {len(statement)} bytes, and the server takes {connection.max_packet} "
            "(max_allowed_packet)",
            part,
            0 if part.num_rows == 1 else None,
        )
    try:
        done, shown = put(connection, lambda: connection.insert(statement), columns)
    except StatementFailed as error:
        if not error.of_a_row:
            raise
        found = _AT_ROW.search(error.message)
        kind = Collided if error.code == _DUPLICATE else Rejected
        raise kind(error.message, part, int(found[1]) - 1 if found else None) from error
    if done.affected != part.num_rows:
        raise Rejected(f"{part.num_rows} rows were sent, {done.affected} were inserted", part)
    return done, shown


def put(connection: TargetConnection, send: Callable[[], Loaded], columns: Sequence[Column]) -> tuple[Loaded, Warnings]:
    """Send rows of these columns, and get the warnings with what came of it; StatementFailed where they are refused.

    A source that is not strict bends what it computes to its column. What the target computes itself may be bent there,
    too: such rows are sent again without strict mode, and the warnings say whether more than that was bent.
    """

    def once() -> tuple[Loaded, Warnings]:
        done = send()
        return done, connection.warnings() if done.warnings else []

    try:
        return once()
    except StatementFailed as error:
        if of_sent([("Error", error.code or 0, error.text)], columns, connection.dialect):
            raise
    with loosely(connection):
        return once()


def of_sent(warnings: Warnings, columns: Sequence[Column], dialect: Dialect) -> Warnings:
    """Those that may be of these columns: all but what the server says of values that it computes itself."""
    names = tuple(f"{sign}{column.name}{sign}".lower() for column in columns for sign in "'`")
    functions = dialect is not Dialect.TIDB and not any(column.through_variable for column in columns)
    return [each for each in warnings if not _is_of_computed(each, names, functions=functions)]


def _is_of_computed(warning: tuple[str, int, str], sent: tuple[str, ...], *, functions: bool) -> bool:
    """``functions``: none of ours is in the statement."""
    _, code, text = warning
    # The column's name stands last, behind a value that may look like anything.
    named = _OF_COLUMN.search(text)
    if named is None:
        return functions and code in _BENT_BY_FUNCTION
    return code in _BENT and not named[1].lower().endswith(sent)


def _put_enum_zero(connection: TargetConnection, table: str, batch: pa.RecordBatch, columns: list[Column]) -> None:
    """ENUM 0 (written without strict mode at the source) exists in no strict session.

    So these rows are put without strict mode, and the warnings must be exactly theirs: one for each zero.
    """
    zeros = sum(
        int(pc.sum(pc.fill_null(pc.equal(values, 0), False)).as_py() or 0)
        for column, values in zip(columns, batch.columns, strict=True)
        if column.is_enum
    )
    expected = tuple(f"'{column.name}'" for column in columns if column.is_enum)
    with loosely(connection):
        done, shown = _put_loosely(connection, table, batch, columns)
    ours = of_sent(shown, columns, connection.dialect)
    other = [text for _, code, text in ours if code != _TRUNCATED or not any(name in text for name in expected)]
    if other or done.warnings - (len(shown) - len(ours)) > zeros or done.affected != batch.num_rows:
        found = _AT_ROW.search("; ".join(other))
        raise Rejected(
            "; ".join(other[:_SAMPLE]) or f"{batch.num_rows} rows sent, {done.affected} affected",
            batch,
            int(found[1]) - 1 if found else None,
        )


def _put_loosely(
    connection: TargetConnection, table: str, batch: pa.RecordBatch, columns: list[Column]
) -> tuple[Loaded, Warnings]:
    if not _by_statements(connection):
        put = textrows.statement(table, columns, connection.dialect, bent=True)
        done = connection.load_local(put, [textrows.render(batch)])
        return done, connection.warnings() if done.warnings else []
    affected, warnings, shown, at = 0, 0, [], 0
    for statement, rows in _statements(connection, table, batch):
        done, said = _run(connection, statement, batch.slice(at, rows), columns)
        affected, warnings, at = affected + done.affected, warnings + done.warnings, at + rows
        shown += said
    return Loaded(affected, warnings), shown
