"""The demo's table infos are those that a real TiDB wrote for the same statements."""

import json
from pathlib import Path
from typing import Any

import pytest

from pumphouse.demo.columns import Col, Idx, Table

GOLDEN = Path(__file__).parents[2] / "golden"


def _captured(scenario: str, query: str) -> dict[str, Any]:
    steps = json.loads((GOLDEN / f"scenario_{scenario}.json").read_bytes())["steps"]
    for step in steps:
        job = step.get("job_json")
        if job and (job := json.loads(job) if isinstance(job, str) else job)["query"].startswith(query):
            return dict(job["binlog"]["TableInfo"])
    raise LookupError(query)


ALL_TYPES = Table(
    name="ty",
    columns=(
        Col(name="id", type="bigint", null=False), Col(name="f", type="float"), Col(name="d", type="double"),
        Col(name="dc", type="decimal(12,4)"), Col(name="dt", type="datetime(3)"), Col(name="ts", type="timestamp(3)"),
        Col(name="da", type="date"), Col(name="ti", type="time(2)"), Col(name="y", type="year"),
        Col(name="vc", type="varchar(30)"), Col(name="c", type="char(5)"), Col(name="bl", type="blob"),
        Col(name="vb", type="varbinary(8)"), Col(name="bi", type="binary(3)"), Col(name="tx", type="text"),
        Col(name="e", type="enum('a','b')"), Col(name="s", type="set('x','y')"), Col(name="b", type="bit(10)"),
        Col(name="j", type="json"), Col(name="bu", type="bigint unsigned"),
    ),
    primary=("id",),
)  # fmt: skip
CASES = [
    ("types", "create table ty", ALL_TYPES),
    (
        "basic",
        "create table t1",
        Table(
            name="t1",
            columns=(
                Col(name="id", type="int", null=False),
                Col(name="name", type="varchar(20)"),
                Col(name="age", type="tinyint unsigned", default="18"),
            ),
            primary=("id",),
        ),
    ),
    (
        "basic",
        "create table t2",
        Table(
            name="t2",
            columns=(Col(name="a", type="varchar(10)"), Col(name="b", type="int")),
            indexes=(Idx(name="ub", columns=("b",), unique=True),),
        ),
    ),
    (
        "clustered",
        "create table c1",
        Table(
            name="c1",
            columns=(
                Col(name="a", type="varchar(20)", null=False),
                Col(name="b", type="int", null=False),
                Col(name="c", type="datetime"),
                Col(name="v", type="text"),
            ),
            primary=("a", "b"),
        ),
    ),
    (
        "clustered",
        "create table n1",
        Table(
            name="n1",
            columns=(
                Col(name="a", type="varchar(20)", null=False),
                Col(name="g", type="int", expr="length(`a`)"),
                Col(name="h", type="int", expr="length(`a`) + 1", stored=True),
            ),
            primary=("a",),
            clustered=False,
        ),
    ),
]


@pytest.mark.parametrize(("scenario", "query", "table"), CASES, ids=[case[1] for case in CASES])
def test_a_table_info_equals_the_captured_one(scenario: str, query: str, table: Table) -> None:
    captured = _captured(scenario, query)
    made = json.loads(json.dumps(table.info(captured["id"], [], captured["update_timestamp"])))
    assert made == captured
