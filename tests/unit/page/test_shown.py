"""The page's words and places: red when the archive stands still, whatever else is well."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from binlog_airflow.advice import dag_for
from binlog_airflow.page import shown
from pumphouse.model.tso import Tso, compose
from pumphouse.settings import Settings
from pumphouse.status.findings import findings
from pumphouse.status.headline import clock, headline
from pumphouse.status.past import Event, Hole, Kind, Past
from pumphouse.status.report import ArchiveStatus, CaptureStatus, Finding, Severity, Status, Stop, TargetStatus

pytestmark = pytest.mark.row("O2", "O3")
_NOW_MS = 1_795_867_200_000
NOW = compose(_NOW_MS)


def ago(seconds: float) -> Tso:
    return compose(_NOW_MS - int(seconds * 1000))


ARCHIVE = ArchiveStatus(
    url="s3://b/a", begin=ago(1000), restorable_from=ago(800), restorable_to=ago(200), end=ago(200), age_s=200.0, late_s=300.0
)  # fmt: skip
WELL = Status(cluster="file:///c", now=NOW, archive=ARCHIVE, pumps=(), targets=(), consumers=())
PROOF = Event(kind=Kind.PROOF, at=ago(500), ended_ms=_NOW_MS - 7_200_000, of="d.t of h:1", text="d.t of h:1: equal")


def test_an_archive_that_stands_still_is_red_though_nothing_else_is_wrong() -> None:
    assert headline(WELL, Past()).mood == "good"
    late = headline(replace(WELL, archive=replace(ARCHIVE, age_s=301.0)), Past())
    assert (late.mood, late.word) == ("bad", "Late")
    assert late.says[0].startswith("the archive stands still: safe until 20")


@pytest.mark.parametrize(("severity", "mood"), [(Severity.WARNING, "warn"), (Severity.ERROR, "bad")])
def test_a_finding_is_no_good_mood(severity: Severity, mood: str) -> None:
    found = replace(WELL, findings=(Finding(severity=severity, who="x", what="y", next="z"),))
    assert headline(found, Past()).mood == mood


def test_the_first_moment_is_a_second_that_can_be_typed() -> None:
    second = ago(800)
    for first, shown_as in ((second, 0), (second + 1, 1), (second + (7 << 18), 1)):
        found = replace(WELL, archive=replace(ARCHIVE, restorable_from=Tso(first)))
        wanted = f"restorable from {clock(second + (shown_as * 1000 << 18))}"
        assert wanted in headline(found).says
        line = shown.line(found, None, None)
        assert line is not None
        assert any(each.title.startswith(wanted) for each in line.bars)


def test_without_an_archive_nothing_is_safe() -> None:
    bare = replace(WELL, archive=ArchiveStatus(url="s3://b/a", problem="there is no archive"))
    assert headline(bare, None).mood == "bad"
    assert shown.line(bare, None, None) is None


def test_it_says_when_something_was_proved_last_and_that_nothing_was() -> None:
    red = replace(PROOF, good=False, ended_ms=_NOW_MS)
    assert f"proved 2 h ago: d.t of h:1, as at {clock(PROOF.at)}" in headline(WELL, Past(events=(PROOF, red))).says
    assert "never proved" in headline(WELL, Past(events=(red,))).says
    assert not any("proved" in each for each in headline(WELL, None).says)  # not read yet


def test_the_line_is_whole_from_its_beginning_to_now() -> None:
    lost = Hole(start=ago(600), end=ago(599), node_id="p", why="gone")
    line = shown.line(WELL, Past(events=(PROOF,), holes=(lost,)), None)
    assert line is not None
    assert [(each.kind, round(each.x), round(each.width, 1)) for each in line.bars] == [
        ("archived", 0, 20.0), ("restorable", 20, 60.0), ("behind", 80, 20.0), ("lost", 40, 0.3),
    ]  # fmt: skip
    assert [round(x) for x, _ in line.marks] == [50]
    near = shown.line(WELL, Past(events=(PROOF,), holes=(lost,)), 400)
    assert near is not None
    assert [(each.kind, round(each.x)) for each in near.bars] == [("restorable", 0), ("behind", 50)]
    assert near.marks == ()


@pytest.mark.parametrize("remarks", [(), (Finding(severity=Severity.WARNING, who="x", what="y", next="z"),)])
def test_no_word_is_said_twice(remarks: tuple[Finding, ...]) -> None:
    head = headline(replace(WELL, findings=remarks), None)
    assert head.word.startswith("Safe")
    assert head.says[0] == f"until {clock(ARCHIVE.end)}, 3 min ago"


def test_a_step_names_the_dag_of_the_installation_that_does_it() -> None:
    dags = {"binlog_snapshot": "eu_binlog_snapshot"}
    found = replace(WELL, findings=(Finding(severity=Severity.ERROR, who="x", what="y", next="pumphouse snapshot"),))
    assert [each["dag"] for each in shown.steps(found, dags)] == ["eu_binlog_snapshot"]
    assert dag_for("pumphouse archive dump --table a.b, without its rule") == "binlog_dump"
    assert dag_for("pumphouse pumps") == ""


@pytest.mark.parametrize("state", ["stopped", "silent", "failed"])
def test_a_source_that_nobody_follows_is_not_safe_though_the_archive_goes_on(state: str) -> None:
    capture = CaptureStatus(
        capture_id="main", source="db:3306", host="h", state="running", silent_s=0, gtid="", lag_s=0, transactions=1,
        reason="", semi_sync=None,
    )  # fmt: skip
    assert headline(replace(WELL, captures=(capture,)), Past()).mood == "good"
    stands = headline(replace(WELL, captures=(replace(capture, state=state),)), Past())
    assert stands.mood == "bad"
    assert f"capture main is {state}: what db:3306 wrote since is not there" in stands.says


def test_a_source_whose_capture_runs_and_reads_nothing_is_not_safe_though_the_archive_goes_on() -> None:
    capture = CaptureStatus(
        capture_id="main", source="db:3306", host="h", state="running", silent_s=0, gtid="", lag_s=7200, transactions=1,
        reason="no route to host", semi_sync=None,
    )  # fmt: skip

    def seen(**changed: Any) -> tuple[Status, Finding | None]:
        status = replace(WELL, captures=(replace(capture, **changed),))
        return status, next((each for each in findings(status, "", Settings()) if each.who.startswith("capture")), None)

    away, hand = seen()
    head = headline(away)
    assert (head.mood, "Safe" in head.word) == ("bad", False)
    assert "capture main is 2 h behind: what db:3306 wrote since is not there (no route to host)" in head.says
    assert hand is not None
    assert (hand.severity, "no route to host" in hand.what) == (Severity.ERROR, True)
    for changed, severity in (({"reason": ""}, Severity.ERROR), ({"reason": "", "lag_s": 61}, Severity.WARNING)):
        behind, hand = seen(**changed)
        assert headline(behind).mood == "bad"
        assert hand is not None
        assert hand.severity is severity
    near, hand = seen(lag_s=60, reason="")
    assert (headline(near).mood, hand) == ("good", None)


def test_an_archive_of_which_nothing_can_be_restored_is_not_safe() -> None:
    bare = replace(WELL, archive=replace(ARCHIVE, restorable_from=None, restorable_to=None))
    hands = [each for each in findings(bare, "", Settings()) if "nothing can be restored" in each.what]
    assert [(each.severity, each.next) for each in hands] == [(Severity.ERROR, "pumphouse archive dump")]
    head = headline(replace(bare, findings=tuple(hands)))
    assert (head.mood, head.word) == ("bad", "Not safe")
    assert head.says[0].startswith("nothing can be restored: there is no dump")
    assert not any("safe until" in each for each in head.says)


def test_a_target_of_a_young_archive_may_still_be_waiting_for_its_first_load() -> None:
    begun = replace(ARCHIVE, begin=ago(299), interval_s=60.0)
    status = replace(WELL, archive=begun, targets=(TargetStatus(section="target", address="h:1"),))

    def named(status: Status) -> bool:
        return any(each.what.startswith("it was never loaded") for each in findings(status, "", Settings()))

    assert not named(status)
    assert named(replace(status, archive=replace(begun, begin=ago(301))))
    assert named(replace(status, archive=replace(begun, interval_s=None))), "nobody makes windows: it is typed by hand"
    assert named(replace(status, targets=(replace(status.targets[0], tables=1),))), "that load would be refused"


def test_an_archive_that_goes_on_behind_a_ddl_that_stops_every_restore_is_not_safe() -> None:
    first, second = (Stop(at=ago(each), why=f"d.t{each} had rows when the history saw it first") for each in (300, 250))
    stopped = replace(WELL, archive=replace(ARCHIVE, stops=(first, second)))
    assert headline(stopped).mood == "bad"
    said = f"the whole is restorable only up to {clock(first.at)}, until the next dump: {first.why}"
    assert said in headline(stopped).says

    def hands(status: Status) -> list[Finding]:
        return [each for each in findings(status, "", Settings()) if "whole" in each.what]

    (hand,) = hands(stopped)
    assert (hand.severity, hand.next) == (Severity.ERROR, "pumphouse archive dump")
    assert hand.what.endswith(f"{first.why}; behind that, 1 more")
    (hand,) = hands(replace(WELL, archive=replace(ARCHIVE, stops=None)))
    assert (hand.severity, "not known" in hand.what) == (Severity.WARNING, True)
    assert hands(WELL) == []


def test_a_ddl_that_stops_every_restore_is_on_the_line_up_to_the_dump_behind_it() -> None:
    dumped = Past(holes=(Hole(start=ago(300), end=ago(250), node_id="", why="d.t had rows"),))
    line = shown.line(WELL, dumped, None)
    assert line is not None
    assert line.bars[-1].title == f"no restore of the whole, {clock(ago(300))} to {clock(ago(250))}: d.t had rows"
