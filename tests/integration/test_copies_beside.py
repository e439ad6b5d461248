"""Copies beside their places, for a captured source: nothing but a copy of ours is dropped, whoever has its name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pumphouse.errors import LoadError, TargetBusy
from pumphouse.executor import places
from pumphouse.executor.build import build, hand_over
from pumphouse.executor.places import copied_beside, copies_left, require_free_for_copies
from pumphouse.loader.rules import NO_RULES
from pumphouse.loader.steps import Build, HandOver
from pumphouse.loader.target import TargetConnection
from pumphouse.settings import TargetSettings
from tests.support import mariadb

pytestmark = [pytest.mark.mysql, pytest.mark.row("R1", "R3")]

OWN = "pumphouse_parts"
FIRST, SECOND = ("old", f"{OWN}_part_1"), ("old", f"{OWN}_part_2")
TABLES = (("part_1", ("old", "t")), ("part_2", ("old", "u")))


def opened(settings: TargetSettings) -> TargetConnection:
    """With two tables that are whole, and wait for their places."""
    connection = TargetConnection.open(settings.model_copy(update={"schema_name": OWN}))
    for each in ("CREATE DATABASE old", f"CREATE DATABASE {OWN}", "SET SESSION lock_wait_timeout = 1"):
        connection.execute(each)
    for each in ("part_1", "part_2"):
        connection.execute(f"CREATE TABLE {OWN}.{each} (id INT PRIMARY KEY)")
        connection.execute(f"INSERT INTO {OWN}.{each} VALUES (1)")
    return connection


@pytest.fixture
def parts(server: TargetSettings, target: TargetConnection) -> Iterator[TargetConnection]:
    """On a server that has nothing else."""
    with opened(server) as connection:
        yield connection


def somebody(target: TargetConnection, name: tuple[str, str], columns: str = "id INT PRIMARY KEY") -> None:
    """Makes a table of that name, as ours is or otherwise."""
    target.execute(f"CREATE TABLE {'.'.join(name)} ({columns})")
    target.execute(f"INSERT INTO {'.'.join(name)} VALUES (7)")


def test_a_name_that_somebody_took_while_another_table_was_copied_is_theirs(
    parts: TargetConnection, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied_beside(parts, TABLES)  # by a run that was killed then
    copy = places._copy

    def slowly(connection: TargetConnection, source: tuple[str, str], name: tuple[str, str]) -> None:
        copy(connection, source, name)
        if name == FIRST:
            somebody(target, SECOND)

    monkeypatch.setattr(places, "_copy", slowly)
    with pytest.raises(LoadError, match=rf"{SECOND[1]} already: under such a name a restore copies"):
        copied_beside(parts, TABLES)
    monkeypatch.undo()
    for _ in range(2):
        assert copies_left(parts) == [FIRST]
        with pytest.raises(LoadError, match="it replaces no table") as caught:
            copied_beside(parts, TABLES)
        assert "rename that table" in caught.value.hint
        assert target.value(f"SELECT id FROM {'.'.join(SECOND)}") == 7


def test_a_name_that_was_written_down_and_not_used_is_whose_the_table_is(
    parts: TargetConnection, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed, pytest.raises(ZeroDivisionError):
        killed.setattr(places, "_copy", lambda *_: 1 / 0)
        copied_beside(parts, TABLES)
    assert copies_left(parts) == []
    somebody(target, FIRST, "n INT")
    with pytest.raises(LoadError, match=FIRST[1]):
        copied_beside(parts, TABLES)
    assert target.value(f"SELECT n FROM {'.'.join(FIRST)}") == 7


def test_what_takes_the_name_of_a_copy_that_has_its_place_is_nobodys_copy(
    parts: TargetConnection, target: TargetConnection
) -> None:
    step = HandOver(databases=(), tables=TABLES, followed=True)
    hand_over(parts, step)
    somebody(target, FIRST)
    hand_over(parts, step)  # it was killed before that was written down
    assert copies_left(parts) == []
    with pytest.raises(LoadError, match=FIRST[1]):
        require_free_for_copies(parts, [FIRST])


def test_a_copy_that_somebody_reads_is_waited_for_and_then_the_way_on_is_said(
    parts: TargetConnection, target: TargetConnection
) -> None:
    copied_beside(parts, TABLES)

    def dropped_by_anew() -> list[str]:
        return build(parts, "parts", NO_RULES, Build(drop_tables=(FIRST,), ddls=()))

    def again() -> Any:
        return copied_beside(parts, TABLES)

    with target.transaction():
        target.query(f"SELECT * FROM {'.'.join(FIRST)}")
        for drops in (again, dropped_by_anew):
            with pytest.raises(TargetBusy) as caught:
                drops()
            assert "run the same command again" in caught.value.hint
    again()
    dropped_by_anew()
    assert copies_left(parts) == [SECOND]


def test_a_copy_of_ours_is_ours_however_a_server_that_folds_names_is_told_its_name() -> None:
    with (
        mariadb.directory_in_memory() as directory,
        mariadb.server_in(directory, arguments=("--lower-case-table-names=1",)) as server,
        opened(mariadb.settings_of(server)) as parts,
    ):
        copied_beside(parts, [("part_1", ("Old", "t"))])
        require_free_for_copies(parts, [FIRST, ("OLD", FIRST[1])])
        somebody(parts, SECOND)
        with pytest.raises(LoadError, match=SECOND[1]):
            require_free_for_copies(parts, [FIRST, ("Old", SECOND[1])])
        copied_beside(parts, [("part_1", ("old", "t"))])
        assert copies_left(parts) == [FIRST]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each transaction that copies."""
    found: list[int] = []
    execute = TargetConnection.execute

    def counting(self: TargetConnection, statement: str, *args: Any) -> int:
        affected = execute(self, statement, *args)
        if statement.startswith("INSERT INTO `old`"):
            found.append(affected)
        return affected

    monkeypatch.setattr(TargetConnection, "execute", counting)
    return found


@pytest.mark.parametrize(
    ("columns", "key", "values"),
    [
        ("id INT", "id", "seq - 300"),
        ("id BIGINT UNSIGNED", "id", "18446744073709551615 - seq"),
        ("id CHAR(36) COLLATE utf8mb4_general_ci", "id", "UUID()"),
        ("id BINARY(16)", "id", "UNHEX(LEFT(SHA2(seq, 256), 32))"),
        ("id DECIMAL(20, 5)", "id", "seq / 7"),
        ("tenant INT, id INT", "tenant, id", "IF(seq < 450, 1, seq % 3), seq"),
        (
            "day DATETIME(3), id VARCHAR(40)",
            "day, id",
            "FROM_UNIXTIME(1700000000.5 + seq % 5), LEFT(SHA2(seq, 256), 32)",
        ),
        ("tenant INT, kind ENUM('b', 'a', 'c')", "tenant, kind", "seq DIV 3, seq % 3 + 1"),
        ("name VARCHAR(200), id INT", "name(3), id", "LEFT(SHA2(seq, 256), 32), seq"),
    ],
)
def test_rows_are_copied_once_and_some_at_a_time_whatever_their_key_is(
    parts: TargetConnection, monkeypatch: pytest.MonkeyPatch, made: list[int], columns: str, key: str, values: str
) -> None:
    parts.execute(f"CREATE TABLE {OWN}.part_3 ({columns}, n INT, PRIMARY KEY ({key}))")
    parts.execute(f"CREATE TABLE {OWN}.s (seq INT PRIMARY KEY)")
    parts.execute(f"INSERT INTO {OWN}.s VALUES {', '.join(f'({n})' for n in range(1, 601))}")
    parts.execute(f"INSERT INTO {OWN}.part_3 SELECT {values}, seq FROM {OWN}.s")
    monkeypatch.setattr(places, "_COPIED_ROWS", 50)
    ((copy, _),) = copied_beside(parts, [("part_3", ("old", "w"))])
    ((_, one), (_, other)) = parts.query(f"CHECKSUM TABLE {OWN}.part_3, {'.'.join(copy)}")
    assert (one, sum(made)) == (other, 600)
    assert max(made) <= (600 if "name(3)" in key else 100)


def test_rows_of_many_bytes_are_few_in_a_transaction_and_a_table_without_a_key_must_be_small(
    parts: TargetConnection, monkeypatch: pytest.MonkeyPatch, made: list[int]
) -> None:
    for name, key in (("part_3", "PRIMARY KEY"), ("part_4", "")):
        parts.execute(f"CREATE TABLE {OWN}.{name} (id INT {key}, said LONGTEXT)")
        parts.execute(f"INSERT INTO {OWN}.{name} SELECT {'id'} * 10, REPEAT('x', 200000) FROM {OWN}.part_1")
        for n in range(1, 6):
            parts.execute(f"INSERT INTO {OWN}.{name} SELECT id + {10 << n}, said FROM {OWN}.{name}")
    monkeypatch.setattr(places, "_COPIED_BYTES", 1 << 20)
    copied_beside(parts, [("part_3", ("old", "w"))])
    assert (sum(made), max(made) <= 8) == (32, True)
    monkeypatch.setattr(places, "_COPIED_WHOLE", 1 << 20)
    with pytest.raises(LoadError, match=f"one transaction of about .*old.{OWN}_part_4"):
        copied_beside(parts, [("part_4", ("old", "x"))])
