"""Planning a restore: pure, from manifests alone."""

import dataclasses
import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest

from pumphouse.archive.base import Base
from pumphouse.archive.genesis import Genesis
from pumphouse.archive.manifest import DdlEntry, Declaration, Manifest, SegmentEntry, TableStat
from pumphouse.archive.range import Range
from pumphouse.archive.view import ArchiveView, first_base
from pumphouse.archive.windows import Windows
from pumphouse.errors import ConfigError, RestoreError, TargetUnreachable, UsageError
from pumphouse.loader.rules import Rules
from pumphouse.loader.state import Standing
from pumphouse.loader.steps import Given, Steps, kind_of
from pumphouse.model.moment import parse_time
from pumphouse.model.table import Job
from pumphouse.model.tso import Tso, compose
from pumphouse.restore.plan import LATEST, RestorePlan, begin_at, parse_moment
from pumphouse.restore.plan import plan_restore as plan_of_view
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import TimedJob
from pumphouse.settings import LoadRule, LoadSettings, TargetSettings
from tests.support.madearchive import column, table_info

G = Tso(1000)


def genesis(base: tuple[()] | None = ()) -> Genesis:
    ddl = DdlEntry(key="d", sha256="", bytes=0, jobs=0)
    return Genesis(cluster_id=1, archive_id="main", attempt="a", ts=G, schema_version=1, pumps=(), ddl=ddl, base=base)


def window(start: int, end: int) -> Manifest:
    segment = SegmentEntry(
        node_id="p", key=f"s{start}", sha256="", bytes=1, payload_bytes=10, rows=2, changes=4, ddls=0,
        min_commit_ts=Tso(start + 1), max_commit_ts=Tso(end), tables={5: TableStat(rows=4, bytes=10)},
    )  # fmt: skip
    return Manifest(
        cluster_id=1, attempt="a", start=Tso(start), planned_end=Tso(end), end=Tso(end), fence=Tso(end + 1), previous="",
        pumps=(), segments=(segment,),
    )  # fmt: skip


def view_of(genesis: Genesis, chain: Sequence[Manifest], timeline: Timeline) -> ArchiveView:
    view = ArchiveView(genesis=genesis, kept=Range.whole(genesis), windows=Windows.of(chain), timeline=timeline)
    return dataclasses.replace(view, bases=first_base(view))


def plan_restore(
    genesis: Genesis, chain: Sequence[Manifest], to: Tso | None, timeline: Timeline, *, wall: Tso | None = None
) -> RestorePlan:
    return plan_of_view(view_of(genesis, chain, timeline), to, task="main", settings=LoadSettings(), wall=wall)


CHAIN = [window(1000, 2000), window(2000, 3000), window(3000, 4000)]


@pytest.mark.row("R1")
@pytest.mark.parametrize(
    ("to", "read", "cut"), [(1000, 0, False), (1001, 1, True), (2000, 1, False), (2500, 2, True), (4000, 3, False)]
)
def test_the_windows_up_to_the_moment_are_read_and_the_last_one_is_cut(to: int, read: int, cut: bool) -> None:
    plan = plan_restore(genesis(), CHAIN, Tso(to), Timeline.empty())
    assert [w.start for w in plan.windows] == [m.start for m in CHAIN[:read]]
    assert any(w.cut for w in plan.windows) is cut
    assert (plan.rows, plan.bytes) == (4 * read, 10 * read)


@pytest.mark.row("R1")
def test_an_earlier_moment_reads_a_prefix() -> None:
    plans = [plan_restore(genesis(), CHAIN, Tso(to), Timeline.empty()) for to in range(1000, 4001, 250)]
    for earlier, later in itertools.pairwise(plans):
        assert [w.start for w in later.windows][: len(earlier.windows)] == [w.start for w in earlier.windows]


@pytest.mark.row("R1")
@pytest.mark.parametrize("to", [999, 4001])
def test_a_moment_that_is_not_covered_is_refused(to: int) -> None:
    with pytest.raises(TargetUnreachable) as unreachable:
        plan_restore(genesis(), CHAIN, Tso(to), Timeline.empty())
    assert (unreachable.value.have_from, unreachable.value.have_to) == (1000, 4000)
    assert ("pumphouse snapshot" if to > 4000 else "archive ls") in unreachable.value.hint


@pytest.mark.row("R1")
def test_latest_is_the_end_of_the_archive() -> None:
    assert plan_restore(genesis(), CHAIN, None, Timeline.empty()).to == 4000
    assert plan_restore(genesis(), [], None, Timeline.empty()).to == G


@pytest.mark.row("R1")
def test_latest_is_a_word_beside_every_time() -> None:
    def parse(text: str) -> Tso:
        return parse_time(text, lambda: Tso(77), word=LATEST).ts

    assert parse_moment(" latest ", parse) is None
    assert parse_moment("now", parse) == 77
    with pytest.raises(UsageError, match="or latest"):
        parse_moment("newest", parse)


@pytest.mark.row("R1")
@pytest.mark.parametrize(("ahead_ms", "future"), [(0, False), (-60_000, False), (60_000, True)])
def test_a_moment_behind_the_end_is_refused_with_a_way_out_that_works(ahead_ms: int, future: bool) -> None:
    wall_ms = 1_700_000_000_000
    with pytest.raises(TargetUnreachable) as unreachable:
        plan_restore(
            genesis(), CHAIN, compose(wall_ms + ahead_ms), Timeline.empty(), wall=compose(wall_ms)
        )  # fmt: skip
    assert "--to latest" in unreachable.value.hint
    assert "pumphouse restore" not in unreachable.value.hint, "into what, it does not know"
    assert ("lies in the future" in unreachable.value.message) is future
    assert ("pumphouse snapshot" in unreachable.value.hint) is not future, "a snapshot cannot reach the future"


def with_table(commit_ts: int) -> Timeline:
    job = {
        "id": 9, "type": 3, "schema_id": 2, "table_id": 5, "schema_name": "d", "table_name": "t", "state": 6,
        "schema_state": 5, "query": "CREATE TABLE t",
        "binlog": {
            "SchemaVersion": 1, "FinishedTS": commit_ts, "TableInfo": table_info(5, "t", [column(1, "id", flag=3)])
        },
    }  # fmt: skip
    return Timeline.empty().fold([TimedJob(Tso(commit_ts), Job.from_json(json.dumps(job)))])


@pytest.mark.row("R1")
def test_without_a_dump_of_the_tables_at_genesis_there_is_nothing_to_restore_from() -> None:
    with pytest.raises(RestoreError, match="pumphouse archive dump"):
        plan_restore(genesis(None), CHAIN, Tso(2000), with_table(900))
    assert plan_restore(genesis(None), CHAIN, Tso(2000), with_table(1500)).base_tables == 0


@pytest.mark.row("R2", "A2")
def test_a_loss_counts_for_the_moments_that_lie_behind_its_beginning() -> None:
    lost = Declaration(
        node_id="p", incarnation="i", from_ts=Tso(2000), to_ts=Tso(3000), reason="its disk died", who="ops"
    )
    chain = [CHAIN[0], dataclasses.replace(CHAIN[1], declared=(lost,)), CHAIN[2]]
    plan_restore(genesis(), chain, Tso(2000), Timeline.empty()).require_accepted(False)
    for to in (2001, 4000):
        plan = plan_restore(genesis(), chain, Tso(to), Timeline.empty())
        assert plan.losses.declared == (lost,)
        plan.require_accepted(True)
        with pytest.raises(RestoreError, match="its disk died"):
            plan.require_accepted(False)


@pytest.mark.row("R2", "A2")
def test_a_range_in_which_tidb_skipped_binlogs_is_a_loss_that_has_to_be_accepted() -> None:
    chain = [CHAIN[0], dataclasses.replace(CHAIN[1], binlog_skipped=True), CHAIN[2]]
    plan_restore(genesis(), chain, Tso(2000), Timeline.empty()).require_accepted(False)
    for to in (2001, 4000):
        plan = plan_restore(genesis(), chain, Tso(to), Timeline.empty())
        plan.require_accepted(True)
        with pytest.raises(RestoreError, match="binlogs skipped by TiDB") as refused:
            plan.require_accepted(False)
        assert refused.value.facts["binlog_skipped"] == [{"start": 2000, "end": 3000}]


def steps_of(chain: Sequence[Manifest], to: int, timeline: Timeline, *rules: dict[str, Any], **load: Any) -> Steps:
    rows = tuple(LoadRule(why="a test", **rule) for rule in rules)
    settings = LoadSettings(**{"max_plan_bytes": 1, "rules": rows} | load)
    view = view_of(genesis(), chain, timeline)
    given = Given(
        view=view, standing=Standing(), rules=Rules.of(settings.rules, Tso(0)), settings=settings, task="main",
        target=TargetSettings(),
    )  # fmt: skip
    return plan_of_view(view, Tso(to), task="main", settings=settings).steps(given)


@pytest.mark.row("R2", "L6")
def test_steps_are_the_same_for_the_same_moment_whatever_comes_behind_it_and_however_units_are_made() -> None:
    kinds = [kind_of(step) for step in steps_of(CHAIN, 2500, with_table(900)).all]
    assert kinds == ["reset", "build", "apply", "foreign_keys", "apply", "apply", "ready"]
    digests = {steps_of(CHAIN[:count], 2000, with_table(900), buckets=count).digest() for count in (1, 2, 3)}
    assert len(digests) == 1
    others = [
        steps_of(CHAIN, 2001, with_table(900)),
        steps_of(CHAIN, 2000, with_table(901)),
        steps_of(CHAIN, 2000, Timeline.empty()),
        steps_of(CHAIN, 2000, with_table(900), {"do": "skip", "table": "d.t"}),
        steps_of(CHAIN, 2000, with_table(900), {"do": "route", "database": "d", "to": "e"}),
    ]
    found = {each.digest() for each in others} | digests
    assert len(found) == 5, "when the table was made is no part of it; all else is"


@pytest.mark.row("R1")
def test_a_restore_begins_from_the_dump_that_is_named_and_from_no_other() -> None:
    view = view_of(genesis(), CHAIN, Timeline.empty())
    later = Base(begun=Tso(2100), ts=Tso(2500), low=Tso(2100), tables=(), columns=True, sha256="")
    view = dataclasses.replace(view, bases=(*view.bases, later))
    to = Tso(4000)
    for named, begins in ((None, 2500), (Tso(2500), 2500), (G, 1000)):
        plan = plan_of_view(begin_at(view, named, to), to, task="main", settings=LoadSettings())
        assert plan.base == begins
        # What was shown is made again from what the approval carries.
        again = plan_of_view(begin_at(view, plan.base, to), to, task="main", settings=LoadSettings())
        assert again.digest() == plan.digest()
    with pytest.raises(ConfigError, match="no dump of 1001"):
        begin_at(view, Tso(1001), to)
    with pytest.raises(UsageError, match="later than 2000"):
        begin_at(view, Tso(2500), Tso(2000))


@pytest.mark.row("R7")
def test_a_rule_that_a_dump_makes_useless_is_named_with_the_dump_that_would_do() -> None:
    view = view_of(genesis(), CHAIN, Timeline.empty())
    newer = dataclasses.replace(view.bases[0], begun=Tso(3000), ts=Tso(3000), low=Tso(3000))
    view = dataclasses.replace(view, bases=(*view.bases, newer))
    settings = LoadSettings(rules=tuple(LoadRule(do="skip", txn=ts, why="a test") for ts in (1500, 3500)))
    plan = plan_of_view(view, Tso(4000), task="main", settings=settings)
    (said,) = plan.idle
    for part in ("transaction at 1500 ", "no effect", "dump of 3000 ", "--base 1000 "):
        assert part in said
    older = plan_of_view(begin_at(view, Tso(1000), None), Tso(4000), task="main", settings=settings)
    assert older.idle == ()
    assert plan.to_dict()["idle"] == (said,)
