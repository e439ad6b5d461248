"""Who owns a target: a GET_LOCK held by one connection, and a number that every new owner raises.

The lock keeps a second run out. The number keeps out what is left of an earlier run: each unit takes a shared lock on
the fence row and compares, so a unit of an old owner either committed before the number rose or commits never. Numbers
begin at the clock's milliseconds: where our tables were dropped and made again, none comes twice.

A TiDB has no shared row locks, and before 7.1 does not say who holds a GET_LOCK. There the number lies in several rows:
a unit locks one of them, whoever raises it all; and the owner is the connection that raised it last.
"""

# Names in statements are quoted by pumphouse.schema.ident; values go as parameters.
# ruff: noqa: S608

from __future__ import annotations

import getpass
import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import FenceLost, LoadError, TargetBusy
from pumphouse.loader.blockers import watching
from pumphouse.loader.target import NO_SUCH, StatementFailed, TargetConnection
from pumphouse.schema.dialect import Dialect

_TAKE_OVER_S = 60.0
# Rows 2 and up, on a TiDB; more units than these at once would take turns.
_ROWS_OF_UNITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """What an owner has: its run id and the fence number that it raised."""

    run: str
    holder: str
    number: int


def lock_name(schema_name: str) -> str:
    """Name of the GET_LOCK; at most 64 bytes whatever the schema is called."""
    name = f"pumphouse.{schema_name}"
    return name if len(name.encode()) <= 64 else _hashed(name)


def _hashed(name: str) -> str:
    return "pumphouse." + hashlib.sha256(name.encode()).hexdigest()[:48]


def whoami() -> str:
    """``user@host pid N``: for people who are told that the target is busy."""
    return f"{getpass.getuser()}@{socket.gethostname()} pid {os.getpid()}"


def acquire(
    connection: TargetConnection, *, run: str, take_over: bool = False, clock: Clock = SYSTEM_CLOCK
) -> Ownership:
    """Own the target on this connection, or raise TargetBusy with the holder's name.

    The same run takes over from itself (a retry whose first attempt still lives); another run only with ``take_over``.
    Taking over kills the holder's connection and waits until the server has let it go, and then every session that
    still holds the fence: a unit whose host has died, or one that is under way.
    """
    last = connection.value(f"SELECT run FROM {connection.table('fence')} WHERE id = 1")
    name = lock_name(connection.settings.schema_name)
    # Says whose the lock is until the fence row does: a host may stand still, or die, between the two.
    run_name = _hashed(f"{name} {run}")
    end = clock.monotonic() + _TAKE_OVER_S
    while True:
        connection.query("SELECT GET_LOCK(%s, 0)", (run_name,))
        if connection.value("SELECT GET_LOCK(%s, 0)", (name,)) == 1:
            break
        holder_id = _lock_holder(connection)
        # None: it was given back just now; or, on a TiDB, whoever has it has not raised the fence yet.
        holder = (
            "unknown" if holder_id is None else _end_holder(connection, holder_id, run, run_name, take_over=take_over)
        )
        if clock.monotonic() > end:
            raise TargetBusy(
                f"target {connection.name} is still held after {_TAKE_OVER_S:.0f} s, by {holder}"
                f"{'' if holder_id is None else f' (connection {holder_id}, which was killed)'}",
                hint="find who holds its GET_LOCK (SHOW PROCESSLIST), end that, and run this again",
                target=connection.name,
                holder=holder,
            )
        clock.sleep(0.1)
    return _raise_fence(connection, run, end_blockers=take_over or last == run, first=int(clock.now() * 1000))


def _end_holder(connection: TargetConnection, holder_id: int, run: str, run_name: str, *, take_over: bool) -> str:
    """End the connection that holds the target, where this run may: who that was. Else TargetBusy."""
    known = connection.query(
        f"SELECT run, holder FROM {connection.table('fence')} WHERE id = 1 AND connection_id = %s", (holder_id,)
    )
    found_run, holder = known[0] if known else _not_in_row(connection, holder_id, run_name, run)
    if not (take_over or (found_run and found_run == run)):
        raise TargetBusy(
            f"target {connection.name} is being loaded by run {found_run or '?'} ({holder}, connection {holder_id})",
            hint="wait for it, or end it and take over with --take-over",
            target=connection.name,
            holder=f"{found_run} ({holder})",
        )
    _kill(connection, holder_id)
    return str(holder)


def owned_by(connection: TargetConnection) -> str:
    """Run and holder that own the target now, and since when, for people who ask; '' = nobody does."""
    holder_id = _lock_holder(connection)
    if holder_id is not None and connection.dialect is Dialect.TIDB:
        # The one who raised the number last: it may have ended. Loads come by the server that is asked here.
        holder_id = connection.value("SELECT 1 FROM information_schema.processlist WHERE id = %s", (holder_id,))
    if holder_id is None:
        return ""
    rows = connection.query(f"SELECT run, holder, since FROM {connection.table('fence')} WHERE id = 1")
    return ", ".join(f"{run} ({holder}) since {since} UTC" for run, holder, since in rows)


def _lock_holder(connection: TargetConnection) -> int | None:
    """Connection that owns the target; None = nobody now."""
    if connection.dialect is Dialect.TIDB:
        found = connection.value(f"SELECT connection_id FROM {connection.table('fence')} WHERE id = 1")
    else:
        found = connection.value("SELECT IS_USED_LOCK(%s)", (lock_name(connection.settings.schema_name),))
    return None if found is None else int(found)


def _not_in_row(connection: TargetConnection, holder_id: int, run_name: str, run: str) -> tuple[str, str]:
    """Run and holder of a connection that has the lock and has not raised the fence: the same run, or unknown."""
    if connection.dialect is Dialect.TIDB:
        return "", "unknown"
    return (run if connection.value("SELECT IS_USED_LOCK(%s)", (run_name,)) == holder_id else ""), "unknown"


def _kill(connection: TargetConnection, holder_id: int) -> None:
    try:
        connection.execute(f"KILL {'TIDB ' if connection.dialect is Dialect.TIDB else ''}{holder_id}")
    except StatementFailed as error:
        if error.code != 1094:  # unknown thread id: it has gone by itself
            raise


def _raise_fence(connection: TargetConnection, run: str, *, end_blockers: bool = False, first: int) -> Ownership:
    fence, holder = connection.table("fence"), whoami()
    with connection.transaction():
        with watching(connection, end=end_blockers):
            # Waits for every unit that holds the row shared: after this nothing of an earlier owner is under way.
            rows = connection.query(f"SELECT number FROM {fence} ORDER BY id FOR UPDATE")
        number = int(rows[0][0]) + 1 if rows else first
        more = _ROWS_OF_UNITS if connection.dialect is Dialect.TIDB else 0
        for id_ in range(1, 2 + more):
            connection.execute(
                f"REPLACE INTO {fence} (id, number, run, holder, connection_id) VALUES (%s, %s, %s, %s, %s)",
                (id_, number, run[:255], holder[:255], connection.connection_id),
            )
    return Ownership(run=run, holder=holder, number=number)


def raise_again(connection: TargetConnection, owner: Ownership) -> Ownership:
    """Raise the number once more (a new plan begins) on the connection that owns the target."""
    check_lock(connection)
    return _raise_fence(connection, owner.run, first=owner.number + 1)


def check_lock(connection: TargetConnection) -> None:
    """Raise FenceLost unless this connection still holds the GET_LOCK."""
    holder = _lock_holder(connection)
    if holder != connection.connection_id:
        raise FenceLost(
            f"target {connection.name} is owned by connection {holder} now", target=connection.name, found=holder
        )


def hold_shared(connection: TargetConnection, number: int) -> None:
    """Inside a unit's transaction: lock the fence row shared and compare; FenceLost when another owner raised it.

    Shared, because an exclusive lock would make the units of one run take turns.
    """
    id_, lock = 1, "LOCK IN SHARE MODE"
    if connection.dialect is Dialect.TIDB:
        id_, lock = 2 + connection.connection_id % _ROWS_OF_UNITS, "FOR UPDATE"
    with ours_there(connection):
        found = connection.value(f"SELECT number FROM {connection.table('fence')} WHERE id = {id_} {lock}")
    if found is None or int(found) != number:
        raise FenceLost(
            f"target {connection.name} has a new owner (fence {found}, ours is {number}): this run ends",
            target=connection.name,
            have=number,
            found=found,
        )


def require_last(connection: TargetConnection, owner_id: int) -> None:
    """FenceLost when another connection than this one has owned the target since."""
    with ours_there(connection):
        found = connection.value(f"SELECT connection_id FROM {connection.table('fence')} WHERE id = 1")
    if found is None or int(found) != owner_id:
        raise FenceLost(
            f"target {connection.name} was taken over by connection {found}: what is there is of that run",
            target=connection.name,
            found=found,
        )


@contextmanager
def ours_there(connection: TargetConnection) -> Iterator[None]:
    """FenceLost where a statement does not find our tables."""
    try:
        yield
    except StatementFailed as error:
        if error.code in NO_SUCH:
            raise gone(connection) from error
        raise


def gone(connection: TargetConnection) -> FenceLost:
    """Our tables are not there any more: a restore of parts that comes to its end drops them."""
    return FenceLost(
        f"target {connection.name} has no {connection.settings.schema_name}.fence any more: another run of this "
        "restore has come to its end meanwhile, or somebody dropped it",
        hint="run this again: it finds what is there",
        target=connection.name,
    )


def release(connection: TargetConnection) -> None:
    """Give the lock back (closing the connection does it too)."""
    try:
        connection.query("SELECT RELEASE_LOCK(%s)", (lock_name(connection.settings.schema_name),))
    except LoadError:
        connection.close()
