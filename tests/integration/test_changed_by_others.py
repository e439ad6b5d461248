"""A target that others changed, or whose collations make two keys one: found, named, and a way on that is no restore."""

from __future__ import annotations

import pytest

from pumphouse.errors import BinlogError, DdlRefused, LoadError, RowRejected
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import MysqlType
from pumphouse.runs import load
from pumphouse.settings import Settings
from tests.integration.test_load_rules import Killed, history, killing, put, ruled
from tests.support.kind import is_mysql
from tests.support.loading import restored
from tests.support.madearchive import MadeSource, column, index, target_rows

LOAD = {"engine": "local", "buckets": 3}
ID = column(1, "id", flag=3)
TEXT = column(2, "a", MysqlType.VARCHAR)


def begun(source: MadeSource, settings: Settings, mode: str) -> Settings:
    """A keyed table t, k without a key, and w that nobody touches; loaded."""
    for table in ("t", "w"):
        source.create_table(table, [ID, TEXT])
    source.create_table("k", [column(1, "id"), TEXT], pk_is_handle=False)
    for table in ("t", "k", "w"):
        put(source, table, 1, 2)
    source.genesis()
    told = settings.model_copy(update={"load": settings.load.model_copy(update={"mode": mode})})
    load.run(told)
    return told


@pytest.mark.row("L4", "L7")
@pytest.mark.parametrize("mode", ["merge", "replay"])
@pytest.mark.parametrize(
    ("change", "table", "found"),
    [
        ("DELETE FROM d.k WHERE id = 2", "k", r"d\.k lacks 1 of the rows to delete"),
        ("UPDATE d.k SET a = 'other'", "k", r"d\.k lacks 1 of the rows to delete"),
        ("ALTER TABLE d.t DROP COLUMN a", "t", r"d\.t is not there as the load left it: .*Unknown column 'a'"),
        ("ALTER TABLE d.k DROP COLUMN a", "k", r"d\.k is not there as the load left it: .*Unknown column"),
        (
            "ALTER TABLE d.t DROP COLUMN a, ADD COLUMN a INT",
            "t",
            r"d\.t did not take its rows: .*Incorrect integer value",
        ),
        ("ALTER TABLE d.t MODIFY a VARCHAR(3)", "t", r"d\.t did not take its rows: .*Data too long"),
        ("DROP TABLE d.t", "t", r"d\.t is not there as the load left it: .*doesn't exist"),
        ("RENAME TABLE d.k TO d.elsewhere", "k", r"d\.k is not there as the load left it: .*doesn't exist"),
        ("ALTER TABLE d.t ADD COLUMN b INT", "t", "refused the DDL of job .*Duplicate column name 'b'"),
    ],
)
def test_what_others_changed_is_found_and_a_resync_is_the_way_on(
    source: MadeSource, settings: Settings, target: TargetConnection, change: str, table: str, found: str, mode: str
) -> None:
    told = begun(source, settings, mode)
    put(source, "w", 3)
    with source.txn() as t:
        t.delete("k", 2)
        t.insert("k", id=3, a=b"new")
        t.update("t", 1, a=b"longer")
    source.add_column("t", column(3, "b"))
    put(source, "t", 3, text=b"longer")
    end = source.cut()
    target.execute(change)
    for _ in range(2):
        with pytest.raises((RowRejected, DdlRefused), match=found) as caught:
            load.run(told)
        assert f"`pumphouse load --resync d.{table}`" in caught.value.hint
    report = load.run(told, resync=f"d.{table}")
    assert report.parked == {}
    load.run(told)
    target.execute("DROP TABLE IF EXISTS d.elsewhere")
    assert target_rows(target) == source.snapshot()
    assert report.to_ts <= end
    assert history(target) == [(f"table d.{table}", "park", True, "load --resync", False)]
    # From then on it is a table like any other.
    put(source, table, 9)
    source.cut()
    assert load.run(told).parked == {}
    assert target_rows(target) == source.snapshot()


@pytest.mark.row("L7", "O7")
def test_a_resync_that_is_killed_leaves_the_table_out_loudly_and_the_others_go_on(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = begun(source, settings, "merge")
    source.add_column("t", column(3, "b"))
    put(source, "t", 3)
    source.cut()
    load.run(told)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killing(patch, lambda _: True)
        load.run(told, resync="d.t")
    put(source, "w", 3)
    source.cut()
    assert list(load.run(told).parked) == ["d.t"]
    assert target_rows(target)["w"] == source.snapshot()["w"]
    assert load.run(told, resync="d.t").parked == {}
    assert target_rows(target) == source.snapshot()


@pytest.mark.row("L7")
def test_a_table_that_a_resync_cannot_bring_back_stays_as_it_is(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    told = begun(source, settings, "merge")
    source.drop_database()
    source.cut()
    load.run(told)
    with pytest.raises(LoadError, match=r"d\.t cannot be brought back by itself"):
        load.run(told, resync="d.t")
    assert target.query("SELECT subject FROM pumphouse.rule") == []
    assert load.run(told).parked == {}


def keyed(source: MadeSource, collate: str) -> None:
    source.create_table(
        "t",
        [column(1, "c", MysqlType.VARCHAR, flag=1, collate=collate), column(2, "n")],
        pk_is_handle=False,
        index_info=[index(1, "PRIMARY", ("c", 0), unique=True, primary=True)],
    )


@pytest.mark.row("L4", "L7")
@pytest.mark.parametrize("mode", ["merge", "replay"])
@pytest.mark.parametrize(
    ("collate", "there", "other"),
    [
        ("utf8mb4_bin", "utf8mb4_bin", b"a "),  # TiDB's own may pad, and may not
        ("utf8mb4_general_ci", "utf8mb4_general_ci", b"A"),  # a cluster of before the new collations
        # The twin that MariaDB gets: a letter stands for those that only one of the two tells apart.
        ("utf8mb4_0900_ai_ci", "utf8mb4_uca1400_nopad_ai_ci", "\u00c5".encode()),
    ],
)
def test_keys_that_a_collation_of_the_target_makes_one_are_named_with_the_way_to_tell_them_apart(
    source: MadeSource,
    settings: Settings,
    target: TargetConnection,
    collate: str,
    there: str,
    other: bytes,
    mode: str,
) -> None:
    keyed(source, collate)
    source.genesis()
    told = settings.model_copy(update={"load": settings.load.model_copy(update={"mode": mode})})
    load.run(told)
    with source.txn() as t:
        t.insert("t", c=b"a", n=1)
    source.cut()
    load.run(told)
    with source.txn() as t:
        t.insert("t", c=other, n=2)
    source.cut()
    with pytest.raises(RowRejected, match=r"d\.t did not take its rows") as caught:
        load.run(told)
    assert other.decode() in caught.value.message
    assert f"its unique keys compare c by {collate if is_mysql() else there}" in caught.value.hint
    exact = "utf8mb4_0900_bin" if is_mysql() else "utf8mb4_nopad_bin"
    assert f"ALTER TABLE `d`.`t` MODIFY the column with COLLATE {exact}" in caught.value.hint
    assert 'do = "park"\ntable = "d.t"' in caught.value.hint
    assert target.query("SELECT c, n FROM d.t") == [("a", 1)]
    target.execute(f"ALTER TABLE d.t MODIFY c VARCHAR(64) COLLATE {exact} NOT NULL")
    load.run(told)
    assert target_rows(target) == source.snapshot()


@pytest.mark.row("L4", "R1")
def test_a_restore_and_a_first_load_that_keys_collide_in_go_on_without_the_table(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    keyed(source, "utf8mb4_general_ci")
    source.create_table("w", [ID, TEXT])
    put(source, "w", 1)
    with source.txn() as t:
        t.insert("t", c=b"a", n=1)
        t.insert("t", c=b"A", n=2)
    source.genesis()
    end = source.cut()
    for run in (lambda s: load.run(s), lambda s: restored(s, to=end, dry_run=False)):
        with pytest.raises(BinlogError, match=r"d\.t") as caught:
            run(settings)
        assert 'do = "park"\ntable = "d.t"' in caught.value.hint
        assert "--resync" not in caught.value.hint
        run(ruled(settings, {"do": "park", "table": "d.t"}))
        assert target_rows(target) == {"w": source.snapshot()["w"]}
