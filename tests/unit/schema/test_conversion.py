"""Casts of a MySQL that are not TiDB's (each pair is run on real servers by tests/integration/test_conversions.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pumphouse.model.table import FieldType, MysqlType
from pumphouse.schema.conversion import conversion
from pumphouse.schema.dialect import Dialect
from tests.support.rowgen import field

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


@pytest.mark.row("S2")
@pytest.mark.parametrize("strict", [True, False])
def test_of_a_type_that_no_cast_is_held_against_no_cast_is_known(strict: bool) -> None:
    other = FieldType.from_dict(field(MysqlType.GEOMETRY))
    blob = FieldType.from_dict(field(MysqlType.BLOB, 128, 65535))
    for pair in ((other, blob), (blob, other), (other, other)):
        assert conversion(*pair, strict=strict) is None
