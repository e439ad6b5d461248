"""Look at the rows of a flashback on the server, and put back those that nobody changed since."""

# Names and values are quoted by pumphouse.schema.ident.
# ruff: noqa: S608

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import LoadError, TargetBusy
from pumphouse.flashback.statements import Row, steps
from pumphouse.flashback.there import TableThere
from pumphouse.loader.columns import shown
from pumphouse.loader.literals import STATEMENT_BYTES
from pumphouse.loader.target import RetryUnit, StatementFailed, TargetConnection
from pumphouse.model.tso import show
from pumphouse.proof.readable import of_archive

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


def judged(connection: TargetConnection, rows: Sequence[Row], *, lock: bool = False) -> Done:
    """Which rows are to be put back, by what the archive has and what the server has now.

    Args:
        connection: the server.
        rows: whole groups (`pumphouse.flashback.changes.NetChange.group`).
        lock: behind a lock, so that it sees what others have committed.
    """
    done, whys, put = Done(), dict[int, str](), list[Row]()
    found = states(connection, rows, lock=lock)
    for row in rows:
        state = found.get(id(row), _absent(row))
        if state is State.BACK:
            done.back.append(row)
        elif row.change.later:
            whys[id(row)] = _by(row.change.later)
        elif state is State.PUT:
            put.append(row)
        else:
            whys[id(row)] = _changed(row, there=id(row) in found)
    going = {(row.bound, *row.key.items()) for row in put if row.want is None}
    whys |= {
        id(row): f"there is a row again whose key is equal to the server ({_key(row.there, key)})"
        for row, key in equals(connection, put)
        if (row.bound, *key.items()) not in going
    }
    # Gone by a later transaction: that was the end of the row, under whatever key.
    stay = {row.bound: _with(row, _by(row.change.later)) for row in done.back if row.change.later}
    stay |= {row.bound: _with(row, whys[id(row)]) for row in rows if id(row) in whys}
    done.put = [row for row in put if row.bound not in stay]
    whys |= {id(row): stay[row.bound] for row in put if row.bound in stay and id(row) not in whys}
    done.conflicts = [(row, whys[id(row)]) for row in rows if id(row) in whys]
    return done


def _by(later: int) -> str:
    return f"transaction {show(later)} changed it, too"


def _with(other: Row, why: str) -> str:
    """Why a row stays with another one of its group."""
    return f"it goes and comes together with {_key(other.there, other.key)}, of which is to say: {why}"


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
            refused |= {id(row): why for row, why in halved.stay}
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
    """Some of what goes together is done, and more is refused: the transaction is rolled back, and goes on without."""

    def __init__(self, stay: Sequence[tuple[Row, str]]) -> None:
        super().__init__(stay[0][1])
        self.stay = stay


def _once(
    connection: TargetConnection,
    rows: Sequence[Row],
    rank: Mapping[tuple[str, str], int],
    keep: Callable[[Sequence[Row]], None],
    refused: Mapping[int, str],
) -> Done:
    done = Done(conflicts=[(row, refused[id(row)]) for row in rows if id(row) in refused])
    rows = [row for row in rows if id(row) not in refused]
    together: dict[Hashable, list[Row]] = {}
    for row in rows:
        together.setdefault(row.bound, []).append(row)
    went: set[Hashable] = set()
    stay: set[Hashable] = set()
    with connection.transaction():
        for step in steps(rows, rank):
            row = step.row
            if row.bound in stay:
                continue
            mates = together[row.bound]
            try:
                affected = connection.execute(_sendable(connection, row, step.sql))
            except StatementFailed as error:
                if not error.of_a_row:
                    raise
                why = f"the server refuses it: {error.message}"
                conflicts = [(each, why if each is row else _with(row, why)) for each in mates]
                if row.bound in went:
                    raise _Halved(conflicts) from error
                stay.add(row.bound)
                done.conflicts += conflicts
                continue
            if step.looks:
                continue
            if affected:
                went.add(row.bound)
                done.put += [row] if step.last else []
            elif row.bound in went:
                raise _Halved([(each, "another row is in its place by now") for each in mates])
            else:
                stay.add(row.bound)
                again = judged(connection, mates, lock=True)
                done.back += again.back
                done.conflicts += again.conflicts
                done.conflicts += [(each, "other rows refer to it") for each in again.put]
        if done.put:
            keep(done.put)
    return done


def _sendable(connection: TargetConnection, row: Row, sql: str) -> str:
    """A statement of a row; LoadError where it is too long for the server, which would drop the connection."""
    size = len(sql.encode())
    if size >= connection.max_packet:
        raise LoadError(
            f"a row of {row.there.subject.name} ({_key(row.there, row.key)}) has {size} bytes as a statement, and "
            f"{connection.name} takes {connection.max_packet}",
            hint=f"SET GLOBAL max_allowed_packet = {2 * size} there, and run this again",
        )
    return sql


def states(connection: TargetConnection, rows: Sequence[Row], *, lock: bool = False) -> dict[int, State]:
    """By ``id`` of a row, what the server has under its key; no entry where it has nothing."""
    found: dict[int, State] = {}
    for some in _some(rows):
        asked = [  # in brackets: a lock is of its own SELECT
            f"(SELECT {number} AS n, ({row.is_(row.change.old)}) AS back, ({row.is_(row.change.new)}) AS put"
            f" FROM {row.there.target} WHERE {row.at()}{' FOR UPDATE' * lock})"
            for number, row in enumerate(some)
        ]
        for number, back, put in connection.query(_sendable(connection, some[0], " UNION ALL ".join(asked))):
            found[id(some[number])] = State.BACK if back else State.PUT if put else State.OTHER
    return found


def equals(connection: TargetConnection, rows: Sequence[Row]) -> list[tuple[Row, dict[str, Any]]]:
    """Of rows that come, those whose key is to the server that of a row under another one; and that key."""
    found = []
    for some in _some([row for row in rows if row.now is None and row.there.collated]):
        asked = []
        for number, row in enumerate(some):
            texts = [
                f"CAST(CONVERT({row.there.cells[name].name} USING utf8mb4) AS BINARY)" for name in row.there.collated
            ]
            texts += ["NULL"] * (max(len(each.there.collated) for each in some) - len(texts))
            asked.append(
                f"SELECT {number} AS n, {', '.join(texts)} FROM {row.there.target}"
                f" WHERE {row.find()} AND NOT ({row.at()})"
            )
        for number, *texts in connection.query(_sendable(connection, some[0], " UNION ALL ".join(asked))):
            row = some[number]
            found.append((row, row.key | dict(zip(row.there.collated, texts, strict=False))))
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
    names = ", ".join(cell.readable for cell in cells.values())
    found = connection.query(f"SELECT {names} FROM {row.there.target} WHERE {row.find()}")
    return Conflict(
        table=row.there.subject.name,
        key=_shown(row.there, row.key) or {},
        why=why,
        by=row.change.later,
        old=_shown(row.there, row.change.old),
        new=_shown(row.there, row.change.new),
        now={name: None if value is None else shown(value) for name, value in zip(cells, found[0], strict=True)}
        if found
        else None,
    )


def _shown(there: TableThere, image: Mapping[str, Any] | None) -> dict[str, str | None] | None:
    if image is None:
        return None
    types = {name: cell.info.type for name, cell in there.cells.items()}
    return {name: None if value is None else of_archive(value, types[name]) for name, value in image.items()}


def _key(there: TableThere, key: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in (_shown(there, key) or {}).items())
