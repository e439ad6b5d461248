"""Columns that a capture refuses, and why."""

import pytest

from pumphouse.capture.source.fit import unfit


@pytest.mark.row("Q1")
@pytest.mark.parametrize(
    ("kind", "whole", "charset", "why"),
    [
        ("point", "point", None, "geometries"),
        ("uuid", "uuid", None, "no such type"),
        ("varchar", "varchar(20) /*M!100301 COMPRESSED*/", "utf8mb4", "COMPRESSED"),
        ("datetime", "datetime(3) /* mariadb-5.3 */", None, "FORCE"),
        ("text", "text", "cp1251", "cp1251"),
        ("datetime", "datetime /* mariadb-5.3 */", None, ""),
        ("text", "text", "latin1", ""),
        ("bigint", "bigint(20) unsigned", None, ""),
    ],
)
def test_what_cannot_be_read_exactly_is_named(kind: str, whole: str, charset: str | None, why: str) -> None:
    found = unfit({"data_type": kind, "column_type": whole, "character_set_name": charset})
    assert why in found
    assert bool(found) == bool(why)
