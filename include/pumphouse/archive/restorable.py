"""From when on an archive can be restored."""

from __future__ import annotations

from pumphouse.archive.archive import Archive
from pumphouse.archive.view import read_view
from pumphouse.model.tso import Tso


def restorable_from(archive: Archive) -> Tso | None:
    """The first moment that a restore may go to; None when the archive has nothing to begin from.

    That is the oldest dump that is kept, where anything has expired. Else it is genesis, where its tables were dumped
    or there were none, else the first later dump.
    """
    genesis, kept = archive.genesis(), archive.range()
    if kept.base is not None:
        return kept.base.ts
    if genesis.base is not None or not genesis.ddl.jobs:
        return genesis.ts
    bases = read_view(archive, end=genesis.ts).bases or archive.bases(archive.end())
    return bases[0].ts if bases else None
