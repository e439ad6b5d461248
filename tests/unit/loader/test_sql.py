"""Statements of one row change (the golden vectors hold the texts of the Go loader)."""

import pytest

from pumphouse.loader.sql import Dml, safe_statements, statement


@pytest.mark.row("L2")
def test_safe_mode_turns_an_insert_into_replace_and_an_update_into_delete_and_replace() -> None:
    change = Dml(
        kind="update", db="d", table="t", values={"id": 2, "v": None}, old={"id": 1, "v": 5}, primary_key=("id",)
    )
    assert statement(change) == ("UPDATE `d`.`t` SET `id` = ?,`v` = ? WHERE `id` = ? LIMIT 1", [2, None, 1])
    assert safe_statements(change) == [
        ("DELETE FROM `d`.`t` WHERE `id` = ? LIMIT 1", [1]),
        ("REPLACE INTO `d`.`t`(`id`,`v`) VALUES(?,?)", [2, None]),
    ]
    insert = Dml(kind="insert", db="d", table="t", values={"id": 2})
    assert [text.split()[0] for text, _ in safe_statements(insert)] == ["REPLACE"]


@pytest.mark.row("L2")
def test_a_key_with_a_null_does_not_find_a_row() -> None:
    gone = Dml(kind="delete", db="d", table="t", values={"a": None, "b": 1}, unique_keys=[("a",)])
    assert statement(gone) == ("DELETE FROM `d`.`t` WHERE `a` IS NULL AND `b` = ? LIMIT 1", [1])
