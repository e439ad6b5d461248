"""What errors advise, as a task's log says it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pumphouse.advice import DeclareLost, Do, Dump, Load, Restore, Section, to_json
from tests.architecture.test_advice import EACH

ROOT = Path(__file__).resolve().parents[2]
_WORDS = """
import json
from binlog_airflow.advice import in_airflow
from pumphouse.advice import of_json
print(json.dumps([in_airflow(each) for each in of_json(json.loads({!r}))]))
"""


@pytest.mark.row("O1")
def test_a_log_names_dags_and_fields_that_there_are_and_else_the_command_line(in_airflow: Callable[..., Any]) -> None:
    said = in_airflow(_WORDS.format(json.dumps(to_json(EACH))))
    of = dict(zip(EACH, said, strict=True))
    assert all(said)
    for each in said:
        for dag, fields in re.findall(r"the DAG (\w+)(?: \((.*)\))?", each):
            page = (ROOT / "dags" / f"{dag}.py").read_text()
            titles = [field.partition(":")[0] for field in fields.split("; ") if field]
            assert [title for title in titles if f'title="{title}"' not in page] == []
    assert of[Do.SNAPSHOT] == "the DAG binlog_snapshot"
    assert of[Dump()] == "the DAG binlog_dump"
    assert of[Load()] == "the DAG binlog_load"
    assert of[Restore(to="latest", into="target", dry_run=True)] == (
        "the DAG binlog_restore (Moment: latest; Target: pumphouse_downstream)"
    )
    assert of[Section()] == "the connection pumphouse_downstream"
    assert of[DeclareLost("pump-1")] == "`pumphouse archive declare-lost pump-1 --reason …`"
    assert of[Load(table="shop.orders", target="eu")] == "`pumphouse load --target eu --resync shop.orders`"
