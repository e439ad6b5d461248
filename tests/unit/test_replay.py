"""Replay without a server: causality, batches, steps, the bounded input, safe mode."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from pumphouse.errors import LoadError, UsageError
from pumphouse.loader.columns import Column
from pumphouse.replay.batches import Batches
from pumphouse.replay.causality import Causality
from pumphouse.replay.change import Change, Dml, Shape, Txn
from pumphouse.replay.intake import Closed, Intake
from pumphouse.replay.keys import ANY, Equality, comparable, equality_of
from pumphouse.replay.metrics import InputMetrics
from pumphouse.replay.safemode import FIRST_S, SafeMode
from pumphouse.replay.steps import steps_of
from pumphouse.replay.translate import Translator

T = Shape("d", "t", (Column("id", 3), Column("v", 3)), (0,))
BAG = Shape("d", "bag", (Column("v", 3),), ())


class Clock:
    """Time that stands still."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


def change(*keys: Any, shape: Shape = T, old: bytes | None = None, new: bytes | None = b"n\n", **more: Any) -> Change:
    return Change(shape, keys, old, new, **more)


def grouped(rounds: list[Any]) -> list[list[list[tuple[Any, ...]]]]:
    return [[[c.keys for c in group] for group in round_.groups] for round_ in rounds]


# -- causality


@pytest.mark.row("L3")
def test_the_example_of_seed_001_flushes_at_the_third_statement() -> None:
    """{3,4}, {5,2}, {3}. There one set of keys is kept, and any overlap flushes; here an overlap with one group joins it."""
    causality = Causality()
    assert [causality.join(keys) for keys in ((3, 4), (5, 2), (3,))] == [0, 1, 0]
    batches = Batches(rows=100, seconds=1)
    assert batches.put("1", [change(3, 4)], 0) == batches.put("2", [change(5, 2)], 0) == []
    assert batches.put("3", [change(3)], 0) == []
    # SQL3 runs behind SQL1, and beside SQL2: what the flush of the seed is for.
    assert grouped(batches.take()) == [[[(3, 4), (3,)], [(5, 2)]]]


@pytest.mark.row("L3")
def test_the_example_of_seed_004_dml_5_flushes_both_groups_and_begins_anew() -> None:
    dmls = [
        [("pk", 1), ("uk", 2)],
        [("pk", 2), ("uk", 3)],
        [("pk", 4), ("uk", 3), ("pk", 2), ("uk", 3)],
        [("pk", 1), ("uk", 2)],
        [("pk", 1), ("uk", 3)],
    ]
    causality = Causality()
    assert [causality.join(keys) for keys in dmls] == [0, 1, 1, 0, None]
    batches = Batches(rows=100, seconds=1)
    rounds = [r for n, keys in enumerate(dmls) for r in batches.put(n, [change(*keys)], 0)]
    assert [r.txns for r in rounds] == [[0, 1, 2, 3]]
    assert grouped(rounds) == [
        [[tuple(dmls[0]), tuple(dmls[3])], [tuple(dmls[1]), tuple(dmls[2])]],
    ]
    assert grouped(batches.take()) == [[[tuple(dmls[4])]]]


@pytest.mark.row("L3")
def test_a_conflict_changes_nothing_of_the_groups() -> None:
    causality = Causality()
    assert [causality.join("a"), causality.join("b"), causality.join("acb")] == [0, 1, None]
    assert causality.join("c") == 2
    causality.reset()
    assert causality.join("acb") == 0


@pytest.mark.row("L3")
def test_a_transaction_may_be_split_by_a_conflict_and_is_told_with_its_last_round() -> None:
    batches = Batches(rows=100, seconds=1)
    closed = batches.put("t", [change("a"), change("b"), change("a", "b"), change("c")], 0)
    assert grouped(closed) == [[[("a",)], [("b",)]]]
    assert closed[0].txns == []
    (last,) = batches.take()
    assert (grouped([last]), last.txns) == ([[[("a", "b")], [("c",)]]], ["t"])


@pytest.mark.row("L3")
def test_atomic_keeps_each_transaction_in_one_group() -> None:
    batches = Batches(rows=100, seconds=1, atomic=True)
    assert batches.put("1", [change("a"), change("b")], 0) == []
    assert batches.put("2", [change("c"), change("d")], 0) == []
    assert batches.put("3", [change("d"), change("e")], 0) == []
    closed = batches.put("4", [change("e"), change("a"), change("f")], 0)
    assert [r.txns for r in closed] == [["1", "2", "3"]]
    assert grouped(closed) == [[[("a",), ("b",)], [("c",), ("d",), ("d",), ("e",)]]]
    assert grouped(batches.take()) == [[[("e",), ("a",), ("f",)]]]


@pytest.mark.row("L3", "L6")
def test_rows_without_a_key_are_in_the_round_that_their_transaction_is_whole_with() -> None:
    batches = Batches(rows=100, seconds=1)
    rows = [change("bag", shape=BAG), change("a"), change("b"), change("a", "b")]
    (first,) = batches.put("t", rows, 0)
    assert grouped([first]) == [[[("a",)], [("b",)]]]
    assert grouped(batches.take()) == [[[("a", "b")], [("bag",)]]]


# -- keys


class OneTable:
    """A catalog of one table."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def table(self, db: str, name: str) -> Any:
        return self._table


def table_of(**equality: Equality) -> Any:
    from pumphouse.replay.catalog import KeyPart, Table, UniqueKey

    columns = tuple(Column(name, 15) for name in ("id", "a", "b"))
    kinds = {"id": Equality.EXACT, "a": Equality.EXACT, "b": Equality.EXACT} | equality
    unique = (
        UniqueKey("PRIMARY", (KeyPart("id", kinds["id"]),)),
        UniqueKey("ab", (KeyPart("a", kinds["a"]), KeyPart("b", kinds["b"]))),
    )
    return Table(Shape("d", "t", columns, (0,)), unique, kinds)


def keys_of(translator: Translator, *dmls: Dml) -> list[tuple[Any, ...]]:
    return [c.keys for c in translator.changes(Txn(dmls=dmls))]


def put(old: dict[str, Any] | None = None, **values: Any) -> Dml:
    return Dml(kind="insert" if old is None else "update", db="d", table="t", values=values, old=old)


@pytest.mark.row("L3")
def test_keys_are_of_both_images_and_one_with_a_null_conflicts_with_nothing() -> None:
    translator = Translator(OneTable(table_of()))  # type: ignore[arg-type]
    (keys,) = keys_of(translator, put({"id": "1", "a": "x", "b": None}, id="2", a="x", b="y"))
    assert keys == (
        ("d", "t", "PRIMARY", (b"2",)), ("d", "t", "ab", (b"x", b"y")), ("d", "t", "PRIMARY", (b"1",)),
    )  # fmt: skip


@pytest.mark.row("L3")
def test_an_image_without_any_key_has_one_of_all_columns() -> None:
    from pumphouse.replay.catalog import Table

    table = Table(Shape("d", "t", (Column("a", 15), Column("b", 15)), ()), (), dict.fromkeys("ab", Equality.EXACT))
    first, same, other = keys_of(Translator(OneTable(table)), *(put(a=a, b=b) for a, b in (("x", None), ("x", None), ("x", ""))))  # type: ignore[arg-type]  # fmt: skip
    assert first == same == (("d", "t", "", (b"x", None)),) != other


@pytest.mark.row("L3")
def test_values_that_a_collation_takes_for_equal_conflict() -> None:
    assert comparable("Ab ", Equality.COLLATED) == comparable(b"aB", Equality.COLLATED)
    assert comparable("ab ", Equality.PADDED) == comparable("ab", Equality.PADDED) != comparable("Ab", Equality.PADDED)
    assert comparable("straße", Equality.COLLATED) == ANY
    assert comparable("abcd", Equality.EXACT, 2) == comparable("abef", Equality.EXACT, 2)
    assert comparable("1.50", Equality.NUMBER) == comparable("1.5", Equality.NUMBER)
    assert [equality_of(name) for name in ("utf8mb4_bin", "utf8mb4_general_ci", None)] == [
        Equality.PADDED, Equality.COLLATED, Equality.EXACT,
    ]  # fmt: skip
    for name in (
        "utf8mb4_lithuanian_ci",
        "utf8mb4_uca1400_roman_ai_ci",
        "utf8mb4_lt_0900_ai_ci",
        "utf8mb4_la_0900_as_cs",
        "utf8mb4_lv_0900_ai_ci",
        "utf8mb4_hu_0900_ai_ci",
    ):
        assert equality_of(name) == Equality.UNKNOWN  # i is y there, or j
    assert equality_of("utf8mb4_romanian_ci") == Equality.COLLATED


@pytest.mark.row("L3")
def test_a_value_that_cannot_be_compared_makes_all_rows_of_its_index_one_group_from_then_on() -> None:
    translator = Translator(OneTable(table_of(a=Equality.COLLATED)))  # type: ignore[arg-type]
    (fine,) = keys_of(translator, put(id="1", a="x", b="y"))
    assert not translator.apart
    coarse = keys_of(translator, put(id="2", a="q", b="y"), put(id="3", a="é", b="z"))
    assert translator.apart, "what was grouped by the old rule is flushed first"
    (later,) = keys_of(translator, put(id="4", a="r", b="r"))
    assert fine[1] != coarse[0][1] == coarse[1][1] == later[1]
    assert not translator.apart


# -- batches


@pytest.mark.row("L5")
def test_a_round_is_full_by_rows_by_time_or_when_it_is_taken() -> None:
    batches = Batches(rows=3, seconds=2.0)
    assert batches.left(0) is None
    assert batches.put("a", [change(1), change(2)], 10.0) == []
    assert batches.left(10.5) == 1.5
    (full,) = batches.put("b", [change(3)], 10.5)
    assert (full.txns, full.rows) == (["a", "b"], 3)
    assert batches.put("c", [change(4)], 20.0) == []
    (late,) = batches.put("d", [change(5)], 22.0)
    assert late.txns == ["c", "d"]
    assert batches.take() == []
    batches.put("e", [], 30.0)
    assert [r.txns for r in batches.take()] == [["e"]]
    assert batches.left(31.0) is None


# -- steps


def rows(step: Any) -> list[bytes]:
    return [c.new if step.put else c.old for c in step.changes]


@pytest.mark.row("L2", "L3")
def test_groups_share_statements_and_each_keeps_its_order() -> None:
    insert = change(1, new=b"1 a\n")
    update = change(1, old=b"1\n", new=b"1 b\n")
    moved = change(1, 9, old=b"1\n", new=b"9 b\n", moved=True)
    delete = change(2, old=b"2\n", new=None)
    again = change(2, new=b"2 z\n")
    groups = [[insert, update, moved], [delete, again]]
    safe = steps_of(groups, safe=True)
    assert [(s.put, rows(s)) for s in safe] == [
        (False, [b"2\n"]), (True, [b"1 a\n", b"1 b\n", b"2 z\n"]), (False, [b"1\n"]), (True, [b"9 b\n"]),
    ]  # fmt: skip
    strict = steps_of(groups, safe=False)
    assert [(s.put, rows(s)) for s in strict] == [
        (False, [b"2\n"]), (True, [b"1 a\n", b"2 z\n"]), (False, [b"1\n"]), (True, [b"1 b\n"]), (False, [b"1\n"]),
        (True, [b"9 b\n"]),
    ]  # fmt: skip


@pytest.mark.row("L3")
def test_rows_of_one_group_that_share_no_key_share_statements_too() -> None:
    group = [each for k in range(50) for each in (change(k, old=b"%d\n" % k, new=None), change(k, new=b"%d z\n" % k))]
    moved = change(3, 99, old=b"3\n", new=b"99 z\n", moved=True)
    late = change(99, old=b"99\n", new=None)
    found = [(s.put, len(s.changes)) for s in steps_of([[*group, moved, late]], safe=False)]
    assert found == [(False, 50), (True, 50), (False, 1), (True, 1), (False, 1)]


# -- input


def txn(size: int, tag: Any = None) -> Txn:
    return Txn(dmls=[put(a=b"x" * size)], tag=tag)


@pytest.mark.row("L5", "L8")
def test_the_input_stops_at_its_bytes_and_goes_on_when_one_is_popped() -> None:
    registry = CollectorRegistry()
    intake: Intake[Txn] = Intake(3000, InputMetrics(registry))
    intake.put(txn(5000, "larger than all"))
    with pytest.raises(TimeoutError, match="bytes wait"):
        intake.put(txn(100), timeout=0)
    waiting = threading.Thread(target=intake.put, args=(txn(100, "next"),))
    waiting.start()
    assert registry.get_sample_value("pumphouse_replay_queued_transactions") == 1
    first = intake.pop(0)
    waiting.join(60)
    assert not waiting.is_alive()
    second = intake.pop(5)
    assert first and second and [first.tag, second.tag] == ["larger than all", "next"]
    assert registry.get_sample_value("pumphouse_replay_queued_bytes") == 0
    assert registry.get_sample_value("pumphouse_replay_queued_rows") == 0
    assert registry.get_sample_value("pumphouse_replay_input_rows_total") == 2
    assert intake.pop(0) is None
    intake.close()
    with pytest.raises(UsageError, match="closed"):
        intake.put(txn(1))
    with pytest.raises(Closed):
        intake.pop(None)


@pytest.mark.row("L8")
def test_who_waits_for_room_learns_that_the_run_has_failed() -> None:
    intake: Intake[Txn] = Intake(10, InputMetrics())
    intake.put(txn(1))
    told: list[BaseException] = []

    def wait() -> None:
        try:
            intake.put(txn(1))
        except LoadError as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    intake.fail(LoadError("the target is gone"))
    waiting.join(60)
    assert "the replay has ended: the target is gone" in str(told[0])
    with pytest.raises(LoadError, match="the target is gone"):
        intake.pop(None)


# -- safe mode


@pytest.mark.row("L2")
def test_safe_mode_is_on_for_five_minutes_after_an_unclean_stop_and_as_it_is_switched() -> None:
    clock = Clock()
    mode = SafeMode(unclean=False, later=False, clock=clock)
    assert mode.on
    clock.at = FIRST_S - 1
    assert mode.on
    clock.at = FIRST_S
    assert not mode.on
    mode.switch(True)
    assert mode.on
    mode.switch(False)
    assert not mode.on
    clock.at = 0
    after_a_crash = SafeMode(unclean=True, later=False, clock=clock)
    clock.at = 100 * FIRST_S
    assert after_a_crash.on
    after_a_crash.switch(False)
    assert not after_a_crash.on
    assert SafeMode(unclean=False, later=True, clock=clock).on
    assert FIRST_S == 300
