"""Casts of a MySQL that are not TiDB's (each pair is run on real servers by tests/integration/test_conversions.py)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pumphouse.model.table import ColumnFlag, FieldType, MysqlType
from pumphouse.schema.conversion import Cast, conversion, unlike
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


MARIADB, MYSQL, TIDB = Dialect.MARIADB, Dialect.MYSQL, Dialect.TIDB
HALVES = "MICROSECOND({old}) MOD 1000000 >= 500000"


@pytest.mark.row("Q3", "S2")
@pytest.mark.parametrize(
    ("old", "new", "cast", "target", "unlike_"),
    [
        # The target does as the source, whatever that is, and rounds or cuts as that did.
        ("varchar(60)", "int", Cast(MARIADB, rounds=False), MARIADB, None),
        ("datetime(6)", "datetime", Cast(MARIADB, rounds=False), MARIADB, None),
        ("datetime(6)", "datetime", Cast(MYSQL, rounds=True), MYSQL, None),
        # It cannot be told to cut.
        ("datetime(6)", "datetime", Cast(MARIADB, rounds=False), TIDB, HALVES),
        ("varchar(60)", "datetime", Cast(MARIADB, rounds=False), TIDB, "{old} LIKE '%.%'"),
        # A job of an earlier release, or of a program, does not say it.
        ("datetime(6)", "datetime", Cast(), MARIADB, HALVES),
        ("datetime", "datetime(6)", Cast(), MARIADB, None),
        ("varchar(60)", "int", Cast(), MARIADB, None),
        ("year", "year", Cast(TIDB, rounds=True), MARIADB, None),
        ("varchar(60)", "int", Cast(TIDB, rounds=True), MARIADB, ""),
        # It depends on the day.
        ("time", "datetime", Cast(MYSQL, rounds=True), MYSQL, ""),
        ("time", "date", Cast(), MARIADB, ""),
        # From one kind to another: where both do as TiDB.
        ("int", "varchar(60)", Cast(MYSQL, rounds=True), MARIADB, None),
        ("datetime(6)", "date", Cast(MYSQL, rounds=True), MARIADB, ""),
        ("json", "text", Cast(MARIADB, rounds=False), MYSQL, ""),
        ("float", "text", Cast(MYSQL, rounds=True), TIDB, ""),
        ("float", "bigint", Cast(MYSQL, rounds=True), MARIADB, "ABS({old}) >= 9223372036854775807"),
        # What the one rounds the other refuses, which stops a load; a TiDB does not refuse it.
        ("varchar(60)", "int", Cast(MYSQL, rounds=True), MARIADB, None),
        ("varchar(60)", "int", Cast(MYSQL, rounds=True, strict=False), MARIADB, ""),
        ("varchar(60)", "int", Cast(MYSQL, rounds=True), TIDB, ""),
    ],
)
def test_a_target_casts_as_a_mysql_or_mariadb_did_or_the_rows_are_named_in_which_it_may_not(
    old: str, new: str, cast: Cast, target: Dialect, unlike_: str | None
) -> None:
    before, after = (FieldType.from_dict(RECORD["fields"][kind]) for kind in (old, new))
    assert unlike(before, replace(after, flag=after.flag | ColumnFlag.NOT_NULL), cast, target) == unlike_
