"""What became of the transactions of a lost journal: judged from what Pumps, archive, history and record show."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pumphouse.capture.recover import Verdict, Written, judge, position_of
from pumphouse.capture.source.gtid import Flavor
from pumphouse.errors import CaptureRefused
from pumphouse.model.captured import key_of
from pumphouse.registry.base import CaptureRecord, CaptureState

SAID = CaptureRecord(
    capture_id="main", source="", server="", owner="", host="", state=CaptureState.RUNNING, heartbeat=0.0, gtid="0-1-1",
    start_ts=10, commit_ts=15,
)  # fmt: skip


def group(
    first: int, before: int, *names: str, commits: tuple[int, ...] = (), lacks: tuple[int, ...] = (), schema: int = 1
) -> list[Written]:
    """Ps with start ts from ``first`` on: committed where ``commits`` says when, open else."""
    out = []
    for at, name in enumerate(names):
        commit_ts = commits[at] if at < len(commits) else 0
        key = key_of(name.encode(), first + at, first, before if at == 0 else first + at - 1, schema)
        out.append(Written.of(first + at, key, commit_ts=commit_ts, is_open=not commit_ts))
    return [each for each in out if each.start_ts not in lacks]


def names(verdict: Verdict) -> list[str]:
    return [each.transaction for each in verdict.decided]


@pytest.mark.row("Q2")
def test_what_is_open_behind_the_last_commit_is_rolled_back() -> None:
    done = group(20, 10, "0-1-2", "0-1-3", commits=(30, 31))
    verdict = judge([*done, *group(40, 21, "0-1-4", "0-1-5")], SAID)
    assert verdict.outcomes == {40: 0, 41: 0}
    assert names(verdict) == ["0-1-2", "0-1-3"]
    assert str(position_of(verdict.decided, SAID, Flavor.MARIADB)) == "0-1-3"
    assert judge(group(40, 10, "0-1-4"), SAID).outcomes == {40: 0}


@pytest.mark.row("Q2")
def test_a_commit_says_that_its_whole_group_was_decided() -> None:
    first = group(20, 10, "0-1-2", "0-1-3", "0-1-4", commits=(30, 31, 32))
    second = group(40, 22, "0-1-5", "0-1-6", "0-1-7", commits=(50,), schema=2)
    verdict = judge([*first, *second], SAID)
    assert verdict.outcomes == {41: None, 42: None}  # behind all others: a new one
    assert names(verdict) == ["0-1-2", "0-1-3", "0-1-4", "0-1-5", "0-1-6", "0-1-7"]
    assert [each.schema for each in verdict.decided] == [1, 1, 1, 2, 2, 2]


@pytest.mark.row("Q2")
def test_a_commit_ts_that_is_lost_below_one_that_is_not_is_not_made_up() -> None:
    """Any timestamp between is somebody's: the start ts of the next group, a commit of another writer."""
    first = group(20, 10, "0-1-2", "0-1-3")
    second = group(40, 21, "0-1-5", commits=(50,))
    with pytest.raises(CaptureRefused, match=r"0-1-3 \(start ts 21\) was decided .* below 50"):
        judge([*first, *second], SAID)
    with pytest.raises(CaptureRefused, match=r"0-1-2 \(start ts 20\) was decided .* below 30"):
        judge(first, replace(SAID, start_ts=21, commit_ts=30))
    # What another Pump got of it says when.
    again = [replace(each, commit_ts=30 + at) for at, each in enumerate(first)]
    assert judge([*again, *second], SAID).outcomes == {20: 30, 21: 31}


@pytest.mark.row("Q2")
def test_one_that_is_lost_or_rolled_back_among_those_that_were_decided_is_named() -> None:
    """Its Pump's disk is gone, too: the group's commits say nothing of how many they were."""
    made = group(20, 10, "0-1-2", "0-1-3", "0-1-4", commits=(30, 31, 32))
    for lost in (0, 1):
        with pytest.raises(CaptureRefused, match=f"start ts {20 + lost} was decided, and neither"):
            judge([each for at, each in enumerate(made) if at != lost], SAID)
    with pytest.raises(CaptureRefused, match="start ts 21 was decided, and its Pump has it as rolled back"):
        judge([made[0], replace(made[1], commit_ts=0), made[2]], SAID)
    # Of the last one nobody has seen anything: it is read again.
    assert names(judge(made[:2], SAID)) == ["0-1-2", "0-1-3"]


@pytest.mark.row("Q2")
def test_a_group_that_was_tried_again_is_decided_once() -> None:
    failed = group(20, 10, "0-1-2", "0-1-3")
    again = group(30, 10, "0-1-2", commits=(35,))
    later = group(40, 30, "0-1-3", "0-1-4", commits=(45,))
    verdict = judge([*failed, *again, *later], SAID)
    assert verdict.outcomes == {20: 0, 21: 0, 41: None}
    assert names(verdict) == ["0-1-2", "0-1-3", "0-1-4"]


@pytest.mark.row("Q2")
def test_what_the_record_covers_was_decided_by_its_commit_ts() -> None:
    said = replace(SAID, start_ts=22, commit_ts=30, gtid="0-1-4")
    assert judge(group(20, 10, "0-1-2", "0-1-3", "0-1-4", commits=(28, 29)), said).outcomes == {22: 30}
    # A try that failed long ago, and whose rollback was lost.
    strange = group(8, 5, "0-1-1")
    before = group(9, 5, "0-1-1", commits=(10,))
    between = group(12, 9, "0-1-2", commits=(13,))
    found = [*strange, *before, *between, *group(20, 12, "0-1-3", "0-1-4", "0-1-5", commits=(28, 29, 30))]
    assert judge(found, said).outcomes == {8: 0}


@pytest.mark.row("Q2")
def test_a_journal_that_began_and_decided_nothing_rolls_back_what_is_older() -> None:
    said = replace(SAID, start_ts=100, commit_ts=0)
    assert judge([*group(20, 10, "0-1-2"), *group(110, 0, "0-1-9")], said).outcomes == {20: 0, 110: 0}
    verdict = judge([*group(20, 10, "0-1-2"), *group(110, 0, "0-1-9", "0-1-10", commits=(120,))], said)
    assert verdict.outcomes == {20: 0, 111: None}


@pytest.mark.row("Q2")
def test_what_contradicts_itself_is_named() -> None:
    lost = group(20, 10, "0-1-2", commits=(30,))
    last = group(40, 20, "0-1-3", commits=(50,))
    with pytest.raises(CaptureRefused, match="start ts 20 was decided, and neither a Pump nor the archive has"):
        judge(last, SAID)
    with pytest.raises(CaptureRefused, match="not above"):
        judge([*group(20, 10, "0-1-2", commits=(60,)), *last], SAID)
    with pytest.raises(CaptureRefused, match="nothing that was decided leads there"):
        judge([*lost, *last, *group(35, 10, "0-1-8", commits=(36,))], SAID)
    with pytest.raises(CaptureRefused, match="does not come behind start ts 10"):
        judge(group(40, 5, "0-1-3", commits=(50,)), SAID)
    with pytest.raises(CaptureRefused, match="an earlier version"):
        Written.of(20, b"0-1-2")


@pytest.mark.row("Q2")
@pytest.mark.parametrize("seed", range(200))
def test_whatever_was_seen_stays_and_whatever_was_not_comes_once(seed: int) -> None:
    """Random lives: groups that are decided, tried again or killed; commits that got to a Pump, or did not."""
    rng = random.Random(seed)
    clock, number, last, said = 100, 1, 0, replace(SAID, start_ts=50, commit_ts=0, gtid="0-1-1")
    found: list[Written] = []
    decided: list[tuple[str, int, int]] = []  # transaction, start, commit
    for _ in range(rng.randrange(1, 12)):
        sizes = [rng.randrange(1, 5)]
        while rng.random() < 0.3:  # tries that failed, of groups that were cut elsewhere
            sizes.insert(0, rng.randrange(1, 5))
        for at, size in enumerate(sizes):
            made = group(clock, last, *(f"0-1-{number + each}" for each in range(1, size + 1)))
            clock += size + rng.randrange(3)
            if at < len(sizes) - 1:
                kept = [each for each in made if rng.random() < 0.5]
                found += [replace(each, is_open=rng.random() < 0.5) for each in kept]
                continue
            commits = [clock + sum(rng.randrange(1, 3) for _ in range(each + 1)) for each in range(size)]
            commits.sort()
            commits = [ts + each for each, ts in enumerate(commits)]
            clock = commits[-1] + rng.randrange(1, 4)
            unsent = rng.choice((size, size, rng.randrange(size + 1)))  # Cs go out in order
            for at, (each, ts) in enumerate(zip(made, commits, strict=True)):
                decided.append((each.transaction, each.start_ts, ts))
                found.append(replace(each, commit_ts=ts if at < unsent else 0, is_open=at >= unsent))
            number, last = number + size, made[-1].start_ts
            if rng.random() < 0.2:
                said = replace(said, gtid=f"0-1-{number}", start_ts=last, commit_ts=commits[-1])
    found += group(clock, last, *(f"0-1-{number + each}" for each in range(1, 4)))
    rng.shuffle(found)
    seen = {each.start_ts for each in found if each.commit_ts} | {said.start_ts}
    gone = [start for _, start, _ in decided if start not in seen and start < max(seen)]
    try:
        verdict = judge(found, said)
    except CaptureRefused as refused:
        assert "was in the journal alone" in refused.message
        assert gone
        return
    seen_upto = max([said.start_ts, *(each.start_ts for each in found if each.commit_ts)])
    whole = {each.first for each in found if each.start_ts == seen_upto and each.commit_ts}
    expected = [
        each
        for each in decided
        if each[1] <= seen_upto or any(w.start_ts == each[1] and w.first in whole for w in found)
    ]
    got = [(each.transaction, each.start_ts) for each in verdict.decided]
    assert got == [each[:2] for each in expected][len(expected) - len(got) :]
    opened = {each.start_ts for each in found if each.is_open}
    assert verdict.outcomes.keys() == opened
    committed = {start for start, ts in verdict.outcomes.items() if ts != 0}
    assert committed == opened & {start for _, start, _ in expected}
    true = {start: ts for _, start, ts in expected}
    assert all(each.commit_ts in (0, true[each.start_ts]) for each in verdict.decided)
    made_up = [each.start_ts for each in verdict.decided if not each.commit_ts]
    assert made_up == [each.start_ts for each in verdict.decided][len(verdict.decided) - len(made_up) :]
    assert made_up == [start for start, ts in sorted(verdict.outcomes.items()) if ts is None]
