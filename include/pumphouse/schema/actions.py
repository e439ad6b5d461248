"""Every type of DDL job, and the facts about it (docs/formats.md, "DDL jobs"; docs/ddl.md).

`Action` is the one place that says what a type is. Fold, stored schema, dumps, loads, rules and the renderer read it. A
number that is not there is UNKNOWN to all of them: nothing is loaded past such a job if it names a table or database.
"""

from __future__ import annotations

from enum import Enum, IntEnum, auto
from typing import NamedTuple, Self

from pumphouse.schema.dialect import Dialect


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
    RENUMBER = auto()  # the table goes on under a new id
    RENAME = auto()
    RENAME_EACH = auto()
    EXCHANGE = auto()
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


_ALL, _NOWHERE, _TIDB = frozenset(Dialect), frozenset[Dialect](), frozenset({Dialect.TIDB})
_SILENT = Facts(Effect.NOTHING, Reach.NOTHING, Rows.STAY, Form.NONE, True, _NOWHERE)
_ALTER = Facts(Effect.REPLACE, Reach.TABLES, Rows.STAY, Form.ALTER, False, _ALL)
# A target that is no TiDB has nothing like it.
_OPTION = _ALTER._replace(on=_TIDB)
_IGNORED = _ALTER._replace(on=_NOWHERE)


class DdlType(IntEnum):
    """A number with its facts: a member without any cannot be made."""

    facts: Facts

    def __new__(cls, number: int, facts: Facts) -> Self:
        """Make a member."""
        member = int.__new__(cls, number)
        member._value_, member.facts = number, facts
        return member


class Action(DdlType):
    """Type of a DDL job; all that TiDB up to 8.3 has. 46 and 66 were never in a release."""

    UNKNOWN = -1, Facts(Effect.UNKNOWN, Reach.UNTOLD, Rows.ANY, Form.NONE, False, _NOWHERE)
    NONE = 0, _SILENT
    CREATE_SCHEMA = 1, Facts(Effect.CREATE_DATABASE, Reach.DATABASE, Rows.STAY, Form.CREATE_DATABASE, True, _ALL)
    DROP_SCHEMA = 2, Facts(Effect.DROP_DATABASE, Reach.WHOLE_DATABASE, Rows.GO, Form.DROP_DATABASE, True, _ALL)
    CREATE_TABLE = 3, Facts(Effect.CREATE, Reach.TABLES, Rows.BEGIN, Form.CREATE, False, _ALL)
    DROP_TABLE = 4, Facts(Effect.DROP, Reach.TABLES, Rows.GO, Form.DROP, True, _ALL)
    ADD_COLUMN = 5, _ALTER
    DROP_COLUMN = 6, _ALTER
    ADD_INDEX = 7, _ALTER
    DROP_INDEX = 8, _ALTER
    ADD_FOREIGN_KEY = 9, _ALTER
    DROP_FOREIGN_KEY = 10, _ALTER
    TRUNCATE_TABLE = 11, Facts(Effect.RENUMBER, Reach.TABLES, Rows.RENEW, Form.TRUNCATE, True, _ALL)
    MODIFY_COLUMN = 12, _ALTER
    REBASE_AUTO_ID = 13, _ALTER
    RENAME_TABLE = 14, Facts(Effect.RENAME, Reach.TABLES, Rows.STAY, Form.RENAME, False, _ALL)
    SET_DEFAULT_VALUE = 15, _ALTER
    SHARD_ROW_ID = 16, _OPTION
    MODIFY_TABLE_COMMENT = 17, _ALTER
    RENAME_INDEX = 18, _ALTER
    ADD_PARTITION = 19, Facts(Effect.REPLACE, Reach.TABLES, Rows.STAY, Form.ADD_PARTITION, False, _ALL)
    DROP_PARTITION = 20, Facts(Effect.REPLACE, Reach.TABLES, Rows.GO_SLOWLY, Form.DROP_PARTITION, False, _ALL)
    CREATE_VIEW = 21, Facts(Effect.CREATE, Reach.REPLACED, Rows.BEGIN, Form.CREATE, True, _ALL)
    MODIFY_TABLE_CHARSET = 22, _ALTER
    TRUNCATE_PARTITION = 23, Facts(Effect.REPLACE, Reach.TABLES, Rows.GO, Form.TRUNCATE_PARTITION, True, _ALL)
    DROP_VIEW = 24, Facts(Effect.DROP, Reach.TABLES, Rows.GO, Form.DROP, True, _ALL)
    RECOVER_TABLE = 25, Facts(Effect.CREATE, Reach.TABLES, Rows.RETURN, Form.RECOVER, False, _ALL)
    MODIFY_SCHEMA_CHARSET = 26, Facts(Effect.ALTER_DATABASE, Reach.DATABASE, Rows.STAY, Form.ALTER_DATABASE, True, _ALL)
    LOCK_TABLE = 27, _SILENT
    UNLOCK_TABLE = 28, _SILENT
    REPAIR_TABLE = 29, _ALTER
    SET_TIFLASH_REPLICA = 30, _IGNORED
    UPDATE_TIFLASH_STATUS = 31, _SILENT
    ADD_PRIMARY_KEY = 32, _ALTER
    DROP_PRIMARY_KEY = 33, _ALTER
    CREATE_SEQUENCE = 34, Facts(Effect.CREATE, Reach.TABLES, Rows.BEGIN, Form.CREATE, False, _ALL)
    ALTER_SEQUENCE = 35, Facts(Effect.REPLACE, Reach.TABLES, Rows.STAY, Form.ALTER_SEQUENCE, True, _ALL)
    DROP_SEQUENCE = 36, Facts(Effect.DROP, Reach.TABLES, Rows.GO, Form.DROP, True, _ALL)
    ADD_COLUMNS = 37, _ALTER
    DROP_COLUMNS = 38, _ALTER
    MODIFY_AUTO_ID_CACHE = 39, _OPTION
    REBASE_AUTO_RANDOM = 40, _OPTION
    ALTER_INDEX_VISIBILITY = 41, _ALTER
    EXCHANGE_PARTITION = 42, Facts(Effect.EXCHANGE, Reach.TABLES, Rows.SWAP, Form.EXCHANGE_PARTITION, False, _ALL)
    ADD_CHECK = 43, _ALTER
    DROP_CHECK = 44, _ALTER
    ALTER_CHECK = 45, _ALTER
    RENAME_TABLES = 47, Facts(Effect.RENAME_EACH, Reach.RENAMED, Rows.STAY, Form.RENAME, False, _ALL)
    DROP_INDEXES = 48, _ALTER
    ALTER_TABLE_ATTRIBUTES = 49, _SILENT
    ALTER_PARTITION_ATTRIBUTES = 50, _SILENT
    CREATE_PLACEMENT_POLICY = 51, _SILENT
    ALTER_PLACEMENT_POLICY = 52, _SILENT
    DROP_PLACEMENT_POLICY = 53, _SILENT
    ALTER_PARTITION_PLACEMENT = 54, _SILENT
    MODIFY_SCHEMA_PLACEMENT = 55, _SILENT
    ALTER_TABLE_PLACEMENT = 56, _SILENT
    ALTER_CACHE_TABLE = 57, _SILENT
    ALTER_STATS_OPTIONS = 58, _IGNORED
    ALTER_NOCACHE_TABLE = 59, _SILENT
    CREATE_TABLES = 60, Facts(Effect.CREATE_EACH, Reach.EACH, Rows.BEGIN, Form.CREATE, False, _ALL)
    MULTI_SCHEMA_CHANGE = 61, _ALTER
    FLASHBACK_CLUSTER = 62, Facts(Effect.FLASHBACK, Reach.CLUSTER, Rows.ANY, Form.NONE, False, _NOWHERE)
    RECOVER_SCHEMA = (
        63,
        Facts(Effect.RECOVER_DATABASE, Reach.WHOLE_DATABASE, Rows.RETURN, Form.CREATE_DATABASE, True, _ALL),
    )
    REORGANIZE_PARTITION = 64, Facts(Effect.REPLACE, Reach.TABLES, Rows.STAY, Form.REORGANIZE_PARTITION, False, _ALL)
    ALTER_TTL_INFO = 65, _OPTION
    ALTER_TTL_REMOVE = 67, _OPTION
    CREATE_RESOURCE_GROUP = 68, _SILENT
    ALTER_RESOURCE_GROUP = 69, _SILENT
    DROP_RESOURCE_GROUP = 70, _SILENT
    PARTITION_BY = 71, Facts(Effect.RENUMBER, Reach.TABLES, Rows.STAY, Form.REPARTITION, False, _ALL)
    REMOVE_PARTITIONING = 72, Facts(Effect.RENUMBER, Reach.TABLES, Rows.STAY, Form.REPARTITION, False, _ALL)


# Nothing of these schemas is replicated.
SYSTEM_SCHEMAS = frozenset(
    {"mysql", "information_schema", "performance_schema", "metrics_schema", "sys", "inspection_schema"}
)

# Tables with a larger id belong to TiDB itself (2^48 - 1 - 1000).
MAX_USER_TABLE_ID = (1 << 48) - 1 - 1000


_TYPES = {int(action): action for action in Action}


def action_of(type_: int) -> Action:
    """The action of a job; UNKNOWN where nothing is known of its type: the fold says whether that matters."""
    return _TYPES.get(type_, Action.UNKNOWN)


def is_system(db: str) -> bool:
    """Whether a schema belongs to the server."""
    return db.lower() in SYSTEM_SCHEMAS
