"""Casts of a MySQL that are not TiDB's (each pair is run on real servers by tests/integration/test_conversions.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pumphouse.model.table import FieldType
from pumphouse.schema.conversion import conversion
from pumphouse.schema.dialect import Dialect

RECORD = json.loads((Path(__file__).parents[2] / "recorded" / "conversions.json").read_text())


@pytest.mark.row("O9", "S2")
@pytest.mark.parametrize(
    ("old", "new", "strict"),
    [("json", "varchar(60)", True), ("varchar(60)", "time", True), ("datetime(3)", "date", False)],
)
def test_what_a_mysql_casts_otherwise_is_not_known_there(old: str, new: str, strict: bool) -> None:
    fields = [FieldType.from_dict(RECORD["fields"][kind]) for kind in (old, new)]
    assert conversion(*fields, strict=strict, dialect=Dialect.MARIADB) is not None
    assert conversion(*fields, strict=strict, dialect=Dialect.MYSQL) is None
