"""What lies in a base, read by nothing but its segments; and folds of made archives."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pumphouse.archive.base import Base, read_columns_of
from pumphouse.archive.view import read_view
from pumphouse.folding.run import FoldReport, fold_base
from pumphouse.model.tso import Tso
from pumphouse.settings import LoadSettings
from tests.support.dumpedsource import DumpedSource
from tests.support.happenings import Happenings
from tests.support.madearchive import MadeSource

# Parts of a few rows.
SMALL = LoadSettings().model_copy(update={"unit_bytes": 400})


def folded(source: MadeSource, at: Tso | None = None, load: LoadSettings = SMALL, **how: Any) -> FoldReport:
    """Fold a made archive."""
    return fold_base(source.archive, load, source.settings, at, **how)


def base_of(source: MadeSource, at: Tso) -> Base:
    """The base that is exact from a moment on."""
    return read_view(source.archive).base_at(at)


def rows_of(source: MadeSource, base: Base) -> dict[str, Counter[tuple[Any, ...]]]:
    """Rows of every table of a base of columns, in the form of `MadeSource.snapshot`."""
    found = {}
    for table in base.tables:
        rows = [
            row
            for segment in table.segments
            for batch in read_columns_of(source.archive.store, segment)
            for row in batch.to_pylist()
        ]
        assert len(rows) == table.rows == sum(segment.rows for segment in table.segments)
        found[table.table] = Counter(tuple(row.values()) for row in rows)
    return found


def dump_meanwhile(source: DumpedSource, world: Happenings) -> Tso:
    """A dump of all tables while they are written to; exact from the moment on that is returned."""
    begun, chunks = source.cut(), []
    for name in sorted(source.tables):
        # What no key tells apart is read in a snapshot, of which the ts is known.
        low = begun if source.tables[name].info.pk_is_handle else source.cut()
        chunks.append(source.read(name, low, begun))
        world.write(1)
    at = source.publish(begun, chunks)
    world.marks.append((at, source.snapshot()))
    return at
