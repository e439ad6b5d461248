"""Histories of plain SQL on a captured server, whose parts are killed: what is loaded and restored is what its SELECT said.

Each history has its own seed, databases and sessions, and one stack serves many (`tests.support.capturedhistory`). Behind
each one the target equals the source, and a restore to a GTID of it is what the source's SELECT said there.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from pumphouse.errors import BinlogError
from pumphouse.loader.apart import server_name
from pumphouse.runs import restore
from tests.stack.local import CAPTURE
from tests.support import mariadb
from tests.support.campaignstack import CampaignStack, Refused
from tests.support.capturedhistory import History
from tests.support.kind import KINDS, MISSING_MYSQL, chosen, is_mysql

pytestmark = [pytest.mark.timeout(1800), pytest.mark.row("Q1", "Q2", "Q3", "Q4", "R2", "L3")]
PARTS, HISTORIES = 10, 25  # for each kind of source, in `make campaign`
_FEW, _MANY = 9, 18  # transactions of a session in one history
_PREPARED = {"xa commit", "xa rollback", "xa commit by another"}
# What must have succeeded in a part of a campaign, or it shows less than it says.
_MUST = {
    "insert", "update", "update of a key", "delete", "replace", "on duplicate key", "insert select", "multi update",
    "load data", "with triggers", "procedure", "child of a foreign key", "rollback to savepoint", "rollback",
    "from a temporary table", "xa one phase", "xa commit", "xa rollback", "xa commit by another", "ddl: create table",
    "ddl: create select", "ddl: add column", "ddl: rename swap", "ddl: truncate",
    "ddl: convert charset", "ddl: drop table",
}  # fmt: skip


class Campaign:
    """Histories on one stack, one after the other; ``done`` is what really happened."""

    def __init__(self, stack: CampaignStack, *, alike: bool, heir: bool, turns: int) -> None:
        """``turns``: transactions of each session; with few, less happens to the parts, too."""
        self.stack, self.done = stack, Counter[str]()
        self.refused: list[str] = []
        self._alike, self._heir, self._turns = alike, heir, turns

    def history(self, seed: int) -> None:
        """One of them."""
        rng, stack = random.Random(f"campaign {seed}"), self.stack
        how = {"alike": self._alike, "replicated": self._heir}
        history = History(stack.open_source, seed, turns=self._turns, ddls=2 * self._turns // 3, **how)
        try:
            history.begin()
            history.start()
            self._meanwhile(history, rng)
            history.end(within_s=1)
            if rng.random() < 0.7:
                history.end_prepared()
            history.look(stack.dsn("source"), still=True)
            stack.catch_up()
            stack.snapshot()
            self._equal()
            self._restored(history, rng)
            if rng.random() < 0.05:
                self._anew(history)
        except Refused as error:
            self.refused.append(f"{seed}: {error}")
            print(self.refused[-1], flush=True)
            self._begin_anew(history)
        except BaseException:
            print(*history.ddls, sep="\n")
            print(*(line[:300] for line in stack.supervisor.tail(CAPTURE, 15).splitlines()), sep="\n")
            raise
        finally:
            history.stop()
            self.done += history.done
        history.end_prepared()
        history.drop()

    def _meanwhile(self, history: History, rng: random.Random) -> None:
        """Looks, and whatever happens to the parts."""
        kinds = [None] * 5 + ["capture", "capture", "capture", "shadow", "pump", "source", "snapshot", "dump"]
        kinds += ["failover"] * (3 * self._heir) + ["journal"] * (rng.random() < 0.4)
        most = 2 if self._turns > _FEW else 1
        troubles = [rng.choice(kinds) for _ in range(rng.choice((1, 1, most)))]
        acts: list[Callable[[], object]] = [lambda: history.look(self.stack.dsn("source"))] * most
        acts += [self._trouble(each, history, rng) for each in troubles if each]
        rng.shuffle(acts)
        for act in acts:
            time.sleep(rng.random() * 0.5)
            act()

    def _trouble(self, kind: str, history: History, rng: random.Random) -> Callable[[], object]:
        if kind == "dump":
            return lambda: self._dump(history)
        return lambda: self.stack.trouble(kind, history, rng)

    def _dump(self, history: History) -> None:
        """Amid writers; where an XA transaction that nobody has ended holds it, that is ended."""
        told: list[str] = []

        def take() -> None:
            done = self.stack.pumphouse("archive", "dump")
            told.append(done.stderr if done.returncode else "")

        thread, began = threading.Thread(target=take), time.monotonic()
        thread.start()
        while thread.is_alive():
            thread.join(0.3)
            if time.monotonic() - began > 3:
                history.stop()
            if not history.runs:
                history.end_prepared()
                if not self.stack.supervisor.alive(CAPTURE):
                    self.stack.catch_up()
        assert told == [""], told
        self.done["dump amid writers"] += 1

    def _equal(self) -> None:
        """The target is loaded, and equals the source."""
        self.stack.load()
        self._require_equal()
        self.done["loads"] += 1

    def _restored(self, history: History, rng: random.Random) -> None:
        """A moment that was kept."""
        assert history.moments
        moment = rng.choice(history.moments)
        wrong = self.stack.restored_differs(moment.gtid, moment.image, history.all_databases)
        assert not wrong, f"{moment.gtid}, looked at {moment.how}\n" + "\n".join(wrong)
        self.done[f"restores of a moment looked at {moment.how}"] += 1

    def _anew(self, history: History) -> None:
        """A DDL of which no binlog says what it did: a load stops there, by name, until a dump begins behind it."""
        said = history.anew()
        if said is None:
            return
        self.stack.catch_up()
        self.stack.snapshot()
        with pytest.raises(BinlogError, match=r"h\d+_[abc]\."):
            self.stack.load()
        history.end_prepared()  # a dump waits for whoever wrote to a table without a key
        self._behind_a_dump()
        self.done[f"anew: {said[0]}"] += 1

    def dump(self) -> None:
        """A base of the archive."""
        done = self.stack.pumphouse("archive", "dump")
        assert done.returncode == 0, done.stderr

    def _behind_a_dump(self) -> None:
        self.dump()
        self.stack.snapshot()
        settings = self.stack.read_settings
        restore.run(settings, into="target", replace=server_name(settings.target), dry_run=False)
        self._require_equal()

    def _require_equal(self) -> None:
        found = self.stack.compared().differences
        told = "\n".join(f"{each.table}: {each.kind} {each.side}: {each.detail}" for each in found)
        assert not found, told

    def _begin_anew(self, history: History) -> None:
        """Behind what cannot be followed, as the capture says: anew, a dump, and the target is built again."""
        history.stop()
        history.join()
        history.end_prepared()
        history.drop()
        self.stack.start_capture("--anew")
        self.stack.catch_up()
        self._behind_a_dump()


def play(
    first: int,
    count: int,
    *,
    into: str,
    heir: bool,
    turns: int,
    record_property: Callable[[str, object], None],
    **settings: object,
) -> Counter[str]:
    """So many histories from a seed on."""
    with mariadb.directory_in_memory() as directory:
        stack = CampaignStack(directory, into=into, heir=heir, **settings)
        try:
            stack.start_stores(s3=False)
            stack.start_pumps()
            stack.start_capture()
            stack.run(
                "CREATE DATABASE stays", "CREATE TABLE stays.t (id INT PRIMARY KEY)", "INSERT INTO stays.t VALUES (1)"
            )
            stack.begin()
            campaign = Campaign(stack, alike=into == chosen(), heir=heir, turns=turns)
            for seed in range(first, first + count):
                if seed % 5 == 0:
                    stack.catch_up()  # the capture of a shadow that was killed may have ended just now
                    campaign.dump()  # restores go on from there
                try:
                    began = time.monotonic()
                    campaign.history(seed)
                    print(f"{seed} in {time.monotonic() - began:.1f} s", flush=True)
                except BaseException as error:
                    error.add_note(f"PUMPHOUSE_SEED={seed} {chosen()} into {into}")
                    raise
        finally:
            stack.stop(timeout_s=0)
    done = campaign.done + stack.done
    record_property("rounds", count)
    record_property("refused", campaign.refused)
    for name, times in sorted(done.items()):
        record_property(name, times)
    print(*(f"{times:6} {name}" for name, times in sorted(done.items())), *campaign.refused, sep="\n")
    assert len(campaign.refused) <= count // 20, campaign.refused
    return done


def _into(other: bool) -> str:
    kind = KINDS[KINDS.index(chosen()) ^ other]
    if kind == "mysql" and MISSING_MYSQL:
        pytest.skip(MISSING_MYSQL)  # an optional tier: it says what is missing, and `make mysql` makes one
    return kind


@pytest.mark.mysql
def test_some_histories(record_property: Callable[[str, object], None]) -> None:
    """Twenty of both kinds together."""
    seed, count = int(os.environ.get("PUMPHOUSE_SEED", "1")), 8 if is_mysql() else 12
    play(seed, count, into=_into(other=False), heir=False, turns=_FEW, record_property=record_property)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_many_histories(part: int, record_property: Callable[[str, object], None]) -> None:
    """Into servers of both kinds; every other source has an heir, and every third capture publishes small groups."""
    small = {"group_bytes": 1 << 16} if part % 3 == 0 else {}
    first = 10_000 + HISTORIES * part
    into = _into(other=part >= PARTS // 2)
    heir = part % 2 == 1
    done = play(first, HISTORIES, into=into, heir=heir, turns=_MANY, record_property=record_property, **small)
    missing = {each for each in _MUST - done.keys() if not (heir and each in _PREPARED)}
    assert not missing
