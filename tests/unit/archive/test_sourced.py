"""Moments of a captured source: by its GTIDs and its own clock, or a refusal that says what to type."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from pumphouse.archive.archive import Archive
from pumphouse.archive.moments import moment_of
from pumphouse.archive.sourced import at_source_time, of_gtid, standing_at
from pumphouse.cli import cli
from pumphouse.errors import UsageError
from pumphouse.model.captured import key_of
from pumphouse.model.tso import Tso, show
from tests.support.madearchive import MadeSource, column

pytestmark = pytest.mark.row("Q4")
BEGUN = datetime(2026, 11, 27, 3, 0, tzinfo=UTC)
UUIDS = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562"


class Capture:
    """Captured transactions of a made source: each has a GTID, and the source's clock."""

    def __init__(self, root: Path) -> None:
        self.made = MadeSource(root)
        self.made.create_table("t", [column(1, "id", flag=3)])
        self.made.genesis()
        self.rows, self.times, self.before = 0, dict[str, datetime](), 0

    def commit(self, gtid: str, second: float = 0, *, capture: str = "main", nameless: bool = False) -> Tso:
        self.rows += 1
        at = BEGUN + timedelta(seconds=second)
        key = key_of(gtid.encode(), 9, 9, 9, 1, round(at.timestamp() * 1e6) if second else 0)
        self.made.key = b"" if nameless else f"capture/{capture}/".encode() + key
        open_ = self.made.txn()
        with open_ as t:
            t.insert("t", id=self.rows)
        self.made.key = b"k"
        return Tso(open_.commit_ts)

    def other(self) -> Tso:
        """One of another writer."""
        self.rows += 1
        open_ = self.made.txn()
        with open_ as t:
            t.insert("t", id=self.rows)
        return Tso(open_.commit_ts)

    def anew(self) -> Tso:
        """What a capture that begins anew says of the schema."""
        self.made.add_column("t", column(2, f"c{self.rows}"))
        self.made.rewrite_job(lambda raw: raw.update(anew=True))
        return self.made.jobs[-1].commit_ts

    @property
    def archive(self) -> Archive:
        return self.made.archive


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    return Capture(tmp_path)


def refused(capture: Capture, gtid: str) -> str:
    with pytest.raises(UsageError) as error:
        of_gtid(capture.archive, gtid)
    return str(error.value)


@pytest.mark.parametrize("seed", range(4))
def test_every_gtid_and_every_second_is_found_in_any_archive(tmp_path: Path, seed: int) -> None:
    """Domains or servers by turns, numbers that are skipped, windows with nothing of one, a failover."""
    chance, capture = random.Random(seed), Capture(tmp_path)
    mysql = seed % 2
    streams = UUIDS if mysql else ("0-1", "5-1")
    numbers, clock, committed, others = dict.fromkeys(streams, 0), 1, [], []
    for _ in range(chance.randint(8, 14)):
        some = chance.sample(streams, chance.randint(0, 2))
        for _ in range(chance.randint(1, 12) if some else 0):
            stream = chance.choice(some)
            if chance.random() < 0.2:
                others.append(capture.other())
            numbers[stream] += chance.choice([1, 1, 1, 3])
            clock += chance.choice([0, 0, 1, 2, 7])
            server = stream if mysql or len(committed) < 30 else stream.replace("-1", "-2")
            gtid = f"{server}{':' if mysql else '-'}{numbers[stream]}"
            committed.append((gtid, clock, capture.commit(gtid, clock)))
        capture.made.cut()
    # The next transaction is one of the capture.
    alone = {
        at for at, (one, two) in enumerate(pairwise(committed)) if not any(one[2] < each < two[2] for each in others)
    }
    for at in sorted(chance.sample(range(len(committed)), 12)):
        gtid, second, ts = committed[at]
        assert of_gtid(capture.archive, gtid.upper()) == (ts, ts)
        assert moment_of(capture.archive, "before gtid", gtid) == ts - 1
        if committed[-1][1] > second:
            last = max(each for _, when, each in committed if when <= second)
            assert at_source_time(capture.archive, BEGUN + timedelta(seconds=second)) == last
            if not any(when == second + 1 for _, when, _ in committed):
                assert at_source_time(capture.archive, BEGUN + timedelta(seconds=second + 0.5)) == last
        standing = standing_at(capture.archive, capture.archive.windows(), ts)
        assert standing is not None
        assert (standing.last.commit_ts, standing.last.transaction) == (ts, gtid)
        assert standing.following == (
            standing_at(capture.archive, capture.archive.windows(), committed[at + 1][2]).last if at in alone else None
        )


class Committed(NamedTuple):
    """A transaction as its source knows it, and where its binlogs stand."""

    gtid: str
    second: int
    at: list[Tso]
    named: bool


def history(chance: random.Random, capture: Capture, *, ascend: bool = True) -> list[Committed]:
    """Captures begun anew, failovers, DDLs whose pieces lie in several windows, commits without a key."""
    out, mysql, clock = list[Committed](), chance.random() < 0.5, 0
    for era in range(chance.choice([1, 1, 2, 3])):
        if era:
            capture.anew()
            clock = chance.choice([0, clock, clock + 5])
        numbers, given = dict.fromkeys(UUIDS if mysql else ("0-1", "5-1"), 0), set[str]()
        for at in range(chance.randint(4, 25)):
            stream = chance.choice([*numbers])
            numbers[stream] += chance.choice([1, 1, 1, 3] if ascend else [1, 2, 3, -1])
            clock += chance.choice([0, 0, 1, 2, 7])
            server = stream if mysql or at < 9 else stream.replace("-1", "-2")
            gtid = f"{server}{':' if mysql else '-'}{max(1, numbers[stream])}"
            if gtid in given:
                continue
            given.add(gtid)
            count, found = chance.choice([0, 0, 0, 0, 1, 2, 3]), Committed(gtid, 1 + clock, [], chance.random() < 0.95)
            nameless = set() if found.named else {chance.randrange(max(count, 1))}
            for piece in range(max(count, 1)):
                name = f"{gtid}#{piece}/{count}" if count else gtid
                found.at.append(capture.commit(name, found.second, nameless=piece in nameless))
                if chance.random() < 0.3:
                    capture.made.cut()
            out.append(found)
    if chance.random() < 0.5:
        capture.made.cut()
    return out


@pytest.mark.parametrize("seed", range(6))
def test_a_moment_is_what_a_plain_scan_says_or_refused(tmp_path: Path, seed: int) -> None:
    chance, capture = random.Random(seed), Capture(tmp_path)
    ascend = seed % 3 > 0
    known = history(chance, capture, ascend=ascend)
    end = capture.archive.end()
    for each in known:
        same = [other.at for other in known if other.gtid == each.gtid and min(other.at) <= end]
        try:
            found = of_gtid(capture.archive, each.gtid)
        except UsageError:
            assert not (ascend and same == [each.at] and all(other.named for other in known) and max(each.at) <= end)
        else:
            assert found[1] <= end
            assert found in [(min(at), max(at)) for at in same]
            assert not ascend or len(same) == 1
    for second in {0, *(each.second for each in known)}:
        try:
            ts = at_source_time(capture.archive, BEGUN + timedelta(seconds=second + 0.5))
        except UsageError:
            continue
        behind = [each for each in known if each.second > second]
        assert max(max(each.at) for each in known if each.second <= second) <= ts < min(min(each.at) for each in behind)


@pytest.mark.timeout(300)
def test_a_server_that_came_late_and_one_that_went_are_found_among_many_windows(capture: Capture) -> None:
    """A failover of a MySQL: the UUID is another one; and an earlier version kept no time."""
    found = {}
    for at in range(60):
        gtid = f"{UUIDS[at > 47]}:{at + 1}"
        found[gtid] = (capture.commit(gtid, at if at > 40 else 0), at)
        capture.made.cut()
    for gtid, (ts, at) in found.items():
        if at % 6 == 0 or at in (47, 48, 59):
            assert of_gtid(capture.archive, gtid) == (ts, ts)
    assert "behind it" in refused(capture, f"{UUIDS[0]}:50")
    assert "before it" in refused(capture, f"{UUIDS[1]}:48")
    assert at_source_time(capture.archive, BEGUN + timedelta(seconds=41)) == found[f"{UUIDS[0]}:42"][0]
    assert at_source_time(capture.archive, BEGUN + timedelta(seconds=58)) == found[f"{UUIDS[1]}:59"][0]
    with pytest.raises(
        UsageError, match=f"first transaction of the archive that has a time of the source is {UUIDS[0]}:42"
    ):
        at_source_time(capture.archive, BEGUN + timedelta(seconds=40))


def test_a_transaction_of_several_binlogs_is_in_as_a_whole_or_not_at_all(capture: Capture) -> None:
    capture.commit("0-1-1", 1)
    first = capture.commit("0-1-2#0", 2)
    capture.made.cut()
    last = capture.commit("0-1-2#1", 2)
    capture.commit("0-1-3", 3)
    capture.made.cut()
    assert of_gtid(capture.archive, "0-1-2") == (first, last)
    assert moment_of(capture.archive, "gtid", "0-1-2") == last
    assert moment_of(capture.archive, "before gtid", "0-1-2") == first - 1
    assert at_source_time(capture.archive, BEGUN + timedelta(seconds=2)) == last


def test_a_transaction_of_which_a_piece_is_missing_is_no_moment(capture: Capture) -> None:
    """The archive ends within it, or somebody settled one of its binlogs by hand; of old keys nobody knows."""
    capture.commit("0-1-1#0", 1)
    capture.commit("0-1-2#0/2", 2, nameless=True)
    capture.commit("0-1-2#1/2", 2)
    first = capture.commit("0-1-3#0/2", 3)
    capture.made.cut()
    assert "has 2 binlogs, as it changes the schema, and the archive is known to have 1" in refused(capture, "0-1-2")
    for word in ("gtid", "before gtid"):
        with pytest.raises(UsageError, match=r"has 2 binlogs.*pumphouse snapshot"):
            moment_of(capture.archive, word, "0-1-3")
    for _ in range(3):
        capture.made.cut()  # windows end between both
    last = capture.commit("0-1-3#1/2", 3)
    capture.commit("0-1-4#0", 4)
    capture.made.cut()
    assert of_gtid(capture.archive, "0-1-3") == (first, last)
    of_gtid(capture.archive, "0-1-1")
    assert "has several binlogs" in refused(capture, "0-1-4")


def test_a_clock_that_went_back_where_a_capture_began_anew_is_no_moment(capture: Capture) -> None:
    for second in (10, 20, 30):
        capture.commit(f"0-1-{second}", second)
        capture.made.cut()
    capture.anew()
    for second in (5, 15, 40):
        capture.commit(f"0-1-{second}", second)
        capture.made.cut()
    for second in (12, 29):
        with pytest.raises(UsageError, match="the source's clock went back"):
            at_source_time(capture.archive, BEGUN + timedelta(seconds=second))


def test_whoever_looks_for_a_change_sees_its_gtid(capture: Capture, tmp_path: Path) -> None:
    at = capture.commit("0-1-4", 1)
    capture.other()
    capture.made.cut()
    where = ["--archive", f"file://{tmp_path}", "--from", "2000-01-01"]
    found = CliRunner().invoke(cli, ["archive", "find", *where])
    assert "GTID 0-1-4, start ts" in found.stdout
    assert found.stdout.count("GTID") == 1
    told = CliRunner().invoke(cli, ["archive", "changes", "d.t", *where[:2], "--json"])
    assert [json.loads(line).get("gtid") for line in told.stdout.splitlines()] == ["0-1-4", None]
    told = CliRunner().invoke(cli, ["archive", "changes", "d.t", *where[:2]])
    assert f"{show(at)}  0-1-4  insert d.t: id 1" in told.stdout
    assert "  insert d.t: id 2" in told.stdout


def test_what_is_not_there_is_refused_with_its_neighbours(capture: Capture) -> None:
    capture.commit("0-1-4", 1)
    capture.made.cut()
    capture.commit("0-1-7", 2)
    capture.made.cut()
    said = refused(capture, "0-1-5")
    assert "between 0-1-4 (commit ts" in said
    assert "changed no table that is captured" in said
    assert "the same state: gtid 0-1-4" in said
    assert "between 0-1-4 (commit ts" in refused(capture, "0-2-4") or "gtid 0-1-4" in refused(capture, "0-2-4")
    assert "behind it; the last one there is 0-1-7" in refused(capture, "0-1-8")
    assert "before it; the first one there is 0-1-4" in refused(capture, "0-1-3")
    assert "another of its domain or its server" in refused(capture, "3-1-5")
    assert "is no GTID" in refused(capture, "0-1-5,1-1-5")


def test_a_commit_that_a_pump_wrote_has_no_name_and_is_named_by_its_moment(capture: Capture) -> None:
    capture.commit("0-1-4", 1)
    nameless = capture.commit("0-1-5", 2, nameless=True)
    capture.made.cut()
    capture.commit("0-1-6", 3)
    capture.made.cut()
    assert f"committed at {nameless}" in refused(capture, "0-1-5")
    with pytest.raises(UsageError, match=rf"time are not known.*{nameless}"):
        at_source_time(capture.archive, BEGUN + timedelta(seconds=2))
    assert of_gtid(capture.archive, "0-1-6")[1] > nameless


def test_a_time_behind_what_was_captured_is_not_known(capture: Capture) -> None:
    """The source may have committed something up to then that the capture had not read."""
    capture.commit("0-1-4", 1)
    capture.commit("0-1-5", 5)
    capture.made.cut()
    for second in (5, 6):
        with pytest.raises(UsageError, match=r"the last one is 0-1-5 .*is not known.*pumphouse snapshot"):
            at_source_time(capture.archive, BEGUN + timedelta(seconds=second))
    with pytest.raises(UsageError, match="the first transaction of the archive that has a time of the source is 0-1-4"):
        at_source_time(capture.archive, BEGUN)


def test_a_number_that_was_given_again_is_two_moments(capture: Capture) -> None:
    """RESET MASTER, and the capture began anew."""
    old = {number: capture.commit(f"0-1-{number}", number) for number in range(1, 8)}
    capture.made.cut()
    capture.anew()
    new = {number: capture.commit(f"0-1-{number}", 60 + number) for number in range(1, 4)}
    capture.made.cut()
    assert re_found(refused(capture, "0-1-2")) == {old[2], new[2]}
    assert of_gtid(capture.archive, "0-1-6") == (old[6], old[6])
    with pytest.raises(UsageError, match="where the capture began anew"):
        at_source_time(capture.archive, BEGUN + timedelta(seconds=30))
    assert at_source_time(capture.archive, BEGUN + timedelta(seconds=6)) == old[6]


def re_found(said: str) -> set[int]:
    return {int(word) for word in said.replace("(", " ").split() if word.isdecimal() and len(word) > 15}


def test_another_writer_and_two_captures_are_refused_by_name(capture: Capture) -> None:
    capture.other()
    capture.made.cut()
    assert "no window of the archive begins with a transaction that `pumphouse capture` read" in refused(
        capture, "0-1-1"
    )
    assert standing_at(capture.archive, capture.archive.windows(), capture.archive.end()) is None
    capture.commit("0-1-1")
    capture.made.cut()
    with pytest.raises(UsageError, match="a version that kept no clock"):
        at_source_time(capture.archive, BEGUN)
    for number in range(2, 20):
        capture.commit(f"0-1-{number}", capture="shop")
        capture.made.cut()
    for gtid in ("0-1-1", "0-1-9", "0-1-19"):
        assert "of the captures main, shop" in refused(capture, gtid)


def test_a_plan_does_without_where_the_source_was_if_that_segment_is_lost(capture: Capture) -> None:
    capture.commit("0-1-1")
    at = capture.made.cut()
    assert standing_at(capture.archive, capture.archive.windows(), at) is not None
    for segment in capture.archive.windows()[-1].segments:
        capture.archive.store.delete(segment.key)
    assert standing_at(capture.archive, capture.archive.windows(), at) is None
