"""Replay of a stream of transactions into a real MariaDB: rows, order, kills, DDL, bounds."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from pumphouse.errors import DdlRefused, LoadError, RowRejected, TargetBusy, TargetUnavailable, UsageError
from pumphouse.loader.target import TargetConnection
from pumphouse.replay import Ddl, Dml, Replay, Txn, safemode
from pumphouse.settings import TargetSettings
from tests.support.waiting import eventually

ACCOUNTS = (
    "CREATE TABLE d.accounts (id INT PRIMARY KEY, mail VARCHAR(40) COLLATE utf8mb4_general_ci NOT NULL UNIQUE,"
    " nick VARCHAR(20) COLLATE utf8mb4_bin NULL UNIQUE, amount INT NOT NULL)"
)
LINES = "CREATE TABLE d.lines (n INT NULL, word VARCHAR(20) NULL)"


@pytest.fixture(autouse=True)
def tables(target: TargetConnection) -> None:
    """Two tables on an empty target."""
    target.execute("CREATE DATABASE d CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
    target.execute(ACCOUNTS)
    target.execute(LINES)


class Source:
    """Rows of the source, and the transactions that made them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.accounts: dict[int, dict[str, Any]] = {}
        self.lines: Counter[tuple[int | None, str | None]] = Counter()
        self.ts = 100
        self.next = 1

    def txn(self, changes: int, *, lines: bool = True) -> Txn:
        """One transaction; values of unique keys wander between rows, also by letters of other case."""
        self.ts += 1
        dmls: list[Dml] = []
        while len(dmls) < changes:
            dmls += self._line() if lines and self.random.random() < 0.15 else self._account()
        return Txn(dmls=dmls, commit_ts=self.ts)

    def _row(self, id_: int) -> dict[str, Any]:
        pick = self.random
        used = {row["mail"].lower() for row in self.accounts.values() if row["id"] != id_}
        nicks = {row["nick"] for row in self.accounts.values() if row["id"] != id_}
        mail = next(
            m for m in (f"{pick.choice('MmNn')}{pick.randrange(60)}@x" for _ in range(1000)) if m.lower() not in used
        )
        nick = pick.choice([None, *({f"n{n}" for n in range(40)} - nicks)])
        return {"id": id_, "mail": mail, "nick": nick, "amount": pick.randrange(1000)}

    def _account(self) -> list[Dml]:
        pick, what = self.random, self.random.random()
        if len(self.accounts) < 5 or (what < 0.3 and len(self.accounts) < 25):
            id_ = self.next = self.next + 1
            self.accounts[id_] = self._row(id_)
            return [Dml(kind="insert", db="d", table="accounts", values=self.accounts[id_])]
        old = self.accounts[pick.choice(list(self.accounts))]
        if what < 0.5:
            del self.accounts[old["id"]]
            return [Dml(kind="delete", db="d", table="accounts", values=old)]
        if what < 0.65 and (other := self.accounts[pick.choice(list(self.accounts))]) is not old:
            return self._swap(old, other)
        new = self._row(old["id"])
        if pick.random() < 0.2:  # its key moves too
            new["id"] = self.next = self.next + 1
        del self.accounts[old["id"]]
        self.accounts[new["id"]] = new
        return [Dml(kind="update", db="d", table="accounts", values=new, old=old)]

    def _swap(self, one: dict[str, Any], other: dict[str, Any]) -> list[Dml]:
        """Two rows change their mails, by way of a third value."""
        between = {**one, "mail": "between@x"}
        steps = [(one, between), (other, {**other, "mail": one["mail"]}), (between, {**one, "mail": other["mail"]})]
        for _, new in steps:
            self.accounts[new["id"]] = new
        return [Dml(kind="update", db="d", table="accounts", values=new, old=old) for old, new in steps]

    def _line(self) -> list[Dml]:
        pick = self.random
        row = (pick.choice([None, 1, 2]), pick.choice([None, "a", "tab\there", "b\\s"]))
        kind = "delete" if self.lines[row] and pick.random() < 0.5 else "insert"
        self.lines[row] += 1 if kind == "insert" else -1
        return [Dml(kind=kind, db="d", table="lines", values={"n": row[0], "word": row[1]})]  # type: ignore[arg-type]

    def rows(self) -> tuple[list[tuple[Any, ...]], Counter[tuple[Any, ...]]]:
        return sorted(tuple(row.values()) for row in self.accounts.values()), +self.lines


def rows_of(target: TargetConnection) -> tuple[list[tuple[Any, ...]], Counter[tuple[Any, ...]]]:
    return (
        sorted(target.query("SELECT id, mail, nick, amount FROM d.accounts")),
        Counter(target.query("SELECT n, word FROM d.lines")),
    )


@contextmanager
def running(server: TargetSettings, **how: Any) -> Iterator[tuple[Replay, list[BaseException]]]:
    """A replay whose `run` is under way in a thread; its end is waited for, its error kept."""
    errors: list[BaseException] = []
    with Replay(server, **{"connections": 3, "batch_rows": 40, **how}) as replay:

        def run() -> None:
            try:
                replay.run()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield replay, errors
        finally:
            replay.close()
            thread.join(60)
            assert not thread.is_alive()


def replayed(server: TargetSettings, txns: Sequence[Txn], **how: Any) -> list[Txn]:
    """Replay all; what was told."""
    with running(server, **how) as (replay, errors):
        for txn in txns:
            replay.input.put(txn)
        replay.close()
        told = list(replay.successes)
    if errors:
        raise errors[0]
    return told


def account(id_: int, mail: str, nick: str | None = None, amount: int = 0) -> dict[str, Any]:
    return {"id": id_, "mail": mail, "nick": nick, "amount": amount}


def insert(*row: Any, ts: int = 0) -> Txn:
    return Txn(dmls=[Dml(kind="insert", db="d", table="accounts", values=account(*row))], commit_ts=ts)


@pytest.mark.row("L3", "L5", "L8", "L2")
@pytest.mark.parametrize("atomic", [False, True], ids=["groups", "atomic"])
@pytest.mark.parametrize("safe", [True, False], ids=["safe", "strict"])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_target_has_the_rows_of_the_source_and_is_told_in_order(
    server: TargetSettings, target: TargetConnection, seed: int, safe: bool, atomic: bool
) -> None:
    source = Source(seed)
    txns = [source.txn(source.random.randrange(1, 8)) for _ in range(250)]
    with running(server, atomic=atomic) as (replay, errors):
        replay.safe_mode = safe
        for txn in txns:
            replay.input.put(txn)
        replay.close()
        assert list(replay.successes) == txns
    assert errors == []
    assert rows_of(target) == source.rows()


@pytest.mark.row("L2", "L8")
def test_a_killed_connection_stops_the_replay_loudly_and_the_next_one_goes_on_in_safe_mode(
    server: TargetSettings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safemode, "FIRST_S", 0)
    source = Source(3)
    txns = [source.txn(5) for _ in range(400)]
    told: list[Txn] = []
    with running(server) as (replay, errors):
        reader = threading.Thread(target=lambda: told.extend(replay.successes))
        reader.start()
        with pytest.raises(LoadError, match="the replay has ended"):
            for at, txn in enumerate(txns):
                replay.input.put(txn)
                if at == 150:
                    eventually(lambda: told)
                    kill_workers(target)
            eventually(lambda: errors)
            replay.input.put(txns[0])
        reader.join(60)
    assert isinstance(errors[0], TargetUnavailable)
    assert 0 < len(told) < len(txns)
    assert told == txns[: len(told)], "a prefix, in the order of the input"
    with running(server) as (replay, errors):
        assert replay.position == told[-1].commit_ts
        assert replay.safe_mode, "the run before did not end by a close"
        for txn in txns:  # all of it again: what is there already is told at once
            replay.input.put(txn)
        replay.close()
        assert list(replay.successes) == txns
    assert errors == []
    assert rows_of(target) == source.rows()
    with running(server) as (replay, _):
        assert not replay.safe_mode, "this one did"


def kill_workers(target: TargetConnection) -> None:
    """Kill every other session of ours, whatever it does; they open and end as we look."""
    for id_, _ in target.query(
        "SELECT id, user FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND user = CURRENT_USER()"
        " OR user = 'root' AND id <> CONNECTION_ID()"
    ):
        try:
            target.execute(f"KILL {id_}")
        except LoadError:
            continue


@pytest.mark.row("L2")
def test_what_comes_twice_changes_nothing_in_safe_mode_and_stops_without_it(
    server: TargetSettings, target: TargetConnection
) -> None:
    first = [
        insert(1, "a"),
        insert(2, "b"),
        Txn(dmls=[Dml(kind="delete", db="d", table="accounts", values=account(2, "b"))]),
    ]
    before = account(1, "a")
    first.append(Txn(dmls=[Dml(kind="update", db="d", table="accounts", values=account(9, "a", None, 5), old=before)]))
    for _ in range(2):
        replayed(server, first)
        assert target.query("SELECT id, amount FROM d.accounts") == [(9, 5)]
    for again in (insert(9, "z"), insert(10, "A"), *first[2:]):
        with running(server) as (replay, errors):
            replay.safe_mode = False
            replay.input.put(again)
        assert isinstance(errors[0], RowRejected), again
        assert target.query("SELECT id, amount FROM d.accounts") == [(9, 5)]


@pytest.mark.row("L3")
def test_keys_with_a_null_do_not_collide_and_letters_of_other_case_do(
    server: TargetSettings, target: TargetConnection
) -> None:
    gone = Txn(dmls=[Dml(kind="delete", db="d", table="accounts", values=account(1, "Same@x"))])
    txns = [insert(n, f"m{n}") for n in range(10, 30)]  # all with nick NULL
    # The last one goes behind all of the first: before one of them it would be replaced.
    txns += [insert(1, "Same@x"), gone] * 30 + [insert(2, "sAME@x")]
    replayed(server, txns, connections=4, batch_rows=1000, idle_s=60)
    assert target.value("SELECT COUNT(*) FROM d.accounts WHERE nick IS NULL") == 21
    assert target.query("SELECT id, mail FROM d.accounts WHERE id < 10") == [(2, "sAME@x")]


@pytest.mark.row("L3", "L6")
def test_rows_without_a_key_are_a_multiset_and_come_once(server: TargetSettings, target: TargetConnection) -> None:
    def line(kind: Any, ts: int, *words: str | None) -> Txn:
        return Txn(
            dmls=[Dml(kind=kind, db="d", table="lines", values={"n": None, "word": w}) for w in words], commit_ts=ts
        )

    txns = [line("insert", 1, "a", "a", None), line("insert", 2, "a"), line("delete", 3, "a", None)]
    for _ in range(2):
        assert replayed(server, txns) == txns
        assert Counter(target.query("SELECT word FROM d.lines")) == {("a",): 2}
    with pytest.raises(RowRejected, match=r"d\.lines lacks 1 of the rows to delete"):
        replayed(server, [line("delete", 4, "never")])
    with pytest.raises(UsageError, match="no commit_ts"):
        replayed(server, [line("insert", 0, "a")])


@pytest.mark.row("L3")
def test_atomic_lets_no_reader_see_a_part_of_a_transaction(server: TargetSettings, target: TargetConnection) -> None:
    amounts = dict.fromkeys(range(40), 100)
    pick, txns = random.Random(5), [insert(n, f"m{n}", None, 100) for n in amounts]
    for _ in range(600):
        one, other = pick.sample(range(40), 2)
        dmls = []
        for id_, more in ((one, -7), (other, 7)):
            old, new = (account(id_, f"m{id_}", None, amounts[id_] + plus) for plus in (0, more))
            amounts[id_] += more
            dmls.append(Dml(kind="update", db="d", table="accounts", values=new, old=old))
        txns.append(Txn(dmls=dmls))
    seen: set[int] = set()
    with running(server, atomic=True, connections=4, batch_rows=20) as (replay, errors):
        for txn in txns[:40]:
            replay.input.put(txn)
        eventually(lambda: target.value("SELECT COUNT(*) FROM d.accounts") == 40)
        for txn in txns[40:]:
            replay.input.put(txn)
        replay.close()
        told = threading.Thread(target=lambda: list(replay.successes))
        told.start()
        while told.is_alive():
            seen.add(int(target.value("SELECT SUM(amount) FROM d.accounts")))
    assert errors == []
    assert seen == {4000}
    assert dict(target.query("SELECT id, amount FROM d.accounts")) == amounts


@pytest.mark.row("L5")
def test_an_idle_input_is_flushed_without_a_close(server: TargetSettings, target: TargetConnection) -> None:
    with running(server, batch_rows=10_000, batch_s=3600) as (replay, errors):
        for n in range(3):
            txn = insert(n, f"m{n}")
            replay.input.put(txn)
            assert next(replay.successes) is txn
            assert target.value("SELECT COUNT(*) FROM d.accounts") == n + 1
    assert errors == []


@pytest.mark.row("L5", "L8")
def test_the_input_stops_while_the_target_does_not_take_what_it_has(
    server: TargetSettings, target: TargetConnection
) -> None:
    registry = CollectorRegistry()
    with running(server, input_bytes=50_000, batch_rows=10, registry=registry) as (replay, errors):
        target.execute("BEGIN")
        target.execute("SELECT * FROM d.accounts WHERE id >= 0 FOR UPDATE")
        target.execute("INSERT INTO d.accounts VALUES (5, 'held', NULL, 0)")
        put = 0
        with pytest.raises(TimeoutError):
            while put < 10_000:
                replay.input.put(insert(put, f"m{put}"), timeout=1)
                put += 1
        queued = registry.get_sample_value("pumphouse_replay_queued_bytes") or 0
        assert 40_000 < queued <= 50_000
        assert registry.get_sample_value("pumphouse_replay_queued_rows") == registry.get_sample_value(
            "pumphouse_replay_queued_transactions"
        )
        target.execute("ROLLBACK")
        for n in range(put, put + 100):
            replay.input.put(insert(n, f"m{n}"), timeout=60)
    assert errors == []
    assert target.value("SELECT COUNT(*) FROM d.accounts") == put + 100
    assert registry.get_sample_value("pumphouse_replay_input_rows_total") == put + 100


@pytest.mark.row("L5", "L6")
def test_a_ddl_waits_for_what_is_before_it_and_what_is_behind_it_has_the_new_columns(
    server: TargetSettings, target: TargetConnection
) -> None:
    ddl = Txn(
        ddl=Ddl("d", "ALTER TABLE accounts DROP INDEX mail, ADD COLUMN city VARCHAR(20) NOT NULL DEFAULT 'Ulm'"),
        commit_ts=50,
    )
    new = {**account(100, "m1", None, 1), "city": "Bonn"}
    behind = Txn(dmls=[Dml(kind="insert", db="d", table="accounts", values=new)], commit_ts=51)
    txns = [*(insert(n, f"m{n}", ts=1 + n) for n in range(30)), ddl, behind]
    assert replayed(server, txns, batch_rows=1000, idle_s=60) == txns
    assert target.query("SELECT city, COUNT(*) FROM d.accounts GROUP BY 1 ORDER BY 1") == [("Bonn", 1), ("Ulm", 30)]
    late = Txn(ddl=Ddl("d", "ALTER TABLE accounts ADD COLUMN city INT"), commit_ts=60)
    assert replayed(server, [late]) == [late], "in safe mode it may have run before"
    with running(server) as (replay, errors):
        replay.input.put(Txn(ddl=Ddl("d", "ALTER TABLE nothing ADD COLUMN city INT"), commit_ts=61))
        replay.close()
        assert list(replay.successes) == []
    assert isinstance(errors[0], DdlRefused)


@pytest.mark.row("L8")
def test_values_of_every_kind_arrive_and_what_does_not_fit_is_refused_by_name(
    server: TargetSettings, target: TargetConnection
) -> None:
    target.execute(
        "CREATE TABLE d.kinds (id VARCHAR(20) PRIMARY KEY, bl LONGBLOB, f DOUBLE, e ENUM('a','2'), s SET('x','y'), bi BIT(9),"
        " y YEAR, dt DATETIME(3), tm TIME, de DECIMAL(20,4), j JSON, g INT AS (LENGTH(bl)) STORED)"
    )
    row = {
        "id": "a\tb\\c\n", "bl": bytes(range(256)), "f": 1e-7, "e": 2, "s": 3, "bi": 257, "y": 1999, "dt": "2026-01-02 03:04:05.678",
        "tm": "-12:00:01", "de": "-12.3400", "j": '{"a": "\\"é"}',
    }  # fmt: skip

    def put(**more: Any) -> Txn:
        return Txn(dmls=[Dml(kind="insert", db="d", table="kinds", values=row | more)])

    replayed(server, [put(), put(id="zero", e=0), put(id="A"), put(id="a")])
    assert target.query("SELECT bl, f, e, s+0, bi+0, CAST(dt AS CHAR), CAST(tm AS CHAR), g FROM d.kinds WHERE id = %s", (row["id"],)) == [
        (row["bl"], 1e-7, "2", 3, 257, row["dt"], row["tm"], 256)
    ]  # fmt: skip
    assert target.query("SELECT e, e + 0 FROM d.kinds WHERE id = 'zero'") == [("", 0)]
    delete = Txn(dmls=[Dml(kind="delete", db="d", table="kinds", values={**row, "id": i}) for i in ("a", row["id"])])
    replayed(server, [delete])
    assert target.query("SELECT id FROM d.kinds ORDER BY id") == [("A",), ("zero",)]
    for wrong, message in (
        ({"de": "1.23456"}, "Data truncated"), ({"dt": "2026-02-30 00:00:00x"}, "dt"), ({"e": "a"}, "takes its number"),
        ({"more": 1}, "has besides more"),
    ):  # fmt: skip
        with pytest.raises((RowRejected, UsageError), match=message):
            replayed(server, [put(**wrong)])
    with pytest.raises(LoadError, match=r"has no table d\.none"):
        replayed(server, [Txn(dmls=[Dml(kind="insert", db="d", table="none", values={})])])


@pytest.mark.row("L8")
def test_what_the_target_refuses_is_told_to_nobody(server: TargetSettings, target: TargetConnection) -> None:
    target.execute("CREATE TABLE d.small (id INT PRIMARY KEY, n TINYINT)")
    with running(server) as (replay, errors):
        replay.input.put(Txn(dmls=[Dml(kind="insert", db="d", table="small", values={"id": 1, "n": 1000})]))
        replay.close()
        assert list(replay.successes) == []
    assert isinstance(errors[0], RowRejected)


@pytest.mark.row("L8")
def test_two_replays_do_not_write_to_one_target(server: TargetSettings, target: TargetConnection) -> None:
    with running(server) as (replay, errors):
        replay.input.put(insert(1, "a"))
        assert next(replay.successes).rows == 1
        with pytest.raises(TargetBusy, match="replay-"):
            Replay(server)
        with Replay(server, take_over=True) as other:
            with pytest.raises(LoadError):
                replay.input.put(insert(2, "b"))
                eventually(lambda: errors)
                replay.input.put(insert(3, "c"))
            assert other.safe_mode
    assert errors
    assert target.query("SELECT id FROM d.accounts") == [(1,)]


@pytest.mark.row("L8", "O3")
def test_the_example_of_the_page_runs_and_goes_on_behind_what_it_committed(
    server: TargetSettings, target: TargetConnection
) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "replay.md").read_text()
    (program,) = re.findall(r"^```python file=replay.py\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    env = os.environ | {
        "TARGET_HOST": server.host, "TARGET_PORT": str(server.port), "TARGET_PASSWORD": server.password.get_secret_value(),
    }  # fmt: skip
    for told in ("".join(f"committed {n}\n" for n in range(1, 6)), ""):
        done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, told), done.stderr
        assert target.query("SELECT * FROM shop.orders") == [(1, "tea", 1)]
