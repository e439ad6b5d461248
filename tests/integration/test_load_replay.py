"""Loads with load.mode = "replay" on a real MariaDB: change by change from the archive, with DDL, kills and retries."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from pumphouse.codec import payload
from pumphouse.codec.row import encode_delete
from pumphouse.errors import PartitionUnsettled, RowRejected, TargetUnavailable
from pumphouse.loader import state
from pumphouse.loader.ddl import DdlExecutor
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import MysqlType
from pumphouse.replay import load as replay_load
from pumphouse.runs import load
from pumphouse.schema.actions import Action
from pumphouse.settings import Settings
from tests.integration.test_dropped_partitions import Drop
from tests.integration.test_load_rules import ruled
from tests.integration.test_load_schema_edges import (  # noqa: F401 - the same holds here
    test_an_image_that_lacks_a_column_whose_drop_lies_beyond_the_load_names_table_and_column,
    test_rows_deleted_from_a_table_without_a_key_while_a_column_is_dropped_are_found,
    test_rows_deleted_while_their_key_is_dropped_with_its_column_are_the_right_ones,
    test_rows_that_share_a_key_which_is_being_dropped_all_arrive,
)
from tests.support.killed import Killed, calls_until_killed
from tests.support.loading import read_checkpoint
from tests.support.madearchive import Churn, MadeSource, column, index, target_rows

LOAD = {"engine": "local", "mode": "replay"}


def killer(*_: Any) -> None:
    raise Killed


def with_unique_text(source: MadeSource, *more: dict[str, Any]) -> None:
    columns = [column(1, "id", flag=3), column(2, "u", MysqlType.VARCHAR), *more]
    source.create_table("t", columns, index_info=[index(1, "u", ("u", 1), unique=True)])


def equal(source: MadeSource, target: TargetConnection) -> bool:
    return target_rows(target) == source.snapshot()


@pytest.fixture(autouse=True)
def small_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_load, "_ROUND_ROWS", 60)


@pytest.mark.mysql
@pytest.mark.row("L3", "L5", "L6", "S3")
def test_a_target_follows_change_by_change_through_windows_and_ddl(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    churn = Churn(source)
    churn.fill()
    source.genesis()
    churn.work(20)
    source.cut()
    churn.work(20)
    source.add_column("t", column(4, "extra", default="7", origin_default="7"))
    churn.work(20)
    source.truncate("k")
    churn.work(20)
    source.drop_column("t", "name")
    source.create_table("new", [column(1, "id", flag=3)])
    source.drop_table("new")
    source.rename_table("u", "v")
    end = source.cut()
    report = load.run(settings)
    assert equal(source, target)
    assert (report.to_ts, report.ddls) == (end, 6)
    assert report.units > 5, "rounds"
    assert target.query("SELECT mode FROM pumphouse.plan ORDER BY number DESC LIMIT 1") == [("replay",)]
    assert load.run(settings).plans == 0
    merge = settings.model_copy(update={"load": settings.load.model_copy(update={"mode": "merge"})})
    source.tables["u"] = source.tables.pop("v")
    source.tables["v"] = source.tables.pop("u")
    with source.txn() as t:
        t.insert("t", id=5000, n=1)
    source.cut()
    assert load.run(merge).plans == 1
    assert equal(source, target)


@pytest.mark.row("L2", "L3", "L6")
def test_a_replay_killed_at_random_statements_and_run_again_ends_equal(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    churn = Churn(source)
    churn.fill()
    source.genesis()
    for _ in range(2):
        churn.work(15)
        source.add_column("t", column(10 + source.schema_version, f"c{source.schema_version}"))
        churn.work(15)
        source.cut()
    load.run(settings, to=source.archive.genesis().ts)
    rng, kills, left = random.Random(0), 0, calls_until_killed(monkeypatch)
    reached = []
    for _ in range(12):
        left[0] = rng.randrange(40, 300)
        try:
            load.run(settings, run_id="one", take_over=True)
        except (Killed, TargetUnavailable):  # what tidies up behind a kill finds the connection gone
            assert left[0] <= 0
            kills += 1
            left[0] = 0
            reached.append(read_checkpoint(settings.target, "main"))
        else:
            break
    left[0] = 0
    load.run(settings, run_id="one", take_over=True)
    assert kills >= 3
    assert reached == sorted(reached)
    assert len(set(reached)) > 1, "the checkpoint moves within a plan"
    assert equal(source, target)


@pytest.mark.row("L2", "L6")
def test_an_open_replay_is_finished_as_one_before_the_mode_changes(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.create_table("t", [column(1, "id", flag=3), column(2, "n")])
    source.genesis()
    for id_ in range(200):
        with source.txn() as t:
            t.insert("t", id=id_, n=0)
    source.cut()
    moved = state.move_checkpoint
    calls = iter(range(100))

    def move(*args: Any) -> None:
        if next(calls) == 1:
            raise Killed
        moved(*args)

    monkeypatch.setattr(state, "move_checkpoint", move)
    with pytest.raises(Killed):
        load.run(settings)
    monkeypatch.setattr(state, "move_checkpoint", moved)
    ahead, at = target.value("SELECT COUNT(*) FROM d.t"), read_checkpoint(settings.target, "main")
    with source.txn() as t:
        for id_ in range(150, 200):
            t.delete("t", id_)
    source.cut()
    assert at is not None
    assert ahead > 60, "rows of the round that has not ended are there"
    assert at < source.archive.end()
    merge = settings.model_copy(update={"load": settings.load.model_copy(update={"mode": "merge"})})
    report = load.run(merge)
    assert (report.resumed, report.plans) == (True, 1)
    assert equal(source, target)
    with source.txn() as t:
        t.insert("t", id=999, n=9)
    source.cut()
    load.run(merge)
    assert target.query("SELECT mode, state FROM pumphouse.plan WHERE number > 1 ORDER BY number") == [
        ("replay", "closed"), ("merge", "closed"),
    ]  # fmt: skip
    assert equal(source, target)


@pytest.mark.row("L3")
def test_unique_values_of_any_collation_wander_between_rows(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    text = {"tp": MysqlType.VARCHAR, "collate": "utf8mb4_general_ci"}
    source.create_table(
        "m",
        [column(1, "id", flag=3), column(2, "mail", **text), column(3, "e", MysqlType.ENUM, elems=["a", "b"])],
        index_info=[index(1, "mail", ("mail", 1), unique=True)],
    )
    source.genesis()
    for turn in range(40):
        name, other = (b"Same", b"sAME") if turn % 4 else ("Straße".encode(), "STRASSÉ".encode())
        with source.txn() as t:
            one = t.insert("m", id=2 * turn, mail=name, e=0)
        with source.txn() as t:
            t.update("m", one, mail=b"gone%d" % turn, e=2)
        with source.txn() as t:
            two = t.insert("m", id=2 * turn + 1, mail=other, e=None)
        with source.txn() as t:
            t.delete("m", two)
            t.insert("m", id=1000 + turn, mail=None)
    source.cut()
    load.run(settings)
    found, wanted = target.query("SELECT id, mail, e + 0 FROM d.m"), source.snapshot()["m"]
    assert {(i, None if m is None else m.encode(), e) for i, m, e in found} == set(wanted)
    assert len(found) == 80


@pytest.mark.row("L2", "L3")
def test_a_row_under_its_key_gives_way_and_one_under_another_unique_key_stops_the_load(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    unique = index(1, "u", ("u", 1), unique=True)
    source.create_table("t", [column(1, "id", flag=3), column(2, "u")], index_info=[unique])
    source.genesis()
    source.cut()
    load.run(settings)
    target.execute("INSERT INTO d.t VALUES (1, 99)")
    with source.txn() as t:
        t.insert("t", id=1, u=1)
    source.cut()
    load.run(settings)
    assert target.query("SELECT * FROM d.t") == [(1, 1)]
    target.execute("INSERT INTO d.t VALUES (7, 2)")
    with source.txn() as t:
        t.insert("t", id=2, u=2)
    source.cut()
    for _ in range(3):  # an attempt that did not end takes nothing from the next
        with pytest.raises(RowRejected, match=r"d\.t did not take its rows: rows are there already"):
            load.run(settings)
        assert target.query("SELECT * FROM d.t") == [(1, 1), (7, 2)]


@pytest.mark.row("L2", "L3")
@pytest.mark.parametrize("before", [0, 1, 500])
def test_rows_that_are_one_on_the_target_stop_each_attempt(
    source: MadeSource, settings: Settings, target: TargetConnection, before: int
) -> None:
    source.create_table("w", [column(1, "id", flag=3)])
    with_unique_text(source)
    source.genesis()
    load.run(settings)
    target.execute("ALTER TABLE d.t MODIFY u VARCHAR(64) COLLATE utf8mb4_general_ci")
    for id_ in range(before):
        with source.txn() as t:
            t.insert("w", id=id_)
    for id_, text in ((1, b"a"), (2, b"A")):
        with source.txn() as t:
            t.insert("t", id=id_, u=text)
    source.cut()
    for _ in range(3):
        with pytest.raises(RowRejected, match=r"d\.t did not take its rows: .* share a unique key"):
            load.run(settings)
    target.execute("ALTER TABLE d.t MODIFY u VARCHAR(64) COLLATE utf8mb4_bin")
    load.run(settings)
    assert equal(source, target)


@pytest.mark.row("L2", "S3")
@pytest.mark.parametrize("killed", [False, True])
def test_rows_of_a_round_that_did_not_end_come_once_where_their_key_is_dropped_meanwhile(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    source.create_table("u", [column(1, "id", flag=3)])
    going = [index(1, "ka", ("a", 0), unique=True)]
    source.create_table("t", [column(1, "a", flag=1), column(2, "b")], pk_is_handle=False, index_info=going)
    source.genesis()
    load.run(settings)
    source.add_column("u", column(2, "c"))
    for a in range(10, 50):
        with source.txn() as t:
            t.insert("t", a=a, b=a)
    for b in (1, 2):  # the DROP INDEX is under way
        with source.txn() as t:
            t.insert("t", a=1, b=b)
    source.cut()
    if killed:
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(DdlExecutor, "execute", killer)
            load.run(settings)
    for _ in range(2):
        with pytest.raises(RowRejected, match="share a unique key"):
            load.run(settings)
    assert target.value("SELECT COUNT(*) FROM d.t") == 0, "what stands there would not tell whether it was the round's"
    source.drop_indexes("t")
    source.cut()
    load.run(settings)
    assert equal(source, target)


@pytest.mark.row("L2", "L3", "L6")
@pytest.mark.parametrize("how", ["load", "load without safe mode", "resync"])
def test_unique_values_that_wander_within_a_round_that_did_not_end_are_in_nobodys_way(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "load without safe mode":
        settings = settings.model_copy(update={"load": settings.load.model_copy(update={"safe_mode": False})})
    source.create_table("z", [column(1, "id", flag=3)])
    unique = index(1, "u", ("u", 1), unique=True)
    source.create_table("t", [column(1, "id", flag=3), column(2, "u"), column(3, "n")], index_info=[unique])
    source.genesis()
    load.run(settings)
    with source.txn() as t:
        row = t.insert("t", id=1, u=7, n=0)
    source.cut()
    load.run(settings)
    for id_ in range(2, 6):
        with source.txn() as t:
            if id_ % 2:
                t.update("t", row, u=10 + id_)
            else:
                t.delete("t", row)
        with source.txn() as t:
            row = t.insert("t", id=id_, u=7)
    with source.txn() as t:
        t.update("t", row, n=1)
    source.cut()
    for _ in range(3):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(state, "move_checkpoint", killer)
            load.run(settings)
    report = load.run(settings, resync="d.z" if how == "resync" else "")
    assert equal(source, target)
    assert (report.inserted, report.deleted) == (7, 5)


@pytest.mark.row("L2", "L3")
def test_a_resync_of_another_table_lets_no_row_in_the_way_pass(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("z", [column(1, "id", flag=3)])
    with_unique_text(source)
    with source.txn() as t:
        row = t.insert("t", id=5, u=b"five")
    source.genesis()
    load.run(settings)
    target.execute("ALTER TABLE d.t MODIFY u VARCHAR(64) COLLATE utf8mb4_general_ci")
    with source.txn() as t:
        t.update("t", row, u=b"six")
    with source.txn() as t:
        t.delete("t", row)
    for id_ in range(60 // (2 * settings.load.connections)):
        with source.txn() as t:
            t.insert("z", id=id_)
    for id_, text in ((1, b"a"), (2, b"A")):
        with source.txn() as t:
            t.insert("t", id=id_, u=text)
    source.cut()
    for again in ("", "", "d.z", "d.z"):
        with pytest.raises(RowRejected, match="share a unique key"):
            load.run(settings, resync=again)


@pytest.mark.row("L2", "S3")
@pytest.mark.parametrize("change", ["insert", "update", "delete"])
def test_what_is_taken_back_is_right_also_where_the_key_is_dropped_by_what_comes_next(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    going = [index(1, "ka", ("a", 0), unique=True)]
    source.create_table("t", [column(1, "a", flag=1), column(2, "b")], pk_is_handle=False, index_info=going)
    with source.txn() as t:
        row = t.insert("t", a=1, b=0)
    source.genesis()
    load.run(settings)
    with source.txn() as t:
        if change == "update":
            t.update("t", row, b=7)
        elif change == "delete":
            t.delete("t", row)
        else:  # the DROP INDEX is under way
            t.insert("t", a=2, b=4)
            t.insert("t", a=1, b=5)
    source.cut()
    if change == "insert":
        with pytest.raises(RowRejected, match="share a unique key"):
            load.run(settings)
    else:
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(state, "move_checkpoint", killer)
            load.run(settings)
    source.drop_indexes("t")
    source.cut()
    load.run(settings)
    assert equal(source, target)


@pytest.mark.row("L1", "L2")
def test_a_row_whose_key_is_an_enum_of_0_is_taken_back_and_deleted(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    primary = index(1, "PRIMARY", ("e", 0), unique=True, primary=True)
    source.create_table(
        "t", [column(1, "e", MysqlType.ENUM, elems=["a", "b"], flag=3), column(2, "b")], pk_is_handle=False,
        index_info=[primary],
    )  # fmt: skip
    source.genesis()
    load.run(settings)
    with source.txn() as t:
        row = t.insert("t", e=0, b=1)
    source.cut()
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(state, "move_checkpoint", killer)
        load.run(settings)
    load.run(settings)
    assert target.query("SELECT e + 0, b FROM d.t") == [(0, 1)]
    with source.txn() as t:
        t.delete("t", row)
    source.cut()
    load.run(settings)
    assert target.query("SELECT * FROM d.t") == []


@pytest.mark.row("L2")
@pytest.mark.parametrize("gone", ["by others", "by a rule"])
def test_an_update_of_a_row_that_is_not_there_hides_no_row_in_the_way(
    source: MadeSource, settings: Settings, target: TargetConnection, gone: str
) -> None:
    with_unique_text(source, column(3, "c"))
    with source.txn() as t:
        t.insert("t", id=1, u=b"a", c=0)
    source.genesis()
    load.run(settings)
    target.execute("ALTER TABLE d.t MODIFY u VARCHAR(64) COLLATE utf8mb4_general_ci")
    with source.txn() as t:
        row = t.insert("t", id=5, u=b"x", c=0)
    rule = {"do": "skip", "txn": source.events[-1].commit_ts, "why": "a test"}
    if gone == "by others":
        source.cut()
        load.run(settings)
        target.execute("DELETE FROM d.t WHERE id = 5")
    with source.txn() as t:
        t.update("t", row, c=1)
    with source.txn() as t:
        t.insert("t", id=2, u=b"A", c=0)
    source.cut()
    rules = {"rules": [rule] if gone == "by a rule" else []}
    told = Settings.model_validate({**dict(settings), "load": settings.load.model_dump() | rules})
    for _ in range(2):
        with pytest.raises(RowRejected, match="share a unique key"):
            load.run(told)


@pytest.mark.row("L2", "S3")
def test_a_row_that_cannot_be_read_whole_keeps_no_other_from_being_taken_back(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.create_table("k", [column(1, "id", flag=3), column(2, "s", MysqlType.VARCHAR)])
    going = [index(1, "ka", ("a", 0), unique=True)]
    source.create_table("t", [column(1, "id", flag=3), column(2, "n")])
    source.create_table("v", [column(1, "a", flag=1), column(2, "b")], pk_is_handle=False, index_info=going)
    with source.txn() as t:
        handle = t.insert("k", id=1, s=b"ab")
        rows = t.insert("t", id=1, n=1), t.insert("v", a=1, b=0)
    source.genesis()
    load.run(settings)
    held = source.tables["k"]
    before, raw = held.info, copy.deepcopy(held.info.raw)
    raw["cols"][1] |= {"id": 3}
    raw["cols"][1]["type"]["Flen"] = 10
    source.alter("k", int(Action.MODIFY_COLUMN), raw)  # the rows are rewritten
    source.cut()
    load.run(settings)
    with source.txn() as t:
        t.update("t", rows[0], n=2)
        t.update("v", rows[1], b=7)
    held.rows.pop(handle)
    late = payload.PrewriteValueBuilder(source.schema_version - 1)  # by a server that does not know of the MODIFY yet
    late.delete(before.id, encode_delete(before, {1: 1, 2: b"ab"}, handle=handle))
    source.commit(source.tick(), late.build())
    source.cut(pumps=1)
    for where, what in ((state, "move_checkpoint"), (replay_load.Stream, "run")):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(where, what, killer)
            load.run(settings)
    assert target.query("SELECT * FROM d.t") == [(1, 1)]
    source.drop_indexes("v")
    source.cut()
    load.run(settings)
    assert equal(source, target)


@pytest.mark.row("L2", "L7")
@pytest.mark.parametrize("way", ["park", "resync"])
def test_a_row_that_the_target_refuses_to_take_back_has_a_way_on(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    unique = [index(1, "u", ("u", 1), unique=True)]
    source.create_table("t", [column(1, "id", flag=3), column(2, "u")], index_info=unique)
    with source.txn() as t:
        row = t.insert("t", id=1, u=7)
    source.genesis()
    load.run(settings)
    with source.txn() as t:
        t.update("t", row, u=8)
    source.cut()
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(state, "move_checkpoint", killer)
        load.run(settings)
    target.execute("INSERT INTO d.t VALUES (99, 7)")
    with pytest.raises(RowRejected, match="share a unique key") as caught:
        load.run(settings)
    assert "`pumphouse load --resync d.t`" in caught.value.hint
    if way == "park":
        rules = {"rules": [{"do": "park", "table": "d.t", "why": "a test"}]}
        load.run(Settings.model_validate({**dict(settings), "load": settings.load.model_dump() | rules}))
    load.run(settings, resync="d.t")
    assert equal(source, target)


@pytest.mark.row("L7", "S2")
def test_a_row_that_a_replay_has_loaded_is_not_passed_by_a_rule_for_its_transaction(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    drop = Drop(source)
    load.run(settings)
    drop.begin()
    drop.write("insert", 14, 1)
    told = ruled(settings, {"do": "skip", "txn": source.events[-1].commit_ts})
    drop.end()
    source.cut()
    with pytest.raises(PartitionUnsettled):
        load.run(settings)
    for _ in range(2):
        with pytest.raises(PartitionUnsettled):
            load.run(told)
        drop.write("insert", 30, 1)
        source.cut()
        assert target.value("SELECT COUNT(*) FROM d.t WHERE id = 14") == 1
        drop.write("delete", 30)


@pytest.mark.mysql
@pytest.mark.row("L3", "L5")
def test_a_batch_that_first_meets_a_key_of_all_rows_has_no_other_keys_of_before_it(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    key = column(1, "k", MysqlType.VARCHAR, flag=3, collate="utf8mb4_general_ci")
    source.create_table(
        "t", [key, column(2, "n")], pk_is_handle=False, is_common_handle=True,
        index_info=[index(1, "PRIMARY", ("k", 0), unique=True, primary=True)],
    )  # fmt: skip
    with source.txn() as t:
        accented, plain = t.insert("t", k="é".encode(), n=1), t.insert("t", k=b"u", n=1)
    source.genesis()
    with source.txn() as t:
        t.delete("t", plain)
    with source.txn() as t:
        again = t.insert("t", k=b"u", n=7)
    with source.txn() as t:
        t.delete("t", again)
    with source.txn() as t:
        again = t.insert("t", k=b"u", n=8)
    with source.txn() as t:
        t.update("t", accented, n=6)
    with source.txn() as t:
        t.update("t", again, n=9)
    source.cut(pumps=1)
    load.run(settings)
    assert equal(source, target)
    with source.txn() as t:
        gone = t.insert("t", k=b"a", n=2)
    with source.txn() as t:
        t.delete("t", gone)
    with source.txn() as t:
        t.delete("t", accented)
    with source.txn() as t:
        t.insert("t", k=b"q", n=9)
    source.cut(pumps=1)
    load.run(settings)
    assert equal(source, target)
