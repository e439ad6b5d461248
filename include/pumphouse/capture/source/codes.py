"""Numbers of the binlog: types of events and of columns.

MySQL's libs/mysql/binlog/event, MariaDB's sql/log_event.h.
"""

from __future__ import annotations

from typing import Final

QUERY: Final = 2
STOP: Final = 3
ROTATE: Final = 4
FORMAT: Final = 15
XID: Final = 16
TABLE_MAP: Final = 19
WRITE_V1, UPDATE_V1, DELETE_V1 = 23, 24, 25
INCIDENT: Final = 26
HEARTBEAT: Final = 27
IGNORABLE: Final = 28
ROWS_QUERY: Final = 29
WRITE_V2, UPDATE_V2, DELETE_V2 = 30, 31, 32
GTID: Final = 33
ANONYMOUS_GTID: Final = 34
PREVIOUS_GTIDS: Final = 35
TRANSACTION_CONTEXT: Final = 36
VIEW_CHANGE: Final = 37
XA_PREPARE: Final = 38
PARTIAL_UPDATE: Final = 39
TRANSACTION_PAYLOAD: Final = 40
HEARTBEAT_V2: Final = 41
GTID_TAGGED: Final = 42
ANNOTATE_ROWS: Final = 160
CHECKPOINT: Final = 161
MARIADB_GTID: Final = 162
GTID_LIST: Final = 163
START_ENCRYPTION: Final = 164
QUERY_COMPRESSED: Final = 165
ROWS_COMPRESSED = range(166, 172)
# What decompresses to more than it is.
COMPRESSED = (TRANSACTION_PAYLOAD, QUERY_COMPRESSED, *ROWS_COMPRESSED)
# Beside a statement: its values of LAST_INSERT_ID, RAND and variables. What they belong to is judged by itself.
BESIDE_STATEMENTS = frozenset({5, 13, 14})
# LOAD DATA as a statement.
LOAD_DATA = frozenset({6, 8, 9, 10, 11, 12, 17, 18})

HEADER: Final = 19
IGNORABLE_FLAG: Final = 0x80

# Types of columns beyond those of `pumphouse.model.table.MysqlType`.
TIMESTAMP2: Final = 17
DATETIME2: Final = 18
TIME2: Final = 19
BLOB_COMPRESSED: Final = 140
VARCHAR_COMPRESSED: Final = 141
VECTOR: Final = 242
