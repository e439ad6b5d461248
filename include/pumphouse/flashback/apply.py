"""Look at the rows of a flashback on the server, and put back those that nobody changed since."""

# Names and values are quoted by pumphouse.schema.ident.
# ruff: noqa: S608

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import LoadError, TargetBusy
from pumphouse.flashback.statements import Row, steps
from pumphouse.loader.columns import shown
from pumphouse.loader.literals import STATEMENT_BYTES
from pumphouse.loader.target import RetryUnit, StatementFailed, TargetConnection
from pumphouse.model.tso import show

# Of one transaction; and bytes of images in memory.
BATCH_ROWS, BATCH_BYTES = 50_000, 64 << 20
_LOOK_ROWS = 100
_ATTEMPTS = 5


class State(StrEnum):
    """What the server has under a key."""

    BACK = "back"  # as the first old image says
    PUT = "put"  # as the last new image says: to be put back
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A row that stays as it is. ``by``: commit ts of a later transaction that changed it; 0 = none is known."""

    table: str
    key: Mapping[str, str | None]
    why: str
    by: int
    old: Mapping[str, str | None] | None
    new: Mapping[str, str | None] | None
    now: Mapping[str, str | None] | None


@dataclass(slots=True, kw_only=True)
class Done:
    """What became of a batch."""

    put: list[Row] = field(default_factory=list)
    back: list[Row] = field(default_factory=list)
    conflicts: list[tuple[Row, str]] = field(default_factory=list)


def judged(connection: TargetConnection, rows: Sequence[Row]) -> Done:
    """Which rows are to be put back, by what the archive has and what the server has now."""
    done = Done()
    found = states(connection, rows)
    for row in rows:
        state = found.get(id(row), _absent(row))
        if state is State.BACK:
            done.back.append(row)
        elif row.change.later:
            done.conflicts.append((row, f"transaction {show(row.change.later)} changed it, too"))
        elif state is State.PUT:
            done.put.append(row)
        else:
            done.conflicts.append((row, _changed(row, there=id(row) in found)))
    return done


def put_back(
    connection: TargetConnection,
    rows: Sequence[Row],
    rank: Mapping[tuple[str, str], int],
    keep: Callable[[Sequence[Row]], None],
    *,
    clock: Clock = SYSTEM_CLOCK,
) -> Done:
    """Put rows back in one transaction, those that still can be.

    Args:
        connection: the server.
        rows: of one batch, judged before.
        rank: of their tables (`pumphouse.flashback.statements.ranks`).
        keep: is given the rows that were put back before the transaction is committed.
        clock: for the time between two tries.

    Raises:
        TargetBusy: somebody else holds the rows.
    """
    refused: dict[int, str] = {}
    for attempt in range(_ATTEMPTS + len(rows)):
        try:
            return _once(connection, rows, rank, keep, refused)
        except _Halved as halved:
            refused[id(halved.row)] = halved.why
        except RetryUnit as error:
            if attempt >= _ATTEMPTS - 1:
                raise TargetBusy(
                    f"{connection.name}: somebody else holds rows that are to be put back: {error.message}",
                    hint="nothing of this batch was changed; the same command goes on",
                    holder="a transaction",
                ) from error
            clock.sleep(random.uniform(0, 0.1 * 2**attempt))  # noqa: S311
    raise AssertionError


class _Halved(Exception):
    """A row was deleted to come again, and is refused: the transaction is rolled back, and goes on without it."""

    def __init__(self, row: Row, why: str) -> None:
        super().__init__(why)
        self.row, self.why = row, why


def _once(
    connection: TargetConnection,
    rows: Sequence[Row],
    rank: Mapping[tuple[str, str], int],
    keep: Callable[[Sequence[Row]], None],
    refused: Mapping[int, str],
) -> Done:
    done = Done(conflicts=[(row, refused[id(row)]) for row in rows if id(row) in refused])
    went: set[int] = set()
    with connection.transaction():
        for step in steps([row for row in rows if id(row) not in refused], rank):
            row = step.row
            try:
                affected = connection.execute(_sendable(connection, row, step.sql))
            except StatementFailed as error:
                if not error.of_a_row:
                    raise
                if id(row) in went:
                    raise _Halved(row, f"the server refuses it: {error.message}") from error
                done.conflicts.append((row, f"the server refuses it: {error.message}"))
                continue
            if not step.last:
                went |= {id(row)} if affected else set()
            elif affected:
                done.put.append(row)
            elif id(row) in went:
                raise _Halved(row, "another row has its key by now")
            else:
                _look_again(connection, row, done)
        if done.put:
            keep(done.put)
    return done


def _look_again(connection: TargetConnection, row: Row, done: Done) -> None:
    """Why a statement did not find its row; behind a lock, so that it sees what others have committed."""
    found = states(connection, [row], lock=True)
    state = found.get(id(row), _absent(row))
    if state is State.BACK:
        done.back.append(row)
    elif state is State.PUT:
        done.conflicts.append((row, "rows of another table refer to it"))
    else:
        done.conflicts.append((row, _changed(row, there=id(row) in found)))


def _sendable(connection: TargetConnection, row: Row, sql: str) -> str:
    """A statement of a row; LoadError where it is too long for the server, which would drop the connection."""
    size = len(sql.encode())
    if size >= connection.max_packet:
        raise LoadError(
            f"a row of {row.there.subject.name} ({_key(row)}) has {size} bytes as a statement, and {connection.name} "
            f"takes {connection.max_packet}",
            hint=f"SET GLOBAL max_allowed_packet = {2 * size} there, and run this again",
        )
    return sql


def states(connection: TargetConnection, rows: Sequence[Row], *, lock: bool = False) -> dict[int, State]:
    """By ``id`` of a row, what the server has under its key; no entry where it has nothing."""
    found: dict[int, State] = {}
    for some in _some(rows):
        asked = [
            f"SELECT {number} AS n, ({row.is_(row.change.old)}) AS back, ({row.is_(row.change.new)}) AS put"
            f" FROM {row.there.target} WHERE {row.find()}{' FOR UPDATE' * lock}"
            for number, row in enumerate(some)
        ]
        for number, back, put in connection.query(_sendable(connection, some[0], " UNION ALL ".join(asked))):
            found[id(some[number])] = State.BACK if back else State.PUT if put else State.OTHER
    return found


def _some(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Rows for one query: few, and of few bytes."""
    some: list[Row] = []
    size = 0
    for row in rows:
        more = size_of(row)
        if some and (len(some) == _LOOK_ROWS or size + more > STATEMENT_BYTES):
            yield some
            some, size = [], 0
        some.append(row)
        size += more
    if some:
        yield some


def size_of(row: Row) -> int:
    """About its bytes, in both images."""
    images = [image for image in (row.want, row.now) if image is not None]
    return sum(len(v) if isinstance(v, bytes | str) else 8 for image in images for v in image.values())


def _absent(row: Row) -> State:
    """What it means that the server has nothing under the key."""
    return State.BACK if row.change.old is None else State.PUT if row.change.new is None else State.OTHER


def _changed(row: Row, *, there: bool) -> str:
    if not there:
        return "somebody deleted it since"
    return "there is a row of this key again" if row.change.new is None else "somebody changed it since"


def conflict(connection: TargetConnection, row: Row, why: str) -> Conflict:
    """For the report, with the row as it is now."""
    cells = row.there.cells
    names = ", ".join(cell.name for cell in cells.values())
    found = connection.query(f"SELECT {names} FROM {row.there.target} WHERE {row.find()}")
    return Conflict(
        table=row.there.subject.name,
        key=_shown(row.key) or {},
        why=why,
        by=row.change.later,
        old=_shown(row.change.old),
        new=_shown(row.change.new),
        now=_shown(dict(zip(cells, found[0], strict=True))) if found else None,
    )


def _shown(image: Mapping[str, Any] | None) -> dict[str, str | None] | None:
    return None if image is None else {name: None if value is None else shown(value) for name, value in image.items()}


def _key(row: Row) -> str:
    return ", ".join(f"{name}={shown(value)}" for name, value in row.key.items())
