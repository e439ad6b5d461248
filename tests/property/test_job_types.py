"""DDL jobs with fields of another JSON type than TiDB writes: a SchemaError that names the job, and nothing else."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from pumphouse.errors import SchemaError
from pumphouse.model.table import ColumnFlag, Job
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.render import render
from pumphouse.schema.timeline import Timeline
from tests.support.schemajobs import Source, add, find, int_col, key

JUNK: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 1e308, float("inf"), float("nan"), "", "x", "\0", "0",
    "a" * 300, "日本", "\ud800", [], {}, [[]], {"a": 1}, [None], {"O": "x", "L": "x"}, {"O": []}, "NaN", "../../etc/passwd", 5, 99,
]  # fmt: skip


def source() -> Source:
    """Jobs of many types."""
    made = Source()
    made.create_db("d")
    columns = [int_col("id", flag=int(ColumnFlag.NOT_NULL | ColumnFlag.PRI_KEY)), int_col("a")]
    made.create("d.t", columns, [key("k", "a", unique=True)])
    made.alter("d.t", 5, lambda table: add(table, int_col("b", default="1")))
    made.create("d.g", [int_col("a"), int_col("g", generated_expr_string="`a` + 1", ShardRowIDBits=0)])
    made.alter("d.g", 5, lambda table: add(table, int_col("h", generated_expr_string="`a` * 2")))
    cast = {"sql_mode": 0, "server": {"kind": "mariadb", "rounds": False}}
    made.alter("d.g", 12, lambda table: find(table, "a")["type"].update(Tp=8, Flen=20), reorg_meta=cast)
    made.create("d.p", [int_col("a")], partition=made.partitions(("p0", "10"), ("p1", "20"), expr="`a`"))
    made.create("d.n", [int_col("a")])
    made.exchange("d.p", "p1", "d.n")
    made.rename("d.t", "d.u")
    made.truncate("d.u")
    made.drop("d.n")
    made.drop_db("d")
    return made


def changed(rng: random.Random, value: Any) -> Any:
    """A copy with some fields replaced, dropped, doubled or swapped."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        path, node = [], value
        while isinstance(node, (dict, list)) and node and (not path or rng.random() < 0.85):
            name: Any = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
            path.append((node, name))
            node = node[name]
        if not path:
            continue
        parent, name = path[-1]
        how = rng.random()
        if how < 0.2 and isinstance(parent, dict):
            del parent[name]
        elif how < 0.3 and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[name]))
        elif how < 0.4 and isinstance(parent, dict) and len(parent) > 1:
            moved = parent.pop(name)
            parent[rng.choice(list(parent))] = moved
        elif isinstance(parent[name], int) and how < 0.7:
            parent[name] = rng.randrange(90) if how < 0.6 else parent[name] + rng.choice([-1, 1, 256, 1 << 40])
        else:
            parent[name] = copy.deepcopy(rng.choice(JUNK))
    return value


def use(made: Source, number: int, data: Any) -> None:
    """Fold, render and look at everything, with one job that says ``data``."""
    jobs = list(made.jobs)
    jobs[number] = dataclasses.replace(jobs[number], job=Job.from_json(json.dumps(data)))
    timeline = Timeline.empty().fold(jobs)
    for event in timeline.ddls(0, 1 << 62):  # type: ignore[arg-type]
        for dialect in Dialect:
            render(event, dialect)
    for table_id, versions in timeline.versions.items():
        timeline.of_tables([table_id])
        for version in versions:
            timeline.rewritten(version, 1 << 62)
    Timeline.from_json(timeline.to_json())


def fuzzed(rounds: int, seed: int) -> None:
    rng, made = random.Random(seed), source()
    docs = [json.loads(each.job.text) for each in made.jobs]
    use(made, 0, docs[0])
    for _ in range(rounds):
        number = rng.randrange(len(docs))
        data = changed(rng, docs[number])
        try:
            use(made, number, data)
        except SchemaError as error:
            assert "job_id" in error.facts, (error, data)
        except Exception as error:
            raise AssertionError(f"{error!r} from {json.dumps(data)}") from error


@pytest.mark.row("S1", "S2")
@pytest.mark.parametrize("seed", range(4))
def test_a_job_of_other_types_is_a_schema_error_that_names_it(seed: int) -> None:
    fuzzed(150, seed)


@pytest.mark.row("S1", "S2")
@pytest.mark.parametrize("server", [5, "x", [1], {"kind": 5}, {"kind": []}])
def test_a_server_of_another_type_is_a_schema_error(server: object) -> None:
    made = source()
    number = next(at for at, each in enumerate(made.jobs) if each.job.raw.get("reorg_meta"))
    use(made, number, json.loads(made.jobs[number].job.text))
    data = json.loads(made.jobs[number].job.text)
    data["reorg_meta"]["server"] = server
    with pytest.raises(SchemaError):
        use(made, number, data)


@pytest.mark.row("S1", "S2")
@pytest.mark.slow
@pytest.mark.timeout(0)
def test_many_jobs_of_other_types(record_property: Callable[[str, object], None]) -> None:
    seed = random.randrange(1 << 30)
    record_property("seed", seed)
    fuzzed(100_000, seed)
