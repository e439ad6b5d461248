"""Flashback on a real server: rows go back where nobody changed them since, others stay and are reported, all of it can be undone."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import threading
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pymysql
import pytest
from click.testing import CliRunner, Result
from pydantic import SecretStr
from pymysql.constants import CLIENT

from pumphouse.archive.manifest import Declaration
from pumphouse.cli import cli
from pumphouse.errors import LoadError, RestoreError, TargetBusy, TargetUnreachable, UnknownTable, UsageError
from pumphouse.flashback.report import FlashbackReport
from pumphouse.loader.target import RetryUnit, TargetConnection
from pumphouse.model.table import MysqlType
from pumphouse.model.tso import Tso
from pumphouse.runs import load
from pumphouse.runs.flashback import Chosen, Files, run
from pumphouse.settings import Settings
from tests.integration.test_load_ddl_kinds import partitions
from tests.integration.test_load_rules import ID, TEXT, put
from tests.integration.test_proof import HIGH, LOW, of_every_type
from tests.support import mariadb
from tests.support.killed import Killed, calls_until_killed
from tests.support.kind import is_mysql
from tests.support.loading import restored
from tests.support.madearchive import Churn, MadeSource, column, index, target_rows
from tests.support.waiting import eventually

pytestmark = pytest.mark.row("R5")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redo files go to the working directory."""
    monkeypatch.chdir(tmp_path)


def commit(source: MadeSource, *changes: tuple[Any, ...]) -> int:
    """One transaction of (what, table, handle or values)."""
    with (opened := source.txn()) as t:
        for what, table, *rest in changes:
            values = rest.pop() if isinstance(rest[-1], dict) else {}
            getattr(t, what)(table, *rest, **values)
    return opened.commit_ts


def live(source: MadeSource, settings: Settings, **how: Any) -> Settings:
    """The server is the source, as it is now."""
    source.cut()
    restored(settings, dry_run=False, **how)
    return settings.model_copy(update={"source": mariadb.as_source(settings.target)})


def back(
    settings: Settings, chosen: Chosen, *, into: Any = "source", apply: bool = True, **how: Any
) -> FlashbackReport:
    return run(settings, chosen=chosen, into=into, apply=apply, **how)


def between(source: MadeSource, after: int, *tables: str, **more: Any) -> Chosen:
    return Chosen(after=Tso(after), until=source.archive.end(), tables=tables, **more)


def ran(target: TargetConnection, path: str | Path) -> None:
    """What a person does with a file of statements."""
    text, server = Path(path).read_bytes(), target.settings
    if is_mysql():
        options = (
            {"unix_socket": server.unix_socket} if server.unix_socket else {"host": server.host, "port": server.port}
        )
        with pymysql.connect(
            user=server.user, password=server.password.get_secret_value(), client_flag=CLIENT.MULTI_STATEMENTS, **options
        ) as connection, connection.cursor() as cursor:  # fmt: skip
            cursor.execute(text.decode())
            while cursor.nextset():
                pass
        return
    where = [f"--socket={server.unix_socket}"] if server.unix_socket else [f"-h{server.host}", f"-P{server.port}"]
    secret = server.password.get_secret_value()
    subprocess.run(
        ["mariadb", "--no-defaults", *where, f"-u{server.user}", f"--password={secret}"], input=text, check=True
    )


def total(report: FlashbackReport) -> tuple[int, int, int, int, int]:
    found = report.total
    return found.insert, found.update, found.delete, found.back, found.conflicts


def whys(report: FlashbackReport) -> dict[str | None, str]:
    return {each.key["id"]: each.why for each in report.conflicts}


@pytest.fixture
def three(source: MadeSource) -> tuple[int, dict[str, Any]]:
    """A table of three kinds of change between a moment, which is given with the rows of then, and the end."""
    source.create_table("t", [ID, TEXT, column(3, "n")])
    source.genesis()
    commit(source, *(("insert", "t", {"id": n, "a": b"x%d" % n, "n": n}) for n in range(1, 7)))
    after, rows = source.tick(), source.snapshot()
    commit(source, ("insert", "t", {"id": 7, "a": b"new", "n": None}), ("update", "t", 1, {"a": b"other", "n": None}))
    commit(source, ("delete", "t", 2), ("delete", "t", 3), ("update", "t", 4, {"n": 44}))
    return after, rows


@pytest.mark.mysql
def test_changes_of_every_kind_are_taken_back_once_and_the_redo_brings_them_again(
    source: MadeSource, settings: Settings, target: TargetConnection, three: tuple[int, dict[str, Any]]
) -> None:
    after, before = three
    on, now = live(source, settings), source.snapshot()
    chosen = between(source, after)
    planned = back(on, chosen, apply=False)
    assert total(planned) == (2, 2, 1, 0, 0)
    assert planned.files == {}
    assert target_rows(target) == now, "a plan changes nothing"
    done = back(on, chosen)
    assert target_rows(target) == before
    assert (total(done), done.batches, done.changes) == ((2, 2, 1, 0, 0), 1, 5)
    # A TiDB writes binlogs of its own.
    assert ["in no binlog" in note for note in done.notes] == [True] * (target.dialect != "tidb")
    again = back(on, chosen)
    assert total(again) == (0, 0, 0, 5, 0)
    assert target_rows(target) == before
    ran(target, done.files["redo"])
    assert target_rows(target) == now
    assert Path(done.files["redo"]).stat().st_mode & 0o77 == 0, "it has rows"
    back(on, chosen)
    ran(target, done.files["redo"])
    assert target_rows(target) == now, "a later run has added to the file"


def test_the_sql_of_a_flashback_does_what_it_does_and_its_redo_undoes_it(
    source: MadeSource, settings: Settings, target: TargetConnection, three: tuple[int, dict[str, Any]], tmp_path: Path
) -> None:
    after, before = three
    on, now = live(source, settings), source.snapshot()
    path = tmp_path / "undo.sql"
    report = back(on, between(source, after), apply=False, files=Files(sql=path))
    assert target_rows(target) == now
    assert report.files == {"sql": str(path), "redo": str(tmp_path / "undo.redo.sql")}
    # What somebody changes before it is run stays.
    target.execute("UPDATE d.t SET n = 9 WHERE id = 1")
    target.execute("INSERT INTO d.t VALUES (2, 'again', 0)")
    ran(target, path)
    kept = target.query("SELECT id, a, n FROM d.t WHERE id IN (1, 2) ORDER BY 1")
    assert kept == [(1, "other", 9), (2, "again", 0)]
    target.execute("UPDATE d.t SET a = 'x1', n = 1 WHERE id = 1")
    target.execute("UPDATE d.t SET a = 'x2', n = 2 WHERE id = 2")
    assert target_rows(target) == before
    ran(target, path)
    assert target_rows(target) == before
    ran(target, report.files["redo"])
    assert target_rows(target) == now
    with pytest.raises(UsageError, match="there is a file"):
        back(on, between(source, after), apply=False, files=Files(sql=path))


def test_a_row_that_somebody_changed_since_stays_and_is_reported_with_what_it_is_now(
    source: MadeSource, settings: Settings, target: TargetConnection, three: tuple[int, dict[str, Any]], tmp_path: Path
) -> None:
    after, _ = three
    until = source.tick()
    later = commit(source, ("update", "t", 4, {"a": b"later"}))
    on = live(source, settings)
    for statement in (
        "UPDATE d.t SET n = 5 WHERE id = 1",
        "INSERT INTO d.t VALUES (2, 'mine', 2)",
        "INSERT INTO d.t VALUES (3, 'x3', 3)",
        "DELETE FROM d.t WHERE id = 7",
    ):
        target.execute(statement)
    chosen = Chosen(after=Tso(after), until=Tso(until))
    report = back(on, chosen, files=Files(report=tmp_path / "stay.jsonl"))
    assert total(report) == (0, 0, 0, 2, 3)
    assert whys(report)["1"] == "somebody changed it since"
    assert whys(report)["2"] == "there is a row of this key again"
    assert str(later) in whys(report)["4"]
    one = next(each for each in report.conflicts if each.key == {"id": "1"})
    assert (one.old, one.new) == ({"id": "1", "a": "x1", "n": "1"}, {"id": "1", "a": "other", "n": None})
    assert one.now == {"id": "1", "a": "other", "n": "5"}
    lines = [json.loads(line) for line in (tmp_path / "stay.jsonl").read_text().splitlines()]
    assert [each["key"] for each in lines] == [dict(each.key) for each in report.conflicts]
    assert target.query("SELECT id, a, n FROM d.t WHERE id IN (1, 2) ORDER BY 1") == [(1, "other", 5), (2, "mine", 2)]
    target.execute("DELETE FROM d.t WHERE id IN (1, 4)")
    assert whys(back(on, chosen))["1"] == "somebody deleted it since"


def test_of_a_chain_the_first_old_image_comes_back_and_a_transaction_between_that_is_not_chosen_is_a_conflict(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [ID, TEXT])
    source.genesis()
    put(source, "t", 1, 2, 3, 4)
    first = commit(source, ("update", "t", 1, {"a": b"1"}), ("update", "t", 2, {"a": b"1"}), ("delete", "t", 3))
    other = commit(source, ("update", "t", 2, {"a": b"2"}))
    last = commit(
        source, ("update", "t", 1, {"a": b"3"}), ("update", "t", 2, {"a": b"3"}), ("insert", "t", {"id": 3, "a": b"3"})
    )
    commit(source, ("insert", "t", {"id": 9, "a": b"9"}), ("delete", "t", 4))
    on = live(source, settings)
    report = back(on, Chosen(txns=(Tso(first), Tso(last)), tables=("d.t",)))
    assert sorted(report.transactions.items()) == [(first, 3), (last, 3)]
    assert total(report) == (0, 2, 0, 0, 1)
    assert str(other) in whys(report)["2"]
    assert target.query("SELECT id, a FROM d.t ORDER BY 1") == [(1, "x"), (2, "3"), (3, "x"), (9, "9")]
    with pytest.raises(UsageError, match="no transaction with the commit ts"):
        back(on, Chosen(txns=(Tso(first + 1),)))
    with pytest.raises(UsageError, match="does not lie between"):
        back(on, Chosen(after=Tso(first), until=Tso(last), txns=(Tso(first),)))


def test_only_rows_of_the_keys_go_back_and_a_key_that_changed_is_a_row_that_goes_and_one_that_comes(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [ID, TEXT])
    source.create_table(
        "c",
        [column(1, "a", flag=1), column(2, "b", MysqlType.VARCHAR, flag=1), column(3, "v")],
        pk_is_handle=False,
        index_info=[index(1, "PRIMARY", ("a", 0), ("b", 1), unique=True, primary=True)],
    )
    source.genesis()
    put(source, "t", 1, 2, 3)
    commit(source, *(("insert", "c", {"a": 1, "b": text, "v": 1}) for text in (b"x,y", b"z\r\n'\\", b"Z")))
    after = source.tick()
    commit(source, ("update", "t", 2, {"id": 22}), ("delete", "t", 1), ("delete", "t", 3))
    commit(source, ("update", "c", 1, {"b": b"moved"}), ("update", "c", 2, {"v": 5}), ("delete", "c", 3))
    on = live(source, settings)
    assert total(back(on, between(source, after, "d.t", keys=("1", "22")))) == (1, 0, 1, 0, 0)
    assert target.query("SELECT id FROM d.t ORDER BY 1") == [(1,)]
    assert total(back(on, between(source, after, "d.t"))) == (2, 0, 0, 2, 0)
    assert target.query("SELECT id FROM d.t ORDER BY 1") == [(1,), (2,), (3,)]
    assert total(back(on, between(source, after, "d.c", keys=('1,"x,y"',)))) == (1, 0, 1, 0, 0)
    back(on, between(source, after, "d.c"))
    assert target.query("SELECT a, b, v FROM d.c ORDER BY CAST(b AS BINARY)") == [
        (1, "Z", 1),
        (1, "x,y", 1),
        (1, "z\r\n'\\", 1),
    ]
    with pytest.raises(UsageError, match="no value of id"):
        back(on, between(source, after, "d.t", keys=("1 OR 1=1",)))


@pytest.mark.mysql
def test_values_of_every_type_are_compared_and_come_back_as_they_were(
    source: MadeSource, settings: Settings, target: TargetConnection, tmp_path: Path
) -> None:
    source.create_table("t", of_every_type())
    source.genesis()
    commit(source, ("insert", "t", {"id": 1}), ("insert", "t", {"id": 2, **LOW}), ("insert", "t", {"id": 3, **HIGH}))
    commit(source, ("insert", "t", {"id": 4, **LOW}), ("insert", "t", {"id": 5, **HIGH}), ("insert", "t", {"id": 6}))
    source.cut()
    restored(settings, dry_run=False)
    before = target.query("SELECT * FROM d.t ORDER BY id")
    after = source.tick()
    commit(source, ("update", "t", 1, HIGH), ("update", "t", 2, HIGH), ("update", "t", 3, LOW))
    commit(source, ("delete", "t", 4), ("delete", "t", 5), ("update", "t", 6, LOW), ("insert", "t", {"id": 7, **HIGH}))
    on = live(source, settings)
    now = target.query("SELECT * FROM d.t ORDER BY id")
    path = tmp_path / "undo.sql"
    back(on, between(source, after), apply=False, files=Files(sql=path))
    done = back(on, between(source, after))
    assert total(done) == (2, 4, 1, 0, 0), done.conflicts
    assert target.query("SELECT * FROM d.t ORDER BY id") == before
    assert total(back(on, between(source, after))) == (0, 0, 0, 7, 0)
    ran(target, done.files["redo"])
    assert target.query("SELECT * FROM d.t ORDER BY id") == now
    ran(target, path)
    assert target.query("SELECT * FROM d.t ORDER BY id") == before
    ran(target, done.files["redo"])
    # Each value counts: a row is left alone if one of them is another.
    target.execute("CREATE DATABASE keep")
    target.execute("CREATE TABLE keep.t LIKE d.t")
    target.execute("INSERT INTO keep.t SELECT * FROM d.t")
    for name in HIGH:
        target.execute(f"UPDATE d.t a JOIN d.t b ON b.id = 3 SET a.{name} = b.{name} WHERE a.id = 2")
        found = back(on, between(source, after, "d.t", keys=("2",)), apply=False)
        assert total(found) == (0, 0, 0, 0, 1), name
        target.execute(f"UPDATE d.t a JOIN keep.t b USING (id) SET a.{name} = b.{name} WHERE a.id = 2")
    assert total(back(on, between(source, after, "d.t", keys=("2",)), apply=False)) == (0, 1, 0, 0, 0)


@pytest.mark.mysql
def test_a_row_that_stays_is_told_in_words_alike_for_the_archive_and_the_server(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", of_every_type())
    states = {"elems": ("new", "paid", "sent")}
    source.create_table(
        "orders", [ID, column(2, "n"), column(3, "state", MysqlType.ENUM, **states), column(4, "sent", MysqlType.SET, **states)]
    )  # fmt: skip
    source.genesis()
    commit(source, ("insert", "t", {"id": 2, **LOW}), ("insert", "t", {"id": 3, **HIGH}))
    commit(source, *(("insert", "orders", {"id": n, "n": 1, "state": 1, "sent": 1}) for n in (1, 2)))
    after = source.tick()
    commit(source, ("update", "t", 2, HIGH), ("update", "t", 3, LOW))
    commit(source, ("update", "orders", 1, {"state": 2, "sent": 5}), ("update", "orders", 2, {"state": 0, "sent": 0}))
    on = live(source, settings)
    target.execute("UPDATE d.t SET si = 7")
    target.execute("UPDATE d.orders SET n = 7")
    found = {(each.table, each.key["id"]): each for each in back(on, between(source, after), apply=False).conflicts}
    told = [(each["state"], each["sent"]) for key in "12" for each in (
        found["d.orders", key].old, found["d.orders", key].new, found["d.orders", key].now) if each]  # fmt: skip
    assert told == [("new", "new"), ("paid", "new,sent"), ("paid", "new,sent"), ("new", "new"), ("0", ""), ("0", "")]
    for key in "23":
        each = found["d.t", key]
        assert each.now
        assert each.new
        differ = {name for name, value in each.new.items() if each.now[name] != value}
        assert differ - ({"js"} if is_mysql() else set()) == {"si"}, (each.new, each.now)
    assert found["d.t", "2"].now["bt"] == str((1 << 64) - 1)  # type: ignore[index]


def test_a_whole_random_history_goes_back_to_any_moment_and_forth_again(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    """Unique values that rows exchange, moved keys, several Pumps and windows; in batches too small for all of it."""
    churn, rng = Churn(source, 5), random.Random(5)
    churn.fill()
    source.genesis()
    marks = []
    for _ in range(4):
        marks.append((source.tick(), source.snapshot()))
        churn.work(8)
        if rng.random() < 0.7:
            source.cut(pumps=3)
    on, now = live(source, settings), source.snapshot()
    for at, rows in reversed(marks):
        report = back(on, between(source, at, "d.t", "d.u"), batch_rows=40)
        assert report.total.conflicts == 0, report.conflicts
        found = target_rows(target)
        assert (found["t"], found["u"], found["k"]) == (rows["t"], rows["u"], now["k"])
        ran(target, report.files["redo"])
        assert target_rows(target) == now


Rowed = dict[int, tuple[bytes, int]]
# commit ts, key, row before, row after
Log = list[tuple[int, int, tuple[bytes, int] | None, tuple[bytes, int] | None]]


def random_rows(source: MadeSource, rng: random.Random, transactions: int) -> Log:
    """Random transactions on a table of few keys."""
    log: Log = []
    for _ in range(transactions):
        some, changes = [], []
        for id_ in rng.sample(range(8), rng.randint(1, 4)):
            held = source.tables["t"].rows.get(id_)
            old = None if held is None else (held[2], held[3])
            new = None if old and rng.random() < 0.4 else (rng.choice((b"a", b"A", b"b ", b"b")), rng.randrange(3))
            if old is None:
                some.append(("insert", "t", {"id": id_, "a": new[0], "n": new[1]}))
            elif new is None:
                some.append(("delete", "t", id_))
            else:
                some.append(("update", "t", id_, {"a": new[0], "n": new[1]}))
            changes.append((id_, old, new))
        ts = commit(source, *some)
        log += [(ts, *each) for each in changes]
    return log


def expected(log: Log, txns: set[int], now: Rowed) -> Rowed:
    """By the contract: all keys under which one row may have been, or none of them."""
    changes: dict[int, tuple[Any, Any, bool]] = {}
    for id_ in range(8):
        mine = [at for at, (ts, key, *_) in enumerate(log) if key == id_ and ts in txns]
        if mine and (old := log[mine[0]][2]) != (new := log[mine[-1]][3]):
            others = [at for at, (ts, key, *_) in enumerate(log) if key == id_ and ts not in txns and at > mine[0]]
            changes[id_] = old, new, not others and now.get(id_) in (old, new)
    groups = {id_: {id_} for id_ in range(8)}
    for (ts, one, _, gone), (same, other, before, _) in pairwise(log):
        if ts == same and ts in txns and gone is None and before is None:  # written as a key that moved
            joined = groups[one] | groups[other]
            groups |= dict.fromkeys(joined, joined)
    rows = dict(now)
    for id_, (old, _, _) in changes.items():
        if all(changes[each][2] for each in groups[id_] if each in changes):
            rows.pop(id_, None)
            if old is not None:
                rows[id_] = old
    return rows


@pytest.mark.parametrize("seed", range(6))
def test_a_random_choice_of_transactions_is_taken_back_where_the_contract_says_so(
    source: MadeSource, settings: Settings, target: TargetConnection, seed: int
) -> None:
    rng = random.Random(seed)
    source.create_table("t", [ID, TEXT, column(3, "n")])
    source.genesis()
    log = random_rows(source, rng, 6)
    source.cut(pumps=3)
    log += random_rows(source, rng, 12)
    on = live(source, settings)
    target.execute("ALTER TABLE d.t MODIFY a VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
    for id_ in rng.sample(range(8), 2):
        target.execute(
            rng.choice(("DELETE FROM d.t", "UPDATE d.t SET n = 9", "UPDATE d.t SET a = 'B'")) + f" WHERE id = {id_}"
        )

    def rows() -> Rowed:
        return {id_: (text.encode(), n) for id_, text, n in target.query("SELECT id, a, n FROM d.t")}

    every = sorted({ts for ts, *_ in log})
    for count in (1, 3, 8, len(every)):
        txns, now = set(rng.sample(every, count)), rows()
        chosen = Chosen(txns=tuple(map(Tso, txns)))
        redo = Path(f"{seed}-{count}.redo.sql")
        done = back(on, chosen, files=Files(redo=redo), batch_rows=3)
        assert rows() == expected(log, txns, now), (seed, sorted(txns))
        assert back(on, chosen, apply=False).total.put == 0
        if done.total.put:
            ran(target, redo)
        assert rows() == now


def test_what_others_write_meanwhile_is_never_lost(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    """A writer counts its changes in each row: each of them is there in the end, whether the row went back or stayed."""
    source.create_table("t", [ID, TEXT, column(3, "n")])
    source.genesis()
    commit(source, *(("insert", "t", {"id": n, "a": b"old", "n": 0}) for n in range(300)))
    after = source.tick()
    commit(source, *(("update", "t", n, {"a": b"new"}) for n in range(300)))
    on = live(source, settings)
    wrote, stop = Counter[int](), threading.Event()

    def write() -> None:
        rng = random.Random(1)
        with TargetConnection.open(settings.target) as connection:
            while not stop.is_set():
                id_ = rng.randrange(300)
                with contextlib.suppress(RetryUnit):
                    wrote[id_] += connection.execute(f"UPDATE d.t SET n = n + 1 WHERE id = {id_}")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        eventually(lambda: wrote.total() > 20)
        report = back(on, between(source, after), batch_rows=20)
    finally:
        stop.set()
        writer.join()
    rows = target.query("SELECT id, a, n FROM d.t ORDER BY id")
    assert [n for _, _, n in rows] == [wrote[id_] for id_, _, _ in rows]
    texts = Counter(text for _, text, _ in rows)
    assert (texts["old"], texts["new"]) == (report.total.update, report.total.conflicts)
    assert texts["old"] + texts["new"] == 300
    assert texts["new"] > 0


def test_killed_at_any_statement_and_run_again_it_ends_the_same(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.create_table("t", [ID, TEXT], index_info=[index(1, "ua", ("a", 1), unique=True)])
    source.genesis()
    commit(source, *(("insert", "t", {"id": n, "a": b"x%d" % n}) for n in range(1, 7)))
    after, before = source.tick(), source.snapshot()
    commit(source, ("update", "t", 1, {"a": b"-"}), ("update", "t", 2, {"a": b"x1"}), ("update", "t", 1, {"a": b"x2"}))
    commit(source, ("delete", "t", 3), ("insert", "t", {"id": 8, "a": b"x3"}), ("update", "t", 5, {"a": b"y"}))
    on, now = live(source, settings), source.snapshot()
    chosen, kills = between(source, after), 0
    for batch_rows in (4, 100):
        for calls in range(1, 100):
            with monkeypatch.context() as patch:
                left = calls_until_killed(patch)
                left[0] = calls
                try:
                    back(on, chosen, batch_rows=batch_rows)
                except Killed:
                    kills += 1
                    back(on, chosen, batch_rows=batch_rows)
                else:
                    calls = 0
                left[0] = 0
                back(on, chosen, batch_rows=batch_rows)  # rows that exchanged values may be in two batches
            assert target_rows(target) == before
            (redo,) = Path.cwd().glob("flashback-*.redo.sql")
            ran(target, redo)
            assert target_rows(target) == now
            redo.unlink()
            if not calls:
                break
    assert kills > 15


@pytest.mark.mysql
def test_rows_exchange_values_of_a_unique_key_and_one_that_is_taken_by_another_is_refused_alone(
    source: MadeSource, settings: Settings, target: TargetConnection, tmp_path: Path
) -> None:
    source.create_table("t", [ID, TEXT, column(3, "n")], index_info=[index(1, "ua", ("a", 1), unique=True)])
    source.genesis()
    commit(source, *(("insert", "t", {"id": n, "a": b"x%d" % n, "n": n}) for n in range(1, 6)))
    after, before = source.tick(), source.snapshot()
    for id_, text in ((1, b"-"), (2, b"x1"), (1, b"x2"), (3, b"y3"), (4, b"x3")):
        commit(source, ("update", "t", id_, {"a": text}))
    commit(source, ("delete", "t", 5))
    on, now = live(source, settings), source.snapshot()
    path = tmp_path / "undo.sql"
    back(on, between(source, after), apply=False, files=Files(sql=path))
    ran(target, path)
    assert target_rows(target) == before
    ran(target, tmp_path / "undo.redo.sql")
    assert target_rows(target) == now
    target.execute("INSERT INTO d.t VALUES (50, 'x5', 0), (40, 'x4', 0)")
    report = back(on, between(source, after))
    # 3 was given up by 4, which does not get x4 again: so 4 stays, and 3 cannot have x3.
    assert sorted(whys(report)) == ["3", "4", "5"]
    assert all("the server refuses it" in why for why in whys(report).values())
    assert target.query("SELECT id, a FROM d.t WHERE id < 40 ORDER BY 1") == [
        (1, "x1"),
        (2, "x2"),
        (3, "y3"),
        (4, "x3"),
    ]


@pytest.mark.mysql
def test_no_row_of_another_table_goes_with_a_row_that_is_taken_back(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    """The source's server has foreign keys that follow; parents and children of the range go in their order."""
    for name in ("parent", "child"):
        source.create_table(name, [ID, column(2, "p"), column(3, "n")])
    source.genesis()
    commit(source, ("insert", "parent", {"id": 1}), ("insert", "child", {"id": 1, "p": 1}))
    after, before = source.tick(), source.snapshot()
    commit(
        source, ("insert", "parent", {"id": 2}), ("insert", "parent", {"id": 3}), ("insert", "child", {"id": 2, "p": 2})
    )
    commit(source, ("delete", "child", 1), ("delete", "parent", 1))
    on = live(source, settings)
    target.execute(
        "ALTER TABLE d.child ADD FOREIGN KEY (p) REFERENCES d.parent (id) ON DELETE CASCADE ON UPDATE CASCADE"
    )
    target.execute("ALTER TABLE d.parent ADD FOREIGN KEY (p) REFERENCES d.parent (id) ON DELETE CASCADE")
    target.execute("INSERT INTO d.child VALUES (7, 3, 0)")
    report = back(on, between(source, after))
    assert whys(report) == {"3": "other rows refer to it"}
    assert target.query("SELECT id, p FROM d.child ORDER BY 1") == [(1, 1), (7, 3)]
    assert target.query("SELECT id FROM d.parent ORDER BY 1") == [(1,), (3,)]
    target.execute("DELETE FROM d.child WHERE id = 7")
    assert total(back(on, between(source, after))) == (0, 0, 1, 4, 0)
    assert target_rows(target) == before


@pytest.mark.mysql
def test_a_row_that_moved_to_a_key_that_others_refer_to_stays_alone(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    for name in ("parent", "child"):
        source.create_table(name, [ID, column(2, "p"), column(3, "n")])
    source.genesis()
    commit(source, *(("insert", "parent", {"id": each, "n": 1}) for each in (1, 7)))
    after = source.tick()
    commit(source, ("update", "parent", 7, {"id": 8}), ("update", "parent", 1, {"n": 2}))
    on = live(source, settings)
    target.execute("ALTER TABLE d.child ADD FOREIGN KEY (p) REFERENCES d.parent (id) ON DELETE CASCADE")
    target.execute("INSERT INTO d.child VALUES (1, 8, 0)")
    report = back(on, between(source, after))
    assert set(whys(report).values()) == {"other rows refer to it"}
    assert target.query("SELECT id, n FROM d.parent ORDER BY 1") == [(1, 1), (8, 1)]
    assert target.query("SELECT id, p FROM d.child") == [(1, 8)]


def test_two_flashbacks_of_one_transaction_are_undone_each_by_its_own_file(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    for name in ("t", "u"):
        source.create_table(name, [ID, column(2, "n")])
    source.genesis()
    commit(source, *(("insert", name, {"id": 1, "n": 1}) for name in ("t", "u")))
    after = source.tick()
    commit(source, *(("update", name, 1, {"n": 2}) for name in ("t", "u")))
    on, chosen = live(source, settings), between(source, after)
    files = [Path(back(on, replace(chosen, tables=(f"d.{name}",))).files["redo"]) for name in ("t", "u")]
    ran(target, files[1])
    assert (target.value("SELECT n FROM d.t"), target.value("SELECT n FROM d.u")) == (1, 2)


def test_a_table_that_cannot_be_put_back_is_named_and_nothing_is_changed(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    names = ("dropped", "emptied", "retyped", "fired", "grown", "good", "gone", "renamed", "wider", "keyed")
    for name in names:
        source.create_table(name, [ID, TEXT])
    source.create_table("keyless", [column(1, "a")], pk_is_handle=False)
    source.genesis()
    after = source.tick()
    for name in names:
        put(source, name, 1)
    commit(source, ("insert", "keyless", {"a": 1}))
    until = Tso(source.tick())
    source.drop_table("dropped")
    source.truncate("emptied")
    raw = json.loads(json.dumps(source.tables["retyped"].info.raw))
    raw["cols"][1]["type"] |= {"Flen": 2}
    source.alter("retyped", 12, raw)
    source.rename_table("renamed", "called")
    source.add_column("wider", column(3, "c", default="7", origin_default="7"))
    raw = json.loads(json.dumps(source.tables["keyed"].info.raw))
    raw["pk_is_handle"] = False
    raw["cols"][1]["type"]["Flag"] = 1
    raw["index_info"] = [index(1, "PRIMARY", ("a", 1), unique=True, primary=True)]
    source.alter("keyed", 32, raw)
    on, now = live(source, settings), None
    target.execute("CREATE TRIGGER d.heard AFTER DELETE ON d.fired FOR EACH ROW SET @x = 1")
    target.execute("ALTER TABLE d.grown ADD more INT")
    target.execute("DROP TABLE d.gone")
    now = target_rows(target)
    chosen = Chosen(after=Tso(after), until=until)
    report = back(on, chosen, apply=False)
    said = called(on, "--from", str(after), "--until", str(until), "--into", "source").output
    assert "d.dropped  cannot be put back: DDL job" in said
    assert "--apply and --sql are refused" in said
    assert {name.partition(".")[2] for name in report.problems} == {
        "dropped", "emptied", "retyped", "fired", "grown", "gone", "keyless", "keyed",
    }  # fmt: skip
    said = {name.partition(".")[2]: why for name, why in report.problems.items()}
    assert "DROP_TABLE" in said["dropped"]
    assert "TRUNCATE_TABLE" in said["emptied"]
    assert "type of a" in said["retyped"]
    assert "heard" in said["fired"]
    assert "more" in said["grown"]
    assert "no key" in said["keyless"]
    assert "changed its key" in said["keyed"]
    with pytest.raises(RestoreError, match="8 tables cannot be put back"):
        back(on, chosen)
    assert target_rows(target) == now
    assert total(back(on, Chosen(after=Tso(after), until=until, tables=("d.good", "d.renamed", "d.wider")))) == (
        0,
        0,
        3,
        0,
        0,
    )
    with pytest.raises(UnknownTable):
        back(on, Chosen(after=Tso(after), until=until, tables=("d.none",)))


def test_a_range_that_the_archive_does_not_hold_is_refused_and_so_is_one_with_losses(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [ID, TEXT])
    genesis = source.genesis()
    put(source, "t", 1)
    source.cut(declared=(Declaration(
        node_id="pump-9", incarnation="i", from_ts=genesis, to_ts=Tso(source.ts), reason="gone", who="me",
    ),))  # fmt: skip
    on = live(source, settings, accept_losses=True)
    end = source.archive.end()
    with pytest.raises(TargetUnreachable, match="begins at"):
        back(on, Chosen(after=Tso(genesis - 1), until=end))
    with pytest.raises(TargetUnreachable, match="ends at"):
        back(on, Chosen(after=genesis, until=Tso(end + 1)))
    with pytest.raises(TargetUnreachable, match="ends at"):
        back(on, Chosen(after=Tso(end + 1), until=Tso(end + 2)))
    with pytest.raises(RestoreError, match="losses"):
        back(on, Chosen(after=genesis, until=end))
    assert target.query("SELECT id FROM d.t") == [(1,)]
    assert total(back(on, Chosen(after=genesis, until=end), accept_losses=True)) == (0, 0, 1, 0, 0)
    for chosen in (Chosen(), Chosen(after=genesis), Chosen(after=end, until=genesis), Chosen(txns=(end,), keys=("1",))):
        with pytest.raises(UsageError):
            back(on, chosen)


def test_a_partitioned_table_and_one_that_came_in_the_range_are_taken_back(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("p", [ID, TEXT], partition=partitions(source, ("p0", "10"), ("p1", "MAXVALUE"), type_=1))
    source.genesis()
    put(source, "p", 50)
    after = source.tick()
    source.create_table("t", [ID, TEXT])
    put(source, "t", 1)
    commit(source, ("update", "p", 50, {"a": b"y"}), ("insert", "p", {"id": 60, "a": b"x"}))
    on = live(source, settings)
    assert total(back(on, between(source, after))) == (0, 1, 2, 0, 0)
    assert target.query("SELECT id, a FROM d.p") == [(50, "x")]
    assert target.query("SELECT id FROM d.t") == []


def test_a_row_that_is_too_long_for_a_statement_is_named(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.create_table("t", [ID, column(2, "a", MysqlType.BLOB, flen=65535)])
    source.genesis()
    put(source, "t", 1)
    after = source.tick()
    commit(source, ("update", "t", 1, {"a": b"y" * 5000}))
    on = live(source, settings)
    monkeypatch.setattr(TargetConnection, "max_packet", 4000)
    with pytest.raises(LoadError, match=r"a row of d\.t \(id=1\) has \d+ bytes as a statement"):
        back(on, between(source, after))


def test_rows_that_somebody_holds_are_waited_for_and_nothing_of_the_batch_is_changed(
    source: MadeSource,
    settings: Settings,
    target: TargetConnection,
    three: tuple[int, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    after, _ = three
    on, now = live(source, settings), source.snapshot()
    monkeypatch.setattr("pumphouse.flashback.apply._ATTEMPTS", 1)
    monkeypatch.setitem(run.__globals__["FLASHBACK"].more, "innodb_lock_wait_timeout", "1")
    with target.transaction():
        target.execute("UPDATE d.t SET n = 45 WHERE id = 4")
        with pytest.raises(TargetBusy, match="holds rows"):
            back(on, between(source, after))
        target.execute("UPDATE d.t SET n = 44 WHERE id = 4")
    assert target_rows(target) == now


def test_a_target_of_loads_takes_it_under_the_names_that_its_load_gives_and_only_as_far_as_it_has_come(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [ID, TEXT])
    source.genesis()
    rules = [{"do": "route", "database": "d", "to": "there", "why": "a test"}]
    loads = settings.load.model_dump() | {"rules": rules}
    on = Settings.model_validate({**dict(settings), "load": loads})
    load.run(on)
    after = source.tick()
    put(source, "t", 1, 2)
    source.cut()
    chosen = between(source, after)
    with pytest.raises(UsageError, match="has not come to"):
        back(on, chosen, into="target")
    load.run(on)
    report = back(on, chosen, into="target")
    assert total(report) == (0, 0, 2, 0, 0)
    assert target_rows(target, "there")["t"].total() == 0
    commit(source, ("update", "t", 1, {"a": b"later"}))
    source.cut()
    load.run(on)
    assert target.query("SELECT id, a FROM there.t") == [(1, "later")]


def test_a_redo_file_goes_on_over_what_a_killed_run_left_and_another_file_is_left_alone(
    source: MadeSource, settings: Settings, target: TargetConnection, three: tuple[int, dict[str, Any]]
) -> None:
    after, before = three
    on, now = live(source, settings), source.snapshot()
    redo = Path(back(on, between(source, after), batch_rows=2).files["redo"])
    # The last of three transactions was never committed, and half of another is beside the file.
    target.execute("UPDATE d.t SET a = 'other', n = NULL WHERE id = 1")
    left = Path(f"{redo}.new")
    left.write_bytes(redo.read_bytes()[:100])
    back(on, between(source, after), batch_rows=2)
    assert (target_rows(target), left.exists()) == (before, False)
    assert redo.stat().st_mode & 0o77 == 0
    ran(target, redo)
    assert target_rows(target) == now
    other = Path("mine.sql")
    other.write_text("SELECT 1;\n")
    with pytest.raises(UsageError, match=r"mine\.sql is no file of this flashback"):
        back(on, between(source, after), files=Files(redo=other))
    assert (other.read_text(), target_rows(target)) == ("SELECT 1;\n", now)


def by_text(source: MadeSource, *keys: bytes) -> None:
    """A table whose keys are texts without case to the server, with rows of these; then the archive begins."""
    key = column(1, "id", MysqlType.VARCHAR, flag=1, collate="utf8mb4_general_ci")
    source.create_table(
        "t", [key, column(2, "n")], pk_is_handle=False,
        index_info=[index(1, "PRIMARY", ("id", 0), unique=True, primary=True)],
    )  # fmt: skip
    source.genesis()
    commit(source, *(("insert", "t", {"id": each, "n": at}) for at, each in enumerate(keys)))


@pytest.mark.mysql
@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize(
    "others",
    [
        "INSERT INTO d.t VALUES ({old}, 7)",  # its key is taken
        "UPDATE d.t SET n = 8 WHERE id = {new}",  # it is another row by now
        "DELETE FROM d.t WHERE id = {new}",
    ],
)
def test_a_row_that_moved_through_keys_goes_back_whole_or_not_at_all(
    source: MadeSource, settings: Settings, target: TargetConnection, others: str, *, clustered: bool, tmp_path: Path
) -> None:
    if clustered:
        source.create_table("t", [ID, column(3, "n")])
        source.genesis()
        commit(source, *(("insert", "t", {"id": n, "n": n}) for n in (1, 2)))
        old, way = 1, (501, 1001)
    else:
        by_text(source, b"1", b"2")
        old, way = 1, (b"501", b"1001")
    after, before = source.tick(), source.snapshot()
    for at, new in zip((old, 501 if clustered else 1), way, strict=True):
        commit(source, ("update", "t", at, {"id": new}))
    commit(source, ("update", "t", 2, {"n": 9}))
    on, now = live(source, settings), source.snapshot()
    path = tmp_path / "undo.sql"
    assert total(back(on, between(source, after), apply=False, files=Files(sql=path))) == (1, 1, 1, 0, 0)
    ran(target, path)
    assert target_rows(target) == before
    ran(target, tmp_path / "undo.redo.sql")
    assert target_rows(target) == now
    target.execute(others.format(old="'1'", new="'1001'"))
    gone = others.startswith("DELETE")
    rows = target.query("SELECT id, n FROM d.t WHERE id <> '2' ORDER BY id")
    if gone:  # that it was there says nobody but the archive: back it comes
        rows = [(old if clustered else "1", 1 if clustered else 0)]
    ran(target, path)
    assert gone or target.query("SELECT id, n FROM d.t WHERE id <> '2' ORDER BY id") == rows
    target.execute("UPDATE d.t SET n = 9 WHERE id = '2'")
    report = back(on, between(source, after), batch_rows=1)
    assert target.query("SELECT id, n FROM d.t WHERE id <> '2' ORDER BY id") == rows
    assert report.total.conflicts == (0 if gone else 2), report.conflicts
    assert gone or any("goes and comes together with" in why for why in whys(report).values())


def test_a_row_that_moved_and_was_deleted_by_a_later_transaction_does_not_come_again(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    by_text(source, b"1")
    after = source.tick()
    moved = commit(source, ("update", "t", 1, {"id": b"2"}))
    commit(source, ("delete", "t", 1))
    on = live(source, settings)
    report = back(on, Chosen(txns=(Tso(moved),)))
    assert (total(report), target.query("SELECT * FROM d.t")) == ((0, 0, 0, 1, 1), [])
    assert total(back(on, between(source, after))) == (1, 0, 0, 0, 0)


@pytest.mark.mysql
@pytest.mark.parametrize("apart", [False, True])
def test_keys_that_are_one_to_the_server_are_one_row(
    source: MadeSource, settings: Settings, target: TargetConnection, tmp_path: Path, *, apart: bool
) -> None:
    by_text(source, b"a", b"b")
    after = source.tick()
    if apart:
        commit(source, ("delete", "t", 1))
        commit(source, ("insert", "t", {"id": b"A", "n": 5}))
    else:
        commit(source, ("update", "t", 1, {"id": b"A", "n": 5}))
    on = live(source, settings)
    path, chosen = tmp_path / "undo.sql", between(source, after)

    def rows() -> list[Any]:
        return list(target.query("SELECT id, n FROM d.t ORDER BY id"))

    now, before = [("A", 5), ("b", 1)], [("a", 0), ("b", 1)]
    assert rows() == now
    assert total(back(on, chosen, apply=False, files=Files(sql=path))) == (1, 0, 1, 0, 0)
    ran(target, path)
    assert rows() == before
    ran(target, tmp_path / "undo.redo.sql")
    assert rows() == now
    done = back(on, chosen, batch_rows=1)
    assert (rows(), total(done), done.batches) == (before, (1, 0, 1, 0, 0), 1)
    assert total(back(on, chosen)) == (0, 0, 0, 2, 0)
    ran(target, done.files["redo"])
    assert rows() == now
    target.execute("UPDATE d.t SET n = 6 WHERE id = 'A'")
    ran(target, path)
    assert total(back(on, chosen)) == (0, 0, 0, 0, 2)
    assert rows() == [("A", 6), ("b", 1)]
    # One that only the server has.
    target.execute("DELETE FROM d.t WHERE id = 'A'")
    target.execute("INSERT INTO d.t VALUES ('Á', 7)")
    report = back(on, chosen)
    assert (rows(), report.total.put) == ([("Á", 7), ("b", 1)], 0)
    assert "equal to the server" in whys(report)["a"]


@pytest.mark.mysql
def test_a_file_of_statements_does_the_same_for_a_client_that_asks_between_them(
    source: MadeSource, settings: Settings, target: TargetConnection, tmp_path: Path
) -> None:
    source.create_table("t", [ID, TEXT], index_info=[index(1, "ua", ("a", 1), unique=True)])
    source.genesis()
    commit(source, ("insert", "t", {"id": 1, "a": b"x"}), ("insert", "t", {"id": 2, "a": b"y"}))
    after, before = source.tick(), source.snapshot()
    for id_, text in ((1, b"-"), (2, b"x"), (1, b"y")):
        commit(source, ("update", "t", id_, {"a": text}))
    on = live(source, settings)
    path = tmp_path / "undo.sql"
    back(on, between(source, after), apply=False, files=Files(sql=path))
    path.write_text(path.read_text().replace(";\n", ";\nSHOW WARNINGS;\n"))
    ran(target, path)
    assert target_rows(target) == before


@pytest.mark.mysql
@pytest.mark.parametrize("batch_rows", [1, 100])
@pytest.mark.parametrize("inserted", [False, True])
def test_the_redo_undoes_in_the_order_that_foreign_keys_take(
    source: MadeSource, settings: Settings, target: TargetConnection, batch_rows: int, *, inserted: bool
) -> None:
    for name in ("parent", "child"):
        source.create_table(name, [ID, column(2, "p")])
    source.genesis()
    rows = [("parent", 1, None), ("parent", 2, 1), ("parent", 3, 2), ("child", 1, 1), ("child", 2, 3)]
    after = source.tick()
    for name, id_, p in rows:
        commit(source, ("insert", name, {"id": id_, "p": p}))
    if not inserted:
        after = source.tick()
        for name, id_, _ in reversed(rows):
            commit(source, ("delete", name, id_))
    on, now = live(source, settings), source.snapshot()
    for name in ("child", "parent"):
        target.execute(f"ALTER TABLE d.{name} ADD FOREIGN KEY (p) REFERENCES d.parent (id)")
    done = back(on, between(source, after), batch_rows=batch_rows)
    assert total(done)[inserted * 2] + done.total.conflicts == 5
    # In batches of their own, children may come after their parents have been asked for.
    while done.total.conflicts:
        done = back(on, between(source, after), batch_rows=batch_rows)
    assert target_rows(target) != now
    ran(target, done.files["redo"])
    assert target_rows(target) == now


@pytest.mark.mysql
def test_a_row_that_refers_to_itself_goes_where_the_server_lets_it(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [ID, column(2, "p")])
    source.genesis()
    after = source.tick()
    commit(source, ("insert", "t", {"id": 1, "p": 1}))
    on, now = live(source, settings), source.snapshot()
    target.execute("ALTER TABLE d.t ADD FOREIGN KEY (p) REFERENCES d.t (id) ON DELETE CASCADE")
    target.execute("INSERT INTO d.t VALUES (2, 1)")
    assert whys(back(on, between(source, after))) == {"1": "other rows refer to it"}
    target.execute("DELETE FROM d.t WHERE id = 2")
    done = back(on, between(source, after))
    assert (total(done), target.query("SELECT * FROM d.t")) == ((0, 0, 1, 0, 0), []), done.conflicts
    ran(target, done.files["redo"])
    assert target_rows(target) == now


@pytest.mark.mysql
def test_foreign_keys_that_cannot_be_seen_or_kept_from_following_are_refused(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    computed = column(3, "g", generated_expr_string="`p` + 1", generated_stored=True)
    source.create_table("t", [ID, column(2, "p"), computed], index_info=[index(1, "g", ("g", 2), unique=True)])
    source.genesis()
    commit(source, ("insert", "t", {"id": 1, "p": 7, "g": 8}))
    after = source.tick()
    commit(source, ("update", "t", 1, {"p": 9, "g": 10}))
    on = live(source, settings)
    mariadb.new_user(target.execute, "'fb'@'%'")
    target.execute("GRANT SELECT, INSERT, UPDATE, DELETE, TRIGGER ON d.* TO 'fb'@'%'")
    user = on.source.model_copy(update={"user": "fb", "password": SecretStr("pw")})
    theirs = on.model_copy(update={"source": user})
    with pytest.raises(RestoreError, match=r"user fb does not see .* grant it SELECT ON \*\.\*"):
        back(theirs, between(source, after))
    target.execute("GRANT SELECT ON *.* TO 'fb'@'%'")
    assert total(back(theirs, between(source, after), apply=False)) == (0, 1, 0, 0, 0)
    target.execute("CREATE DATABASE audit")
    try:
        target.execute(
            "CREATE TABLE audit.child (p INT, FOREIGN KEY (p) REFERENCES d.t (g) ON DELETE CASCADE ON UPDATE CASCADE)"
        )
        with pytest.raises(RestoreError, match=r"the foreign key of audit\.child refers to a column of it"):
            back(on, between(source, after))
    finally:
        target.execute("DROP DATABASE audit")


@pytest.mark.mysql
def test_names_texts_and_columns_of_the_servers_own_are_no_obstacle(
    source: MadeSource, settings: Settings, target: TargetConnection, tmp_path: Path
) -> None:
    name, said = "a`b; -- '\"", b"'; DROP TABLE t; -- \\' \0 \r\n \x1a \"`"
    text = {"collate": "utf8mb4_general_ci"}
    source.create_table(
        name,
        [
            column(1, "i`d", MysqlType.VARCHAR, flag=1, **text), column(2, "t", MysqlType.VARCHAR, **text),
            column(3, "at", MysqlType.TIMESTAMP, flen=19), column(4, "n"),
            column(5, "more", generated_expr_string="`n` + 1", generated_stored=True),
            column(6, "also", generated_expr_string="`n` + 2"),
        ],
        pk_is_handle=False,
        index_info=[index(1, "PRIMARY", ("i`d", 0), unique=True, primary=True)],
    )  # fmt: skip
    source.genesis()
    at = {"at": "2026-01-02 03:04:05"}
    commit(
        source, *(("insert", name, {"i`d": each, "t": said, "n": 1, "more": 2, **at}) for each in (b"1", said, b"x"))
    )
    after = source.tick()
    commit(source, ("update", name, 1, {"n": 2, "more": 3}), ("delete", name, 2), ("update", name, 3, {"t": b"a"}))
    on = live(source, settings)
    there = "d.`a``b; -- '\"`"
    target.execute(f"ALTER TABLE {there} MODIFY at TIMESTAMP NULL ON UPDATE CURRENT_TIMESTAMP")
    assert {extra.lower() for (extra,) in target.query(
        "SELECT extra FROM information_schema.columns WHERE table_schema = 'd' AND column_name IN ('more', 'also')"
    )} == {"stored generated", "virtual generated"}  # fmt: skip
    # To the server it is the same text, and it is another one.
    target.execute(f"UPDATE {there} SET t = 'A', at = at WHERE `i``d` = 'x'")
    path = tmp_path / "undo.sql"
    back(on, between(source, after), apply=False, files=Files(sql=path))
    report = back(on, between(source, after))
    assert total(report) == (1, 1, 0, 0, 1), report.conflicts
    rows = target.query(f"SELECT `i``d`, t, CAST(at AS CHAR), n, more, also FROM {there} WHERE n = 1 ORDER BY 1")
    whole = [(each, said.decode(), "2026-01-02 03:04:05", 1, 2, 3) for each in (said.decode(), "1")]
    assert [row for row in rows if row[1] != "A"] == whole
    ran(target, report.files["redo"])
    assert target.query(f"SELECT `i``d`, n FROM {there} ORDER BY 1") == [("1", 2), ("x", 1)]
    ran(target, path)
    assert (
        target.query(f"SELECT `i``d`, t, CAST(at AS CHAR), n, more, also FROM {there} WHERE t <> 'A' ORDER BY 1")
        == whole
    )
    target.execute(f"ALTER TABLE {there} MODIFY more INT")
    with pytest.raises(RestoreError, match="generated column more is a plain one there"):
        back(on, between(source, after))


def called(settings: Settings, *words: str) -> Result:
    """The command line with these settings."""
    Path("pumphouse.toml").write_text(
        f'cluster = {{ url = "{settings.cluster.url}" }}\narchive = {{ root = "{settings.archive.root}" }}\n'
        f"[source]\n{mariadb.as_lines(settings.target)}"
    )
    return CliRunner().invoke(cli, ["flashback", *words])


def test_the_command_prints_a_plan_on_a_screen_applies_it_and_says_how_to_undo_it(
    source: MadeSource, settings: Settings, target: TargetConnection, three: tuple[int, dict[str, Any]]
) -> None:
    after, before = three
    live(source, settings)
    target.execute("UPDATE d.t SET a = 'mine' WHERE id = 4")
    words = ["--from", str(after), "--until", "latest", "--table", "d.*", "--into", "source"]
    plan = called(settings, *words)
    assert plan.exit_code == 0, plan.output
    assert "d.t  2 come again, 1 get old values, 1 go, 1 stay" in plan.output
    assert "d.t id=4: somebody changed it since" in plan.output
    assert "now: a=mine" in plan.output
    assert "nothing was changed: --apply puts 4 rows back in 1 transaction" in plan.output
    assert len(plan.output.splitlines()) < 20
    done = called(settings, *words, "--apply", "--redo", "again.sql", "--json")
    assert done.exit_code == 3, done.output
    said = json.loads(done.stdout)
    assert (said["total"]["conflicts"], said["files"], said["until_ts"]) == (
        1,
        {"redo": "again.sql"},
        source.archive.end(),
    )
    assert [each["changes"] for each in said["transactions"]] == [2, 3]
    target.execute("UPDATE d.t SET a = 'x4', n = 4 WHERE id = 4")
    assert target_rows(target) == before
    written = called(settings, *words, "--sql", "undo.sql")
    assert "written" not in written.output, "nothing is left to do"
    assert not Path("undo.sql").exists()
    for wrong in (["--apply", "--sql", "x.sql"], ["--redo", "x.sql"]):
        assert isinstance(called(settings, *words, *wrong).exception, UsageError)
