"""Which tables a run of payloads touches, for the manifest's pruning figures."""

from __future__ import annotations

import pyarrow as pa

from pumphouse.archive.manifest import TableStat


def table_stats(payloads: pa.LargeBinaryArray) -> tuple[int, dict[int, TableStat]]:
    """Row changes in all, and for each table id its row changes and the bytes of their images; CodecError."""
    # Compiled code is loaded when it is needed: planning a window needs none.
    from pumphouse.codec.columnar import walk

    found = walk(payloads)
    stats = {table: TableStat(rows=rows, bytes=size) for table, (rows, size) in found.table_stats().items()}
    return len(found), stats
