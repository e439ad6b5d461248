"""Restores of some rows of a table, chosen by its primary key: exactly those that a server would choose."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from pumphouse.archive.view import read_view
from pumphouse.cli import cli
from pumphouse.errors import LoadError, RestoreError, UsageError
from pumphouse.executor.build import hand_over
from pumphouse.loader.keys import Predicate
from pumphouse.loader.selection import Selection
from pumphouse.loader.steps import HandOver
from pumphouse.loader.tables import Wanted
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import MysqlType, TableInfo
from pumphouse.model.tso import Tso
from pumphouse.restore.parts import Chosen, plan_parts
from pumphouse.restore.report import RestoreReport
from pumphouse.runs import restore_parts
from pumphouse.runs.proof import prove_restored
from pumphouse.schema.dialect import Dialect
from pumphouse.settings import LoadSettings, Settings, TargetSettings
from tests.integration.test_load_ddl_kinds import partitions
from tests.integration.test_load_routes import exchange
from tests.integration.test_load_rules import ID, TEXT, put
from tests.support import formats
from tests.support.killed import Killed
from tests.support.madearchive import MadeSource, column, index, table_info, target_rows
from tests.unit.restore.test_parts import key as foreign_key

pytestmark = pytest.mark.row("R3")
PRIMARY = index(1, "PRIMARY", ("k", 0), unique=True, primary=True)
CASELESS = {"collate": "utf8mb4_general_ci"}


def rows_of(
    settings: Settings,
    table: str,
    called: str,
    *keys: str,
    low: str | None = None,
    below: str | None = None,
    **how: Any,
) -> RestoreReport:
    chosen = Chosen(tables=(table,), called=called, where=Predicate(keys=keys, low=low, below=below))
    return restore_parts.run(settings, chosen=chosen, into="target", **{"dry_run": False, **how})


def require_proof(settings: Settings, target: TargetConnection, report: RestoreReport, rows: int) -> None:
    """The proof of a restore is green, and of so many rows of the archive; of a TiDB there is none."""
    if target.dialect is not Dialect.TIDB:
        proof = prove_restored(settings, report, into="target")
        assert proof.equal, proof
        assert proof.tables[0].ranges[0].archive.rows == rows


def by_key(source: MadeSource, name: str, key: dict[str, Any], **more: Any) -> None:
    """A table whose primary key is no handle: an update that moves a row is one change, with an image of either key."""
    flags = key["type"]["Flag"] | 3  # NOT NULL, PRIMARY KEY
    columns = [{**key, "type": key["type"] | {"Flag": flags}}, column(2, "n", MysqlType.LONGLONG)]
    source.create_table(name, columns, pk_is_handle=False, index_info=[PRIMARY], **more)


# -- as a server compares

UNSIGNED = 32
YEAR = column(1, "k", MysqlType.YEAR, flen=4, flag=UNSIGNED | 64)
# Type of the key, its values, keys that are asked for, ranges.
TYPES: dict[str, tuple[dict[str, Any], Sequence[Any], Sequence[str], Sequence[tuple[str | None, str | None]]]] = {
    "int": (column(1, "k"), [-5, 0, 7, 70], ["7", "-5", "8"], [("-5", "70"), (None, "0"), ("8", None)]),
    "unsigned": (
        column(1, "k", MysqlType.LONGLONG, flag=UNSIGNED), [0, 9, (1 << 64) - 1], [str((1 << 64) - 1)], [("9", str(1 << 63))],
    ),
    "caseless": (
        column(1, "k", MysqlType.VARCHAR, **CASELESS), [b"Abc", b"ab", b"abcd ", b"a.c", b"x\xc3\xa4yz", b"\xe5\x8c\x97\xe4\xba\xac\xe5\xb8\x82", b""],
        ["aBC", "ABCD", "abcd  ", "A.C", "", "k"], [],
    ),
    "unicode": (
        column(1, "k", MysqlType.VARCHAR, collate="utf8mb4_unicode_ci"), [b"Abc", b"ab", b"abcd ", b"zy\xc3\xa4"], ["aBC", "abcd", "abcde"], [],
    ),
    "padded": (column(1, "k", MysqlType.VARCHAR), [b"a ", b"A", b"\xc3\xa4", b"a.", b"(a)"], ["a", "a   ", "A", "ä", "(a)", "a\t"], []),
    "bytes": (
        column(1, "k", MysqlType.VARCHAR, binary=True, flag=128), [b"\0", b"a", b"a ", b"\xff\xfe"], ["a", "0xfffe", "0x00"], [("a", "0xff"), ("0x00", "a ")],
    ),
    "decimal": (column(1, "k", MysqlType.NEWDECIMAL, flen=12, decimal=3), ["-1.500", "0.000", "10.250"], ["-1.5", "0", "-0", "010.25", "10.2500"], []),
    "date": (column(1, "k", MysqlType.DATE, flen=10), ["2024-02-29", "1999-12-31"], ["2024-2-29"], [("1999-12-31", "2024-02-29")]),
    "datetime": (
        column(1, "k", MysqlType.DATETIME, flen=23, decimal=3), ["2024-02-29 01:02:03.000", "2024-03-01 00:00:00.500"],
        ["2024-02-29 01:02:03", "2024-03-01 00:00:00.5"], [("2024-03-01", None), (None, "2024-03-01 00:00:00.501")],
    ),
    "time": (column(1, "k", MysqlType.TIME, flen=13, decimal=2), ["-12:00:00.00", "100:00:01.50"], ["-12:00:00", "100:00:01.5"], []),
    "enum": (column(1, "k", MysqlType.ENUM, elems=["b", "a", "c"]), [1, 2, 3], ["c", "b"], []),
    "set": (column(1, "k", MysqlType.SET, elems=["b", "a", "c"]), [1, 3, 4], ["c", "b,a"], []),
    "year": (YEAR, [2005, 1999, 0], ["2005", "0000"], []),
}  # fmt: skip


@pytest.mark.mysql
@pytest.mark.parametrize("kind", TYPES)
def test_of_every_type_of_key_those_rows_come_that_the_server_itself_chooses(
    source: MadeSource, settings: Settings, target: TargetConnection, kind: str
) -> None:
    key, values, keys, ranges = TYPES[kind]
    if kind in ("enum", "set"):
        key["type"] |= {"Charset": "utf8mb4", "Collate": "utf8mb4_bin"}
    by_key(source, "t", key)

    def write(some: Sequence[Any]) -> None:
        with source.txn() as t:
            for each in some:
                t.insert("t", k=each, n=1)

    write(values[::2])
    source.genesis()
    write(values[1::2])
    source.cut()
    whole = Chosen(tables=("d.t",), called="c.whole")
    restore_parts.run(settings, chosen=whole, into="target", dry_run=False)
    asked: list[tuple[str, tuple[str, ...], Predicate]] = [
        ("`k` = %s", (each,), Predicate(keys=(each,))) for each in keys
    ]
    if kind == "bytes":
        plain = [bytes.fromhex(each[2:]) if each.startswith("0x") else each.encode() for each in keys]
        asked = [("`k` = %s", (value,), Predicate(keys=(each,))) for each, value in zip(keys, plain, strict=True)]
    asked.append(
        ("`k` IN (%s, %s)", (*keys, *keys)[:2], Predicate(keys=(*keys, *keys)[:2])) if kind != "bytes" else asked[0]
    )
    for low, below in ranges:
        bounds = [(f"`k` {sign} %s", value) for sign, value in ((">=", low), ("<", below)) if value is not None]
        said = tuple(_typed(kind, value) for _, value in bounds)
        asked.append((" AND ".join(text for text, _ in bounds), said, Predicate(low=low, below=below)))
    for number, (condition, said, where) in enumerate(asked):
        wanted = Counter(target.query(f"SELECT * FROM `c`.`whole` WHERE {condition}", said))
        chosen = Chosen(tables=("d.t",), called=f"c.some{number}", where=where)
        report = restore_parts.run(settings, chosen=chosen, into="target", dry_run=False)
        assert Counter(target.query(f"SELECT * FROM `c`.`some{number}`")) == wanted, where
        require_proof(settings, target, report, sum(wanted.values()))


def _typed(kind: str, value: str) -> Any:
    return (
        bytes.fromhex(value[2:])
        if kind == "bytes" and value.startswith("0x")
        else value.encode()
        if kind == "bytes"
        else value
    )


@pytest.mark.mysql
def test_what_a_collation_takes_for_ascii_is_what_the_server_says(target: TargetConnection) -> None:
    """All characters of one key: equal where the server says so, an error where it may, and none that it knows of is missed."""
    target.execute("CREATE DATABASE c DEFAULT CHARACTER SET utf8mb4")
    have = {name for name, *_ in target.query("SHOW COLLATION")}
    plain = [*map(chr, range(0x20, 0x7F)), "k ", "  "]
    for collation in sorted(have & {f"utf8mb4_{each}_ci" for each in ("general", "unicode", "unicode_520", "0900_ai")}):
        table = f"c.{collation}"
        target.execute(f"CREATE TABLE {table} (c VARCHAR(2) COLLATE {collation})")
        others = [
            chr(each) for each in (*range(1, 0x20), *range(0x7F, 0xD800), *range(0xE000, 0x10000))
        ] * collation.endswith("general_ci")
        for at in range(0, len(some := [*plain, *others]), 5000):
            listed = ", ".join(f"(CONVERT(0x{each.encode().hex()} USING utf8mb4))" for each in some[at : at + 5000])
            target.execute(f"INSERT INTO {table} VALUES {listed}")
        near = [each for each in others if 0x80 <= ord(each) < 0x300 or 0x1E00 <= ord(each) < 0x1F00]
        far = [*plain, *sorted({*others} - {*near})]
        for letter in plain:
            equal = {
                text for (text,) in target.query(f"SELECT c FROM {table} WHERE c = %s AND LENGTH(c) > 0", (letter,))
            }
            selection = _selection(collation, letter)
            mask = selection.mask(_keys(far))
            assert {each for each, chosen in zip(far, mask, strict=True) if chosen} == equal - {*near}, letter
            for each in equal & {*near}:
                with pytest.raises(LoadError, match="which only a server knows"):
                    selection.mask(_keys([each]))


def _selection(collation: str, letter: str) -> Selection:
    info = TableInfo.from_dict(
        table_info(1, "t", [column(1, "k", MysqlType.VARCHAR, collate=collation)], pk_is_handle=False)
    )
    return Selection(
        Predicate(keys=(letter,)), Wanted(table_id=1, db="d", table=info, schema_version=1, key=("k",), epoch=0)
    )


def _keys(values: Sequence[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"k": pa.array([each.encode() for each in values], pa.large_binary())})


# -- rows that move


@pytest.mark.row("L4")
@pytest.mark.parametrize("seed", range(2))
def test_a_row_that_an_update_moves_into_the_choice_comes_in_and_one_that_it_moves_out_goes(
    source: MadeSource, settings: Settings, target: TargetConnection, seed: int
) -> None:
    rng = random.Random(seed)
    by_key(source, "t", column(1, "k", MysqlType.VARCHAR, **CASELESS))
    letters = "abcd"
    handles: dict[str, int] = {}
    called = "k"

    def work(transactions: int) -> None:
        for _ in range(transactions):
            with source.txn() as t:
                for _ in range(rng.randrange(1, 4)):
                    letter, free = rng.choice(letters), [each for each in letters if each not in handles]
                    shown = rng.choice([letter, letter.upper()]).encode()
                    if letter not in handles:
                        handles[letter] = t.insert("t", n=rng.randrange(100), **{called: shown})
                    elif rng.random() < 0.2:
                        t.delete("t", handles.pop(letter))
                    elif free and rng.random() < 0.6:
                        other = rng.choice(free)
                        handles[other] = handles.pop(letter)
                        t.update("t", handles[other], **{called: rng.choice([other, other.upper()]).encode()})
                    else:
                        t.update("t", handles[letter], n=rng.randrange(100), **{called: shown})

    marks = []

    def mark(at: Tso) -> None:
        marks.append((at, source.snapshot()["t"]))

    work(4)
    mark(source.genesis())
    for turn in range(3):
        work(6)
        mark(Tso(source.tick()))
        if turn == 0:
            source.add_column("t", column(3, "extra", default="7", origin_default="7"))
        if turn == 1:
            raw = copy.deepcopy(source.tables["t"].info.raw)
            raw["cols"][0]["name"] = {"O": "Name", "L": "name"}
            raw["cols"][0]["type"]["Flen"] = 100
            raw["index_info"] = [index(1, "PRIMARY", ("Name", 0), unique=True, primary=True)]
            source.alter("t", 12, raw)
            called = "Name"
        work(4)
        mark(source.cut())
    copies = 0
    for at, rows in marks:
        for keys in (("A",), ("b", "C")):
            copies += 1
            report = rows_of(settings, "d.t", f"c.copy{copies}", *keys, to=at)
            wanted = Counter(
                {row: count for row, count in rows.items() if row[0].decode().lower() in "".join(keys).lower()}
            )
            assert target_rows(target, "c")[f"copy{copies}"] == wanted, (at, keys)
            require_proof(settings, target, report, sum(wanted.values()))


def test_a_row_whose_key_only_the_server_can_compare_ends_the_restore_by_name(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    by_key(source, "t", column(1, "k", MysqlType.VARCHAR, **CASELESS))
    with source.txn() as t:
        t.insert("t", k=b"mueller", n=1)
        t.insert("t", k="Müller".encode(), n=2)
    source.genesis()
    rows_of(settings, "d.t", "c.one", "Mueller")
    assert target_rows(target, "c")["one"] == {(b"mueller", 1): 1}
    with pytest.raises(LoadError, match=r"'Müller' \(k\) may be equal to 'Muller' by utf8mb4_general_ci") as refused:
        rows_of(settings, "d.t", "c.two", "Muller")
    assert "restore the whole table" in refused.value.hint
    assert "--anew" in refused.value.hint
    assert set(target_rows(target, "c")) == {"one"}


# -- what is no choice


def planned(source: MadeSource, *tables: str, **where: Any) -> None:
    view = read_view(source.archive)
    chosen = Chosen(tables=tables or ("d.t",), where=Predicate(**where))
    plan_parts(view, None, chosen=chosen, target=TargetSettings(), settings=LoadSettings())


def test_a_table_without_a_primary_key_and_more_than_one_table_are_refused(source: MadeSource) -> None:
    source.create_table("none", [ID, TEXT], pk_is_handle=False)
    unique = index(1, "u", ("id", 0), unique=True)
    source.create_table("unique", [column(1, "id", flag=1)], pk_is_handle=False, index_info=[unique])
    source.create_table("t", [ID])
    source.genesis()
    for name in ("none", "unique"):
        with pytest.raises(UsageError, match=rf"d\.{name} has no primary key") as refused:
            planned(source, f"d.{name}", keys=("1",))
        assert "without --key" in refused.value.hint
    with pytest.raises(UsageError, match=r"the key of one table: d\.% are 3"):
        planned(source, "d.%", keys=("1",))
    planned(source, "d.t*", keys=("1",))
    with pytest.raises(UsageError, match="excludes"):
        planned(source, "d.t", keys=("1",), low="0")


@pytest.mark.parametrize(
    ("key", "where", "why"),
    [
        (column(1, "k", MysqlType.VARCHAR), {"low": "a"}, r"a range of k of d\.t is not known: it is text in utf8mb4_bin"),
        (column(1, "k", MysqlType.VARCHAR, **CASELESS), {"below": "a"}, "text in utf8mb4_general_ci"),
        (column(1, "k", MysqlType.NEWDECIMAL, flen=9, decimal=2), {"low": "1"}, "it is NEWDECIMAL"),
        (column(1, "k", MysqlType.TIME), {"low": "00:00:01"}, "it is TIME"),
        (column(1, "k", MysqlType.ENUM, elems=["a"]), {"low": "a"}, "it is ENUM"),
        (column(1, "k", MysqlType.YEAR), {"low": "2000"}, "it is YEAR"),
        (column(1, "k", MysqlType.DOUBLE), {"keys": ("1.5",)}, r"k of d\.t is DOUBLE"),
        (column(1, "k", MysqlType.VARCHAR, collate="utf8mb4_turkish_ci"), {"keys": ("i",)}, "by utf8mb4_turkish_ci"),
        (column(1, "k", MysqlType.VARCHAR, **CASELESS), {"keys": ("ä",)}, "'ä' cannot be compared with k"),
        (column(1, "k"), {"keys": ("x",)}, r"'x' is no value of k in the key of d\.t"),
        (column(1, "k"), {"keys": ("1,2",)}, "is no value of k"),
        (column(1, "k"), {"keys": ("1_0",)}, "is no value of k"),
        (column(1, "k"), {"low": "1 OR 1=1"}, "is no value of k"),
        (column(1, "k"), {"low": "10", "below": "5"}, r"d\.t can have no row with a key from 10 below 5"),
        (column(1, "k"), {"low": "5", "below": "5"}, "can have no row"),
        (column(1, "k", MysqlType.DATE, flen=10), {"low": "2024-02-29", "below": "1999-12-31"}, "can have no row"),
        (column(1, "k", MysqlType.LONG, flag=UNSIGNED), {"low": "-1"}, "is no value of k"),
        (column(1, "k", MysqlType.NEWDECIMAL, flen=9, decimal=2), {"keys": ("1.005",)}, "is no value of k"),
        (column(1, "k", MysqlType.DATETIME, flen=19), {"keys": ("2024-01-01 00:00:00.5",)}, "is no value of k"),
        (column(1, "k", MysqlType.DATE, flen=10), {"keys": ("today",)}, "is no value of k"),
        (column(1, "k", MysqlType.TIMESTAMP, flen=19), {"keys": ("2024-01-01T00:00:00Z",)}, "is no value of k"),
        (column(1, "k", MysqlType.TIMESTAMP, flen=19), {"keys": ("00:00",)}, "is no value of k"),
        *((YEAR, {"keys": (each,)}, f"'{each}' is no value of k") for each in ("26", "00", "1900", "2156")),
        (column(1, "k", MysqlType.ENUM, elems=["a"]), {"keys": ("1",)}, "'1' is no value of k"),
        (column(1, "k", MysqlType.SET, elems=["a"]), {"keys": ("1",)}, "'1' is no value of k"),
    ],
)  # fmt: skip
def test_what_this_release_does_not_compare_as_a_server_does_is_refused_by_name(
    source: MadeSource, key: dict[str, Any], where: dict[str, Any], why: str
) -> None:
    by_key(source, "t", key)
    source.genesis()
    with pytest.raises(UsageError, match=why):
        planned(source, **where)


@pytest.mark.parametrize("text", ["7\n,8", '7,"8', '7,"8"9', "7,8,9"])
def test_a_key_of_several_columns_that_is_no_line_of_csv_is_refused(source: MadeSource, text: str) -> None:
    source.create_table(
        "t",
        [ID, TEXT],
        pk_is_handle=False,
        index_info=[index(1, "PRIMARY", ("id", 0), ("a", 1), unique=True, primary=True)],
    )
    source.genesis()
    planned(source, keys=('7,"8"',))
    with pytest.raises(UsageError, match=r"the key of d\.t \(id, a\)"):
        planned(source, keys=(text,))


@pytest.mark.parametrize("kind", ["type", "collation", "columns", "swap", "none"])
def test_a_key_that_a_ddl_changed_within_what_is_read_is_refused_and_a_later_dump_is_the_way_out(
    source: MadeSource, kind: str
) -> None:
    by_key(source, "t", column(1, "k", MysqlType.VARCHAR, **CASELESS))
    source.genesis()
    raw = copy.deepcopy(source.tables["t"].info.raw)
    if kind == "type":
        raw["cols"][0]["type"] = column(1, "k")["type"]
    elif kind == "collation":
        raw["cols"][0]["type"]["Collate"] = "utf8mb4_bin"
    elif kind == "columns":
        raw["index_info"] = [index(1, "PRIMARY", ("k", 0), ("n", 1), unique=True, primary=True)]
    elif kind == "none":
        raw["index_info"] = None
    if kind == "swap":
        source.create_table("o", [ID, TEXT])
        source.rename_table("t", "old")
        source.rename_table("o", "t")
    else:
        source.alter("t", 12, raw)
        if kind == "none":
            by_key_again = copy.deepcopy(raw)
            by_key_again["index_info"] = [PRIMARY]
            source.alter("t", 12, by_key_again)
    source.cut()
    with pytest.raises(UsageError, match=r"had another one up to \d+") as refused:
        planned(source, keys=("1,2",) if kind == "columns" else ("1",))
    assert "--base" in refused.value.hint


def test_the_key_of_a_table_whose_rows_come_along_is_that_in_all_that_is_read(source: MadeSource) -> None:
    """Of one type, so that only the ids of its columns tell (b, a) from (a, b)."""
    columns = [column(1, "a", flag=3), column(2, "b", flag=3)]

    def primary(*names: str) -> list[dict[str, Any]]:
        return [index(1, "PRIMARY", *((each, "ab".index(each)) for each in names), unique=True, primary=True)]

    whole = partitions(source, ("p0", "10"), ("p1", "MAXVALUE"), type_=1)
    source.create_table("p", columns, pk_is_handle=False, index_info=primary("a", "b"), partition=whole)
    source.create_table("t", columns, pk_is_handle=False, index_info=primary("b", "a"))
    source.genesis()
    changed = copy.deepcopy(source.tables["t"].info.raw)
    changed["index_info"] = primary("a", "b")
    source.alter("t", 12, changed)
    exchange(source, "p", "t")
    source.cut()
    with pytest.raises(UsageError, match=r"d\.t had another one up to \d+.* \(b, a\)"):
        planned(source, "d.p", keys=("1,2",))


def test_a_reference_of_a_table_to_itself_is_left_out_with_the_rows_that_it_may_need(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [ID, TEXT], fk_info=[foreign_key("t", "itself")])
    put(source, "t", *range(9))
    source.genesis()
    report = rows_of(settings, "d.t", "c.t", low="3", below="5")
    assert target_rows(target, "c") == {"t": {(3, b"x"): 1, (4, b"x"): 1}}
    assert report.load.notes == [
        "every row of d.t but those with a key from 3 below 5 is left out",
        "the foreign key itself of d.t to d.t is left out",
        "2 rows with a key from 3 below 5",
    ]


def test_it_says_how_many_rows_there_are_and_is_loud_where_a_key_has_none(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.create_table("t", [ID, TEXT])
    put(source, "t", *range(9))
    source.genesis()
    put(source, "t", 20)
    at = source.cut()
    for number, (keys, bounds, said) in enumerate(
        (
            (("7", "20", "7"), {}, "2 keys asked, 2 rows found"),
            (("7", "4711"), {}, "! 2 keys asked, 1 rows found"),
            (("4711",), {}, "! 1 keys asked, 0 rows found"),
            ((), {"low": "30"}, "! 0 rows with a key from 30"),
            ((), {"below": "2"}, "2 rows with a key below 2"),
        )
    ):
        note = rows_of(settings, "d.t", f"c.t{number}", *keys, **bounds, to=at).load.notes[-1]
        assert note.startswith(said), note

    def die(connection: TargetConnection, step: HandOver) -> None:
        hand_over(connection, step)
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("pumphouse.executor.build.hand_over", die)
        rows_of(settings, "d.t", "c.killed", "7", "4711", to=at)
    assert target_rows(target, "c")["killed"] == {(7, b"x"): 1}
    assert rows_of(settings, "d.t", "c.killed", "7", "4711", to=at).load.notes[-1].startswith("! 2 keys asked, 1 rows")


# -- killed, and by the command


@pytest.mark.row("L6")
def test_killed_it_goes_on_with_the_same_choice_and_another_one_is_another_restore(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.create_table("t", [ID, TEXT])
    put(source, "t", *range(20))
    source.genesis()
    put(source, "t", *range(20, 30))
    at = source.cut()

    def die(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("pumphouse.executor.executor.Executor._apply_units", die)
        rows_of(settings, "d.t", "c.t", low="15", below="25", to=at)
    spec = json.loads(str(target.value("SELECT spec FROM pumphouse_parts.plan")))
    formats.Shown().check("plan-spec", spec)
    assert spec["where"] == {"from": "15", "below": "25"}
    for other in ({"low": "15", "below": "26"}, {"low": "15"}, {}):
        with pytest.raises(RestoreError, match=r"rows with a key from 15 below 25, to .* has not ended"):
            rows_of(settings, "d.t", "c.t", to=at, **other)
    report = rows_of(settings, "d.t", "c.t", low="15", below="25", to=at)
    assert report.load.resumed
    assert target_rows(target, "c")["t"] == {(each, b"x"): 1 for each in range(15, 25)}


def test_the_command_says_which_rows_and_proves_them(
    source: MadeSource, settings: Settings, target: TargetConnection, tmp_path: Path
) -> None:
    source.create_table("t", [ID, TEXT])
    put(source, "t", *range(20))
    end = source.genesis()
    path, server = tmp_path / "pumphouse.toml", settings.target
    path.write_text(
        f'[cluster]\nurl = "{settings.cluster.url}"\n[archive]\nroot = "{settings.archive.root}"\n'
        f'[restore_target]\nhost = "127.0.0.1"\nport = {server.port}\nuser = "root"\n'
        f'password = "{server.password.get_secret_value()}"\n[load]\nengine = "local"\n'
    )

    def command(*more: str) -> Result:
        return CliRunner().invoke(cli, ["--config", str(path), "restore", "--to", str(end), *more])

    some = ("--table", "d.t", "--as", "d.back", "--key", "7", "--key", "9")
    assert "! every row of d.t but those with the key 7 or 9 is left out" in command(*some, "--dry-run").output
    told = json.loads(command(*some, "--dry-run", "--json").stdout)["plan"]
    assert told["where"] == {"keys": ["7", "9"]}
    done = command(*some, "--verify")
    assert done.exit_code == 0, done.output
    assert "d.t as d.back, rows with the key 7 or 9, restored as of" in done.output
    assert "  note: 2 keys asked, 2 rows found\n" in done.output
    assert "\n  ! 2 keys asked, 1 rows found" in command(*some[:3], "d.one", "--key", "7", "--key", "4711").output
    assert target_rows(target)["back"] == {(7, b"x"): 1, (9, b"x"): 1}
    target.execute("DELETE FROM d.back WHERE id = 7")
    report = rows_of(settings, "d.t", "d.back", "7", "9", dry_run=True, plan_only=True)
    assert not prove_restored(settings, report, into="target").equal
    for wrong in (("--key", "7"), ("--table", "d.t", "--key-to", "7", "--key", "7"), ("--table", "d.t", "--key", "x")):
        assert isinstance(command(*wrong).exception, UsageError), wrong
    assert "--key-from and --key-to need --table" in str(command("--key-from", "7").exception)
