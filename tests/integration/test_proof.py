"""Proofs on a real MariaDB: green for what a restore and a load have built, red for each byte that is another one."""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pumphouse.archive.proofs import Outcome, Proof, ProvenTable, newest_proof, read_proofs, red_proofs
from pumphouse.archive.verify import verify
from pumphouse.cli import cli
from pumphouse.commands.proof import print_proof
from pumphouse.errors import LoadError, TargetAhead, TargetBusy, TargetIncomplete, TargetUnavailable, UsageError
from pumphouse.loader import decode
from pumphouse.loader.apart import server_name
from pumphouse.loader.keys import Predicate
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import MysqlType
from pumphouse.model.tso import Tso, show
from pumphouse.proof import gather, prove
from pumphouse.proof.archived import real
from pumphouse.proof.forms import Form, Proven
from pumphouse.proof.servers import ColumnThere, expression
from pumphouse.restore.parts import Chosen
from pumphouse.restore.report import RestoreReport
from pumphouse.restore.told import as_text, plan_told
from pumphouse.runs import drill, load, restore_parts
from pumphouse.runs.proof import plan_proof, prove_restored
from pumphouse.runs.proof import prove as run_proof
from pumphouse.settings import LoadRule, Settings
from tests.support import formats
from tests.support.killed import Killed
from tests.support.kind import is_mysql
from tests.support.loading import restored
from tests.support.madearchive import Churn, MadeSource, column, index

pytestmark = [pytest.mark.mysql, pytest.mark.usefixtures("target")]
ID = column(1, "id", flag=3)
_ELEMENTS = [f"e{n}" for n in range(64)]
UNSIGNED, ZEROFILL = 32, 64
# name, type, what `column` takes besides
TYPES: list[tuple[str, MysqlType, dict[str, Any]]] = [
    ("ti", MysqlType.TINY, {"flen": 4}),
    ("tiu", MysqlType.TINY, {"flen": 3, "flag": UNSIGNED}),
    ("si", MysqlType.SHORT, {"flen": 6}),
    ("mi", MysqlType.INT24, {"flen": 8, "flag": UNSIGNED}),
    ("i", MysqlType.LONG, {}),
    ("iz", MysqlType.LONG, {"flen": 10, "flag": UNSIGNED | ZEROFILL}),
    ("bi", MysqlType.LONGLONG, {}),
    ("biu", MysqlType.LONGLONG, {"flag": UNSIGNED}),
    ("f", MysqlType.FLOAT, {"flen": 12, "decimal": -1}),
    ("d", MysqlType.DOUBLE, {"flen": 22, "decimal": -1}),
    ("dm", MysqlType.DOUBLE, {"flen": 10, "decimal": 3}),
    ("dc", MysqlType.NEWDECIMAL, {"flen": 30, "decimal": 10}),
    ("dc0", MysqlType.NEWDECIMAL, {"flen": 65, "decimal": 0}),
    ("dcm", MysqlType.NEWDECIMAL, {"flen": 65, "decimal": 30}),
    ("dcz", MysqlType.NEWDECIMAL, {"flen": 12, "decimal": 2, "flag": UNSIGNED | ZEROFILL}),
    ("da", MysqlType.DATE, {"flen": 10}),
    ("dt", MysqlType.DATETIME, {"flen": 19}),
    ("dt6", MysqlType.DATETIME, {"flen": 26, "decimal": 6}),
    ("ts", MysqlType.TIMESTAMP, {"flen": 23, "decimal": 3}),
    ("tm", MysqlType.TIME, {"flen": 13, "decimal": 2}),
    ("y", MysqlType.YEAR, {"flen": 4, "flag": UNSIGNED | ZEROFILL}),
    ("ch", MysqlType.STRING, {"flen": 12}),
    ("vc", MysqlType.VARCHAR, {"flen": 600, "collate": "utf8mb4_general_ci"}),
    ("bin", MysqlType.STRING, {"flen": 9, "binary": True, "flag": 128}),
    ("vb", MysqlType.VARCHAR, {"flen": 400, "binary": True, "flag": 128}),
    ("tx", MysqlType.BLOB, {"flen": 65535}),
    ("lt", MysqlType.LONG_BLOB, {}),
    ("bl", MysqlType.BLOB, {"flen": 65535, "binary": True, "flag": 128}),
    ("lb", MysqlType.LONG_BLOB, {"binary": True, "flag": 128}),
    ("en", MysqlType.ENUM, {"elems": _ELEMENTS}),
    ("st", MysqlType.SET, {"elems": _ELEMENTS}),
    ("bt", MysqlType.BIT, {"flen": 64, "flag": UNSIGNED}),
    ("js", MysqlType.JSON, {"flen": -1}),
]
LOW: dict[str, Any] = {
    "ti": -128, "tiu": 0, "si": -32768, "mi": 0, "i": -(1 << 31), "iz": 0, "bi": -(1 << 63), "biu": 0, "f": -0.0, "d": -0.0,
    "dm": 0.001, "dc": "-99999999999999999999.9999999999", "dc0": "-" + "9" * 65, "dcm": "-0." + "0" * 29 + "1", "dcz": "0.01",
    "da": "0000-00-00", "dt": "0000-00-00 00:00:00", "dt6": "0000-00-00 00:00:00.000000", "ts": "1970-01-01 00:00:01.000",
    "tm": "-838:59:59.00", "y": 0, "ch": b"", "vc": b"", "bin": b"\0" * 9, "vb": b"", "tx": b"", "lt": b"", "bl": b"", "lb": b"",
    "en": 1, "st": 0, "bt": 0, "js": "null",
}  # fmt: skip
HIGH: dict[str, Any] = {
    "ti": 127, "tiu": 255, "si": 32767, "mi": (1 << 24) - 1, "i": (1 << 31) - 1, "iz": 7, "bi": (1 << 63) - 1, "biu": (1 << 64) - 1,
    "f": 16777216.0, "d": 1.7976931348623157e308, "dm": 1234567.891, "dc": "0.0000000001", "dc0": "9" * 65,
    "dcm": "9" * 35 + "." + "9" * 30, "dcz": "1234567890.12",
    "da": "9999-12-31", "dt": "9999-12-31 23:59:59", "dt6": "2024-02-29 23:59:59.999999", "ts": "2038-01-19 03:14:07.999",
    "tm": "838:59:59.00", "y": 2155, "ch": "é漢🚰".encode(), "vc": ("🚰" * 64 + "x").encode(), "bin": b"\xff\0\n\t\\\"'N,",
    "vb": bytes(range(256)) + b"x", "tx": b"x" * 256, "lt": "漢".encode() * 90000, "bl": b"\0" * 257, "lb": bytes(range(256)) * 500,
    "en": 64, "st": (1 << 64) - 1, "bt": (1 << 64) - 1, "js": '{"a": [1, 2.5, "x\\n"], "b": null}',
}  # fmt: skip


def of_every_type() -> list[dict[str, Any]]:
    columns = [ID]
    for at, (name, tp, more) in enumerate(TYPES, 2):
        made = column(at, name, tp, **more)
        if tp in (MysqlType.ENUM, MysqlType.SET):
            made["type"] |= {"Charset": "utf8mb4", "Collate": "utf8mb4_bin"}
        columns.append(made)
    return columns


def finite(rng: random.Random, *, single: bool = False) -> float:
    """Any number, by its bits."""
    while True:
        kind, bits = ("<f", 32) if single else ("<d", 64)
        value: float = struct.unpack(kind, rng.getrandbits(bits).to_bytes(bits // 8, "little"))[0]
        if abs(value) < float("inf") and (value == 0 or abs(value) > (2e-38 if single else 3e-308)):
            return value


def table(proof: Proof, name: str) -> ProvenTable:
    return next(each for each in proof.tables if each.name == name)


def outcomes(proof: Proof) -> dict[str, Outcome]:
    return {each.name: each.outcome for each in proof.tables}


def called(tmp_path: Path, settings: Settings, *words: str) -> Result:
    """The command line with these settings."""
    config = tmp_path / "pumphouse.toml"
    target = settings.target
    config.write_text(
        f'cluster = {{ url = "{settings.cluster.url}" }}\narchive = {{ root = "{settings.archive.root}" }}\n'
        f'target = {{ host = "{target.host}", port = {target.port}, user = "{target.user}",'
        f' password = "{target.password.get_secret_value()}", unix_socket = "{target.unix_socket}" }}\n'
    )
    return CliRunner().invoke(cli, ["--config", str(config), *words])


@pytest.mark.row("R1", "R4")
def test_values_of_every_type_have_one_checksum_on_both_sides(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    rng = random.Random(7)
    source.create_table("t", of_every_type())
    with source.txn() as t:
        t.insert("t", id=1)
        t.insert("t", id=2, **LOW)
        t.insert("t", id=3, **HIGH)
        for n in range(300):
            size = rng.choice((0, 1, 255, 256, 257, 400))
            values = {"d": finite(rng), "f": finite(rng, single=True), "vb": rng.randbytes(size)}
            t.insert("t", id=4 + n, tx=b"y" * size, bi=rng.getrandbits(64) - (1 << 63), **values)
    source.genesis()
    source.cut()
    restored(settings, dry_run=False)
    proof = run_proof(settings)
    found = table(proof, "d.t")
    assert proof.equal, [each.to_dict() for each in proof.tables]
    assert found.total("archive").rows == 303  # type: ignore[union-attr]
    without = {"js": "a MySQL keeps JSON in a form of its own"} if target.dialect == "mysql" else {}
    assert found.without == without
    assert set(found.columns) == {"id", *LOW} - set(without)
    # Each value counts: another one is found in each column, in the row that has it.
    target.execute("CREATE DATABASE keep")
    target.execute("CREATE TABLE keep.t LIKE d.t")
    target.execute("INSERT INTO keep.t SELECT * FROM d.t")
    for name in HIGH.keys() - without.keys():
        target.execute(f"UPDATE d.t a JOIN d.t b ON b.id = 2 SET a.{name} = b.{name} WHERE a.id = 3")
        red = run_proof(settings)
        assert outcomes(red) == {"d.t": Outcome.DIFFERENT}, name
        assert {(row.side, row.row["id"]) for row in table(red, "d.t").rows} == {("archive", "3"), ("target", "3")}
        target.execute(f"UPDATE d.t a JOIN keep.t b USING (id) SET a.{name} = b.{name} WHERE id = 3")
    assert run_proof(settings).equal


@pytest.mark.mysql
@pytest.mark.row("R4")
def test_rows_that_differ_are_named_by_the_elements_of_an_enum_on_both_sides(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    elems = {"elems": ("new", "paid")}
    source.create_table(
        "t",
        [
            column(1, "e", MysqlType.ENUM, flag=1, **elems),
            column(2, "n", flag=1),
            column(3, "b", MysqlType.BIT, flen=9),
        ],
        pk_is_handle=False,
        index_info=[index(1, "PRIMARY", ("e", 0), ("n", 1), unique=True, primary=True)],
    )
    source.create_table(
        "keyless", [column(1, "s", MysqlType.SET, **elems), column(2, "b", MysqlType.BIT, flen=9)], pk_is_handle=False
    )
    with source.txn() as t:
        t.insert("t", e=2, n=1, b=5)
        t.insert("keyless", s=3, b=257)
    source.genesis()
    source.cut()
    restored(settings, dry_run=False)
    target.execute("UPDATE d.t SET b = b'100'")
    target.execute("UPDATE d.keyless SET s = 1")
    red = run_proof(settings)
    assert [row.row for row in table(red, "d.t").rows] == [{"e": "paid", "n": "1"}] * 2
    assert {row.side: row.row for row in table(red, "d.keyless").rows} == {
        "archive": {"s": "new,paid", "b": "257"},
        "target": {"s": "new", "b": "257"},
    }


@pytest.mark.row("R4")
def test_a_number_has_the_text_that_the_server_gives_it(target: TargetConnection) -> None:
    rng = random.Random(3)
    values = [finite(rng) for _ in range(2000)]
    values += [float(f"{rng.randrange(1, 10**9)}e{power}") for power in range(-30, 30) for _ in range(20)]
    values += [1e15, 1e14, 123456789012345.0, 1234567890123456.0, 1e-15, 1e-14, 0.1, 1 / 3, -0.0, 5e-310]
    target.execute("CREATE DATABASE d")
    target.execute("CREATE TABLE d.t (id INT PRIMARY KEY, d DOUBLE, m DOUBLE(30,3))")
    for at in range(0, len(values), 500):
        rows = ",".join(f"({n}, {value!r}, 0.125)" for n, value in enumerate(values[at : at + 500], at))
        target.execute(f"INSERT INTO d.t VALUES {rows}")
    of = {name: ColumnThere(name=name, type="double", zerofill=False, charset="", computed=False) for name in "dm"}
    how = Proven(name="d", form=Form.REAL, scale=0, called=frozenset())
    d, m = (expression(how, of[name], target.dialect) for name in "dm")
    shown = target.query(f"SELECT {d}, {m} FROM d.t ORDER BY id")
    assert [(str(a), str(b)) for a, b in shown] == [(f"{real(value)},", "0.125,") for value in values]


@pytest.mark.row("R6")
def test_diff_holds_any_server_against_the_archive_at_a_moment_and_keeps_nothing(
    source: MadeSource, settings: Settings, target: TargetConnection, tmp_path: Path
) -> None:
    source.create_table("t", [ID, column(2, "n")])
    with source.txn() as t:
        for n in range(100):
            t.insert("t", id=n, n=n)
    source.genesis()
    with source.txn() as t:
        t.update("t", 7, n=-7)
    moment = source.cut()
    restored(settings, dry_run=False)
    with source.txn() as t:
        t.update("t", 8, n=-8)
    source.cut()
    # A server that nobody says anything of: its rows alone count.
    target.execute("DROP DATABASE pumphouse")
    here = ("diff", "--archive-at", str(int(moment)))
    equal = called(tmp_path, settings, *here)
    assert equal.exit_code == 0, equal.output
    assert "equal:" in equal.output
    assert "kept as" not in equal.output
    later = called(tmp_path, settings, "diff", "--archive-at", "latest", "--json")
    assert later.exit_code == 1
    (differs,) = json.loads(later.stdout)["different"]
    assert [(row["side"], row["row"]["id"]) for row in differs["rows"]] == [("archive", "8"), ("target", "8")]
    target.execute("DELETE FROM d.t WHERE id = 5")
    versioned = "" if is_mysql() else " WITH SYSTEM VERSIONING"
    target.execute(f"CREATE TABLE d.more (id INT PRIMARY KEY){versioned}")
    red = called(tmp_path, settings, *here, "--schema", "d")
    assert red.exit_code == 1
    assert "only in the archive: id=5" in red.output
    assert "d.more: only on the target" in red.output
    assert "d.more: only on the target" in called(tmp_path, settings, *here).output
    assert read_proofs(source.archive) == ()
    assert isinstance(called(tmp_path, settings, *here, "--schema", "nobody").exception, UsageError)
    assert isinstance(called(tmp_path, settings, *here, "--fix-sql", str(tmp_path / "f")).exception, UsageError)
    away = called(tmp_path, settings, *here, "--target", "mysql://me@127.0.0.1:1").exception
    assert isinstance(away, TargetUnavailable)
    assert away.hint.endswith("in what --target names")


@pytest.mark.row("R1", "R4")
@pytest.mark.parametrize(
    ("change", "side"),
    [
        ("UPDATE d.t SET name = CONCAT(name, '') , n = n + 1 WHERE id = 7", {"archive", "target"}),
        ("UPDATE d.t SET name = '' WHERE id = 7", {"archive", "target"}),
        ("UPDATE d.t SET name = NULL WHERE id = 7", {"archive", "target"}),
        ("DELETE FROM d.t WHERE id = 7", {"archive"}),
        ("INSERT INTO d.t VALUES (100001, 'x', 1)", {"target"}),
    ],
)
def test_one_row_that_is_another_is_found_in_its_table_and_range(
    source: MadeSource, settings: Settings, target: TargetConnection, change: str, side: set[str], tmp_path: Path
) -> None:
    settings = settings.model_copy(update={"load": settings.load.model_copy(update={"unit_bytes": 512 << 10})})
    columns = [ID, column(2, "name", MysqlType.VARCHAR, flen=2000), column(3, "n", MysqlType.LONGLONG)]
    source.create_table("t", columns)
    source.create_table("k", [column(1, "a"), column(2, "b", MysqlType.VARCHAR)], pk_is_handle=False)
    source.genesis()
    for at in range(0, 3000, 300):
        with source.txn() as t:
            for n in range(at, at + 300):
                t.insert("t", id=n - 100, name=b"x" * 1000, n=n)
        source.cut()
    with source.txn() as t:
        for _ in range(3):
            t.insert("k", a=1, b=None)
        t.insert("k", a=1, b=b"")
    source.cut()
    assert load.run(settings).to_ts
    green = run_proof(settings)
    assert green.equal
    found = table(green, "d.t")
    assert found.key == "id"
    assert len(found.ranges) > 4
    assert found.ranges[0].low is None
    assert all(a.below == b.low for a, b in zip(found.ranges, found.ranges[1:], strict=False))
    target.execute(change)
    red = run_proof(settings)
    assert outcomes(red) == {"d.t": Outcome.DIFFERENT, "d.k": Outcome.EQUAL}
    (wrong,) = table(red, "d.t").different
    rows = table(red, "d.t").rows
    assert {row.side for row in rows} == side
    (of,) = {int(row.row["id"]) for row in rows}
    assert (wrong.low is None or of >= wrong.low) and (wrong.below is None or of < wrong.below)
    answer = called(tmp_path, settings, "archive", "prove")
    assert answer.exit_code == 1, answer.output
    assert f"only in the {min(side)}: id={of}" in answer.output
    assert "DIFFERENT" in answer.output


@pytest.mark.row("R4")
@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO d.k VALUES (1, NULL)",
        "DELETE FROM d.k WHERE b IS NULL LIMIT 1",
        "UPDATE d.k SET b = '' WHERE b IS NULL LIMIT 1",
    ],
)
def test_rows_without_a_key_are_counted_and_null_is_no_empty_text(
    source: MadeSource, settings: Settings, target: TargetConnection, change: str
) -> None:
    source.create_table("k", [column(1, "a"), column(2, "b", MysqlType.VARCHAR)], pk_is_handle=False)
    with source.txn() as t:
        first = [t.insert("k", a=1, b=None) for _ in range(4)]
        t.insert("k", a=1, b=b"")
    source.genesis()
    with source.txn() as t:
        t.delete("k", first[0])
        t.insert("k", a=2, b=b"N,")
    source.cut()
    load.run(settings)
    proof = run_proof(settings)
    assert proof.equal
    assert proof.rows == 5
    target.execute(change)
    assert outcomes(run_proof(settings)) == {"d.k": Outcome.DIFFERENT}


@pytest.mark.row("R1", "R4")
def test_a_history_of_every_awkward_kind_is_proved_at_each_moment(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    churn = Churn(source)
    churn.fill()
    source.create_table("empty", [ID])
    source.genesis()
    churn.work(10)
    source.add_column("t", column(4, "extra", default="7", origin_default="7"))
    source.add_column("k", column(3, "more", MysqlType.VARCHAR, default="é", origin_default="é"))
    churn.work(10)
    source.rename_table("u", "v")
    source.tables["u"] = source.tables["v"]
    churn.work(3)
    middle = source.tick()
    churn.work(10)
    source.truncate("k")
    churn.work(5)
    source.cut()
    del source.tables["u"]
    for at in (middle, None):
        restored(settings, to=at, dry_run=False)
        proof = run_proof(settings)
        assert proof.equal, [each.to_dict() for each in proof.tables]
        assert set(outcomes(proof)) == {"d.t", "d.k", "d.v", "d.empty"}
    target.execute("UPDATE d.t SET extra = 8 WHERE id = (SELECT x FROM (SELECT MIN(id) x FROM d.t) y)")
    target.execute("CREATE TABLE d.stray (id INT)")
    proof = run_proof(settings)
    assert outcomes(proof)["d.t"] is Outcome.DIFFERENT
    assert proof.unexpected == ("d.stray",)
    target.execute("DROP TABLE d.v")
    assert table(run_proof(settings), "d.v").why == "the target does not have it"


@pytest.mark.row("R4", "L7")
def test_names_of_routes_generated_columns_and_tables_that_a_rule_leaves_out(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    rules = [
        LoadRule(do="route", table="d.t", to="e.other", why="w"),
        LoadRule(do="skip", table="d.gone", why="nobody needs it"),
    ]
    settings = settings.model_copy(update={"load": settings.load.model_copy(update={"rules": tuple(rules)})})
    generated: dict[str, Any] = {"generated_expr_string": "`n` + 1", "generated_stored": True}
    hidden: dict[str, Any] = {"generated_expr_string": "date_format(`day`, _utf8mb4'%Y')"}
    columns = [ID, column(2, "n"), column(3, "day", MysqlType.DATETIME), column(4, "sum", **generated)]
    source.create_table("t", [*columns, column(5, "year", MysqlType.VARCHAR, **hidden)])
    source.create_table("gone", [ID])
    with source.txn() as t:
        t.insert("t", id=1, n=5, day="2024-01-02 03:04:05", sum=6)
        t.insert("gone", id=1)
    source.genesis()
    source.cut()
    load.run(settings)
    proof = run_proof(settings)
    assert proof.equal
    found = table(proof, "d.t")
    assert (found.there, found.columns) == ("e.other", ("id", "n", "day"))
    assert set(found.without) == {"sum", "year"}
    assert "nobody needs it" in table(proof, "d.gone").why
    target.execute("UPDATE e.other SET n = 6")
    assert outcomes(run_proof(settings)) == {"d.t": Outcome.DIFFERENT, "d.gone": Outcome.UNPROVEN}


@pytest.mark.row("R4", "L7")
def test_a_transaction_that_a_rule_skips_is_named_by_proofs_and_by_plans_of_tables(
    source: MadeSource, settings: Settings, target: TargetConnection, capsys: pytest.CaptureFixture[str]
) -> None:
    source.create_table("t", [ID])
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=1)
    skipped = source.txn()
    with skipped as t:
        t.insert("t", id=2)
    source.cut()
    rule = LoadRule(do="skip", txn=skipped.commit_ts, why="a mistake of ours")
    settings = settings.model_copy(update={"load": settings.load.model_copy(update={"rules": (rule,)})})
    load.run(settings)
    proof = run_proof(settings)
    assert proof.equal
    assert [skipped.commit_ts in map(int, re.findall(r"\d{18,}", each)) for each in proof.ruled] == [True]
    formats.check("proof", json.loads(source.archive.store.get(proof.key)))
    print_proof(proof)
    chosen = Chosen(tables=("d.t",), called="d.then")
    planned = restore_parts.run(settings, chosen=chosen, into="target", dry_run=True)
    for told in (capsys.readouterr().out, "\n".join(as_text(plan_told(planned)))):
        assert f"rows of the transaction at {show(Tso(skipped.commit_ts))} (skip: a mistake of ours)" in told


@pytest.mark.row("R4")
@pytest.mark.parametrize("moved", [False, True])
def test_a_killed_proof_whose_archive_side_is_another_by_now_is_of_where_the_target_stands(
    source: MadeSource, settings: Settings, monkeypatch: pytest.MonkeyPatch, *, moved: bool
) -> None:
    churn = Churn(source)
    churn.fill()
    source.genesis()
    churn.work(5)
    source.cut()
    load.run(settings)
    run = decode.Decoder.run

    def killed(*_: Any) -> Any:
        raise Killed

    monkeypatch.setattr(decode.Decoder, "run", killed)
    with pytest.raises(Killed):
        run_proof(settings)
    (begun,) = read_proofs(source.archive)
    assert all(each.target is not None for table in begun.tables for each in table.ranges)
    monkeypatch.setattr(decode.Decoder, "run", run)
    if moved:
        churn.work(5)
        source.cut()
        load.run(settings)
    rule = LoadRule(do="skip", table="d.w", why="nobody needs it")
    other = settings.load.model_copy(update={"rules": (rule,)})
    proof = run_proof(settings.model_copy(update={"load": other}))
    assert (proof.equal, proof.attempt == begun.attempt) == (True, False)
    assert (proof.at > begun.at) is moved


@pytest.mark.row("R4", "S3")
def test_what_a_ddl_made_of_rows_without_a_binlog_is_unproven_by_name(
    source: MadeSource, settings: Settings, tmp_path: Path
) -> None:
    source.create_table("t", [ID, column(2, "a", MysqlType.LONG)])
    source.create_table("s", [ID])
    with source.txn() as t:
        t.insert("t", id=1, a=2)
        t.insert("s", id=1)
    source.genesis()
    raw = json.loads(json.dumps(source.tables["t"].info.raw))
    raw["cols"][1] = column(3, "a", MysqlType.VARCHAR) | {"offset": 1}
    source.alter("t", 12, raw)
    source.cut()
    load.run(settings)
    proof = run_proof(settings)
    assert outcomes(proof) == {"d.t": Outcome.UNPROVEN, "d.s": Outcome.EQUAL}
    assert "MODIFY_COLUMN" in table(proof, "d.t").why
    assert proof.equal
    alone = run_proof(settings, tables=["D.t"])
    assert (alone.verdict, alone.equal) == ("nothing proven", False)
    answer = called(tmp_path, settings, "archive", "prove", "--table", "d.t")
    assert answer.exit_code == 1
    assert "d.t: unproven: the DDL at" in answer.output


@pytest.mark.row("R4")
def test_a_value_that_the_archive_reads_otherwise_is_red(
    source: MadeSource, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    churn = Churn(source)
    churn.fill()
    source.genesis()
    churn.work(5)
    source.cut()
    load.run(settings)
    assert run_proof(settings).equal
    take = gather.Spill.take

    def mutated(self: gather.Spill, table_id: int, bucket: int) -> Any:
        rows, copies = take(self, table_id, bucket)
        if rows is not None and "n" in rows.schema.names:
            at = rows.schema.get_field_index("n")
            values = rows.column(at).to_pylist()
            values[0] = (values[0] or 0) ^ 1
            rows = rows.set_column(at, rows.schema.field(at), [values])
        return rows, copies

    monkeypatch.setattr(gather.Spill, "take", mutated)
    assert outcomes(run_proof(settings)) == {"d.t": Outcome.DIFFERENT, "d.k": Outcome.EQUAL, "d.u": Outcome.EQUAL}


@pytest.mark.row("R4")
def test_a_target_that_stands_at_no_moment_or_at_another_is_refused_by_name(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    churn = Churn(source)
    churn.fill()
    genesis = source.genesis()
    churn.work(3)
    end = source.cut()
    with pytest.raises(LoadError, match="no checkpoint of task main"):
        run_proof(settings)
    load.run(settings)
    with pytest.raises(TargetAhead, match="beyond"):
        run_proof(settings, at=genesis)
    with pytest.raises(UsageError, match="has not come to"):
        run_proof(settings, at=type(end)(end + 1))
    with pytest.raises(UsageError, match=r"no table d\.none"):
        run_proof(settings, tables=["d.none"])
    with pytest.raises(LoadError, match="no checkpoint of task other; there are main"):
        run_proof(settings, task="other")
    target.execute("UPDATE pumphouse.plan SET state = 'open' ORDER BY number DESC LIMIT 1")
    with pytest.raises(TargetBusy, match="is under way"):
        run_proof(settings)
    target.execute("UPDATE pumphouse.plan SET state = 'closed'")
    target.execute("UPDATE pumphouse.checkpoint SET state = 'incomplete', reason = 'for a test'")
    with pytest.raises(TargetIncomplete, match="for a test"):
        run_proof(settings)
    target.execute("UPDATE pumphouse.checkpoint SET state = 'ready', cluster_id = 5")
    with pytest.raises(LoadError, match="rows of cluster 5"):
        run_proof(settings)


@pytest.mark.row("R4")
def test_a_proof_that_was_killed_goes_on_though_the_target_has_gone_on(
    source: MadeSource, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    churn = Churn(source)
    churn.fill()
    source.genesis()
    churn.work(5)
    source.cut()
    load.run(settings)
    # Every table by itself; killed when the second is decoded.
    monkeypatch.setattr(prove, "PASS_BYTES", 1)
    decoded: list[int] = []
    run = decode.Decoder.run

    def killing(stop: int) -> Callable[..., Any]:
        def one(self: Any, pieces: Any) -> Any:
            decoded.append(1)
            if len(decoded) == stop:
                raise Killed
            return run(self, pieces)

        return one

    def killed(*_: Any) -> Any:
        raise Killed

    # Killed before anything is read: it holds its dump by then.
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(prove.Prover, "_cut", killed)
        run_proof(settings)
    assert [each.verdict for each in read_proofs(source.archive)] == ["not ended"]
    # Killed before anything is known: it goes on, and asks the server.
    monkeypatch.setattr(decode.Decoder, "run", killing(1))
    with pytest.raises(Killed):
        run_proof(settings)
    (begun,) = read_proofs(source.archive)
    assert (begun.verdict, len(begun.of(Outcome.OPEN))) == ("not ended", 3)
    decoded.clear()
    pieces_of_one = _pieces(settings)
    monkeypatch.setattr(decode.Decoder, "run", killing(pieces_of_one + 1))
    with pytest.raises(Killed):
        run_proof(settings)
    (going_on,) = read_proofs(source.archive)
    assert going_on.attempt == begun.attempt
    assert len(going_on.of(Outcome.EQUAL)) == 1
    churn.work(5)
    source.drop_column("u", "u")
    source.cut()
    load.run(settings)
    decoded.clear()
    monkeypatch.setattr(decode.Decoder, "run", killing(0))
    proof = run_proof(settings)
    assert (proof.attempt, proof.equal, proof.at) == (begun.attempt, True, begun.at)
    assert len(decoded) == 2 * pieces_of_one
    # The next one is of where the target stands now.
    after = run_proof(settings)
    assert after.equal
    assert after.at > proof.at
    assert [each.key for each in read_proofs(source.archive)] == [proof.key, after.key]
    assert verify(source.archive).sound


@pytest.mark.row("R3", "R4")
def test_a_proof_of_chosen_rows_says_so_and_makes_no_red_one_of_the_table_good(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    churn = Churn(source)
    churn.fill()
    with source.txn() as t:
        t.insert("t", id=4711)
        t.insert("t", id=4712)
    at = source.genesis()

    def restored_as(name: str, **where: Any) -> RestoreReport:
        chosen = Chosen(tables=("d.t",), called=f"c.{name}", where=Predicate(**where))
        return restore_parts.run(settings, chosen=chosen, into="target", to=at, dry_run=False)

    whole = restored_as("whole")
    target.execute("DELETE FROM c.whole WHERE id = 4712")
    red = prove_restored(settings, whole, into="target")
    assert (red.verdict, red.where) == ("DIFFERENT", "")
    some = prove_restored(settings, restored_as("some", keys=("4711",)), into="target")
    assert (some.equal, some.rows, some.where) == (True, 1, "with the key 4711")
    assert red.subject == f"d.t, as c.whole, of {red.target}"
    assert some.subject == f"d.t, as c.some, rows with the key 4711, of {some.target}"
    assert "where" not in red.to_dict()
    assert [each.where for each in read_proofs(source.archive)] == ["", "with the key 4711"]
    for each in source.archive.store.list("proofs/"):
        formats.check("proof", json.loads(source.archive.store.get(each.key)))
    assert newest_proof(source.archive) == red
    assert red_proofs(source.archive) == (red,)
    chosen = Chosen(tables=("d.t", "d.u"), database="copy")
    both = restore_parts.run(settings, chosen=chosen, into="target", to=at, dry_run=False)
    assert prove_restored(settings, both, into="target").subject == f"2 tables, in copy, of {red.target}"
    assert verify(source.archive).sound


def _pieces(settings: Settings) -> int:
    """Decoders of one pass: as many as connections, where there are enough pieces."""
    return settings.load.connections


@pytest.mark.row("R4", "A4", "O7")
def test_proofs_are_kept_as_the_page_says_listed_and_a_damaged_one_is_named(
    source: MadeSource, settings: Settings, target: TargetConnection, tmp_path: Path
) -> None:
    churn = Churn(source)
    churn.fill()
    source.genesis()
    source.cut()
    assert "no proofs yet" in called(tmp_path, settings, "archive", "proofs").output
    load.run(settings)
    answer = called(tmp_path, settings, "archive", "prove", "--json")
    assert (answer.exit_code, json.loads(answer.output)["verdict"]) == (0, "equal")
    listed = called(tmp_path, settings, "archive", "proofs", "--tables").output
    assert "3 of 3" in listed
    assert "d.t: equal, 60 rows, checksum " in listed
    assert json.loads(called(tmp_path, settings, "archive", "proofs", "--json").output)[0]["rows"] == 90
    assert ": equal, 90 rows" in called(tmp_path, settings, "archive", "ls").output
    assert json.loads(called(tmp_path, settings, "archive", "ls", "--json").output)["proof"]["verdict"] == "equal"
    (key,) = (each.key for each in source.archive.store.list("proofs/"))
    target.execute("DELETE FROM d.t LIMIT 1")
    assert called(tmp_path, settings, "archive", "prove").exit_code == 1
    shown = formats.Shown()
    for each in source.archive.store.list("proofs/"):
        shown.check("proof", json.loads(source.archive.store.get(each.key)))
    assert {each.split("/")[1] for each in shown.missing("proof")} <= {
        "only",
        "unexpected",
        "losses",
        "ruled",
        "tables",
        "where",
    }
    for each in source.archive.store.list("proofs/"):
        if each.key != key:
            source.archive.store.delete(each.key)
    text = source.archive.store.get(key)
    source.archive.store.put(key, text.replace(b'"rows": 60', b'"rows": 61'))
    assert read_proofs(source.archive) == ()
    assert [each.key for each in verify(source.archive).problems] == [key]


@pytest.mark.row("R4")
def test_a_unique_key_whose_first_column_is_text_is_proved_as_a_whole(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    settings = settings.model_copy(update={"load": settings.load.model_copy(update={"unit_bytes": 1 << 16})})
    text = column(1, "word", MysqlType.VARCHAR, flag=1)
    source.create_table(
        "w", [text, column(2, "n")], pk_is_handle=False, index_info=[index(1, "u", ("word", 0), unique=True)]
    )
    for at in range(3):
        with source.txn() as t:
            for n in range(2000):
                t.insert("w", word=f"{at}-{n:050d}".encode(), n=n)
    source.genesis()
    source.cut()
    load.run(settings)
    proof = run_proof(settings)
    assert proof.equal
    assert len(table(proof, "d.w").ranges) == 1
    target.execute("UPDATE d.w SET n = n + 1 LIMIT 1")
    assert outcomes(run_proof(settings)) == {"d.w": Outcome.DIFFERENT}


@pytest.mark.row("R1", "R3", "R4")
def test_a_restore_is_verified_whole_and_in_parts(
    source: MadeSource, settings: Settings, target: TargetConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    churn = Churn(source)
    churn.fill()
    source.genesis()
    churn.work(5)
    at = source.tick()
    churn.work(5)
    source.cut()
    into = ("restore", "--into", "target", "--verify", "--to")
    whole = called(tmp_path, settings, *into, str(at), "--replace", server_name(settings.target))
    assert whole.exit_code == 0, whole.output
    assert "restored to" in whole.output
    assert "3 of 3 tables equal" in whole.output
    # Beside the live rows, of another moment and under another name.
    part = called(tmp_path, settings, *into, "latest", "--table", "d.t", "--as", "back.t_then", "--json")
    assert part.exit_code == 0, part.output
    proof = json.loads(part.stdout)["proof"]
    assert (proof["verdict"], proof["rows"]) == ("equal", len(source.tables["t"].rows))
    assert called(tmp_path, settings, "archive", "prove").exit_code == 0
    take = gather.Spill.take

    def lacking(self: gather.Spill, table_id: int, bucket: int) -> Any:
        rows, copies = take(self, table_id, bucket)
        return rows and rows.slice(1), copies if copies is None else copies[1:]

    monkeypatch.setattr(gather.Spill, "take", lacking)
    red = called(tmp_path, settings, *into, "latest", "--table", "d.%", "--into-database", "other")
    assert red.exit_code == 1
    assert "DIFFERENT" in red.output
    assert "d.t (other.t on the target): all rows: " in red.output


@pytest.mark.row("R1", "R3", "R4")
def test_a_dry_run_says_what_the_proof_would_read_and_the_proof_reads_that(
    source: MadeSource, settings: Settings, target: TargetConnection, tmp_path: Path
) -> None:
    churn = Churn(source)
    churn.fill()
    source.create_table("s", [ID, column(2, "a", MysqlType.LONG)])
    with source.txn() as t:
        t.insert("s", id=1, a=2)
    source.genesis()
    churn.work(5)
    at = source.tick()
    raw = json.loads(json.dumps(source.tables["s"].info.raw))
    raw["cols"][1] = column(3, "a", MysqlType.VARCHAR) | {"offset": 1}
    source.alter("s", 12, raw)
    churn.work(5)
    source.cut()
    into = ("restore", "--into", "target", "--verify", "--to")
    before = target.query("SHOW DATABASES")
    drill.run(settings, into="target", named="target", at=at)
    table_ = ("--table", "d.t", "--into-database", "other")
    for moment, more in ((str(at), ()), (str(at), ("--follow",)), ("latest", ()), ("latest", table_)):
        planned = called(tmp_path, settings, *into, moment, *more, "--dry-run", "--json")
        assert planned.exit_code == 0, planned.output
        assert target.query("SHOW DATABASES") == before
        told = json.loads(planned.stdout)["proving"]
        assert min(told["tables"].values()) > 0
        assert (told["bytes"], told["estimate_s"] > 0) == (sum(told["tables"].values()), True)
        text = called(tmp_path, settings, *into, moment, *more, "--dry-run").output
        assert f"proof     as of {show(Tso(told['at']))}: {len(told['tables'])} tables, {told['bytes']:,} bytes" in text
        named = () if more == table_ else ("--replace", server_name(settings.target))
        called(tmp_path, settings, *into, moment, *more, *named)
        proof = read_proofs(source.archive)[-1]
        assert proof.at == told["at"]
        assert {each.name for each in proof.of(Outcome.EQUAL)} == told["tables"].keys()
        assert {each.name: each.why for each in proof.of(Outcome.UNPROVEN)} == told["unproven"]
        before = target.query("SHOW DATABASES")
    report = restored(settings, dry_run=True)
    assert report.check is not None
    of_a_tidb = replace(report, check=replace(report.check, version="8.0.11-TiDB-v8.5.6"))
    with pytest.raises(UsageError, match="is a TiDB"):
        plan_proof(settings, of_a_tidb, into="target")
