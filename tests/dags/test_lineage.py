"""What tasks say of the data that they moved, without the provider that asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.row("O2"), pytest.mark.timeout(300)]
_SAID = """
import json, sys
from dataclasses import asdict
from pumphouse.loader.report import LoadReport
from pumphouse.model.tablerows import TableRows
from pumphouse.settings import Settings
from binlog_airflow import lineage
server = {"host": "db2", "port": 3307, "user": "loader", "password": "hidden"}
said = []
for root in ("s3://bucket/some/prefix", "s3://bucket", "file:///srv/archive"):
    settings = Settings.model_validate({"archive": {"root": root}, "target": server})
    rows = TableRows.of({f"d.t{number}": number for number in range(1500)})
    report = LoadReport(target="loader@db2:3307", task="main", from_ts=1, to_ts=2, cluster_id=7, written=rows)
    said.append(asdict(lineage.of_load(settings, settings.target, report)))
report.written = TableRows()
assert lineage.of_load(settings, settings.target, report).to_openlineage() is None
print(json.dumps([said, "openlineage" in sys.modules]))
"""


def test_an_event_has_the_largest_tables_and_says_how_many_there_were(in_airflow: Callable[..., Any]) -> None:
    said, imported = in_airflow(_SAID)
    assert not imported
    archives = [(each["inputs"][0]["namespace"], each["inputs"][0]["name"]) for each in said]
    assert archives == [("s3://bucket", "some/prefix/7"), ("s3://bucket", "7"), ("file", "/srv/archive/7")]
    for each in said:
        assert each["tables"] == {"total": 1500, "listed": 1000}
        assert len(each["outputs"]) == 1000
        first = each["outputs"][0]
        assert (first["namespace"], first["name"], first["rows"]) == ("mysql://db2:3307", "d.t1499", 1499)
    assert "hidden" not in str(said)
    assert "loader" not in str(said)
