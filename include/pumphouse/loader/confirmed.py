"""Up to where the Pumps may let go where their GC follows the load: what the archive has, and every target too.

With ``airflow.gc_follows = "load"`` a snapshot leaves the archive's checkpoint on the Pumps alone, and GC publishes it
here, before it runs. What is not known of a target counts as nothing: then the checkpoint stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pumphouse import advice
from pumphouse.archive import consumer
from pumphouse.archive.archive import Archive
from pumphouse.errors import BinlogError, LoadError, TargetUnavailable
from pumphouse.loader import state
from pumphouse.loader.state import TargetState
from pumphouse.loader.target import TargetConnection, has_checkpoints
from pumphouse.model.tso import Tso, show
from pumphouse.registry.base import Cluster
from pumphouse.settings import TargetSettings

_RESTORE = "restore it: ", advice.RESTORE_THIS


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """Where a target stands. ``unknown``: why that is not known, '' = it is; ``hint``: what to type then."""

    name: str
    ts: Tso = Tso(0)
    unknown: str = ""
    hint: advice.Hint = ()
    retryable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """What is decided: ``upto`` None = nothing moves. ``held_by``: the targets that stand at it, below the archive."""

    archive_end: Tso
    upto: Tso | None
    held_by: tuple[str, ...]
    unknown: tuple[Stand, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What was decided, and the checkpoint that is in force now; that never goes back, so it may lie above."""

    confirmed: Confirmed
    checkpoint: Tso

    def to_dict(self) -> dict[str, Any]:
        """Small JSON."""
        found = self.confirmed
        return {
            "archive_end": int(found.archive_end),
            "checkpoint": int(self.checkpoint),
            "held_by": list(found.held_by),
            "unknown": {each.name: each.unknown for each in found.unknown},
        }

    def text(self) -> str:
        """One sentence."""
        found = self.confirmed
        what = f"GC follows the load: the Pumps keep what lies above {show(self.checkpoint)}"
        if found.unknown:
            names = ", ".join(each.name for each in found.unknown)
            return f"{what}; that moves when it is known where every target stands, and of {names} it is not"
        if found.upto is not None and self.checkpoint > found.upto:
            return (
                f"{what}, which lies above {show(found.upto)}, where {', '.join(found.held_by)} stands: a snapshot ran "
                'without airflow.gc_follows = "load"; what it let go of is in the archive alone'
            )
        if found.held_by:
            return f"{what}, held by {', '.join(found.held_by)}"
        return f"{what}, which the archive and every target have"

    def failure(self) -> BinlogError | None:
        """An error that names every target of which it is not known where it stands, and what to type; or None."""
        unknown = self.confirmed.unknown
        if not unknown:
            return None
        # Where another try mends some of them alone, it is of no use.
        kind = TargetUnavailable if all(each.retryable for each in unknown) else LoadError
        return kind(
            f"the Pumps keep what lies above {show(self.checkpoint)}: "
            + "; ".join(f"{each.name}: {each.unknown}" for each in unknown),
            hint=advice.joined(*dict.fromkeys(each.hint for each in unknown)),
            targets=[each.name for each in unknown],
        )


def decide(archive_end: Tso, stands: Sequence[Stand]) -> Confirmed:
    """The smaller of the archive's end and every target's checkpoint; nothing where one is not known."""
    unknown = tuple(each for each in stands if each.unknown)
    upto = Tso(min([archive_end, *(each.ts for each in stands)]))
    return Confirmed(
        archive_end=archive_end,
        upto=None if unknown or not stands else upto,
        held_by=() if unknown else tuple(each.name for each in stands if each.ts == upto < archive_end),
        unknown=unknown,
    )


def publish(archive: Archive, cluster: Cluster, stands: Sequence[Stand]) -> Published:
    """Carry out what `decide` says. BadManifest, UnsafeStore: as `consumer.publish`."""
    confirmed = decide(archive.end(), stands)
    upto = consumer.NOTHING if confirmed.upto is None else confirmed.upto
    return Published(confirmed=confirmed, checkpoint=consumer.publish(archive, cluster, upto))


def ask(
    name: str, target: TargetSettings, task: str, cluster_id: int, *, of: Callable[[advice.Part], advice.Part]
) -> Stand:
    """Where a target stands; never fails, what went wrong is what it says. ``of``: what it advises, for this target."""
    found = _ask(name, target, task, cluster_id)
    return replace(found, hint=tuple(map(of, found.hint)))


def _ask(name: str, target: TargetSettings, task: str, cluster_id: int) -> Stand:
    try:
        with TargetConnection.open(target) as connection:
            found = state.read(connection, task) if has_checkpoints(connection) else None
    except BinlogError as error:
        return Stand(name=name, unknown=error.message, hint=error.advice, retryable=error.retryable)
    if found is None:
        return Stand(
            name=name,
            unknown=f"it has no checkpoint of the task {task!r}",
            hint=("load it: ", advice.load(), ", or say by its settings which task it has"),
        )
    if found.cluster_id != cluster_id:
        return Stand(
            name=name,
            unknown=f"it was loaded from cluster {found.cluster_id}, not {cluster_id}",
            hint=("is it the right one: check host and port of ", advice.Section(), ", and archive.root"),
        )
    if found.state is not TargetState.READY:
        again: advice.Hint = ("run again what has not ended: ", advice.load(), ", if it was its first, or the restore")
        hint = again if found.state is TargetState.INCOMPLETE else _RESTORE
        return Stand(name=name, unknown=f"it is {found.state}: {found.reason}", hint=hint)
    return Stand(name=name, ts=found.ts)
