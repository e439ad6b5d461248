"""Compile (or load from the disk cache) every kernel of the reader, before a source waits for its first answer."""

from __future__ import annotations

import numpy as np

from pumphouse.capture.source import walk
from pumphouse.capture.source.encode import encode
from pumphouse.capture.source.gtid import Flavor, GtidSet
from pumphouse.capture.source.model import Group, Position, RowsEvents
from pumphouse.capture.source.stream import Reader


def warm() -> None:
    """Takes some seconds where nothing is in the cache, else a moment."""
    position = Position(gtids=GtidSet.parse("", Flavor.MARIADB))
    reader = Reader(Flavor.MARIADB, position, summed=True)
    reader.room()
    reader.took(0)
    data, none = np.zeros(16, np.uint8), np.zeros(0, np.int64)
    walk.plain_events(data[:0], none, none, none)
    walk.definition_hash(data, 0, 0)
    events = RowsEvents(table=none, kind=none, bitmaps=none, start=none, end=none, flags=none)
    encode(Group(data=data, tables=(), events=events, transactions=(), end=position), ())
