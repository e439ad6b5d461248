"""Cases of binlog files: what a Drainer wrote into its files of the transactions and DDLs of a real TiDB."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from pumphouse.archive.ddl import ArchivedJob
from pumphouse.codec.payload import PrewriteValueBuilder, make_commit, make_prewrite, merge
from pumphouse.export.ddls import ExportedDdl, ddls_of
from pumphouse.export.encode import Encoder, Form, Frames
from pumphouse.export.pbfiles import file_name
from pumphouse.export.pbframes import PbFrames, ddl_payload, framed
from pumphouse.model.table import Job, SchemaState
from pumphouse.model.tso import Tso, from_datetime
from pumphouse.restore.find import Sought
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import TimedJob
from tests.support import pbmessages
from tests.support.golden.case import Case, Json

READS_NONE = "nothing here reads the names of binlog files"


def binlogfile(content: Json) -> Iterator[Case]:
    """Frames, and the names of files."""
    for vector in content["frames"]:
        yield Case(f"frames-{vector['name']}", partial(_frame, vector), rows=("A6",))
    for vector in content["names"]:
        made = re.fullmatch(r"binlog-(\d{16})-\d{14}", vector["file_name"])
        yield Case(
            f"names-{vector['file_name']}",
            partial(_name, vector) if made else None,
            "" if made else READS_NONE,
            rows=("A6",) if made else (),
        )


def _frame(vector: Json, _: Path) -> None:
    payload = bytes.fromhex(vector["payload_hex"])
    assert framed(payload).hex() == vector["hex"]
    if "ddl_query" in vector:
        assert ddl_payload(vector["commit_ts"], vector["ddl_query"].encode()) == payload


def _name(vector: Json, _: Path) -> None:
    from datetime import UTC, datetime

    at = datetime.strptime(vector["file_name"][-14:], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    assert file_name(vector["index"], from_datetime(at)) == vector["file_name"]


def file_column(vector: Json, _: Path) -> None:
    """One column of an inserted row, as the file has it."""
    (event,) = pbmessages.Binlog.FromString(_payload_of(*inserted(vector))).dml_data.events
    assert [each.hex() for each in event.row] == [vector["file_column_hex"]]


def inserted(vector: Json) -> tuple[Timeline, int, bytes]:
    """A transaction that inserts a vector's row: the schema, its commit ts, its payload."""
    raw = {"id": 1, "name": "t", "cols": [vector["column_info"]], "state": int(SchemaState.PUBLIC)}
    job = {
        "id": 1, "type": 3, "schema_id": 1, "table_id": 1, "schema_name": "d", "state": 6, "query": "",
        "binlog": {"SchemaVersion": 1, "TableInfo": raw},
    }  # fmt: skip
    db = {**job, "id": 2, "type": 1, "binlog": {"SchemaVersion": 0, "DBInfo": {"id": 1, "db_name": "d", "state": 5}}}
    db["binlog"]["SchemaVersion"], job["binlog"]["SchemaVersion"] = 1, 2
    timeline = Timeline.empty().fold([TimedJob(Tso(1), Job.from_dict(db)), TimedJob(Tso(2), Job.from_dict(job))])
    value = PrewriteValueBuilder(2)
    value.insert(1, bytes.fromhex(vector["inserted_row_hex"]))
    return timeline, 4, merge(make_prewrite(3, b"k", value.build()), make_commit(3, 4, b"k"))


def _payload_of(timeline: Timeline, commit_ts: int, payload: bytes) -> bytes:
    (found,) = pbmessages.payloads(encoded(PbFrames(), timeline, commit_ts, payload))
    return found


def encoded(form: Form[Any], timeline: Timeline, commit_ts: int, payload: bytes) -> bytes:
    """A transaction in a form."""
    batch = pa.RecordBatch.from_pydict(
        {
            "commit_ts": pa.array([commit_ts], pa.int64()),
            "start_ts": pa.array([commit_ts - 1], pa.int64()),
            "part": pa.array([0], pa.int32()),
            "parts": pa.array([1], pa.int32()),
            "payload": pa.array([payload], pa.large_binary()),
        }
    )
    (frames,) = Encoder(timeline, None, form).encode(batch)
    assert isinstance(frames, Frames)
    assert frames.ends.tolist() == [len(frames.data)]
    return frames.data.tobytes()


def file_dml(step: Json, timeline_at: Callable[[int], Timeline], _: Path) -> None:
    """A transaction, to the byte, but for generated columns: a target computes them itself."""
    timeline = timeline_at(step["commit_ts"])
    found = _payload_of(timeline, step["commit_ts"], bytes.fromhex(step["pulled_payload_hex"]))
    wanted = bytes.fromhex(step["expect"]["file_hex_tz_utc"])
    if not has_generated(timeline, step):
        assert found == wanted
        return
    assert found != wanted
    assert pbmessages.Binlog.FromString(found) == _without_generated(pbmessages.Binlog.FromString(wanted), timeline)


def has_generated(timeline: Timeline, step: Json) -> bool:
    tables = [timeline.at_ts(each["table_id"], step["commit_ts"]).table for each in step["mutations"]]
    updates = all(number == 1 for each in step["mutations"] for number in each["sequence"])
    return not updates and any(column.generated for table in tables for column in table.columns)


def _without_generated(binlog: Any, timeline: Timeline) -> Any:
    generated = {
        (versions[-1].table.name, column.name)
        for versions in timeline.versions.values()
        for column in versions[-1].table.columns
        if column.generated
    }
    for event in binlog.dml_data.events:
        kept = [
            each for each in event.row if (event.table_name, pbmessages.Column.FromString(each).name) not in generated
        ]
        del event.row[:]
        event.row.extend(kept)
    return binlog


def file_ddl(step: Json, timeline_at: Callable[[int], Timeline], _: Path) -> None:
    """A DDL, or that nothing is written of it."""
    found = exported_ddls(step, timeline_at)
    texts = [ddl_payload(each.commit_ts, text.in_its_database).hex() for each in found for text in each.texts]
    wanted = step["expect"].get("file_hex")
    assert texts == ([] if wanted is None else [wanted])


def exported_ddls(step: Json, timeline_at: Callable[[int], Timeline]) -> list[ExportedDdl]:
    """What is exported of a step."""
    job = None if step["expect"].get("skip") else step["job_json"]
    archived = ArchivedJob(
        commit_ts=Tso(step["commit_ts"]), start_ts=Tso(step["start_ts"]), job_id=step["ddl_job_id"],
        schema_state=step["ddl_schema_state"], query=step["ddl_query"].encode(), job=job,
    )  # fmt: skip
    after, upto = Tso(step["commit_ts"] - 1), Tso(step["commit_ts"])
    return ddls_of(timeline_at(upto), [archived], after, upto, Sought(after=after, upto=upto), frozenset())
