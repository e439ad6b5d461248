"""Every type of DDL job, and the facts about it (docs/formats.md, "DDL jobs"; docs/ddl.md).

`FACTS` is the one place that says what a type is. Fold, stored schema, dumps, loads, rules and the renderer read it. A
number without an entry is UNKNOWN to all of them: nothing is loaded past such a job where it names a table or database.
"""

from __future__ import annotations

from enum import Enum, IntEnum, auto
from typing import NamedTuple

from pumphouse.schema.dialect import Dialect


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


class Effect(Enum):
    """What a job does to the timeline: `pumphouse.schema.fold` has a method for each."""

    NOTHING = auto()
    CREATE_DATABASE = auto()
    ALTER_DATABASE = auto()
    DROP_DATABASE = auto()
    RECOVER_DATABASE = auto()
    CREATE = auto()
    CREATE_EACH = auto()
    DROP = auto()
    TRUNCATE = auto()
    RENAME = auto()
    RENAME_EACH = auto()
    EXCHANGE = auto()
    REPARTITION = auto()
    REPLACE = auto()  # the job carries the table as it is now
    FLASHBACK = auto()
    UNKNOWN = auto()


class Reach(Enum):
    """What a job touches, and what of that it names."""

    NOTHING = auto()
    DATABASE = auto()  # a database alone
    WHOLE_DATABASE = auto()  # a database and its tables, which the job does not name: each fares alike
    CLUSTER = auto()  # the rows of every table; the job names none
    TABLES = auto()  # tables whose ids the job has; what becomes of one depends on the others
    EACH = auto()  # tables that the job carries, each for itself
    REPLACED = auto()  # the table that the job carries, and the one that had its name, whose id the job does not have
    RENAMED = auto()  # tables whose ids are in the job's arguments, if the history kept them
    UNTOLD = auto()  # maybe tables that the job does not name


class Rows(Enum):
    """What becomes of rows without a binlog."""

    STAY = auto()
    BEGIN = auto()  # the table begins without any
    RENEW = auto()  # they go, and the table begins anew under another id
    GO = auto()
    GO_SLOWLY = auto()  # they go, and meanwhile others may write to them
    RETURN = auto()  # those of a dropped table come back
    SWAP = auto()  # tables take each other's
    ANY = auto()  # nobody knows which changed


class Form(Enum):
    """The statements of a job: `pumphouse.schema.render` has a function for each but NONE."""

    NONE = auto()
    CREATE_DATABASE = auto()
    ALTER_DATABASE = auto()
    DROP_DATABASE = auto()
    CREATE = auto()
    DROP = auto()
    RECOVER = auto()
    TRUNCATE = auto()
    RENAME = auto()
    ALTER = auto()  # what differs between the table before and after
    ALTER_SEQUENCE = auto()
    ADD_PARTITION = auto()
    DROP_PARTITION = auto()
    TRUNCATE_PARTITION = auto()
    REORGANIZE_PARTITION = auto()
    EXCHANGE_PARTITION = auto()
    REPARTITION = auto()


class Facts(NamedTuple):
    """What there is to know of a type. No fact has a default: an entry that lacks one is an error.

    ``repeatable``: its own statement may run twice, on any server, if no rows come between. ``on``: where it is
    rendered; elsewhere it has no meaning.
    """

    effect: Effect
    reach: Reach
    rows: Rows
    form: Form
    repeatable: bool
    on: frozenset[Dialect]

    @property
    def silent(self) -> bool:
        """Whether it changes no table and nothing downstream; some such jobs carry a table nevertheless."""
        return self.effect is Effect.NOTHING


_ALL, _NO_TARGET, _TIDB = frozenset(Dialect), frozenset[Dialect](), frozenset({Dialect.TIDB})
_SILENT = Facts(Effect.NOTHING, Reach.NOTHING, Rows.STAY, Form.NONE, True, _NO_TARGET)
_ALTER = Facts(Effect.REPLACE, Reach.TABLES, Rows.STAY, Form.ALTER, False, _ALL)
# A target that is no TiDB has nothing like it.
_OPTION = _ALTER._replace(on=_TIDB)
_IGNORED = _ALTER._replace(on=_NO_TARGET)

FACTS: dict[Action, Facts] = {
    Action.UNKNOWN: Facts(Effect.UNKNOWN, Reach.UNTOLD, Rows.ANY, Form.NONE, False, _NO_TARGET),
    Action.NONE: _SILENT,
    Action.CREATE_SCHEMA: Facts(Effect.CREATE_DATABASE, Reach.DATABASE, Rows.STAY, Form.CREATE_DATABASE, True, _ALL),
    Action.DROP_SCHEMA: Facts(Effect.DROP_DATABASE, Reach.WHOLE_DATABASE, Rows.GO, Form.DROP_DATABASE, True, _ALL),
    Action.CREATE_TABLE: Facts(Effect.CREATE, Reach.TABLES, Rows.BEGIN, Form.CREATE, False, _ALL),
    Action.DROP_TABLE: Facts(Effect.DROP, Reach.TABLES, Rows.GO, Form.DROP, True, _ALL),
    Action.ADD_COLUMN: _ALTER,
    Action.DROP_COLUMN: _ALTER,
    Action.ADD_INDEX: _ALTER,
    Action.DROP_INDEX: _ALTER,
    Action.ADD_FOREIGN_KEY: _ALTER,
    Action.DROP_FOREIGN_KEY: _ALTER,
    Action.TRUNCATE_TABLE: Facts(Effect.TRUNCATE, Reach.TABLES, Rows.RENEW, Form.TRUNCATE, True, _ALL),
    Action.MODIFY_COLUMN: _ALTER,
    Action.REBASE_AUTO_ID: _ALTER,
    Action.RENAME_TABLE: Facts(Effect.RENAME, Reach.TABLES, Rows.STAY, Form.RENAME, False, _ALL),
    Action.SET_DEFAULT_VALUE: _ALTER,
    Action.SHARD_ROW_ID: _OPTION,
    Action.MODIFY_TABLE_COMMENT: _ALTER,
    Action.RENAME_INDEX: _ALTER,
    Action.ADD_PARTITION: Facts(Effect.REPLACE, Reach.TABLES, Rows.STAY, Form.ADD_PARTITION, False, _ALL),
    Action.DROP_PARTITION: Facts(Effect.REPLACE, Reach.TABLES, Rows.GO_SLOWLY, Form.DROP_PARTITION, False, _ALL),
    Action.CREATE_VIEW: Facts(Effect.CREATE, Reach.REPLACED, Rows.BEGIN, Form.CREATE, True, _ALL),
    Action.MODIFY_TABLE_CHARSET: _ALTER,
    Action.TRUNCATE_PARTITION: Facts(Effect.REPLACE, Reach.TABLES, Rows.GO, Form.TRUNCATE_PARTITION, True, _ALL),
    Action.DROP_VIEW: Facts(Effect.DROP, Reach.TABLES, Rows.GO, Form.DROP, True, _ALL),
    Action.RECOVER_TABLE: Facts(Effect.CREATE, Reach.TABLES, Rows.RETURN, Form.RECOVER, False, _ALL),
    Action.MODIFY_SCHEMA_CHARSET: Facts(
        Effect.ALTER_DATABASE, Reach.DATABASE, Rows.STAY, Form.ALTER_DATABASE, True, _ALL
    ),
    Action.LOCK_TABLE: _SILENT,
    Action.UNLOCK_TABLE: _SILENT,
    Action.REPAIR_TABLE: _ALTER,
    Action.SET_TIFLASH_REPLICA: _IGNORED,
    Action.UPDATE_TIFLASH_STATUS: _SILENT,
    Action.ADD_PRIMARY_KEY: _ALTER,
    Action.DROP_PRIMARY_KEY: _ALTER,
    Action.CREATE_SEQUENCE: Facts(Effect.CREATE, Reach.TABLES, Rows.BEGIN, Form.CREATE, False, _ALL),
    Action.ALTER_SEQUENCE: Facts(Effect.REPLACE, Reach.TABLES, Rows.STAY, Form.ALTER_SEQUENCE, True, _ALL),
    Action.DROP_SEQUENCE: Facts(Effect.DROP, Reach.TABLES, Rows.GO, Form.DROP, True, _ALL),
    Action.ADD_COLUMNS: _ALTER,
    Action.DROP_COLUMNS: _ALTER,
    Action.MODIFY_AUTO_ID_CACHE: _OPTION,
    Action.REBASE_AUTO_RANDOM: _OPTION,
    Action.ALTER_INDEX_VISIBILITY: _ALTER,
    Action.EXCHANGE_PARTITION: Facts(Effect.EXCHANGE, Reach.TABLES, Rows.SWAP, Form.EXCHANGE_PARTITION, False, _ALL),
    Action.ADD_CHECK: _ALTER,
    Action.DROP_CHECK: _ALTER,
    Action.ALTER_CHECK: _ALTER,
    Action.RENAME_TABLES: Facts(Effect.RENAME_EACH, Reach.RENAMED, Rows.STAY, Form.RENAME, False, _ALL),
    Action.DROP_INDEXES: _ALTER,
    Action.ALTER_TABLE_ATTRIBUTES: _SILENT,
    Action.ALTER_PARTITION_ATTRIBUTES: _SILENT,
    Action.CREATE_PLACEMENT_POLICY: _SILENT,
    Action.ALTER_PLACEMENT_POLICY: _SILENT,
    Action.DROP_PLACEMENT_POLICY: _SILENT,
    Action.ALTER_PARTITION_PLACEMENT: _SILENT,
    Action.MODIFY_SCHEMA_PLACEMENT: _SILENT,
    Action.ALTER_TABLE_PLACEMENT: _SILENT,
    Action.ALTER_CACHE_TABLE: _SILENT,
    Action.ALTER_STATS_OPTIONS: _IGNORED,
    Action.ALTER_NOCACHE_TABLE: _SILENT,
    Action.CREATE_TABLES: Facts(Effect.CREATE_EACH, Reach.EACH, Rows.BEGIN, Form.CREATE, False, _ALL),
    Action.MULTI_SCHEMA_CHANGE: _ALTER,
    Action.FLASHBACK_CLUSTER: Facts(Effect.FLASHBACK, Reach.CLUSTER, Rows.ANY, Form.NONE, False, _NO_TARGET),
    Action.RECOVER_SCHEMA: Facts(
        Effect.RECOVER_DATABASE, Reach.WHOLE_DATABASE, Rows.RETURN, Form.CREATE_DATABASE, True, _ALL
    ),
    Action.REORGANIZE_PARTITION: Facts(Effect.REPLACE, Reach.TABLES, Rows.STAY, Form.REORGANIZE_PARTITION, False, _ALL),
    Action.ALTER_TTL_INFO: _OPTION,
    Action.ALTER_TTL_REMOVE: _OPTION,
    Action.CREATE_RESOURCE_GROUP: _SILENT,
    Action.ALTER_RESOURCE_GROUP: _SILENT,
    Action.DROP_RESOURCE_GROUP: _SILENT,
    Action.PARTITION_BY: Facts(Effect.REPARTITION, Reach.TABLES, Rows.STAY, Form.REPARTITION, False, _ALL),
    Action.REMOVE_PARTITIONING: Facts(Effect.REPARTITION, Reach.TABLES, Rows.STAY, Form.REPARTITION, False, _ALL),
}

# Nothing of these schemas is replicated.
SYSTEM_SCHEMAS = frozenset(
    {"mysql", "information_schema", "performance_schema", "metrics_schema", "sys", "inspection_schema"}
)

# Tables with a larger id belong to TiDB itself (2^48 - 1 - 1000).
MAX_USER_TABLE_ID = (1 << 48) - 1 - 1000


def action_of(type_: int) -> Action:
    """The action of a job; UNKNOWN where there are no facts about it: the fold says whether that matters."""
    try:
        action = Action(type_)
    except ValueError:
        return Action.UNKNOWN
    return action if action in FACTS else Action.UNKNOWN


def facts_of(type_: int) -> Facts:
    """The facts about a job's type."""
    return FACTS[action_of(type_)]


def is_system(db: str) -> bool:
    """Whether a schema belongs to the server."""
    return db.lower() in SYSTEM_SCHEMAS
