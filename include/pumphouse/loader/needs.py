"""What a server of the settings still needs of the archive: loads from its checkpoint on, a restore that has not ended.

What is not known of a server counts as everything, by its name.
"""

from __future__ import annotations

from collections.abc import Iterator

from pumphouse.archive.retention import Hold
from pumphouse.errors import BinlogError
from pumphouse.loader import state
from pumphouse.loader.plan import Mode
from pumphouse.loader.state import TargetState, our_schemas
from pumphouse.loader.target import TargetConnection, has_checkpoints
from pumphouse.model.tso import Tso, show
from pumphouse.settings import ServerSettings, TargetSettings


def needs_of(name: str, server: ServerSettings, cluster_id: int) -> list[Hold]:
    """What a server needs; never fails, what went wrong holds everything.

    Args:
        name: of its section, or its connection.
        server: where it is. A load, or a backfill onto a restored server, goes on from where a checkpoint of it is.
        cluster_id: of the archive.
    """
    target = TargetSettings.model_validate(server.model_dump(exclude_unset=True))
    found: list[Hold] = []
    try:
        for own in our_schemas(target.schema_name):
            with TargetConnection.open(target.model_copy(update={"schema_name": own})) as connection:
                if has_checkpoints(connection):
                    found += _needs(name, connection, cluster_id, loaded=own == target.schema_name)
    except BinlogError as error:
        known = all(isinstance(part, str) for part in error.advice)  # else it names a section, and not this one
        way = (known and error.hint) or "is it running? correct its address, user and password"
        return [
            Hold(
                who=name,
                ts=Tso(0),
                restorable=True,
                why=f"does not say what it needs: {error.message}",
                hint=f"{way}; or let go of what it may need: --without {name}",
            )
        ]
    return found


def _needs(name: str, connection: TargetConnection, cluster_id: int, *, loaded: bool) -> Iterator[Hold]:
    for each in state.read_known(connection):
        if each.cluster_id != cluster_id:
            continue
        if each.state is TargetState.INCOMPLETE:  # it is filled from the dump of that moment
            yield Hold(
                who=name,
                ts=each.ts,
                restorable=True,
                why=f"({connection.name}) is being filled: {each.reason}",
                hint=f"end it, or let go of what it may need: --without {name}",
            )
        elif loaded and each.state is TargetState.READY:
            plan = state.open_plan(connection, each.task)
            ts = each.ts if plan is None else Tso(min(each.ts, plan.from_ts))
            filling = plan is not None and plan.mode is Mode.BASE  # a resync, which reads the dump's segments
            doing = f"is filling {', '.join(plan.only)} from the dump of" if plan is not None and filling else "is at"
            yield Hold(
                who=name,
                ts=ts,
                restorable=filling,
                why=f"({connection.name}) {doing} {show(ts)}",
                hint=f"load it, or let go of what it needs: --without {name}; then only a restore brings it on",
            )
