"""Cases of scenarios: what a real TiDB wrote, transaction by transaction."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pumphouse.codec import columnar, row
from pumphouse.codec.datum import VARINT, read_datum
from pumphouse.codec.layout import RowLayout
from pumphouse.codec.payload import PrewriteValueBuilder, make_commit, make_prewrite, merge, parse
from pumphouse.errors import BinlogError
from pumphouse.model.binlog import MutationType
from pumphouse.model.table import Job, TableInfo
from pumphouse.model.tso import Tso
from tests.support import rowreference
from tests.support.golden.case import Case, Json, assert_same
from tests.support.golden.codec_cases import UNKNOWN
from tests.support.golden.file_cases import file_ddl, file_dml
from tests.support.golden.kafka_cases import kafka_ddl, kafka_dml
from tests.support.golden.storage_cases import scenario_run
from tests.support.rowreference import parse_prewrite_value, row_changes

_LISTS = {"inserted_rows": "insert", "updated_rows": "update", "deleted_rows": "delete"}
_OTHER_SINKS = "what a relay log makes of the messages: there is none here"


def scenario(content: Json) -> Iterator[Case]:
    """Cases of every step, and the run of a Pump's store over the whole."""
    yield Case("store", partial(scenario_run, content), rows=("P4", "P5"))
    timelines = _Timelines(content["steps"])
    for index, step in enumerate(content["steps"]):
        name = f"{index:02d}-{step['kind']}"
        yield Case(f"{name}-payload", partial(_payload, step), rows=("P4", "W1"))
        if step["kind"] == "ddl":
            yield Case(f"{name}-job", partial(_job, step, timelines, index), rows=("S1",))
            yield Case(f"{name}-file", partial(file_ddl, step, timelines.upto), rows=("A6",))
            yield Case(f"{name}-kafka", partial(kafka_ddl, step, timelines.upto), rows=("A6",))
        elif step["kind"] == "dml":
            yield Case(f"{name}-mutations", partial(_mutations, step), rows=("L1",))
            yield Case(f"{name}-values", partial(_values_or_error, step, timelines), rows=("L1", "S3"))
            if "file_hex_tz_utc" in step["expect"]:
                yield Case(f"{name}-file", partial(file_dml, step, timelines.upto), rows=("A6",))
            if "kafka_hex_tz_utc" in step["expect"]:
                yield Case(f"{name}-kafka", partial(kafka_dml, step, timelines.upto), rows=("A6",))
            if _said(step, "error") is None:
                yield Case(f"{name}-encode", partial(_encode, step, timelines), rows=("L1",))
        else:
            yield Case(name, skip=f"a step of the kind {step['kind']} {UNKNOWN}")
    yield Case("other sinks", skip=_OTHER_SINKS)


class _Timelines:
    """The schema after the jobs of the first steps, folded by the product."""

    def __init__(self, steps: list[Json]) -> None:
        self.steps = steps

    def upto(self, commit_ts: int) -> Any:
        from pumphouse.schema.timeline import Timeline
        from pumphouse.schema.versions import TimedJob

        jobs = [
            TimedJob(Tso(step["commit_ts"]), Job.from_json(step["job_json"]))
            for step in self.steps
            if step["kind"] == "ddl" and step["commit_ts"] <= commit_ts and _said(step, "skip") is None
        ]
        return Timeline.empty().fold(jobs)


def _payload(step: Json, _: Path) -> None:
    from pump_service.store import frame

    prewrite, commit = bytes.fromhex(step["prewrite_hex"]), bytes.fromhex(step["commit_hex"])
    assert merge(prewrite, commit).hex() == step["pulled_payload_hex"]
    assert frame.merge(prewrite, commit).hex() == step["pulled_payload_hex"]
    p, c = parse(prewrite), parse(commit)
    assert (p.start_ts, c.start_ts, c.commit_ts) == (step["start_ts"], step["start_ts"], step["commit_ts"])
    ddl: dict[str, Any] = {}
    if step["kind"] == "ddl":
        ddl = {
            "ddl_query": step["ddl_query"].encode(),
            "ddl_job_id": step["ddl_job_id"],
            "ddl_schema_state": step["ddl_schema_state"],
        }
    value = p.prewrite_value if p.HasField("prewrite_value") else None
    assert make_prewrite(p.start_ts, p.prewrite_key, value, **ddl) == prewrite
    assert make_commit(c.start_ts, c.commit_ts, c.prewrite_key, **ddl) == commit


def _job(step: Json, timelines: _Timelines, index: int, _: Path) -> None:
    job = Job.from_json(step["job_json"])
    assert job.id == step["ddl_job_id"]
    timeline = timelines.upto(step["commit_ts"])
    if _said(step, "skip") is not None:
        assert all(event.job.id != job.id for event in timeline.events)
    elif job.done:
        assert timeline.schema_version == job.schema_version
        assert [event.job.id for event in timeline.ddls(step["commit_ts"] - 1, step["commit_ts"])] == [job.id]


def _rows(step: Json) -> Iterator[tuple[int, str, bytes]]:
    """Row changes as the file lists them: table id, kind, image."""
    for mutation in step["mutations"]:
        fronts = {kind: iter(mutation[name]) for name, kind in _LISTS.items()}
        kinds = {
            int(MutationType.INSERT): "insert",
            int(MutationType.UPDATE): "update",
            int(MutationType.DELETE_ROW): "delete",
        }
        for number in mutation["sequence"]:
            yield mutation["table_id"], kinds[number], bytes.fromhex(next(fronts[kinds[number]]))


def _walk(step: Json) -> columnar.Mutations:
    return columnar.walk(pa.array([bytes.fromhex(step["pulled_payload_hex"])], pa.large_binary()))


def _mutations(step: Json, _: Path) -> None:
    wanted = list(_rows(step))
    value = parse(bytes.fromhex(step["pulled_payload_hex"])).prewrite_value
    parsed = parse_prewrite_value(value)
    assert parsed.schema_version == step["schema_version"]
    names = {MutationType.INSERT: "insert", MutationType.UPDATE: "update", MutationType.DELETE_ROW: "delete"}
    assert [(table, names[kind], image) for table, kind, image in row_changes(value)] == wanted
    found = _walk(step)
    kinds = ("insert", "update", "delete")
    images = [found.data[s : s + n].tobytes() for s, n in zip(found.row_start, found.row_len, strict=True)]
    assert list(zip(found.table_id.tolist(), [kinds[op] for op in found.op], images, strict=True)) == wanted
    assert set(found.schema_version.tolist()) == {step["schema_version"]}
    assert found.seq.tolist() == list(range(len(wanted)))
    builder = PrewriteValueBuilder(step["schema_version"])
    for table_id, kind, image in wanted:
        getattr(builder, kind)(table_id, image)
    assert builder.build() == value


def _decode(table: TableInfo, kind: str, image: bytes) -> tuple[row.Row, ...]:
    """Old and new values of an update, else the one row."""
    if kind == "update":
        return rowreference.decode_update(table, image)
    return ((rowreference.decode_insert if kind == "insert" else rowreference.decode_delete)(table, image),)


def _said(step: Json, what: str) -> Any:
    """What a step says of itself or of what is expected; None = nothing."""
    return step.get(what, step["expect"].get(what))


def _values_or_error(step: Json, timelines: _Timelines, directory: Path) -> None:
    """What the reference cannot do (`reference_limitation`) ours may do better, and must not do wrong in silence."""
    if _said(step, "skip") is not None:
        return
    limited = _said(step, "reference_limitation") is not None
    if _said(step, "error") is not None and not limited:
        with pytest.raises(BinlogError):
            _decoded(step, timelines)
    elif not limited:
        _values(step, timelines, directory)
    else:
        with contextlib.suppress(BinlogError):
            _decoded(step, timelines)


def _decoded(step: Json, timelines: _Timelines) -> None:
    """Both decoders agree."""
    timeline = timelines.upto(step["commit_ts"])
    found = _walk(step)
    for index, (table_id, kind, image) in enumerate(_rows(step)):
        _both(found, index, timeline.at_version(table_id, step["schema_version"]).table,
              timeline.at_ts(table_id, step["commit_ts"]).table, kind, image)  # fmt: skip


def _values(step: Json, timelines: _Timelines, _: Path) -> None:
    timeline = timelines.upto(step["commit_ts"])
    found = _walk(step)
    changes = step["expect"]["dmls"]
    assert len(found) == len(changes)
    for index, ((table_id, kind, image), wanted) in enumerate(zip(_rows(step), changes, strict=True)):
        written = timeline.at_version(table_id, step["schema_version"]).table
        version = timeline.at_ts(table_id, step["commit_ts"])
        assert (version.db, version.table.name, kind) == (wanted["database"], wanted["table"], wanted["type"])
        sides = [wanted["values"]] if kind != "update" else [wanted["old_values"], wanted["values"]]
        slow = _both(found, index, written, version.table, kind, image)
        for ours, theirs in zip(slow, sides, strict=True):
            _compare(ours, theirs, version.table)


def _both(
    found: columnar.Mutations, index: int, written: TableInfo, wanted: TableInfo, kind: str, image: bytes
) -> list[dict[str, Any]]:
    """One row change by the reference and in columns, which are equal."""
    slow = [
        {wanted.column_by_id(i).name: value for i, value in rowreference.project(written, wanted, r).items()}
        for r in _decode(row.as_read(written, wanted), kind, image)
    ]
    one = slice(index, index + 1)
    batches = columnar.decode_images(
        found.data, found.row_start[one], found.row_len[one], int(found.op[index]), RowLayout.of(written, wanted)
    )
    assert [b.to_pylist()[0] for b in (batches if kind == "update" else (batches,))] == slow
    return slow


def _compare(ours: dict[str, Any], theirs: Json, table: TableInfo) -> None:
    for name, value in ours.items():
        assert_same(value, theirs[name], name)
    # Delete images carry generated columns, which no target takes.
    generated = {column.name for column in table.columns if column.generated}
    assert set(theirs) - set(ours) <= generated


def _encode(step: Json, timelines: _Timelines, _: Path) -> None:
    """Decoding and encoding again gives TiDB's bytes."""
    timeline = timelines.upto(step["commit_ts"])
    for table_id, kind, image in _rows(step):
        table = timeline.at_version(table_id, step["schema_version"]).table
        handle = None if table.pk_is_handle or table.is_common_handle else _hidden_handle(kind, image)
        rows = _decode(table, kind, image)
        if kind == "insert":
            again = row.encode_insert(table, rows[0], handle=handle)
        elif kind == "update":
            again = row.encode_update(table, rows[0], rows[1], handle=handle)
        else:
            again = row.encode_delete(table, rows[0], handle=handle)
        assert again == image


def _hidden_handle(kind: str, image: bytes) -> int:
    at = 0
    datums = []
    while at < len(image):
        datum, at = read_datum(image, at)
        datums.append(datum)
    handle = datums[0] if kind == "insert" else datums[-1]
    assert handle.flag == VARINT
    assert isinstance(handle.value, int)
    return handle.value
