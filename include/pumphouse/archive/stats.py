"""Which tables a run of payloads touches, for the manifest's pruning figures; and which payloads cannot be read."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from pumphouse.archive.manifest import TableStat
from pumphouse.errors import CodecError


class Walked(NamedTuple):
    """What payloads hold.

    Attributes:
        changes: row changes in all.
        tables: for each table id its row changes and the bytes of their images.
        unreadable: why the row changes of a payload cannot be found, by its place. It adds nothing to the figures.
    """

    changes: int
    tables: dict[int, TableStat]
    unreadable: dict[int, str]


def table_stats(payloads: pa.LargeBinaryArray) -> Walked:
    """Walk payloads; one that does not parse is named, and those beside it are walked all the same."""
    # Compiled code is loaded when it is needed: planning a window needs none.
    from pumphouse.codec.columnar import walk

    changes, tables, unreadable = 0, dict[int, TableStat](), dict[int, str]()
    begin, end = 0, len(payloads)
    while begin < len(payloads):
        try:
            found = walk(payloads.slice(begin, end - begin))
        except CodecError as error:
            bad = begin + int(error.facts["txn"])
            unreadable[bad] = str(error.facts["reason"])
            # Those before it are good; it is left out.
            begin, end = (begin, bad) if bad > begin else (bad + 1, len(payloads))
            continue
        changes += len(found)
        for table, (rows, size) in found.table_stats().items():
            have = tables.get(table, TableStat(rows=0, bytes=0))
            tables[table] = TableStat(rows=have.rows + rows, bytes=have.bytes + size)
        begin, end = (end + 1, len(payloads)) if end in unreadable else (end, len(payloads))
    return Walked(changes, tables, unreadable)
