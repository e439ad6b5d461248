"""Kinds and numbers of TiDB Binlog, as they are on the wire (docs/formats.md)."""

from __future__ import annotations

from enum import IntEnum

# One limit, at the client, the Pump, pull, archive and load (row P17): 1.9 GiB.
MAX_TRANSACTION_BYTES = 2_040_109_465


class BinlogType(IntEnum):
    """``Binlog.tp``."""

    PREWRITE = 0
    COMMIT = 1
    ROLLBACK = 2
    PRE_DDL = 3
    POST_DDL = 4


class MutationType(IntEnum):
    """``TableMutation.sequence``; 2 and 3 are obsolete and refused."""

    INSERT = 0
    UPDATE = 1
    DELETE_ID = 2
    DELETE_PK = 3
    DELETE_ROW = 4


class SchemaState(IntEnum):
    """State of a schema object, in jobs, tables, columns and DDL binlogs."""

    NONE = 0
    DELETE_ONLY = 1
    WRITE_ONLY = 2
    WRITE_REORG = 3
    DELETE_REORG = 4
    PUBLIC = 5
    REPLICA_ONLY = 6
    GLOBAL_TXN_ONLY = 7
