"""Where a capture begins: a position of the source, and the schema as it was exactly there, without a lock.

The schema is read between two looks at the position. Statements hold their tables until they are in the binlog, so a
change that was read is in it up to the second look, or is not there at all. Where the binlog between the two has a
change, all is read again.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import structlog

from pumphouse.capture.schemas import StoredSchema, read_objects, server_kind
from pumphouse.capture.source.model import Group, Position
from pumphouse.capture.source.session import position_now
from pumphouse.capture.source.stream import open_stream
from pumphouse.capture.statements import Does, meaning
from pumphouse.clock import Clock
from pumphouse.dump.source import TableChanged, session
from pumphouse.errors import CaptureRefused, SourceFailed, SourceHeld
from pumphouse.settings import Settings

log = structlog.get_logger()

_TRIES = 20
_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The schema at a position."""

    gtid: str
    schema: StoredSchema


def take_picture(settings: Settings, stop: threading.Event, clock: Clock) -> Picture:
    """Read it; SourceFailed where the schema changes all the time."""
    why = ""
    for _ in range(_TRIES):
        try:
            with session(settings.source) as connection:
                before = position_now(connection)
                schema = StoredSchema(server=server_kind(connection), objects=read_objects(connection))
                after = position_now(connection)
        except (TableChanged, SourceHeld) as error:
            why = str(error)
        else:
            why = _changes(settings, before, after, stop)
            if not why:
                return Picture(gtid=str(before.gtids), schema=schema)
        log.info("schema_read_again", reason=why)
        clock.sleep(_PAUSE_S)
    raise SourceFailed(f"the schema of the source changes all the time: {why}", hint="begin when no DDL is under way")


def _changes(settings: Settings, before: Position, after: Position, stop: threading.Event) -> str:
    """A statement between two positions that changes the schema; '' = there is none."""
    if before.gtids == after.gtids:
        return ""
    ended = threading.Event()
    with open_stream(
        settings.source, before.by_gtid, section="source", server_id=settings.capture.server_id, stop=ended
    ) as stream:
        for item in stream:
            if not isinstance(item, Group):
                if item.position.gtids.covers(after.gtids):
                    return ""
                continue
            for transaction in item.transactions:
                for query in transaction.queries:
                    text = query.text.decode("utf-8", "replace")
                    try:
                        does = meaning(text, query.schema).does
                    except CaptureRefused:
                        does = Does.CHANGES
                    if does is Does.CHANGES:
                        return text[:200]
            if item.end.gtids.covers(after.gtids) or stop.is_set():
                return ""
    return "the binlog ended before the second look"
