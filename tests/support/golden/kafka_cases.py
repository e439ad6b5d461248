"""Cases of messages for Kafka: what a Drainer sent of the transactions and DDLs of a real TiDB."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pumphouse.export.slavemessages import SlaveMessages, ddl_message
from pumphouse.proto.slave_binlog_pb2 import Binlog
from pumphouse.schema.timeline import Timeline
from tests.support.golden.case import Json
from tests.support.golden.file_cases import encoded, exported_ddls, inserted


def kafka_column(vector: Json, _: Path) -> None:
    """One column of an inserted row, as the message has it."""
    (table,) = Binlog.FromString(encoded(SlaveMessages(), *inserted(vector))).dml_data.tables
    ((column,),) = ([*each.row.columns] for each in table.mutations)
    assert column.SerializeToString().hex() == vector["kafka_column_hex"]
    if "kafka_mysql_type" in vector:
        assert [each.mysql_type for each in table.column_info] == [vector["kafka_mysql_type"]]


def kafka_dml(step: Json, timeline_at: Callable[[int], Timeline], _: Path) -> None:
    """A transaction, to the byte, but for generated columns and those that no reader sees."""
    timeline = timeline_at(step["commit_ts"])
    found = encoded(SlaveMessages(), timeline, step["commit_ts"], bytes.fromhex(step["pulled_payload_hex"]))
    wanted = bytes.fromhex(step["expect"]["kafka_hex_tz_utc"])
    tables = [timeline.at_ts(each["table_id"], step["commit_ts"]).table for each in step["mutations"]]
    if all(column.public and not column.generated for table in tables for column in table.columns):
        assert found == wanted
        return
    assert Binlog.FromString(found) == _written(Binlog.FromString(wanted), timeline, step["commit_ts"])


def _written(binlog: Any, timeline: Timeline, commit_ts: int) -> Any:
    """The message without the columns that ours leaves out."""
    left_out = {
        (version.table.name, column.name)
        for table_id in timeline.versions
        for version in [timeline.at_ts(table_id, commit_ts)]
        for column in version.table.columns
        if column.generated or not column.public
    }
    for table in binlog.dml_data.tables:
        gone = [at for at, each in enumerate(table.column_info) if (table.table_name, each.name) in left_out]
        rows = [row for each in table.mutations for row in (each.row, each.change_row) if row.columns]
        for at in reversed(gone):
            for columns in (table.column_info, *(row.columns for row in rows)):
                del columns[at]
    return binlog


def kafka_ddl(step: Json, timeline_at: Callable[[int], Timeline], _: Path) -> None:
    """A DDL, or that nothing is sent of it."""
    found = [
        ddl_message(each.commit_ts, text.db, text.table, text.query).hex()
        for each in exported_ddls(step, timeline_at)
        for text in each.texts
    ]
    wanted = step["expect"].get("kafka_hex")
    assert found == ([] if wanted is None else [wanted])
