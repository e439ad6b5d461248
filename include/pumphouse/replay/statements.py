"""Rows of one step on a connection: LOAD DATA … REPLACE for those that come, one DELETE for those that go.

`Safety` says what a row that is there already, or is not there, means: nothing, or RowRejected.
"""

# Names in statements are quoted by pumphouse.schema.ident; lines of an integer key hold digits alone.
# ruff: noqa: S608

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import pyarrow as pa

from pumphouse.errors import LoadError, RowRejected
from pumphouse.loader import textrows
from pumphouse.loader.insert import loosely, of_sent, put
from pumphouse.loader.keyless import COUNT, delete_rows
from pumphouse.loader.target import StatementFailed, TargetConnection
from pumphouse.loader.unfit import require_transactional
from pumphouse.loader.unit import computed_there, other_shape
from pumphouse.replay.change import Change, Shape
from pumphouse.replay.steps import Safety, Step
from pumphouse.schema.ident import qualified, quote

_AT_ROW = re.compile(r"at row (\d+)")
_TRUNCATED = 1265
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_PLAIN = {b"t": b"\t", b"n": b"\n"}


def run_step(connection: TargetConnection, step: Step, safety: Safety) -> None:
    """Run one step inside a transaction. Rows without a key come once (`pumphouse.replay.rounds`): never safe."""
    require_transactional(connection, step.shape.db, step.shape.table)
    try:
        _run(connection, step, safety if step.shape.key else Safety.STRICT)
    except StatementFailed as error:
        found = other_shape(error, step.shape.db, step.shape.table)
        if found is None:
            raise
        raise found from error


def _run(connection: TargetConnection, step: Step, safety: Safety) -> None:
    if not step.put:
        _delete(connection, step, safe=safety is not Safety.STRICT)
        return
    for loose, part in groupby(step.changes, key=lambda change: change.loose):
        changes = list(part)
        lines = [change.new for change in changes if change.new is not None]
        # An update whose row stays the same one removes its old row by itself.
        own = sum(c.old is not None and not c.moved for c in changes) if safety.replaces else 0
        # A row that is not there, or the same one, may hide in a sum that another one is in the way.
        sums_tell = not (step.shape.droppable or (own and step.shape.others))
        if sums_tell or safety is Safety.AGAIN:
            connection.execute("SAVEPOINT before_put")
            with loosely(connection) if loose else contextlib.nullcontext():
                gone = _load(connection, step.shape, lines, loose=loose) - len(lines)
            if gone == own or safety is Safety.AGAIN:
                continue
            if safety is not Safety.ONCE:
                raise _in_the_way(step.shape, lines)
            connection.execute("ROLLBACK TO SAVEPOINT before_put")
        _put_exactly(connection, step.shape, changes, loose=loose)


def _put_exactly(connection: TargetConnection, shape: Shape, changes: Sequence[Change], *, loose: bool) -> None:
    """Put the last row of each key, where none stands any more; RowRejected when one is in the way."""
    last: dict[bytes, bytes] = {}
    known: list[bytes] = []
    fresh: list[bytes] = []
    for change in changes:
        if change.new is None:
            continue
        key, updates = key_line(shape, change.new), change.old is not None and not change.moved
        if key not in last:
            (known if updates else fresh).append(key)
        elif shape.droppable and not updates:
            raise _in_the_way(shape, [change.new])
        last[key] = change.new
    _delete_by_join(connection, shape, known)
    if _delete_by_join(connection, shape, fresh) and shape.droppable:
        raise _in_the_way(shape, [last[key] for key in fresh])
    with loosely(connection) if loose else contextlib.nullcontext():
        affected = _load(connection, shape, [*last.values()], loose=loose)
    if affected != len(last):
        raise _in_the_way(shape, [*last.values()])


def _load(
    connection: TargetConnection, shape: Shape, lines: Sequence[bytes], *, loose: bool, of: Shape | None = None
) -> int:
    """Put rows (``of``: keys of another table); the affected rows. RowRejected when the server bent or refused one."""
    of = of or shape
    columns = list(shape.columns)
    unsent = computed_there(connection, shape.db, shape.table, shape.stored)
    sent = [c for c in columns if c.name not in unsent]
    connection.execute("SAVEPOINT part")
    try:
        statement = textrows.statement(shape.target, columns, connection.dialect, unsent)
        done, shown = put(connection, lambda: connection.load_local(statement, [b"".join(lines)]), sent)
    except StatementFailed as error:
        if not error.of_a_row:
            raise
        found = _AT_ROW.search(error.message)
        at = int(found[1]) - 1 if found else -1
        raise _rejected(of, lines[at] if 0 <= at < len(lines) else b"", error.message, lines) from error
    if done.warnings:
        zeros = {c.name for c in columns if c.is_enum} if loose else set()
        ours = [w for w in of_sent(shown, sent, connection.dialect) if not _of_zero(w, zeros)]
        if ours or (len(shown) < done.warnings and len(lines) == 1):
            text = "; ".join(f"{text} [{code}]" for _, code, text in (ours or shown)[:5])
            found = _AT_ROW.search(text)
            at = int(found[1]) - 1 if found else 0
            raise _rejected(of, lines[min(at, len(lines) - 1)], f"the server warned: {text}", lines)
        if len(shown) < done.warnings:
            # The server keeps so many and no more: all of them are seen of fewer rows. In order: later rows win.
            connection.execute("ROLLBACK TO SAVEPOINT part")
            half = len(lines) // 2
            return sum(_load(connection, shape, part, loose=loose, of=of) for part in (lines[:half], lines[half:]))
    return done.affected


def _of_zero(warning: tuple[str, int, str], enums: set[str]) -> bool:
    """Whether it is the one for an ENUM of value 0."""
    _, code, text = warning
    return code == _TRUNCATED and any(f"'{name}'" in text for name in enums)


def _delete(connection: TargetConnection, step: Step, *, safe: bool) -> None:
    shape = step.shape
    lines = [change.old for change in step.changes if change.old is not None]
    if not shape.key:
        unsent = computed_there(connection, shape.db, shape.table, shape.stored)
        delete_rows(connection, shape.db, shape.table, [_counted(shape, lines).drop_columns(unsent)])
        return
    keys = [shape.columns[at] for at in shape.key]
    if len(keys) == 1 and keys[0].is_integer:
        numbers = b",".join(line[:-1] for line in lines).decode()
        found = connection.execute(f"DELETE FROM {shape.target} WHERE {quote(keys[0].name)} IN ({numbers})")
    else:
        found = _delete_by_join(connection, shape, lines)
    if not safe and found != len(lines):
        raise _rejected(shape, lines[0], f"{len(lines)} rows should go, {found} were there", lines)


def _delete_by_join(connection: TargetConnection, shape: Shape, lines: Sequence[bytes]) -> int:
    """Delete rows by keys of any type, byte by byte: one that only a collation takes for equal is another row."""
    columns = shape.old_columns
    if not lines:
        return 0
    gone = qualified(connection.settings.schema_name, "unit_keys")
    connection.execute(f"DROP TEMPORARY TABLE IF EXISTS {gone}")
    # Of the target's own columns, so that types and collations are equal and the join can use the index.
    connection.execute(
        f"CREATE TEMPORARY TABLE {gone} ENGINE=InnoDB AS SELECT {textrows.names(columns)} FROM {shape.target} LIMIT 0"
    )
    try:
        keys = Shape(connection.settings.schema_name, "unit_keys", tuple(columns), ())
        loose = any(column.is_enum for column in columns)
        with loosely(connection) if loose else contextlib.nullcontext():
            _load(connection, keys, lines, loose=loose, of=shape)
        condition = " AND ".join(
            f"{shape.target}.{quote(c.name)} = {gone}.{quote(c.name)} AND {c.same(shape.target, gone)}" for c in columns
        )
        return connection.execute(f"DELETE {shape.target} FROM {gone} STRAIGHT_JOIN {shape.target} ON {condition}")
    finally:
        with contextlib.suppress(LoadError):
            connection.execute(f"DROP TEMPORARY TABLE IF EXISTS {gone}")


def _counted(shape: Shape, lines: Sequence[bytes]) -> pa.RecordBatch:
    """Rows without a key, each once, and how many of it go."""
    copies = Counter(lines)
    rows = [_values(line) for line in copies]
    fields = [c.field(pa.large_binary()) for c in shape.columns]
    arrays = [pa.array([row[at] for row in rows], pa.large_binary()) for at in range(len(fields))]
    for at, column in enumerate(shape.columns):
        if column.is_enum:
            fields[at], arrays[at] = fields[at].with_type(pa.uint64()), _numbers(arrays[at])
    counts = pa.array(list(copies.values()), pa.int64())
    return pa.RecordBatch.from_arrays([*arrays, counts], schema=pa.schema([*fields, pa.field(COUNT, pa.int64())]))


def _numbers(texts: pa.Array) -> pa.Array:
    return pa.array([None if text is None else int(text) for text in texts.to_pylist()], pa.uint64())


def key_line(shape: Shape, line: bytes) -> bytes:
    """Of the line of a row that comes, the line by which it goes."""
    fields = line[:-1].split(b"\t")
    return b"\t".join([fields[at] for at in shape.key]) + b"\n"


def _values(line: bytes) -> list[bytes | None]:
    """The values of a line."""
    fields = line[:-1].split(b"\t")
    return [None if f == b"\\N" else _ESCAPED.sub(lambda m: _PLAIN.get(m[1], m[1]), f) for f in fields]


def _in_the_way(shape: Shape, lines: Sequence[bytes]) -> RowRejected:
    return _rejected(shape, lines[0], "rows are there already that share a unique key with some of them", lines)


def _rejected(shape: Shape, line: bytes, reason: str, lines: Sequence[bytes]) -> RowRejected:
    shown = line[:-1].decode(errors="backslashreplace")[:200]
    return RowRejected(
        f"{shape.name} did not take its rows: {reason}" + (f"; among {len(lines)} rows, {shown}" if shown else ""),
        hint=f"`pumphouse diff --schema {shape.db}` compares its columns and rows with the source's; "
        "SHOW CREATE TABLE shows its keys and collations",
        table=shape.name,
        rows=[shown],
        reason=reason,
    )
