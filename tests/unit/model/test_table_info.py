"""Jobs in memory: their text compressed, their tables read when something of them is asked for."""

from __future__ import annotations

import copy
import pickle
import tracemalloc

import pytest

from pumphouse.errors import SchemaError
from pumphouse.model.table import Job, TableInfo
from pumphouse.schema.actions import Action
from pumphouse.schema.timeline import Timeline
from tests.support.schemajobs import Source, col, int_col, key


def _source() -> Source:
    source = Source()
    source.create_db("d")
    texts = [col(f"c{number}", 15, flen=64, text=True) for number in range(12)]
    source.create("d.t", [int_col("id", flag=4099), *texts], [key("k", "c1", unique=True)])
    return source


@pytest.mark.row("S1")
def test_a_table_of_a_job_is_what_its_json_says() -> None:
    source = _source()
    raw = source.tables["d.t"]
    table = source.jobs[-1].job.table_info
    assert table is not None
    whole = TableInfo.from_dict(raw)
    assert (table.id, table.name, table.partition_ids) == (whole.id, whole.name, ())
    assert table == whole
    assert table.raw == raw
    assert [c.name for c in table.columns][:2] == ["id", "c0"]
    assert pickle.loads(pickle.dumps(source.jobs[-1].job.table_info)) == whole
    assert copy.copy(table) == whole
    with pytest.raises(AttributeError):
        table.nothing  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.row("S1")
@pytest.mark.parametrize("read", [True, False])
def test_a_table_under_another_name_or_id_is_the_same_otherwise(read: bool) -> None:
    source = _source()
    raw = source.tables["d.t"]
    table = source.jobs[-1].job.table_info
    assert table is not None
    if read:
        assert table.columns
    moved = table.called("u", 4711)
    assert (moved.id, moved.name, moved.raw["id"]) == (4711, "u", 4711)
    assert moved.columns == TableInfo.from_dict(raw).columns
    whole = TableInfo.from_dict(raw).called("u", 4711)
    assert (whole.id, whole.name, whole.raw) == (moved.id, moved.name, moved.raw)
    assert table.called("u").raw["id"] == table.id


def test_jobs_are_equal_that_say_the_same() -> None:
    job = _source().jobs[-1].job
    spaced = Job.from_json(job.text.replace('":', '": '))
    assert spaced == job
    assert len({spaced, job}) == 1
    assert job != Job.from_dict({**job.raw, "query": "another"})
    assert Job.from_dict({**job.raw, "query": "another"}).query == "another"


def test_what_a_table_lacks_is_said_when_it_is_read() -> None:
    raw = copy.deepcopy(_source().jobs[-1].job.raw)
    del raw["binlog"]["TableInfo"]["cols"][0]["type"]
    table = Job.from_dict(raw).table_info
    assert table is not None
    with pytest.raises(SchemaError, match="a table info cannot be read"):
        _ = table.columns
    del raw["binlog"]["TableInfo"]["id"]
    with pytest.raises(SchemaError, match="a table info cannot be read"):
        Job.from_dict(raw)


@pytest.mark.row("S1")
def test_a_folded_job_takes_a_tenth_of_what_its_objects_would() -> None:
    source = _source()
    for number in range(400):
        source.alter("d.t", Action.MODIFY_TABLE_COMMENT, lambda t: t.update(comment="x" * number))  # noqa: B023
    timeline = source.timeline()
    text = timeline.to_json()
    del timeline, source
    tracemalloc.start()
    timeline = Timeline.from_json(text)
    taken = tracemalloc.get_traced_memory()[0] / len(timeline.jobs)
    tracemalloc.stop()
    assert taken < 4_000
