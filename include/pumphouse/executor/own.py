"""Taking a target: our tables there, its lock and fence, and whether it is this load's."""

from __future__ import annotations

from pumphouse import advice
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import LoadError
from pumphouse.loader import fence, state
from pumphouse.loader.fence import Ownership
from pumphouse.loader.steps import Abandon, Steps
from pumphouse.loader.target import TargetConnection
from pumphouse.loader.unfit import require_engine, require_state


def own_target(
    connection: TargetConnection,
    *,
    task: str,
    cluster_id: int,
    run: str,
    take_over: bool = False,
    any_task: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> Ownership:
    """Take the target, or raise TargetBusy naming the holder.

    ``any_task``: a restore, which throws every task's state away, may take a target that belongs to another load, also
    one from another cluster's archive.
    """
    require_engine(connection)
    connection.create_tables()
    require_state(connection)
    owner = fence.acquire(connection, run=run, take_over=take_over, clock=clock)
    if not any_task:
        require_ours(connection, task, cluster_id)
    return owner


def require_ours(connection: TargetConnection, task: str, cluster_id: int) -> None:
    """LoadError where the target belongs to another load, or is loaded from another cluster's archive."""
    for found in state.read_all(connection):
        if found.task != task:
            raise LoadError(
                f"target {connection.name} belongs to the load {found.task!r}: both would write its tables",
                hint=f"use --task {found.task}, or another target",
                target=connection.name,
                task=found.task,
            )
        if found.cluster_id != cluster_id:
            raise LoadError(
                f"target {connection.name} is loaded from cluster {found.cluster_id}, the archive is of cluster "
                f"{cluster_id}",
                hint=("is it the right one: check host and port of ", advice.Section(), ", and archive.root"),
                target=connection.name,
            )


def give_up(connection: TargetConnection, owner: Ownership, steps: Steps) -> None:
    """Abandon the open plan: it needs neither archive nor schema."""
    for step in steps.all:
        if isinstance(step, Abandon):
            state.abandon_plan(connection, owner, step.plan, step.reason)
