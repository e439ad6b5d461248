"""Rows of `checkpoint`, `plan`, `applied` and `step`: what a target knows of its load. A change is one transaction."""

# Names in statements are quoted by pumphouse.schema.ident; values go as parameters.
# ruff: noqa: S608

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pumphouse.errors import FenceLost, LoadError
from pumphouse.loader.fence import Ownership
from pumphouse.loader.plan import Mode, Plan, UnitId
from pumphouse.loader.target import NO_SUCH, StatementFailed, TargetConnection
from pumphouse.model.tso import Tso
from pumphouse.settings import TargetSettings

# Why a target is incomplete whose first load was begun.
BEGINNING = "the first load has not ended"
# Restores of parts and drills: the task of their rows, and how the names of their schemas end.
PARTS_TASK = "parts"
PARTS_SUFFIX = "_parts"
DRILL_SUFFIX = "_drill"


def parts_schema(own: str, suffix: str = PARTS_SUFFIX) -> str:
    """The schema of restores of parts, or of drills, on a server where the state of loads is in the schema ``own``."""
    return own[: 64 - len(suffix)] + suffix


def our_schemas(own: str) -> tuple[str, str, str]:
    """Every schema of ours on a server: of loads, of restores of parts, of drills."""
    return own, parts_schema(own), parts_schema(own, DRILL_SUFFIX)


def parts_schemas(targets: Iterable[TargetSettings]) -> frozenset[str]:
    """What those of restores of parts and of drills may be called on any of these servers, in lower case."""
    return frozenset(
        name.lower() for each in (TargetSettings(), *targets) for name in our_schemas(each.schema_name)[1:]
    )


class TargetState(StrEnum):
    """Whether a target may be loaded."""

    READY = "ready"
    INCOMPLETE = "incomplete"
    INCONSISTENT = "inconsistent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A task's row."""

    task: str
    ts: Tso
    state: TargetState
    reason: str
    cluster_id: int
    plan_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """How far a plan came: the units that are applied, the last DDL that was begun (commit ts)."""

    units: frozenset[UnitId] = frozenset()
    ddl: int = 0


NOTHING_BEGUN = Begun()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Steps that were written down together and have not ended: their digest; by number, the notes of those done."""

    digest: str = ""
    done: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


NOTHING_RECORDED = Recorded()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a target says of a task: read once, when it is owned. ``begun``: how far the open plan came."""

    checkpoint: Checkpoint | None = None
    plan: Plan | None = None
    begun: Begun = NOTHING_BEGUN
    recorded: Recorded = NOTHING_RECORDED

    @property
    def untouched(self) -> bool:
        """Whether nothing of the open plan was applied: it is given up, as a new one sees more of the archive."""
        plan, begun = self.plan, self.begun
        return plan is not None and plan.mode is not Mode.REPLAY and not _touched(plan, begun)


def _touched(plan: Plan, begun: Begun) -> bool:
    return bool(begun.units) or (plan.mode is Mode.MERGE and begun.ddl > 0)


def read_standing(connection: TargetConnection, task: str) -> Standing:
    """Everything that planners need of the target's tables."""
    plan = open_plan(connection, task)
    return Standing(
        checkpoint=read(connection, task),
        plan=plan,
        begun=NOTHING_BEGUN if plan is None else begun(connection, plan),
        recorded=recorded(connection, task),
    )


def recorded(connection: TargetConnection, task: str) -> Recorded:
    """The steps that were written down for a task; none where a release that has them was never there."""
    try:
        rows = connection.query(
            f"SELECT number, digest, state, notes FROM {connection.table('step')} WHERE task = %s", (task,)
        )
    except StatementFailed as error:
        if error.code not in NO_SUCH:
            raise
        rows = []
    done = {int(number): tuple(json.loads(notes)) for number, _, state, notes in rows if state == "done"}
    return Recorded(digest=rows[0][1], done=done) if rows else NOTHING_RECORDED


def is_ready_with(connection: TargetConnection, task: str, digest: str) -> bool:
    """Whether a task's target is ready, and has the steps of that digest."""
    return _has_steps(connection, task, digest, TargetState.READY)


def has_begun(connection: TargetConnection, task: str, digest: str) -> bool:
    """Whether the steps of that digest have begun on a task's target, and left it incomplete."""
    return _has_steps(connection, task, digest, TargetState.INCOMPLETE)


def _has_steps(connection: TargetConnection, task: str, digest: str, state: TargetState) -> bool:
    if recorded(connection, task).digest != digest:
        return False
    found = read(connection, task)
    return found is not None and found.state is state


def read(connection: TargetConnection, task: str) -> Checkpoint | None:
    """A task's checkpoint, or None."""
    return next((found for found in read_all(connection) if found.task == task), None)


def read_all(connection: TargetConnection) -> list[Checkpoint]:
    """Every task's checkpoint."""
    rows = connection.query(
        f"SELECT task, ts, state, reason, cluster_id, plan_number FROM {connection.table('checkpoint')} ORDER BY task"
    )
    return [
        Checkpoint(
            task=str(task),
            ts=Tso(int(ts)),
            state=TargetState(state),
            reason=str(reason),
            cluster_id=int(cluster_id),
            plan_number=int(number),
        )
        for task, ts, state, reason, cluster_id, number in rows
    ]


def read_known(connection: TargetConnection) -> list[Checkpoint]:
    """The same; none where no load or restore has begun there, or the last one of parts has ended."""
    try:
        return read_all(connection)
    except StatementFailed as error:  # information_schema would hide a table that this user may not read
        if error.code not in NO_SUCH:
            raise
        return []


def is_known(connection: TargetConnection) -> bool:
    """Whether any load or restore has begun there."""
    return bool(read_known(connection))


def reach(connection: TargetConnection, cluster_id: int) -> Tso:
    """Up to where anything of a cluster may have come to the target: checkpoints, and plans whether done or not."""
    checkpoint, plan = connection.table("checkpoint"), connection.table("plan")
    return Tso(
        int(
            connection.value(
                f"SELECT GREATEST(COALESCE(MAX(c.ts), 0), COALESCE(MAX(p.to_ts), 0)) FROM {checkpoint} c"
                f" LEFT JOIN {plan} p ON p.task = c.task WHERE c.cluster_id = %s",
                (cluster_id,),
            )
            or 0
        )
    )


def write(connection: TargetConnection, owner: Ownership, checkpoint: Checkpoint) -> None:
    """Put a task's checkpoint as a whole (a start or a restore, never the course of a load)."""
    with fenced(connection, owner):
        _put(connection, checkpoint)


def record_steps(
    connection: TargetConnection, owner: Ownership, task: str, digest: str, steps: Sequence[tuple[str, str]]
) -> None:
    """Write steps down, (kind, what) each, in place of what was written down before, for whatever task."""
    with fenced(connection, owner):
        _put_steps(connection, task, digest, steps)


def _put_steps(connection: TargetConnection, task: str, digest: str, steps: Sequence[tuple[str, str]]) -> None:
    connection.execute(f"DELETE FROM {connection.table('step')}")
    for number, (kind, what) in enumerate(steps):
        connection.execute(
            f"INSERT INTO {connection.table('step')} (task, number, kind, what, digest, state, notes)"
            " VALUES (%s, %s, %s, %s, %s, 'planned', '[]')",
            (task, number, kind, what, digest),
        )


def step_done(
    connection: TargetConnection, owner: Ownership, task: str, number: int, notes: Sequence[str] = ()
) -> None:
    """A step has ended, with what it has to say."""
    with fenced(connection, owner):
        _mark_step(connection, task, number, notes)


def _mark_step(connection: TargetConnection, task: str, number: int, notes: Sequence[str] = ()) -> None:
    connection.execute(
        f"UPDATE {connection.table('step')} SET state = 'done', notes = %s WHERE task = %s AND number = %s",
        (json.dumps(list(notes)), task, number),
    )


def forget_steps(connection: TargetConnection, owner: Ownership) -> None:
    """None are under way: whoever plans the same begins anew."""
    with fenced(connection, owner):
        connection.execute(f"DELETE FROM {connection.table('step')}")


def end_follow(connection: TargetConnection, owner: Ownership, task: str) -> None:
    """The load behind a restore has come to its end: the same command is another restore."""
    with fenced(connection, owner):
        connection.execute(f"DELETE FROM {connection.table('step')} WHERE task = %s AND kind = 'follow'", (task,))


def reset(connection: TargetConnection, owner: Ownership, checkpoint: Checkpoint) -> None:
    """Forget plans and units of every task and begin anew with one checkpoint row: a restore's first change."""
    with fenced(connection, owner):
        for name in ("plan", "applied", "checkpoint"):
            connection.execute(f"DELETE FROM {connection.table(name)}")
        _put(connection, checkpoint)


def _put(connection: TargetConnection, checkpoint: Checkpoint) -> None:
    connection.execute(
        f"REPLACE INTO {connection.table('checkpoint')} (task, ts, state, reason, cluster_id, plan_number)"
        " VALUES (%s, %s, %s, %s, %s, %s)",
        (checkpoint.task, checkpoint.ts, str(checkpoint.state), checkpoint.reason, checkpoint.cluster_id,
         checkpoint.plan_number),
    )  # fmt: skip


@contextmanager
def fenced(connection: TargetConnection, owner: Ownership) -> Iterator[None]:
    """A transaction that has the fence exclusively: it waits for running units; FenceLost when it has a new owner."""
    with connection.transaction():
        # Every row: on a TiDB units hold others than the first.
        found = connection.value(f"SELECT number FROM {connection.table('fence')} ORDER BY id FOR UPDATE")
        if found is None or int(found) != owner.number:
            raise FenceLost(
                f"target {connection.name} has a new owner (fence {found}, ours is {owner.number}): this run ends",
                target=connection.name,
                have=owner.number,
                found=found,
            )
        yield


def open_plan(connection: TargetConnection, task: str) -> Plan | None:
    """The plan that an earlier run left unfinished, or None."""
    rows = connection.query(
        f"SELECT task, number, from_ts, to_ts, mode, spec, digest FROM {connection.table('plan')}"
        " WHERE task = %s AND state = 'open'",
        (task,),
    )
    if len(rows) > 1:
        raise LoadError(f"task {task} has {len(rows)} open plans on {connection.name}", hint="only a restore helps")
    return Plan.from_row(rows[0]) if rows else None


def begun(connection: TargetConnection, plan: Plan) -> Begun:
    """How far an open plan came."""
    ddl = connection.value(
        f"SELECT MAX(commit_ts) FROM {connection.table('ddl')}"
        " WHERE task = %s AND commit_ts > %s AND commit_ts <= %s AND state <> 'planned'",
        (plan.task, plan.from_ts, plan.to_ts),
    )
    # A replay moves the checkpoint as it goes.
    at = connection.value(f"SELECT ts FROM {connection.table('checkpoint')} WHERE task = %s", (plan.task,))
    reached = int(at or 0) if plan.mode is Mode.REPLAY and int(at or 0) > plan.from_ts else 0
    return Begun(units=frozenset(applied_units(connection, plan)), ddl=max(int(ddl or 0), reached))


def amend_plan(connection: TargetConnection, owner: Ownership, plan: Plan) -> None:
    """Write an open plan's row anew: other boundaries behind what was begun, other tables left out, a later end."""
    with fenced(connection, owner):
        connection.execute(
            f"UPDATE {connection.table('plan')} SET to_ts = %s, spec = %s, digest = %s"
            " WHERE task = %s AND number = %s AND state = 'open'",
            (plan.to_ts, plan.spec(), plan.digest(), plan.task, plan.number),
        )


def move_checkpoint(connection: TargetConnection, task: str, ts: Tso) -> None:
    """Inside the transaction of a replay's last changes up to ``ts``."""
    connection.execute(
        f"UPDATE {connection.table('checkpoint')} SET ts = %s WHERE task = %s AND ts < %s", (ts, task, ts)
    )


def begin_plan(connection: TargetConnection, owner: Ownership, plan: Plan) -> None:
    """Commit the plan row before its first unit."""
    with fenced(connection, owner):
        connection.execute(
            f"INSERT INTO {connection.table('plan')} (task, number, from_ts, to_ts, mode, spec, digest, state)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s, 'open')",
            (plan.task, plan.number, plan.from_ts, plan.to_ts, str(plan.mode), plan.spec(), plan.digest()),
        )
        connection.execute(
            f"UPDATE {connection.table('checkpoint')} SET plan_number = %s WHERE task = %s",
            (plan.number, plan.task),
        )


def close_plan(connection: TargetConnection, owner: Ownership, plan: Plan, step: int | None = None) -> Ownership:
    """Close the plan, move the checkpoint, clear `applied` and raise the fence, as one; what we own from then on.

    ``step``: number of the step that ends by it, where it was written down.

    Under the exclusive fence no unit is running. One that wakes up later (an executor that was thought dead) no longer
    finds its id in `applied`: the number, which is another one by then, keeps it from applying itself again.
    """
    with fenced(connection, owner):
        closed = connection.execute(
            f"UPDATE {connection.table('plan')} SET state = 'closed'"
            " WHERE task = %s AND number = %s AND state = 'open'",
            (plan.task, plan.number),
        )
        if closed != 1:
            raise FenceLost(f"plan {plan.number} of task {plan.task} is not open any more", target=connection.name)
        connection.execute(
            f"UPDATE {connection.table('checkpoint')} SET ts = %s WHERE task = %s AND ts <= %s",
            (plan.to_ts, plan.task, plan.to_ts),
        )
        if step is not None:
            _mark_step(connection, plan.task, step)
        connection.execute(
            f"DELETE FROM {connection.table('applied')} WHERE task = %s AND plan = %s",
            (plan.task, plan.number),
        )
        return _raised(connection, owner)


def set_state(
    connection: TargetConnection,
    owner: Ownership,
    task: str,
    state: TargetState,
    reason: str,
    then: tuple[str, Sequence[tuple[str, str]]] = ("", ()),
) -> None:
    """Change the state of a task's target. Ready, it has no steps any more that a run might go on with.

    ``then``: digest and (kind, what) of those that it has from now on.
    """
    with fenced(connection, owner):
        connection.execute(
            f"UPDATE {connection.table('checkpoint')} SET state = %s, reason = %s WHERE task = %s",
            (str(state), reason, task),
        )
        if state is TargetState.READY:
            _put_steps(connection, task, *then)


def discard(connection: TargetConnection, owner: Ownership, plan: Plan) -> Ownership:
    """Give an open plan up: of which nothing was applied, or of a resync, whose table is left out as before.

    Under the exclusive fence no unit is under way. Statements that were written down for its DDLs go too.
    """
    args = (plan.task, plan.number)
    with fenced(connection, owner):
        if not plan.only and _touched(plan, begun(connection, plan)):
            raise LoadError(f"plan {plan.number} of task {plan.task} has begun meanwhile", hint="run this again")
        if plan.only:
            connection.execute(f"DELETE FROM {connection.table('step')}")
        if plan.mode is Mode.MERGE:
            connection.execute(
                f"DELETE FROM {connection.table('ddl')}"
                " WHERE task = %s AND commit_ts > %s AND commit_ts <= %s AND state = 'planned'",
                (plan.task, plan.from_ts, plan.to_ts),
            )
        connection.execute(f"DELETE FROM {connection.table('applied')} WHERE task = %s AND plan = %s", args)
        connection.execute(
            f"UPDATE {connection.table('plan')} SET state = 'discarded' WHERE task = %s AND number = %s", args
        )
        return _raised(connection, owner)


def _raised(connection: TargetConnection, owner: Ownership) -> Ownership:
    """What we own when the fence is raised, in a transaction that has it: units of before apply themselves no more."""
    raised = replace(owner, number=owner.number + 1)
    connection.execute(f"UPDATE {connection.table('fence')} SET number = %s", (raised.number,))
    return raised


def abandon_plan(connection: TargetConnection, owner: Ownership, plan: Plan, reason: str) -> None:
    """Give an open plan up: the target is neither before nor after it and is marked so."""
    with fenced(connection, owner):
        connection.execute(
            f"UPDATE {connection.table('plan')} SET state = 'abandoned' WHERE task = %s AND number = %s",
            (plan.task, plan.number),
        )
        connection.execute(f"DELETE FROM {connection.table('step')}")
        connection.execute(
            f"UPDATE {connection.table('checkpoint')} SET state = %s, reason = %s WHERE task = %s",
            (str(TargetState.INCONSISTENT), reason, plan.task),
        )


def applied_units(connection: TargetConnection, plan: Plan) -> set[UnitId]:
    """Units of a plan that are committed."""
    rows: Iterable[tuple[int, int, int, int]] = connection.query(
        f"SELECT epoch, phase, table_id, bucket FROM {connection.table('applied')} WHERE task = %s AND plan = %s",
        (plan.task, plan.number),
    )
    return {UnitId(*map(int, row)) for row in rows}
