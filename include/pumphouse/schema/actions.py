"""Every type of DDL job, and what it does to the schema (docs/formats.md, "DDL jobs").

Three things are said of a type, once, here: its number, whether it is *silent* (changes no table and nothing
downstream; the Go Drainer skips these too), and how it changes the timeline (`pumphouse.schema.fold`).
"""

from __future__ import annotations

from enum import IntEnum


class Action(IntEnum):
    """Type of a DDL job; all that TiDB up to 8.3 has. 46 and 66 were never in a release."""

    UNKNOWN = -1
    NONE = 0
    CREATE_SCHEMA = 1
    DROP_SCHEMA = 2
    CREATE_TABLE = 3
    DROP_TABLE = 4
    ADD_COLUMN = 5
    DROP_COLUMN = 6
    ADD_INDEX = 7
    DROP_INDEX = 8
    ADD_FOREIGN_KEY = 9
    DROP_FOREIGN_KEY = 10
    TRUNCATE_TABLE = 11
    MODIFY_COLUMN = 12
    REBASE_AUTO_ID = 13
    RENAME_TABLE = 14
    SET_DEFAULT_VALUE = 15
    SHARD_ROW_ID = 16
    MODIFY_TABLE_COMMENT = 17
    RENAME_INDEX = 18
    ADD_PARTITION = 19
    DROP_PARTITION = 20
    CREATE_VIEW = 21
    MODIFY_TABLE_CHARSET = 22
    TRUNCATE_PARTITION = 23
    DROP_VIEW = 24
    RECOVER_TABLE = 25
    MODIFY_SCHEMA_CHARSET = 26
    LOCK_TABLE = 27
    UNLOCK_TABLE = 28
    REPAIR_TABLE = 29
    SET_TIFLASH_REPLICA = 30
    UPDATE_TIFLASH_STATUS = 31
    ADD_PRIMARY_KEY = 32
    DROP_PRIMARY_KEY = 33
    CREATE_SEQUENCE = 34
    ALTER_SEQUENCE = 35
    DROP_SEQUENCE = 36
    ADD_COLUMNS = 37
    DROP_COLUMNS = 38
    MODIFY_AUTO_ID_CACHE = 39
    REBASE_AUTO_RANDOM = 40
    ALTER_INDEX_VISIBILITY = 41
    EXCHANGE_PARTITION = 42
    ADD_CHECK = 43
    DROP_CHECK = 44
    ALTER_CHECK = 45
    RENAME_TABLES = 47
    DROP_INDEXES = 48
    ALTER_TABLE_ATTRIBUTES = 49
    ALTER_PARTITION_ATTRIBUTES = 50
    CREATE_PLACEMENT_POLICY = 51
    ALTER_PLACEMENT_POLICY = 52
    DROP_PLACEMENT_POLICY = 53
    ALTER_PARTITION_PLACEMENT = 54
    MODIFY_SCHEMA_PLACEMENT = 55
    ALTER_TABLE_PLACEMENT = 56
    ALTER_CACHE_TABLE = 57
    ALTER_STATS_OPTIONS = 58
    ALTER_NOCACHE_TABLE = 59
    CREATE_TABLES = 60
    MULTI_SCHEMA_CHANGE = 61
    FLASHBACK_CLUSTER = 62
    RECOVER_SCHEMA = 63
    REORGANIZE_PARTITION = 64
    ALTER_TTL_INFO = 65
    ALTER_TTL_REMOVE = 67
    CREATE_RESOURCE_GROUP = 68
    ALTER_RESOURCE_GROUP = 69
    DROP_RESOURCE_GROUP = 70
    PARTITION_BY = 71
    REMOVE_PARTITIONING = 72


# Types that neither the timeline nor a target need to know of. Some of them carry a TableInfo nevertheless.
SILENT = frozenset(
    {
        Action.LOCK_TABLE,
        Action.UNLOCK_TABLE,
        Action.UPDATE_TIFLASH_STATUS,
        Action.ALTER_TABLE_ATTRIBUTES,
        Action.ALTER_PARTITION_ATTRIBUTES,
        Action.CREATE_PLACEMENT_POLICY,
        Action.ALTER_PLACEMENT_POLICY,
        Action.DROP_PLACEMENT_POLICY,
        Action.ALTER_PARTITION_PLACEMENT,
        Action.MODIFY_SCHEMA_PLACEMENT,
        Action.ALTER_TABLE_PLACEMENT,
        Action.ALTER_CACHE_TABLE,
        Action.ALTER_NOCACHE_TABLE,
        Action.CREATE_RESOURCE_GROUP,
        Action.ALTER_RESOURCE_GROUP,
        Action.DROP_RESOURCE_GROUP,
        Action.NONE,
    }
)

# Nothing of these schemas is replicated.
SYSTEM_SCHEMAS = frozenset(
    {"mysql", "information_schema", "performance_schema", "metrics_schema", "sys", "inspection_schema"}
)

# Tables with a larger id belong to TiDB itself (2^48 - 1 - 1000).
MAX_USER_TABLE_ID = (1 << 48) - 1 - 1000


def action_of(type_: int) -> Action:
    """The action of a job; UNKNOWN where this release does not know it: the fold says whether that matters."""
    try:
        return Action(type_)
    except ValueError:
        return Action.UNKNOWN


def is_system(db: str) -> bool:
    """Whether a schema belongs to the server."""
    return db.lower() in SYSTEM_SCHEMAS
