"""The columnar fold, held against the reference and against a plain replay."""

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.errors import DuplicateKey
from pumphouse.loader.fold import (
    COUNT_FIELD,
    ORDER_FIELDS,
    LastOfKeys,
    check_keys,
    fold_multiset,
    net_of_keyed,
    net_of_multiset,
)
from tests.support.plainfold import Change, fold_reference

KEYS = st.sampled_from([b"", b"a", b"A", b"a ", b"b"])
SCHEMA = pa.schema([pa.field("k", pa.large_binary()), pa.field("v", pa.int64()), *ORDER_FIELDS])


@st.composite
def histories(draw: st.DrawFn) -> list[Change]:
    """Changes that a table with a key can go through."""
    rows: dict[bytes, int] = dict.fromkeys(draw(st.sets(KEYS, max_size=3)), -1)
    changes = []
    for number in range(draw(st.integers(0, 25))):
        key = draw(KEYS)
        if key not in rows:
            rows[key] = number
            changes.append(Change("insert", {"k": key, "v": number}))
        elif draw(st.booleans()):
            changes.append(Change("delete", {"k": key, "v": rows.pop(key)}))
        else:
            free = [k for k in (b"", b"a", b"A", b"a ", b"b") if k not in rows]
            to = draw(st.sampled_from([key, *free]))
            changes.append(Change("update", {"k": to, "v": number}, {"k": key, "v": rows.pop(key)}))
            rows[to] = number
    return changes


def entries(changes: list[Change], order: list[int]) -> pa.Table:
    rows = []
    for at, change in enumerate(changes):
        ours = {"pumphouse:ts": at // 3, "pumphouse:start": 0}
        old = change.old or change.values
        if change.kind == "delete" or (change.kind == "update" and old["k"] != change.values["k"]):
            gone = {"pumphouse:position": at * 2, "pumphouse:put": False, "pumphouse:net": -1}
            rows.append({"k": old["k"], "v": None, **ours, **gone})
        if change.kind != "delete":
            came = change.kind == "insert" or old["k"] != change.values["k"]
            there = {"pumphouse:position": at * 2 + 1, "pumphouse:put": True, "pumphouse:net": int(came)}
            rows.append({**change.values, **ours, **there})
    shuffled = [rows[i] for i in order if i < len(rows)]
    rest = [row for row in rows if row not in shuffled]
    return pa.Table.from_pylist(shuffled + rest, schema=SCHEMA)


@pytest.mark.row("L4")
@given(changes=histories(), order=st.permutations(range(50)))
def test_the_last_entry_of_each_key_is_the_net_change_of_the_reference(changes: list[Change], order: list[int]) -> None:
    found = entries(changes, list(order))
    half = found.num_rows // 2
    # Workers fold what they have, then all of it is folded.
    parts = [LastOfKeys.of(part, ("k",)).to_entries() for part in (found.slice(0, half), found.slice(half))]
    folded = LastOfKeys.of(pa.concat_tables(parts), ("k",))
    check_keys(folded, ("k",), "d.t")
    gone, come = net_of_keyed(folded, ("k",))
    net = fold_reference(changes, ("k",))
    assert {row["k"]: row["v"] for row in come.to_pylist()} == {
        c.values["k"]: c.values["v"] for c in net if c.kind != "delete"
    }
    assert gone.column("k").to_pylist() == sorted(_stood(changes))
    assert come.column("k").to_pylist() == sorted(come.column("k").to_pylist())
    everything, _ = net_of_keyed(folded, ("k",), everything=True)
    assert everything.column("k").to_pylist() == sorted(c.values["k"] for c in net)


def _stood(changes: list[Change]) -> set[bytes]:
    """Keys that had a row before the changes: the first of theirs is no insert."""
    came: dict[bytes, bool] = {}
    for change in changes:
        if change.old is not None:
            came.setdefault(change.old["k"], False)
        came.setdefault(change.values["k"], change.kind == "insert" or change.old is not None)
    return {key for key, new in came.items() if not new}


@pytest.mark.row("L4")
@given(
    st.lists(st.tuples(st.sampled_from([None, 1, 2]), st.sampled_from([None, b"x", b"X"]), st.sampled_from([1, -1])))
)
def test_rows_without_a_key_fold_to_the_sum_of_their_copies(rows: list[tuple[int | None, bytes | None, int]]) -> None:
    schema = pa.schema([pa.field("a", pa.int64()), pa.field("b", pa.large_binary()), COUNT_FIELD])
    table = pa.Table.from_arrays(
        [pa.array([r[i] for r in rows], schema.field(i).type) for i in range(3)], schema=schema
    )
    gone, come = net_of_multiset(fold_multiset(table))
    want: Counter[tuple[int | None, bytes | None]] = Counter()
    for a, b, count in rows:
        want[a, b] += count
    assert Counter((r["a"], r["b"]) for r in come.to_pylist()) == +want
    assert {(r["a"], r["b"]): r["pumphouse:count"] for r in gone.to_pylist()} == -want


def test_a_key_moved_away_and_back_keeps_its_row() -> None:
    changes = [
        Change("update", {"k": b"b", "v": 1}, {"k": b"a", "v": 0}),
        Change("update", {"k": b"a", "v": 2}, {"k": b"b", "v": 1}),
    ]
    gone, come = net_of_keyed(LastOfKeys.of(entries(changes, []), ("k",)), ("k",))
    assert come.select(["k", "v"]).to_pylist() == [{"k": b"a", "v": 2}]
    assert gone.column("k").to_pylist() == [b"a"]


@pytest.mark.row("L4")
@pytest.mark.parametrize("last", ["insert", "update", "delete"])
def test_a_key_that_two_rows_have_at_a_time_is_an_error_that_names_it(last: str) -> None:
    key = "ß".encode()
    changes = [Change("insert", {"k": key, "v": 1}), Change("insert", {"k": b"b", "v": 1})]
    changes += [Change("insert", {"k": key, "v": 2})]
    if last != "insert":
        changes.append(Change(last, {"k": key, "v": 3}))
    folded = LastOfKeys.of(entries(changes, []), ("k",))
    with pytest.raises(DuplicateKey, match=r"1 keys \(k\) of d.t .*'ß'"):
        check_keys(folded, ("k",), "d.t")


def test_a_row_that_was_there_may_be_replaced_but_not_joined() -> None:
    replaced = [Change("delete", {"k": b"a", "v": 0}), Change("insert", {"k": b"a", "v": 1})]
    joined = [Change("insert", {"k": b"a", "v": 1}), *replaced, replaced[1]]
    check_keys(LastOfKeys.of(entries(replaced, []), ("k",)), ("k",), "d.t")
    with pytest.raises(DuplicateKey):
        check_keys(LastOfKeys.of(entries(joined, []), ("k",)), ("k",), "d.t")


@pytest.mark.row("L4")
@pytest.mark.parametrize("names", [(".a", "a"), ("a", "[0]"), ("[a]", "pumphouse:ts_sum"), ("1", "0")])
def test_keys_and_rows_are_told_apart_under_any_name(names: tuple[str, str]) -> None:
    pairs = [(2, 1), (1, 1), (1, 2), (2, 2)]
    rows = [dict(zip(names, pair, strict=True)) for pair in pairs]
    fields = [pa.field(name, pa.int64()) for name in names]
    order = {"pumphouse:start": 0, "pumphouse:position": 0, "pumphouse:put": True, "pumphouse:net": 1}
    changes = [{**row, **order, "pumphouse:ts": at} for at, row in enumerate(rows)]
    folded = LastOfKeys.of(pa.Table.from_pylist(changes, schema=pa.schema([*fields, *ORDER_FIELDS])), names)
    _, come = net_of_keyed(folded, names)
    assert come.to_pylist() == [dict(zip(names, pair, strict=True)) for pair in sorted(pairs)]
    copies = [{**row, COUNT_FIELD.name: count} for row, count in zip(rows, (1, 2, 1, 0), strict=True)]
    found = fold_multiset(pa.Table.from_pylist([*copies, *copies], schema=pa.schema([*fields, COUNT_FIELD])))
    assert {tuple(row.values()) for row in found.to_pylist()} == {(2, 1, 2), (1, 1, 4), (1, 2, 2)}
