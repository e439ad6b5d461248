"""Waiting until a capture has passed what its source has by now: what a dump of a captured source rests on (row Q4).

A row that is read now was committed before. Once the capture has passed the position that the source has then, the
transaction's commit ts lies below every timestamp that is taken afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pymysql.connections import Connection

from pumphouse.capture.source.gtid import GtidSet
from pumphouse.capture.source.session import position_now
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.dump.source import execute, session
from pumphouse.errors import WindowHeld
from pumphouse.registry.base import CaptureRecord, Cluster
from pumphouse.registry.captures import is_live
from pumphouse.settings import ServerSettings

_ASK_S = 0.2
# One that is being started again, or moved, is waited for.
_ABSENT_S = 60.0


def identity(connection: Connection[Any]) -> str:
    """What two connections to one server have in common."""
    names = "'server_uuid', 'hostname', 'port', 'datadir'"
    found = execute(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
    values = {str(name).lower(): str(value) for name, value in found}
    return values.get("server_uuid") or ":".join(values.get(name, "") for name in ("hostname", "port", "datadir"))


def waiter(cluster: Cluster, source: ServerSettings, clock: Clock = SYSTEM_CLOCK) -> Callable[[float | None], None]:
    """What waits, for so many seconds or as long as the capture runs, until it has passed what the source has now.

    Where nobody captures the source it returns at once: an application, or a TiDB, writes its binlogs itself.
    """

    def wait(within_s: float | None) -> None:
        captures = cluster.captures()
        if not captures:
            return
        with session(source) as connection:
            server = identity(connection)
            mine = [each.capture_id for each in captures if each.server == server]
            if not mine:
                return
            wanted = position_now(connection).gtids
        for capture_id in mine:
            _wait(cluster, capture_id, wanted, within_s, clock)

    return wait


def _wait(cluster: Cluster, capture_id: str, wanted: GtidSet, within_s: float | None, clock: Clock) -> None:
    began = seen = clock.monotonic()
    while True:
        record = next((each for each in cluster.captures() if each.capture_id == capture_id), None)
        if record is None or (record.gtid and GtidSet.parse(record.gtid, wanted.flavor).covers(wanted)):
            return
        now = clock.monotonic()
        if is_live(record, clock.now()):
            seen = now
        if now - seen > _ABSENT_S or (within_s is not None and now - began > within_s):
            raise _held(record, wanted)
        clock.sleep(_ASK_S)


def _held(record: CaptureRecord, wanted: GtidSet) -> WindowHeld:
    why = f"; it ended with: {record.reason}" if record.reason else ""
    return WindowHeld(
        f"the capture {record.capture_id} is at {record.gtid}, and the source at {wanted}{why}",
        hint="`pumphouse capture status` shows whether it runs; `pumphouse capture run` starts it",
        holders=[],
    )
